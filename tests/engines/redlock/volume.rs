//! A volume on a Redis server, and the hosts that have it mounted, each with a namespace and connections of its own. One of
//! them can be made to stand still in the middle of an operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockwood::ambient;
use lockwood::check::{self, Inputs, Mode};
use lockwood::content::Chunks;
use lockwood::document::Stored;
use lockwood::document::{Ino, Key, Locking, Name, Timestamp, Version, Volume};
use lockwood::namespace::ops::make::{Make, What};
use lockwood::namespace::ops::rename::{Manner, Patience, Rename};
use lockwood::namespace::{Caller, Namespace, Result, SessionInfo, Settings};
use lockwood::store::engine::{self, EngineOptions};
use lockwood::store::redis::servers::Servers;
use lockwood::store::{
    Capabilities, Commit, CommitError, Listener, Reader, Scan, ScanItem, Store, StoreCounters, StoreError,
};
use parking_lot::{Condvar, Mutex};

use super::WAIT;
use crate::redis_server::RedisServer;

fn options() -> EngineOptions {
    EngineOptions { password: None, allow_volatile: true, patience: Duration::from_secs(5) }
}

/// A volume without a name in it. None if there is no server.
pub(super) fn format() -> Option<(RedisServer, String)> {
    let server = RedisServer::start()?;
    let url = server.url("tree");
    let volume = Volume::empty("0".repeat(32), Locking::Tree, 4096, Timestamp::default());
    engine::format(&url, options(), &Commit::format(volume, 0, 0)).unwrap();
    Some((server, url))
}

/// A host that has the volume mounted.
pub(super) struct Host {
    pub(super) namespace: Namespace,
    pub(super) store: Arc<Halting>,
}

impl Host {
    pub(super) fn join(
        url: &str,
        name: &str,
        lease: Duration,
        lock_servers: Option<Arc<Servers>>,
    ) -> Result<Self> {
        let (store, _) = engine::open(url, options()).unwrap();
        let store = Arc::new(Halting {
            store,
            halt: Mutex::default(),
            changed: Condvar::new(),
            sent: AtomicU32::new(0),
        });
        let info = SessionInfo {
            host: name.to_owned(),
            boot_id: name.to_owned(),
            pid: std::process::id(),
            mount_point: format!("/{name}"),
        };
        let settings = Settings { lease, ..Settings::default() };
        let shared = Arc::clone(&store) as Arc<dyn Store>;
        let chunks = Chunks::new(Arc::clone(&shared));
        let namespace = Namespace::join_with_locks_at(lock_servers, shared, chunks, settings, info)?;
        Ok(Self { namespace, store })
    }

    pub(super) fn directory(&self, parent: Ino, name: &str) -> Ino {
        let name = Name::new(name.as_bytes()).unwrap();
        let make =
            Make { parent, name: &name, what: What::Directory, mode: 0o755, umask: 0, caller: Caller::ROOT };
        self.namespace.make(&make).unwrap().0
    }

    pub(super) fn rename(&self, from: (Ino, &str), to: (Ino, &str)) -> Result<()> {
        let name = |text: &str| Name::new(text.as_bytes()).unwrap();
        let rename = Rename {
            parent: from.0,
            name: name(from.1),
            new_parent: to.0,
            new_name: name(to.1),
            manner: Manner::Replace,
            taken_for: None,
        };
        self.namespace
            .rename(Caller::ROOT, &rename, Patience::Wait((ambient::monotonic() + WAIT).into()))
            .map(drop)
    }

    /// Which rules of a sound volume do not hold.
    pub(super) fn violations(&self) -> Vec<String> {
        let sessions = [self.namespace.session()];
        let mode = Mode::Shared { sessions: &sessions };
        let inputs = Inputs { documents: &*self.store, live: Some(&*self.store), backing: None, mode };
        let report = check::run(&inputs, &mut |_| {}).unwrap();
        report.violations.iter().map(|violation| format!("{violation:?}")).collect()
    }
}

