//! The rules of intents as pure functions: which side of a mark is true, what a slot and a marked document may become.
//!
//! Production, the simulator and the model checker decide by these. Imports `document`, the cells' types and `rules`. What
//! is hard is said at each function; docs/intents.md has the proof.

use crate::document::{IntentId, Key, Mark, MarkChange, Marked, Slot, SlotState, Stored, Version};
use crate::rules::{self, Rule};
use crate::store::cells::{Cell, MarkedDocument};

/// What a slot says of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Not decided yet: what was before is true as long as the slot stays as it is.
    Undecided,
    /// What was before is true, for ever.
    Before,
    /// What comes after is true.
    After,
    /// The slot says nothing of this mark any more, or never did: the mark has been taken away since it was read, or it is
    /// a leftover that arrived late. If the document is still at the version at which the mark was read, it is a leftover,
    /// and what was before is true; else read again.
    MovedOn,
}

/// What `slot` (none: there is no such slot) says of the mark of `intent` that was read before it under `key`, in a cell at
/// version `at`.
///
/// Why `MovedOn` is safe: a slot leaves the state committed only when all marks that it lists are gone, and a mark that
/// it does not list was set by no request that its owner counts on.
pub fn verdict(intent: IntentId, key: &Key, at: Version, slot: Option<&Slot>) -> Verdict {
    if !rules::holds(Rule::ReaderAsksTheIntent) {
        return Verdict::Before;
    }
    match meaning(intent, key, at, slot) {
        Verdict::MovedOn if !rules::holds(Rule::ReaderReadsAgainWhenTheSlotMovedOn) => Verdict::Before,
        verdict => verdict,
    }
}

fn meaning(intent: IntentId, key: &Key, at: Version, slot: Option<&Slot>) -> Verdict {
    let Some(slot) = slot.filter(|slot| slot.number == intent.number) else { return Verdict::MovedOn };
    match slot.state {
        SlotState::Pending => Verdict::Undecided,
        SlotState::Aborted => Verdict::Before,
        // What is sealed was committed before, if it lists the mark at a version.
        SlotState::Committed | SlotState::Sealed if lists(slot, key, at) => Verdict::After,
        SlotState::Committed | SlotState::Free | SlotState::Sealed => Verdict::MovedOn,
    }
}

/// Whether a slot that was committed stands for the mark under `key` in the cell at version `at`.
///
/// A request that makes a cell, and so has no version to compare, may be delivered again after the document was deleted,
/// while its slot is still committed. Its second mark has another version than the one that was committed.
fn lists(slot: &Slot, key: &Key, at: Version) -> bool {
    let duplicates_ignored = rules::holds(Rule::DuplicateMarksIgnored);
    slot.marked.iter().any(|marked| marked.key == *key && (marked.version == Some(at) || !duplicates_ignored))
}

/// What a reader sees of a cell at version `at`; `after`: whether the intent of its mark is committed.
pub fn document(cell: &MarkedDocument, at: Version, after: bool) -> Option<Stored> {
    match &cell.mark {
        Some(mark) if after => match &mark.change {
            MarkChange::Put(document) => Some(Stored { version: at, document: (**document).clone().into() }),
            MarkChange::Delete => None,
            MarkChange::Keep => cell.before.clone(),
        },
        _ => cell.before.clone(),
    }
}

/// The cell with a mark. `current` is what a reader sees there now: a decided mark that stood there is thereby cleaned up.
pub fn marked(current: Option<Stored>, intent: IntentId, change: MarkChange) -> Cell {
    Cell::Document(MarkedDocument { before: current, mark: Some(Mark { intent, change }) })
}

/// What becomes of a marked cell at version `at` when its mark is rolled forward (`committed`) or back. None: the cell is
/// deleted.
pub fn cleaned(cell: &MarkedDocument, at: Version, committed: bool) -> Option<Cell> {
    let before = document(cell, at, committed)?;
    Some(Cell::Document(MarkedDocument { before: Some(before), mark: None }))
}

/// A slot as it is made.
pub fn free() -> Slot {
    Slot { number: 0, state: SlotState::Free, marked: Vec::new() }
}

