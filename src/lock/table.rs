//! The in-process provider: the lock table of a store that one process owns.
//!
//! Owns the mutex around the state, the threads that wait, and the counters. Imports the decisions and `ambient`.
//!
//! What is hard:
//! 1. Only the thread whose operation is decided may be woken. Each waiting thread has a condition variable of its own,
//!    and the command that ends its wait finds it by operation id.
//! 2. A thread that times out at the moment at which it is granted must end up with one of the two. Its deadline is an
//!    event like any other, under the same mutex, and what the state has said first counts.
//! 3. Locks must not outlive whoever holds them: a [`Guard`] releases when it is dropped, also by a panic that unwinds.
//!    Nothing of a caller's runs under the mutex, so a panic there cannot leave the state half changed.
//! 4. Locks may be broken while their operation goes on: each has a [`fence`], which is [`revoke`]d first.

mod fence;
mod guard;
mod revoke;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use serde::Serialize;

use super::decide::{Command, Event, Nanos, State};
use super::document::{LockDocument, Moment};
use super::error::{Blocked, LockError};
use super::id::LockId;
use super::set::LockSet;
use super::sync::{self, Condvar, Mutex, MutexGuard};
use super::wait::{Wait, ask_after};
use super::who::{OpId, SessionId};
use crate::ambient;
use fence::Fence;

pub use fence::BreakOutcome;
pub use guard::Guard;
pub use revoke::Broken;

/// How long an operation waits for its locks unless it is told otherwise.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(30);

/// What an operation asks of the table.
#[derive(Clone, Debug)]
pub struct Request {
    /// Whose operation it is.
    pub session: SessionId,
    /// The locks that it needs.
    pub set: LockSet,
    /// What it is about to do, for people; one line, like `rename /a to /b`.
    pub operation: Arc<str>,
}

/// What the table has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Lock sets granted, at once or after a wait.
    pub acquisitions: u64,
    /// Operations that had to wait, whatever came of it.
    pub waits: u64,
    /// Operations that gave up at their deadline, after a wait.
    pub expired: u64,
    /// Operations whose locks were broken.
    pub broken: u64,
    /// The longest wait so far, whatever came of it, in microseconds.
    pub longest_wait_us: u64,
    /// Operations that hold or wait at this moment.
    pub operations: u64,
    /// Locks that are held at this moment.
    pub locks: u64,
}

/// The lock table. A clone is another handle to the same table.
#[derive(Clone)]
pub struct LockTable {
    shared: Arc<Shared>,
}

struct Shared {
    /// The origin of the state's clock.
    origin: Instant,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    state: State,
    /// The number of the last operation; over all sessions, so none is used twice.
    last_number: u64,
    /// The threads that wait.
    parked: BTreeMap<OpId, Parked>,
    /// The fences of the operations that have begun and not ended: for who revokes, since each operation has its own in
    /// hand. Nothing iterates over them.
    fences: HashMap<OpId, Arc<Fence>, RandomState>,
    /// Sessions that are granted nothing any more.
    closed: BTreeSet<SessionId>,
    /// Empty between two calls; kept for its capacity.
    commands: Vec<Command>,
    counters: Counters,
}

struct Parked {
    wake: Arc<Condvar>,
    outcome: Option<Outcome>,
}

enum Outcome {
    Granted,
    Expired(Box<Blocked>),
    Dropped,
    /// Sent away by a revocation.
    Cancelled,
    Closed,
    /// The caller gave up.
    Interrupted,
}

impl Default for LockTable {
    fn default() -> LockTable {
        LockTable::new()
    }
}

impl LockTable {
    /// An empty table.
    pub fn new() -> LockTable {
        let origin = sync::now();
        LockTable { shared: Arc::new(Shared { origin, inner: Mutex::default() }) }
    }

    /// Takes all locks of the request at once, or none. Never waits, and is never seen waiting.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`] with the first lock that was not free; [`LockError::Closed`].
    pub fn try_acquire(&self, request: Request) -> Result<Guard, LockError> {
        let now = self.shared.now();
        let mut inner = self.shared.inner.lock();
        match inner.start(request, now, now) {
            (op, _, Some(Outcome::Expired(blocked))) => {
                inner.fences.remove(&op);
                drop(inner);
                log::trace!("operation {op}: {blocked}");
                Err(LockError::WouldBlock(blocked))
            }
            (op, fence, outcome) => self.finish(inner, op, fence, outcome),
        }
    }

