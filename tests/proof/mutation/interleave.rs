//! Every operation of a few in the middle of every other one: the real namespace over the memory engine, through two mounts
//! that share no lock table. Owns the operations; the judge is `lockwood check`'s.
//!
//! What is hard: what versions protect must hold without any lock. So the second mount does its whole operation at the
//! worst moment of the first: when that has read everything, and hands its commit to the store.

use std::sync::Arc;

use lockwood::ambient;
use lockwood::check::{self, Inputs, Mode};
use lockwood::content::BackingFiles;
use lockwood::document::{Ino, Key, Locking, Name, Stored, Version, Volume};
use lockwood::namespace::ops::make::{Make, What};
use lockwood::namespace::ops::rename::{Manner, Patience, Rename};
use lockwood::namespace::{Caller, Namespace, NamespaceError, SessionInfo, Settings};
use lockwood::store::memory::MemoryStore;
use lockwood::store::{
    Capabilities, Commit, CommitError, Reader, Scan, ScanItem, Store, StoreCounters, StoreError, Write,
};
use parking_lot::Mutex;

use super::{Judged, objection};

/// What the second mount does when the first commits.
pub(super) type Trap = Box<dyn FnOnce() + Send>;

/// The memory engine with a trap.
#[derive(Default)]
pub(super) struct Trapped {
    store: MemoryStore,
    pub(super) trap: Mutex<Option<Trap>>,
}

impl Trapped {
    /// An empty volume.
    pub(super) fn formatted(locking: Locking) -> Arc<Self> {
        let store = Arc::new(Self::default());
        let volume = Volume::empty("0".repeat(32), locking, 64, ambient::wall_clock().into());
        store.commit(&Commit::format(volume, 0, 0)).expect("an empty volume");
        store
    }
}

impl Reader for Trapped {
    fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        self.store.get(key)
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        self.store.scan(scan)
    }
}

impl Store for Trapped {
    fn commit(&self, commit: &Commit) -> Result<Version, CommitError> {
        let names = |write: &Write| matches!(write.key(), Key::Entry(..));
        if commit.writes.iter().any(names) {
            let trap = self.trap.lock().take();
            if let Some(trap) = trap {
                trap();
            }
        }
        self.store.commit(commit)
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.store.sync()
    }

    fn admit_content(&self, bytes: u64) -> Result<(), StoreError> {
        self.store.admit_content(bytes)
    }

    fn reserve_bytes(&self) -> u64 {
        self.store.reserve_bytes()
    }

    fn stop(&self, cause: &str) {
        self.store.stop(cause);
    }

    fn snapshot(&self) -> Box<dyn Reader + '_> {
        self.store.snapshot()
    }

    fn counters(&self) -> StoreCounters {
        self.store.counters()
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
}

/// What is there at the beginning; names that begin with `f` are files.
const TREE: [&str; 8] = ["/a", "/a/c", "/a/c/g", "/b", "/b/d", "/b/d/e", "/a/f", "/b/f"];

/// What is tried, each against each.
const OPERATIONS: [&str; 19] = [
    "mv /a /b/d/x",
    "mv /b/d /a/x",
    "mv /a/c /b/x",
    "mv /a/c /b/d/e",
    "mv /b/d /b/d2",
    "mv /b /a/c/x",
    "mv /a/f /x",
    "mv /b/f /x",
    "mv /a/f /b/f",
    "mv /a/c/g /b/d/e/x",
    "xchg /a/c /b/d",
    "xchg /b/d/e /a",
    "rmdir /b/d/e",
    "rmdir /a/c/g",
    "mkdir /b/d/e/x",
    "mkdir /x",
    "ln /a/f /x",
    "ln /a/f /b/d/e/y",
    "rm /a/f",
];

pub(super) struct Mount {
    pub(super) namespace: Namespace,
    pub(super) inos: Vec<(&'static str, Ino)>,
}

pub(super) fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

impl Mount {
    pub(super) fn begin(store: &Arc<Trapped>, files: &BackingFiles) -> Self {
        let info = SessionInfo {
            host: "host".to_owned(),
            boot_id: String::new(),
            pid: std::process::id(),
            mount_point: "/".to_owned(),
        };
        let store: Arc<dyn Store> = store.clone();
        let begun = Namespace::begin(store, files.clone(), Settings::default(), info);
        Self { namespace: begun.expect("a session"), inos: vec![("", Ino::ROOT)] }
    }