/// The next use of a slot, which will mark `keys`. None while it is in use, or sealed. Of a committed use all marks must be
/// gone; of an aborted one none need be.
pub fn begin(slot: &Slot, keys: impl IntoIterator<Item = Key>) -> Option<Slot> {
    match slot.state {
        SlotState::Free | SlotState::Committed | SlotState::Aborted => Some(Slot {
            number: slot.number + 1,
            state: SlotState::Pending,
            marked: keys.into_iter().map(|key| Marked { key, version: None }).collect(),
        }),
        SlotState::Pending | SlotState::Sealed => None,
    }
}

/// A use that was begun before anybody knew what it will mark, and marks these documents now: see [`is_open`].
pub fn name(slot: &Slot, keys: impl IntoIterator<Item = Key>) -> Option<Slot> {
    let marked = keys.into_iter().map(|key| Marked { key, version: None }).collect();
    is_open(slot).then(|| Slot { marked, ..slot.clone() })
}

/// Whether a use is begun that names no document yet. It may come to name some, and marks under its number stand from then
/// on, or a moment before. It cannot commit before.
pub fn is_open(slot: &Slot) -> bool {
    slot.state == SlotState::Pending && slot.marked.is_empty()
}

/// The slot committed: only from pending, with all marks set. `versions` are those of the cells with the marks, in the
/// order of the slot's keys.
pub fn commit(slot: &Slot, versions: &[Version]) -> Option<Slot> {
    if slot.state != SlotState::Pending || is_open(slot) || slot.marked.len() != versions.len() {
        return None;
    }
    let listed = |(marked, at): (&Marked, &Version)| Marked { key: marked.key.clone(), version: Some(*at) };
    let marked = slot.marked.iter().zip(versions).map(listed).collect();
    Some(Slot { number: slot.number, state: SlotState::Committed, marked })
}

/// The slot aborted: only from pending. Anyone may do it; the compare-and-set decides.
pub fn abort(slot: &Slot) -> Option<Slot> {
    (slot.state == SlotState::Pending).then(|| Slot { state: SlotState::Aborted, ..slot.clone() })
}

/// The slot sealed: only once it is decided, or names nothing that it could commit, and all marks of a committed use are
/// gone. The list of marks stays, so that an owner that is still running can tell what became of its last use
/// ([`was_committed`]).
pub fn seal(slot: &Slot) -> Option<Slot> {
    let is_settled = match slot.state {
        SlotState::Free | SlotState::Committed | SlotState::Aborted => true,
        SlotState::Pending => is_open(slot),
        SlotState::Sealed => false,
    };
    is_settled.then(|| Slot { state: SlotState::Sealed, ..slot.clone() })
}

/// What recovery does next with a slot of a dead session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Settling {
    /// [`abort`] it.
    Abort,
    /// Roll its marks forward, then [`seal`] it.
    RollForward,
    /// Take its marks away, for good order, then [`seal`] it.
    RollBack,
    /// [`seal`] it.
    Seal,
    /// Nothing: it is sealed.
    Done,
}

/// What recovery does next with a slot.
pub fn settling(slot: &Slot) -> Settling {
    match slot.state {
        SlotState::Sealed => Settling::Done,
        SlotState::Free => Settling::Seal,
        SlotState::Pending if is_open(slot) => Settling::Seal,
        SlotState::Pending => Settling::Abort,
        SlotState::Committed => Settling::RollForward,
        SlotState::Aborted => Settling::RollBack,
    }
}

/// Whether its owner may go on with a slot that it last knew under the number `known`, under which it has tried no number
/// above `attempted`, and where it now finds `found` in a cell that has changed. If not, the session is dead.
///
/// A slot that is free in a changed cell is a late duplicate of the request that made it: it was deleted in between.
pub fn is_own(known: u64, attempted: u64, found: Option<&Slot>) -> bool {
    let in_use =
        |slot: &&Slot| matches!(slot.state, SlotState::Pending | SlotState::Committed | SlotState::Aborted);
    found.filter(in_use).is_some_and(|slot| (known..=attempted).contains(&slot.number))
}

/// Whether a sealed slot says that its use under `number` was committed: what it marked is listed with versions.
pub fn was_committed(slot: &Slot, number: u64) -> bool {
    slot.state == SlotState::Sealed
        && slot.number == number
        && !slot.marked.is_empty()
        && slot.marked.iter().all(|marked| marked.version.is_some())
}
