//! One commit, disturbed at each of its requests in turn: it crashes there, loses an answer, is read, settled or overtaken.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;

use super::faults::{Fault, Faulty};
use super::{add, clock, counter, directory, entry, file, impatient, node, session};
use crate::document::{Key, SessionId, SlotState};
use crate::stop::StopOnDrop;
use crate::store::cells::memory::MemoryCells;
use crate::store::cells::{Cell, CellKey, Cells, Listed};
use crate::store::intents::{IntentStore, settle};
use crate::store::{
    Commit, CommitError, Range, Reader, Scan, Start, Store, StoreCounters, StoreError, for_each,
};

const VICTIM: u64 = 2;
const SLOTS: u16 = 2;
/// Whoever is waited for longer has failed.
const LONGEST: Duration = Duration::from_secs(60);
/// What a rename adds to the counter in node 1.
const RENAMED: u64 = 100;

/// The name of a directory above, which is checked.
pub(super) fn above() -> Key {
    Key::Entry(crate::document::Ino(9), crate::document::Name::new(b"above").unwrap())
}

/// A small store: the file `a`, a counter, and something to check; a session that will be disturbed; and one that looks on.
pub(super) struct World {
    pub(super) faulty: Arc<Faulty>,
    pub(super) victim: IntentStore<Faulty>,
    pub(super) other: Arc<IntentStore<MemoryCells>>,
    pub(super) rename: Commit,
}

impl World {
    pub(super) fn new(covered: bool) -> Self {
        let cells = Arc::new(MemoryCells::new());
        let other = Arc::new(session(&cells, &impatient(), 3, SLOTS));
        let setup = Commit::new().put(node(1), directory(0)).put(node(2), directory(0));
        other.commit(&setup.put(entry("a"), file(7)).put(above(), file(9))).unwrap();
        let faulty = Faulty::new(&cells);
        let victim = session(&faulty, &impatient(), VICTIM, SLOTS);
        let version = |key: &Key| other.get(key).unwrap().unwrap().version;
        let rename = Commit::new()
            .at(above(), version(&above()))
            .at(entry("a"), version(&entry("a")))
            .absent(entry("b"))
            .delete(entry("a"))
            .put(entry("b"), file(7))
            .merge(node(1), add(RENAMED as i64));
        // Locks cover what leads there, and that is entries.
        let rename = if covered { rename.covered() } else { rename.absent(node(3)) };
        Self { faulty, victim, other, rename }
    }

    /// How many requests an undisturbed rename makes.
    pub(super) fn requests(covered: bool) -> u64 {
        let world = Self::new(covered);
        world.faulty.arm(None);
        world.victim.commit(&world.rename).unwrap();
        world.faulty.requests()
    }

    fn settle(&self) {
        settle(&self.faulty.cells, &clock(), SessionId(VICTIM), SLOTS).unwrap();
    }

