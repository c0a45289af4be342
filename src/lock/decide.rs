//! The decisions of the lock engine: who is granted what, who waits, who has waited too long.
//!
//! A pure function of (state, event, now): no I/O, no clock, no threads, no randomness, and nothing that depends on the
//! order of a hash table. The same events give the same commands and the same state. Imports ids, sets and the layer's
//! error. [`one`] holds the rules of a single lock; this file takes operations through their sets.
//!
//! What is hard:
//! 1. No two operations may wait for each other. An operation takes its locks one by one in the global order and waits
//!    for one at a time, holding what comes before it and nothing that comes after ([`Op::held`] is the whole of that
//!    state). docs/locking.md has the proof.
//! 2. No wait may be lost. A lock can become free for its queue in two ways only: a holder releases it, or a waiter
//!    leaves the queue. Both end in `State::settle`.
//! 3. Several operations may leave in one event, and none of them may be granted anything on its way out. They all
//!    leave their queues first, then release what they hold; who was granted something meanwhile continues last.

pub mod one;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;

use super::error::{Blocked, HeldBy};
use super::id::LockId;
use super::set::{LockEntry, LockSet};
use super::who::{OpId, SessionId};
use crate::rules::{Rule, holds};
use one::Lock;

/// A point in time: nanoseconds on a monotonic clock of the provider's, from an origin of the provider's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The time from `earlier` to this; zero if `earlier` is later.
    pub fn since(self, earlier: Nanos) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// What happens to the state.
#[derive(Clone, Debug)]
pub enum Event {
    /// An operation wants a set of locks. With a deadline that is not after `now` it gets all of them or none, and
    /// nobody sees it in a queue.
    Acquire {
        /// Which operation; it asks once in its life. To repeat the event is harmless.
        op: OpId,
        /// What it wants.
        set: LockSet,
        /// What it is about to do, for people; one line.
        operation: Arc<str>,
        /// Until when it is ready to wait.
        deadline: Nanos,
    },
    /// An operation is done, or does not want to wait any more. To repeat the event is harmless.
    Release {
        /// Which operation.
        op: OpId,
    },
    /// Time has passed: who waits and has a deadline that is not after `now` gives up.
    Expire,
    /// A session is dead and can change nothing any more (that is for the caller to know): what it holds is released,
    /// what it waits for is forgotten.
    DropSession {
        /// Which session.
        session: SessionId,
    },
    /// No more locks are granted. Who waits is sent away; who holds keeps what it holds until it releases it.
    Close,
}

/// What the provider does about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The operation holds its whole set.
    Granted(OpId),
    /// The operation waits for a lock; it holds those of its set that come before.
    Waiting {
        /// The operation.
        op: OpId,
        /// What it waits for.
        lock: LockId,
    },
    /// The operation gave up at its deadline; it holds nothing.
    Expired {
        /// The operation.
        op: OpId,
        /// What it waited for, and who had it.
        blocked: Box<Blocked>,
    },
    /// The operation's session was dropped; it holds nothing.
    Dropped(OpId),
    /// The operation was waiting when it was released; it holds nothing.
    Cancelled(OpId),
    /// Nothing is granted any more; the operation holds nothing.
    Closed(OpId),
    /// The operation asked for another set than it did before. Nothing changed, and it does not hold what it asked for.
    Reused(OpId),
}

/// An operation between its acquire and its release.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Op {
    set: LockSet,
    /// The operation holds the first `held` entries of its set. If there are more, it waits for the next one.
    held: usize,
    operation: Arc<str>,
    deadline: Nanos,
}

impl Op {
    /// What it does, for people.
    pub fn operation(&self) -> &Arc<str> {
        &self.operation
    }

    /// The entries that it holds.
    pub fn held(&self) -> &[LockEntry] {
        self.set.entries().get(..self.held).unwrap_or_default()
    }

    /// The entry that it waits for; `None` if it holds its whole set.
    pub fn waits_for(&self) -> Option<&LockEntry> {
        self.set.entries().get(self.held)
    }
}

