//! Taking, waiting for, and releasing locks that are documents.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::Mutex;

use super::world::{Host, World, hold, id, rename, share};
use crate::document::{LockClaim, LockRecord, SessionId};
use crate::lock::shared::Settings;
use crate::lock::{LockDocument, LockError, Mode, SharedLocks, Wait};
use crate::store::cells::{Cell, CellKey, Cells, Change};

#[test]
fn a_rename_locks_its_ancestors_and_targets_and_leaves_no_trace() {
    let world = World::new();
    let host = world.join(1);
    let guard = host.acquire(&rename("/a/x", "/b/y"), 0).unwrap();
    assert_eq!(world.locks(), "/a +1.1<  /a/x !1.1<  /b +1.1<  /b/y !1.1<");
    drop(guard);
    assert_eq!(world.locks(), "");
}

/// What a lock set costs that nobody else wants: one reading for all, and one change to take and one to release each lock.
#[test]
fn the_cost_in_requests() {
    let world = World::new();
    let host = world.join(1);
    host.cells.count();
    let guard = host.acquire(&rename("/a/b/c/x", "/a/b/d/y"), 1000).unwrap();
    // Nothing is read: they are taken to be absent, and each change checks that.
    assert_eq!(host.cells.count(), (6, 6));
    drop(guard);
    assert_eq!(host.cells.count(), (6, 6));
}

/// A request that is to be sent anyway takes a whole set with it; if one of the locks is not free, the store is asked again.
#[test]
fn locks_that_are_taken_along_cost_no_request_of_their_own() {
    let world = World::new();
    let (one, other) = (world.join(1), world.join(2));
    let set = rename("/a/x", "/b/y");
    let taken = |host: &Host, along: &mut Vec<usize>| {
        let mut sends = |changes: &[Change]| {
            along.push(changes.len());
            world.cells.cas_each(changes)
        };
        host.locks.try_acquire_along(&set, "along".into(), Some(&mut sends))
    };
    let mut along = Vec::new();
    one.cells.count();
    let guard = taken(&one, &mut along).unwrap();
    assert_eq!((along.as_slice(), one.cells.count()), (&[4][..], (0, 0)));
    assert_eq!(world.locks(), "/a +1.1<  /a/x !1.1<  /b +1.1<  /b/y !1.1<");
    other.cells.count();
    assert!(matches!(taken(&other, &mut along), Err(LockError::WouldBlock(_))));
    assert_eq!(along, [4, 4]);
    assert!(other.cells.count().0 > 0);
    assert_eq!(world.locks(), "/a +1.1<  /a/x !1.1<  /b +1.1<  /b/y !1.1<");
    drop(guard);
    assert_eq!(world.locks(), "");
    // One alone is no exception, once nobody was met.
    let mut sends = |changes: &[Change]| world.cells.cas_each(changes);
    let guard = one.locks.try_acquire_along(&hold("/a"), "along".into(), Some(&mut sends)).unwrap();
    assert_eq!(one.cells.count().0, 4);
    drop(guard);
    assert_eq!(world.locks(), "");
}

#[test]
fn one_lock_is_looked_for_in_order_while_somebody_is_met_and_goes_along_again_after_that() {
    let world = World::new();
    let (one, other) = (world.join(1), world.join(2));
    let set = hold("/a");
    let along = || {
        let mut sends = |changes: &[Change]| world.cells.cas_each(changes);
        other.locks.try_acquire_along(&set, "along".into(), Some(&mut sends))
    };
    let held = one.acquire(&set, 0).unwrap();
    assert!(matches!(along(), Err(LockError::WouldBlock(_))));
    assert!(other.locks.expects_others());
    drop(held);
    drop(other.acquire(&set, 0).unwrap());
    assert!(!other.locks.expects_others());
    drop(along().unwrap());
    assert_eq!(world.locks(), "");
}

#[test]
fn who_waits_is_let_in_by_the_release_itself() {
    let world = World::new();
    let (one, other) = (world.join(1), world.join(2));
    let guard = Mutex::new(Some(one.acquire(&hold("/a"), 0).unwrap()));
    let view = world.clone();
    other.clock.on_sleep(move |nth| match nth {
        1 => assert_eq!(view.locks(), "/a !1.1<+2.2"),
        5 => {
            drop(guard.lock().take());
            assert_eq!(view.locks(), "/a +2.2<");
        }
        _ => {}
    });
    // Under its second number: what it tried at once is over.
    let granted = other.acquire(&rename("/a/x", "/a/y"), 900).unwrap();
    assert_eq!(world.locks(), "/a +2.2<  /a/x !2.2<  /a/y !2.2<");
    drop(granted);
    assert_eq!(world.locks(), "");
}

