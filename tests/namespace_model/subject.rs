//! What is tested: a namespace over the memory engine, spoken to in the numbers of the reference.

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
use lockwood::namespace::{Caller, Namespace, NamespaceError, SessionInfo, Settings};
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
    store: Arc<MemoryStore>,
    dir: TempDir,
    place: Place,
    /// The inode of each node of the reference.
    pub(crate) inos: Vec<Ino>,
}

fn refusal(error: NamespaceError) -> Refusal {
    use NamespaceError as E;
    match error {
        E::NotFound => Refusal::NotFound,
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

fn empty_volume(locking: Locking) -> Commit {
    let created = ambient::wall_clock().into();
    Commit::format(Volume::empty("0".repeat(32), locking, INLINE_MAX, created), 0, 0)
}

impl Subject {
    pub(crate) fn new(locking: Locking, place: Place) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        BackingFiles::create(&dir.path().join("content"), 8).expect("a content directory");
        let store = Arc::new(MemoryStore::new());
        store.commit(&empty_volume(locking)).expect("an empty volume");
        let mut subject = Self { namespace: None, store, dir, place, inos: vec![Ino::ROOT] };
        subject.begin();
        subject
    }

    fn files(&self) -> Contents {
        match self.place {
            Place::Backing => {
                BackingFiles::open(&self.dir.path().join("content"), 8).expect("the content directory").into()
            }
            Place::Chunks => Chunks::with_chunk_bytes(self.store.clone(), CHUNK_BYTES).into(),
            Place::Objects => {
                let location = format!("file://{}/objects", self.dir.path().display());
                let (location, volume) = (location.parse().expect("a place"), "0".repeat(32));
                let objects = Objects::open(&location, &volume, LOCK_WAIT)
                    .or_else(|_| Objects::create(&location, &volume, LOCK_WAIT));
                let chunks = Chunks::with_chunk_bytes(self.store.clone(), CHUNK_BYTES);
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
        let store: Arc<dyn Store> = self.store.clone();
        let begun = Namespace::begin(store, self.files(), Settings::default(), info);
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
        self.begin();
    }

    /// The judgement of the volume under the mount.
    pub(crate) fn check(&self) -> Report {
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
        let files = self.files();
        let inputs =
            Inputs { documents: &*self.store, live: None, backing: Some(&files), mode: Mode::Offline };
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
        };
        let patience = Patience::Wait((ambient::monotonic() + LOCK_WAIT).into());
        self.namespace().rename(Caller::ROOT, &rename, patience).map_err(refusal)
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
        self.namespace().remove_attribute(self.inos[id], name.as_bytes()).map_err(refusal)
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
