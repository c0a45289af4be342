//! Changes one cell of a store that changes one cell at a time, whatever becomes of single requests.
//!
//! Owns the loop: read, decide, compare-and-set, and again. Imports `store::cells` and `ambient`.
//!
//! What is hard: an answer that does not come says nothing of the change. So nobody concludes anything from it: the cell is
//! read again, and the decision is made again on what is there. A decision therefore has to know its own work when it sees
//! it; and as a server may show what it loses before it answers, that work is written once more on top of itself
//! ([`again`]), and the answer to that counts. The pauses are drawn from a hash, not from a random source, so that a seed
//! replays a run.

use std::sync::Arc;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::ambient::Clock;
use crate::store::StoreError;
use crate::store::cells::{CasError, Cell, CellKey, Cells, StoredCell};

/// How many requests in a row may fail before the store is said to fail.
const FAILURES_MAX: u32 = 12;
/// And for how long, if they take long by themselves: an engine waits for a store that is away.
const FAILING_MAX: Duration = Duration::from_secs(5);
/// But so many are made: an engine that waits for one answer as long as that may then ask another server.
const FAILURES_MIN: u32 = 3;
/// How often others may be first. Each time they are, they have made a change, so this is no small number.
const CONFLICTS_MAX: u32 = 10_000;
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(250);
const AFTER_CONFLICT_MAX: Duration = Duration::from_millis(8);

/// What to do about a cell.
pub(super) enum Decision {
    /// To put this into it, or to delete it (none).
    Write(Option<Cell>),
    /// Nothing: it is as it should be, or is none of ours.
    Leave,
}

/// The cells and the clock of one party, whose pauses differ from those of others.
#[derive(Clone)]
pub(super) struct Store {
    pub(super) cells: Arc<dyn Cells>,
    pub(super) clock: Arc<dyn Clock>,
    /// Tells parties apart.
    pub(super) seed: u64,
}

impl Store {
    /// The cell under `key`; asked again, for a while, if the store fails.
    ///
    /// # Errors
    /// The store's last.
    pub(super) fn read(&self, key: &CellKey) -> Result<Option<StoredCell>, StoreError> {
        self.insist(|| self.cells.read(key))
    }

    /// Asks again, for a while, what it is harmless to ask again.
    ///
    /// # Errors
    /// The store's last.
    pub(super) fn insist<T>(&self, mut ask: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
        let mut pauses = Pauses::new(self, 0, PAUSE_MIN, PAUSE_MAX);
        let begun = self.clock.now();
        loop {
            match ask() {
                Err(StoreError::Engine { .. } | StoreError::Unknown(_))
                    if pauses.count < FAILURES_MAX
                        && (pauses.count + 1 < FAILURES_MIN
                            || self.clock.now().saturating_sub(begun) < FAILING_MAX)
                        && !self.clock.is_over() =>
                {
                    pauses.pause();
                }
                result => return result,
            }
        }
    }

    /// Brings the cell under `key` to what `decide` wants. `known` is what is there as far as the caller knows, and saves
    /// a reading. Returns the cell as it was left.
    ///
    /// # Errors
    /// What `decide` says; the store's last failure; [`StoreError::Unknown`] if no answer came for too long.
    pub(super) fn change(
        &self,
        key: &CellKey,
        known: Option<Option<StoredCell>>,
        mut decide: impl FnMut(Option<&StoredCell>) -> Result<Decision, StoreError>,
    ) -> Result<Option<StoredCell>, StoreError> {
        let mut pauses = Pauses::new(self, 0, PAUSE_MIN, PAUSE_MAX);
        let (mut failures, mut conflicts) = (0, 0);
        let mut failing_since = None;
        let mut unanswered = None;
        let mut known = known;
        loop {
            let current = match known.take() {
                Some(cell) => cell,
                None => self.read(key)?,
            };
            let next = match decide(current.as_ref())? {
                Decision::Write(next) => next,
                Decision::Leave => match again(unanswered.as_ref(), current.as_ref()) {
                    Some(cell) => Some(cell),
                    None => return Ok(current),
                },
            };
            let expected = current.map(|cell| cell.version);
            let mut was_conflict = false;
            let asked = self.clock.now();
            let error = match self.cells.cas(key, expected, next.clone()) {
                Ok(version) => return Ok(next.map(|cell| StoredCell { version, cell: cell.into() })),
                Err(CasError::Conflict) => {
                    conflicts += 1;
                    was_conflict = true;
                    unanswered = next;
                    StoreError::Unknown(format!("others changed {key:?} {conflicts} times meanwhile"))
                }
                Err(CasError::Unknown(cause)) => {
                    failures += 1;
                    unanswered = next;
                    StoreError::Unknown(cause)
                }
                Err(CasError::Store(error @ StoreError::Engine { .. })) => {
                    failures += 1;
                    error
                }
                Err(CasError::Store(error)) => return Err(error),
            };
            failing_since = if was_conflict { None } else { failing_since.or(Some(asked)) };
            let failing_for = |since| self.clock.now().saturating_sub(since);
            let for_too_long = failures >= FAILURES_MIN
                && failing_since.is_some_and(|since| failing_for(since) >= FAILING_MAX);
            let given_up = for_too_long || (failures > 0 && self.clock.is_over());
            if failures > FAILURES_MAX || conflicts > CONFLICTS_MAX || given_up {
                return Err(error);
            }
            if was_conflict { pauses.pause_after_conflict() } else { pauses.pause() }
        }
    }
}

/// What to write where nothing is left to be done: what was sent and had no answer, if it is there. That nothing is there is
/// not made certain: a claim that comes back after its operation is a ghost.
pub(super) fn again(unanswered: Option<&Cell>, current: Option<&StoredCell>) -> Option<Cell> {
    unanswered.filter(|cell| current.is_some_and(|current| *current.cell == **cell)).cloned()
}

/// Pauses that grow, each between half of its length and all of it.
pub(super) struct Pauses<'a> {
    store: &'a Store,
    seed: u64,
    next: Duration,
    longest: Duration,
    /// How many there were.
    pub(super) count: u32,
}

impl<'a> Pauses<'a> {
    /// `salt` tells those apart who share a store.
    pub(super) fn new(store: &'a Store, salt: u64, first: Duration, longest: Duration) -> Self {
        let seed = store.seed ^ salt.rotate_left(32);
        Self { store, seed, next: first.min(longest), longest, count: 0 }
    }

    /// Sleeps.
    pub(super) fn pause(&mut self) {
        self.pause_at_most(Duration::MAX);
    }

    /// Sleeps after others were first: not for long, since they have come further, and no notice need tell of it.
    pub(super) fn pause_after_conflict(&mut self) {
        self.next = self.next.min(AFTER_CONFLICT_MAX);
        self.pause();
    }

    /// Sleeps, but not longer than `most`.
    pub(super) fn pause_at_most(&mut self, most: Duration) {
        let half = self.next / 2;
        let parts = xxh3_64_with_seed(&self.count.to_le_bytes(), self.seed) % 1024;
        let length = half + half / 1024 * u32::try_from(parts).unwrap_or(0);
        self.store.clock.sleep(length.min(most));
        self.next = self.next.saturating_mul(2).min(self.longest);
        self.count = self.count.saturating_add(1);
    }
}
