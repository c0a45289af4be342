//! Lost requests and answers, sessions that are fenced, servers that are full, restart or forget their scripts.

use std::sync::atomic::AtomicBool;
use std::thread::{scope, sleep};

use parking_lot::Mutex;

use super::proxy::{Fault, Proxy};
use super::*;
use crate::ambient::monotonic;
use crate::store::{Notice, StoreError};

fn through(proxy: &Proxy, patience: Duration) -> RedisStore {
    let options = Options { patience, ..options() };
    connect(&format!("redis://127.0.0.1:{}?prefix=v", proxy.port), options).unwrap().0
}

fn add_one() -> Commit {
    Commit::new().merge(node(1), NodeDelta { children: 1, ..NodeDelta::default() })
}

fn children(store: &RedisStore) -> u64 {
    store.node(Ino(1)).unwrap().unwrap().1.directory().unwrap().children
}

#[test]
fn a_lost_answer_or_request_is_made_up_for() {
    let Some(server) = RedisServer::start() else { return };
    let proxy = Proxy::new(server.port());
    let store = through(&proxy, Duration::from_secs(5));
    store.commit(&Commit::new().put(node(1), directory(0))).unwrap();
    let mut expected = 0;
    for fault in [Fault::LoseAnswer, Fault::LoseRequest, Fault::LoseAnswer, Fault::LoseRequest] {
        proxy.arm(fault);
        let version = store.commit(&add_one()).unwrap();
        assert!(proxy.has_struck());
        expected += 1;
        assert_eq!(children(&store), expected, "made once, whatever was lost");
        assert_eq!(store.node(Ino(1)).unwrap().unwrap().0, version, "the version of the first time");
    }
    // One that must not be made says so, whatever is lost.
    for fault in [Fault::LoseAnswer, Fault::LoseRequest] {
        proxy.arm(fault);
        let refused = store.commit(&add_one().absent(node(1)));
        assert!(matches!(refused, Err(CommitError::Conflict(key)) if key == node(1)));
    }
    for fault in [Fault::LoseAnswer, Fault::LoseRequest] {
        proxy.arm(fault);
        assert_eq!(children(&store), expected, "reads are repeated");
    }
}

#[test]
fn a_request_that_arrives_late_changes_nothing() {
    let Some(server) = RedisServer::start() else { return };
    let proxy = Proxy::new(server.port());
    let store = through(&proxy, Duration::from_secs(5));
    store.commit(&Commit::new().put(node(1), directory(0))).unwrap();
    for settled_late in [false, true] {
        let before = children(&store);
        proxy.arm(Fault::Hold);
        store.commit(&add_one()).unwrap();
        if settled_late {
            store.commit(&add_one()).unwrap(); // The lane has gone on, too.
        }
        let now = children(&store);
        assert_eq!(now, before + 1 + u64::from(settled_late));
        let answers = proxy.release();
        assert!(answers.iter().all(|answer| answer.contains("late")) && answers.len() == 1, "{answers:?}");
        assert_eq!(children(&store), now, "a late request was carried out");
    }
}

/// Each of several answers was waited for, one after the other.
#[test]
fn a_silent_server_is_waited_for_once_a_request() {
    const WITHIN: Duration = Duration::from_millis(200);
    let Some(server) = RedisServer::start() else { return };
    let options = Options { patience: Duration::ZERO, answer_within: WITHIN, ..options() };
    let store = connect(&server.url("v"), options).unwrap().0;
    let keys: Vec<Key> = (1..=30).map(node).collect();
    store.get_many(&keys).unwrap();
    redis::cmd("CLIENT").arg("PAUSE").arg(8000).exec(&mut admin(&server)).unwrap();
    let begun = monotonic();
    let read = store.get_many(&keys);
    assert!(matches!(read, Err(StoreError::Engine { .. })), "{read:?}");
    assert!(begun.elapsed() < WITHIN * 10, "{:?}", begun.elapsed());
}

