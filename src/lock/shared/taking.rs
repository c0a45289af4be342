//! One operation at one lock: asking, and waiting until it is granted.
//!
//! Imports the documents of the layer, and what the provider knows. Whoever waits looks again and again, removes the ghosts
//! before it, and has lost nothing if an answer is lost: to ask again is harmless.

use std::sync::Arc;
use std::time::Duration;

use super::claims::{in_cell, now_ns, take_out};
use super::record::{ask, blocked};
use super::{LOOKS_PER_GHOST_HUNT, Refusal, Settings, SharedLocks, TRIES_AFTER_DEADLINE, Wanted};
use crate::document::LockRecord;
use crate::lock::change::{Pauses, again};
use crate::lock::set::LockEntry;
use crate::lock::{LockError, OpId, Wait};
use crate::store::StoreError;
use crate::store::cells::{CasError, Cell, StoredCell};

fn no_answer(error: CasError) -> Refusal {
    match error {
        CasError::Store(error) => error.into(),
        other => StoreError::Unknown(other.to_string()).into(),
    }
}

/// One operation at one lock.
pub(super) struct Taking<'a> {
    pub(super) locks: &'a SharedLocks,
    pub(super) op: OpId,
    pub(super) wanted: &'a Wanted,
    pub(super) purpose: &'a Arc<str>,
    /// Until when, by the clock of the locks.
    pub(super) wait: Wait<'a, Duration>,
    /// Whether it had to wait for others.
    pub(super) waited: bool,
}

impl Taking<'_> {
    /// Asks, and waits until the lock is granted. Returns its document. `hint` is what is there as far as is known.
    pub(super) fn run(&mut self, hint: Option<StoredCell>) -> Result<StoredCell, Refusal> {
        let store = &self.locks.store;
        let Wanted { key, entry, .. } = self.wanted;
        let Settings { look_after, look_at_least_every, .. } = self.locks.settings;
        let mut looks = Pauses::new(store, self.op.number, look_after, look_at_least_every);
        let (mut lost, mut known) = (0, Some(hint));
        let mut unanswered = None;
        loop {
            let found = match known.take() {
                Some(hint) => hint,
                None => store.read(key)?,
            };
            let record = in_cell(key, found.as_ref())?;
            self.locks.check_path(key, entry, record)?;
            let now = store.clock.now();
            let claim = self.locks.claim(self.op, entry.mode, self.purpose);
            let asked = ask(record, &entry.id, &claim);
            let mut next = asked.write.map(Cell::Lock);
            if let (true, None, Some(found)) = (asked.holds, &next, &found) {
                next = again(unanswered.as_ref(), Some(found));
                if next.is_none() {
                    return Ok(found.clone());
                }
            }
            let late = now >= self.wait.longest;
            if let Some(record) = record.filter(|_| !asked.holds) {
                if looks.count.is_multiple_of(LOOKS_PER_GHOST_HUNT) {
                    let ghosts = self.locks.ghosts(record)?;
                    if !ghosts.is_empty() {
                        take_out(store, key, found, |op| ghosts.contains(&op))?;
                        continue;
                    }
                }
                if late {
                    return Err(self.refused(record));
                }
                // Only here is it clear that somebody waits for long: a session that is dead need not.
                self.locks.check()?;
                if self.wait.is_given_up() {
                    return Err(Refusal::Error(LockError::Interrupted));
                }
            }
            let Some(cell) = next else {
                self.waited = true;
                looks.pause_at_most(self.wait.longest.saturating_sub(now));
                continue;
            };
            match store.cells.cas(key, found.as_ref().map(|cell| cell.version), Some(cell.clone())) {
                Ok(version) => {
                    let written = StoredCell { version, cell: cell.into() };
                    if asked.holds {
                        return Ok(written);
                    }
                    known = Some(Some(written));
                }
                // Others were first, or it is not known whether the change was made: to be read again.
                Err(error) => {
                    lost += u32::from(late);
                    unanswered = Some(cell); // A conflict may be with an earlier copy of it.
                    let was_conflict = match error {
                        CasError::Conflict => true,
                        CasError::Unknown(_) | CasError::Store(StoreError::Engine { .. }) => false,
                        CasError::Store(_) => return Err(no_answer(error)),
                    };
                    if lost > TRIES_AFTER_DEADLINE {
                        return Err(record.map_or_else(|| no_answer(error), |record| self.refused(record)));
                    }
                    if was_conflict { looks.pause_after_conflict() } else { looks.pause() }
                }
            }
        }
    }

    fn refused(&self, record: &LockRecord) -> Refusal {
        let now_ns = now_ns(&*self.locks.store.clock);
        let LockEntry { id, mode } = &self.wanted.entry;
        Refusal::Blocked(Box::new(blocked(record, id, self.op, *mode, now_ns)))
    }
}
