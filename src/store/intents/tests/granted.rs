//! Commits that are prepared while it is asked whether they are to be made.

use std::sync::Arc;

use super::faults::{Fault, Faulty};
use super::{add, clock, counter, is_marked, lock, node, session, slot};
use crate::document::{SessionId, SlotState};
use crate::store::cells::memory::MemoryCells;
use crate::store::cells::{Along, Cells};
use crate::store::conformance::directory;
use crate::store::intents::{IntentStore, settle};
use crate::store::{Commit, CommitError, Store, StoreError};

/// A store of one session, and its cells, with and without what goes wrong there.
pub(super) type Begun = (Arc<MemoryCells>, Arc<Faulty>, IntentStore<Faulty>);

/// A directory with three entries.
fn begun() -> Begun {
    let cells = Arc::new(MemoryCells::new());
    let faulty = Faulty::new(&cells);
    let store = session(&faulty, &clock(), 1, 1);
    store.commit(&Commit::new().put(node(7), directory(3))).unwrap();
    (cells, faulty, store)
}

#[test]
fn it_is_asked_before_anything_is_marked() {
    let (cells, _, store) = begun();
    let asked = Arc::clone(&cells);
    let granting = Box::new(move |_: Option<Along<'_>>| !is_marked(&asked, 7));
    assert!(store.commit_once(&Commit::new().merge(node(7), add(1)), granting).unwrap().is_some());
    assert_eq!(counter(&store, 7), Some(4));
}

#[test]
fn what_is_refused_costs_two_changes_and_leaves_nothing() {
    let (cells, faulty, store) = begun();
    faulty.arm(None);
    let commit = Commit::new().merge(node(7), add(1));
    assert_eq!(store.commit_once(&commit, Box::new(|_| false)).unwrap(), None);
    // The intent is begun, and aborted.
    assert_eq!(faulty.sent.lock().len(), 2);
    assert_eq!(slot(&cells).state, SlotState::Aborted);
    assert!(!is_marked(&cells, 7));
    // The next one has nothing to look after.
    faulty.arm(None);
    store.commit(&commit).unwrap();
    let of_refused = faulty.requests();
    faulty.arm(None);
    store.commit(&commit).unwrap();
    assert_eq!(of_refused, faulty.requests());
    assert_eq!(counter(&store, 7), Some(5));
}

/// Whatever becomes of any request, that which begins the intent and takes a lock along included.
#[test]
fn what_is_answered_is_what_was_done_though_a_lock_was_taken_along() {
    whatever_becomes_of_any_request(begun);
}

/// One more entry is made under a lock in such a store, with each fault at each request in turn.
pub(super) fn whatever_becomes_of_any_request(begun: fn() -> Begun) {
    let faults = [Fault::Crash, Fault::CrashAfter, Fault::LostOnce, Fault::AnswerLostOnce, Fault::Twice];
    let mut said = [0; 4];
    for fault in faults {
        for at in 0.. {
            let (cells, faulty, store) = begun();
            faulty.arm(Some((at, fault)));
            let mut locked = false;
            let granting = Box::new(|along: Option<Along<'_>>| {
                let answers = along.unwrap()(&[lock(Vec::new())]);
                assert_eq!(answers.len(), 1);
                locked = answers.iter().all(Result::is_ok);
                locked
            });
            let made = store.commit_once(&Commit::new().merge(node(7), add(1)), granting);
            let requests = faulty.requests();
            faulty.arm(None);
            settle(&cells, &clock(), SessionId(1), 1).unwrap();
            let counted = counter(&session(&cells, &clock(), 2, 1), 7);
            let (which, expected) = match made {
                Ok(Some(_)) => (0, Some((true, Some(4)))),
                Ok(None) => (1, Some((false, Some(3)))),
                Err(CommitError::Store(StoreError::Unknown(_))) => (2, None),
                Err(_) => (3, Some((locked, Some(3)))),
            };
            said[which] += 1;
            let is_there = cells.read(&lock(Vec::new()).key).unwrap().is_some();
            assert!(is_there || !locked, "{fault:?} at {at}");
            assert!(expected.is_none_or(|expected| expected == (locked, counted)), "{fault:?} at {at}");
            if requests <= at {
                break;
            }
        }
    }
    assert!(said.iter().all(|count| *count > 0), "not all answers were met: {said:?}");
}

#[test]
fn who_dies_while_it_is_asked_has_changed_nothing() {
    let (cells, faulty, store) = begun();
    let dies = Arc::clone(&faulty);
    let granting = Box::new(move |_: Option<Along<'_>>| {
        dies.arm(Some((0, Fault::Crash)));
        true
    });
    assert!(store.commit_once(&Commit::new().merge(node(7), add(1)), granting).is_err());
    settle(&cells, &clock(), SessionId(1), 1).unwrap();
    assert_eq!(slot(&cells).state, SlotState::Sealed);
    assert_eq!(counter(&session(&cells, &clock(), 2, 1), 7), Some(3));
}
