//! A commit whose marks are set by the request that would only begin it.
//!
//! Owns the use of a slot that is begun ahead: behind the commit before, when its marks are gone, and naming no document.
//! [`attempt`](super::attempt) has all that does not depend on that.
//!
//! A mark means something only while its slot is pending under its number. So the slot must be before the first mark is set,
//! and here it is: it was made so when nobody waited. That it names its marks, which is for those who clean up, may come at
//! the same time as they do, since nothing is decided before all of it is known to stand.
//!
//! What is hard:
//! - **Locks that go along.** What a commit compares must be locked before, or somebody could change it between the
//!   comparison and the lock. So only locks on what is written itself, which the marks keep as it is, are taken beside the
//!   marks: the exclusive ones of a rename whose session keeps shares of all above. Any others are taken before, as ever.
//! - **Marks of a use that came to nothing.** They are in the way of others, who may even have the locks. So who was
//!   refused reads first for a while, and marks behind the locks.
//! - **Marks that their slot does not name.** Others had decided it just then: its session is dead, or it stood in their
//!   way. What was before is true there, and nobody else knows of them; so who has set them takes them away. Should he die,
//!   or the store be away, they are what late marks are: harmless.

use super::IntentStore;
use super::attempt::{Attempt, accept, nothing_changed, slot_key};
use super::decide;
use super::plan::{Planned, all_marked, to_compare};
use super::requests::{AtOnce, Outcome, Requests};
use super::settle::clean;
use super::slots::OwnSlot;
use crate::document::{Key, LockMode, LockRecord, SessionId};
use crate::store::cells::{Cell, Cells, Change};
use crate::store::{CommitError, Granting, StoreError};

impl<C: Cells + ?Sized + 'static> IntentStore<C> {
    /// Tries once, in an open use, what is planned on what is known of all `keys`.
    pub(super) fn attempt_at_once(
        &self,
        own: &mut OwnSlot,
        keys: &[Key],
        planned: &Planned,
        granting: Option<Granting<'_>>,
    ) -> Result<Attempt, CommitError> {
        let marks = self.marking(own, &planned.steps).map_err(nothing_changed)?;
        let names = planned.steps.iter().map(|step| step.key.clone());
        let named = own.begin(names).ok_or(StoreError::Fenced)?;
        let key = slot_key(self.session, own);
        let slot = Change {
            key: key.clone(),
            expected: Some(own.version),
            cell: Some(Cell::Slot(named.clone())),
            awaited: false,
        };
        self.known.forget(planned.steps.iter().map(|step| &step.key));
        let AtOnce { granted, slot, marks } =
            self.requests.set_at_once(&slot, &marks, to_compare(planned), is_of_a_target, granting);
        // Nothing was sent: it is as it was.
        let Some(slot) = slot else {
            own.in_doubt = false;
            return Ok(Attempt::Refused { marked: false });
        };
        if !granted {
            self.known.doubt(keys, self.requests.now());
        }
        match slot {
            Ok(Outcome::Done(version)) => own.know(named, version),
            not_named => {
                if let Some(aborted) = decide::abort(&named) {
                    // Whatever comes of it: what is left says what was before.
                    drop(clean(&self.requests, &[(self.intent(own), &aborted)]));
                }
                if let Outcome::Lost(found) = not_named.map_err(nothing_changed)? {
                    accept(own, &key, found.as_ref())?;
                }
                return Ok(match planned.steps.first() {
                    Some(step) if granted => Attempt::Hindered(step.key.clone()),
                    _ => Attempt::Refused { marked: true },
                });
            }
        }
        if !granted {
            return Ok(Attempt::Refused { marked: true });
        }
        let marked = match marks {
            Some((outcomes, unchanged)) => all_marked(planned, outcomes, unchanged),
            None => self.mark(own, planned),
        };
        if matches!(marked, Ok(Err(_))) {
            self.known.doubt(keys, self.requests.now());
        }
        self.finish(own, planned, marked)
    }
}

/// Whether it takes a lock on what is changed itself: an exclusive one, and not on the root, which is for the whole volume.
fn is_of_a_target(change: &Change) -> bool {
    let of = |lock: &LockRecord| lock.holders.iter().all(|claim| claim.mode == LockMode::Exclusive);
    matches!(&change.cell, Some(Cell::Lock(lock)) if of(lock) && lock.path != b"/")
}

/// Begins the next use of a slot in which nothing is under way. If that fails it is begun when there is something to do.
pub(super) fn open_ahead<C: Cells + ?Sized>(requests: &Requests<C>, session: SessionId, own: &mut OwnSlot) {
    if own.in_doubt || own.is_open() {
        return;
    }
    let key = slot_key(session, own);
    let Some(open) = own.begin([]) else { return };
    if let Ok(Outcome::Done(version)) = requests.set(&key, Some(own.version), Some(&Cell::Slot(open.clone())))
    {
        own.know(open, version);
        own.in_doubt = false;
    }
}