    /// Nothing is left of the victim but sealed slots.
    fn is_clean(&self) {
        let cells = &self.faulty.cells;
        for key in [node(1), above(), node(3), entry("a"), entry("b")] {
            let Some(stored) = cells.read(&CellKey::Document(key.clone())).unwrap() else { continue };
            let Cell::Document(document) = &*stored.cell else { panic!("{stored:?}") };
            assert!(document.mark.is_none() && document.before.is_some(), "{key}: {document:?}");
        }
        let of_victim = |key: &CellKey| matches!(key, CellKey::Slot(SessionId(VICTIM), _));
        let slots = cells.list(Listed::Slots).unwrap().into_iter().filter(|(key, _)| of_victim(key));
        let states: Vec<_> = slots
            .map(|(_, stored)| match &*stored.unwrap().cell {
                Cell::Slot(slot) => slot.state,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(states, [SlotState::Sealed; SLOTS as usize]);
    }

    /// A dead session can change nothing any more.
    fn is_dead(&self) {
        self.faulty.arm(None);
        let before = see(&*self.other);
        for _ in 0..2 * SLOTS {
            let late = Commit::new().merge(node(1), add(1)).put(entry("c"), file(8));
            let refused = self.victim.commit(&late);
            assert!(matches!(refused, Err(CommitError::Store(StoreError::Fenced))), "{refused:?}");
        }
        assert_eq!(see(&*self.other), before);
    }
}

/// The names, by a page and one by one, and the counter.
pub(super) type View = (Vec<Key>, Option<u64>);

pub(super) fn see(store: &impl Store) -> View {
    let page = store.scan(&Scan {
        range: Range::Entries(crate::document::Ino::ROOT),
        start: Start::First,
        limit: 10,
    });
    (page.unwrap().into_iter().map(|(key, _)| key).collect(), counter(store, 1))
}

/// Whether the rename is seen; all or nothing of it.
pub(super) fn renamed(store: &impl Store) -> bool {
    let (names, count) = see(store);
    let renamed = names == [entry("b")];
    assert!(renamed || names == [entry("a")], "{names:?}");
    assert_eq!(store.get(&entry("b")).unwrap().is_some(), renamed);
    assert_eq!(store.get(&entry("a")).unwrap().is_none(), renamed);
    assert_eq!(count, Some(if renamed { RENAMED } else { 0 }));
    assert_eq!(counter(store, 2), Some(0));
    assert_eq!(counter(store, 3), None);
    renamed
}

/// What an outcome says: done, not done, or no more than that it is one of them.
fn said(outcome: &Result<crate::document::Version, CommitError>) -> Option<bool> {
    match outcome {
        Ok(_) => Some(true),
        Err(CommitError::Store(StoreError::Unknown(_))) => None,
        Err(_) => Some(false),
    }
}

#[test]
fn what_a_commit_costs() {
    // Reading; pending; three marks; comparing what is covered (for others two marks more); committed; cleaning up.
    assert_eq!(World::requests(true), 1 + 1 + 3 + 1 + 1 + 3);
    assert_eq!(World::requests(false), 1 + 1 + 5 + 1 + 5);
    let world = World::new(true);
    world.faulty.arm(None);
    renamed(&world.victim);
    assert_eq!(world.faulty.requests(), 6, "a read of what nobody is changing is one request");
    assert_eq!(
        world.victim.counters(),
        StoreCounters { gets: 5, fetches: 5, scans: 1, ..Default::default() }
    );
}

#[test]
fn a_crash_at_any_request_leaves_all_or_nothing() {
    let mut seen = [0; 3];
    for covered in [true, false] {
        for fault in [Fault::Crash, Fault::CrashAfter] {
            for request in 0..World::requests(covered) {
                let world = World::new(covered);
                world.faulty.arm(Some((request, fault)));
                let outcome = world.victim.commit(&world.rename);
                let what = format!("{fault:?} at {request}: {outcome:?}");
                let before = renamed(&*world.other);
                world.settle();
                let after = renamed(&*world.other);
                assert_eq!(before, after, "recovery changed what was seen; {what}");
                if let Some(done) = said(&outcome) {
                    assert_eq!(after, done, "{what}");
                }
                seen[said(&outcome).map_or(2, usize::from)] += 1;
                world.is_clean();
                world.is_dead();
                // And others go on.
                world.other.commit(&Commit::new().merge(node(1), add(1)).put(entry("c"), file(9))).unwrap();
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "not all outcomes were met: {seen:?}");
}

#[test]
fn a_request_or_answer_lost_or_doubled_changes_nothing() {
    for covered in [true, false] {
        for fault in [Fault::LostOnce, Fault::AnswerLostOnce, Fault::Twice] {
            for request in 0..World::requests(covered) {
                let world = World::new(covered);
                world.faulty.arm(Some((request, fault)));
                world.victim.commit(&world.rename).unwrap();
                assert!(renamed(&*world.other), "{fault:?} at {request}");
                world.settle();
                assert!(renamed(&*world.other), "{fault:?} at {request}");
                world.is_clean();
            }
        }
    }
}

#[test]
fn a_reader_at_any_request_sees_all_or_nothing() {
    for covered in [true, false] {
        let mut changes = Vec::new();
        for request in 0..World::requests(covered) {
            let world = World::new(covered);
            let seen = Arc::new(Mutex::new(None));
            let (other, result) = (world.other.clone(), seen.clone());
            world.faulty.arm(None);
            world.faulty.before(request, move || *result.lock() = Some(renamed(&*other)));
            world.victim.commit(&world.rename).unwrap();
            changes.push(seen.lock().unwrap());
        }
        assert!(changes.is_sorted() && !changes[0] && changes[changes.len() - 1], "{changes:?}");
    }
}

#[test]
fn an_intent_that_goes_on_between_two_requests_of_a_reader_is_seen_whole() {
    let mut pages_again = 0;
    let total = World::requests(true);
    let cases = (0..total).flat_map(|from| (0..8).map(move |request| (from, request)));
    for sealed in [false, true] {
        for (from, request) in cases.clone() {
            // The writer stops before its request `from`, and does all the rest before the reader's request `request`; then
            // its slots may even be sealed.
            let world = World::new(true);
            let reader = Faulty::new(&world.faulty.cells);
            let onlooker = session(&reader, &impatient(), 4, 1);
            let (stop, stopped) = mpsc::channel();
            let (go, gone) = mpsc::channel();
            world.faulty.arm(None);
            world.faulty.before(from, move || {
                stop.send(()).unwrap();
                let () = gone.recv_timeout(LONGEST).unwrap();
            });
            let finished = Arc::new(AtomicBool::new(false));
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    let _end = StopOnDrop(&finished);
                    world.victim.commit(&world.rename).unwrap();
                });
                stopped.recv_timeout(LONGEST).unwrap();
                let done = Arc::new(AtomicBool::new(false));
                reader.arm(None);
                let go_on = {
                    let done = done.clone();
                    let finished = finished.clone();
                    let cells = world.faulty.cells.clone();
                    move || {
                        go.send(()).unwrap();
                        while !finished.load(SeqCst) {
                            std::thread::yield_now();
                        }
                        if sealed {
                            settle(&cells, &clock(), SessionId(VICTIM), SLOTS).unwrap();
                        }
                        done.store(true, SeqCst);
                    }
                };
                reader.before(request, go_on);
                let (names, _) = see(&onlooker);
                assert!(names == [entry("a")] || names == [entry("b")], "{from}/{request}: {names:?}");
                pages_again += usize::from(reader.sent.lock().is_empty() && reader.requests() > 4);
                while !done.load(SeqCst) {
                    counter(&onlooker, 1); // So many requests that the writer was let go.
                }
                writer.join().unwrap();
                assert!(renamed(&onlooker));
            });
        }
    }
    assert!(pages_again > 0);
}

