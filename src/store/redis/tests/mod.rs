//! The Redis engine against real servers.

#[path = "../../../../tests/engines/redis_server.rs"]
mod redis_server;

mod faults;
mod opening;
mod proxy;
mod served;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis_server::RedisServer;

use super::open::connect;
use super::*;
use crate::document::{
    Document, Ino, Locking, Name, NodeDelta, Session, SessionId, SessionState, Timestamp, Volume,
};
use crate::store::conformance::{self, directory};

/// Tests must not inherit a password.
fn options() -> Options {
    Options { password: None, patience: Duration::from_secs(5), ..Options::default() }
}

/// A store without a volume.
fn store(url: &str) -> RedisStore {
    connect(url, options()).unwrap().0
}

/// Something for the test to say to the server directly.
fn admin(server: &RedisServer) -> redis::Connection {
    redis::Client::open(format!("redis://127.0.0.1:{}", server.port())).unwrap().get_connection().unwrap()
}

fn say(connection: &mut redis::Connection, words: &[&str]) -> Value {
    ask_for(words).query(connection).unwrap_or_else(|e| panic!("{words:?}: {e}"))
}

fn node(ino: u64) -> Key {
    Key::Node(Ino(ino))
}

fn entry(name: &str) -> Key {
    Key::Entry(Ino(1), Name::new(name.as_bytes()).unwrap())
}

fn file() -> Document {
    Document::Entry(crate::document::Entry { ino: Ino(9), kind: crate::document::FileKind::Regular })
}

fn session(id: SessionId, state: SessionState) -> Document {
    Document::Session(Session {
        id,
        host: "h".to_owned(),
        boot_id: "b".to_owned(),
        pid: 1,
        mount_point: "/m".to_owned(),
        started: Timestamp::default(),
        lease_ms: 10_000,
        heartbeat: 0,
        epoch: 1,
        intents: 0,
        operations_below: 0,
        state,
        locks: Some("redis://a:6379/0?prefix=p".to_owned()),
    })
}

fn volume() -> Volume {
    Volume::empty("0".repeat(32), Locking::Tree, 4096, Timestamp::default())
}

#[test]
fn conforms() {
    let Some(server) = RedisServer::start() else { return };
    let next = AtomicU64::new(0);
    conformance::run(&|| {
        let number = next.fetch_add(1, Ordering::Relaxed);
        Box::new(store(&server.url(&format!("volume-{number}"))))
    });
    // Whatever the suite has left there, all of it is under the prefixes.
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut admin(&server)).unwrap();
    assert!(keys.iter().all(|key| key.starts_with("{volume-")), "{keys:?}");
}
