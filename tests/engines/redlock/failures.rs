//! Servers that are gone, that were started again, and holders that died or stood still.

use std::time::{Duration, Instant};

use lockwood::document::LockMode::{Exclusive, Shared};
use lockwood::document::SessionId;
use lockwood::lock::LockError;
use lockwood::lock::redlock::Settings;
use lockwood::store::redis::servers::Patience;

use crate::common::until;

use super::{Fleet, Party, WAIT, hold, servers, servers_with};

const TTL: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(1500);
/// What is extended, on a machine that may stand still for some seconds.
const EXTENDED: Duration = Duration::from_secs(5);
/// Enough for a request to have arrived.
const LATER: Duration = Duration::from_millis(100);

#[test]
fn two_of_five_servers_may_be_gone_and_three_may_not() {
    let Some(mut fleet) = Fleet::start(5) else { return };
    let (one, other) = (Party::new(&fleet, 1, TTL), Party::new(&fleet, 2, TTL));
    let held = one.try_hold("/a", Exclusive).unwrap();
    fleet.0[0].kill();
    fleet.0[3].kill();
    assert!(matches!(other.try_hold("/a", Shared), Err(LockError::WouldBlock(_))));
    drop(held);
    drop(other.try_hold("/a", Exclusive).unwrap());
    assert_eq!(other.locks.documents().unwrap().len(), 0);
    fleet.0[4].kill();
    let refused = other.locks.acquire(&hold("/a", Shared), "test", Duration::from_millis(300)).unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, LockError::NoMajority { answered: 2, needed: 3, of: 5, .. }), "{text}");
    for at in [0, 3, 4] {
        assert!(text.contains(&format!("127.0.0.1:{}", fleet.0[at].port())), "{text}");
    }
    assert!(!text.contains(&format!("127.0.0.1:{}", fleet.0[1].port())), "{text}");
    assert!(matches!(other.locks.documents(), Err(LockError::NoMajority { .. })));
    // Nothing was left on those that answered, and one more server is enough again.
    fleet.0[4].restart();
    drop(other.wait_for("/a", Exclusive).unwrap());
    for at in [1, 2, 4] {
        assert_eq!(fleet.ask::<usize>(at, &["DBSIZE"]), 0);
    }
}

