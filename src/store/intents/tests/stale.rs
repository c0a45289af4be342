//! Reads of a server that is behind: what was decided is not lost by them, and nobody waits for ever.

use std::sync::Arc;

use super::behind::Behind;
use super::crashes::see;
use super::later::Queue;
use super::{add, directory, entry, file, impatient, node, session};
use crate::document::{Key, SessionId, SlotState};
use crate::store::cells::{Cell, CellKey, Cells as _, StoredCell};
use crate::store::intents::{IntentStore, create_slots, settle};
use crate::store::{Commit, Reader as _, Store as _, StoreError};

const OWNER: SessionId = SessionId(1);
const SLOT: CellKey = CellKey::Slot(OWNER, 0);
/// More than anybody reads.
const FOR_EVER: usize = 100_000;

fn place(key: &Key) -> CellKey {
    CellKey::Document(key.clone())
}

/// The file `a` was renamed to `b`, and counted. The commit has returned, and nothing is cleaned up.
struct Renamed {
    cells: Arc<Behind>,
    owner: IntentStore<Behind>,
    queue: Arc<Queue>,
    /// What was there before it, of each document and of the slot.
    before: Vec<(CellKey, Option<StoredCell>)>,
}

impl Renamed {
    fn new() -> Self {
        let (cells, queue) = (Arc::new(Behind::default()), Arc::new(Queue::default()));
        let set_up = session(&cells, &impatient(), 3, 1);
        set_up.commit(&Commit::new().put(node(1), directory(0)).put(entry("a"), file(7))).unwrap();
        let documents = [entry("a"), entry("b"), node(1)].map(|key| place(&key));
        let mut before: Vec<_> = documents.map(|key| (key.clone(), cells.read(&key).unwrap())).into();
        before.push((SLOT, None));
        let owner = session(&cells, &impatient(), OWNER.0, 1).cleaning_up(queue.clone());
        let rename = Commit::new().delete(entry("a")).put(entry("b"), file(7)).merge(node(1), add(1));
        owner.commit(&rename).unwrap();
        Self { cells, owner, queue, before }
    }

    /// So many reads of each of these find what was there before.
    fn show_before(&self, times: usize, which: impl Fn(&CellKey) -> bool) {
        let before = self.before.iter().filter(|(key, _)| which(key));
        self.cells.early.lock().extend(before.flat_map(|one| std::iter::repeat_n(one.clone(), times)));
    }

    fn settle(&self) -> Result<(), StoreError> {
        settle(&self.cells, &impatient(), OWNER, 1).map(drop)
    }

    /// As it is when all is over: the slot vouches for nothing any more.
    fn is_seen_without_its_slot(&self) {
        self.cells.early.lock().clear();
        let sealed = self.cells.read(&SLOT).unwrap().unwrap();
        assert!(matches!(&*sealed.cell, Cell::Slot(slot) if slot.state == SlotState::Sealed), "{sealed:?}");
        self.cells.cas(&SLOT, Some(sealed.version), None).unwrap();
        self.is_seen();
    }

    fn is_seen(&self) {
        assert_eq!(see(&session(&self.cells, &impatient(), 4, 1)), (vec![entry("b")], Some(1)));
    }
}

#[test]
fn its_owner_takes_no_mark_for_gone_that_a_server_does_not_show() {
    for times in [1, 3, FOR_EVER] {
        for key in [entry("a"), entry("b"), node(1)] {
            let renamed = Renamed::new();
            *renamed.cells.lost.lock() = Some(place(&key));
            renamed.show_before(times, |shown| *shown == place(&key));
            renamed.queue.work_off();
            assert!(renamed.cells.lost.lock().is_none());
            renamed.cells.early.lock().clear();
            // The slot is used for something else, and says no more what the marks mean.
            renamed.owner.commit(&Commit::new().put(node(8), directory(0))).unwrap();
            renamed.queue.work_off();
            renamed.is_seen();
        }
    }
}

#[test]
fn a_write_that_is_too_late_is_given_up_whatever_is_shown() {
    let renamed = Renamed::new();
    // Somebody else cleans up and removes it, and the owner hears nothing of that.
    session(&renamed.cells, &impatient(), 4, 1).commit(&Commit::new().delete(entry("b"))).unwrap();
    *renamed.cells.lost.lock() = Some(place(&entry("b")));
    renamed.queue.work_off();
    renamed.owner.commit(&Commit::new().put(node(8), directory(0))).unwrap();
    assert!(renamed.owner.get(&entry("b")).unwrap().is_none());
}

#[test]
fn a_recoverer_takes_no_mark_for_gone_that_a_server_does_not_show() {
    for times in [1, 3] {
        for document in 0..3 {
            let renamed = Renamed::new();
            let shown = renamed.before[document].0.clone();
            renamed.show_before(times, |key| *key == shown);
            renamed.settle().unwrap();
            renamed.is_seen_without_its_slot();
        }
    }
}

#[test]
fn a_recoverer_takes_no_slot_for_unmade_that_a_server_does_not_show() {
    for times in [1, 3] {
        let renamed = Renamed::new();
        renamed.show_before(times, |key| *key == SLOT);
        renamed.settle().unwrap();
        renamed.is_seen_without_its_slot();
    }
}

#[test]
fn a_server_that_stays_behind_is_no_reason_to_wait_for_ever_or_to_give_anything_up() {
    for at in 0..4 {
        let renamed = Renamed::new();
        let shown = renamed.before[at].0.clone();
        renamed.show_before(FOR_EVER, |key| *key == shown);
        assert!(renamed.settle().is_err(), "{shown:?}");
        renamed.cells.early.lock().clear();
        renamed.is_seen();
        renamed.settle().unwrap();
        renamed.is_seen_without_its_slot();
    }
}

#[test]
fn a_mark_that_is_lost_for_certain_holds_up_no_recovery() {
    for document in 0..3 {
        let renamed = Renamed::new();
        let (key, before) = renamed.before[document].clone();
        renamed.cells.cells.put_back(&key, before.clone());
        renamed.settle().unwrap();
        assert_eq!(renamed.cells.read(&key).unwrap(), before);
    }
}

#[test]
fn a_slot_that_is_not_there_is_sealed_and_its_session_never_lives() {
    let cells = Arc::new(Behind::default());
    settle(&cells, &impatient(), OWNER, 2).unwrap();
    assert!(matches!(create_slots(&cells, &impatient(), OWNER, 2), Err(StoreError::Fenced)));
}
