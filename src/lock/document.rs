//! Lock documents: what people and programs see of a lock.
//!
//! Owns the JSON form. Imports the state that it is made from.
//!
//! What is hard: a count without names cannot say whose share died, so holders are listed by session, each with its own
//! count, and `lock_count` is their sum. Times are kept on a monotonic clock and shown by the wall clock of the moment
//! of looking: a step of the wall clock moves what is shown, and nothing else.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::decide::one::Lock;
use super::decide::{Nanos, State};
use super::id::LockId;
use super::set::{LockEntry, Mode};
use super::timestamp::Timestamp;
use super::who::{OpId, SessionId};

/// One lock that is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockDocument {
    /// The path, URL-encoded: the document's id.
    pub id: LockId,
    /// The path for people, on one line; bytes that are not UTF-8 are replaced. Only `id` is exact.
    pub path: String,
    /// How it is held.
    pub lock_type: Mode,
    /// The sum of the holders' counts.
    pub lock_count: u64,
    /// The sessions that hold it, in the order of their ids; never empty.
    pub holders: Vec<HolderEntry>,
    /// The operations that wait for it, first come first.
    pub waiters: Vec<WaiterEntry>,
}

/// A session's part in a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderEntry {
    /// Which session.
    pub session: SessionId,
    /// How many times it holds the lock: once an operation.
    pub count: u64,
    /// Since when the earliest of these operations has held the lock.
    pub since: Timestamp,
    /// What for, in the order of the operations' numbers.
    pub operations: Vec<OperationEntry>,
}

/// An operation that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationEntry {
    /// The operation's number within its session.
    pub op: u64,
    /// Since when it has held the lock.
    pub since: Timestamp,
    /// What it does.
    pub operation: String,
}

/// An operation that waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaiterEntry {
    /// Whose operation.
    pub session: SessionId,
    /// The operation's number within its session.
    pub op: u64,
    /// How it wants the lock.
    pub lock_type: Mode,
    /// Since when it has waited for this lock.
    pub since: Timestamp,
    /// What it is about to do.
    pub operation: String,
}

/// A lock as one operation holds it or wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimEntry {
    /// The path, URL-encoded.
    pub id: LockId,
    /// How the operation holds or wants it.
    pub lock_type: Mode,
}

/// An operation that holds or waits, with all its locks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationDocument {
    /// Whose operation.
    pub session: SessionId,
    /// The operation's number within its session.
    pub op: u64,
    /// What it does.
    pub operation: String,
    /// Since when it has held the first of its locks, or waited for it.
    pub since: Timestamp,
    /// What it holds, in the global order.
    pub holds: Vec<ClaimEntry>,
    /// What it waits for.
    pub waits_for: Option<ClaimEntry>,
}

impl OperationDocument {
    /// Which operation.
    pub fn id(&self) -> OpId {
        OpId { session: self.session, number: self.op }
    }
}

/// One moment on both clocks, to show the one by the other.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// On the monotonic clock of the state.
    pub now: Nanos,
    /// On the wall clock.
    pub wall_clock: SystemTime,
}

impl Moment {
    fn show(self, then: Nanos) -> Timestamp {
        Timestamp::before(self.wall_clock, self.now.since(then))
    }
}

impl State {
    /// All lock documents, in the global order.
    pub fn documents(&self, moment: Moment) -> Vec<LockDocument> {
        self.locks().map(|(id, lock)| self.describe(id, lock, moment)).collect()
    }

    /// One lock document; `None` if nobody holds the lock.
    pub fn document(&self, id: &LockId, moment: Moment) -> Option<LockDocument> {
        self.lock(id).map(|lock| self.describe(id, lock, moment))
    }

    /// All operations that hold or wait, in the order of their ids.
    pub fn operations(&self, moment: Moment) -> Vec<OperationDocument> {
        self.ops().filter_map(|(op, _)| self.operation(*op, moment)).collect()
    }

    /// One operation; `None` if it neither holds nor waits.
    pub fn operation(&self, id: OpId, moment: Moment) -> Option<OperationDocument> {
        let op = self.op(id)?;
        let claim = |entry: &LockEntry| ClaimEntry { id: entry.id.clone(), lock_type: entry.mode };
        // Its first lock came first: locks are taken in the order of the set.
        let first = op.held().first().or(op.waits_for())?;
        let lock = self.lock(&first.id)?;
        let held = lock.holders().iter().find(|holder| holder.op == id).map(|holder| holder.since);
        let since =
            held.or_else(|| lock.queue().find(|waiter| waiter.op == id).map(|waiter| waiter.since))?;
        Some(OperationDocument {
            session: id.session,
            op: id.number,
            operation: op.operation().to_string(),
            since: moment.show(since),
            holds: op.held().iter().map(claim).collect(),
            waits_for: op.waits_for().map(claim),
        })
    }

    fn describe(&self, id: &LockId, lock: &Lock, moment: Moment) -> LockDocument {
        let text = |op: OpId| self.op(op).map(|op| op.operation().to_string()).unwrap_or_default();
        // The holders are in the order of their ids, so those of a session stand together.
        let sessions = lock.holders().chunk_by(|one, next| one.op.session == next.op.session);
        let holders = sessions.filter_map(|of_session| {
            let first = of_session.first()?;
            let since = of_session.iter().map(|holder| holder.since).min()?;
            let operations = of_session.iter().map(|holder| OperationEntry {
                op: holder.op.number,
                since: moment.show(holder.since),
                operation: text(holder.op),
            });
            Some(HolderEntry {
                session: first.op.session,
                count: of_session.len() as u64,
                since: moment.show(since),
                operations: operations.collect(),
            })
        });
        let waiters = lock.queue().map(|waiter| WaiterEntry {
            session: waiter.op.session,
            op: waiter.op.number,
            lock_type: waiter.mode,
            since: moment.show(waiter.since),
            operation: text(waiter.op),
        });
        LockDocument {
            id: id.clone(),
            path: id.to_string(),
            lock_type: lock.mode(),
            lock_count: lock.holders().len() as u64,
            holders: holders.collect(),
            waiters: waiters.collect(),
        }
    }
}
