//! One attempt at a commit: begin, read and check, mark and validate, decide.
//!
//! Owns the order of these steps. What each may do to a slot or a cell is in [`decide`](super::decide).
//!
//! What is hard:
//! - Every step may find that somebody else was there: then the attempt is aborted and made again from the start, with the
//!   checks evaluated again. Only a check that fails on what was read is a conflict.
//! - Nobody waits while documents bear its marks, so nobody waits in a circle. Who meets a pending mark waits before it
//!   marks anything, and aborts the other's intent in the end, since its owner may be gone.
//! - An attempt may be left at any point, by an error or a panic: its slot stays in doubt, and is looked at before it is
//!   used again.

use std::collections::{BTreeSet, HashMap};

use super::IntentStore;
use super::decide;
use super::known::Foreseen;
use super::plan::{Judged, Marked, Planned, Step, all_marked, judge, marks_checked, to_compare};
use super::read::Seen;
use super::requests::{Outcome, Requests};
use super::settle::{clean, read_slot, slot_of};
use super::slots::OwnSlot;
use crate::document::{IntentId, Key, MarkChange, SessionId, SlotState, Version};
use crate::rules::{self, Rule};
use crate::store::cells::{Beside, Cell, CellKey, Cells, Change, StoredCell};
use crate::store::{Commit, CommitError, Granting, StoreError};

/// How often somebody else's pending intent is looked at before it is aborted: with the pauses in between, for more than a
/// second, in which a living owner makes some twenty requests to the slowest of engines.
const POLLS_MAX: u32 = 12;
/// How often one attempt waits for others, whoever they are.
const WAITS_MAX: u32 = 4 * POLLS_MAX;
/// How often a slot of one's own is looked at again because others change it.
const LOOKS_MAX: u32 = 16;

/// How an attempt ended.
pub(super) enum Attempt {
    /// The commit has taken effect. Its marks are to be taken away by these changes.
    Committed { version: Version, marks: Vec<Change> },
    /// Others were in the way at this key; nothing was changed.
    Hindered(Key),
    /// It was not to be made: nothing was changed. Whether marks may be left.
    Refused { marked: bool },
}

/// What [`IntentStore::decide`] found out.
enum Decision {
    Committed,
    Overtaken,
}

