//! The judge of locks: who believes to hold what, and whether the lock documents bear it out.
//!
//! Shares no decision with what it judges. It demands:
//! 1. No two operations hold conflicting locks, from the return of acquire to the begin of the release, unless the session
//!    of one of them is over: fenced, with all its intents sealed. From then on nothing that it does has an effect.
//! 2. A lock document never has an exclusive holder beside another one, nor the same operation twice.
//! 3. Nobody takes a claim away whose operation still holds it, unless its session is over.
//! 4. Who waits is not overtaken: a lock is granted to nobody who came later than somebody who still waits for it.
//! 5. What a session claimed when it was declared dead is gone when it is called recovered.
//! 6. Nothing that somebody depends on moves: while an operation has checked its paths and not yet let go of its locks, no
//!    other one takes effect that moves or replaces one of these paths or what is above it. Stated by paths alone, whatever
//!    locks there are.

use std::collections::{BTreeMap, BTreeSet};

use lockwood::document::{Key, LockClaim, LockMode, LockRecord, SessionId, SessionState, SlotState};
use lockwood::lock::{LockId, LockSet, Mode, OpId, SharedGuard};
use lockwood::store::cells::memory::MemoryCells;
use lockwood::store::cells::{Cell, CellKey, Cells, Listed};

use super::life::ID_BYTES_MAX;
use super::truth::Truth;
use crate::sim::{Change, Count, Counts};

/// Who holds what.
#[derive(Default)]
pub(crate) struct Claims {
    held: BTreeMap<OpId, BTreeMap<LockId, Mode>>,
    /// In whose name each document has the claim that an operation relies on.
    claimed: BTreeMap<OpId, BTreeMap<CellKey, OpId>>,
    /// Of operations that have checked their paths: these, and the number of the actor's operation.
    standing: BTreeMap<OpId, Vec<LockId>>,
    /// What the fenced claimed when they were fenced, as far as it is not taken away yet.
    left: BTreeMap<SessionId, BTreeSet<(CellKey, OpId)>>,
    grants: u64,
    waits: u64,
    kept: u64,
}

fn op_of(claim: &LockClaim) -> OpId {
    OpId { session: claim.session, number: claim.operation }
}

/// Whoever holds the lock newly came before everybody who waited and still waits.
fn nobody_is_overtaken(before: &LockRecord, after: &LockRecord) -> Result<(), String> {
    for granted in
        after.holders.iter().map(op_of).filter(|op| !before.holders.iter().any(|c| op_of(c) == *op))
    {
        let mut earlier = before.waiters.iter().map(op_of).take_while(|op| *op != granted);
        let overtaken = earlier.find(|op| after.waiters.iter().any(|claim| op_of(claim) == *op));
        if let Some(overtaken) = overtaken {
            return Err(format!("{granted} overtakes {overtaken}: {before:?} becomes {after:?}"));
        }
    }
    Ok(())
}

fn document(id: &LockId) -> CellKey {
    CellKey::Lock(id.document_id(ID_BYTES_MAX).into())
}

/// Whether nothing of a session can take effect any more.
pub(crate) fn is_over(session: SessionId, truth: &Truth, cells: &MemoryCells) -> bool {
    match truth.session(session) {
        _ if truth.was_settled(session) => true,
        None | Some(SessionState::Recovered) => true,
        Some(SessionState::Joining | SessionState::Live) => false,
        Some(SessionState::Fenced) => {
            let slots = cells.list(Listed::Slots).unwrap_or_default();
            let mut slots = slots.iter().filter_map(|(key, stored)| Some((key, stored.as_ref().ok()?)));
            slots.all(|(key, stored)| match (key, &*stored.cell) {
                (CellKey::Slot(of, _), Cell::Slot(slot)) => *of != session || slot.state == SlotState::Sealed,
                _ => true,
            })
        }
    }
}

impl Claims {
    /// Acquire has returned.
    pub(crate) fn granted(
        &mut self,
        guard: &SharedGuard,
        set: &LockSet,
        truth: &Truth,
        cells: &MemoryCells,
    ) -> Result<(), String> {
        self.grants += 1;
        let op = guard.op();
        let claimed: BTreeMap<CellKey, OpId> =
            guard.claims().map(|(key, claimant)| (key.clone(), claimant)).collect();
        self.kept += claimed.values().filter(|claimant| **claimant != op).count() as u64;
        if is_over(op.session, truth, cells) {
            return Ok(());
        }
        let wanted: BTreeMap<LockId, Mode> =
            set.entries().iter().map(|entry| (entry.id.clone(), entry.mode)).collect();
        for (other, held) in &self.held {
            let conflict = wanted.iter().find(|(id, mode)| {
                held.get(*id)
                    .is_some_and(|held| **mode == LockMode::Exclusive || *held == LockMode::Exclusive)
            });
            if let Some((id, mode)) = conflict
                && !is_over(other.session, truth, cells)
            {
                return Err(format!("{op} is granted {id} {mode}, which {other} holds {:?}", held.get(id)));
            }
        }
        for (id, mode) in &wanted {
            let stored = cells.read(&document(id)).map_err(|error| error.to_string())?;
            let claimant = claimed.get(&document(id)).filter(|claimant| claimant.session == op.session);
            let is_holder = |record: &LockRecord| {
                let mine = |claim: &&LockClaim| claimant == Some(&op_of(claim));
                record.holders.iter().find(mine).is_some_and(|claim| claim.mode >= *mode)
            };
            let holds = matches!(stored.as_ref().map(|stored| &*stored.cell), Some(Cell::Lock(lock)) if is_holder(lock));
            if !holds {
                return Err(format!("{op} is granted {id} {mode}; its document says {stored:?}"));
            }
        }
        self.held.insert(op, wanted);
        self.claimed.insert(op, claimed);
        Ok(())
    }

