//! How the slots of a session begin and end: made before it lives, settled once it has been declared dead.
//!
//! Owns [`create_slots`] and [`settle`], and how marks are cleaned up, which the living do in the same way. Imports
//! `document`, the cells' port, `ambient` and `rules`.
//!
//! What is hard: any number of recoverers settle one session at once, any of them may die at any step, and the session may
//! still be running. Each step is a compare-and-set from what was read, so only one of two takes effect; and nothing is
//! sealed before its marks are gone, so whoever finds a sealed slot only makes sure that it stays so. What is read may be
//! older than what was done, and that something is not there may be no more than that: it is concluded from writes alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::decide::{self, Settling};
use super::requests::{Outcome, Requests, TRIES};
use super::slots::OwnSlot;
use crate::ambient::Clock;
use crate::document::{IntentId, Key, Marked, SessionId, Slot, SlotState, Version};
use crate::rules::{self, Rule};
use crate::store::StoreError;
use crate::store::cells::{Cell, CellKey, Cells, Change, MarkedDocument, StoredCell};

/// How often a slot is looked at again because it has changed: its session may go on using it until it is sealed.
const LOOKS_MAX: u32 = 1000;

/// Makes the slots of a session that is joining. It may use them only once it has itself seen its own document go from
/// joining to live: whoever declares it dead before that may have found no slot to seal.
///
/// # Errors
/// [`StoreError::Fenced`] if somebody has sealed one; else as the engine fails.
pub fn create_slots<C: Cells + ?Sized>(
    cells: &Arc<C>,
    clock: &Arc<dyn Clock>,
    session: SessionId,
    slots: u16,
) -> Result<Vec<OwnSlot>, StoreError> {
    let requests = Requests::new(cells.clone(), clock.clone(), session.0);
    let make = |index| change(CellKey::Slot(session, index), None, Some(Cell::Slot(decide::free())));
    let changes: Vec<Change> = (0..slots).map(make).collect();
    let own = |(index, outcome)| match outcome? {
        Outcome::Done(version) => Ok(OwnSlot::new(index, version)),
        Outcome::Lost(_) => Err(StoreError::Fenced),
    };
    (0..slots).zip(requests.set_each(&changes)).map(own).collect()
}

/// What was done about the intents of a dead session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Settled {
    /// Commits that had been decided, and were completed.
    pub rolled_forward: u32,
    /// Commits that had not, and were undone.
    pub aborted: u32,
}

impl std::ops::AddAssign for Settled {
    fn add_assign(&mut self, more: Self) {
        self.rolled_forward += more.rolled_forward;
        self.aborted += more.aborted;
    }
}

/// Settles all that a dead session has begun: what it has committed is completed, all else is aborted, and its slots are
/// sealed. After that nothing of this session can ever be committed. To be called only once the session is fenced. To do it
/// again, or several times at once, changes nothing more. Returns what this call did; another at the same time may have
/// done the same.
///
/// # Errors
/// As the engine fails; then it must be called again.
pub fn settle<C: Cells + ?Sized>(
    cells: &Arc<C>,
    clock: &Arc<dyn Clock>,
    session: SessionId,
    slots: u16,
) -> Result<Settled, StoreError> {
    let requests = Requests::new(cells.clone(), clock.clone(), session.0);
    let mut done = vec![Settled::default(); usize::from(slots)];
    let mut open: Vec<u16> = (0..slots).collect();
    for _ in 0..LOOKS_MAX {
        open = settle_further(&requests, session, &open, &mut done)?;
        if open.is_empty() {
            return Ok(Settled {
                rolled_forward: done.iter().map(|one| one.rolled_forward).sum(),
                aborted: done.iter().map(|one| one.aborted).sum(),
            });
        }
    }
    Err(StoreError::Engine { what: format!("settling {session}"), source: "its slots keep changing".into() })
}