impl<C: Cells + ?Sized + 'static> IntentStore<C> {
    /// Tries once. `granting`: the first attempt asks it before it decides anything, and before it marks anything unless
    /// [`at_once`](super::at_once) says that it may. `trusts`: whether it goes by what is known of documents, and reads only
    /// the others.
    ///
    /// # Errors
    /// [`CommitError::Conflict`] for a check that fails; nothing was changed then. [`StoreError::Unknown`] only if it may
    /// have taken effect.
    pub(super) fn attempt(
        &self,
        own: &mut OwnSlot,
        commit: &Commit,
        granting: Option<Granting<'_>>,
        trusts: bool,
    ) -> Result<Attempt, CommitError> {
        let written: BTreeSet<&Key> = commit.writes.iter().map(|write| write.key()).collect();
        let checked = commit.checks.iter().map(|check| check.key());
        let keys: BTreeSet<&Key> = written.iter().copied().chain(checked).collect();
        let marked = if marks_checked(commit) { keys.clone() } else { written };
        // What is only compared must not change either.
        self.requests.wait_for(&self.cleaning, &keys, || self.refuse().is_ok());
        let keys: Vec<Key> = keys.into_iter().cloned().collect();
        let (mut found, mut granted) = (None, granting.is_none());
        let mut foreseen = vec![None; keys.len()];
        if !marked.is_empty() {
            if trusts {
                foreseen = self.known.foresee(commit, &keys, self.requests.now());
                if own.is_open()
                    && let Some(planned) = self.plan_foreseen(commit, &keys, &foreseen)
                {
                    return self.attempt_at_once(own, &keys, &planned, granting);
                }
            }
            let beside =
                granting.map(|granting| -> Beside<'_> { Box::new(|along| granted = granting(Some(along))) });
            found = self.begin(own, &marked, &keys, &foreseen, beside).map_err(nothing_changed)?;
        } else if let Some(granting) = granting {
            granted = granting(None);
        }
        if !granted {
            return Ok(Attempt::Refused { marked: false });
        }
        let trusts = found.is_some() && foreseen.iter().any(Option::is_some);
        let Planned { steps, compared } = match self.plan(commit, &keys, found, trusts) {
            Ok(Ok(planned)) => planned,
            Ok(Err(hindered)) => return self.give_up(own, hindered),
            Err(CommitError::Store(error)) => return Err(nothing_changed(error).into()),
            Err(conflict) => return Err(conflict),
        };
        if steps.is_empty() {
            return Ok(Attempt::Committed { version: Version::default(), marks: Vec::new() });
        }
        self.known.forget(steps.iter().map(|step| &step.key));
        let planned = Planned { steps, compared };
        let marked = self.mark(own, &planned);
        if trusts && matches!(marked, Ok(Err(_))) {
            self.known.doubt(&keys, self.requests.now());
        }
        self.finish(own, &planned, marked)
    }

    /// Decides a use whose marks were set, or gives it up.
    pub(super) fn finish(
        &self,
        own: &mut OwnSlot,
        Planned { steps, compared }: &Planned,
        marked: Result<Marked, StoreError>,
    ) -> Result<Attempt, CommitError> {
        let first = || steps.first().map_or(Key::Volume, |step| step.key.clone());
        let versions = match marked.map_err(nothing_changed) {
            Ok(Ok(versions)) => versions,
            Ok(Err(hindered)) => return self.give_up(own, hindered),
            Err(error) => return self.give_up(own, first()).and(Err(error.into())),
        };
        self.known.found_equal(compared, self.requests.now());
        match self.decide(own, &versions)? {
            Decision::Committed => {}
            Decision::Overtaken => return self.give_up(own, first()),
        }
        let marks = self.marks(own, steps, &versions);
        let written = |step: &&Step| step.change != MarkChange::Keep;
        let versions =
            steps.iter().zip(&versions).filter(|(step, _)| written(step)).map(|(_, version)| *version);
        Ok(Attempt::Committed { version: versions.max().unwrap_or_default(), marks })
    }

    /// Evaluates the checks and says what is to be marked, in the order of the keys; or what is in the way. `found`: what
    /// was read of them just now, or, if it only `trusts` in that, is known of them.
    fn plan(
        &self,
        commit: &Commit,
        keys: &[Key],
        mut found: Option<Vec<Option<StoredCell>>>,
        mut trusts: bool,
    ) -> Result<Result<Planned, Key>, CommitError> {
        let mut polls = HashMap::new();
        let mut had_misfit = false;
        for round in 0..WAITS_MAX {
            let seen = self.see_found(keys, found.take())?;
            match judge(commit, keys, &seen) {
                Ok(Judged::Fits(planned)) => return Ok(Ok(planned)),
                // Nothing is concluded from what may be old.
                Ok(Judged::Fails(_)) if trusts => trusts = false,
                Ok(Judged::Fails(key)) => return Err(CommitError::Conflict(key)),
                Ok(Judged::Hindered(by)) => self.give_way(&by, &mut polls, round)?,
                // What was read is not of one instant: an entry may have gone, and been counted off its directory, between
                // the look at it and the one at the directory. Then the check of the entry fails at the next look; if it
                // holds, the entry was there all the time, and the count is wrong.
                Err(CommitError::Store(StoreError::Damaged { .. })) if trusts || !had_misfit => {
                    had_misfit = !std::mem::take(&mut trusts);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Err(keys.first().cloned().unwrap_or(Key::Volume)))
    }

    /// What is to be done if all is as it is known: none if something is not known, or would keep it from being done.
    fn plan_foreseen(&self, commit: &Commit, keys: &[Key], foreseen: &[Foreseen]) -> Option<Planned> {
        let known: Vec<_> = foreseen.iter().cloned().collect::<Option<_>>()?;
        // No mark is known, so nothing is read.
        let seen = self.see_found(keys, Some(known)).ok()?;
        match judge(commit, keys, &seen) {
            Ok(Judged::Fits(planned)) => Some(planned),
            _ => None,
        }
    }

    /// Waits for pending intents of others, and aborts those that have been waited for long enough.
    fn give_way(
        &self,
        hindering: &[(&Key, &Seen)],
        polls: &mut HashMap<IntentId, u32>,
        round: u32,
    ) -> Result<(), StoreError> {
        for pending in hindering.iter().filter_map(|(_, seen)| seen.pending.as_ref()) {
            let intent = pending.mark.intent;
            let polls = polls.entry(intent).or_default();
            *polls += 1;
            if *polls > POLLS_MAX
                && let Some(aborted) = decide::abort(&pending.slot)
            {
                let key = CellKey::Slot(intent.session, intent.slot);
                // Whatever comes of it: the next look tells.
                self.requests.set(&key, Some(pending.version), Some(&Cell::Slot(aborted)))?;
            }
        }
        self.requests.pause(round);
        Ok(())
    }

    /// Makes the slot pending for what is to be marked, and reads those of the keys meanwhile that are not foreseen, and
    /// does `beside`. Returns what there is under each key; none if it could not be read.
    fn begin(
        &self,
        own: &mut OwnSlot,
        marked: &BTreeSet<&Key>,
        keys: &[Key],
        foreseen: &[Foreseen],
        mut beside: Option<Beside<'_>>,
    ) -> Result<Option<Vec<Option<StoredCell>>>, StoreError> {
        let key = slot_key(self.session, own);
        let unknown =
            || keys.iter().zip(foreseen).filter(|(_, foreseen)| foreseen.is_none()).map(|(key, _)| key);
        let read: Vec<_> = unknown().cloned().map(CellKey::Document).collect();
        for _ in 0..LOOKS_MAX {
            if own.in_doubt {
                look_after(&self.requests, self.session, own)?;
            }
            let asked = self.requests.now();
            let next = own.begin(marked.iter().copied().cloned()).ok_or(StoreError::Fenced)?;
            let pending = Cell::Slot(next.clone());
            let (outcome, found) =
                self.requests.set_and_read(&key, Some(own.version), &pending, &read, beside.take());
            match outcome? {
                Outcome::Done(version) => {
                    own.know(next, version);
                    let Some(found) = found else { return Ok(None) };
                    self.counts.fetched(read.len());
                    unknown().zip(&found).for_each(|(key, cell)| self.known.saw(key, cell.as_ref(), asked));
                    let mut found = found.into_iter();
                    let each =
                        |foreseen: &Foreseen| foreseen.clone().unwrap_or_else(|| found.next().flatten());
                    return Ok(Some(foreseen.iter().map(each).collect()));
                }
                Outcome::Lost(found) => accept(own, &key, found.as_ref())?,
            }
        }
        Err(unsteady(&key))
    }

    pub(super) fn intent(&self, own: &OwnSlot) -> IntentId {
        intent(self.session, own)
    }

    /// Sets all marks, in any order, and compares what is not marked behind them: now that nothing that is written can
    /// change (as Silo does with what it has read: Tu et al., SOSP 2013). Returns the versions of the marks, or where
    /// somebody was faster. A comparison that fails is never made good by a read, which may come from a server that does
    /// not have the marks of others yet: of two commits that write what the other one checks both would win.
    pub(super) fn mark(&self, own: &OwnSlot, planned: &Planned) -> Result<Marked, StoreError> {
        let changes = self.marking(own, &planned.steps)?;
        let compared = to_compare(planned);
        let (outcomes, unchanged) = if compared.is_empty() {
            (self.requests.set_each(&changes), true)
        } else {
            self.requests.set_each_and_compare(&changes, compared)
        };
        all_marked(planned, outcomes, unchanged)
    }

    /// The changes that set all marks.
    pub(super) fn marking(&self, own: &OwnSlot, steps: &[Step]) -> Result<Vec<Change>, StoreError> {
        let intent = self.intent(own);
        let mut changes = Vec::with_capacity(steps.len());
        for step in steps {
            let key = CellKey::Document(step.key.clone());
            let cell = decide::marked(step.current.clone(), intent, step.change.clone());
            let expected = if rules::holds(Rule::MarkSetByCas) {
                step.at
            } else {
                self.requests.read(&key)?.map(|stored| stored.version)
            };
            changes.push(Change { key, expected, cell: Some(cell), awaited: false });
        }
        Ok(changes)
    }

    /// The moment of change.
    fn decide(&self, own: &mut OwnSlot, versions: &[Version]) -> Result<Decision, StoreError> {
        let key = slot_key(self.session, own);
        let Some(next) = decide::commit(&own.slot, versions) else { return Ok(Decision::Overtaken) };
        let mut at = own.version;
        loop {
            match self.requests.set(&key, Some(at), Some(&Cell::Slot(next.clone())))? {
                Outcome::Done(version) => {
                    own.know(next, version);
                    return Ok(Decision::Committed);
                }
                Outcome::Lost(Some(found)) if !rules::holds(Rule::IntentDecidedByCas) => at = found.version,
                Outcome::Lost(found) => return self.decided_by_others(own, &key, found.as_ref()),
            }
        }
    }

    fn decided_by_others(
        &self,
        own: &mut OwnSlot,
        key: &CellKey,
        found: Option<&StoredCell>,
    ) -> Result<Decision, StoreError> {
        let slot = found.map(|stored| slot_of(key, stored)).transpose()?.map(|(slot, _)| slot);
        // Dead, recovered and tidied away: the slot cannot say any more whether its last use was committed. A free one was
        // made by a request of long ago, after that.
        let Some(slot) = slot.filter(|slot| slot.state != SlotState::Free) else {
            self.fence();
            return Err(StoreError::Unknown("the session was declared dead meanwhile".into()));
        };
        if decide::was_committed(&slot, own.slot.number) {
            self.fence();
            return Ok(Decision::Committed);
        }
        accept(own, key, found)?;
        Ok(Decision::Overtaken)
    }

    /// The changes that take the marks of a committed use away.
    fn marks(&self, own: &mut OwnSlot, steps: &[Step], versions: &[Version]) -> Vec<Change> {
        if !rules::holds(Rule::MarksGoneBeforeReuse) {
            own.in_doubt = false;
            return Vec::new();
        }
        let intent = self.intent(own);
        steps.iter().zip(versions).filter_map(|(step, at)| step.cleaned(intent, *at)).collect()
    }

    /// Ends an attempt that has changed nothing, and takes its marks away so that it hinders nobody.
    fn give_up(&self, own: &mut OwnSlot, hindered: Key) -> Result<Attempt, CommitError> {
        match look_after(&self.requests, self.session, own) {
            Err(StoreError::Fenced) => Err(StoreError::Fenced.into()),
            // Whatever else fails: the slot stays in doubt, and others may abort it.
            _ => Ok(Attempt::Hindered(hindered)),
        }
    }
}

/// Ends a use that has marked nothing.
pub(super) fn take_back<C: Cells + ?Sized>(
    requests: &Requests<C>,
    session: SessionId,
    own: &mut OwnSlot,
) -> Result<(), StoreError> {
    let Some(aborted) = decide::abort(&own.slot) else { return look_after(requests, session, own) };
    let cell = Cell::Slot(aborted.clone());
    let Outcome::Done(version) = requests.set(&slot_key(session, own), Some(own.version), Some(&cell))?
    else {
        return look_after(requests, session, own);
    };
    own.know(aborted, version);
    own.in_doubt = false;
    Ok(())
}

/// Brings a slot that may hold anything of its session's back to where it can be used again: what it has committed is
/// completed, all else aborted.
pub(super) fn look_after<C: Cells + ?Sized>(
    requests: &Requests<C>,
    session: SessionId,
    own: &mut OwnSlot,
) -> Result<(), StoreError> {
    let key = slot_key(session, own);
    for round in 0..LOOKS_MAX {
        match read_slot(requests, &key)? {
            Some((_, version)) if version == own.version => {}
            // An old read, from a server that has been replaced, says nothing.
            Some((_, version)) if version < own.version => {
                requests.pause(round);
                continue;
            }
            // Only read: it is made certain, or it may be gone with the server that shows it.
            Some((slot, version)) if decide::is_own(own.slot.number, own.attempted, Some(&slot)) => {
                match requests.set(&key, Some(version), Some(&Cell::Slot(slot.clone())))? {
                    Outcome::Done(version) => own.know(slot, version),
                    Outcome::Lost(_) => continue,
                }
            }
            _ => return Err(StoreError::Fenced),
        }
        let intent = intent(session, own);
        match own.slot.state {
            SlotState::Pending => {
                if let Some(aborted) = decide::abort(&own.slot) {
                    requests.set(&key, Some(own.version), Some(&Cell::Slot(aborted)))?;
                }
                continue;
            }
            SlotState::Committed | SlotState::Aborted => clean(requests, &[(intent, &own.slot)])?,
            SlotState::Free => {}
            SlotState::Sealed => return Err(StoreError::Fenced),
        }
        own.in_doubt = false;
        return Ok(());
    }
    Err(unsteady(&key))
}

pub(super) fn slot_key(session: SessionId, own: &OwnSlot) -> CellKey {
    CellKey::Slot(session, own.index)
}

fn intent(session: SessionId, own: &OwnSlot) -> IntentId {
    IntentId { session, slot: own.index, number: own.slot.number }
}

/// Whether what was found in the slot's cell is still this session's, which then looks after it.
pub(super) fn accept(own: &OwnSlot, key: &CellKey, found: Option<&StoredCell>) -> Result<(), StoreError> {
    let found = found.map(|stored| slot_of(key, stored)).transpose()?;
    match found {
        Some((slot, _)) if decide::is_own(own.slot.number, own.attempted, Some(&slot)) => Ok(()),
        _ => Err(StoreError::Fenced),
    }
}

/// An error before the commit was asked for: that it will never take effect is certain, whatever became of the request.
pub(super) fn nothing_changed(error: StoreError) -> StoreError {
    match error {
        StoreError::Unknown(cause) => {
            StoreError::Engine { what: "preparing a commit".into(), source: cause.into() }
        }
        other => other,
    }
}

fn unsteady(key: &CellKey) -> StoreError {
    StoreError::Engine { what: format!("using {key:?}"), source: "it keeps changing".into() }
}
