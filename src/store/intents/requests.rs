//! Requests whose answer may be lost: reads are asked again, and what became of a write is found out by reading.
//!
//! Owns the patience of intents: how often something is tried, and how long it is waited in between. Imports the cells'
//! port, `ambient` and `rules`.
//!
//! What is hard:
//! - A write that got no answer may still be made later. Each compares a version that never comes back, so it may be sent
//!   again until the cell is seen at another version, and then it is too late for every copy of it. The one exception is a
//!   write that makes a cell, which compares with nothing: see [`decide`](super::decide).
//! - A write that got no answer and is then read may still be lost, with the server that shows it: it answers a write only
//!   when others have it, too. So what was only read is written once more on top of itself, and that answer counts.
//! - What is read may be older than what was answered before, or than what others did, if the server that is read has been
//!   replaced or cut off. Only a write is answered as of the present: so it is the refusal of a write that says that it is
//!   too late for it, and never a read.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::ambient::Clock;
use crate::document::{Key, Kind, Version};
use crate::later::UnderWay;
use crate::rules::{self, Rule};
use crate::store::cells::{
    Answers, Beside, CasError, Cell, CellKey, Cells, Change, Compared, Looked, MarkedDocument, ScannedCell,
    StoredCell,
};
use crate::store::{Granting, Scan, StoreError};

/// How often a request is sent before it is given up: with the pauses in between, for some two seconds.
pub(super) const TRIES: u32 = 16;
/// A reading that has failed for so long is not asked again.
const READ_AGAIN_WITHIN: Duration = Duration::from_secs(5);
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(256);

/// Cells, asked patiently.
pub(super) struct Requests<C: ?Sized> {
    cells: Arc<C>,
    clock: Arc<dyn Clock>,
    seed: AtomicU64,
}

/// What came of changes that were to be sent together.
pub(super) struct AtOnce {
    /// Whether he who was asked wants them.
    pub(super) granted: bool,
    /// Of the slot; none if it was not sent.
    pub(super) slot: Option<Result<Outcome, StoreError>>,
    /// Of the others, and whether what was compared was equal; none unless they were sent, and still make sense.
    pub(super) marks: Option<(Vec<Result<Outcome, StoreError>>, bool)>,
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

