//! Servers that show what they lose: a write that nobody was answered, and that is read, may be gone with its server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::crashes::{World, renamed};
use super::faults::{Fault, Faulty};
use super::{entry, file, impatient, node, session};
use crate::store::cells::memory::MemoryCells;
use crate::store::cells::{CellKey, Cells};
use crate::store::intents::requests::{Outcome, Requests};
use crate::store::{Commit, Store};

/// A rename that loses the answer to each of its requests in turn, with `meanwhile` armed before it.
fn lose_each_answer(meanwhile: impl Fn(&World, u64), after: impl Fn(&World)) {
    for covered in [true, false] {
        for request in 0..World::requests(covered) {
            let world = World::new(covered);
            world.faulty.arm(Some((request, Fault::AnswerLostOnce)));
            meanwhile(&world, request);
            world.victim.commit(&world.rename).unwrap();
            after(&world);
            assert!(renamed(&*world.other), "after request {request}");
        }
    }
}

#[test]
fn what_was_answered_is_kept_when_another_server_takes_over() {
    let fail_over = |world: &World| {
        world.faulty.fail_over();
        assert!(renamed(&*world.other));
        // The slots are used for something else, so that nothing vouches for marks which have come back.
        world.faulty.arm(None);
        for ino in 8..12 {
            world.victim.commit(&Commit::new().put(node(ino), super::directory(0))).unwrap();
        }
    };
    lose_each_answer(|_, _| {}, fail_over);
}

/// The server goes after it was read, and before the write on top of that.
#[test]
fn what_was_read_and_lost_is_made_again() {
    let lost = Arc::new(AtomicU64::new(0));
    let fail_over = |world: &World, request| {
        let (faulty, lost) = (world.faulty.clone(), lost.clone());
        world.faulty.before(request + 2, move || {
            lost.fetch_add(faulty.fail_over().into(), Relaxed);
        });
    };
    lose_each_answer(fail_over, |_| {});
    assert!(lost.load(Relaxed) > 10, "hardly anything was lost");
}

#[test]
fn an_unanswered_write_is_made_once_more_and_an_absence_as_well() {
    let cells = Arc::new(MemoryCells::new());
    let faulty = Faulty::new(&cells);
    let store = session(&faulty, &impatient(), 1, 1);
    store.commit(&Commit::new().put(entry("a"), file(7))).unwrap();
    let key = CellKey::Document(entry("a"));
    let requests = Requests::new(faulty.clone(), impatient(), 1);
    let there = cells.read(&key).unwrap().unwrap();
    let made = |expected, cell| {
        faulty.arm(Some((0, Fault::AnswerLostOnce)));
        let outcome = requests.set(&key, expected, cell).unwrap();
        assert!(!faulty.fail_over(), "nothing is left that nobody answered");
        assert!(matches!(outcome, Outcome::Done(_)));
    };
    made(Some(there.version), None);
    assert_eq!(cells.read(&key).unwrap(), None);
    made(None, Some(&there.cell));
    assert_eq!(cells.read(&key).unwrap().unwrap().cell, there.cell);
}

/// What a server says that has not got the last change yet.
#[test]
fn an_old_answer_ends_no_session() {
    let cells = Arc::new(MemoryCells::new());
    let faulty = Faulty::new(&cells);
    let store = session(&faulty, &impatient(), 1, 1);
    let slot = CellKey::Slot(crate::document::SessionId(1), 0);
    let commit = |ino| store.commit(&Commit::new().put(node(ino), super::directory(0)));
    let old = cells.read(&slot).unwrap();
    commit(1).unwrap();
    let now = cells.read(&slot).unwrap();
    // The answer to the request that begins is lost, and the server that is asked then is behind.
    faulty.arm(Some((1, Fault::LostOnce)));
    let (behind, ahead) = (cells.clone(), cells.clone());
    let key = slot.clone();
    faulty.before(2, move || behind.put_back(&slot, old));
    faulty.before(3, move || ahead.put_back(&key, now));
    commit(2).unwrap();
    commit(3).unwrap();
}
