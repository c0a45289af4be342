//! Recovery: takes the steps of [`plan`](super::plan), each on what it has just read.
//!
//! Imports the claims of the layer, `store::cells` and `store::intents`.

use super::documents::{cell, in_cell, key};
use super::member::{Collect, Member};
use super::plan::{Found, SlotsSeen, Step, next_step};
use super::state::{SessionEvent, after};
use crate::document::{Session, SessionId, SessionState, SlotState};
use crate::lock::change::Decision;
use crate::lock::shared::claims;
use crate::store::cells::{Cell, CellKey, Listed, StoredCell};
use crate::store::{StoreError, intents};

/// Seven steps are enough, and a few more if delayed requests make slots again meanwhile.
const STEPS_MAX: u32 = 100;

impl Member {
    /// Cleans up after a session that is fenced, or whose fence the caller answers for, until nothing of it is left. Any
    /// number of callers at once; whoever dies at it is replaced by the next.
    ///
    /// # Errors
    /// The store's, and those of `collect`; call again.
    pub fn recover(&self, dead: SessionId, collect: Collect<'_>) -> Result<(), StoreError> {
        let (mut claims, mut collected, mut slots) = (true, false, 0);
        for _ in 0..STEPS_MAX {
            let found = self.store.read(&key(dead))?;
            let session = in_cell(dead, found.as_ref())?;
            slots = session.map_or(slots, |session| session.intents);
            let state = session.map(|session| session.state);
            let seen = self.slots_seen(dead, slots)?;
            match next_step(&Found { state, slots: seen, claims, collected }) {
                Step::Fence => self.take(dead, SessionEvent::Fence)?,
                Step::SettleIntents => intents::settle(&self.store.cells, &self.store.clock, dead, slots)?,
                Step::DropClaims => {
                    claims::drop_session(&self.store, dead)?;
                    claims = false;
                }
                Step::Collect => {
                    collect(dead)?;
                    collected = true;
                }
                Step::MarkRecovered => self.take(dead, SessionEvent::Cleaned)?,
                Step::DeleteSlots => self.delete_slots(&Self::slot_keys(dead, slots))?,
                Step::DeleteSession => {
                    let is_over = |found: &Session| found.state == SessionState::Recovered;
                    self.replace(dead, |found| found.filter(|found| is_over(found)).map(|_| None))?;
                }
                Step::Done => return Ok(()),
            }
        }
        Err(StoreError::Unknown(format!(
            "the recovery of session {dead} came to no end in {STEPS_MAX} steps"
        )))
    }

    /// Deletes slots whose session has no document: a request to make them came late. Returns how many. To be called now
    /// and then; they only take room.
    ///
    /// # Errors
    /// The store's.
    pub fn sweep_slots(&self) -> Result<usize, StoreError> {
        let mut left = Vec::new();
        for (slot, _) in self.store.insist(|| self.store.cells.list(Listed::Slots))? {
            // Read after the slot was seen: a session's document is made before its slots.
            let CellKey::Slot(session, _) = slot else { continue };
            if self.store.read(&key(session))?.is_none() {
                left.push(slot);
            }
        }
        self.delete_slots(&left)?;
        Ok(left.len())
    }

    fn slots_seen(&self, session: SessionId, slots: u16) -> Result<SlotsSeen, StoreError> {
        let keys = Self::slot_keys(session, slots);
        let found = self.store.insist(|| self.store.cells.read_many(&keys))?;
        let mut seen = SlotsSeen::Gone;
        for cell in found.into_iter().flatten() {
            match &*cell.cell {
                Cell::Slot(slot) if slot.state == SlotState::Sealed => seen = SlotsSeen::Sealed,
                _ => return Ok(SlotsSeen::Open),
            }
        }
        Ok(seen)
    }

    /// Takes a session one step on, unless it is there already.
    fn take(&self, session: SessionId, event: SessionEvent) -> Result<(), StoreError> {
        self.replace(session, |found| after(found?, event).map(Some))
    }

    /// Replaces a session's document by what `next` makes of it, or deletes it (none); nothing to do is none at all.
    fn replace(
        &self,
        session: SessionId,
        next: impl Fn(Option<&Session>) -> Option<Option<Session>>,
    ) -> Result<(), StoreError> {
        self.store.change(&key(session), None, |found: Option<&StoredCell>| {
            let next = next(in_cell(session, found)?);
            Ok(next.map_or(Decision::Leave, |next| Decision::Write(next.map(|next| cell(next, found)))))
        })?;
        Ok(())
    }

    fn delete_slots(&self, slots: &[CellKey]) -> Result<(), StoreError> {
        for slot in slots {
            let gone = |found: Option<&StoredCell>| match found {
                Some(_) => Ok(Decision::Write(None)),
                None => Ok(Decision::Leave),
            };
            self.store.change(slot, None, gone)?;
        }
        Ok(())
    }
}