    /// An operation has checked, under its locks, that these are its paths.
    pub(crate) fn stands_on(&mut self, op: OpId, paths: Vec<LockId>) {
        self.standing.insert(op, paths);
    }

    /// An operation is about to release its locks, or has none any more.
    pub(crate) fn releases(&mut self, op: OpId) {
        self.held.remove(&op);
        self.claimed.remove(&op);
        self.standing.remove(&op);
    }

    /// The change of an operation takes effect.
    pub(crate) fn moves(&self, op: OpId, truth: &Truth, cells: &MemoryCells) -> Result<(), String> {
        let Some(moved) = self.standing.get(&op) else { return Ok(()) };
        for (other, paths) in self.standing.iter().filter(|(other, _)| **other != op) {
            let under = |path: &LockId| moved.iter().any(|moved| moved == path || moved.is_ancestor_of(path));
            if let Some(path) = paths.iter().find(|path| under(path))
                && !is_over(other.session, truth, cells)
            {
                return Err(format!("{op} moves {moved:?} while {other} depends on {path}"));
            }
        }
        Ok(())
    }

    /// Looks at the change of a cell.
    pub(crate) fn changed(
        &mut self,
        change: &Change<'_>,
        truth: &Truth,
        cells: &MemoryCells,
    ) -> Result<(), String> {
        if change.before.is_some_and(|before| Some(&*before.cell) == change.request.cell.as_ref()) {
            return Ok(()); // Written once more on top of itself, since nobody was answered.
        }
        if let (CellKey::Document(Key::Session(session)), Some(_)) = (&change.request.key, change.before) {
            return self.session_changed(*session, truth, cells);
        }
        let CellKey::Lock(id) = &change.request.key else { return Ok(()) };
        let record = |cell: Option<&Cell>| match cell {
            Some(Cell::Lock(record)) => Some(record.clone()),
            _ => None,
        };
        let before = record(change.before.map(|stored| &*stored.cell));
        let after = record(change.request.cell.as_ref());
        let ops = |claims: &[LockClaim]| -> BTreeSet<OpId> { claims.iter().map(op_of).collect() };
        let holders = after.as_ref().map(|record| ops(&record.holders)).unwrap_or_default();
        if let Some(record) = &after {
            let exclusive = record.holders.iter().any(|claim| claim.mode == LockMode::Exclusive);
            let all = record.holders.len() + record.waiters.len();
            let waiters = ops(&record.waiters);
            if (exclusive && record.holders.len() > 1) || holders.union(&waiters).count() != all {
                return Err(format!("lock {id} becomes {record:?}"));
            }
            let waited = before.as_ref().map_or(0, |before| before.waiters.len());
            self.waits += u64::from(record.waiters.len() > waited);
            if let Some(before) = &before {
                nobody_is_overtaken(before, record)?;
            }
        }
        let all = |record: &LockRecord| -> BTreeSet<OpId> {
            record.holders.iter().chain(&record.waiters).map(op_of).collect()
        };
        let stay = after.as_ref().map(all).unwrap_or_default();
        for left in self.left.values_mut() {
            left.retain(|(key, op)| *key != change.request.key || stay.contains(op));
        }
        for op in before.map(|record| ops(&record.holders)).unwrap_or_default().difference(&holders) {
            let holds = self.claimed.values().any(|claimed| claimed.get(&change.request.key) == Some(op));
            if holds && !is_over(op.session, truth, cells) {
                return Err(format!("lock {id} is taken from {op}, which holds it"));
            }
        }
        Ok(())
    }

    fn session_changed(
        &mut self,
        session: SessionId,
        truth: &Truth,
        cells: &MemoryCells,
    ) -> Result<(), String> {
        match truth.session(session) {
            // One that a late request made again: what it claims is a ghost already.
            Some(SessionState::Fenced) if truth.was_settled(session) => Ok(()),
            Some(SessionState::Fenced) => {
                let locks = cells.list(Listed::Locks).map_err(|error| error.to_string())?;
                let locks = locks.iter().filter_map(|(key, stored)| Some((key, stored.as_ref().ok()?)));
                let left = locks.flat_map(|(key, stored)| match &*stored.cell {
                    Cell::Lock(record) => {
                        let all = record.holders.iter().chain(&record.waiters);
                        all.map(|claim| (key.clone(), op_of(claim))).collect()
                    }
                    _ => Vec::new(),
                });
                self.left.insert(session, left.filter(|(_, op)| op.session == session).collect());
                Ok(())
            }
            Some(SessionState::Recovered) => match self.left.remove(&session) {
                Some(left) if !left.is_empty() => {
                    Err(format!("session {session} is recovered and has {left:?}"))
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    pub(crate) fn count(&self, counts: &mut Counts) {
        counts.add_many(Count::Grants, self.grants);
        counts.add_many(Count::Waits, self.waits);
        counts.add_many(Count::KeptUses, self.kept);
    }
}
