//! Who is declared dead, by whom, and when.

use std::time::Duration;

use super::world::{Host, LEASE, World, hold, share};
use crate::document::{Session, SessionId, SessionState};
use crate::lock::LockError;
use crate::lock::session::{Observer, Which, key};
use crate::store::StoreError;
use crate::store::cells::Cells;

/// The sessions that came to their end, as text.
fn observe(host: &Host, observer: &mut Observer) -> String {
    host.member.beat().unwrap();
    let observed = host.member.observe(Which::All, observer, &|_| false, &|_| Ok(())).unwrap();
    assert!(observed.others.iter().all(|other| other.id != host.member.id()));
    observed.ended.into_iter().map(|session| session.0.to_string()).collect::<Vec<_>>().join(" ")
}

const QUARTER: Duration = Duration::from_millis(250);

#[test]
fn who_stops_beating_is_recovered_after_a_lease_and_nobody_else() {
    let world = World::new();
    let (dead, slow, host) = (world.join(1), world.join(2), world.join(9));
    dead.acquire(&hold("/a"), 0).unwrap().abandon();
    let mut observer = Observer::default();
    for quarter in 0..4 {
        assert_eq!(observe(&host, &mut observer), "", "{quarter}");
        host.clock.advance(QUARTER);
        // Once a lease is enough, at the last moment.
        if quarter == 3 {
            slow.member.beat().unwrap();
        }
    }
    assert_eq!(observe(&host, &mut observer), "1");
    assert_eq!((world.state(1), world.slots(1), world.locks()), (None, 0, String::new()));
    assert_eq!(world.state(2), Some(SessionState::Live));
    assert_eq!(observer.len(), 1 + 1, "what is gone is forgotten at the next look");
    assert_eq!(observe(&host, &mut observer), "");
    assert_eq!(observer.len(), 1);
}

/// A store that refuses writes for a while refuses them to all. Who has a long lease takes nobody for dead whose short one
/// has run out meanwhile, and gives him a lease to beat again.
#[test]
fn a_long_lease_does_not_outlive_a_short_one_while_neither_can_beat() {
    let world = World::new();
    let short = world.join(1);
    let host = world.join_for(9, 10 * LEASE);
    let mut observer = Observer::default();
    let mut look = || host.member.observe(Which::All, &mut observer, &|_| false, &|_| Ok(())).unwrap().ended;
    for _ in 0..20 {
        assert!(look().is_empty(), "neither beats");
        host.clock.advance(QUARTER);
    }
    host.member.beat().unwrap();
    for _ in 0..3 {
        assert!(look().is_empty());
        host.clock.advance(QUARTER);
        host.member.beat().unwrap();
    }
    short.member.beat().unwrap();
    for quarter in 0..5 {
        assert_eq!(look(), if quarter < 4 { vec![] } else { vec![SessionId(1)] }, "and now it is dead");
        host.clock.advance(QUARTER);
        host.member.beat().unwrap();
    }
}

/// So that it can judge of them at all.
#[test]
fn a_session_beats_as_those_with_a_shorter_lease_do() {
    let world = World::new();
    let host = world.join_for(9, 1000 * LEASE);
    assert_eq!(host.member.standing().pace(), 1000 * LEASE);
    host.member.standing().keep_pace_with(LEASE);
    assert_eq!(host.member.standing().pace(), LEASE);
    host.member.standing().keep_pace_with(2000 * LEASE);
    assert_eq!(host.member.standing().pace(), 1000 * LEASE);
}

#[test]
fn who_is_known_is_recovered_without_a_look_at_all() {
    let world = World::new();
    let (_dead, live, host) = (world.join(1), world.join(2), world.join(9));
    let mut observer = Observer::default();
    let mut look = |which: Which<'_>| {
        host.member.beat().unwrap();
        let observed = host.member.observe(which, &mut observer, &|_| false, &|_| Ok(())).unwrap();
        host.clock.advance(QUARTER);
        live.member.beat().unwrap();
        (observed.ended, observed.others.len())
    };
    let known = [1, 2].map(SessionId);
    assert_eq!(look(Which::All), (vec![], 2));
    for _ in 0..3 {
        assert_eq!(look(Which::Known(&known)), (vec![], 2));
    }
    assert_eq!(look(Which::Known(&known)), (vec![SessionId(1)], 1));
    assert_eq!(look(Which::Known(&known)), (vec![], 1), "it is gone");
    assert_eq!((world.state(1), world.state(2)), (None, Some(SessionState::Live)));
}

