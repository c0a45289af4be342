//! The locks of one operation, while they are held, and letting them go.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::claims::in_cell;
use super::kept::{Sharing, Use};
use super::record::is_held;
use super::{SharedLocks, Wanted};
use crate::document::SessionState;
use crate::lock::session::{self, Operation};
use crate::lock::{LockError, OpId};
use crate::store::cells::{CellKey, StoredCell};
use crate::store::{Commit, Durability, StoreError};

/// Who asks whether locks are held still asks for so many at most.
const LOOKED_AT_MAX: usize = 128;

/// A lock document as an operation left it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) key: CellKey,
    pub(super) known: Option<StoredCell>,
    /// In whose name it is claimed, if not in that of the operation: of a share that the session is to keep.
    pub(super) keeper: Option<Arc<Operation>>,
}

impl Held {
    /// What the guard of `op` has of a lock.
    pub(super) fn new(wanted: &Wanted, known: Option<StoredCell>) -> Self {
        let keeper = match &wanted.sharing {
            Sharing::Keep(keeper) => Some(Arc::clone(keeper)),
            Sharing::Own | Sharing::UseKept => None,
        };
        Self { key: wanted.key.clone(), known, keeper }
    }

    /// In whose name it is claimed; `op` is the operation that has it.
    pub(super) fn claimed_by(&self, op: OpId) -> OpId {
        self.keeper.as_ref().map_or(op, |keeper| OpId { number: keeper.number(), ..op })
    }
}

/// The locks of one operation, held until this is dropped; then released from the leaf to the root.
#[must_use = "the locks are released when the guard is dropped"]
pub struct SharedGuard {
    pub(super) locks: SharedLocks,
    /// Those that the operation has claimed for itself.
    pub(super) held: Vec<Held>,
    /// Shares that the session keeps, and that the operation uses.
    pub(super) uses: Vec<Use>,
    /// What the claims survive, as far as none of them was there before.
    pub(super) durability: Durability,
    /// Whether all of them were taken.
    pub(super) granted: bool,
    /// Whether a commit has released what the operation has claimed for itself.
    pub(super) released: AtomicBool,
    /// Dropped after the locks are released.
    pub(super) operation: Arc<Operation>,
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

    /// Under which number each lock document has the claim that the operation relies on: its own, or that of a share which
    /// the session keeps.
    pub fn claims(&self) -> impl Iterator<Item = (&CellKey, OpId)> {
        let (op, session) = (self.op(), self.locks.standing.session());
        let held = self.held.iter().map(move |held| (&held.key, held.claimed_by(op)));
        held.chain(self.uses.iter().map(move |used| (&used.key, OpId { session, number: used.number })))
    }

    /// What releases the locks, as a part of the commit that they were taken for; none where that is not possible or has
    /// little hope. What the session keeps is not released.
    pub fn release_along(&self) -> Option<Commit> {
        self.locks.release_along(&self.held, self.op(), self.durability)
    }

    /// The commit with [`SharedGuard::release_along`] was made.
    pub fn released(&self) {
        self.released.store(true, Relaxed);
    }

    /// The commit with [`SharedGuard::release_along`] was refused, since a lock document has changed. Whether the locks are
    /// held still: if not, the store has lost them. If so, no crash can lose them any more, since whoever has changed the
    /// document has waited for the disk.
    ///
    /// # Errors
    /// The store's.
    pub fn met_others(&self) -> Result<bool, LockError> {
        self.locks.met_others.store(true, Relaxed);
        let (keys, ops): (Vec<_>, Vec<_>) = self.claims().map(|(key, op)| (key.clone(), op)).unzip();
        let found = self.locks.store.insist(|| self.locks.store.cells.read_many(&keys))?;
        let mut all = true;
        for ((key, op), found) in keys.iter().zip(ops).zip(&found) {
            if !is_claimed(key, op, found.as_ref())? {
                log::warn!("the lock {key:?} that {op} had is gone: the store has lost it");
                self.uses
                    .iter()
                    .filter(|used| used.key == *key)
                    .for_each(|used| self.locks.kept.forget(used));
                all = false;
            }
        }
        Ok(all)
    }

    /// Asks the store, once it is called, whether it has the locks still: one that has lost its last changes may not. Says
    /// why not, then. Of very many only the first are looked at. It has nothing of the guard: should that be dropped
    /// meanwhile, the answer means nothing.
    pub fn look(&self) -> impl FnOnce() -> Result<Option<LockError>, LockError> + Send + use<> {
        let first = self.claims().take(LOOKED_AT_MAX);
        let (keys, ops): (Vec<_>, Vec<_>) = first.map(|(key, op)| (key.clone(), op)).unzip();
        let (store, session) = (self.locks.store.clone(), self.op().session);
        move || {
            let found = store.cells.read_many(&keys)?;
            for ((key, op), found) in keys.iter().zip(ops).zip(&found) {
                if !is_claimed(key, op, found.as_ref())? {
                    // What is taken from a session that was fenced it has not lost.
                    let own = store.cells.read(&session::key(session))?;
                    let own = session::in_cell(session, own.as_ref())?;
                    let lives = own.is_some_and(|own| own.state == SessionState::Live);
                    return Ok(Some(if lives { LockError::Forgotten } else { LockError::SessionDropped }));
                }
            }
            Ok(None)
        }
    }

    /// Leaves the claims where they are, until the session has ended and its intents are settled. For an operation that
    /// will not find out what became of its commit: should that still be decided, it needs the locks.
    pub fn abandon(mut self) {
        self.leave_all();
    }

    fn leave_all(&mut self) {
        for keeper in self.held.drain(..).filter_map(|held| held.keeper) {
            keeper.keep_running();
        }
        // What is in use is not let go of.
        self.uses.clear();
        self.operation.keep_running();
    }
}

impl Drop for SharedGuard {
    fn drop(&mut self) {
        if self.granted {
            let mut counted = self.locks.counted.lock();
            counted.operations = counted.operations.saturating_sub(1);
            counted.locks = counted.locks.saturating_sub((self.held.len() + self.uses.len()) as u64);
        }
        if std::thread::panicking() {
            // Nobody knows how far the operation came.
            self.leave_all();
            return;
        }
        if *self.released.get_mut() {
            self.held.clear();
        }
        let held = std::mem::take(&mut self.held);
        let op = self.op();
        // At once, or the session would meet its own use of a share.
        self.locks.end_uses(&mut self.uses);
        if held.is_empty() || !self.granted {
            return release(&self.locks, op, held);
        }
        let (locks, operation) = (self.locks.clone(), Arc::clone(&self.operation));
        let releasing = self.locks.releasing.begin(held.iter().map(|held| held.key.clone()).collect());
        self.locks.later.run(Box::new(move || {
            release(&locks, op, held);
            drop((operation, releasing));
        }));
    }
}

fn is_claimed(key: &CellKey, op: OpId, found: Option<&StoredCell>) -> Result<bool, StoreError> {
    Ok(in_cell(key, found)?.is_some_and(|record| is_held(record, op)))
}

/// Lets go of what an operation has claimed.
fn release(locks: &SharedLocks, op: OpId, held: Vec<Held>) {
    match locks.release_at_once(&held, op) {
        Ok(true) => {}
        Err(error) if locks.store.clock.is_over() => {
            log::warn!("the locks of {op} were not released: {error}; others will remove the claims");
        }
        Ok(false) | Err(_) => locks.release_each(held, op),
    }
}

impl std::fmt::Debug for SharedGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedGuard({})", self.op())
    }
}
