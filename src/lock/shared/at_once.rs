//! Taking and releasing a whole lock set in one request: at one instant where the store can, else each by itself.
//!
//! Imports the documents of the layer and `store::cells`. It is a short cut and no more: whenever a lock is not free, or
//! others change one of the documents at the same time, the locks are taken and released one after the other.
//!
//! What is hard: to read the documents first would double the price. Lock documents are there only while somebody holds
//! or waits, so what is asked for is probably absent. That is tried first, unless the last try has met others; the commit
//! checks it. A set that is taken at once waits for nobody, so it needs no order, and cannot be part of a circle. Where each
//! is taken by itself some may be and others not, and a request whose answer was lost may take one later. So those are let
//! go of, and the operation ends; another one takes its place, which takes them in order.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::claims::{in_cell, is_own, now_ns, take_out};
use super::guard::Held;
use super::record::{Removed, ask, is_awaited, remove};
use super::{Refusal, SharedGuard, SharedLocks, Wanted};
use crate::lock::OpId;
use crate::store::cells::{Along, CasError, Cell, CellKey, Change, StoredCell};
use crate::store::{Commit, Durability, StoreError};

/// How often it is tried before the locks are taken or released one after the other. A try fails because another one has
/// succeeded.
const TRIES: u32 = 4;

/// What came of trying.
pub(super) enum AtOnce {
    /// All locks are held.
    Taken,
    /// None is, for sure. What was there at last, if it was read.
    No(Option<Vec<Option<StoredCell>>>),
    /// No answer came: they may be held, or may come to be.
    Unknown,
    /// Some were taken, or may come to be, in the name of this operation. It must end before any of them is waited for, or
    /// one that is taken too late would be held out of order; when it has ended what is left of it are ghosts.
    Partly,
}

impl SharedLocks {
    /// Takes all locks of the set for the operation whose guard this is, if they are free. What the session keeps of them
    /// is used, until the guard is dropped if they are taken and until this returns if not: who waits uses only what he
    /// has come to. `along`: a request that may take the changes with it. `durability` is for locks that nobody else has
    /// or wants: whoever changes a document that is there waits for the disk, and so for all that was written before.
    pub(super) fn take_at_once(
        &self,
        wanted: &[Wanted],
        purpose: &Arc<str>,
        guard: &mut SharedGuard,
        along: Option<Along<'_>>,
        durability: Durability,
    ) -> Result<AtOnce, Refusal> {
        let mut uses = Vec::new();
        let documents: Vec<&Wanted> =
            wanted.iter().filter(|wanted| !self.begin_use(wanted, &mut uses)).collect();
        let taken = if self.store.cells.changes_several() {
            self.take_documents_at_once(&documents, purpose, guard, durability)
        } else {
            self.take_each(&documents, purpose, guard, along)
        };
        match taken {
            Ok(AtOnce::Taken) => guard.uses = uses,
            _ => self.end_uses(&mut uses),
        }
        // What was found is not of all documents then.
        let is_all = documents.len() == wanted.len();
        Ok(match taken? {
            AtOnce::No(found) => AtOnce::No(found.filter(|_| is_all)),
            other => other,
        })
    }

