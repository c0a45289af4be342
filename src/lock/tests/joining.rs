//! How sessions begin, show that they live, and end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::world::{Fault, Faulty, LEASE, SLOTS, World, hold};
use crate::ambient::SystemClock;
use crate::document::{SessionId, SessionState};
use crate::lock::LockError;
use crate::lock::session::{Heart, Member, key};
use crate::store::StoreError;
use crate::store::cells::{Cells, Listed};

#[test]
fn a_session_joins_beats_and_leaves_nothing() {
    let world = World::new();
    let states = Arc::new(parking_lot::Mutex::new(None));
    let (seen, view) = (Arc::clone(&states), world.clone());
    let host =
        world.try_join(1, &Faulty::new(&world.cells), move |id| *seen.lock() = view.state(id.0)).unwrap();
    assert_eq!(*states.lock(), Some(SessionState::Joining), "its intents are made before it lives");
    assert_eq!((world.state(1), world.slots(1)), (Some(SessionState::Live), usize::from(SLOTS)));
    let first = world.session(1).unwrap().heartbeat;
    host.member.beat().unwrap();
    host.member.beat().unwrap();
    assert_eq!(world.session(1).unwrap().heartbeat, first + 2);
    host.leave().unwrap();
    assert_eq!((world.state(1), world.slots(1)), (None, 0));
    assert!(matches!(host.member.beat(), Err(StoreError::Fenced)));
    assert!(matches!(host.acquire(&hold("/a"), 10), Err(LockError::SessionDropped)));
    assert_eq!(world.locks(), "");
}

#[test]
fn a_heartbeat_says_which_operations_are_over() {
    let world = World::new();
    let host = world.join(1);
    let first = host.acquire(&hold("/a"), 0).unwrap();
    let second = host.acquire(&hold("/b"), 0).unwrap();
    host.member.beat().unwrap();
    assert_eq!(world.session(1).unwrap().operations_below, first.op().number);
    drop(first);
    host.member.beat().unwrap();
    assert_eq!(world.session(1).unwrap().operations_below, second.op().number);
    let last = second.op().number;
    drop(second);
    host.member.beat().unwrap();
    assert_eq!(world.session(1).unwrap().operations_below, last + 1);
}

/// Whoever joins may die, or lose a request, at each step: either it lives and can work and leave, or others clean up.
#[test]
fn joining_goes_wrong_at_each_step() {
    for fault in Fault::ALL {
        let mut steps = 0;
        for at in 0.. {
            let world = World::new();
            let other = world.join(9);
            let cells = Faulty::new(&world.cells);
            cells.fail(at, fault);
            let joined = world.try_join(1, &cells, |_| ());
            if !cells.happened() {
                break;
            }
            steps += 1;
            // Who cannot know whether its document was made does not make it again: the next try has another id.
            let unknown = at == 0 && matches!(fault, Fault::Lost | Fault::Late);
            let dies = matches!(fault, Fault::Dies | Fault::DiesAfter);
            assert_eq!(joined.is_err(), dies || unknown, "{fault:?} at {at}");
            match joined {
                Ok(host) => {
                    cells.land();
                    assert_eq!(world.state(1), Some(SessionState::Live), "{fault:?} at {at}");
                    host.member.beat().unwrap();
                    drop(host.acquire(&hold("/a"), 0).unwrap());
                    host.leave().unwrap();
                }
                Err(_) => other.recover(1).unwrap(),
            }
            cells.land();
            // What came late: a session that has not lived, or slots of none.
            other.recover(1).unwrap();
            other.sweep_slots();
            assert_eq!((world.state(1), world.slots(1)), (None, 0), "{fault:?} at {at}");
        }
        assert!(steps >= 4, "{fault:?}: only {steps} steps");
    }
}

#[test]
fn a_session_that_was_fenced_while_it_joined_never_lives() {
    let world = World::new();
    let other = world.join(9);
    // Fenced, and recovered altogether, before it has made its slots; the requests for them arrive after that.
    let view = other.clone();
    let joined = world.try_join(1, &Faulty::new(&world.cells), move |_| view.recover(1).unwrap());
    assert!(matches!(joined, Err(StoreError::Fenced)));
    assert_eq!(world.state(1), None);
    let fenced_only = {
        let (view, cells) = (other.clone(), Arc::clone(&world.cells));
        world.try_join(2, &Faulty::new(&world.cells), move |id| {
            let read = cells.read(&key(id)).unwrap().unwrap();
            assert!(view.member.recoverer().fence(id, &read).unwrap());
        })
    };
    assert!(matches!(fenced_only, Err(StoreError::Fenced)));
    other.recover(2).unwrap();
    other.sweep_slots();
    assert_eq!((world.state(2), world.slots(1), world.slots(2)), (None, 0, 0));
    assert_eq!(world.cells.list(Listed::Slots).unwrap().len(), usize::from(SLOTS), "those of the living");
}