    /// The time of its clock.
    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Waits until none of these documents is under way, or for as long as the caller wants to.
    pub(super) fn wait_for(
        &self,
        under_way: &UnderWay<Key>,
        keys: &BTreeSet<&Key>,
        goes_on: impl Fn() -> bool,
    ) {
        under_way.wait_for(&*self.clock, keys.iter().copied(), goes_on);
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

    /// The same, where one that is damaged hides none of the others.
    pub(super) fn read_each(&self, keys: &[CellKey]) -> Result<Vec<Looked>, StoreError> {
        if keys.is_empty() { Ok(Vec::new()) } else { self.retry(|cells| cells.read_each(keys)) }
    }

    /// A page, marks included.
    pub(super) fn scan(&self, scan: &Scan) -> Result<Vec<ScannedCell>, StoreError> {
        self.retry(|cells| cells.scan(scan))
    }

    /// A page as [`Cells::scan_outlines`] gives it.
    pub(super) fn scan_outlines(&self, scan: &Scan) -> Result<Vec<ScannedCell>, StoreError> {
        self.retry(|cells| cells.scan_outlines(scan))
    }

    fn retry<T>(&self, ask: impl Fn(&C) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let begun = self.clock.now();
        let mut round = 0;
        loop {
            match ask(&self.cells) {
                // An engine that is away has been waited for by itself.
                Err(error)
                    if round < TRIES
                        && may_pass(&error)
                        && self.clock.now().saturating_sub(begun) < READ_AGAIN_WITHIN =>
                {
                    self.pause(round);
                }
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
        self.pursue(key, expected, cell, None)
    }

    /// The same, while other cells are read, and while `beside` is done: not a snapshot, and as they were at any time during
    /// the call. None if that has failed.
    pub(super) fn set_and_read(
        &self,
        key: &CellKey,
        expected: Option<Version>,
        cell: &Cell,
        read: &[CellKey],
        beside: Option<Beside<'_>>,
    ) -> (Result<Outcome, StoreError>, Option<Vec<Option<StoredCell>>>) {
        let change = Change { key: key.clone(), expected, cell: Some(cell.clone()), awaited: false };
        let (answer, found) = self.cells.cas_and_read(change, read, beside);
        (self.pursue(key, expected, Some(cell), Some(answer)), found.ok())
    }

    /// The same for several cells, each by itself, in any order: in one request where the engine can. The outcomes are in
    /// the order of the changes. After one has failed no other is pursued: a store that is away need not be waited for as
    /// often as there are changes.
    ///
    /// # Errors
    /// Of each as for [`set`](Self::set).
    pub(super) fn set_each(&self, changes: &[Change]) -> Vec<Result<Outcome, StoreError>> {
        let answers = if changes.is_empty() { Vec::new() } else { self.cells.cas_each(changes) };
        self.pursue_each(changes, answers)
    }

    /// The same, and whether other cells are at these versions, each compared when all that is set of its kind was: false if
    /// one is not, or if that is not known.
    pub(super) fn set_each_and_compare(
        &self,
        changes: &[Change],
        compared: &[Compared],
    ) -> (Vec<Result<Outcome, StoreError>>, bool) {
        let (answers, equal) = self.cells.cas_each_and_compare(changes, compared);
        // What is sent again is made later than the others were compared.
        let at_once = answers.iter().all(Result::is_ok);
        (self.pursue_each(changes, answers), equal && at_once)
    }

    /// The same along with `slot`, in one request, and with what is first changed by whoever is asked whether it is to be;
    /// but only if all of that `goes_beside`. Else `slot` goes with it alone. What he took no part in is sent when he has
    /// agreed. What was compared counts only if all went at once, his part too.
    pub(super) fn set_at_once(
        &self,
        slot: &Change,
        changes: &[Change],
        compared: &[Compared],
        goes_beside: fn(&Change) -> bool,
        granting: Option<Granting<'_>>,
    ) -> AtOnce {
        let mut sent = None;
        let mut send = |along: &[Change]| {
            if sent.is_some() {
                return self.cells.cas_each(along);
            }
            let (beside, compared) =
                if along.iter().all(goes_beside) { (changes, compared) } else { (&[][..], &[][..]) };
            let together: Vec<_> = [slot].into_iter().chain(beside).chain(along).cloned().collect();
            let (mut answers, equal) = match compared {
                [] => (self.cells.cas_each(&together), true),
                _ => self.cells.cas_each_and_compare(&together, compared),
            };
            let of_along = answers.split_off(1 + beside.len());
            let at_once = answers.iter().chain(&of_along).all(Result::is_ok);
            sent = Some((answers, !beside.is_empty(), equal && at_once));
            of_along
        };
        let granted = match granting {
            Some(granting) => granting(Some(&mut send)),
            None => true,
        };
        // Unless he has sent it along: then nothing is left to be sent.
        if granted {
            send(&[]);
        }
        let Some((mut answers, are_sent, unchanged)) = sent else {
            return AtOnce { granted, slot: None, marks: None };
        };
        let of_changes = answers.split_off(1);
        let outcome = self.pursue_each(std::slice::from_ref(slot), answers).pop();
        let go_on = are_sent && granted && matches!(outcome, Some(Ok(Outcome::Done(_))));
        let marks = go_on.then(|| (self.pursue_each(changes, of_changes), unchanged));
        AtOnce { granted, slot: outcome, marks }
    }

    fn pursue_each(&self, changes: &[Change], answers: Answers) -> Vec<Result<Outcome, StoreError>> {
        let mut failed = false;
        let one = |(change, answer): (&Change, Result<Version, CasError>)| {
            let outcome = match answer {
                Ok(version) => Ok(Outcome::Done(version)),
                Err(error) if failed => Err(StoreError::Unknown(error.to_string())),
                Err(_) => self.pursue(&change.key, change.expected, change.cell.as_ref(), Some(answer)),
            };
            failed = failed || outcome.is_err();
            outcome
        };
        changes.iter().zip(answers).map(one).collect()
    }

    /// Makes certain that nothing is under these keys, of documents that were not found. Returns those where something is.
    /// An absence cannot be compared: so a cell without a document is made there, and deleted.
    ///
    /// # Errors
    /// As for [`set`](Self::set). A cell without a document that is left means nothing to anybody.
    pub(super) fn there_after_all(&self, keys: &[CellKey]) -> Result<Vec<CellKey>, StoreError> {
        let make = |key: &CellKey| {
            Some(Change { key: key.clone(), expected: None, cell: Some(empty(key)?), awaited: false })
        };
        let made: Vec<Change> = keys.iter().filter_map(make).collect();
        let (mut there, mut deletions) = (Vec::new(), Vec::new());
        let outcomes = self.set_each(&made);
        for (change, outcome) in made.into_iter().zip(outcomes) {
            match outcome? {
                Outcome::Done(version) => {
                    deletions.push(Change { expected: Some(version), cell: None, ..change });
                }
                Outcome::Lost(_) => there.push(change.key),
            }
        }
        // Lost: somebody has written there since.
        for outcome in self.set_each(&deletions) {
            outcome?;
        }
        Ok(there)
    }

    /// Whether a cell is at this version, and that is certain.
    pub(super) fn is_at(&self, key: &CellKey, at: Version) -> bool {
        self.set_each_and_compare(&[], &[Compared { key: key.clone(), at }]).1
    }

    /// Compare-and-set until it is known what became of it. `answer`: it was sent once, and this came.
    fn pursue(
        &self,
        key: &CellKey,
        expected: Option<Version>,
        cell: Option<&Cell>,
        answer: Option<Result<Version, CasError>>,
    ) -> Result<Outcome, StoreError> {
        let mut answer = answer;
        let first = Next { expected, cell: cell.cloned() };
        let mut next = first.clone();
        let mut sent = false;
        let mut last = None;
        for round in 0..TRIES {
            match answer.take().unwrap_or_else(|| self.cells.cas(key, next.expected, next.cell.clone())) {
                Ok(version) if next.cell.as_ref() == cell => return Ok(Outcome::Done(version)),
                Ok(version) => next = Next { expected: Some(version), cell: cell.cloned() },
                Err(CasError::Store(error)) if !may_pass(&error) && !sent => return Err(error),
                Err(CasError::Store(error)) => last = Some(error),
                Err(CasError::Unknown(cause)) if !rules::holds(Rule::UnknownResolvedByReading) => {
                    return Err(StoreError::Engine { what: "no answer".into(), source: cause.into() });
                }
                // A conflict may be with an earlier copy of this very request, whose answer was lost.
                Err(error @ (CasError::Conflict | CasError::Unknown(_))) => {
                    sent = true;
                    let refused =
                        matches!(error, CasError::Conflict) || !rules::holds(Rule::LostOnlyWhenRefused);
                    let found = self.read(key).map_err(|error| StoreError::Unknown(error.to_string()))?;
                    match next.after(key, &first, found.as_ref()) {
                        After::Done => return Ok(Outcome::Done(Version::default())),
                        After::Other if refused => return Ok(Outcome::Lost(found)),
                        // Sent again, it is made or refused, whatever this server shows.
                        After::Same | After::Other => {}
                        After::Next(again) => {
                            next = again;
                            continue;
                        }
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

/// What is sent for a change of a cell.
#[derive(Clone)]
struct Next {
    expected: Option<Version>,
    cell: Option<Cell>,
}

/// What was read says of the request before it.
enum After {
    /// Nothing: to be sent again.
    Same,
    /// It was made.
    Done,
    /// It was not made, and is not to be, if this is of the present.
    Other,
    /// This is to be sent.
    Next(Next),
}

impl Next {
    /// `first`: what was to be done in the first place.
    fn after(&self, key: &CellKey, first: &Self, found: Option<&StoredCell>) -> After {
        let version = found.map(|found| found.version);
        let is_old = matches!((version, self.expected), (Some(found), Some(expected)) if found < expected);
        match (&first.cell, found) {
            _ if version == self.expected => After::Same,
            // What was shown of it is lost, as if it had never been sent.
            _ if version == first.expected => After::Next(first.clone()),
            _ if is_old => After::Same,
            // Made, but maybe nobody has it but the server that shows it.
            (Some(wanted), Some(found)) if *found.cell == *wanted => {
                After::Next(Self { expected: version, cell: Some(wanted.clone()) })
            }
            // An absence is no cell that could be written again: one without a document is made there, and deleted.
            (None, None) => match empty(key) {
                Some(cell) => After::Next(Self { expected: None, cell: Some(cell) }),
                None => After::Done,
            },
            (None, Some(found)) if Some(&*found.cell) == empty(key).as_ref() => {
                After::Next(Self { expected: version, cell: None })
            }
            _ => After::Other,
        }
    }
}

/// A cell that says nothing, where such a one can be.
fn empty(key: &CellKey) -> Option<Cell> {
    match key {
        CellKey::Document(key) if !matches!(key.kind(), Kind::Lock | Kind::Session) => {
            Some(Cell::Document(MarkedDocument { before: None, mark: None }))
        }
        _ => None,
    }
}

/// Whether to ask again may help.
fn may_pass(error: &StoreError) -> bool {
    matches!(error, StoreError::Engine { .. } | StoreError::Unknown(_))
}