/// All locks that are held and all operations that hold or wait; nothing else is kept.
///
/// A rename looks each of its locks up three times, however many others are held, so these are hash tables. Nothing
/// iterates over them but [`State::locks`] and [`State::ops`], which sort; so no decision depends on their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    locks: HashMap<LockId, Lock, RandomState>,
    ops: HashMap<OpId, Op, RandomState>,
    closed: bool,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let State { locks, ops, closed } = self;
        (locks.len(), ops.len(), closed).hash(hasher);
        self.locks().for_each(|lock| lock.hash(hasher));
        self.ops().for_each(|op| op.hash(hasher));
    }
}

/// What a table holds, in the order of the keys.
fn sorted<K: Ord, V>(table: &HashMap<K, V, RandomState>) -> impl Iterator<Item = (&K, &V)> {
    let mut entries: Vec<(&K, &V)> = table.iter().collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    entries.into_iter()
}

impl State {
    /// Takes one event into account, and appends what is to be done about it to `commands`.
    pub fn apply(&mut self, event: Event, now: Nanos, commands: &mut Vec<Command>) {
        match event {
            Event::Acquire { op, set, operation, deadline } => {
                self.acquire(op, Op { set, held: 0, operation, deadline }, now, commands);
            }
            Event::Release { op } => {
                let waited = self.ops.get(&op).is_some_and(|found| found.waits_for().is_some());
                self.remove(&[op], now, commands);
                if waited {
                    commands.push(Command::Cancelled(op));
                }
            }
            Event::Expire => self.expire(now, commands),
            Event::DropSession { session } => {
                let of_session = self.ops().filter(|(id, _)| id.session == session);
                let leaves = |op: &Op| op.waits_for().is_none() || holds(Rule::DroppedSessionLeavesQueues);
                let leaving: Vec<OpId> = of_session.filter(|(_, op)| leaves(op)).map(|(id, _)| *id).collect();
                self.remove(&leaving, now, commands);
                commands.extend(leaving.into_iter().map(Command::Dropped));
            }
            Event::Close => {
                self.closed = true;
                let leaving = self.waiting(|_| true);
                self.remove(&leaving, now, commands);
                commands.extend(leaving.into_iter().map(Command::Closed));
            }
        }
    }

    /// The locks, in the global order.
    pub fn locks(&self) -> impl Iterator<Item = (&LockId, &Lock)> {
        sorted(&self.locks)
    }

    /// One lock; `None` if nobody holds it.
    pub fn lock(&self, id: &LockId) -> Option<&Lock> {
        self.locks.get(id)
    }

    /// One operation; `None` if it neither holds nor waits.
    pub fn op(&self, op: OpId) -> Option<&Op> {
        self.ops.get(&op)
    }

    /// The operations that hold or wait, in the order of their ids.
    pub fn ops(&self) -> impl Iterator<Item = (&OpId, &Op)> {
        sorted(&self.ops)
    }

    /// How many locks are held.
    pub fn locks_len(&self) -> usize {
        self.locks.len()
    }

    /// How many operations hold or wait.
    pub fn ops_len(&self) -> usize {
        self.ops.len()
    }

    fn acquire(&mut self, op: OpId, wanted: Op, now: Nanos, commands: &mut Vec<Command>) {
        if let Some(known) = self.ops.get(&op).filter(|_| holds(Rule::AcquireIsIdempotent)) {
            commands.push(match known.waits_for() {
                _ if known.set != wanted.set => Command::Reused(op),
                Some(entry) => Command::Waiting { op, lock: entry.id.clone() },
                None => Command::Granted(op),
            });
            return;
        }
        if self.closed {
            commands.push(Command::Closed(op));
            return;
        }
        let deadline = wanted.deadline;
        self.ops.insert(op, wanted);
        match self.advance(op, now) {
            Some(Command::Waiting { .. }) if deadline <= now => self.expire_these(&[op], now, commands),
            command => commands.extend(command),
        }
    }