/// The server answers looks, and no heartbeats for longer than a lease; then those of one after the other.
#[test]
fn who_is_not_heard_takes_nobody_for_dead() {
    let world = World::new();
    let (other, host) = (world.join(1), world.join(9));
    let mut observer = Observer::default();
    let mut look = || host.member.observe(Which::All, &mut observer, &|_| false, &|_| Ok(())).unwrap().ended;
    for quarter in 0..8 {
        assert_eq!(look(), [], "{quarter}");
        host.clock.advance(QUARTER);
    }
    host.member.beat().unwrap();
    for quarter in 0..4 {
        assert_eq!(look(), [], "{quarter} after it was heard");
        host.clock.advance(QUARTER);
        if quarter == 2 {
            other.member.beat().unwrap();
        }
        host.member.beat().unwrap();
    }
    for _ in 0..3 {
        assert_eq!(look(), []);
        host.clock.advance(QUARTER);
        host.member.beat().unwrap();
    }
    assert_eq!(look(), [SessionId(1)], "it has stood still for a lease in which the other was heard");
}

#[test]
fn one_that_cannot_be_cleaned_up_after_keeps_none_of_the_others() {
    let world = World::new();
    let host = world.join(9);
    for dead in 1..=3 {
        let dead = world.join(dead);
        dead.acquire(&hold(&format!("/{}", dead.member.id().0)), 0).unwrap().abandon();
        host.member.recoverer().fence_by_force(dead.member.id()).unwrap();
    }
    let collect = |dead: SessionId| if dead.0 == 1 { Err(StoreError::NoSpace) } else { Ok(()) };
    let mut observer = Observer::default();
    let mut look = |collect: &dyn Fn(SessionId) -> Result<(), StoreError>| {
        host.member.observe(Which::All, &mut observer, &|_| false, collect).unwrap()
    };
    let observed = look(&collect);
    assert_eq!(observed.ended, [SessionId(2), SessionId(3)]);
    assert!(matches!(observed.failed, Some(StoreError::NoSpace)));
    assert_eq!(look(&|_| Ok(())).ended, [SessionId(1)]);
    assert_eq!(world.locks(), "");
}

/// Session 1 is fenced by a session 8, which does nothing more.
fn fence_first(world: &World) {
    let read = world.cells.read(&key(SessionId(1))).unwrap().unwrap();
    assert!(world.join(8).member.recoverer().fence(SessionId(1), &read).unwrap());
}

/// Whoever leaves fences himself first: that is no reason for all who know him to clean up.
#[test]
fn who_is_fenced_already_is_left_to_a_look_at_all() {
    let world = World::new();
    let (_fenced, host) = (world.join(1), world.join(9));
    fence_first(&world);
    let mut observer = Observer::default();
    let mut look = |which: Which<'_>| {
        let observed = host.member.observe(which, &mut observer, &|_| false, &|_| Ok(())).unwrap();
        (observed.ended, observed.others.len())
    };
    assert_eq!(look(Which::Known(&[SessionId(1)])), (vec![], 1));
    assert_eq!(world.state(1), Some(SessionState::Fenced));
    assert_eq!(look(Which::All), (vec![SessionId(1)], 1));
    assert_eq!(world.state(1), None);
}

/// Clocks are never compared: hosts whose clocks are years apart, and one that jumps, or stands still, condemn nobody who
/// beats.
#[test]
fn an_observer_that_jumps_or_stands_still_condemns_nobody() {
    let world = World::new();
    let (live, host) = (world.join(1), world.join(9));
    host.clock.advance(Duration::from_secs(1_000_000_000));
    let mut observer = Observer::default();
    for jump in [QUARTER, QUARTER, QUARTER, 3600 * LEASE] {
        assert_eq!(observe(&host, &mut observer), "");
        host.clock.advance(jump);
        live.member.beat().unwrap();
    }
    // All of them stood still for an hour, and the observer is the first to go on.
    assert_eq!(observe(&host, &mut observer), "");
    host.clock.advance(3600 * LEASE);
    assert_eq!(observe(&host, &mut observer), "");
    // Nothing is done while the clock stands still.
    for _ in 0..100 {
        assert_eq!(observe(&host, &mut observer), "");
    }
    live.member.beat().unwrap();
    assert_eq!(world.state(1), Some(SessionState::Live));
}