/// Where a host is to stand still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// Before it reads this document for the second time: it has its locks then, and has not looked at them.
    SecondRead(Key),
    /// Before its commit is sent: it has looked at its locks.
    Commit,
}

#[derive(Default)]
enum Halt {
    #[default]
    None,
    At {
        at: At,
        reads: u32,
    },
    Halted,
}

/// A store that lets its host stand still.
pub(super) struct Halting {
    store: Arc<dyn Store>,
    halt: Mutex<Halt>,
    changed: Condvar,
    /// How many commits of names were sent.
    sent: AtomicU32,
}

impl Halting {
    pub(super) fn halt(&self, at: At) {
        *self.halt.lock() = Halt::At { at, reads: 0 };
    }

    pub(super) fn wait_until_halted(&self) {
        let mut halt = self.halt.lock();
        let waited = self.changed.wait_while_for(&mut halt, |halt| !matches!(halt, Halt::Halted), WAIT);
        assert!(!waited.timed_out(), "it never came there");
    }

    pub(super) fn go_on(&self) {
        *self.halt.lock() = Halt::None;
        self.changed.notify_all();
    }

    pub(super) fn sent(&self) -> u32 {
        self.sent.load(Ordering::Relaxed)
    }

    fn reads(&self, keys: &[Key]) {
        let mut halt = self.halt.lock();
        if let Halt::At { at: At::SecondRead(key), reads } = &mut *halt
            && keys.contains(key)
        {
            *reads += 1;
            if *reads == 2 {
                self.stand_still(halt);
            }
        }
    }

    fn stand_still(&self, mut halt: parking_lot::MutexGuard<'_, Halt>) {
        *halt = Halt::Halted;
        self.changed.notify_all();
        // Longer than anybody waits for it to come here; without a bound a test that has failed would never end.
        let waited = self.changed.wait_while_for(&mut halt, |halt| matches!(halt, Halt::Halted), WAIT * 2);
        assert!(!waited.timed_out(), "nobody lets it go on");
    }
}

impl Reader for Halting {
    fn get(&self, key: &Key) -> std::result::Result<Option<Stored>, StoreError> {
        self.reads(std::slice::from_ref(key));
        self.store.get(key)
    }

    fn get_many(&self, keys: &[Key]) -> std::result::Result<Vec<Option<Stored>>, StoreError> {
        self.reads(keys);
        self.store.get_many(keys)
    }

    fn scan(&self, scan: &Scan) -> std::result::Result<Vec<ScanItem>, StoreError> {
        self.store.scan(scan)
    }
}

impl Store for Halting {
    fn commit(&self, commit: &Commit) -> std::result::Result<Version, CommitError> {
        let halt = self.halt.lock();
        // Not a heartbeat: the host stands still in its rename alone, so that nothing but the commit itself can refuse it.
        let renames = commit.writes.iter().any(|write| matches!(write.key(), Key::Entry(..)));
        if renames && matches!(&*halt, Halt::At { at: At::Commit, .. }) {
            self.stand_still(halt);
        } else {
            drop(halt);
        }
        self.sent.fetch_add(u32::from(renames), Ordering::Relaxed);
        self.store.commit(commit)
    }

    fn sync(&self) -> std::result::Result<(), StoreError> {
        self.store.sync()
    }

    fn admit_content(&self, bytes: u64) -> std::result::Result<(), StoreError> {
        self.store.admit_content(bytes)
    }

    fn reserve_bytes(&self) -> u64 {
        self.store.reserve_bytes()
    }

    fn stop(&self, cause: &str) {
        self.store.stop(cause);
    }

    fn listen(&self, listener: Arc<dyn Listener>) -> std::result::Result<(), StoreError> {
        self.store.listen(listener)
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn snapshot(&self) -> Box<dyn Reader + '_> {
        self.store.snapshot()
    }

    fn counters(&self) -> StoreCounters {
        self.store.counters()
    }
}
