//! Servers that say nothing and end no connection: what a session says of itself arrives in time all the same.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use lockwood::document::{Document, Ino, Key, Locking, Node, SessionId, SessionState, Timestamp, Volume};
use lockwood::store::postgres::{PostgresStore, Target};
use lockwood::store::{Commit, Reader, Store};

use super::fence::session;
use super::lost::{Proxy, open_connections};
use super::server::PostgresServer;
use super::{empty, format, open};
use crate::common::until;

fn root() -> Node {
    Volume::empty("0".repeat(32), Locking::Tree, 4096, Timestamp::default()).empty_root(0, 0)
}

/// The lease is 10 seconds, a heartbeat comes every third of it, and the server has made the one whose answer is kept back.
#[test]
fn a_heartbeat_leaves_a_silent_connection_within_the_lease() {
    let Some(server) = PostgresServer::start() else { return };
    let proxy = Proxy::before(server.port(), Duration::from_millis(1));
    let store = empty(&server.url_through(proxy.port, "beat"));
    let key = Key::Session(SessionId(7));
    let beat = |heartbeat| session(SessionId(7), heartbeat, SessionState::Live);
    let version = store.commit(&Commit::new().put(key.clone(), beat(0))).unwrap();
    open_connections(&store, 6);
    proxy.silence();
    let begun = Instant::now();
    let made = store.commit(&Commit::new().at(key.clone(), version).put(key.clone(), beat(1))).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(store.get(&key).unwrap().unwrap().version, made);
}

/// There are as many of them as connections, and all wait for somebody who has locked a table.
#[test]
fn a_heartbeat_waits_for_no_other_commits() {
    let Some(server) = PostgresServer::start() else { return };
    let store = empty(&format!("{}&pool_size=2", server.url("busy")));
    let key = Key::Session(SessionId(7));
    let beat = |heartbeat| session(SessionId(7), heartbeat, SessionState::Live);
    let mut version = store.commit(&Commit::new().put(key.clone(), beat(0))).unwrap();
    let sql = |text: &str| server.psql("lockwood", text);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sql("BEGIN; LOCK TABLE busy.node IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(5); COMMIT")
        });
        let waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'busy.node'::regclass AND";
        until("the table is locked", || sql(&format!("{waiting} granted")).trim() == "1");
        for ino in 1..=6 {
            let store = &store;
            scope.spawn(move || {
                store.commit(&Commit::new().put(Key::Node(Ino(ino)), Document::Node(root()))).unwrap()
            });
        }
        until("all connections wait", || sql(&format!("{waiting} NOT granted")).trim() == "2");
        for heartbeat in 1..=4 {
            let begun = Instant::now();
            let commit = Commit::new().at(key.clone(), version).put(key.clone(), beat(heartbeat));
            version = store.commit(&commit).unwrap();
            assert_eq!(store.get(&key).unwrap().unwrap().version, version);
            assert!(begun.elapsed() < Duration::from_secs(1), "{heartbeat}: {:?}", begun.elapsed());
        }
    });
}

/// As a machine does that stands still: the first host takes calls and does not answer them.
#[test]
fn a_host_that_takes_calls_and_says_nothing_is_passed_over() {
    let Some(server) = PostgresServer::start() else { return };
    drop(format(&server.url("passed")));
    let mute = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", mute.local_addr().unwrap().port(), server.port());
    let options = "schema=passed&target_session_attrs=read-write";
    let store = open(&format!("postgres://lockwood@{hosts}/lockwood?{options}"));
    let begun = Instant::now();
    open_connections(&store, 4);
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "it is not asked first any more: {:?}",
        begun.elapsed()
    );
}

/// Each that is tried again would leave a process of the server behind, and soon nobody could connect.
#[test]
fn statements_that_nobody_waits_for_any_more_end_while_what_they_wait_for_goes_on() {
    let Some(server) = PostgresServer::start() else { return };
    let target = Target::parse(&server.url("abandoned")).unwrap().with(None, Duration::from_secs(5));
    let store = PostgresStore::format(target, &Commit::new()).unwrap();
    let sql = |text: &str| server.psql("lockwood", text);
    let waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'abandoned.node'::regclass AND";
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sql("BEGIN; LOCK TABLE abandoned.node IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(15); COMMIT")
        });
        until("the table is locked", || sql(&format!("{waiting} granted")).trim() == "1");
        assert!(store.commit(&Commit::new().put(Key::Node(Ino(1)), Document::Node(root()))).is_err());
        let begun = Instant::now();
        until("nothing waits", || sql(&format!("{waiting} NOT granted")).trim() == "0");
        // Without anybody's doing each would end five seconds later.
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        assert_eq!(sql(&format!("{waiting} granted")).trim(), "1", "it is locked still");
    });
}
