//! Locks on servers of their own, over real Redis servers that each test starts. Owns a fleet of them and the parties that
//! lock there.

mod agreement;
mod failures;
mod locking;
mod mounts;
mod paused;
mod volume;

use std::sync::Arc;
use std::time::Duration;

use lockwood::ambient::{Clock, SystemClock};
use lockwood::document::{LockMode, SessionId};
use lockwood::lock::redlock::{Extender, Settings};
use lockwood::lock::session::Standing;
use lockwood::lock::{LockError, LockId, LockSet, Redlock, RedlockGuard};
use lockwood::store::redis::servers::{Patience, Servers};

use crate::redis_server::RedisServer;

const VOLUME: &str = "0123456789abcdef0123456789abcdef";

/// Long enough for anything that happens at all, on a machine that is busy with other things.
const WAIT: Duration = Duration::from_secs(20);

/// Servers that forget everything when they stop.
struct Fleet(Vec<RedisServer>);

impl Fleet {
    /// None, and a loud line, if there is no server to start.
    fn start(count: usize) -> Option<Self> {
        let servers = (0..count)
            .map(|_| RedisServer::start_with(&["--appendonly", "no", "--enable-debug-command", "local"]));
        servers.collect::<Option<Vec<_>>>().map(Self)
    }

    fn list_of(&self, which: &[usize]) -> String {
        let hosts: Vec<_> = which.iter().map(|at| format!("127.0.0.1:{}", self.0[*at].port())).collect();
        format!("redis://{}/0?prefix=locks", hosts.join(","))
    }

    fn list(&self) -> String {
        self.list_of(&(0..self.0.len()).collect::<Vec<_>>())
    }

    /// The servers as a party asks them; they are trusted at once although they were started just now.
    fn servers(&self) -> Arc<Servers> {
        servers(&self.list(), Duration::ZERO)
    }

    /// A request by hand.
    fn ask<T: redis::FromRedisValue>(&self, at: usize, words: &[&str]) -> T {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.0[at].port())).unwrap();
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query(&mut client.get_connection().unwrap()).unwrap()
    }
}

fn servers(list: &str, rest_after_start: Duration) -> Arc<Servers> {
    // Servers that answer late, on a machine that is busy with other things, are not what is tested.
    servers_with(list, Patience { answer_within: Duration::from_secs(2), rest_after_start })
}

fn servers_with(list: &str, patience: Patience) -> Arc<Servers> {
    Arc::new(Servers::parse(list, None, patience).unwrap())
}

/// A session that locks, without a store.
struct Party {
    locks: Redlock,
    /// Ends when the party does.
    _extender: Extender,
}

impl Party {
    fn with(servers: Arc<Servers>, session: u64, settings: Settings) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        // Nobody confirms heartbeats here.
        let lease = Duration::from_secs(3600);
        let standing = Standing::new(SessionId(session), lease, Arc::clone(&clock), clock.now());
        let locks = Redlock::new(servers, VOLUME, clock, Arc::new(standing), settings);
        Self { _extender: Extender::start(&locks).unwrap(), locks }
    }

    fn new(fleet: &Fleet, session: u64, ttl: Duration) -> Self {
        Self::with(fleet.servers(), session, Settings { ttl, extend: true })
    }

    fn try_hold(&self, path: &str, mode: LockMode) -> Result<RedlockGuard, LockError> {
        self.locks.try_acquire(&hold(path, mode), "test")
    }

    fn wait_for(&self, path: &str, mode: LockMode) -> Result<RedlockGuard, LockError> {
        self.locks.acquire(&hold(path, mode), "test", WAIT)
    }
}

fn id(path: &str) -> LockId {
    LockId::from_path(path.as_bytes()).unwrap()
}

fn hold(path: &str, mode: LockMode) -> LockSet {
    LockSet::for_hold(&id(path), mode).unwrap()
}