    /// Takes as much of the rest of an operation's set as is free, in the order, up to the first lock that is not.
    fn advance(&mut self, id: OpId, now: Nanos) -> Option<Command> {
        let op = self.ops.get_mut(&id)?;
        while let Some(entry) = op.set.entries().get(op.held) {
            let lock = self.locks.entry(entry.id.clone()).or_default();
            if !lock.ask(id, entry.mode, now) {
                return Some(Command::Waiting { op: id, lock: entry.id.clone() });
            }
            op.held += 1;
        }
        Some(Command::Granted(id))
    }

    fn expire(&mut self, now: Nanos, commands: &mut Vec<Command>) {
        let leaving = self.waiting(|op| op.deadline <= now);
        self.expire_these(&leaving, now, commands);
    }

    fn expire_these(&mut self, leaving: &[OpId], now: Nanos, commands: &mut Vec<Command>) {
        // What each was blocked by is read before any of them leaves.
        let expired = leaving.iter().filter_map(|op| {
            let blocked = Box::new(self.blocked(*op, now)?);
            Some(Command::Expired { op: *op, blocked })
        });
        commands.extend(expired);
        if holds(Rule::ExpiredReleasesEverything) {
            self.remove(leaving, now, commands);
        } else {
            leaving.iter().for_each(|op| drop(self.ops.remove(op)));
        }
    }

    /// The operations that wait and for which `wanted` is true.
    fn waiting(&self, wanted: impl Fn(&Op) -> bool) -> Vec<OpId> {
        let found = self.ops().filter(|(_, op)| op.waits_for().is_some() && wanted(op));
        found.map(|(id, _)| *id).collect()
    }

    /// Forgets operations, whether they wait or hold, and lets those behind them go on.
    fn remove(&mut self, leaving: &[OpId], now: Nanos, commands: &mut Vec<Command>) {
        for id in leaving {
            let Some(entry) = self.ops.get(id).and_then(Op::waits_for) else { continue };
            if let Some(lock) = self.locks.get_mut(&entry.id) {
                lock.leave_queue(*id);
            }
        }
        let mut granted = Vec::new();
        for id in leaving {
            let Some(op) = self.ops.remove(id) else { continue };
            if let Some(entry) = op.waits_for() {
                self.settle(entry.id.clone(), None, now, &mut granted);
            }
            // Leaf to root: who is let in at an ancestor then finds the rest free.
            for entry in op.set.into_entries().into_iter().take(op.held).rev() {
                self.settle(entry.id, Some(*id), now, &mut granted);
            }
        }
        for id in granted {
            commands.extend(self.advance(id, now));
        }
    }

    /// Releases a lock for `holder`, if given; lets in whom the rules let in; keeps nothing of a lock that is idle.
    fn settle(&mut self, id: LockId, holder: Option<OpId>, now: Nanos, granted: &mut Vec<OpId>) {
        let Entry::Occupied(mut found) = self.locks.entry(id) else { return };
        let lock = found.get_mut();
        if let Some(holder) = holder {
            lock.release(holder);
        }
        while let Some(next) = lock.promote(now) {
            if let Some(op) = self.ops.get_mut(&next) {
                op.held += 1;
            }
            granted.push(next);
        }
        if lock.is_idle() {
            found.remove();
        }
    }

    /// What a waiting operation waits for, and who has it.
    fn blocked(&self, id: OpId, now: Nanos) -> Option<Blocked> {
        let entry = self.ops.get(&id)?.waits_for()?;
        let lock = self.locks.get(&entry.id)?;
        let holders = lock.holders().iter().filter_map(|holder| {
            let operation = Arc::clone(&self.ops.get(&holder.op)?.operation);
            Some(HeldBy { op: holder.op, operation, held_for: now.since(holder.since) })
        });
        Some(Blocked {
            lock: entry.id.clone(),
            wanted: entry.mode,
            held: lock.mode(),
            holders: holders.collect(),
            waiting_before: lock.queue().take_while(|waiter| waiter.op != id).count(),
        })
    }
}

#[cfg(test)]
mod tests;