/// Takes each of the slots one step on, all at once, and returns those that have to be looked at again.
///
/// One that is not there is made and sealed, as if it had been free: it may be that the session was declared dead before it
/// made it, or that the server that was read does not have it.
fn settle_further<C: Cells + ?Sized>(
    requests: &Requests<C>,
    session: SessionId,
    open: &[u16],
    done: &mut [Settled],
) -> Result<Vec<u16>, StoreError> {
    let keys: Vec<CellKey> = open.iter().map(|index| CellKey::Slot(session, *index)).collect();
    let absent = || rules::holds(Rule::AbsenceMadeCertain).then(|| (decide::free(), None));
    let found = keys.iter().zip(requests.read_many(&keys)?).map(|(key, stored)| match stored {
        Some(stored) => slot_of(key, &stored).map(|(slot, version)| Some((slot, Some(version)))),
        None => Ok(absent()),
    });
    let found: Vec<Option<(Slot, Option<Version>)>> = found.collect::<Result<_, _>>()?;
    let mut decided = Vec::new();
    for (index, found) in open.iter().zip(&found) {
        let Some((slot, _)) = found else { continue };
        let done = &mut done[usize::from(*index)];
        match decide::settling(slot) {
            Settling::RollForward if rules::holds(Rule::CommittedIntentsRolledForward) => {
                done.rolled_forward = 1;
            }
            Settling::RollBack => done.aborted = 1,
            _ => continue,
        }
        decided.push((IntentId { session, slot: *index, number: slot.number }, slot));
    }
    clean(requests, &decided)?;
    let (mut changes, mut changed) = (Vec::new(), Vec::new());
    let mut again = Vec::new();
    for ((index, key), found) in open.iter().zip(keys).zip(&found) {
        let Some((slot, version)) = found else { continue };
        let next = match decide::settling(slot) {
            // Read, and maybe never acknowledged; what is written on top of it is.
            Settling::Done => Some(slot.clone()),
            Settling::Abort => decide::abort(slot),
            _ if rules::holds(Rule::SlotsSealed) => decide::seal(slot),
            _ => continue,
        };
        match next {
            Some(next) => {
                changed.push((*index, next.state));
                changes.push(change(key, *version, Some(Cell::Slot(next))));
            }
            None => again.push(*index),
        }
    }
    for ((index, state), outcome) in changed.into_iter().zip(requests.set_each(&changes)) {
        match outcome? {
            Outcome::Done(_) if state == SlotState::Sealed => {}
            // Lost: somebody else was faster, and the next look tells.
            Outcome::Done(_) | Outcome::Lost(_) => again.push(index),
        }
    }
    Ok(again)
}

/// Whether a slot may be deleted, if it is still so then: it vouches for no mark.
pub fn is_settled(found: &StoredCell) -> bool {
    matches!(&*found.cell, Cell::Slot(slot) if matches!(slot.state, SlotState::Sealed | SlotState::Free))
        || !rules::holds(Rule::OpenSlotsNeverDeleted)
}

fn change(key: CellKey, expected: Option<Version>, cell: Option<Cell>) -> Change {
    Change { key, expected, cell, awaited: false }
}

/// The slot under `key` with the version of its cell.
pub(super) fn read_slot<C: Cells + ?Sized>(
    requests: &Requests<C>,
    key: &CellKey,
) -> Result<Option<(Slot, Version)>, StoreError> {
    requests.read(key)?.map(|stored| slot_of(key, &stored)).transpose()
}

/// The slot in a cell.
pub(super) fn slot_of(key: &CellKey, stored: &StoredCell) -> Result<(Slot, Version), StoreError> {
    match &*stored.cell {
        Cell::Slot(slot) => Ok((slot.clone(), stored.version)),
        _ => Err(StoreError::Damaged { key: format!("{key:?}"), cause: "it holds no intent".into() }),
    }
}

/// The document in a cell, with its mark.
pub(super) fn document_of<'a>(key: &Key, stored: &'a StoredCell) -> Result<&'a MarkedDocument, StoreError> {
    match &*stored.cell {
        Cell::Document(document) => Ok(document),
        _ => Err(StoreError::Damaged { key: key.to_string(), cause: "it holds no document".into() }),
    }
}

