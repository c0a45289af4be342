//! The locks of one operation, while they are held, and letting them go.

use super::SharedLocks;
use super::claims::{is_own, take_out};
use crate::lock::session::Operation;
use crate::lock::{LockError, OpId};
use crate::store::cells::{CellKey, StoredCell};

/// A lock document as an operation left it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) key: CellKey,
    pub(super) known: Option<StoredCell>,
}

/// The locks of one operation, held until this is dropped; then released from the leaf to the root.
#[must_use = "the locks are released when the guard is dropped"]
pub struct SharedGuard {
    pub(super) locks: SharedLocks,
    pub(super) held: Vec<Held>,
    /// Whether all of them were taken.
    pub(super) granted: bool,
    /// Dropped after the locks are released.
    pub(super) operation: Operation,
}

impl SharedGuard {
    /// Which operation holds the locks.
    pub fn op(&self) -> OpId {
        OpId { session: self.locks.standing.session(), number: self.operation.number() }
    }

    /// Why the locks are held no more; `None` while they are, as far as the session knows.
    pub fn lost(&self) -> Option<LockError> {
        self.locks.standing.is_fenced().then_some(LockError::SessionDropped)
    }

    /// Leaves the claims where they are, until the session has ended and its intents are settled. For an operation that
    /// cannot find out what became of its commit: should that still be decided, it needs the locks.
    pub fn abandon(mut self) {
        self.held.clear();
        self.operation.keep_running();
    }
}

impl Drop for SharedGuard {
    fn drop(&mut self) {
        if self.granted {
            let mut counted = self.locks.counted.lock();
            counted.operations = counted.operations.saturating_sub(1);
            counted.locks = counted.locks.saturating_sub(self.held.len() as u64);
        }
        if std::thread::panicking() {
            // Nobody knows how far the operation came.
            self.held.clear();
            self.operation.keep_running();
            return;
        }
        let op = self.op();
        if self.locks.release_at_once(&self.held, op).unwrap_or(false) {
            return;
        }
        for held in self.held.drain(..).rev() {
            if let Err(error) = take_out(&self.locks.store, &held.key, held.known, |claim| is_own(claim, op))
            {
                log::warn!("{:?} was not released by {op}: {error}; others will remove the claim", held.key);
            }
        }
    }
}

impl std::fmt::Debug for SharedGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedGuard({})", self.op())
    }
}
