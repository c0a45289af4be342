//! A volume to try things on: a store in memory, the contents of large files wherever these tests keep them, and a
//! namespace that can end, crash and begin again. Owns the shorthands of the tests beside it.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use crate::ambient;
use crate::check::{self, Inputs, Mode, Report};
use crate::content::Contents;
use crate::document::{ContentPlace, Ino, Kind, Locking, Name, Volume};
use crate::lock::{LockTable, Locks};
use crate::namespace::ops::make::{Make, What};
use crate::namespace::ops::rename::{Manner, Patience, Rename};
use crate::namespace::{Caller, Namespace, Result, SessionInfo, Settings};
use crate::store::memory::MemoryStore;
use crate::store::{Commit, NodeRef, Range, Reader as _, Scan, Start, Store, StoreCounters};

/// Small, so that backing files are in play from the 65th byte on.
pub(super) const INLINE_MAX: u32 = 64;

pub(super) const ROOT: Ino = Ino::ROOT;

/// An ordinary user.
pub(super) const ADA: Caller = Caller { uid: 1000, gid: 1000, pid: 0 };

/// Long enough for anything that is going to happen at all.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Holds an operation to the error that it must end in.
macro_rules! refused {
    ($outcome:expr, $expected:pat) => {
        match $outcome {
            Err($expected) => {}
            Err(other) => panic!("{} expected, and it is: {other:?}", stringify!($expected)),
            Ok(_) => panic!("{} expected, and it was done", stringify!($expected)),
        }
    };
}
pub(super) use refused;

/// Makes these functions of a world tests, of which each runs on a volume of each strategy.
macro_rules! under_each_strategy {
    ($($test:ident),+ $(,)?) => {
        under_each_strategy!(@ tree Tree $($test)+);
        under_each_strategy!(@ document Document $($test)+);
        under_each_strategy!(@ global Global $($test)+);
        under_each_strategy!(@ version Version $($test)+);
    };
    (@ $module:ident $locking:ident $($test:ident)+) => {
        mod $module {
            $(#[test]
            fn $test() {
                super::$test(super::World::with(crate::document::Locking::$locking));
            })+
        }
    };
}
pub(super) use under_each_strategy;

/// A volume and the session on it.
pub(super) struct World {
    /// Before the directory, so that everything is closed when that goes.
    namespace: Option<Namespace>,
    pub(super) store: Arc<MemoryStore>,
    dir: TempDir,
}

impl Deref for World {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        self.namespace.as_ref().unwrap()
    }
}

pub(super) fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// Where a session is that a test begins beside the world's own.
pub(super) fn another_host() -> SessionInfo {
    SessionInfo { host: "grace".to_owned(), boot_id: "c".to_owned(), pid: 1, mount_point: "/mnt".to_owned() }
}

fn empty_volume(locking: Locking) -> Commit {
    let created = ambient::wall_clock().into();
    Commit::format(Volume::empty("0".repeat(32), locking, INLINE_MAX, created), 0, 0)
}

impl World {
    pub(super) fn new() -> Self {
        Self::with(Locking::default())
    }