#[test]
fn what_cannot_be_settled_is_unknown() {
    let Some(server) = RedisServer::start() else { return };
    let proxy = Proxy::new(server.port());
    let store = through(&proxy, Duration::from_millis(300));
    store.commit(&Commit::new().put(node(1), directory(0))).unwrap();
    proxy.arm(Fault::HoldAndDown);
    let outcome = store.commit(&add_one());
    assert!(matches!(outcome, Err(CommitError::Store(StoreError::Unknown(_)))), "{outcome:?}");
    proxy.set_up();
    store.commit(&add_one()).unwrap();
    proxy.release();
    assert_eq!(children(&store), 1, "what was given up arrived after its lane had gone on");
}

/// Twice lost: it made the commit void whose answer was lost after it, and that one was made again.
#[test]
fn a_question_for_an_outcome_that_arrives_late_changes_no_later_one() {
    let Some(server) = RedisServer::start() else { return };
    let store = store(&server.url("v"));
    store.commit(&Commit::new().put(node(1), directory(0))).unwrap();
    store.commit(&add_one()).unwrap();
    let mut admin = admin(&server);
    let outcomes: String =
        redis::cmd("KEYS").arg("*outcomes:*").query::<Vec<_>>(&mut admin).unwrap().remove(0);
    let noted = |admin: &mut redis::Connection| {
        redis::cmd("HGETALL").arg(&outcomes).query::<Vec<String>>(admin).unwrap()
    };
    let before = noted(&mut admin);
    let [lane, last] = &before[..] else { panic!("one lane: {before:?}") };
    assert!(last.starts_with("2 "), "{last}");
    let settle = redis::Script::new(include_str!("../settle.lua"));
    let late: Vec<String> = settle.key(&outcomes).arg(lane).arg(1).arg(100).invoke(&mut admin).unwrap();
    assert_eq!((late, noted(&mut admin)), (vec!["late".to_owned()], before));
}

#[test]
fn nothing_lands_after_the_fence() {
    const THREADS: u64 = 4;
    let Some(server) = RedisServer::start() else { return };
    let store = store(&server.url("v"));
    let other = super::store(&server.url("v"));
    let id = SessionId(7);
    for round in 0..20 {
        let live = (0..THREADS).fold(Commit::new(), |commit, i| commit.put(node(10 + i), directory(0)));
        store.commit(&live.put(Key::Session(id), session(id, SessionState::Live))).unwrap();
        let landed: AtomicU64 = AtomicU64::new(0);
        let at_the_fence = scope(|scope| {
            let work = |i| {
                let (store, landed) = (&store, &landed);
                scope.spawn(move || {
                    for n in 1.. {
                        match store.commit(&Commit::new().put(node(10 + i), directory(n)).by(id)) {
                            Ok(_) => landed.fetch_add(1, Ordering::Relaxed),
                            Err(CommitError::Store(StoreError::Fenced)) => break,
                            Err(other) => panic!("{other}"),
                        };
                    }
                })
            };
            let workers: Vec<_> = (0..THREADS).map(work).collect();
            while landed.load(Ordering::Relaxed) < 20 + round && !workers.iter().any(|w| w.is_finished()) {
                std::thread::yield_now();
            }
            let fence = Commit::new().put(Key::Session(id), session(id, SessionState::Fenced));
            let version = other.commit(&fence).unwrap();
            let keys: Vec<Key> = (0..THREADS).map(|i| node(10 + i)).collect();
            (version, other.get_many(&keys).unwrap())
        });
        let keys: Vec<Key> = (0..THREADS).map(|i| node(10 + i)).collect();
        assert_eq!(other.get_many(&keys).unwrap(), at_the_fence.1, "something landed after the fence");
        assert!(at_the_fence.1.iter().flatten().all(|stored| stored.version < at_the_fence.0));
    }
}