    /// Takes all locks of the request, and blocks the calling thread until it has them, at the longest until the
    /// deadline, or until the caller gives up. A deadline that has passed still takes what is free.
    ///
    /// A thread that already holds a guard may ask for another only if each of its locks comes, in the global order,
    /// after all of the first one's. Else it may wait for somebody who waits for it, until the deadline.
    ///
    /// # Errors
    /// [`LockError::TimedOut`] with the lock that was waited for and who held it; [`LockError::Interrupted`];
    /// [`LockError::Closed`]; [`LockError::SessionDropped`]; [`LockError::Revoked`]. With any of them, nothing is held.
    pub fn acquire<'a>(&self, request: Request, wait: impl Into<Wait<'a>>) -> Result<Guard, LockError> {
        let wait = wait.into();
        let started = self.shared.now();
        let mut inner = self.shared.inner.lock();
        let (op, fence, outcome) = inner.start(request, self.shared.at(wait.longest), started);
        let outcome = match outcome {
            Some(outcome) => Some(outcome),
            None => {
                let outcome;
                (inner, outcome) = self.wait(inner, op, wait);
                let waited = self.shared.now().since(started);
                let waited_us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
                inner.counters.longest_wait_us = inner.counters.longest_wait_us.max(waited_us);
                outcome
            }
        };
        self.finish(inner, op, fence, outcome)
    }

    /// Forgets a session: releases what it holds and ends its waits with [`LockError::SessionDropped`]. The caller has
    /// made sure that the session can change nothing any more and does not ask again.
    pub fn drop_session(&self, session: SessionId) {
        self.shared.apply(Event::DropSession { session });
    }

    /// Grants a session nothing any more: ends its waits with [`LockError::Closed`], and its later requests too. What it
    /// holds stays held until its guards are dropped.
    pub fn close_session(&self, session: SessionId) {
        let now = self.shared.now();
        let mut inner = self.shared.inner.lock();
        inner.closed.insert(session);
        let waiting =
            inner.parked.iter().filter(|(op, parked)| op.session == session && parked.outcome.is_none());
        for op in waiting.map(|(op, _)| *op).collect::<Vec<_>>() {
            inner.send_away(op, Outcome::Closed, now);
        }
    }

    /// Grants nothing any more: ends every wait with [`LockError::Closed`], and every later request too. What is held
    /// stays held until its guards are dropped.
    pub fn close(&self) {
        self.shared.apply(Event::Close);
    }

    /// The lock documents of this moment, in the global order.
    pub fn documents(&self) -> Vec<LockDocument> {
        let inner = self.shared.inner.lock();
        inner.state.documents(self.shared.moment())
    }

    /// The lock document of one path; `None` if nobody holds it.
    pub fn document(&self, id: &LockId) -> Option<LockDocument> {
        let inner = self.shared.inner.lock();
        inner.state.document(id, self.shared.moment())
    }

    /// What the table has done so far.
    pub fn counters(&self) -> Counters {
        let inner = self.shared.inner.lock();
        let (operations, locks) = (inner.state.ops_len() as u64, inner.state.locks_len() as u64);
        Counters { operations, locks, ..inner.counters }
    }

    /// Blocks until the operation's wait has ended, one way or another. The caller is asked whether to give up without the
    /// mutex; what the state has said meanwhile counts.
    fn wait<'t>(
        &'t self,
        mut inner: MutexGuard<'t, Inner>,
        op: OpId,
        wait: Wait<'_>,
    ) -> (MutexGuard<'t, Inner>, Option<Outcome>) {
        let wake = Arc::new(Condvar::new());
        inner.parked.insert(op, Parked { wake: Arc::clone(&wake), outcome: None });
        inner.counters.waits += 1;
        let started = sync::now();
        loop {
            if inner.parked.get(&op).is_none_or(|parked| parked.outcome.is_some()) {
                let outcome = inner.parked.remove(&op).and_then(|parked| parked.outcome);
                return (inner, outcome);
            }
            let now = sync::now();
            let ask_at = wait.give_up.map(|_| now + ask_after(now.saturating_duration_since(started)));
            let until = ask_at.map_or(wait.longest, |ask_at| ask_at.min(wait.longest));
            if !wake.wait_until(&mut inner, until).timed_out() {
                continue;
            }
            if until == wait.longest {
                let now = self.shared.now();
                inner.apply(Event::Expire, now, None);
                continue;
            }
            drop(inner);
            let is_given_up = wait.is_given_up();
            inner = self.shared.inner.lock();
            if is_given_up {
                inner.send_away(op, Outcome::Interrupted, self.shared.now());
            }
        }
    }

    fn finish(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        op: OpId,
        fence: Arc<Fence>,
        outcome: Option<Outcome>,
    ) -> Result<Guard, LockError> {
        if matches!(outcome, Some(Outcome::Granted)) {
            drop(inner);
            let guard = Guard::new(Arc::clone(&self.shared), op, fence);
            return match guard.lost() {
                None => Ok(guard),
                Some(revoked) => Err(revoked),
            };
        }
        inner.fences.remove(&op);
        drop(inner);
        Err(match outcome {
            Some(Outcome::Expired(blocked)) => LockError::TimedOut(blocked),
            Some(Outcome::Closed) => LockError::Closed,
            Some(Outcome::Interrupted) => LockError::Interrupted,
            Some(Outcome::Cancelled) => fence.revoked().unwrap_or(LockError::SessionDropped),
            // Without an outcome the operation is not known to the state, which forgets only what it was told to.
            _ => LockError::SessionDropped,
        })
    }
}