    fn take_documents_at_once(
        &self,
        documents: &[&Wanted],
        purpose: &Arc<str>,
        guard: &mut SharedGuard,
        durability: Durability,
    ) -> Result<AtOnce, Refusal> {
        if documents.is_empty() {
            return Ok(AtOnce::Taken);
        }
        let keys: Vec<CellKey> = documents.iter().map(|wanted| wanted.key.clone()).collect();
        let mut known = (!self.met_others.load(Relaxed)).then(|| vec![None; keys.len()]);
        let mut found = None;
        for _ in 0..TRIES {
            let (cells, durability) = match known.take() {
                Some(guess) => (guess, durability),
                None => {
                    let read = self.store.insist(|| self.store.cells.read_many(&keys))?;
                    self.met_others.store(read.iter().any(Option::is_some), Relaxed);
                    found = Some(read.clone());
                    (read, Durability::Full)
                }
            };
            let Some(changes) = self.with_claims(documents, cells, purpose, guard.op())? else { break };
            match self.store.cells.cas_all(&changes, durability) {
                Ok(version) => {
                    guard.durability = durability;
                    guard.held.extend(changes.into_iter().zip(documents).map(|(change, wanted)| {
                        let known = change.cell.map(|cell| StoredCell { version, cell: cell.into() });
                        Held::new(wanted, known)
                    }));
                    return Ok(AtOnce::Taken);
                }
                Err(CasError::Conflict) => {
                    self.met_others.store(true, Relaxed);
                    found = None;
                }
                // Refused for good or for now: one lock after the other says the same, or waits.
                Err(CasError::Store(_)) => break,
                Err(CasError::Unknown(cause)) => {
                    guard.durability = durability;
                    log::debug!("the locks of {} were asked for, and no answer came: {cause}", guard.op());
                    return Ok(AtOnce::Unknown);
                }
            }
        }
        Ok(AtOnce::No(found))
    }

    /// The same where each is taken by itself: all of them, or those that were taken are given back.
    fn take_each(
        &self,
        documents: &[&Wanted],
        purpose: &Arc<str>,
        guard: &mut SharedGuard,
        along: Option<Along<'_>>,
    ) -> Result<AtOnce, Refusal> {
        // Alone it is no better than without this, unless it is taken along.
        let fewest = if along.is_some() { 1 } else { 2 };
        if documents.len() < fewest {
            return Ok(AtOnce::No(None));
        }
        let keys: Vec<CellKey> = documents.iter().map(|wanted| wanted.key.clone()).collect();
        let mut found = None;
        let cells = if self.met_others.load(Relaxed) {
            let read = self.store.insist(|| self.store.cells.read_many(&keys))?;
            self.met_others.store(read.iter().any(Option::is_some), Relaxed);
            found = Some(read.clone());
            read
        } else {
            vec![None; keys.len()]
        };
        let Some(changes) = self.with_claims(documents, cells, purpose, guard.op())? else {
            return Ok(AtOnce::No(found));
        };
        let answers = match along {
            Some(along) => along(&changes),
            None => self.store.cells.cas_each(&changes),
        };
        let all = answers.iter().all(Result::is_ok);
        for ((change, wanted), answer) in changes.into_iter().zip(documents).zip(answers) {
            let known = match (answer, change.cell) {
                (Err(CasError::Conflict), _) => continue,
                (Ok(version), Some(cell)) => Some(StoredCell { version, cell: cell.into() }),
                // Nobody knows, or it is refused for now.
                _ => None,
            };
            guard.held.push(Held::new(wanted, known));
        }
        if all {
            return Ok(AtOnce::Taken);
        }
        self.met_others.store(true, Relaxed);
        Ok(AtOnce::Partly)
    }

    /// Releases each of these locks by itself, from the leaf to the root. A store that is away is waited for once: what is
    /// left are ghosts, which go when it is back.
    pub(super) fn release_each(&self, mut held: Vec<Held>, op: OpId) {
        held.reverse();
        let cells: Vec<_> = held.iter().map(|held| held.known.clone()).collect();
        let changes = self.without_claims(&held, cells, op).unwrap_or_default();
        // Where several change at once that was tried, and others were first.
        let is_tried = changes.len() < 2 || self.store.cells.changes_several();
        let answers = if is_tried { Vec::new() } else { self.store.cells.cas_each(&changes) };
        let gone: Vec<&CellKey> =
            changes.iter().zip(&answers).filter(|(_, answer)| answer.is_ok()).map(|(c, _)| &c.key).collect();
        for mut held in held.into_iter().filter(|held| !gone.contains(&&held.key)) {
            let by = held.claimed_by(op);
            let known = held.known.take().filter(|_| answers.is_empty());
            let Err(error) = take_out(&self.store, &held.key, known, |claim| is_own(claim, by)) else {
                continue;
            };
            let key = &held.key;
            if matches!(error, StoreError::Engine { .. } | StoreError::Unknown(_)) {
                log::warn!(
                    "{key:?}, and what {by} has above, was not released: {error}; others will remove the claims"
                );
                return;
            }
            log::warn!("{key:?} was not released by {by}: {error}; others will remove the claim");
        }
    }

