//! Who gets which lock while all is well: modes, whole sets, order, waiting, and what people see of it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lockwood::document::LockMode::{Exclusive, Shared};
use lockwood::document::SessionId;
use lockwood::lock::redlock::Settings;
use lockwood::lock::{LockError, LockSet, Wait};

use crate::common::until;

use super::{Fleet, Party, VOLUME, hold, id, servers};

const TTL: Duration = Duration::from_secs(10);

fn modes_over(count: usize) {
    let Some(fleet) = Fleet::start(count) else { return };
    let (one, other) = (Party::new(&fleet, 1, TTL), Party::new(&fleet, 2, TTL));
    // The path is exclusive and what is above it shared.
    let held = one.try_hold("/a/b", Exclusive).unwrap();
    for (path, mode, free) in [
        ("/a/b", Shared, false),
        ("/a/b", Exclusive, false),
        ("/a/b/c", Exclusive, false),
        ("/a", Exclusive, false),
        ("/a", Shared, true),
        ("/a/x", Exclusive, true),
        ("/ab", Exclusive, true),
    ] {
        match other.try_hold(path, mode) {
            Ok(_) => assert!(free, "{mode} {path} was granted"),
            Err(LockError::WouldBlock(blocked)) => {
                assert!(!free, "{mode} {path}: {blocked}");
                assert_eq!(blocked.holders[0].op.session, SessionId(1));
                assert_eq!(&*blocked.holders[0].operation, "test");
            }
            Err(error) => panic!("{mode} {path}: {error}"),
        }
    }
    drop(held);
    let both = (one.try_hold("/a/b", Shared).unwrap(), other.try_hold("/a/b", Shared).unwrap());
    assert!(matches!(one.try_hold("/a/b", Exclusive), Err(LockError::WouldBlock(_))));
    drop(both);
    drop(other.try_hold("/a/b", Exclusive).unwrap());
    // Nothing is left of what was held, on any server.
    for at in 0..count {
        assert_eq!(fleet.ask::<usize>(at, &["DBSIZE"]), 0);
    }
}

#[test]
fn exclusive_locks_exclude_and_shared_locks_share_over_five_servers() {
    modes_over(5);
}

#[test]
fn one_server_is_the_case_of_one_instance() {
    modes_over(1);
}

#[test]
fn a_set_is_taken_as_a_whole_or_not_at_all() {
    let Some(fleet) = Fleet::start(3) else { return };
    let (one, other) = (Party::new(&fleet, 1, TTL), Party::new(&fleet, 2, TTL));
    let held = one.try_hold("/b/d", Exclusive).unwrap();
    let set = LockSet::for_rename(&id("/a"), &id("/b/d/e")).unwrap();
    let refused = other.locks.try_acquire(&set, "rename /a to /b/d/e").unwrap_err();
    let LockError::WouldBlock(blocked) = refused else { panic!("{refused}") };
    assert_eq!((blocked.lock, blocked.wanted), (id("/b/d"), Shared));
    // `/a` comes first in the order, and is free again.
    drop(one.try_hold("/a", Exclusive).unwrap());
    drop(held);
    let renaming = other.locks.try_acquire(&set, "rename /a to /b/d/e").unwrap();
    assert!(renaming.lost().is_none() && renaming.valid_for() > TTL / 2);
    assert!(one.try_hold("/a", Shared).is_err());
}

/// Many who want the same at once split the servers between them; exactly one at a time may have it, and all get it.
#[test]
fn one_at_a_time_among_many() {
    let Some(fleet) = Fleet::start(5) else { return };
    let (inside, rounds) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for session in 1..=4 {
            let (fleet, inside, rounds) = (&fleet, &inside, &rounds);
            scope.spawn(move || {
                let party = Party::new(fleet, session, TTL);
                for _ in 0..12 {
                    let guard = party.wait_for("/a/b", Exclusive).unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two hold the same lock");
                    std::thread::sleep(Duration::from_millis(2));
                    inside.store(false, Ordering::SeqCst);
                    rounds.fetch_add(1, Ordering::SeqCst);
                    drop(guard);
                }
            });
        }
    });
    assert_eq!(rounds.into_inner(), 48);
}

