//! The Redis engine: the documents as hashes of a Redis or Valkey server, which many hosts share.
//!
//! Owns the keys under its prefix. Imports `document`, `ambient` and the port.
//!
//! What is hard, and where it is solved:
//! 1. A script is not rolled back: it must not find out half way that it should not have begun: `commit.lua`.
//! 2. A request whose answer is lost may have been carried out, or be carried out later: [`commit`] settles which, before
//!    anything else is done.
//! 3. A directory is read in the order of positions, page by page, in one round trip each: [`names`], `scan.lua`.
//! 4. A server that forgets at a restart, or throws documents away when it is full, must not be taken for a store: [`open`].
//! 5. Notices that were missed are made up for: [`listen`].
//! 6. A server that comes back without what it had acknowledged must not pass for one that has it on its disk: [`losses`].
//!
//! The locks of a volume, whatever engine it is on, may be on Redis servers of their own: [`servers`] asks several at once.

mod address;
mod commit;
mod error;
mod fields;
mod link;
mod listen;
mod losses;
mod names;
pub mod open;
mod request;
mod scan;
pub mod servers;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use redis::{Value, cmd, pipe};

use self::commit::Committer;
use self::link::Pool;
use self::listen::Subscription;
use self::names::Names;
use self::open::Persistence;
use super::{
    Capabilities, Commit, CommitError, Listener, Outages, Reader, Scan, ScanItem, Store, StoreCounters,
    StoreError,
};
use crate::document::{Key, Stored, Version};
use crate::store::counts::Counts;
use crate::store::stopped::Stopped;
use crate::store::teller::Teller;

pub use address::AddressError;
pub use link::Script;
pub use open::{OpenError, format, open};
pub use request::Arguments;

/// What a sync does.
const WHAT: &str = "waiting for the disk";
const COUNT_WHEN_FULL: &str = "#!lua flags=allow-oom\nreturn redis.call('INCR', KEYS[1])";

/// How a server is used.
#[derive(Clone)]
pub struct Options {
    /// The password, if the URL has none.
    pub password: Option<String>,
    /// Take a server that forgets documents at a restart, or throws them away when it is full.
    pub allow_volatile: bool,
    /// How long a request is tried again while the server is away.
    pub patience: Duration,
    /// How long an answer may take before the connection counts as lost.
    pub answer_within: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            password: None,
            allow_volatile: false,
            patience: Duration::from_secs(10),
            answer_within: Duration::from_secs(5),
        }
    }
}

/// Without the password.
impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { password: _, allow_volatile, patience, answer_within } = self;
        f.debug_struct("Options")
            .field("allow_volatile", allow_volatile)
            .field("patience", patience)
            .field("answer_within", answer_within)
            .finish_non_exhaustive()
    }
}

/// A volume on a Redis server.
pub struct RedisStore {
    // First, so that it is dropped first: its thread uses the pool.
    subscription: Subscription,
    teller: Teller,
    pool: Arc<Pool>,
    names: Names,
    committer: Committer,
    scan_script: Script,
    durability: Persistence,
    stopped: Stopped,
    counts: Counts,
}

impl RedisStore {
    fn new(pool: Pool, durability: Persistence) -> Result<Self, StoreError> {
        let names = pool.address.names();
        let pool = Arc::new(pool);
        Ok(Self {
            subscription: Subscription::new(Arc::clone(&pool), names.channel()),
            teller: listen::teller(Arc::clone(&pool), &names)?,
            committer: Committer::new(names.clone()),
            scan_script: Script::new(include_str!("scan.lua")),
            pool,
            names,
            durability,
            stopped: Stopped::default(),
            counts: Counts::default(),
        })
    }

    /// What the server promises of commits that have returned.
    pub fn persistence(&self) -> Persistence {
        self.durability
    }
}

/// Adds the request for a document.
fn request(names: &Names, requests: &mut redis::Pipeline, key: &Key) {
    let is_field = matches!(key, Key::Entry(..));
    let mut command = cmd(if is_field { "HGET" } else { "HGETALL" });
    names.add_document(&mut command, key);
    if is_field {
        command.arg(names::field(key));
    }
    requests.add_command(command);
}

/// The document that the server sent.
fn decode(key: &Key, answer: Value) -> Result<Option<Stored>, StoreError> {
    let damaged = |cause: String| StoreError::Damaged { key: key.to_string(), cause };
    let found = match answer {
        Value::Nil => return Ok(None),
        Value::BulkString(text) => fields::read_entry(&text),
        Value::Array(items) if items.is_empty() => return Ok(None),
        Value::Array(items) => {
            let fields = redis::from_redis_value::<Vec<(Vec<u8>, Vec<u8>)>>(Value::Array(items));
            fields.map_err(|e| e.to_string()).and_then(|fields| fields::read(key, &fields))
        }
        Value::ServerError(error) => Err(error.to_string()),
        other => Err(format!("the server sent {other:?}")),
    };
    found.map(Some).map_err(damaged)
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.teller.close();
    }
}

