//! One lock: its holders, its queue, and the rules of both. Pure: no I/O, no clock, no threads. Imports modes and
//! operation ids. A provider that keeps a lock in a document of its own shares these rules.
//!
//! The rules:
//! 1. Any number of operations hold a lock shared, or one holds it exclusive.
//! 2. Whoever finds the lock not free, or others waiting for it, goes to the end of the queue. So a waiting exclusive
//!    stops new shares, whoever asks for them, and is not starved.
//! 3. Only the head of the queue is granted the lock, as soon as it is free for its mode; then the next is the head.
//! 4. An operation asks once. Asking again changes nothing, in particular no mode: a held lock is never upgraded.
//!
//! Between events the head of a queue is never one that could be granted, so where somebody waits somebody holds.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::Nanos;
use crate::lock::set::Mode;
use crate::lock::who::OpId;
use crate::rules::{Rule, holds};

/// An operation that holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The operation.
    pub op: OpId,
    /// When it was granted the lock.
    pub since: Nanos,
}

/// An operation that waits for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waiter {
    /// The operation.
    pub op: OpId,
    /// How it wants the lock.
    pub mode: Mode,
    /// When it came to the queue.
    pub since: Nanos,
}

/// The state of one lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lock {
    /// How the holders hold it; without meaning while there are none.
    mode: Mode,
    /// In the order of their ids, so those of one session stand together. Most locks have one.
    holders: SmallVec<[Holder; 1]>,
    /// In the order in which they came.
    queue: VecDeque<Waiter>,
}

impl Default for Lock {
    fn default() -> Lock {
        Lock { mode: Mode::Shared, holders: SmallVec::new(), queue: VecDeque::new() }
    }
}

impl Lock {
    /// A lock as a document has it. The caller keeps the rules if the document did.
    pub(in crate::lock) fn restore(mode: Mode, mut holders: Vec<Holder>, queue: VecDeque<Waiter>) -> Lock {
        holders.sort_by_key(|holder| holder.op);
        Lock { mode, holders: holders.into(), queue }
    }

    /// How the lock is held; without meaning while nobody holds it.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Who holds it, in the order of their ids.
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// Who waits for it, first come first.
    pub fn queue(&self) -> impl ExactSizeIterator<Item = &Waiter> {
        self.queue.iter()
    }

    /// Whether nothing of the lock needs to be kept.
    pub(in crate::lock) fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }

    /// Whether the rules let the head of the queue hold it in this mode now.
    fn is_free_for(&self, mode: Mode) -> bool {
        self.holders.is_empty() || (mode == Mode::Shared && self.mode == Mode::Shared)
    }

    /// Grants the lock, or puts the operation at the end of the queue. Returns whether the operation holds it now.
    pub(in crate::lock) fn ask(&mut self, op: OpId, mode: Mode, now: Nanos) -> bool {
        if self.holder_index(op).is_ok() {
            if !holds(Rule::NoUpgrade) {
                self.mode = mode;
            }
            return true;
        }
        let comes_first = self.queue.is_empty() || !holds(Rule::WaitingExclusiveStopsNewShares);
        if comes_first && self.is_free_for(mode) {
            self.hold(op, mode, now);
            return true;
        }
        let waits = self.queue.iter().any(|waiter| waiter.op == op);
        if !waits || !holds(Rule::ClaimAddedOnce) {
            let waiter = Waiter { op, mode, since: now };
            if holds(Rule::QueueIsFirstComeFirstServed) {
                self.queue.push_back(waiter);
            } else {
                self.queue.push_front(waiter);
            }
        }
        false
    }

    /// Takes the lock from an operation, if it holds it.
    pub(in crate::lock) fn release(&mut self, op: OpId) {
        match self.holder_index(op) {
            Ok(index) => drop(self.holders.remove(index)),
            Err(_) if holds(Rule::ReleaseIsOwnerChecked) => {}
            Err(_) => drop(self.holders.pop()),
        }
    }

    /// Takes an operation out of the queue, if it is there.
    pub(in crate::lock) fn leave_queue(&mut self, op: OpId) {
        self.queue.retain(|waiter| waiter.op != op);
    }

    /// Grants the lock to the head of the queue, if it is free for it. To be called until it returns `None` whenever
    /// somebody has released the lock or left the queue.
    pub(in crate::lock) fn promote(&mut self, now: Nanos) -> Option<OpId> {
        let head = *self.queue.front()?;
        if !self.is_free_for(head.mode) {
            return None;
        }
        self.queue.pop_front();
        self.hold(head.op, head.mode, now);
        Some(head.op)
    }

    fn hold(&mut self, op: OpId, mode: Mode, since: Nanos) {
        self.mode = mode;
        if let Err(index) = self.holder_index(op) {
            self.holders.insert(index, Holder { op, since });
        }
    }

    fn holder_index(&self, op: OpId) -> Result<usize, usize> {
        self.holders.binary_search_by_key(&op, |holder| holder.op)
    }
}
