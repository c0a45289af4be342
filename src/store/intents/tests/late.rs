//! Requests that arrive late, and twice: after their commit was done, aborted, settled, or undone by others.

use std::sync::Arc;

use super::crashes::{World, above, see};
use super::faults::{Fault, Faulty, Sent};
use super::{add, clock, directory, entry, file, impatient, node, session};
use crate::document::{IntentId, MarkChange, SessionId};
use crate::store::cells::memory::MemoryCells;
use crate::store::cells::{Cell, CellKey, Cells};
use crate::store::intents::{IntentStore, create_slots, decide, settle};
use crate::store::{Commit, CommitError, Reader, Store, StoreError};

/// Delivers all requests again, the last first or the first first, and demands that nobody sees a difference.
fn deliver_again(cells: &MemoryCells, sent: &[Sent], onlooker: &impl Store) -> usize {
    let before = see(onlooker);
    let mut landed = 0;
    for sent in sent.iter().rev().chain(sent) {
        landed += usize::from(cells.cas(&sent.key, sent.expected, sent.cell.clone()).is_ok());
        assert_eq!(see(onlooker), before, "after {sent:?}");
    }
    landed
}

#[test]
fn what_arrives_late_does_no_harm() {
    let mut landed = 0;
    for covered in [true, false] {
        for request in 0..World::requests(covered) {
            for settled in [false, true] {
                let world = World::new(covered);
                let other = world.other.clone();
                world.faulty.arm(None);
                world.faulty.before(request, move || {
                    other.commit(&Commit::new().merge(node(1), add(1)).delete(above())).unwrap();
                });
                let _ = world.victim.commit(&world.rename);
                // Somebody removes what the rename has made, while its intent still stands as committed.
                world.other.commit(&Commit::new().delete(entry("b")).delete(entry("a"))).unwrap();
                if settled {
                    settle(&world.faulty.cells, &clock(), SessionId(2), 2).unwrap();
                }
                let sent = world.faulty.sent.lock().clone();
                landed += deliver_again(&world.faulty.cells, &sent, &*world.other);
                // What landed hinders nobody.
                let again = Commit::new().absent(entry("b")).put(entry("b"), file(1)).merge(node(1), add(1));
                world.other.commit(&again).unwrap();
                deliver_again(&world.faulty.cells, &sent, &*world.other);
            }
        }
    }
    assert!(landed > 0, "no request landed late");
}

#[test]
fn a_mark_that_arrives_after_its_slot_moved_on_means_nothing() {
    let cells = Arc::new(MemoryCells::new());
    let store = session(&cells, &impatient(), 1, 1);
    let mark = |number, change| {
        decide::marked(
            store.get(&node(1)).unwrap(),
            IntentId { session: SessionId(1), slot: 0, number },
            change,
        )
    };
    let key = CellKey::Document(node(1));
    // Of a use that is over, of one that never was, and of a session that nobody knows.
    for ino in 2..20 {
        store.commit(&Commit::new().put(node(ino), directory(ino))).unwrap();
    }
    let before = store.get(&node(1)).unwrap();
    let late = mark(3, MarkChange::Put(Box::new(directory(66))));
    let version = cells.cas(&key, None, Some(late)).unwrap();
    assert_eq!(store.get(&node(1)).unwrap(), before);
    let future = mark(1000, MarkChange::Put(Box::new(directory(66))));
    cells.cas(&key, Some(version), Some(future)).unwrap();
    assert_eq!(store.get(&node(1)).unwrap(), before);
    store.commit(&Commit::new().absent(node(1)).put(node(1), directory(5))).unwrap();
    let stored = cells.read(&key).unwrap().unwrap();
    let stranger = decide::marked(
        store.get(&node(1)).unwrap(),
        IntentId { session: SessionId(77), slot: 3, number: 1 },
        MarkChange::Delete,
    );
    cells.cas(&key, Some(stored.version), Some(stranger)).unwrap();
    assert_eq!(*store.get(&node(1)).unwrap().unwrap().document, directory(5));
}

