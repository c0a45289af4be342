//! Commits that return before they are on the server's disk: what a crash takes back, and what it must not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockwood::content::Chunks;
use lockwood::document::{Document, Ino, Key, LockRecord, Name, Orphan, SessionId, Version};
use lockwood::lock::{LockGuard, LockId, LockSet, Mode, Request};
use lockwood::namespace::ops::make::{Make, What};
use lockwood::namespace::ops::rename::{Manner, Patience, Rename};
use lockwood::namespace::{Caller, Namespace, SessionInfo, Settings};
use lockwood::store::{Commit, CommitError, Durability, Reader, Store};

use super::server::PostgresServer;
use super::{empty, format, open};

/// As far as a server that has lost commits goes ahead of those that it knows.
const AHEAD: u64 = 1 << 32;

/// Its log goes to the disk when a commit waits for that, and otherwise hardly ever.
fn lazy_server() -> Option<PostgresServer> {
    let server = PostgresServer::start()?;
    server.psql("lockwood", "ALTER SYSTEM SET wal_writer_delay = '10s'");
    server.psql("lockwood", "SELECT pg_reload_conf()");
    Some(server)
}

fn lock(name: &str) -> Key {
    Key::Lock(format!("%2F{name}").into())
}

fn record(name: &str) -> Document {
    let path = format!("/{name}").into();
    Document::Lock(LockRecord { path, holders: Vec::new(), waiters: Vec::new() })
}

fn put(store: &dyn Store, name: &str, durability: Durability) -> Version {
    let commit = Commit::new().put(lock(name), record(name));
    store.commit(&Commit { durability, ..commit }).unwrap()
}

fn refuses(store: &dyn Store, name: &str, version: Version) -> bool {
    let commit = Commit::new().at(lock(name), version).delete(lock(name));
    matches!(store.commit(&commit), Err(CommitError::Conflict(_)))
}

#[test]
fn what_a_crash_takes_back_does_not_come_again_as_something_else() {
    let Some(mut server) = lazy_server() else { return };
    let store = empty(&server.url("volume"));
    let kept = put(&store, "kept", Durability::Full);
    // Each page of the log is written when it is full, and survives. So they are few, and tried again if they fill one.
    let lost = (0..5).find_map(|attempt| {
        let version = (0..3).map(|_| put(&store, "lost", Durability::Delayed)).last();
        assert_eq!(store.get(&lock("lost")).unwrap().map(|found| found.version), version, "others see it");
        server.stop(true);
        server.run();
        let is_lost = store.get(&lock("lost")).unwrap().map(|found| found.version) != version;
        eprintln!("crash {attempt}: {version:?} was lost: {is_lost}");
        version.filter(|_| is_lost)
    });
    let lost = lost.expect("five crashes have lost nothing: it waits for the disk");
    assert_eq!(store.get(&lock("kept")).unwrap().map(|found| found.version), Some(kept));
    // Of each commit after the crash.
    for _ in 0..3 {
        let next = put(&store, "lost", Durability::Delayed);
        assert!(next.0 > lost.0 + AHEAD / 2, "{next:?} after {lost:?}");
        assert!(refuses(&store, "lost", lost));
    }
    // And once only.
    let first = put(&store, "lost", Durability::Full);
    let again = put(&empty(&server.url("volume")), "lost", Durability::Full);
    assert!(again.0 < first.0 + AHEAD / 2, "{again:?} after {first:?}");
}

#[test]
fn a_server_that_takes_over_goes_ahead_of_what_it_may_not_have() {
    let Some(mut primary) = PostgresServer::start() else { return };
    let standby = primary.standby();
    let store = format(&primary.url("volume"));
    let before = put(&store, "a", Durability::Full);
    drop(store);
    primary.stop(true);
    standby.promote();
    let after = put(&open(&standby.url("volume")), "a", Durability::Full);
    assert!(after.0 > before.0 + AHEAD / 2, "{after:?} after {before:?}");
}

/// As after a failover to a standby that knows neither what was handed out nor how far its primary went ahead.
#[test]
fn a_later_jump_leads_further_than_an_earlier_one() {
    let Some(server) = PostgresServer::start() else { return };
    let jump = |from: &str| {
        let store = format!("SELECT setval('volume.versions', {from}); TRUNCATE volume.server_run");
        server.psql("lockwood", &store);
        put(&empty(&server.url("volume")), "a", Durability::Full).0
    };
    drop(empty(&server.url("volume")));
    let [first, second, third] = ["5", "5", "9000000000000000"].map(jump);
    assert!(first > 5 + AHEAD && second > first, "{first}, {second}");
    assert!(third > 9_000_000_000_000_000 + AHEAD / 2, "{third}, should the clock be behind");
}

