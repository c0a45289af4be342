//! The pure functions, case by case.

use crate::document::{IntentId, Key, Mark, MarkChange, Marked, SessionId, Slot, SlotState, Stored, Version};
use crate::store::cells::{Cell, MarkedDocument};
use crate::store::conformance::directory;
use crate::store::intents::decide::*;

use super::node;

const STATES: [SlotState; 5] =
    [SlotState::Free, SlotState::Pending, SlotState::Committed, SlotState::Aborted, SlotState::Sealed];

fn intent(number: u64) -> IntentId {
    IntentId { session: SessionId(1), slot: 0, number }
}

/// A slot that marks node 1; committed and sealed ones list its mark at version 10.
fn slot(number: u64, state: SlotState) -> Slot {
    let version = matches!(state, SlotState::Committed | SlotState::Sealed).then_some(Version(10));
    Slot { number, state, marked: vec![Marked { key: node(1), version }] }
}

fn stored(version: u64, children: u64) -> Stored {
    Stored { version: Version(version), document: directory(children).into() }
}

#[test]
fn what_a_mark_means() {
    use Verdict::*;
    // The use that the mark belongs to, an earlier one (the slot was made again), a later one.
    let table = [
        (SlotState::Free, MovedOn, MovedOn, MovedOn),
        (SlotState::Pending, Undecided, MovedOn, MovedOn),
        (SlotState::Committed, After, MovedOn, MovedOn),
        (SlotState::Aborted, Before, MovedOn, MovedOn),
        (SlotState::Sealed, After, MovedOn, MovedOn),
    ];
    for (state, same, earlier, later) in table {
        let of = |number| verdict(intent(5), &node(1), Version(10), Some(&slot(number, state)));
        assert_eq!((of(5), of(4), of(6)), (same, earlier, later), "{state:?}");
    }
    assert_eq!(verdict(intent(5), &node(1), Version(10), None), MovedOn);
    // A committed use stands for the marks that it lists alone.
    for state in [SlotState::Committed, SlotState::Sealed] {
        let committed = slot(5, state);
        assert_eq!(verdict(intent(5), &node(1), Version(11), Some(&committed)), MovedOn);
        assert_eq!(verdict(intent(5), &node(2), Version(10), Some(&committed)), MovedOn);
    }
    // One that was never committed lists no versions.
    let sealed = seal(&abort(&begin(&free(), [node(1)]).unwrap()).unwrap()).unwrap();
    assert_eq!(verdict(intent(1), &node(1), Version(10), Some(&sealed)), MovedOn);
}

#[test]
fn what_a_reader_sees_and_what_cleaning_leaves() {
    let put = MarkChange::Put(Box::new(directory(2)));
    let after = || Some(Stored { version: Version(10), document: directory(2).into() });
    let table = [
        (Some(stored(3, 1)), put.clone(), Some(stored(3, 1)), after()),
        (None, put, None, after()),
        (Some(stored(3, 1)), MarkChange::Delete, Some(stored(3, 1)), None),
        (None, MarkChange::Delete, None, None),
        (Some(stored(3, 1)), MarkChange::Keep, Some(stored(3, 1)), Some(stored(3, 1))),
        (None, MarkChange::Keep, None, None),
    ];
    for (before, change, undone, done) in table {
        let cell = marked(before.clone(), intent(1), change.clone());
        let Cell::Document(cell) = cell else { panic!("{cell:?}") };
        assert_eq!(cell, MarkedDocument { before, mark: Some(Mark { intent: intent(1), change }) });
        for (committed, expected) in [(false, undone), (true, done)] {
            assert_eq!(document(&cell, Version(10), committed), expected);
            let plain = |stored| Cell::Document(MarkedDocument { before: Some(stored), mark: None });
            assert_eq!(cleaned(&cell, Version(10), committed), expected.map(plain));
        }
    }
    let unmarked = MarkedDocument { before: Some(stored(3, 1)), mark: None };
    assert_eq!(document(&unmarked, Version(10), true), Some(stored(3, 1)));
}

#[test]
fn what_a_slot_may_become() {
    let states = |slot: Option<Slot>| slot.map(|slot| (slot.number, slot.state));
    for state in STATES {
        let slot = slot(5, state);
        let decided = matches!(state, SlotState::Free | SlotState::Committed | SlotState::Aborted);
        let pending = state == SlotState::Pending;
        assert_eq!(
            states(begin(&slot, [node(2)])),
            decided.then_some((6, SlotState::Pending)),
            "begin {state:?}"
        );
        let committed = commit(&slot, &[Version(7)]);
        assert_eq!(states(committed), pending.then_some((5, SlotState::Committed)), "commit {state:?}");
        assert_eq!(states(abort(&slot)), pending.then_some((5, SlotState::Aborted)), "abort {state:?}");
        assert_eq!(states(seal(&slot)), decided.then_some((5, SlotState::Sealed)), "seal {state:?}");
    }
    let begun = begin(&free(), [node(2), node(3)]).unwrap();
    let keys = |slot: &Slot| {
        slot.marked.iter().map(|marked| (marked.key.clone(), marked.version)).collect::<Vec<_>>()
    };
    assert_eq!(keys(&begun), [(node(2), None), (node(3), None)]);
    assert_eq!(commit(&begun, &[Version(7)]), None, "a mark is missing");
    let committed = commit(&begun, &[Version(7), Version(8)]).unwrap();
    assert_eq!(keys(&committed), [(node(2), Some(Version(7))), (node(3), Some(Version(8)))]);
}

#[test]
fn how_a_slot_is_settled() {
    let steps = STATES.map(|state| settling(&slot(5, state)));
    assert_eq!(
        steps,
        [Settling::Seal, Settling::Abort, Settling::RollForward, Settling::RollBack, Settling::Done]
    );
}

#[test]
fn what_an_owner_may_go_on_with() {
    for state in STATES {
        let own = |number| is_own(4, 6, Some(&slot(number, state)));
        let in_use = !matches!(state, SlotState::Free | SlotState::Sealed);
        let expected = [false, in_use, in_use, in_use, false];
        assert_eq!([3, 4, 5, 6, 7].map(own), expected, "{state:?}");
    }
    assert!(!is_own(4, 6, None));
    let sealed = seal(&slot(5, SlotState::Committed)).unwrap();
    assert!(was_committed(&sealed, 5) && !was_committed(&sealed, 6));
    for state in [SlotState::Free, SlotState::Aborted] {
        assert!(!was_committed(&seal(&slot(5, state)).unwrap(), 5));
    }
    assert!(!was_committed(&slot(5, SlotState::Committed), 5), "only a sealed one is asked");
    let keys: Vec<Key> = Vec::new();
    assert_eq!(begin(&sealed, keys), None);
}
