//! Intents: a store that changes several documents at one instant, made out of one that changes one at a time.
//!
//! Owns the intent documents (slots) of sessions and the marks that they leave at documents. Imports `document`, the store's
//! port, the cells' port, `ambient`, `later` and `rules`. docs/intents.md has the protocol and why it is right.
//!
//! What is hard, and where it is solved:
//! 1. What a mark means at this moment, and what may become of it and of its intent: [`decide`], pure functions.
//! 2. A request may be lost, late, delivered twice, or lose its answer: `requests`.
//! 3. A commit is checked, marked, decided and cleaned up, and may be overtaken or aborted at each step: `attempt`.
//! 4. Where everything is known and a use is begun already, all that is one request: `at_once`.
//! 5. Readers see each document at one instant, and of an intent all or nothing within a page: `read`.
//! 6. What the dead have begun is decided once and for all: [`settle`].
//! 7. What was read already is not read again: [`known`].
//! 8. Many threads of a session share a few slots: `slots`. Many sessions of a process share a store: [`shared`].

mod at_once;
mod attempt;
pub mod decide;
mod known;
mod plan;
mod read;
mod requests;
mod settle;
pub mod shared;
mod slots;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use self::at_once::open_ahead;
use self::attempt::{Attempt, look_after, take_back};
use self::known::Known;
use self::requests::{Outcome, Requests};
use self::slots::{Pool, Taken};
use super::cells::{CellKey, Cells, Change, StoredCell};
use super::{
    Capabilities, Commit, CommitError, Granting, Reader, Scan, ScanItem, Store, StoreCounters, StoreError,
};
use crate::ambient::Clock;
use crate::document::{Key, SessionId, Stored, Version};
use crate::later::{Inline, Later, UnderWay};
use crate::store::counts::Counts;
use crate::store::stopped::Stopped;

pub use settle::{Settled, create_slots, is_settled, settle};
pub use slots::OwnSlot;

/// How often a commit starts over that others keep from marking what it writes. With the pauses that is some fifteen
/// seconds; each time somebody else has got on.
const ATTEMPTS_MAX: u32 = 64;

/// How the use of a slot is ended.
type End<C> = fn(&Requests<C>, SessionId, &mut OwnSlot) -> Result<(), StoreError>;

/// The store as one session changes it.
pub struct IntentStore<C: Cells + ?Sized> {
    requests: Arc<Requests<C>>,
    session: SessionId,
    pool: Arc<Pool>,
    known: Arc<Known>,
    /// Where marks are taken away.
    later: Arc<dyn Later>,
    /// Whether the next use of a slot is begun there, too.
    opens_ahead: bool,
    /// The documents whose marks are being taken away while their commit has returned already. A commit that is to mark
    /// one of them waits for that, or one of the two would have to start over.
    cleaning: Arc<UnderWay<Key>>,
    fenced: AtomicBool,
    stopped: Stopped,
    counts: Counts,
}