#[test]
fn settled_at_any_request_it_is_committed_or_never() {
    let mut seen = [0; 2];
    for covered in [true, false] {
        for request in 0..World::requests(covered) {
            let world = World::new(covered);
            let cells = world.faulty.cells.clone();
            world.faulty.arm(None);
            world.faulty.before(request, move || {
                settle(&cells, &clock(), SessionId(VICTIM), SLOTS).unwrap();
            });
            let outcome = world.victim.commit(&world.rename);
            let after = renamed(&*world.other);
            match outcome {
                Ok(_) => assert!(after),
                Err(CommitError::Store(StoreError::Fenced)) => assert!(!after),
                other => panic!("at {request}: {other:?}"),
            }
            seen[usize::from(after)] += 1;
            // What the zombie has marked since then is harmless, and goes with the next write.
            world.settle();
            world.is_dead();
            world
                .other
                .commit(&Commit::new().merge(node(1), add(1)).delete(entry("a")).delete(entry("b")))
                .unwrap();
            assert_eq!(see(&*world.other), (vec![], Some(1 + if after { RENAMED } else { 0 })));
        }
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

#[test]
fn recoverers_may_die_anywhere_and_come_together() {
    for covered in [true, false] {
        for request in 0..World::requests(covered) {
            for step in 0.. {
                let world = World::new(covered);
                world.faulty.arm(Some((request, Fault::Crash)));
                let _ = world.victim.commit(&world.rename);
                let before = renamed(&*world.other);
                let recoverer = Faulty::new(&world.faulty.cells);
                recoverer.arm(Some((step, Fault::Crash)));
                let died = settle(&recoverer, &impatient(), SessionId(VICTIM), SLOTS).is_err();
                assert_eq!(renamed(&*world.other), before);
                // The second one works on what the first has left, while a third one does it all in between.
                let cells = world.faulty.cells.clone();
                recoverer.arm(None);
                recoverer.before(step, move || {
                    settle(&cells, &clock(), SessionId(VICTIM), SLOTS).unwrap();
                });
                settle(&recoverer, &impatient(), SessionId(VICTIM), SLOTS).unwrap();
                assert_eq!(renamed(&*world.other), before);
                world.is_clean();
                if !died {
                    break;
                }
            }
        }
    }
}

#[test]
fn overtaken_at_any_request_it_starts_over_or_conflicts() {
    let mut seen = [0; 2];
    for covered in [true, false] {
        for request in 0..World::requests(covered) {
            // A merge of the same counter: both take effect. A write of what is checked: one of them.
            for conflicting in [false, true] {
                let world = World::new(covered);
                let other = world.other.clone();
                world.faulty.arm(None);
                world.faulty.before(request, move || {
                    let mine = Commit::new().merge(node(1), add(1));
                    let checked = [above(), entry("a")];
                    let mine =
                        if conflicting { checked.into_iter().fold(mine, Commit::delete) } else { mine };
                    other.commit(&mine).unwrap();
                });
                let outcome = world.victim.commit(&world.rename);
                let (names, count) = see(&*world.other);
                let done = match outcome {
                    Ok(_) => true,
                    Err(CommitError::Conflict(_)) if conflicting => false,
                    other => panic!("at {request}: {other:?}"),
                };
                assert_eq!(count, Some(1 + if done { RENAMED } else { 0 }), "at {request}");
                assert_eq!(names.contains(&entry("b")), done, "at {request}");
                assert_eq!(names.contains(&entry("a")), !done && !conflicting, "at {request}");
                seen[usize::from(done)] += 1;
            }
        }
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

/// Two commits that each read what the other writes: without marks on what is checked both would take effect.
#[test]
fn there_is_no_write_skew() {
    let commit = |reads, writes| Commit::new().absent(node(reads)).put(node(writes), directory(0));
    let mut won = [0; 2];
    for request in 0..=7 {
        let world = World::new(false);
        let other = world.other.clone();
        let theirs = Arc::new(Mutex::new(None));
        let outcome = theirs.clone();
        world.faulty.arm(None);
        world.faulty.before(request, move || *outcome.lock() = Some(other.commit(&commit(5, 4))));
        let ours = world.victim.commit(&commit(4, 5)).is_ok();
        let theirs = matches!(&*theirs.lock(), Some(Ok(_)));
        assert!(ours != theirs, "at {request}: ours {ours}, theirs {theirs}");
        let there = [5, 4].map(|ino| world.other.node(crate::document::Ino(ino)).unwrap().is_some());
        assert_eq!(there, [ours, theirs]);
        won[usize::from(ours)] += 1;
    }
    assert!(won[0] > 0 && won[1] > 0, "{won:?}");
}

#[test]
fn what_locks_cover_is_checked_again_when_all_is_marked() {
    // Reading, pending, three marks, comparing: until then a lock that was granted wrongly does no harm.
    for request in 0..=5 {
        for replaced in [false, true] {
            let world = World::new(true);
            let other = world.other.clone();
            world.faulty.arm(None);
            world.faulty.before(request, move || {
                let change = Commit::new();
                let change = if replaced { change.put(above(), file(8)) } else { change.delete(above()) };
                other.commit(&change).unwrap();
            });
            let outcome = world.victim.commit(&world.rename);
            assert!(matches!(&outcome, Err(CommitError::Conflict(key)) if *key == above()), "{outcome:?}");
            assert_eq!(see(&*world.other), (vec![entry("a")], Some(0)));
        }
    }
}

#[test]
fn every_document_can_be_visited_while_marks_stand() {
    let world = World::new(true);
    world.faulty.arm(Some((4, Fault::Crash)));
    assert!(world.victim.commit(&world.rename).is_err());
    let mut names = Vec::new();
    let root = Range::Entries(crate::document::Ino::ROOT);
    for_each::<_, StoreError>(&*world.other, root, |key, stored| stored.map(|_| names.push(key))).unwrap();
    assert_eq!(names, [entry("a")]);
}