impl Reader for RedisStore {
    fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        self.get_many(std::slice::from_ref(key)).map(|found| found.into_iter().next().flatten())
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Stored>>, StoreError> {
        self.counts.got(keys.len());
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut requests = pipe();
        keys.iter().for_each(|key| request(&self.names, &mut requests, key));
        let answers = self.pool.patiently("reading documents", |link| link.ask_all(&requests))?;
        keys.iter().zip(answers).map(|(key, answer)| decode(key, answer)).collect()
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        scan::page(scan.range, self.listed(scan, false)?)
    }

    fn scan_keys(&self, scan: &Scan) -> Result<Vec<Key>, StoreError> {
        scan::keys(scan.range, self.listed(scan, true)?)
    }
}

impl RedisStore {
    /// Waits until what this client has committed is on the disk of the server that has it, or is known to be gone.
    fn wait_for_disk(&self) -> Result<(), StoreError> {
        // WAITAOF waits for what its own connection has written, and for all that came before it. The write is a script, so
        // that a full server takes it too.
        let mut requests = pipe();
        requests.cmd("EVAL").arg(COUNT_WHEN_FULL).arg(1).arg(self.names.other("syncs"));
        requests.cmd("WAITAOF").arg(1).arg(0).arg(0);
        let answers = self.pool.patiently(WHAT, |link| {
            let server = self.committer.arrive(link)?;
            if !self.committer.losses().has_all(&server) {
                // Another one has acknowledged it, or this one under another name: it is asked whether it has it.
                link.begin_anew();
                self.committer.arrive(link)?;
            }
            link.ask_all(&requests)
        })?;
        // How many disks have it: the server's own, and those of replicas.
        if matches!(answers.get(1), Some(Value::Array(disks)) if disks.first() == Some(&Value::Int(1))) {
            return Ok(());
        }
        let source = format!("the server sent {answers:?}").into();
        Err(StoreError::Engine { what: format!("{}: {WHAT}", self.pool.address), source })
    }

    fn listed(&self, scan: &Scan, keys_only: bool) -> Result<Value, StoreError> {
        self.counts.scanned();
        let request = scan::request(&self.names, scan, keys_only);
        self.pool.patiently("listing documents", |link| link.run(&self.scan_script, &request))
    }
}

impl Store for RedisStore {
    fn commit(&self, commit: &Commit) -> Result<Version, CommitError> {
        self.stopped.refuse()?;
        let tells = self.teller.is_due(commit);
        let outcome = self.committer.commit(&self.pool, commit, tells);
        self.counts.committed(commit, &outcome);
        if !tells {
            self.teller.tell(commit, &outcome);
        }
        outcome
    }

    /// Waits for the disk where the server can be asked to; [`Persistence`] says what else is promised.
    fn sync(&self) -> Result<(), StoreError> {
        self.stopped.refuse()?;
        let losses = self.committer.losses();
        let before = losses.count();
        if self.durability == (Persistence::EverySecond { waits: true }) {
            self.wait_for_disk()?;
        }
        if losses.count() > before {
            let what = format!("{}: {WHAT}", self.pool.address);
            let cause =
                "the server has lost changes that it had acknowledged and that were not synced: see the log";
            return Err(StoreError::Engine { what, source: cause.into() });
        }
        self.counts.synced();
        Ok(())
    }

    fn losses(&self) -> u64 {
        self.committer.losses().count()
    }

    fn lost_after_sync(&self) -> Duration {
        self.durability.lost_after_sync()
    }

    fn stop(&self, cause: &str) {
        self.stopped.stop(cause);
    }

    fn listen(&self, listener: Arc<dyn Listener>) -> Result<(), StoreError> {
        self.subscription.add(listener)
    }

    fn outages(&self) -> Option<&Outages> {
        Some(&self.pool.outages)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { snapshots: false, one_version: true, shared: true, notices: true }
    }

    fn snapshot(&self) -> Box<dyn Reader + '_> {
        Box::new(self)
    }

    fn counters(&self) -> StoreCounters {
        self.counts.remote()
    }
}

/// A request of one word, for the readers of settings.
fn ask_for(words: &[&str]) -> redis::Cmd {
    let (name, rest) = words.split_first().unwrap_or((&"PING", &[]));
    let mut command = cmd(name);
    command.arg(rest);
    command
}