#[test]
fn a_full_server_refuses_growth_and_lets_go() {
    let Some(server) = RedisServer::start() else { return };
    let store = store(&server.url("v"));
    let id = SessionId(7);
    let begin = Commit::new()
        .put(node(1), directory(1))
        .put(entry("a"), file())
        .put(Key::Session(id), session(id, SessionState::Live));
    store.commit(&begin).unwrap();
    say(&mut admin(&server), &["CONFIG", "SET", "maxmemory", "1"]);
    let create =
        Commit::new().put(node(2), directory(0)).put(entry("b"), file()).merge(node(1), NodeDelta::default());
    let before = store.node(Ino(1)).unwrap();
    let refused = store.commit(&create);
    assert!(matches!(refused, Err(CommitError::Store(StoreError::NoSpace))), "{refused:?}");
    assert_eq!(store.get_many(&[node(2), entry("b")]).unwrap(), [None, None]);
    assert_eq!(store.node(Ino(1)).unwrap().unwrap().0, before.unwrap().0);
    store.commit(&Commit::new().put(Key::Session(id), session(id, SessionState::Live))).unwrap();
    let unlink =
        Commit::new().delete(entry("a")).merge(node(1), NodeDelta { children: -1, ..NodeDelta::default() });
    store.commit(&unlink.by(id)).unwrap();
    assert_eq!(store.get(&entry("a")).unwrap(), None);
    say(&mut admin(&server), &["CONFIG", "SET", "maxmemory", "0"]);
    store.commit(&create).unwrap();
}

#[test]
fn a_server_may_die_and_come_back() {
    // Otherwise a server with a busy disk answers before it writes.
    let options_of = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut server) = RedisServer::start_with(&options_of) else { return };
    let patient = Options { patience: Duration::from_secs(30), ..options() };
    let store = connect(&server.url("v"), patient).unwrap().0;
    store.commit(&Commit::new().put(node(1), directory(0))).unwrap();
    let ends = AtomicBool::new(false);
    let made = AtomicU64::new(0);
    scope(|scope| {
        let work = || {
            while !ends.load(Ordering::Relaxed) {
                store.commit(&add_one()).unwrap();
                made.fetch_add(1, Ordering::Relaxed);
            }
        };
        let workers = [(); 3].map(|()| scope.spawn(work));
        for _ in 0..5 {
            let before = made.load(Ordering::Relaxed);
            while made.load(Ordering::Relaxed) < before + 5 && !workers.iter().any(|w| w.is_finished()) {
                sleep(Duration::from_millis(10));
            }
            sleep(Duration::from_millis(100));
            server.kill();
            sleep(Duration::from_millis(50));
            server.restart();
        }
        sleep(Duration::from_millis(150));
        ends.store(true, Ordering::Relaxed);
    });
    assert_eq!(children(&store), made.load(Ordering::Relaxed), "each commit that returned was made once");
    assert_eq!(store.outage(), None);
}

#[test]
fn forgotten_scripts_are_sent_again() {
    let Some(server) = RedisServer::start() else { return };
    let store = store(&server.url("v"));
    let connection = &mut admin(&server);
    store.commit(&Commit::new().put(node(1), directory(0))).unwrap();
    for _ in 0..3 {
        say(connection, &["SCRIPT", "FLUSH"]);
        store.commit(&add_one()).unwrap();
    }
    assert_eq!(children(&store), 3);
}

struct Noted(Mutex<Vec<Notice>>);

impl Listener for Noted {
    fn notice(&self, notice: &Notice) {
        self.0.lock().push(notice.clone());
    }
}

#[test]
fn a_gap_in_the_notices_is_told() {
    let Some(mut server) = RedisServer::start() else { return };
    let store = store(&server.url("v"));
    let noted = Arc::new(Noted(Mutex::default()));
    store.listen(Arc::clone(&noted) as Arc<dyn Listener>).unwrap();
    let wait_for = |what: &dyn Fn(&Notice) -> bool| {
        let begun = monotonic();
        while !noted.0.lock().iter().any(what) {
            assert!(begun.elapsed().as_secs() < 20, "not told: {:?}", noted.0.lock());
            sleep(Duration::from_millis(2));
        }
        noted.0.lock().clear();
    };
    let changed =
        |notice: &Notice| matches!(notice, Notice::Changed { by: None, keys, .. } if *keys == [node(1)]);
    store.commit(&Commit::new().put(node(1), directory(0))).unwrap();
    wait_for(&changed);
    say(&mut admin(&server), &["CLIENT", "KILL", "TYPE", "pubsub"]);
    wait_for(&|notice| *notice == Notice::Lost);
    store.commit(&add_one()).unwrap();
    wait_for(&changed);
    server.kill();
    server.restart();
    wait_for(&|notice| *notice == Notice::Lost);
    store.commit(&add_one()).unwrap();
    wait_for(&changed);
    // Commits of checks alone, and what strangers say, tell nothing or that something may be missing.
    say(&mut admin(&server), &["PUBLISH", "{v}:notices", "nonsense"]);
    wait_for(&|notice| *notice == Notice::Lost);
}