#[test]
fn a_session_that_never_lived_is_fenced_too() {
    let world = World::new();
    let host = world.join(9);
    let cells = super::world::Faulty::new(&world.cells);
    cells.fail(1, super::world::Fault::Dies);
    assert!(world.try_join(1, &cells, |_| ()).is_err());
    assert_eq!(world.state(1), Some(SessionState::Joining));
    let mut observer = Observer::default();
    let mut ended = String::new();
    for _ in 0..5 {
        ended.push_str(&observe(&host, &mut observer));
        host.clock.advance(QUARTER);
    }
    assert_eq!((ended, world.state(1)), ("1".to_owned(), None));
}

#[test]
fn a_process_that_is_gone_for_certain_is_not_waited_for() {
    let world = World::new();
    let (dead, live, host) = (world.join(1), world.join(2), world.join(9));
    let is_gone = |session: &Session| session.id == SessionId(1);
    let ended =
        host.member.observe(Which::All, &mut Observer::default(), &is_gone, &|_| Ok(())).unwrap().ended;
    assert_eq!(ended, [SessionId(1)]);
    assert!(matches!(dead.member.beat(), Err(StoreError::Fenced)));
    live.member.beat().unwrap();
}

#[test]
fn of_two_fences_one_takes_effect_and_a_heartbeat_in_between_beats_both() {
    let world = World::new();
    let (dead, one, other) = (world.join(1), world.join(8), world.join(9));
    let read = || world.cells.read(&key(SessionId(1))).unwrap().unwrap();
    let stale = read();
    dead.member.beat().unwrap();
    assert!(!one.member.recoverer().fence(SessionId(1), &stale).unwrap(), "it has shown that it lives");
    assert_eq!(world.state(1), Some(SessionState::Live));
    let fresh = read();
    assert!(one.member.recoverer().fence(SessionId(1), &fresh).unwrap());
    assert!(!other.member.recoverer().fence(SessionId(1), &fresh).unwrap());
    assert_eq!(world.state(1), Some(SessionState::Fenced));
}

#[test]
fn somebody_who_fenced_and_died_is_replaced() {
    let world = World::new();
    let (_dead, host) = (world.join(1), world.join(9));
    fence_first(&world);
    assert_eq!(observe(&host, &mut Observer::default()), "1");
    assert_eq!(world.state(1), None);
}

/// A session that was slow, wakes up after it has been recovered, and goes on where it was.
#[test]
fn a_zombie_changes_nothing() {
    let world = World::new();
    let (zombie, host) = (world.join(1), world.join(9));
    let guard = zombie.acquire(&share("/a/b"), 0).unwrap();
    let own = |locks: &str| locks.contains("1.");
    host.recover(1).unwrap();
    let theirs = host.acquire(&hold("/a/b"), 0).unwrap();
    let before = world.locks();
    assert!(!own(&before), "{before}");
    // It does not know yet: it takes another lock, and lets go what it thinks that it holds.
    let other = zombie.acquire(&hold("/z"), 0).unwrap();
    assert!(own(&world.locks()));
    drop(guard);
    assert!(matches!(zombie.member.beat(), Err(StoreError::Fenced)));
    assert!(matches!(zombie.member.beat(), Err(StoreError::Fenced)), "for ever");
    assert!(matches!(zombie.acquire(&hold("/y"), 0), Err(LockError::SessionDropped)));
    assert!(matches!(zombie.member.standing().check(), Err(StoreError::Fenced)));
    // The claim that it has added after its end hinders nobody.
    drop(host.acquire(&hold("/z"), 0).unwrap());
    drop(other);
    assert_eq!(world.locks(), before);
    assert_eq!(world.session(1), None);
    drop(theirs);
    assert_eq!(world.locks(), "");
    assert!(matches!(zombie.leave(), Ok(())), "there is nothing left to leave");
}