    pub(super) fn fill(&mut self) {
        for path in TREE {
            let (parent, last) = self.at(path);
            let what = if last.as_bytes().starts_with(b"f") { What::Regular } else { What::Directory };
            let ino = self.make(parent, &last, what).expect("a free name");
            self.inos.push((path, ino));
        }
    }

    pub(super) fn make(&self, parent: Ino, name: &Name, what: What) -> Result<Ino, NamespaceError> {
        let make = Make { parent, name, what, mode: 0o755, umask: 0, caller: Caller::ROOT };
        self.namespace.make(&make).map(|(ino, _)| ino)
    }

    /// The inode of what a path led to at the beginning.
    fn ino(&self, path: &str) -> Ino {
        self.inos.iter().find(|(known, _)| *known == path).expect("a path of the tree").1
    }

    /// The directory and the name.
    fn at(&self, path: &str) -> (Ino, Name) {
        let (parent, last) = path.rsplit_once('/').expect("a path begins with a slash");
        (self.ino(parent), name(last))
    }

    pub(super) fn rename(&self, from: &str, to: &str, manner: Manner) -> Result<(), NamespaceError> {
        self.rename_with(from, to, manner, Patience::Try)
    }

    pub(super) fn rename_with(
        &self,
        from: &str,
        to: &str,
        manner: Manner,
        patience: Patience<'_>,
    ) -> Result<(), NamespaceError> {
        let ((parent, name), (new_parent, new_name)) = (self.at(from), self.at(to));
        let rename = Rename { parent, name, new_parent, new_name, manner, taken_for: None };
        self.namespace.rename(Caller::ROOT, &rename, patience).map(drop)
    }

    /// Does it. Whether it may is not this judge's affair.
    fn act(&self, operation: &str) {
        let words: Vec<&str> = operation.split(' ').collect();
        let _ = match words[..] {
            ["mv", from, to] => self.rename(from, to, Manner::Replace),
            ["xchg", from, to] => self.rename(from, to, Manner::Exchange),
            ["mkdir", path] => {
                let (parent, last) = self.at(path);
                self.make(parent, &last, What::Directory).map(drop)
            }
            ["rmdir", path] => {
                let (parent, last) = self.at(path);
                self.namespace.rmdir(parent, &last)
            }
            ["rm", path] => {
                let (parent, last) = self.at(path);
                self.namespace.unlink(parent, &last)
            }
            ["ln", from, to] => {
                let (parent, last) = self.at(to);
                self.namespace.link(self.ino(from), parent, &last).map(drop)
            }
            _ => unreachable!("{operation}"),
        };
    }
}

/// Does `second` in the middle of `first`, and judges the volume.
fn interleave(first: &str, second: &'static str, files: &BackingFiles) -> Option<String> {
    let store = Trapped::formatted(Locking::Tree);
    let mut mount = Mount::begin(&store, files);
    mount.fill();
    let other = Mount { inos: mount.inos.clone(), ..Mount::begin(&store, files) };
    *store.trap.lock() = Some(Box::new(move || other.act(second)));
    mount.act(first);
    let trapped = store.trap.lock().take().is_none();
    let documents = store.snapshot();
    let sessions = [mount.namespace.session()];
    let mode = Mode::Online { sessions: &sessions };
    let inputs = Inputs { documents: &*documents, live: None, backing: None, mode };
    let report = check::run(&inputs, &mut |_| {}).expect("a check");
    // That there are two sessions over this engine is this test's own doing.
    let sound = |rule: check::Rule| matches!(rule, check::Rule::SessionLeft | check::Rule::SessionOwn);
    let violation = report.violations.iter().find(|violation| !sound(violation.rule) && trapped)?;
    Some(format!("{second}, in the middle of {first}: {:?} {}", violation.rule, violation.detail))
}

/// Judges every operation in the middle of every other one.
pub(super) fn judge() -> Judged {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let place = directory.path().join("content");
    BackingFiles::create(&place, 8).expect("a content directory");
    let files = BackingFiles::open(&place, 8).expect("the content directory");
    let mut cases = 0;
    for first in OPERATIONS {
        for second in OPERATIONS {
            cases += 1;
            if let Some(what) = interleave(first, second, &files) {
                return objection(cases, what);
            }
        }
    }
    Ok(cases)
}