/// The connection that tells of changes may be closed while nothing is to be told.
#[test]
fn what_is_gathered_is_told_whatever_became_of_the_connection() {
    let Some(server) = RedisServer::start() else { return };
    let store = store(&server.url("v"));
    let listening = self::store(&server.url("v"));
    let noted = Arc::new(Noted(Mutex::default()));
    listening.listen(Arc::clone(&noted) as Arc<dyn Listener>).unwrap();
    store.commit(&Commit::new().put(node(1), directory(0))).unwrap();
    let mut last = Version::default();
    for _ in 0..3 {
        for _ in 0..50 {
            last = store.commit(&add_one()).unwrap(); // More than are told one by one.
        }
        let begun = monotonic();
        while !noted
            .0
            .lock()
            .iter()
            .any(|notice| matches!(notice, Notice::Changed { at, .. } if *at == Some(last)))
        {
            assert!(begun.elapsed().as_secs() < 20, "{last:?}: {:?}", noted.0.lock());
            sleep(Duration::from_millis(2));
        }
        say(&mut admin(&server), &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
    for _ in 0..50 {
        last = store.commit(&add_one()).unwrap();
    }
    drop(store);
    sleep(Duration::from_millis(500));
    let noted = noted.0.lock();
    let told = |notice: &Notice| matches!(notice, Notice::Changed { at, .. } if *at == Some(last));
    assert!(noted.iter().any(told), "what is gathered at the end is told");
    assert!(!noted.contains(&Notice::Lost));
}

/// As after a failover, and after a power cut with `appendfsync everysec`.
#[test]
fn a_version_that_the_server_has_lost_is_not_given_to_another_change() {
    let Some(mut server) = RedisServer::start_with(&["--appendonly", "no"]) else { return };
    let open = || connect(&server.url("v"), Options { allow_volatile: true, ..options() }).unwrap().0;
    let (store, other) = (open(), open());
    store.commit(&Commit::new().put(node(1), directory(0))).unwrap();
    say(&mut admin(&server), &["SAVE"]);
    let lost = store.commit(&add_one()).unwrap();
    assert_eq!(lost.0, 2, "no server was noted before");
    server.kill();
    server.restart();
    assert_eq!(children(&other), 0);
    let made = other.commit(&add_one()).unwrap();
    assert!(made > lost, "{made:?}");
    let outcome = store.commit(&Commit::new().at(node(1), lost).put(node(2), directory(0)));
    assert!(matches!(outcome, Err(CommitError::Conflict(_))), "{outcome:?}");
    // The same server is met again.
    assert_eq!(store.commit(&add_one()).unwrap().0, made.0 + 1);
}

fn has_lost(synced: &Result<(), StoreError>) -> bool {
    matches!(synced, Err(error @ StoreError::Engine { .. }) if error.to_string().contains("has lost changes"))
}

#[test]
fn a_sync_after_a_power_cut_says_what_is_gone_once_and_never_that_it_is_kept() {
    let Some(mut server) = RedisServer::start() else { return };
    let (store, other) = (super::store(&server.url("v")), super::store(&server.url("v")));
    let waits = store.persistence() == (Persistence::EverySecond { waits: true });
    if !waits {
        eprintln!(
            "\n*** this server cannot be asked to wait for its disk: only what a commit finds was tested ***\n"
        );
    }
    // A server that cannot be asked to wait is met again by the next commit.
    let lost_meanwhile = |store: &RedisStore| {
        let before = store.losses();
        let synced = if waits {
            store.sync()
        } else {
            store.commit(&Commit::new().put(node(3), directory(0))).map(drop).unwrap();
            Ok(())
        };
        assert_eq!(has_lost(&synced), waits && store.losses() > before, "{synced:?}");
        store.losses() - before
    };
    store.commit(&Commit::new().put(node(1), directory(0))).unwrap();
    store.sync().unwrap();
    let settled = || sleep(Duration::from_millis(1500));
    settled();
    // It starts again and has lost nothing.
    server.kill();
    server.restart();
    assert_eq!(lost_meanwhile(&store), 0);
    settled();
    for _ in 0..2 {
        let kept = server.on_disk();
        store.commit(&add_one()).unwrap();
        other.commit(&Commit::new().put(node(2), directory(0))).unwrap();
        server.lose_power(&kept);
        let before = children(&store);
        assert_eq!((lost_meanwhile(&store), children(&store)), (1, before), "it is gone");
        store.sync().unwrap();
        // Another host finds out by itself, also after this one has made changes.
        store.commit(&add_one()).unwrap();
        assert_eq!(lost_meanwhile(&other), 1);
        other.sync().unwrap();
        settled();
    }
    // Who has only read has lost nothing.
    let reader = super::store(&server.url("v"));
    let kept = server.on_disk();
    children(&reader);
    server.lose_power(&kept);
    assert_eq!(lost_meanwhile(&reader), 0);
}

/// A replica that joins, or has been away for long, gives the history of its primary another name.
#[test]
fn a_server_that_gets_a_replica_has_lost_nothing() {
    let (Some(server), Some(replica)) = (RedisServer::start(), RedisServer::start()) else { return };
    let store = super::store(&server.url("v"));
    store.commit(&Commit::new().put(node(1), directory(0))).unwrap();
    let name = |connection: &mut redis::Connection| {
        let told: String = redis::from_redis_value(say(connection, &["INFO", "replication"])).unwrap();
        told.lines().find_map(|line| line.strip_prefix("master_replid:").map(ToOwned::to_owned)).unwrap()
    };
    let before = name(&mut admin(&server));
    say(&mut admin(&replica), &["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
    let begun = monotonic();
    while name(&mut admin(&server)) == before {
        assert!(begun.elapsed().as_secs() < 20, "it has no other name");
        sleep(Duration::from_millis(10));
    }
    // Another client meets it under its new name, while this one has its connections of before.
    let other = super::store(&server.url("v"));
    other.commit(&add_one()).unwrap();
    for _ in 0..5 {
        store.commit(&add_one()).unwrap();
        store.sync().unwrap();
        scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| store.commit(&add_one()).unwrap());
            }
        });
        store.sync().unwrap();
    }
    assert_eq!((store.losses(), other.losses(), children(&store)), (0, 0, 21));
}