/// Shares that come and go for ever would keep an exclusive lock from ever being free.
#[test]
fn who_waits_for_an_exclusive_lock_is_not_starved_by_shares() {
    let Some(fleet) = Fleet::start(3) else { return };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for session in 1..=3 {
            let (fleet, done) = (&fleet, &done);
            scope.spawn(move || {
                let party = Party::new(fleet, session, TTL);
                while !done.load(Ordering::SeqCst) {
                    // Always two of the three have a share, were it not for who waits.
                    let guard = party.wait_for("/a", Shared).unwrap();
                    std::thread::sleep(Duration::from_millis(40));
                    drop(guard);
                }
            });
        }
        std::thread::sleep(Duration::from_millis(200));
        let begun = Instant::now();
        let got = Party::new(&fleet, 9, TTL).wait_for("/a", Exclusive);
        done.store(true, Ordering::SeqCst);
        drop(got.unwrap());
        println!("an exclusive lock among shares took {:?}", begun.elapsed());
    });
}

/// What each of two holds the other waits for: whoever asked first goes first, on every server alike.
#[test]
fn nobody_waits_for_each_other() {
    let Some(fleet) = Fleet::start(3) else { return };
    std::thread::scope(|scope| {
        for (session, from, to) in [(1, "/a", "/b/d/e"), (2, "/b/d", "/a/c")] {
            let fleet = &fleet;
            scope.spawn(move || {
                let party = Party::new(fleet, session, TTL);
                let set = LockSet::for_rename(&id(from), &id(to)).unwrap();
                for _ in 0..20 {
                    drop(party.locks.acquire(&set, "rename", super::WAIT).unwrap());
                }
            });
        }
    });
}

#[test]
fn who_gives_up_learns_who_holds_it_and_leaves_nothing() {
    let Some(fleet) = Fleet::start(3) else { return };
    let (one, other) = (Party::new(&fleet, 1, TTL), Party::new(&fleet, 2, TTL));
    let held = one.try_hold("/a", Exclusive).unwrap();
    let refused = other.locks.acquire(&hold("/a", Shared), "late", Duration::from_millis(100)).unwrap_err();
    let LockError::TimedOut(blocked) = &refused else { panic!("{refused}") };
    assert_eq!((blocked.held, blocked.holders[0].op), (Exclusive, held.op()));
    assert_eq!(other.locks.counters().expired, 1);
    drop(held);
    let nothing_is_left = || {
        for at in 0..3 {
            assert_eq!(fleet.ask::<usize>(at, &["DBSIZE"]), 0, "a mark was left");
        }
    };
    nothing_is_left();
    // So it is with who is told to give up.
    let held = one.try_hold("/a", Exclusive).unwrap();
    let begun = Instant::now();
    let give_up = || begun.elapsed() > Duration::from_millis(100);
    let wait = Wait { longest: super::WAIT, give_up: Some(&give_up) };
    let outcome = other.locks.acquire(&hold("/a", Shared), "late", wait);
    assert!(matches!(outcome, Err(LockError::Interrupted)));
    assert!(begun.elapsed() < super::WAIT / 2, "{:?}", begun.elapsed());
    drop(held);
    nothing_is_left();
    // Who is to be granted nothing any more is sent away.
    let _held = one.try_hold("/a", Exclusive).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| other.wait_for("/a", Shared).map(drop));
        std::thread::sleep(Duration::from_millis(50));
        other.locks.close();
        assert!(matches!(waiting.join().unwrap(), Err(LockError::Closed)));
    });
}

