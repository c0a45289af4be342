//! What is tested: a namespace over the memory engine, or over a server that many hosts share, spoken to in the numbers of
//! the reference.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use lockwood::ambient;
use lockwood::check::{self, Inputs, Mode, Report};
use lockwood::content::{BackingFiles, Chunks, Contents, Objects};
use lockwood::document::{Ino, Locking, Name, Volume};
use lockwood::namespace::ops::attributes::Change;
use lockwood::namespace::ops::make::{Make, What};
use lockwood::namespace::ops::rename::{Manner as RenameManner, Patience, Rename};
use lockwood::namespace::ops::space::Allocation;
use lockwood::namespace::ops::xattr::SetMode;
use lockwood::namespace::{Caller, Namespace, NamespaceError, Outsider, SessionInfo, Settings};
use lockwood::store::cached::CachedStore;
use lockwood::store::engine::{self, EngineOptions};
use lockwood::store::memory::MemoryStore;
use lockwood::store::{Commit, Store};

use super::reference::{Body, Id, Manner, Outcome, Refusal};

/// So small that both places of content are in use all the time.
const INLINE_MAX: u32 = 64;

const LOCK_WAIT: Duration = Duration::from_secs(5);

/// Where the bytes of large files are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Backing,
    Chunks,
    Objects,
}

/// So small that files have several.
const CHUNK_BYTES: NonZeroU64 = NonZeroU64::new(256).unwrap();

pub(crate) struct Subject {
    namespace: Option<Namespace>,
    store: Arc<dyn Store>,
    volume: Volume,
    /// Of a server that many hosts share.
    url: Option<String>,
    dir: TempDir,
    place: Place,
    /// The inode of each node of the reference.
    pub(crate) inos: Vec<Ino>,
}