#[test]
fn an_expired_wait_names_the_holder_and_leaves_nothing() {
    let world = World::new();
    let (one, other) = (world.join(1), world.join(2));
    let guard = one.acquire(&share("/b"), 0).unwrap();
    let before = world.locks();
    let began = crate::ambient::Clock::now(&*other.clock);
    let error = other.acquire(&rename("/a", "/b"), 300).unwrap_err();
    let waited = crate::ambient::Clock::now(&*other.clock) - began;
    assert!((300..=320).contains(&waited.as_millis()), "{waited:?}");
    let LockError::TimedOut(blocked) = &error else { panic!("{error}") };
    assert_eq!(blocked.holders[0].op, guard.op());
    assert_eq!((blocked.wanted, blocked.held), (Mode::Exclusive, Mode::Shared));
    assert!(error.to_string().contains("(a test)"), "{error}");
    assert_eq!(world.locks(), before);
    drop(guard);
}

#[test]
fn a_try_takes_all_or_nothing_and_is_never_seen_waiting() {
    let world = World::new();
    let (one, other) = (world.join(1), world.join(2));
    let guard = one.acquire(&hold("/b"), 0).unwrap();
    let view = world.clone();
    other.cells.before(move |_| assert!(!view.locks().contains("<+2.") && !view.locks().contains("<!2.")));
    // Of those who are at a lock the waiters come behind the sign.
    let error = other.locks.try_acquire(&rename("/a", "/b"), "a try".into()).unwrap_err();
    assert!(matches!(error, LockError::WouldBlock(_)), "{error}");
    assert_eq!(world.locks(), "/b !1.1<", "what it had taken is given back");
    // Once it has met others it looks first.
    other.cells.count();
    let error = other.locks.try_acquire(&rename("/a", "/b"), "a try".into()).unwrap_err();
    assert!(matches!(error, LockError::WouldBlock(_)), "{error}");
    assert_eq!(other.cells.count().1, 0, "nothing was written");
    drop(guard);
    drop(other.locks.try_acquire(&rename("/a", "/b"), "a try".into()).unwrap());
    // Taken by somebody else between the two changes.
    let taker = one.clone();
    let taken = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&taken);
    other.cells.before(move |nth| {
        if nth == 1 {
            *keep.lock() = Some(taker.acquire(&hold("/b"), 0).unwrap());
        }
    });
    let error = other.locks.try_acquire(&rename("/a", "/b"), "a try".into()).unwrap_err();
    assert!(matches!(error, LockError::WouldBlock(_)), "{error}");
    assert!(world.locks().starts_with("/b !1.") && !world.locks().contains("2."), "{}", world.locks());
    taken.lock().take();
}

/// Sharers come and go without a rest; an exclusive that waits is let in when those before it have gone.
#[test]
fn an_exclusive_is_not_starved_by_sharers() {
    let world = World::new();
    let (sharer, other) = (world.join(1), world.join(2));
    let first = sharer.acquire(&share("/a"), 0).unwrap();
    let last = Mutex::new(Some(first));
    let refused = Arc::new(Mutex::new(0));
    let count = Arc::clone(&refused);
    other.clock.on_sleep(move |nth| {
        // Another share is wanted before the one that is held goes: none is let in.
        match sharer.locks.try_acquire(&share("/a"), "another".into()) {
            Ok(guard) => *last.lock() = Some(guard),
            Err(_) => *count.lock() += 1,
        }
        if nth == 6 {
            last.lock().take();
        }
    });
    drop(other.acquire(&hold("/a"), 900).unwrap());
    assert!(*refused.lock() >= 6);
}

#[test]
fn who_gives_up_leaves_neither_a_waiter_nor_a_lock() {
    let world = World::new();
    let (one, other) = (world.join(1), world.join(2));
    let guard = one.acquire(&hold("/b"), 0).unwrap();
    let asked = AtomicU32::new(0);
    let give_up = || asked.fetch_add(1, SeqCst) == 4;
    let wait = Wait { longest: Duration::from_secs(30), give_up: Some(&give_up) };
    // It holds /a by the time that it waits for /b.
    let outcome = other.locks.acquire(&rename("/a/x", "/b/y"), "a test".into(), wait);
    assert!(matches!(outcome, Err(LockError::Interrupted)));
    assert_eq!(asked.load(SeqCst), 5);
    assert_eq!(world.locks(), "/b !1.1<");
    drop(guard);
    drop(other.acquire(&rename("/a/x", "/b/y"), 0).unwrap());
    assert_eq!(world.locks(), "");
}

#[test]
fn closing_sends_away_who_waits_and_nobody_who_holds() {
    let world = World::new();
    let (one, other) = (world.join(1), world.join(2));
    let guard = one.acquire(&hold("/a"), 0).unwrap();
    let held = other.acquire(&hold("/c"), 0).unwrap();
    let closing = other.locks.clone();
    other.clock.on_sleep(move |_| closing.close());
    assert!(matches!(other.acquire(&hold("/a"), 900), Err(LockError::Closed)));
    assert!(matches!(other.acquire(&hold("/b"), 900), Err(LockError::Closed)));
    assert_eq!(world.locks(), "/a !1.1<  /c !2.1<");
    drop((guard, held));
    assert_eq!(world.locks(), "");
}

