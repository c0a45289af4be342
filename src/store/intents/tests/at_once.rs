//! Commits whose marks are set by their first request, in a use that was begun ahead.

use std::sync::Arc;

use super::faults::Faulty;
use super::granted::{Begun, whatever_becomes_of_any_request};
use super::{add, clock, counter, entry, file, impatient, is_marked, node, session, slot};
use crate::document::{LockClaim, LockMode, SessionId, SlotState};
use crate::later::Inline;
use crate::store::cells::memory::MemoryCells;
use crate::store::cells::{Along, Cell, CellKey, Cells, Change};
use crate::store::conformance::directory;
use crate::store::intents::{decide, settle};
use crate::store::{Commit, CommitError, Reader, Store, StoreError};

const SLOT: CellKey = CellKey::Slot(SessionId(1), 0);

fn lock(mode: LockMode) -> Change {
    let claim = LockClaim { session: SessionId(1), operation: 1, mode, purpose: "".into(), since_ns: 0 };
    super::lock(vec![claim])
}

/// A directory with three entries, of which all is known, and a slot whose next use is begun.
fn begun() -> Begun {
    let cells = Arc::new(MemoryCells::new());
    let faulty = Faulty::new(&cells);
    let store = session(&faulty, &impatient(), 1, 1).cleaning_up(Arc::new(Inline));
    store.commit(&Commit::new().put(node(7), directory(3))).unwrap();
    assert!(decide::is_open(&slot(&cells)));
    (cells, faulty, store)
}

fn one_more() -> Commit {
    Commit::new().merge(node(7), add(1))
}

#[test]
fn it_begins_nothing_before_it_marks() {
    let (cells, faulty, store) = begun();
    faulty.arm(None);
    store.commit(&one_more()).unwrap();
    // The slot and the mark, the decision; behind it the mark is taken away, and the next use begun.
    assert_eq!(faulty.sent.lock().len(), 5);
    assert_eq!(counter(&store, 7), Some(4));
    assert!(decide::is_open(&slot(&cells)));
    assert_eq!(slot(&cells).number, 3);
}

#[test]
fn a_guess_that_was_wrong_is_made_good() {
    let (cells, _, store) = begun();
    let theirs = session(&cells, &clock(), 2, 1);
    theirs.commit(&one_more().put(entry("a"), file(9))).unwrap();
    let version = store.get(&entry("a")).unwrap().unwrap().version;
    // The count is not what was known, and the attempt is made again.
    store.commit(&one_more().at(entry("a"), version).delete(entry("a"))).unwrap();
    assert_eq!(counter(&store, 7), Some(5));
    assert!(store.get(&entry("a")).unwrap().is_none());
    assert!(!is_marked(&cells, 7));
}

#[test]
fn exclusive_locks_are_taken_beside_the_marks_and_others_before() {
    for (mode, beside) in [(LockMode::Exclusive, true), (LockMode::Shared, false)] {
        let (cells, _, store) = begun();
        let looks = Arc::clone(&cells);
        let granting = Box::new(move |along: Option<Along<'_>>| {
            assert!(along.unwrap()(&[lock(mode)]).iter().all(Result::is_ok));
            assert_eq!(is_marked(&looks, 7), beside, "{mode:?}");
            assert_eq!(slot(&looks).marked.len(), 1, "it is named with the first request");
            true
        });
        assert!(store.commit_once(&one_more(), granting).unwrap().is_some());
        assert_eq!(counter(&store, 7), Some(4));
    }
}

#[test]
fn what_is_refused_leaves_nothing_and_reads_first_for_a_while() {
    let (cells, _, store) = begun();
    for marks in [true, false] {
        let looks = Arc::clone(&cells);
        let granting = Box::new(move |along: Option<Along<'_>>| {
            along.unwrap()(&[lock(LockMode::Exclusive)]);
            assert_eq!(is_marked(&looks, 7), marks);
            false
        });
        assert_eq!(store.commit_once(&one_more(), granting).unwrap(), None);
        assert!(!is_marked(&cells, 7));
        assert_eq!(slot(&cells).state, SlotState::Aborted);
        let key = lock(LockMode::Exclusive).key;
        let taken = cells.read(&key).unwrap().unwrap();
        cells.cas(&key, Some(taken.version), None).unwrap();
    }
    store.commit(&one_more()).unwrap();
    assert_eq!(counter(&store, 7), Some(4));
}

#[test]
fn what_was_never_sent_leaves_the_use_open() {
    let (cells, faulty, store) = begun();
    faulty.arm(None);
    assert_eq!(store.commit_once(&one_more(), Box::new(|_| false)).unwrap(), None);
    assert_eq!(faulty.requests(), 0);
    assert!(decide::is_open(&slot(&cells)));
    store.commit(&one_more()).unwrap();
    assert_eq!(counter(&store, 7), Some(4));
}