#[test]
fn a_pending_intent_of_the_dead_is_aborted_by_whoever_waits_for_it() {
    let world = World::new(true);
    // It dies with everything marked, and nobody recovers it.
    world.faulty.arm(Some((6, Fault::Crash)));
    assert!(world.victim.commit(&world.rename).is_err());
    world.other.commit(&Commit::new().merge(node(1), add(1))).unwrap();
    assert_eq!(see(&*world.other), (vec![entry("a")], Some(1)));
}

#[test]
fn slots_that_were_sealed_or_taken_away_end_their_session() {
    let fenced = |store: &IntentStore<MemoryCells>| {
        let refused = store.commit(&Commit::new().put(node(1), directory(0)));
        matches!(refused, Err(CommitError::Store(StoreError::Fenced)))
    };
    let cells = Arc::new(MemoryCells::new());
    let slot = |session| CellKey::Slot(SessionId(session), 0);
    // Sealed before it is joined; it is told while it is joining.
    let (clock, first) = (clock(), SessionId(1));
    create_slots(&cells, &clock, first, 1).unwrap();
    create_slots(&cells, &clock, first, 1).unwrap();
    settle(&cells, &clock, first, 3).unwrap();
    assert!(matches!(create_slots(&cells, &clock, first, 1), Err(StoreError::Fenced)));
    // Taken away by recovery, and made again by a late copy of the request that made it.
    for used in [false, true] {
        let id = if used { 3 } else { 2 };
        let zombie = session(&cells, &clock, id, 1);
        if used {
            zombie.commit(&Commit::new().put(node(9), directory(0))).unwrap();
        }
        settle(&cells, &clock, SessionId(id), 1).unwrap();
        let stored = cells.read(&slot(id)).unwrap().unwrap();
        cells.cas(&slot(id), Some(stored.version), None).unwrap();
        cells.cas(&slot(id), None, Some(Cell::Slot(decide::free()))).unwrap();
        assert!(fenced(&zombie) && fenced(&zombie));
        assert_eq!(zombie.get(&node(1)).unwrap(), None, "reading is allowed");
    }
}

#[test]
fn a_commit_that_got_no_answer_is_unknown_and_completed_later() {
    let cells = Arc::new(MemoryCells::new());
    let faulty = Faulty::new(&cells);
    let store = session(&faulty, &impatient(), 1, 1);
    store.commit(&Commit::new().put(node(1), directory(0))).unwrap();
    let onlooker = session(&cells, &clock(), 2, 1);
    // Reading, pending, one mark; then the decision: lost, or made with its answer lost.
    for (fault, expected) in [(Fault::Crash, 0), (Fault::CrashAfter, 1)] {
        faulty.arm(Some((3, fault)));
        let outcome = store.commit(&Commit::new().merge(node(1), add(1)));
        assert!(matches!(outcome, Err(CommitError::Store(StoreError::Unknown(_)))), "{outcome:?}");
        assert_eq!(super::counter(&onlooker, 1), Some(expected));
        // The same slot is used again: what was in doubt is decided first, and nothing is done twice.
        faulty.arm(None);
        store.commit(&Commit::new().put(node(2), directory(0))).unwrap();
        assert_eq!(super::counter(&onlooker, 1), Some(expected));
    }
}

#[test]
fn a_merge_is_made_once_whatever_is_lost() {
    for request in 0..30 {
        let cells = Arc::new(MemoryCells::new());
        let faulty = Faulty::new(&cells);
        let store = session(&faulty, &impatient(), 1, 1);
        store.commit(&Commit::new().put(node(1), directory(0))).unwrap();
        faulty.arm(Some((request, Fault::AnswerLostOnce)));
        for _ in 0..4 {
            store.commit(&Commit::new().merge(node(1), add(1))).unwrap();
        }
        assert_eq!(super::counter(&store, 1), Some(4));
    }
}