#[test]
fn people_see_what_a_majority_says() {
    let Some(fleet) = Fleet::start(3) else { return };
    let (one, other) = (Party::new(&fleet, 1, TTL), Party::new(&fleet, 2, TTL));
    let _held = one.locks.try_acquire(&hold("/clinton/a b", Exclusive), "backup").unwrap();
    // A claim on one server alone holds nothing.
    let minority =
        Party::with(servers(&fleet.list_of(&[1]), Duration::ZERO), 3, Settings { ttl: TTL, extend: false });
    let _ghost = minority.try_hold("/ghost", Exclusive).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let give_up = || is_over.load(Ordering::SeqCst);
            let wait = Wait { longest: super::WAIT, give_up: Some(&give_up) };
            assert!(other.locks.acquire(&hold("/clinton", Exclusive), "late", wait).is_err());
        });
        let documents = || one.locks.documents().unwrap().into_iter().map(Result::unwrap).collect::<Vec<_>>();
        until("somebody waits", || documents().iter().any(|lock| !lock.waiters.is_empty()));
        let seen = documents();
        let ids: Vec<_> =
            seen.iter().map(|lock| (lock.id.encoded(), lock.lock_type, lock.lock_count)).collect();
        assert_eq!(
            ids,
            [("%2Fclinton".to_owned(), Shared, 1), ("%2Fclinton%2Fa%20b".to_owned(), Exclusive, 1)]
        );
        assert_eq!(seen[1].holders[0].operations[0].operation, "backup");
        let [waiter] = seen[0].waiters.as_slice() else { panic!("{:?}", seen[0].waiters) };
        assert_eq!((waiter.session, waiter.lock_type, &*waiter.operation), (SessionId(2), Exclusive, "late"));
        assert_eq!(one.locks.document(&id("/clinton")).unwrap().as_ref(), seen.first());
        assert_eq!(one.locks.document(&id("/ghost")).unwrap(), None);
        is_over.store(true, Ordering::SeqCst);
    });
    // By hand.
    let key = format!("{{locks}}:redlock:{VOLUME}:%2Fclinton%2Fa%20b");
    let [claim, ends]: [String; 2] =
        fleet.ask::<Vec<String>>(0, &["ZRANGE", &key, "0", "-1", "WITHSCORES"]).try_into().unwrap();
    for part in [
        r#""state":"held""#,
        r#""mode":"exclusive""#,
        r#""session":"0000000000000001""#,
        r#""purpose":"backup""#,
    ] {
        assert!(claim.contains(part), "{claim}");
    }
    assert!(ends.parse::<u64>().unwrap() > 1_600_000_000_000, "{ends}");
    assert!(fleet.ask::<i64>(0, &["PTTL", &key]) <= TTL.as_millis() as i64);
}

/// How long a set takes, against one round trip. Ignored: a machine that does other things says nothing.
#[test]
#[ignore = "a measurement"]
fn what_a_set_costs() {
    const TIMES: usize = 2_000;
    let show = |name: &str, mut times: Vec<Duration>| {
        times.sort_unstable();
        let [median, most] = [times[TIMES / 2], times[TIMES * 99 / 100]];
        println!("{name}: median {median:?}, 99 of 100 within {most:?}");
    };
    let timed = |work: &mut dyn FnMut()| {
        let begun = Instant::now();
        work();
        begun.elapsed()
    };
    let Some(fleet) = Fleet::start(5) else { return };
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", fleet.0[0].port())).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut ping = || redis::cmd("PING").exec(&mut connection).unwrap();
    show("PING", (0..TIMES).map(|_| timed(&mut ping)).collect());
    let set = LockSet::for_rename(&id("/a/b/c/d"), &id("/a/x/y/z")).unwrap();
    for which in [&[0][..], &[0, 1, 2], &[0, 1, 2, 3, 4]] {
        let servers = servers(&fleet.list_of(which), Duration::ZERO);
        let party = Party::with(servers, 1, Settings { ttl: TTL, extend: true });
        let (mut taken, mut released) = (Vec::new(), Vec::new());
        for _ in 0..TIMES {
            let mut held = None;
            taken.push(timed(&mut || {
                held = Some(party.locks.try_acquire(&set, "rename /a/b/c/d to /a/x/y/z"))
            }));
            released.push(timed(&mut || drop(held.take())));
        }
        let what = format!("{} locks on {} servers", set.entries().len(), which.len());
        show(&format!("{what}, taken"), taken);
        show(&format!("{what}, released"), released);
    }
}
