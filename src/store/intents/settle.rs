//! How the slots of a session begin and end: made before it lives, settled once it has been declared dead.
//!
//! Owns [`create_slots`] and [`settle`], and how marks are cleaned up, which the living do in the same way. Imports
//! `document`, the cells' port, `ambient` and `rules`.
//!
//! What is hard: any number of recoverers settle one session at once, any of them may die at any step, and the session may
//! still be running. Each step is a compare-and-set from what was read, so only one of two takes effect; and nothing is
//! sealed before its marks are gone, so whoever finds a sealed slot has nothing left to do.

use std::sync::Arc;

use super::decide::{self, Settling};
use super::requests::{Outcome, Requests};
use super::slots::OwnSlot;
use crate::ambient::Clock;
use crate::document::{IntentId, Key, SessionId, Slot, SlotState, Version};
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
fn settle_further<C: Cells + ?Sized>(
    requests: &Requests<C>,
    session: SessionId,
    open: &[u16],
    done: &mut [Settled],
) -> Result<Vec<u16>, StoreError> {
    let keys: Vec<CellKey> = open.iter().map(|index| CellKey::Slot(session, *index)).collect();
    let found = requests.read_many(&keys)?;
    let (mut changes, mut changed) = (Vec::new(), Vec::new());
    let mut again = Vec::new();
    for ((index, key), stored) in open.iter().zip(keys).zip(found) {
        let found = stored.map(|stored| slot_of(&key, &stored)).transpose()?;
        let step = decide::settling(found.as_ref().map(|(slot, _)| slot));
        let Some((slot, version)) = found else { continue };
        let done = &mut done[usize::from(*index)];
        match step {
            Settling::Done => continue,
            Settling::RollForward if rules::holds(Rule::CommittedIntentsRolledForward) => {
                roll_forward(requests, &slot)?;
                done.rolled_forward = 1;
            }
            Settling::RollBack => {
                roll_back(requests, IntentId { session, slot: *index, number: slot.number }, &slot)?;
                done.aborted = 1;
            }
            Settling::Abort | Settling::RollForward | Settling::Seal => {}
        }
        let next = match step {
            Settling::Abort => decide::abort(&slot),
            _ if rules::holds(Rule::SlotsSealed) => decide::seal(&slot),
            _ => continue,
        };
        match next {
            Some(next) => {
                changed.push((*index, next.state));
                changes.push(change(key, Some(version), Some(Cell::Slot(next))));
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

/// Completes a committed use of a slot: when this returns, no mark that it lists is left.
pub(super) fn roll_forward<C: Cells + ?Sized>(requests: &Requests<C>, slot: &Slot) -> Result<(), StoreError> {
    clean(requests, slot, true, |version, _, listed| listed == Some(version))
}

/// Takes the marks of an aborted use away, so that nobody needs to ask what they mean. One that arrives after this is
/// harmless.
pub(super) fn roll_back<C: Cells + ?Sized>(
    requests: &Requests<C>,
    intent: IntentId,
    slot: &Slot,
) -> Result<(), StoreError> {
    clean(requests, slot, false, |_, document, _| {
        document.mark.as_ref().is_some_and(|mark| mark.intent == intent)
    })
}

/// Makes plain documents, of the side that is true, of the marked ones that are this use's: by the version of the cell, the
/// document, and the version that the slot lists.
fn clean<C: Cells + ?Sized>(
    requests: &Requests<C>,
    slot: &Slot,
    committed: bool,
    is_marked: impl Fn(Version, &MarkedDocument, Option<Version>) -> bool,
) -> Result<(), StoreError> {
    let keys: Vec<_> = slot.marked.iter().map(|marked| CellKey::Document(marked.key.clone())).collect();
    let mut changes = Vec::new();
    for (marked, stored) in slot.marked.iter().zip(requests.read_many(&keys)?) {
        let Some(stored) = stored else { continue };
        let document = document_of(&marked.key, &stored)?;
        if is_marked(stored.version, document, marked.version) {
            let plain = decide::cleaned(document, stored.version, committed);
            changes.push(change(CellKey::Document(marked.key.clone()), Some(stored.version), plain));
        }
    }
    // Lost: somebody else was faster, and the mark is gone all the same.
    for outcome in requests.set_each(&changes) {
        outcome?;
    }
    Ok(())
}