/// Takes the marks of decided uses of slots away. When this returns no mark that a committed one lists is left. Of an
/// aborted one it is for good order, so that nobody needs to ask what they mean; one that arrives after this is harmless.
///
/// That no mark is left is not taken from a read, which may be of a server that is behind: what is found must be as late as
/// the mark that is listed, or be certain.
///
/// # Errors
/// As the engine fails, and if a server goes on to show what was there before; then it must be called again.
pub(super) fn clean<C: Cells + ?Sized>(
    requests: &Requests<C>,
    uses: &[(IntentId, &Slot)],
) -> Result<(), StoreError> {
    // Of each document, the latest version that a committed use lists: versions grow, with deletions in between as well.
    let mut left: BTreeMap<Key, Option<Version>> = BTreeMap::new();
    for marked in uses.iter().flat_map(|(_, slot)| &slot.marked) {
        let listed = left.entry(marked.key.clone()).or_default();
        *listed = marked.version.max(*listed);
    }
    for round in 0..TRIES {
        let keys: Vec<_> = left.keys().cloned().map(CellKey::Document).collect();
        let (mut changes, mut older) = (Vec::new(), Vec::new());
        for (((key, listed), cell), stored) in left.iter().zip(&keys).zip(requests.read_many(&keys)?) {
            let version = stored.as_ref().map(|stored| stored.version);
            if version < *listed {
                older.push((cell.clone(), version));
            } else if let Some(stored) = stored
                && let Some(plain) = without_mark(uses, key, &stored)?
            {
                changes.push(change(cell.clone(), version, plain));
            }
        }
        // Lost: somebody else was faster, and the mark is gone all the same.
        for outcome in requests.set_each(&changes) {
            outcome?;
        }
        let uncertain =
            if rules::holds(Rule::AbsenceMadeCertain) { uncertain(requests, older)? } else { Vec::new() };
        if uncertain.is_empty() {
            return Ok(());
        }
        left.retain(|key, _| uncertain.contains(&CellKey::Document(key.clone())));
        requests.pause(round);
    }
    Err(StoreError::Engine {
        what: "cleaning up after intents".into(),
        source: "a server shows what was there before them".into(),
    })
}

/// Those of the cells that were read at these versions which may hold something later. One that is certain for all that lost
/// its mark with a server, or in a backup, and holds nobody up.
fn uncertain<C: Cells + ?Sized>(
    requests: &Requests<C>,
    older: Vec<(CellKey, Option<Version>)>,
) -> Result<Vec<CellKey>, StoreError> {
    let (mut absent, mut uncertain) = (Vec::new(), Vec::new());
    for (key, version) in older {
        match version {
            None => absent.push(key),
            Some(version) if requests.is_at(&key, version) => {}
            Some(_) => uncertain.push(key),
        }
    }
    uncertain.extend(requests.there_after_all(&absent)?);
    Ok(uncertain)
}

/// What a cell becomes (none: it is deleted) if its mark is of one of these uses; none if it is not.
fn without_mark(
    uses: &[(IntentId, &Slot)],
    key: &Key,
    stored: &StoredCell,
) -> Result<Option<Option<Cell>>, StoreError> {
    let document = document_of(key, stored)?;
    let Some(mark) = &document.mark else {
        // Without a document either, it is what another recoverer made to be certain.
        return Ok(document.before.is_none().then_some(None));
    };
    let Some((_, slot)) = uses.iter().find(|(intent, _)| *intent == mark.intent) else { return Ok(None) };
    let committed = slot.state == SlotState::Committed;
    let listed = |marked: &Marked| marked.key == *key && marked.version == Some(stored.version);
    let is_ours = !committed || slot.marked.iter().any(listed);
    Ok(is_ours.then(|| decide::cleaned(document, stored.version, committed)))
}