/// More documents than one statement has parts.
#[test]
fn a_delayed_commit_of_many_documents_is_refused_for_the_one_that_has_changed() {
    let Some(server) = lazy_server() else { return };
    let store = empty(&server.url("volume"));
    let key = |n| Key::Orphan(Ino(n));
    let orphan = || Document::Orphan(Orphan { session: SessionId(1) });
    let all = |at: Option<Version>| {
        let each = |commit: Commit, n: u64| match at {
            None => commit.absent(key(n)).put(key(n), orphan()),
            Some(at) => commit.at(key(n), at).delete(key(n)),
        };
        Commit { durability: Durability::Delayed, ..(10..50).fold(Commit::new(), each) }
    };
    let made = seldom_waits(
        &server,
        || store.commit(&all(None)).unwrap(),
        |made| {
            store.commit(&all(Some(*made))).unwrap();
        },
    );
    assert!(matches!(store.commit(&all(None)), Err(CommitError::Conflict(at)) if at == key(10)));
    store.commit(&Commit::new().put(key(31), orphan())).unwrap();
    assert!(matches!(store.commit(&all(Some(made))), Err(CommitError::Conflict(at)) if at == key(31)));
}

/// Whether the log was written to the disk while this was done.
fn waits_for_the_disk<T>(server: &PostgresServer, done: impl FnOnce() -> T) -> (bool, T) {
    // Nothing is left to be written.
    server.psql("lockwood", "CREATE TABLE waits (); DROP TABLE waits");
    let before = server.psql("lockwood", "SELECT pg_current_wal_insert_lsn()");
    let done = done();
    let written = format!("SELECT pg_current_wal_flush_lsn() > CAST('{before}' AS pg_lsn)");
    (server.psql("lockwood", &written) == "t", done)
}

/// Does this until the log was not written meanwhile, as it may be for others; `undo` stands between.
fn seldom_waits<T>(server: &PostgresServer, done: impl Fn() -> T, undo: impl Fn(&T)) -> T {
    for _ in 0..5 {
        let (waited, done) = waits_for_the_disk(server, &done);
        if !waited {
            return done;
        }
        undo(&done);
    }
    panic!("it waits for the disk each time");
}

#[test]
fn a_rename_waits_for_the_disk_with_its_commit_and_not_with_its_locks() {
    let Some(server) = lazy_server() else { return };
    let store: Arc<dyn Store> = Arc::new(format(&server.url("volume")));
    let info = SessionInfo {
        host: "test".into(),
        boot_id: "test".into(),
        pid: std::process::id(),
        mount_point: "none".into(),
    };
    // No heartbeat comes between.
    let settings = Settings { lease: Duration::from_secs(3600), ..Settings::default() };
    let namespace = Namespace::join(Arc::clone(&store), Chunks::new(store), settings, info).unwrap();
    let take = |set: LockSet| -> LockGuard {
        let request = Request { session: namespace.session(), set, operation: "test".into() };
        namespace.locks().acquire(request, namespace.lock_deadline()).unwrap()
    };
    let id = |path: &str| LockId::from_path(path.as_bytes()).unwrap();
    // A share that is to be kept is waited for, so each attempt has other ones.
    let attempts = AtomicU32::new(0);
    let of_rename = || {
        let n = attempts.fetch_add(1, Ordering::Relaxed);
        take(LockSet::for_rename(&id(&format!("/a{n}/b")), &id(&format!("/c{n}/d"))).unwrap())
    };
    let held = seldom_waits(&server, of_rename, |_| ());
    let beside = format!("/a{}", attempts.load(Ordering::Relaxed) - 1);
    let of_people = || take(LockSet::for_hold(&id("/e/f"), Mode::Exclusive).unwrap());
    assert!(waits_for_the_disk(&server, of_people).0, "what people hold");
    let beside =
        || take(LockSet::for_rename(&id(&format!("{beside}/x")), &id(&format!("{beside}/y"))).unwrap());
    assert!(waits_for_the_disk(&server, beside).0, "what others have as well");
    drop(held);
    let make = Make {
        parent: Ino::ROOT,
        name: &name("from"),
        what: What::Directory,
        mode: 0o755,
        umask: 0,
        caller: Caller::ROOT,
    };
    namespace.make(&make).unwrap();
    let rename = Rename {
        parent: Ino::ROOT,
        name: name("from"),
        new_parent: Ino::ROOT,
        new_name: name("to"),
        manner: Manner::Replace,
        taken_for: None,
    };
    let moved = || namespace.rename(Caller::ROOT, &rename, Patience::Try).unwrap();
    assert!(waits_for_the_disk(&server, moved).0, "a rename");
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}
