//! The slots of one session: which are free, and which must be looked at before they are used again.
//!
//! Owns the pool that the threads of a session share. No lock of it is held while anything is asked or waited for.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::decide;
use super::requests::Requests;
use crate::document::{Key, Slot, Version};
use crate::store::cells::Cells;

/// A slot as its owner knows it.
#[derive(Clone, Debug)]
pub struct OwnSlot {
    /// Which one.
    pub(super) index: u16,
    /// What was last known to stand there.
    pub(super) slot: Slot,
    /// At this version.
    pub(super) version: Version,
    /// The highest number that was ever tried.
    pub(super) attempted: u64,
    /// Whether something else may stand there, or marks of a committed use may be left.
    pub(super) in_doubt: bool,
    /// Whether others have written over marks of its last use: that may be lost with a server, and then the slot is asked
    /// what they mean.
    pub(super) overwritten: bool,
}

impl OwnSlot {
    pub(super) fn new(index: u16, version: Version) -> Self {
        Self { index, slot: decide::free(), version, attempted: 0, in_doubt: false, overwritten: false }
    }

    /// Whether its next use is begun, and names nothing yet.
    pub(super) fn is_open(&self) -> bool {
        !self.in_doubt && decide::is_open(&self.slot)
    }

    /// The next use, which marks these documents; none if there cannot be one. In doubt until it is known what became of it.
    pub(super) fn begin(&mut self, keys: impl IntoIterator<Item = Key>) -> Option<Slot> {
        let next = if self.is_open() {
            decide::name(&self.slot, keys)?
        } else {
            let next = decide::begin(&self.slot, keys)?;
            // Never a number that was tried before: what was sent then may still arrive.
            Slot { number: next.number.max(self.attempted + 1), ..next }
        };
        self.attempted = next.number;
        self.in_doubt = true;
        Some(next)
    }

    /// Takes note of what stands there now.
    pub(super) fn know(&mut self, slot: Slot, version: Version) {
        self.attempted = self.attempted.max(slot.number);
        self.slot = slot;
        self.version = version;
    }
}

/// The slots that no thread is using. First in, first out, so that one in doubt is soon looked at.
pub(super) struct Pool(Mutex<VecDeque<OwnSlot>>);

/// A slot in use by one thread; goes back to the pool when dropped.
pub(super) struct Taken {
    pool: Arc<Pool>,
    pub(super) own: OwnSlot,
}

impl Pool {
    pub(super) fn new(slots: Vec<OwnSlot>) -> Self {
        Self(Mutex::new(slots.into()))
    }

    /// The version of the one slot, if nothing is under way in it and nobody will ask it for a mark.
    pub(super) fn unused(&self) -> Option<Version> {
        self.0.lock().front().filter(|own| !own.in_doubt && !own.overwritten).map(|own| own.version)
    }

    /// A slot; waits for one. That ends when a commit ends, which waits no longer for a store that is away than the engine
    /// does.
    pub(super) fn take<C: Cells + ?Sized>(self: &Arc<Self>, requests: &Requests<C>) -> Taken {
        let mut round = 0;
        loop {
            let free = self.0.lock().pop_front();
            if let Some(own) = free {
                return Taken { pool: Arc::clone(self), own };
            }
            requests.pause(round);
            round += 1;
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.pool.0.lock().push_back(self.own.clone());
    }
}