#[test]
fn what_a_dead_holder_had_is_free_when_its_time_is_over() {
    let Some(fleet) = Fleet::start(5) else { return };
    let dying = Party::with(fleet.servers(), 1, Settings { ttl: SHORT, extend: true });
    let other = Party::new(&fleet, 2, TTL);
    let begun = Instant::now();
    // Neither released nor extended: as if the process had been killed. One server hears of it later than the others.
    std::thread::scope(|scope| {
        scope.spawn(|| fleet.ask::<()>(4, &["DEBUG", "SLEEP", "0.5"]));
        std::thread::sleep(LATER);
        dying.try_hold("/a/b", Exclusive).unwrap().abandon();
    });
    let guard = other.wait_for("/a/b", Exclusive).unwrap();
    let waited = begun.elapsed();
    assert!(waited >= SHORT && waited < SHORT + Duration::from_secs(3), "{waited:?}");
    drop(guard);
    // A majority was enough: on the server that was late the time of the dead is not over before its own half second is.
    for at in 0..5 {
        let left = || fleet.ask::<usize>(at, &["DBSIZE"]);
        while left() > 0 {
            assert!(begun.elapsed() < SHORT + Duration::from_secs(6), "server {at} keeps {}", left());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn what_a_fenced_session_had_can_be_let_go_at_once() {
    let Some(fleet) = Fleet::start(3) else { return };
    let (dead, other) = (Party::new(&fleet, 1, TTL), Party::new(&fleet, 2, TTL));
    dead.try_hold("/a/b", Exclusive).unwrap().abandon();
    let kept = other.try_hold("/a/c", Exclusive).unwrap();
    other.locks.drop_session(SessionId(1)).unwrap();
    drop(other.try_hold("/a/b", Exclusive).unwrap());
    assert_eq!(other.locks.documents().unwrap().len(), 2, "the others keep what they have");
    drop(kept);
}

#[test]
fn a_long_holder_keeps_its_locks() {
    let Some(fleet) = Fleet::start(5) else { return };
    let holder = Party::with(fleet.servers(), 1, Settings { ttl: EXTENDED, extend: true });
    let other = Party::new(&fleet, 2, TTL);
    let held = holder.try_hold("/a", Exclusive).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < EXTENDED * 2 {
        assert!(held.lost().is_none());
        assert!(matches!(other.try_hold("/a", Shared), Err(LockError::WouldBlock(_))));
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(held);
    drop(other.try_hold("/a", Exclusive).unwrap());
}

/// Servers may be replaced one after the other under a lock that is held: it moves with its extensions.
#[test]
fn a_long_holder_survives_servers_that_forget_one_at_a_time() {
    let Some(mut fleet) = Fleet::start(3) else { return };
    let holder = Party::with(fleet.servers(), 1, Settings { ttl: EXTENDED, extend: true });
    let other = Party::new(&fleet, 2, TTL);
    let held = holder.try_hold("/a", Exclusive).unwrap();
    for at in 0..3 {
        fleet.0[at].kill();
        fleet.0[at].restart();
        until("the server that forgot has the lock", || fleet.ask::<usize>(at, &["DBSIZE"]) > 0);
        assert!(held.lost().is_none(), "lost at server {at}");
        assert!(matches!(other.try_hold("/a", Shared), Err(LockError::WouldBlock(_))));
    }
}

#[test]
fn a_holder_without_a_majority_knows_that_it_has_lost() {
    let Some(mut fleet) = Fleet::start(3) else { return };
    let holder = Party::with(fleet.servers(), 1, Settings { ttl: SHORT, extend: true });
    let held = holder.try_hold("/a", Exclusive).unwrap();
    fleet.0[0].kill();
    fleet.0[1].kill();
    std::thread::sleep(SHORT + Duration::from_millis(100));
    let lost = held.lost().expect("its time is over");
    assert!(matches!(lost, LockError::Lapsed { .. }), "{lost}");
    // And stays lost, though the servers are back.
    fleet.0[0].restart();
    fleet.0[1].restart();
    std::thread::sleep(SHORT / 2);
    assert!(held.lost().is_some() && held.valid_for().is_zero());
}

/// Two of five would grant it: what they granted is taken back from them.
#[test]
fn what_has_no_majority_is_unlocked_everywhere() {
    let Some(fleet) = Fleet::start(5) else { return };
    let on_three = servers(&fleet.list_of(&[0, 2, 4]), Duration::ZERO);
    let holder = Party::with(on_three, 1, Settings { ttl: TTL, extend: true });
    let held = holder.try_hold("/a", Exclusive).unwrap();
    let other = Party::new(&fleet, 2, TTL);
    assert!(matches!(other.try_hold("/a", Exclusive), Err(LockError::WouldBlock(_))));
    for at in [1, 3] {
        assert_eq!(fleet.ask::<usize>(at, &["DBSIZE"]), 0, "server {at} keeps what is of no use");
    }
    drop(held);
    drop(other.try_hold("/a", Exclusive).unwrap());
}

/// A server that forgot what it granted would grant it twice: it counts for nothing for as long as a lock lasts.
#[test]
fn a_server_that_was_started_again_does_not_count_for_a_while() {
    let Some(mut fleet) = Fleet::start(1) else { return };
    std::thread::sleep(SHORT + Duration::from_secs(2));
    let party =
        |session| Party::with(servers(&fleet.list(), SHORT), session, Settings { ttl: SHORT, extend: true });
    let (holder, other) = (party(1), party(2));
    let held = holder.try_hold("/a", Exclusive).unwrap();
    fleet.0[0].kill();
    fleet.0[0].restart();
    let begun = Instant::now();
    // The connections that broke are noticed first.
    let refused = loop {
        match other.try_hold("/a", Exclusive) {
            Err(LockError::NoMajority { causes, .. }) if causes.contains("started a short while ago") => {
                break causes;
            }
            Err(LockError::NoMajority { .. }) => assert!(begun.elapsed() < WAIT),
            other => panic!("{other:?}"),
        }
    };
    println!("{refused}");
    let guard = other.wait_for("/a", Exclusive).unwrap();
    assert!(held.lost().is_some(), "two hold it");
    drop(guard);
}

/// A server that stands still holds up nobody for longer than an answer may take.
#[test]
fn a_server_that_does_not_answer_is_left_out() {
    let Some(fleet) = Fleet::start(3) else { return };
    let patience = Patience { answer_within: Duration::from_millis(400), rest_after_start: Duration::ZERO };
    let servers = servers_with(&fleet.list(), patience);
    let party = Party::with(servers, 1, Settings { ttl: TTL, extend: true });
    drop(party.try_hold("/a", Exclusive).unwrap());
    let waited = std::thread::scope(|scope| {
        // Nobody else is served meanwhile.
        scope.spawn(|| fleet.ask::<String>(1, &["DEBUG", "SLEEP", "6"]));
        std::thread::sleep(LATER);
        let has_waited = || {
            let begun = Instant::now();
            drop(party.try_hold("/a", Exclusive).unwrap());
            begun.elapsed() >= patience.answer_within
        };
        (0..10).filter(|_| has_waited()).count()
    });
    // The first finds it out; each of the others would.
    assert!((1..=3).contains(&waited), "{waited} of 10 waited for it");
}