impl Shared {
    fn now(&self) -> Nanos {
        self.at(sync::now())
    }

    fn at(&self, instant: Instant) -> Nanos {
        let since_origin = instant.saturating_duration_since(self.origin);
        Nanos(u64::try_from(since_origin.as_nanos()).unwrap_or(u64::MAX))
    }

    fn moment(&self) -> Moment {
        Moment { now: self.now(), wall_clock: ambient::wall_clock() }
    }

    fn apply(&self, event: Event) {
        let now = self.now();
        self.inner.lock().apply(event, now, None);
    }
}

impl Inner {
    /// Begins an operation. Without an outcome, it waits.
    fn start(
        &mut self,
        request: Request,
        deadline: Nanos,
        now: Nanos,
    ) -> (OpId, Arc<Fence>, Option<Outcome>) {
        self.last_number += 1;
        let Request { session, set, operation } = request;
        let op = OpId { session, number: self.last_number };
        let fence = Arc::new(Fence::new());
        if self.closed.contains(&session) {
            return (op, fence, Some(Outcome::Closed));
        }
        self.fences.insert(op, Arc::clone(&fence));
        let outcome = self.apply(Event::Acquire { op, set, operation, deadline }, now, Some(op));
        (op, fence, outcome)
    }

    /// Ends the wait of an operation, if it still waits.
    fn send_away(&mut self, op: OpId, outcome: Outcome, now: Nanos) {
        if self.parked.get(&op).is_none_or(|parked| parked.outcome.is_some()) {
            return;
        }
        self.apply(Event::Release { op }, now, None);
        if let Some(parked) = self.parked.get_mut(&op) {
            parked.outcome = Some(outcome);
            parked.wake.notify_one();
        }
    }

    /// Applies an event and wakes those whose wait it ended. What it decided about `own`, which does not wait yet, is
    /// returned.
    fn apply(&mut self, event: Event, now: Nanos, own: Option<OpId>) -> Option<Outcome> {
        let mut own_outcome = None;
        let mut commands = std::mem::take(&mut self.commands);
        self.state.apply(event, now, &mut commands);
        for command in commands.drain(..) {
            let (op, outcome) = match command {
                Command::Granted(op) => (op, Outcome::Granted),
                Command::Expired { op, blocked } => (op, Outcome::Expired(blocked)),
                Command::Dropped(op) => (op, Outcome::Dropped),
                Command::Closed(op) => (op, Outcome::Closed),
                Command::Cancelled(op) => (op, Outcome::Cancelled),
                // An operation goes on waiting; and the table never uses a number twice.
                Command::Waiting { .. } | Command::Reused(_) => continue,
            };
            match outcome {
                Outcome::Granted => self.counters.acquisitions += 1,
                Outcome::Expired(_) if own != Some(op) => self.counters.expired += 1,
                _ => {}
            }
            if own == Some(op) {
                own_outcome = Some(outcome);
            } else if let Some(parked) = self.parked.get_mut(&op) {
                parked.outcome = Some(outcome);
                parked.wake.notify_one();
            }
        }
        self.commands = commands;
        own_outcome
    }
}

impl std::fmt::Debug for LockTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LockTable({:?})", self.counters())
    }
}

#[cfg(test)]
#[cfg(not(feature = "shuttle"))]
mod fairness;
#[cfg(test)]
#[cfg(feature = "shuttle")]
mod schedules;
#[cfg(test)]
#[cfg(not(feature = "shuttle"))]
mod tests;