/// What others have written over a mark may be lost with their server, and then the slot must speak for it.
#[test]
fn a_use_whose_marks_others_have_cleaned_is_not_followed_ahead() {
    let (cells, faulty, store) = begun();
    let theirs = session(&cells, &clock(), 2, 1);
    faulty.arm(None);
    faulty.before(2, move || _ = theirs.commit(&one_more()).unwrap());
    store.commit(&one_more()).unwrap();
    assert_eq!(slot(&cells).state, SlotState::Committed);
    assert_eq!(counter(&store, 7), Some(5));
    store.commit(&one_more()).unwrap();
    assert_eq!(counter(&store, 7), Some(6));
    assert!(decide::is_open(&slot(&cells)));
}

/// Who was declared dead while he slept marks what he is about to write, and takes that away again.
#[test]
fn the_dead_leave_no_mark_and_change_nothing() {
    let (cells, faulty, store) = begun();
    let settled = settle(&cells, &clock(), SessionId(1), 1).unwrap();
    assert_eq!((settled.aborted, settled.rolled_forward), (0, 0), "nothing was under way");
    faulty.arm(None);
    let refused = store.commit(&one_more());
    assert!(matches!(refused, Err(CommitError::Store(StoreError::Fenced))), "{refused:?}");
    assert!(!is_marked(&cells, 7));
    assert_eq!(slot(&cells).state, SlotState::Sealed);
    let theirs = session(&cells, &clock(), 2, 1);
    assert_eq!(counter(&theirs, 7), Some(3));
}

/// Somebody whose way the marks stand in aborts the use before it is named.
#[test]
fn a_use_that_others_abort_is_made_again() {
    let (cells, _, store) = begun();
    let aborts = Arc::clone(&cells);
    let granting = Box::new(move |along: Option<Along<'_>>| {
        let found = aborts.read(&SLOT).unwrap().unwrap();
        let aborted = decide::abort(&slot(&aborts)).unwrap();
        aborts.cas(&SLOT, Some(found.version), Some(Cell::Slot(aborted))).unwrap();
        along.unwrap()(&[lock(LockMode::Exclusive)]).iter().all(Result::is_ok)
    });
    assert!(store.commit_once(&one_more(), granting).unwrap().is_some());
    assert_eq!(counter(&store, 7), Some(4));
    assert!(!is_marked(&cells, 7));
}

/// A lock is refused, the others are let go of meanwhile, and somebody changes what was compared. Then all are granted.
#[test]
fn what_was_compared_before_the_locks_were_granted_counts_for_nothing() {
    let (cells, _, store) = begun();
    let theirs = session(&cells, &clock(), 2, 1);
    store.commit(&Commit::new().put(entry("a"), file(9))).unwrap();
    let version = store.get(&entry("a")).unwrap().unwrap().version;
    let key = lock(LockMode::Exclusive).key;
    cells.cas(&key, None, lock(LockMode::Exclusive).cell).unwrap();
    let granting = Box::new(|along: Option<Along<'_>>| {
        assert!(along.unwrap()(&[lock(LockMode::Exclusive)]).iter().all(Result::is_err));
        theirs.commit(&Commit::new().put(entry("a"), file(10))).unwrap();
        true
    });
    let covered = Commit { covered: true, ..one_more().at(entry("a"), version) };
    let refused = store.commit_once(&covered, granting);
    assert!(matches!(&refused, Err(CommitError::Conflict(key)) if *key == entry("a")), "{refused:?}");
    assert_eq!(counter(&store, 7), Some(3));
    assert!(!is_marked(&cells, 7));
}

#[test]
fn what_is_begun_ahead_commits_nothing_and_is_sealed_as_it_is() {
    let open = decide::begin(&decide::free(), []).unwrap();
    assert!(decide::is_open(&open) && decide::begin(&open, [node(7)]).is_none());
    assert_eq!(decide::commit(&open, &[]), None);
    let named = decide::name(&open, [node(7)]).unwrap();
    assert_eq!((named.number, decide::is_open(&named)), (open.number, false));
    assert!(decide::name(&named, [node(8)]).is_none() && decide::seal(&named).is_none());
    assert_eq!(decide::settling(&named), decide::Settling::Abort);
    assert_eq!(decide::settling(&open), decide::Settling::Seal);
    assert!(!decide::was_committed(&decide::seal(&open).unwrap(), open.number));
}

/// The request that marks and takes a lock along included.
#[test]
fn what_is_answered_is_what_was_done() {
    whatever_becomes_of_any_request(begun);
}