#[test]
fn who_is_declared_dead_while_it_waits_stops_waiting() {
    let world = World::new();
    let (one, other) = (world.join(1), world.join(2));
    let guard = one.acquire(&hold("/a"), 0).unwrap();
    let (recoverer, fenced) = (one.clone(), other.clone());
    other.clock.on_sleep(move |nth| {
        if nth == 3 {
            recoverer.recover(2).unwrap();
            assert!(fenced.member.beat().is_err());
        }
    });
    assert!(matches!(other.acquire(&hold("/a"), 900), Err(LockError::SessionDropped)));
    assert_eq!(world.locks(), "/a !1.1<");
    drop(guard);
}

#[test]
fn a_thread_that_panics_leaves_its_claims_to_the_recovery() {
    let world = World::new();
    let (host, other) = (world.join(1), world.join(9));
    let inner = host.clone();
    let thread = std::thread::Builder::new().spawn(move || {
        let _guard = inner.acquire(&hold("/a"), 0).unwrap();
        panic!("a test wants this operation to fail");
    });
    assert!(thread.unwrap().join().is_err());
    host.member.beat().unwrap();
    assert!(other.acquire(&hold("/a"), 500).is_err(), "nobody knows how far it came");
    other.recover(1).unwrap();
    drop(other.acquire(&hold("/a"), 0).unwrap());
}

#[test]
fn documents_are_as_people_know_them() {
    let world = World::new();
    let (one, other) = (world.join(1), world.join(0xab));
    let guards = [one.acquire(&share("/a b"), 0).unwrap(), other.acquire(&share("/a b"), 0).unwrap()];
    let documents = one.locks.documents().unwrap();
    let [Ok(document)] = &documents[..] else { panic!("{documents:?}") };
    let text = serde_json::to_value(document).unwrap();
    assert_eq!(text["id"], "%2Fa%20b");
    assert_eq!((&text["lock_type"], &text["lock_count"]), (&"shared".into(), &2.into()));
    assert_eq!(text["holders"][1]["session"], "00000000000000ab");
    assert_eq!(text["holders"][1]["operations"][0]["operation"], "a test");
    let read: LockDocument = serde_json::from_value(text).unwrap();
    assert_eq!(one.locks.document(&id("/a b")).unwrap(), Some(read));
    drop(guards);
    assert_eq!(one.locks.document(&id("/a b")).unwrap(), None);
}

#[test]
fn ids_that_are_too_long_for_the_engine_are_shortened() {
    let world = World::new();
    let host = world.join(1);
    let settings = Settings { id_bytes_max: 48, ..Settings::default() };
    let locks = |host: &super::world::Host| {
        let standing = Arc::clone(host.member.standing());
        SharedLocks::new(world.cells.clone(), host.clock.clone(), standing, settings)
    };
    let long = format!("/{}", "long ".repeat(20));
    let set = rename(&format!("{long}/x"), &format!("{long}/y"));
    let short = locks(&host);
    let guard = short.acquire(&set, "a test".into(), Duration::ZERO).unwrap();
    let documents: Vec<_> = short.documents().unwrap().into_iter().map(Result::unwrap).collect();
    assert_eq!(documents.len(), 3);
    for (document, entry) in documents.iter().zip(set.entries()) {
        assert_eq!(document.id, entry.id, "the document has the exact path");
        assert_eq!(document.lock_type, entry.mode);
    }
    let error = locks(&world.join(2)).try_acquire(&hold(&format!("{long}/y")), "".into()).unwrap_err();
    assert!(matches!(error, LockError::WouldBlock(_)), "{error}");
    drop(guard);
    assert_eq!(world.locks(), "");
}

#[test]
fn a_document_that_is_none_is_refused_with_its_reason() {
    let world = World::new();
    let host = world.join(1);
    let claim = LockClaim {
        session: SessionId(1),
        operation: 9,
        mode: Mode::Shared,
        purpose: "".into(),
        since_ns: 0,
    };
    let put = |id: &str, path: &[u8]| {
        let record = LockRecord { path: path.to_vec(), holders: vec![claim.clone()], waiters: Vec::new() };
        world.cells.cas(&CellKey::Lock(id.into()), None, Some(Cell::Lock(record))).unwrap();
    };
    put("%2Fa", b"/b");
    put("%2Fc", b"no path");
    for (set, reason) in [(hold("/a"), "whose id is %2Fb"), (hold("/c"), "does not begin with a slash")] {
        let error = host.acquire(&set, 100).unwrap_err();
        assert!(matches!(&error, LockError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    assert_eq!(host.locks.documents().unwrap().iter().filter(|document| document.is_err()).count(), 2);
    drop(host.acquire(&hold("/b"), 0).unwrap());
}
