//! Recovery by those who die at it, by several at once, and with requests that arrive late.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::world::{Fault, Faulty, LEASE, SLOTS, World, hold, rename, share};
use crate::ambient::Clock;
use crate::document::{Document, Ino, Key, Orphan, SessionId, SessionState, SlotState};
use crate::lock::session::Observer;
use crate::store::cells::{Cell, CellKey, Cells, Listed, ListedCell};
use crate::store::conformance::directory;
use crate::store::intents::{
    self,
    shared::{Remote, SharedIntents},
};
use crate::store::{Commit, CommitError, Intents as _, Outages, Reader, Store, StoreError};

/// A session that holds some locks, waits for another, and dies.
fn world_with_a_dead_session() -> (World, super::world::Host) {
    let world = World::new();
    let (dead, host) = (world.join(1), world.join(9));
    dead.acquire(&rename("/a/x", "/b/y"), 0).unwrap().abandon();
    dead.acquire(&share("/s"), 0).unwrap().abandon();
    let beside = host.acquire(&share("/s"), 0).unwrap();
    std::mem::forget(beside);
    // It waits for what the other holds, and dies there: its requests end in the middle of the wait.
    std::mem::forget(host.acquire(&hold("/h"), 0).unwrap());
    let cells = Arc::clone(&dead.cells);
    dead.clock.on_sleep(move |nth| {
        if nth == 3 {
            cells.fail(0, Fault::Dies);
        }
    });
    assert!(dead.acquire(&hold("/h"), 500).is_err());
    assert!(world.locks().contains("/h !9.2<!1.3"), "{}", world.locks());
    (world, host)
}

fn assert_recovered(world: &World, what: &str) {
    assert_eq!((world.state(1), world.slots(1)), (None, 0), "{what}");
    assert_eq!(world.locks(), "/h !9.2<  /s +9.1<", "{what}");
}

#[test]
fn recovery_leaves_nothing_of_the_dead_and_all_of_the_living() {
    let (world, host) = world_with_a_dead_session();
    let collected = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&collected);
    let view = world.clone();
    host.member
        .recover(SessionId(1), &move |dead| {
            seen.lock().push((dead.0, view.state(1)));
            assert_eq!(view.slots(1), usize::from(SLOTS));
            Ok(())
        })
        .unwrap();
    assert_eq!(
        *collected.lock(),
        [(1, Some(SessionState::Fenced))],
        "once, and before it is called recovered"
    );
    assert_recovered(&world, "at once");
    assert_eq!(world.state(9), Some(SessionState::Live));
}

#[test]
fn what_cannot_be_collected_is_collected_by_the_next() {
    let (world, host) = world_with_a_dead_session();
    assert!(matches!(
        host.member.recover(SessionId(1), &|_| Err(StoreError::NoSpace)),
        Err(StoreError::NoSpace)
    ));
    assert_eq!(world.state(1), Some(SessionState::Fenced));
    host.recover(1).unwrap();
    assert_recovered(&world, "the second time");
}

