//! Requests whose answer may be lost: reads are asked again, and what became of a write is found out by reading.
//!
//! Owns the patience of intents: how often something is tried, and how long it is waited in between. Imports the cells'
//! port, `ambient` and `rules`.
//!
//! What is hard: a write that got no answer may still be made later. Each compares a version that never comes back, so it
//! may be sent again until the cell is seen at another version, and then it is too late for every copy of it. The one
//! exception is a write that makes a cell, which compares with nothing: see [`decide`](super::decide).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::ambient::Clock;
use crate::document::{Key, Version};
use crate::rules::{self, Rule};
use crate::store::cells::{CasError, Cell, CellKey, Cells, StoredCell};
use crate::store::{Scan, StoreError};

/// How often a request is sent before it is given up: with the pauses in between, for some two seconds.
pub(super) const TRIES: u32 = 16;
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(256);

/// Cells, asked patiently.
pub(super) struct Requests<C: ?Sized> {
    cells: Arc<C>,
    clock: Arc<dyn Clock>,
    seed: AtomicU64,
}

/// What became of a write.
pub(super) enum Outcome {
    /// It was made; the cell got this version (which means nothing if the cell was deleted).
    Done(Version),
    /// It was not and never will be: this is there instead.
    Lost(Option<StoredCell>),
}

impl<C: Cells + ?Sized> Requests<C> {
    /// `seed` is for the jitter of the pauses.
    pub(super) fn new(cells: Arc<C>, clock: Arc<dyn Clock>, seed: u64) -> Self {
        Self { cells, clock, seed: AtomicU64::new(seed) }
    }

    /// The time, for bounds on waiting.
    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Pauses before another try, longer at each round, and never as long as somebody else.
    pub(super) fn pause(&self, round: u32) {
        let most = PAUSE_FIRST.saturating_mul(1 << round.min(16)).min(PAUSE_MAX);
        let jitter = self.random() % (most.as_nanos() as u64);
        self.clock.sleep(most / 2 + Duration::from_nanos(jitter / 2));
    }

    /// The generator SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): any number of threads draw from it without a lock.
    fn random(&self) -> u64 {
        const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.seed.fetch_add(GAMMA, Ordering::Relaxed).wrapping_add(GAMMA);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The cell under `key`.
    pub(super) fn read(&self, key: &CellKey) -> Result<Option<StoredCell>, StoreError> {
        self.retry(|cells| cells.read(key))
    }

    /// Several cells: not a snapshot. Asks nothing for none.
    pub(super) fn read_many(&self, keys: &[CellKey]) -> Result<Vec<Option<StoredCell>>, StoreError> {
        if keys.is_empty() { Ok(Vec::new()) } else { self.retry(|cells| cells.read_many(keys)) }
    }

    /// A page, marks included.
    pub(super) fn scan(&self, scan: &Scan) -> Result<Vec<(Key, StoredCell)>, StoreError> {
        self.retry(|cells| cells.scan(scan))
    }

    fn retry<T>(&self, ask: impl Fn(&C) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let mut round = 0;
        loop {
            match ask(&self.cells) {
                Err(error) if round < TRIES && may_pass(&error) => self.pause(round),
                other => return other,
            }
            round += 1;
        }
    }

    /// Compare-and-set until it is known what became of it.
    ///
    /// # Errors
    /// [`StoreError::Unknown`]: it may have been made, or may still be. Any other: it was not and never will be.
    pub(super) fn set(
        &self,
        key: &CellKey,
        expected: Option<Version>,
        cell: Option<&Cell>,
    ) -> Result<Outcome, StoreError> {
        let mut sent = false;
        let mut last = None;
        for round in 0..TRIES {
            match self.cells.cas(key, expected, cell.cloned()) {
                Ok(version) => return Ok(Outcome::Done(version)),
                Err(CasError::Store(error)) if !may_pass(&error) && !sent => return Err(error),
                Err(CasError::Store(error)) => last = Some(error),
                Err(CasError::Unknown(cause)) if !rules::holds(Rule::UnknownResolvedByReading) => {
                    return Err(StoreError::Engine { what: "no answer".into(), source: cause.into() });
                }
                // A conflict may be with an earlier copy of this very request, whose answer was lost.
                Err(CasError::Conflict | CasError::Unknown(_)) => {
                    sent = true;
                    let found = self.read(key).map_err(|error| StoreError::Unknown(error.to_string()))?;
                    let version = found.as_ref().map(|found| found.version);
                    if found.as_ref().map(|found| &*found.cell) == cell && version != expected {
                        return Ok(Outcome::Done(version.unwrap_or_default()));
                    }
                    if version != expected {
                        return Ok(Outcome::Lost(found));
                    }
                }
            }
            self.pause(round);
        }
        match last {
            Some(error) if !sent => Err(error),
            error => Err(StoreError::Unknown(
                error
                    .map_or_else(|| format!("{TRIES} requests were not answered"), |error| error.to_string()),
            )),
        }
    }
}

/// Whether to ask again may help.
fn may_pass(error: &StoreError) -> bool {
    matches!(error, StoreError::Engine { .. } | StoreError::Unknown(_))
}
