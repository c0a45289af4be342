//! Intents: a store that changes several documents at one instant, made out of one that changes one at a time.
//!
//! Owns the intent documents (slots) of sessions and the marks that they leave at documents. Imports `document`, the store's
//! port, the cells' port, `ambient` and `rules`. docs/intents.md has the protocol and why it is right.
//!
//! What is hard, and where it is solved:
//! 1. What a mark means at this moment, and what may become of it and of its intent: [`decide`], pure functions.
//! 2. A request may be lost, late, delivered twice, or lose its answer: `requests`.
//! 3. A commit is checked, marked, decided and cleaned up, and may be overtaken or aborted at each step: `attempt`.
//! 4. Readers see each document at one instant, and of an intent all or nothing within a page: `read`.
//! 5. What the dead have begun is decided once and for all: [`settle`].
//! 6. Many threads of a session share a few slots: `slots`. Many sessions of a process share a store: [`shared`].

mod attempt;
pub mod decide;
mod read;
mod requests;
mod settle;
pub mod shared;
mod slots;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use self::attempt::Attempt;
use self::requests::Requests;
use self::slots::Pool;
use super::cells::Cells;
use super::{Capabilities, Commit, CommitError, Reader, Scan, ScanItem, Store, StoreCounters, StoreError};
use crate::ambient::Clock;
use crate::document::{Key, SessionId, Stored, Version};
use crate::store::counts::Counts;
use crate::store::stopped::Stopped;

pub use settle::{Settled, create_slots, settle};
pub use slots::OwnSlot;

/// How often a commit starts over that others keep from marking what it writes. With the pauses that is some fifteen
/// seconds; each time somebody else has got on.
const ATTEMPTS_MAX: u32 = 64;

/// The store as one session changes it.
pub struct IntentStore<C: Cells + ?Sized> {
    requests: Requests<C>,
    session: SessionId,
    pool: Pool,
    fenced: AtomicBool,
    stopped: Stopped,
    counts: Counts,
}

impl<C: Cells + ?Sized> IntentStore<C> {
    /// The store for `session`, which must have seen itself become live after [`create_slots`] made its slots.
    pub fn new(cells: Arc<C>, clock: Arc<dyn Clock>, session: SessionId, slots: Vec<OwnSlot>) -> Self {
        Self {
            requests: Requests::new(cells, clock, session.0),
            session,
            pool: Pool::new(slots),
            fenced: AtomicBool::new(false),
            stopped: Stopped::default(),
            counts: Counts::default(),
        }
    }

    /// Begins no further commit: the session has learnt that it was declared dead. That is courtesy; what makes it safe is
    /// that its slots are sealed.
    pub fn fence(&self) {
        self.fenced.store(true, Ordering::Relaxed);
    }

    /// The version of its one slot, if nothing is under way in it and no mark of it is left.
    fn unused_slot(&self) -> Option<Version> {
        self.pool.unused()
    }

    fn refuse(&self) -> Result<(), StoreError> {
        self.stopped.refuse()?;
        if self.fenced.load(Ordering::Relaxed) { Err(StoreError::Fenced) } else { Ok(()) }
    }

    fn try_commit(&self, commit: &Commit) -> Result<Version, CommitError> {
        let mut taken = self.pool.take(&self.requests);
        let mut round = 0;
        loop {
            self.refuse()?;
            match self.attempt(&mut taken.own, commit)? {
                Attempt::Committed(version) => return Ok(version),
                Attempt::Hindered(key) if round >= ATTEMPTS_MAX => return Err(CommitError::Conflict(key)),
                Attempt::Hindered(_) => self.requests.pause(round),
            }
            round += 1;
        }
    }
}

impl<C: Cells + ?Sized> Reader for IntentStore<C> {
    fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        self.counts.got(1);
        self.see_one(key)
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Stored>>, StoreError> {
        self.counts.got(keys.len());
        Ok(self.see(keys)?.into_iter().map(|seen| seen.current).collect())
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        self.counts.scanned();
        self.see_page(scan)
    }
}

impl<C: Cells + ?Sized> Store for IntentStore<C> {
    /// The version returned is the greatest that a written document got: each has its own.
    fn commit(&self, commit: &Commit) -> Result<Version, CommitError> {
        let outcome = self.try_commit(commit);
        self.counts.committed(commit, &outcome);
        if matches!(outcome, Err(CommitError::Store(StoreError::Fenced))) {
            self.fence();
        }
        outcome
    }

    /// A change has been made when the engine has answered; that it survives a power cut then is the engine's part.
    fn sync(&self) -> Result<(), StoreError> {
        self.refuse()?;
        self.counts.synced();
        Ok(())
    }

    fn stop(&self, cause: &str) {
        self.stopped.stop(cause);
    }

    fn capabilities(&self) -> Capabilities {
        // A session is fenced by sealing its slots, and cells tell nobody of their changes.
        Capabilities { snapshots: false, one_version: false, shared: false, notices: false }
    }

    fn snapshot(&self) -> Box<dyn Reader + '_> {
        Box::new(self)
    }

    fn counters(&self) -> StoreCounters {
        self.counts.now()
    }
}