impl<C: Cells + ?Sized + 'static> IntentStore<C> {
    /// The store for `session`, which must have seen itself become live after [`create_slots`] made its slots.
    pub fn new(cells: Arc<C>, clock: Arc<dyn Clock>, session: SessionId, slots: Vec<OwnSlot>) -> Self {
        Self {
            requests: Arc::new(Requests::new(cells, clock, session.0)),
            session,
            pool: Arc::new(Pool::new(slots)),
            known: Known::new(),
            later: Arc::new(Inline),
            opens_ahead: false,
            cleaning: Arc::default(),
            fenced: AtomicBool::new(false),
            stopped: Stopped::default(),
            counts: Counts::default(),
        }
    }

    /// The same store, whose commits return when they are decided: their marks are taken away there, and then the next use
    /// of the slot is begun.
    pub fn cleaning_up(self, later: Arc<dyn Later>) -> Self {
        Self { later, opens_ahead: true, ..self }
    }

    /// The same store, which remembers cells together with others.
    fn remembering(self, known: &Arc<Known>) -> Self {
        Self { known: Arc::clone(known), ..self }
    }

    /// Begins no further commit: the session has learnt that it was declared dead. That is courtesy; what makes it safe is
    /// that its slots are sealed.
    pub fn fence(&self) {
        self.fenced.store(true, Ordering::Relaxed);
    }

    /// The version of its one slot, if nothing is under way in it, and this session has taken every mark of it away.
    fn unused_slot(&self) -> Option<Version> {
        self.pool.unused()
    }

    fn refuse(&self) -> Result<(), StoreError> {
        self.stopped.refuse()?;
        if self.fenced.load(Ordering::Relaxed) { Err(StoreError::Fenced) } else { Ok(()) }
    }

    fn try_commit(
        &self,
        commit: &Commit,
        mut granting: Option<Granting<'_>>,
    ) -> Result<Option<Version>, CommitError> {
        let mut taken = self.pool.take(&self.requests);
        let mut round = 0;
        loop {
            self.refuse()?;
            match self.attempt(&mut taken.own, commit, granting.take(), round == 0) {
                Ok(Attempt::Committed { version, marks }) => {
                    self.clean_up(taken, marks);
                    return Ok(Some(version));
                }
                Ok(Attempt::Refused { marked }) => {
                    self.end_later(taken, if marked { look_after } else { take_back });
                    return Ok(None);
                }
                Ok(Attempt::Hindered(key)) if round >= ATTEMPTS_MAX => {
                    return Err(CommitError::Conflict(key));
                }
                Ok(Attempt::Hindered(_)) => self.requests.pause(round),
                Err(CommitError::Conflict(key)) => {
                    self.end_later(taken, look_after);
                    return Err(CommitError::Conflict(key));
                }
                Err(other) => return Err(other),
            }
            round += 1;
        }
    }

    /// Takes the marks of a committed use away. If that fails the slot stays in doubt, and it is done before its next use;
    /// until then readers ask the slot.
    fn clean_up(&self, mut taken: Taken, marks: Vec<Change>) {
        if marks.is_empty() {
            return;
        }
        let keys = marks.iter().filter_map(|change| match &change.key {
            CellKey::Document(key) => Some(key.clone()),
            _ => None,
        });
        let being_cleaned = self.cleaning.begin(keys.collect());
        let (requests, known) = (Arc::clone(&self.requests), Arc::clone(&self.known));
        let (session, opens_ahead) = (self.session, self.opens_ahead);
        self.later.run(Box::new(move || {
            let now = requests.now();
            let outcomes = requests.set_each(&marks);
            // Lost: somebody else has written over it, which may be more than is ever acknowledged (docs/intents.md, old
            // reads). So the slot speaks for its marks until there is something else to do.
            taken.own.in_doubt = outcomes.iter().any(Result::is_err);
            taken.own.overwritten = outcomes.iter().any(|outcome| matches!(outcome, Ok(Outcome::Lost(_))));
            for (mark, outcome) in marks.into_iter().zip(outcomes) {
                let CellKey::Document(key) = mark.key else { continue };
                match (mark.cell, outcome) {
                    (Some(cell), Ok(Outcome::Done(version))) => {
                        known.saw(&key, Some(&StoredCell { version, cell: cell.into() }), now);
                    }
                    _ => known.forget([&key]),
                }
            }
            drop(being_cleaned);
            if opens_ahead && !taken.own.in_doubt && !taken.own.overwritten {
                open_ahead(&requests, session, &mut taken.own);
            }
            drop(taken);
        }));
    }

    /// Ends a use that has changed nothing and is not tried again.
    fn end_later(&self, mut taken: Taken, end: End<C>) {
        if !taken.own.in_doubt {
            return;
        }
        let (requests, session) = (Arc::clone(&self.requests), self.session);
        self.later.run(Box::new(move || {
            // Whatever fails: the slot stays in doubt, and the next use finds out.
            drop(end(&requests, session, &mut taken.own));
        }));
    }

    fn make(&self, commit: &Commit, granting: Option<Granting<'_>>) -> Result<Option<Version>, CommitError> {
        let outcome = self.try_commit(commit, granting);
        self.counts.committed_if_granted(commit, &outcome);
        if matches!(outcome, Err(CommitError::Store(StoreError::Fenced))) {
            self.fence();
        }
        outcome
    }
}

impl<C: Cells + ?Sized + 'static> Reader for IntentStore<C> {
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

    fn scan_keys(&self, scan: &Scan) -> Result<Vec<Key>, StoreError> {
        self.counts.scanned();
        self.see_keys(scan)
    }
}

impl<C: Cells + ?Sized + 'static> Store for IntentStore<C> {
    /// The version returned is the greatest that a written document got: each has its own.
    fn commit(&self, commit: &Commit) -> Result<Version, CommitError> {
        Ok(self.make(commit, None)?.unwrap_or_default())
    }

    /// It is asked while the commit reads what it checks, and what it changes first goes with the request that begins the
    /// intent. Nothing is decided before the answer, and nothing marked but where [`at_once`] says so.
    fn commit_once(&self, commit: &Commit, granting: Granting<'_>) -> Result<Option<Version>, CommitError> {
        self.make(commit, Some(granting))
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