/// What a recoverer has read is lost with the server that showed it: the slot stands for its marks again, and they are
/// there.
#[test]
fn no_slot_is_deleted_that_is_not_settled() {
    let (slot, node) = (CellKey::Slot(SessionId(1), 0), Key::Node(Ino(5)));
    let document = CellKey::Document(node.clone());
    for nth in 0.. {
        let world = World::new();
        let (dead, host) = (world.join(1), world.join(9));
        let made = Arc::new(Mutex::new(None));
        let (seen, cells, keys) = (made.clone(), world.cells.clone(), [slot.clone(), document.clone()]);
        dead.cells.before(move |_| {
            let found = keys.each_ref().map(|key| cells.read(key).unwrap());
            let state = found[0].as_ref().map(|found| found.cell.clone());
            if matches!(state.as_deref(), Some(Cell::Slot(slot)) if slot.state == SlotState::Committed) {
                seen.lock().get_or_insert(found);
            }
        });
        dead.store.commit(&Commit::new().put(node.clone(), directory(3))).unwrap();
        let [committed, marked] = made.lock().take().unwrap();
        let (cells, keys) = (world.cells.clone(), [slot.clone(), document.clone()]);
        host.cells.before(move |request| {
            let found = cells.read(&keys[0]).unwrap();
            let is_sealed = found.is_some_and(
                |found| matches!(&*found.cell, Cell::Slot(slot) if slot.state == SlotState::Sealed),
            );
            if request == nth && is_sealed {
                cells.put_back(&keys[0], committed.clone());
                cells.put_back(&keys[1], marked.clone());
            }
        });
        let first = host.recover(1);
        let done = host.cells.count().0 <= nth;
        host.cells.before(|_| ());
        host.recover(1).unwrap();
        assert_eq!((world.state(1), world.slots(1)), (None, 0), "request {nth}, {first:?}");
        let found = host.store.get(&node).unwrap();
        assert!(found.is_some_and(|found| *found.document == directory(3)), "request {nth}, {first:?}");
        if done {
            return;
        }
    }
}

/// Another one has sealed the slots, and that is lost with the server that showed it: as long as this one has not written
/// them as well, the dead session may go on, and needs its locks.
#[test]
fn no_claim_goes_on_the_word_of_a_read() {
    let slots: [CellKey; SLOTS as usize] = std::array::from_fn(|nth| CellKey::Slot(SessionId(1), nth as u16));
    for nth in 0.. {
        let (world, host) = world_with_a_dead_session();
        let open = slots.each_ref().map(|key| world.cells.read(key).unwrap());
        let other = world.join(8);
        other.member.recoverer().fence_by_force(SessionId(1)).unwrap();
        let clock: Arc<dyn Clock> = other.clock.clone();
        intents::settle(&world.cells, &clock, SessionId(1), SLOTS).unwrap();
        let sealed = slots.each_ref().map(|key| world.cells.read(key).unwrap().unwrap().version);
        let (view, keys) = (world.clone(), slots.clone());
        host.cells.before(move |request| {
            let now = keys.each_ref().map(|key| view.cells.read(key).unwrap());
            let is_lost = request == nth && now.iter().flatten().map(|found| found.version).eq(sealed);
            if is_lost {
                keys.iter().zip(&open).for_each(|(key, open)| view.cells.put_back(key, open.clone()));
            }
            let is_sealed = |cell: &Cell| matches!(cell, Cell::Slot(slot) if slot.state == SlotState::Sealed);
            let may_commit = is_lost || !now.iter().flatten().all(|found| is_sealed(&found.cell));
            assert!(!may_commit || view.locks().contains("1."), "request {nth}: {}", view.locks());
        });
        // Who has read what is lost may come to no end.
        let first = host.recover(1);
        let is_over = host.cells.count().0 <= nth;
        host.recover(1).unwrap();
        assert_recovered(&world, &format!("request {nth}, {first:?}"));
        if is_over {
            return;
        }
    }
}

/// A recoverer dies, or a request of its goes wrong, at each step: the next one finishes, and whatever arrives late does
/// nothing.
#[test]
fn a_recoverer_goes_wrong_at_each_step() {
    for fault in Fault::ALL {
        let mut steps = 0;
        for at in 0.. {
            let (world, host) = world_with_a_dead_session();
            let recoverer = world.join(8);
            recoverer.cells.fail(at, fault);
            let recovered = recoverer.recover(1);
            if !recoverer.cells.happened() {
                break;
            }
            steps += 1;
            let what = format!("{fault:?} at {at}");
            // Who dies after its last reading has done its work.
            assert!(recovered.is_ok() || matches!(fault, Fault::Dies | Fault::DiesAfter), "{what}");
            if recovered.is_err() {
                host.recover(1).unwrap();
            }
            assert_recovered(&world, &what);
            recoverer.cells.land();
            assert_recovered(&world, &what);
        }
        assert!(steps > 15, "{fault:?}: only {steps} steps");
    }
}

