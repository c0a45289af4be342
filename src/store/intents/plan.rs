//! What a commit makes of what was read: what it is to mark, and what to compare. Pure.
//!
//! Imports the store's port, the cells' types, [`decide`](super::decide) and `rules`.

use std::collections::BTreeMap;

use super::decide;
use super::read::Seen;
use super::requests::Outcome;
use crate::document::{IntentId, Key, MarkChange, Stored, Version};
use crate::rules::{self, Rule};
use crate::store::cells::{Cell, CellKey, Change, Compared};
use crate::store::{Check, Commit, CommitError, StoreError, Write};

/// A document to mark.
pub(super) struct Step {
    pub(super) key: Key,
    /// What was read, and what the mark is set on.
    pub(super) at: Option<Version>,
    pub(super) current: Option<Stored>,
    pub(super) change: MarkChange,
}

/// What an attempt does once its checks have held.
pub(super) struct Planned {
    pub(super) steps: Vec<Step>,
    /// What is checked and not marked, as it was read.
    pub(super) compared: Vec<Compared>,
}

/// What was read, judged.
pub(super) enum Judged<'a> {
    Fits(Planned),
    /// These bear marks of others that are not decided.
    Hindered(Vec<(&'a Key, &'a Seen)>),
    /// The check of this document fails.
    Fails(Key),
}

/// The versions of all marks, or where somebody was faster.
pub(super) type Marked = Result<Vec<Version>, Key>;

impl Step {
    /// The change that takes the mark away which the intent, committed, has set at this version.
    pub(super) fn cleaned(&self, intent: IntentId, at: Version) -> Option<Change> {
        let marked = decide::marked(self.current.clone(), intent, self.change.clone());
        let Cell::Document(marked) = &marked else { return None };
        let cell = decide::cleaned(marked, at, true);
        let key = CellKey::Document(self.key.clone());
        Some(Change { key, expected: Some(at), cell, awaited: false })
    }
}

/// What a commit makes of what was read.
pub(super) fn judge<'a>(
    commit: &Commit,
    keys: &'a [Key],
    seen: &'a [Seen],
) -> Result<Judged<'a>, CommitError> {
    let found: BTreeMap<&Key, &Seen> = keys.iter().zip(seen).collect();
    let current = |key: &Key| found.get(key).and_then(|seen| seen.current.as_ref());
    if let Some(failed) = commit.checks.iter().find(|check| !check.holds(current(check.key()))) {
        return Ok(Judged::Fails(failed.key().clone()));
    }
    let changes = changes(commit, current)?;
    let marks_all = marks_checked(commit);
    let hinders = |key: &Key, seen: &Seen| {
        let marked_by_us = marks_all || changes.contains_key(key);
        seen.pending.as_ref().is_some_and(|pending| marked_by_us || pending.mark.change != MarkChange::Keep)
    };
    let hindering: Vec<_> = keys.iter().zip(seen).filter(|(key, seen)| hinders(key, seen)).collect();
    if !hindering.is_empty() && rules::holds(Rule::PendingMarksRespected) {
        return Ok(Judged::Hindered(hindering));
    }
    let step = |(key, seen): (&Key, &Seen)| {
        let change = changes.get(key).cloned().or_else(|| marks_all.then_some(MarkChange::Keep))?;
        Some(Step { key: key.clone(), at: seen.at, current: seen.current.clone(), change })
    };
    let steps = keys.iter().zip(seen).filter_map(step).collect();
    let rest = keys.iter().zip(seen).filter(|(key, _)| !changes.contains_key(key));
    let compared = if compares(commit) { rest.filter_map(as_read).collect() } else { Vec::new() };
    Ok(Judged::Fits(Planned { steps, compared }))
}

/// What is to be compared behind the marks.
pub(super) fn to_compare(planned: &Planned) -> &[Compared] {
    if rules::holds(Rule::CoveredChecksValidatedAfterMarking) { &planned.compared } else { &[] }
}

/// Whether all marks were set, and nothing else has changed.
pub(super) fn all_marked(
    Planned { steps, compared }: &Planned,
    outcomes: Vec<Result<Outcome, StoreError>>,
    unchanged: bool,
) -> Result<Marked, StoreError> {
    let mut versions = Vec::with_capacity(steps.len());
    for (step, outcome) in steps.iter().zip(outcomes) {
        match outcome? {
            Outcome::Done(version) => versions.push(version),
            Outcome::Lost(_) => return Ok(Err(step.key.clone())),
        }
    }
    match compared.first() {
        Some(Compared { key: CellKey::Document(key), .. }) if !unchanged => Ok(Err(key.clone())),
        _ => Ok(Ok(versions)),
    }
}

/// What each write makes of what is there.
fn changes<'a, 'b>(
    commit: &'a Commit,
    current: impl Fn(&Key) -> Option<&'b Stored>,
) -> Result<BTreeMap<&'a Key, MarkChange>, CommitError> {
    let change = |write: &'a Write| {
        let after = write.apply(current(write.key()))?;
        let change = after.map_or(MarkChange::Delete, |document| MarkChange::Put(Box::new(document)));
        Ok((write.key(), change))
    };
    commit.writes.iter().map(change).collect()
}

/// A document as it was read, to be compared. What is not there has no version, and is checked by its absence.
fn as_read((key, seen): (&Key, &Seen)) -> Option<Compared> {
    Some(Compared { key: CellKey::Document(key.clone()), at: seen.at? })
}

/// Whether what a commit checks and does not write is compared, and not marked: entries that locks cover, behind the marks
/// of entries that are written. So of two commits that write what the other one checks, one at least finds out.
fn compares(commit: &Commit) -> bool {
    let is_written = |key: &Key| commit.writes.iter().any(|write| write.key() == key);
    let may_be =
        |check: &Check| matches!(check, Check::Version(Key::Entry(..), _)) || is_written(check.key());
    commit.covered && commit.checks.iter().all(may_be)
}

/// Whether all that a commit checks is marked.
pub(super) fn marks_checked(commit: &Commit) -> bool {
    !compares(commit) && rules::holds(Rule::ChecksMarked)
}