    /// What the documents become with all locks held; none if one is not free.
    fn with_claims(
        &self,
        documents: &[&Wanted],
        cells: Vec<Option<StoredCell>>,
        purpose: &Arc<str>,
        op: OpId,
    ) -> Result<Option<Vec<Change>>, Refusal> {
        let mut changes = Vec::with_capacity(documents.len());
        for (wanted, found) in documents.iter().zip(cells) {
            let Wanted { key, entry, .. } = wanted;
            let record = in_cell(key, found.as_ref())?;
            self.check_path(key, entry, record)?;
            let asked = ask(
                record,
                &entry.id,
                &self.claim(wanted.claimed_by(op), entry.mode, &wanted.purpose(purpose)),
            );
            match asked.write.filter(|_| asked.holds) {
                Some(next) => {
                    let awaited = is_awaited(record) || is_awaited(Some(&next));
                    changes.push(Change {
                        key: key.clone(),
                        expected: found.map(|found| found.version),
                        cell: Some(Cell::Lock(next)),
                        awaited,
                    });
                }
                None => return Ok(None),
            }
        }
        Ok(Some(changes))
    }

    /// What the documents become without the claims of an operation, those that have any.
    fn without_claims(
        &self,
        held: &[Held],
        cells: Vec<Option<StoredCell>>,
        op: OpId,
    ) -> Result<Vec<Change>, StoreError> {
        let mut changes = Vec::with_capacity(held.len());
        for (held, found) in held.iter().zip(cells) {
            let (key, by) = (&held.key, held.claimed_by(op));
            let (Some(record), Some(found)) = (in_cell(key, found.as_ref())?, &found) else { continue };
            let cell = match remove(record, now_ns(&*self.store.clock), |claim| is_own(claim, by)) {
                Removed::Nothing => continue,
                Removed::All => None,
                Removed::Some(record) => Some(Cell::Lock(record)),
            };
            let awaited = is_awaited(Some(record));
            changes.push(Change { key: key.clone(), expected: Some(found.version), cell, awaited });
        }
        Ok(changes)
    }

    /// Releases all locks of an operation. False if that is not possible at once.
    ///
    /// # Errors
    /// The store's; nobody knows then whether they are released.
    pub(super) fn release_at_once(&self, held: &[Held], op: OpId) -> Result<bool, StoreError> {
        if held.len() < 2 || !self.store.cells.changes_several() {
            return Ok(false);
        }
        let keys: Vec<CellKey> = held.iter().map(|held| held.key.clone()).collect();
        let mut known = as_known(held);
        for _ in 0..TRIES {
            let cells = match known.take() {
                Some(known) => known,
                None => self.store.insist(|| self.store.cells.read_many(&keys))?,
            };
            match self.store.cells.cas_all(&self.without_claims(held, cells, op)?, Durability::Full) {
                Ok(_) => return Ok(true),
                Err(CasError::Conflict) => {}
                Err(CasError::Store(error)) => return Err(error),
                Err(CasError::Unknown(cause)) => return Err(StoreError::Unknown(cause)),
            }
        }
        Ok(false)
    }

    /// The release as a part of another commit, as far as is known; none if others are likely to have changed a document.
    /// Of locks that a crash may have lost always, since the commit learns of it so.
    pub(super) fn release_along(&self, held: &[Held], op: OpId, durability: Durability) -> Option<Commit> {
        let is_hopeful = durability == Durability::Delayed || !self.met_others.load(Relaxed);
        if held.is_empty() || !is_hopeful {
            return None;
        }
        self.store.cells.as_commit(&self.without_claims(held, as_known(held)?, op).ok()?)
    }
}

/// The documents as the operation has left them, if it knows all.
fn as_known(held: &[Held]) -> Option<Vec<Option<StoredCell>>> {
    held.iter().map(|held| held.known.clone().map(Some)).collect()
}