/// A recoverer is overtaken, before each of its requests, by another that does it all.
#[test]
fn two_recoverers_at_each_interleaving() {
    let overtaken = Arc::new(AtomicU64::new(0));
    for at in 0.. {
        let (world, host) = world_with_a_dead_session();
        let recoverer = world.join(8);
        let (other, count) = (host.clone(), Arc::clone(&overtaken));
        recoverer.cells.before(move |nth| {
            if nth == at {
                other.recover(1).unwrap();
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        recoverer.recover(1).unwrap();
        assert_recovered(&world, &format!("overtaken at {at}"));
        if overtaken.load(Ordering::SeqCst) == at {
            break; // Not overtaken: it has fewer requests.
        }
    }
    assert!(overtaken.load(Ordering::SeqCst) > 15);
}

/// The order: when the first claim goes, the session is fenced and its slots are sealed.
#[test]
fn claims_go_after_the_slots_are_sealed() {
    let (world, host) = world_with_a_dead_session();
    let (view, before) = (world.clone(), world.locks());
    let seen = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&seen);
    host.cells.before(move |_| {
        if view.locks() == before || view.state(1).is_none() {
            return;
        }
        count.fetch_add(1, Ordering::SeqCst);
        assert!(matches!(view.state(1), Some(SessionState::Fenced | SessionState::Recovered)));
        for slot in 0..SLOTS {
            match view
                .cells
                .read(&CellKey::Slot(SessionId(1), slot))
                .unwrap()
                .as_ref()
                .map(|found| &*found.cell)
            {
                Some(Cell::Slot(slot)) => assert_eq!(slot.state, SlotState::Sealed),
                None => assert_eq!(view.state(1), Some(SessionState::Recovered)),
                other => panic!("{other:?}"),
            }
        }
        if view.state(1) == Some(SessionState::Recovered) {
            assert_eq!(view.locks(), "/h !9.2<  /s +9.1<");
        }
    });
    host.recover(1).unwrap();
    assert_recovered(&world, "watched");
    assert!(seen.load(Ordering::SeqCst) > 4);
}

/// Who waits behind the dead is let in by the recovery itself.
#[test]
fn recovery_lets_in_who_waits() {
    let world = World::new();
    let (dead, host, recoverer) = (world.join(1), world.join(2), world.join(9));
    dead.acquire(&hold("/a"), 0).unwrap().abandon();
    let view = world.clone();
    host.clock.on_sleep(move |nth| {
        if nth == 4 {
            recoverer.recover(1).unwrap();
            assert_eq!(view.locks(), "/a !2.1<");
        }
    });
    drop(host.acquire(&hold("/a"), 900).unwrap());
    assert_eq!(world.locks(), "");
}

/// A session is declared dead and recovered while it commits, before each of its requests: the commit has happened
/// altogether or not at all, it says which or that it cannot know, and no mark of a committed one is left.
#[test]
fn a_commit_overtaken_by_recovery_at_each_step() {
    let keys = [Key::Orphan(Ino(7)), Key::Orphan(Ino(8))];
    let put = |commit: Commit, key: &Key| {
        commit.put(key.clone(), Document::Orphan(Orphan { session: SessionId(1) }))
    };
    let commit = keys.iter().fold(Commit::new(), put);
    let mut outcomes = [0, 0];
    for at in 0.. {
        let world = World::new();
        let (zombie, host) = (world.join(1), world.join(9));
        let other = host.clone();
        let reached = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&reached);
        zombie.cells.before(move |nth| {
            if nth == at {
                count.fetch_add(1, Ordering::SeqCst);
                other.recover(1).unwrap();
            }
        });
        let committed = match zombie.store.commit(&commit) {
            Ok(_) => true,
            Err(CommitError::Store(StoreError::Fenced)) => false,
            // Its slot is sealed, and no longer says what became of it; the documents do.
            Err(CommitError::Store(StoreError::Unknown(_))) => host.store.get(&keys[0]).unwrap().is_some(),
            Err(other) => panic!("{at}: {other}"),
        };
        outcomes[usize::from(committed)] += 1;
        if reached.load(Ordering::SeqCst) == 0 {
            break;
        }
        assert_eq!(world.state(1), None);
        for key in &keys {
            assert_eq!(host.store.get(key).unwrap().is_some(), committed, "{at}: {key}");
            let cell = world.cells.read(&CellKey::Document(key.clone())).unwrap();
            let marked = cell.is_some_and(|found| match &*found.cell {
                Cell::Document(document) => document.mark.is_some(),
                _ => true,
            });
            // A mark that the zombie sets after its slots were sealed stays until somebody meets it; it means nothing.
            assert!(!marked || !committed, "{at}: {key}");
        }
        assert!(matches!(zombie.store.commit(&commit), Err(CommitError::Store(StoreError::Fenced))), "{at}");
    }
    assert!(outcomes[0] > 2 && outcomes[1] > 2, "{outcomes:?}");
}

impl Remote for Faulty {
    fn outages(&self) -> Option<&Outages> {
        None
    }
}

/// Whatever it was at when its process was killed: it is settled once it has stood still for a lease, and not before.
#[test]
fn a_commit_of_nobody_that_is_cut_short_leaves_nothing() {
    let (kept, gone) = (Key::Orphan(Ino(2)), Key::Orphan(Ino(3)));
    let orphan = |session| Document::Orphan(Orphan { session: SessionId(session) });
    let (mut left, mut undone, mut completed) = (0, 0, 0);
    for fault in [Fault::Dies, Fault::DiesAfter] {
        for at in 0.. {
            let what = format!("{fault:?} at {at}");
            let world = World::new();
            let host = world.join(9);
            host.store
                .commit(&Commit::new().put(kept.clone(), orphan(1)).put(gone.clone(), orphan(1)))
                .unwrap();
            let cells = Faulty::new(&world.cells);
            cells.fail(at, fault);
            let commit = Commit::new().put(kept.clone(), orphan(2)).delete(gone.clone());
            let nobody = SharedIntents::new(Arc::clone(&cells), host.clock.clone());
            let committed = nobody.commit(&commit);
            if !cells.happened() {
                break;
            }
            let slots = || world.cells.list(Listed::Slots).unwrap().len() - usize::from(SLOTS);
            let mut observer = Observer::default();
            let mut look = || host.member.recoverer().sweep_slots(&mut observer, LEASE).unwrap();
            left += slots();
            for _ in 0..4 {
                assert_eq!(look().left.len(), slots(), "{what}: before the lease is over");
                host.clock.advance(LEASE / 4);
            }
            let swept = look();
            undone += swept.settled.aborted;
            completed += swept.settled.rolled_forward;
            assert_eq!((swept.left.len(), slots()), (0, 0), "{what}");
            let owner = |key: &Key| match host.store.get(key).unwrap().map(|stored| stored.document) {
                Some(document) => match &*document {
                    Document::Orphan(Orphan { session }) => session.0,
                    other => panic!("{other:?}"),
                },
                None => 0,
            };
            let after = (owner(&kept), owner(&gone));
            assert!(matches!(after, (1, 1) | (2, 0)), "{what}: {after:?}");
            assert!(committed.is_err() || after == (2, 0), "{what}: acknowledged, and undone");
            for key in [&kept, &gone] {
                let found = world.cells.read(&CellKey::Document(key.clone())).unwrap();
                let mark = found.map(|found| match &*found.cell {
                    Cell::Document(document) => document.mark.is_some(),
                    other => panic!("{other:?}"),
                });
                assert_ne!(mark, Some(true), "{what}: a mark is left at {key}");
            }
        }
    }
    assert!(left > 4 && undone > 0 && completed > 0, "{left} left, {undone} undone, {completed} completed");
}

/// Another one writes over a mark of it, and that is lost with the server that showed it: the slot says what the mark means.
#[test]
fn a_commit_of_nobody_speaks_for_the_marks_that_others_have_written_over() {
    let [kept, gone] = [2, 3].map(|ino| Key::Orphan(Ino(ino)));
    let orphan = |session| Document::Orphan(Orphan { session: SessionId(session) });
    let mut lost = 0;
    for at in 0.. {
        let world = World::new();
        let host = world.join(9);
        let both = Commit::new().put(kept.clone(), orphan(1)).put(gone.clone(), orphan(1));
        host.store.commit(&both).unwrap();
        let cells = Faulty::new(&world.cells);
        let marked = Arc::new(Mutex::new(None));
        let (seen, view, other, key) = (marked.clone(), world.cells.clone(), host.clone(), kept.clone());
        cells.before(move |request| {
            let is_committed = |(key, found): &ListedCell| {
                let slot = found.as_ref().map(|found| found.cell.clone());
                !matches!(key, CellKey::Slot(SessionId(9), _))
                    && matches!(slot.as_deref(), Ok(Cell::Slot(slot)) if slot.state == SlotState::Committed)
            };
            if request == at && view.list(Listed::Slots).unwrap().iter().any(is_committed) {
                *seen.lock() = view.read(&CellKey::Document(key.clone())).unwrap();
                other.store.commit(&Commit::new().put(key.clone(), orphan(5))).unwrap();
            }
        });
        let nobody = SharedIntents::new(Arc::clone(&cells), host.clock.clone());
        nobody.commit(&Commit::new().put(kept.clone(), orphan(2)).delete(gone.clone())).unwrap();
        if let Some(marked) = marked.lock().take() {
            world.cells.put_back(&CellKey::Document(kept.clone()), Some(marked));
            let found = host.store.get(&kept).unwrap().unwrap();
            assert_eq!(*found.document, orphan(2), "request {at}");
            assert!(host.store.get(&gone).unwrap().is_none(), "request {at}");
            lost += 1;
        }
        nobody.end(SessionId(0));
        assert_eq!(world.cells.list(Listed::Slots).unwrap().len(), usize::from(SLOTS), "request {at}");
        if cells.count().0 <= at {
            break;
        }
    }
    assert!(lost > 0);
}

/// Whoever is only slow is taken for dead once: the commit is made again, or it is not known whether it was made.
#[test]
fn a_commit_of_nobody_that_was_taken_for_dead_is_made_again() {
    let key = Key::Orphan(Ino(2));
    let orphan = |session| Document::Orphan(Orphan { session: SessionId(session) });
    let mut made = 0;
    for at in 0.. {
        let world = World::new();
        let host = world.join(9);
        host.store.commit(&Commit::new().put(key.clone(), orphan(1))).unwrap();
        let cells = Faulty::new(&world.cells);
        let sweeper = host.clone();
        let swept = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&swept);
        cells.before(move |request| {
            if request == at {
                sweeper.sweep_slots();
                seen.fetch_add(1, Ordering::Relaxed);
            }
        });
        let nobody = SharedIntents::new(Arc::clone(&cells), host.clock.clone());
        let committed = nobody.commit(&Commit::new().put(key.clone(), orphan(2)).delete(Key::Orphan(Ino(3))));
        let is_over = swept.load(Ordering::Relaxed) == 0;
        match committed {
            Ok(_) => {
                let found = host.store.get(&key).unwrap().unwrap();
                assert_eq!(*found.document, orphan(2), "at {at}");
                made += u64::from(!is_over);
            }
            Err(CommitError::Store(StoreError::Unknown(_))) => {}
            Err(error) => panic!("at {at}: {error}"),
        }
        host.sweep_slots();
        assert_eq!(world.cells.list(Listed::Slots).unwrap().len(), usize::from(SLOTS), "at {at}");
        if is_over {
            break;
        }
    }
    assert!(made > 2, "made {made} times although it was taken for dead");
}