    pub(super) fn with(locking: Locking) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(MemoryStore::new());
        store.commit(&empty_volume(locking)).unwrap();
        let mut world = Self { namespace: None, store, dir };
        world.begin();
        world
    }

    /// The lock table, which a world's locks are in.
    pub(super) fn locks(&self) -> &LockTable {
        match self.deref().locks() {
            Locks::Table(table) => table,
            Locks::Documents(_) | Locks::Redlock(_) => unreachable!("a world owns its store"),
        }
    }

    fn begin(&mut self) {
        let info = SessionInfo {
            host: "ada".to_owned(),
            boot_id: "b".to_owned(),
            pid: std::process::id(),
            mount_point: "/mnt".to_owned(),
        };
        let store: Arc<dyn Store> = self.store.clone();
        let begun = Namespace::begin(store, self.files(), Settings::default(), info);
        self.namespace = Some(begun.unwrap());
    }

    /// The bytes of large files as whoever opens the store next finds them.
    pub(super) fn files(&self) -> Contents {
        let store: Arc<dyn Store> = self.store.clone();
        super::contents(&store, self.dir.path())
    }

    /// Where large files have their bytes.
    pub(super) fn apart(&self) -> ContentPlace {
        self.contents().place()
    }

    /// Unmounts and mounts again.
    pub(super) fn reopen(&mut self) {
        self.end().unwrap();
        self.namespace = None;
        self.begin();
    }

    /// The process dies here, and the next one begins.
    pub(super) fn crash(&mut self) {
        self.namespace = None;
        self.begin();
    }

    pub(super) fn check(&self) -> Report {
        let (snapshot, sessions) = self.snapshot();
        let mode = Mode::Online { sessions: &sessions };
        let inputs =
            Inputs { documents: &*snapshot, live: Some(&*self.store), backing: Some(self.contents()), mode };
        check::run(&inputs, &mut |_| {}).unwrap()
    }

    pub(super) fn assert_clean(&self) {
        let report = self.check();
        assert!(report.is_clean(), "{:#?}", report.violations);
    }

    /// The end of every test: the volume is sound under the mount, and without it, and nothing is left to collect.
    pub(super) fn finish(mut self) {
        self.assert_clean();
        self.end().unwrap();
        self.namespace = None;
        let backing = self.files();
        let inputs =
            Inputs { documents: &*self.store, live: None, backing: Some(&backing), mode: Mode::Offline };
        let report = check::run(&inputs, &mut |_| {}).unwrap();
        assert!(report.is_clean(), "{:#?}", report.violations);
        assert_eq!(report.counts.garbage, 0, "{:#?}", report.garbage);
        assert_eq!((report.counts.orphans, report.counts.sessions), (0, 0));
    }

    /// How many documents of a kind there are.
    pub(super) fn count(&self, kind: Kind) -> usize {
        let scan = Scan { range: Range::All(kind), start: Start::First, limit: usize::MAX };
        self.store.scan(&scan).unwrap().len()
    }

    pub(super) fn make(&self, parent: Ino, name: &str, what: What, mode: u32, caller: Caller) -> Result<Ino> {
        let name = self::name(name);
        let make = Make { parent, name: &name, what, mode, umask: 0o022, caller };
        self.deref().make(&make).map(|(ino, _)| ino)
    }

    pub(super) fn make_with(&self, make: &Make<'_>) -> Ino {
        self.deref().make(make).unwrap().0
    }

    pub(super) fn file(&self, parent: Ino, name: &str) -> Ino {
        self.make(parent, name, What::Regular, 0o644, Caller::ROOT).unwrap()
    }

    pub(super) fn dir(&self, parent: Ino, name: &str) -> Ino {
        self.make(parent, name, What::Directory, 0o755, Caller::ROOT).unwrap()
    }

    /// A file with bytes in it.
    pub(super) fn filled(&self, parent: Ino, name: &str, bytes: &[u8]) -> Ino {
        let ino = self.file(parent, name);
        self.write(ino, 0, bytes, false).unwrap();
        ino
    }

    pub(super) fn node(&self, ino: Ino) -> NodeRef {
        self.attributes(ino).unwrap()
    }

    pub(super) fn children(&self, ino: Ino) -> u64 {
        self.node(ino).directory().unwrap().children
    }

    pub(super) fn find(&self, parent: Ino, name: &str) -> Result<Ino> {
        self.lookup(parent, &self::name(name)).map(|(ino, _)| ino)
    }

    /// The whole content.
    pub(super) fn bytes(&self, ino: Ino) -> Vec<u8> {
        let size = self.node(ino).size();
        self.read(ino, 0, u32::try_from(size).unwrap()).unwrap()
    }

    pub(super) fn resize(&self, ino: Ino, size: u64) -> Result<NodeRef> {
        let change = crate::namespace::ops::attributes::Change { size: Some(size), ..Default::default() };
        self.change(Caller::ROOT, ino, &change)
    }

    pub(super) fn move_as(&self, from: (Ino, &str), to: (Ino, &str), manner: Manner) -> Result<()> {
        let rename = Rename {
            parent: from.0,
            name: name(from.1),
            new_parent: to.0,
            new_name: name(to.1),
            manner,
            taken_for: None,
        };
        self.rename(Caller::ROOT, &rename, Patience::Wait((ambient::monotonic() + PATIENCE).into())).map(drop)
    }

    pub(super) fn mv(&self, from: (Ino, &str), to: (Ino, &str)) -> Result<()> {
        self.move_as(from, to, Manner::Replace)
    }

    /// Names in a directory, without the dots, sorted.
    pub(super) fn names(&self, directory: Ino) -> Vec<String> {
        let mut names = Vec::new();
        self.list(directory, 0, 16, |listed| {
            names.push(String::from_utf8_lossy(&listed.name).into_owned());
            true
        })
        .unwrap();
        assert_eq!(names[..2], [".", ".."]);
        names.drain(..2);
        names.sort();
        names
    }

    /// What the store did while `work` was done.
    pub(super) fn counted(&self, work: impl FnOnce(&Self)) -> StoreCounters {
        let before = self.store.counters();
        work(self);
        let after = self.store.counters();
        StoreCounters {
            gets: after.gets - before.gets,
            fetches: after.fetches - before.fetches,
            scans: after.scans - before.scans,
            commits: after.commits - before.commits,
            conflicts: after.conflicts - before.conflicts,
            documents_written: after.documents_written - before.documents_written,
            syncs: after.syncs - before.syncs,
        }
    }
}