#[test]
fn an_end_that_is_cut_short_is_finished_by_others() {
    for fault in Fault::ALL {
        for at in 0.. {
            let world = World::new();
            let (host, other) = (world.join(1), world.join(9));
            host.acquire(&hold("/a/b"), 0).unwrap().abandon();
            host.cells.fail(at, fault);
            let left = host.leave();
            if !host.cells.happened() {
                break;
            }
            // Who dies after its last reading has done its work.
            assert!(left.is_ok() || matches!(fault, Fault::Dies | Fault::DiesAfter), "{fault:?} at {at}");
            if left.is_err() {
                other.recover(1).unwrap();
            }
            host.cells.land();
            other.recover(1).unwrap();
            other.sweep_slots();
            other.locks.sweep().unwrap();
            assert_eq!((world.state(1), world.slots(1)), (None, 0), "{fault:?} at {at}");
            assert_eq!(world.locks(), "", "{fault:?} at {at}");
        }
    }
}

/// A request of a heartbeat may go wrong at each step, and arrive later: the session goes on, and the number grows.
#[test]
fn a_heartbeat_survives_lost_answers() {
    for fault in [Fault::Lost, Fault::Unanswered, Fault::Late, Fault::Duplicated] {
        let world = World::new();
        let host = world.join(1);
        host.cells.fail(0, fault);
        let first = world.session(1).unwrap().heartbeat;
        host.member.beat().unwrap();
        assert!(host.cells.happened());
        host.cells.land();
        host.member.beat().unwrap();
        let last = world.session(1).unwrap().heartbeat;
        assert!((first + 2..=first + 3).contains(&last), "{fault:?}: {first} {last}");
    }
}

#[test]
fn a_session_whose_heartbeat_is_not_confirmed_stops_until_one_is() {
    let world = World::new();
    let host = world.join(1);
    host.clock.advance(LEASE - Duration::from_millis(1));
    host.member.standing().check().unwrap();
    host.clock.advance(Duration::from_millis(1));
    assert!(matches!(host.acquire(&hold("/a"), 0), Err(LockError::Store(StoreError::Engine { .. }))));
    assert_eq!(world.locks(), "");
    host.member.beat().unwrap();
    drop(host.acquire(&hold("/a"), 0).unwrap());
}

#[test]
fn the_heart_beats_until_it_is_stopped_or_the_session_is_fenced() {
    let world = World::new();
    let (host, other) = (world.join(1), world.join(9));
    let first = world.session(1).unwrap().heartbeat;
    let heart = Heart::start(Arc::clone(&host.member), 1000).unwrap();
    while world.session(1).unwrap().heartbeat < first + 3 {
        std::thread::yield_now();
    }
    other.recover(1).unwrap();
    while !host.member.standing().is_fenced() {
        std::thread::yield_now();
    }
    drop(heart);

    let host = world.join(2);
    drop(Heart::start(Arc::clone(&host.member), 1).unwrap());
    assert!(!host.member.standing().is_fenced(), "stopping is no fence");
}

#[test]
fn a_heart_that_panics_stops_the_session() {
    let world = World::new();
    let host = world.join(1);
    let beats = AtomicU64::new(0);
    host.cells.before(move |_| {
        if beats.fetch_add(1, Ordering::SeqCst) == 2 {
            panic!("a test wants this heart to fail");
        }
    });
    let heart = Heart::start(Arc::clone(&host.member), 1000).unwrap();
    while !host.member.standing().is_fenced() {
        std::thread::yield_now();
    }
    drop(heart);
    assert_eq!(world.state(1), Some(SessionState::Live), "the store does not know of it yet");
}

#[test]
fn a_session_works_with_the_clock_of_the_machine() {
    let world = World::new();
    let document = super::super::session::state::tests::session(1, SessionState::Joining);
    let join = Member::join(world.cells.clone(), Arc::new(SystemClock::new()), document, |_| Ok(()));
    let (member, ()) = join.unwrap();
    member.beat().unwrap();
    assert_eq!(member.id(), SessionId(1));
    member.leave(&|_| Ok(())).unwrap();
    assert_eq!(world.state(1), None);
}