#[test]
fn a_server_with_too_many_connections_is_waited_for() {
    let Some(server) = RedisServer::start() else { return };
    let connection = &mut admin(&server);
    // What is said while a connection is made depends on what is asked for then: a password, a database with a number.
    for (password, database) in [(None, 0), (None, 1), (Some("s3cret"), 0), (Some("s3cret"), 1)] {
        say(connection, &["CONFIG", "SET", "requirepass", password.unwrap_or_default()]);
        let url = server.url(&format!("v{}", password.is_some())).replace("/0?", &format!("/{database}?"));
        let store =
            connect(&url, Options { password: password.map(ToOwned::to_owned), ..options() }).unwrap().0;
        store.commit(&Commit::new().put(node(1), directory(0))).unwrap();
        say(connection, &["CONFIG", "SET", "maxclients", "1"]);
        say(connection, &["CLIENT", "KILL", "SKIPME", "yes"]);
        scope(|scope| {
            let waits = scope.spawn(|| store.commit(&add_one()));
            sleep(Duration::from_millis(300));
            assert!(!waits.is_finished(), "{password:?} {database}");
            say(connection, &["CONFIG", "SET", "maxclients", "100"]);
            waits.join().unwrap().unwrap();
        });
        assert_eq!(children(&store), 1);
    }
}