fn refusal(error: NamespaceError) -> Refusal {
    use NamespaceError as E;
    match error {
        // Stale: what is opened is gone, on a store where another host may have put something else in its place.
        E::NotFound | E::Stale => Refusal::NotFound,
        E::Exists => Refusal::Exists,
        E::NotADirectory => Refusal::NotADirectory,
        E::IsADirectory => Refusal::IsADirectory,
        E::NotEmpty => Refusal::NotEmpty,
        E::IntoItself => Refusal::IntoItself,
        E::NotPermitted(_) => Refusal::NotPermitted,
        E::Invalid(_) => Refusal::Invalid,
        E::NoAttribute => Refusal::NoAttribute,
        other => panic!("an error that nothing here can cause: {other:?}"),
    }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

fn empty_volume(locking: Locking) -> Volume {
    Volume::empty("0".repeat(32), locking, INLINE_MAX, ambient::wall_clock().into())
}

fn options() -> EngineOptions {
    EngineOptions { password: None, allow_volatile: false, patience: LOCK_WAIT }
}

impl Subject {
    /// A volume in memory, or in a server under a URL where there is none yet.
    pub(crate) fn new(locking: Locking, place: Place, url: Option<String>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        BackingFiles::create(&dir.path().join("content"), 8).expect("a content directory");
        let volume = empty_volume(locking);
        let commit = Commit::format(volume.clone(), 0, 0);
        let store: Arc<dyn Store> = match &url {
            Some(url) => {
                engine::format(url, options(), &commit).expect("an empty volume");
                engine::open(url, options()).expect("the volume").0
            }
            None => {
                let store = MemoryStore::new();
                store.commit(&commit).expect("an empty volume");
                Arc::new(store)
            }
        };
        let mut subject = Self { namespace: None, store, volume, url, dir, place, inos: vec![Ino::ROOT] };
        subject.begin();
        subject
    }

    /// Where the bytes are, for a namespace over `store`.
    fn files(&self, store: &Arc<dyn Store>) -> Contents {
        match self.place {
            Place::Backing => {
                BackingFiles::open(&self.dir.path().join("content"), 8).expect("the content directory").into()
            }
            Place::Chunks => Chunks::with_chunk_bytes(Arc::clone(store), CHUNK_BYTES).into(),
            Place::Objects => {
                let location = format!("file://{}/objects", self.dir.path().display());
                let (location, volume) = (location.parse().expect("a place"), "0".repeat(32));
                let objects = Objects::open(&location, &volume, LOCK_WAIT)
                    .or_else(|_| Objects::create(&location, &volume, LOCK_WAIT));
                let chunks = Chunks::with_chunk_bytes(Arc::clone(store), CHUNK_BYTES);
                chunks.in_objects(objects.expect("objects")).into()
            }
        }
    }

    fn begin(&mut self) {
        let info = SessionInfo {
            host: "model".to_owned(),
            boot_id: String::new(),
            pid: std::process::id(),
            mount_point: "/".to_owned(),
        };
        let settings = Settings::default();
        let begun = match self.url {
            // Who mounts keeps what he has read until he is told that it has changed.
            Some(_) => {
                let cached = CachedStore::new(Arc::clone(&self.store), 1 << 20, Duration::from_secs(3600));
                let store: Arc<dyn Store> = Arc::new(cached.expect("a cache"));
                let files = self.files(&store);
                Namespace::join(store, files, settings, info)
            }
            None => Namespace::begin(Arc::clone(&self.store), self.files(&self.store), settings, info),
        };
        self.namespace = Some(begun.expect("a session"));
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        self.namespace.as_ref().expect("a session")
    }

    /// Ends the mount, or kills it, and begins the next one.
    pub(crate) fn remount(&mut self, crash: bool) {
        if !crash {
            self.namespace().end().expect("an orderly end");
        }
        self.namespace = None;
        if crash && self.url.is_some() {
            self.recover();
        }
        self.begin();
    }

    /// Does at once what another host would do after a lease.
    fn recover(&self) {
        let files = self.files(&self.store);
        let outsider = Outsider::new(Arc::clone(&self.store), &self.volume, files, None, String::new());
        let outsider = outsider.expect("somebody who recovers");
        for session in outsider.sessions().expect("the sessions") {
            outsider.fence(&session).expect("a recovery");
        }
    }

    /// The judgement of the volume under the mount.
    pub(crate) fn check(&self) -> Report {
        if self.url.is_some() {
            return self.check_shared();
        }
        let namespace = self.namespace();
        let (snapshot, sessions) = namespace.snapshot();
        let mode = Mode::Online { sessions: &sessions };
        let backing: Option<&dyn check::BackingList> = Some(namespace.contents());
        let inputs = Inputs { documents: &*snapshot, live: Some(&*self.store), backing, mode };
        check::run(&inputs, &mut |_| {}).expect("a check")
    }

    /// The judgement after the end of the mount, with nothing open.
    pub(crate) fn close_and_check(mut self) -> Report {
        self.remount(true);
        self.remount(false);
        self.namespace().end().expect("an orderly end");
        self.namespace = None;
        if self.url.is_some() {
            return self.check_shared();
        }
        let files = self.files(&self.store);
        let inputs =
            Inputs { documents: &*self.store, live: None, backing: Some(&files), mode: Mode::Offline };
        check::run(&inputs, &mut |_| {}).expect("a check")
    }

    /// The judgement of a volume that others may have mounted.
    fn check_shared(&self) -> Report {
        let files = self.files(&self.store);
        let inputs = Inputs {
            documents: &*self.store.snapshot(),
            live: Some(&*self.store),
            backing: Some(&files),
            mode: Mode::Shared { sessions: &[] },
        };
        check::run(&inputs, &mut |_| {}).expect("a check")
    }

    pub(crate) fn make(&mut self, parent: Id, text: &str, body: &Body, mode: u32, open: bool) -> Outcome {
        let what = match body {
            Body::File(_) => What::Regular,
            Body::Directory(_) => What::Directory,
            Body::Symlink(target) => What::Symlink(target.clone()),
            Body::Whiteout => What::CharDevice(0),
        };
        let name = name(text);
        let parent = self.inos[parent];
        let make = Make { parent, name: &name, what, mode, umask: 0, caller: Caller::ROOT };
        let made = if open { self.namespace().create(&make) } else { self.namespace().make(&make) };
        self.inos.push(made.map_err(refusal)?.0);
        Ok(())
    }

    /// Takes in a node that the namespace made on its own, from where it stands.
    pub(crate) fn learn(&mut self, at: (Id, &str)) {
        let (ino, _) = self.namespace().lookup(self.inos[at.0], &name(at.1)).expect("a whiteout");
        self.inos.push(ino);
    }

    pub(crate) fn link(&self, id: Id, parent: Id, text: &str) -> Outcome {
        let linked = self.namespace().link(self.inos[id], self.inos[parent], &name(text));
        linked.map(drop).map_err(refusal)
    }

    pub(crate) fn unlink(&self, parent: Id, text: &str) -> Outcome {
        self.namespace().unlink(self.inos[parent], &name(text)).map_err(refusal)
    }

    pub(crate) fn rmdir(&self, parent: Id, text: &str) -> Outcome {
        self.namespace().rmdir(self.inos[parent], &name(text)).map_err(refusal)
    }

    pub(crate) fn rename(&self, from: (Id, &str), to: (Id, &str), manner: Manner) -> Outcome {
        let rename = Rename {
            parent: self.inos[from.0],
            name: name(from.1),
            new_parent: self.inos[to.0],
            new_name: name(to.1),
            manner: match manner {
                Manner::Replace => RenameManner::Replace,
                Manner::NoReplace => RenameManner::NoReplace,
                Manner::Exchange => RenameManner::Exchange,
                Manner::Whiteout => RenameManner::Whiteout,
            },
            taken_for: None,
        };
        let patience = Patience::Wait((ambient::monotonic() + LOCK_WAIT).into());
        self.namespace().rename(Caller::ROOT, &rename, patience).map(drop).map_err(refusal)
    }

    pub(crate) fn write(&self, id: Id, offset: usize, data: &[u8]) -> Outcome {
        self.namespace().write(self.inos[id], offset as u64, data, false).map(|_| ()).map_err(refusal)
    }

    fn change(&self, id: Id, change: &Change) -> Outcome {
        self.namespace().change(Caller::ROOT, self.inos[id], change).map(drop).map_err(refusal)
    }

    pub(crate) fn resize(&self, id: Id, size: usize) -> Outcome {
        self.change(id, &Change { size: Some(size as u64), ..Change::default() })
    }

    pub(crate) fn chmod(&self, id: Id, mode: u32) -> Outcome {
        self.change(id, &Change { mode: Some(mode), ..Change::default() })
    }

    pub(crate) fn allocate(
        &self,
        id: Id,
        offset: usize,
        len: usize,
        allocation: Allocation,
        keep: bool,
    ) -> Outcome {
        let (offset, len) = (offset as u64, len as u64);
        let done = self.namespace().allocate(Caller::ROOT, self.inos[id], offset, len, allocation, keep);
        done.map(|_| ()).map_err(refusal)
    }

    pub(crate) fn copy(&self, from: (Id, usize), to: (Id, usize), len: usize) -> Outcome {
        let (from, to) = ((self.inos[from.0], from.1 as u64), (self.inos[to.0], to.1 as u64));
        let copied = self.namespace().copy(Caller::ROOT, from, to, len as u64);
        copied.map(drop).map_err(refusal)
    }

    pub(crate) fn set_xattr(&self, id: Id, name: &str, value: &[u8]) -> Outcome {
        let (ino, name) = (self.inos[id], name.as_bytes());
        self.namespace().set_attribute(Caller::ROOT, ino, name, value, SetMode::Any).map_err(refusal)
    }

    pub(crate) fn remove_xattr(&self, id: Id, name: &str) -> Outcome {
        self.namespace().remove_attribute(Caller::ROOT, self.inos[id], name.as_bytes()).map_err(refusal)
    }

    pub(crate) fn open(&self, id: Id) -> Outcome {
        self.namespace().open(self.inos[id]).map_err(refusal)
    }

    pub(crate) fn close(&self, id: Id) -> Outcome {
        self.namespace().close_file(self.inos[id]).map_err(refusal)
    }

    pub(crate) fn sync(&self, id: Id) -> Outcome {
        self.namespace().fsync(self.inos[id], false).map_err(refusal)
    }
}
