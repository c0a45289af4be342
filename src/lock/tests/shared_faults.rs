//! Locks whose requests are lost, late or repeated, and the ghosts that come of it.

use super::world::{Fault, World, hold, rename, share};
use crate::lock::LockError;

/// Takes and releases a set, one request going wrong at each step, alone or behind somebody who releases meanwhile. In the
/// end nothing is left, and whoever was granted the set had all of it.
#[test]
fn requests_go_wrong_at_each_step() {
    for fault in Fault::ALL {
        for contended in [false, true] {
            let mut steps = 0;
            for at in 0.. {
                let world = World::new();
                let (host, other) = (world.join(1), world.join(9));
                let held = contended.then(|| other.acquire(&hold("/b"), 0).unwrap());
                let held = parking_lot::Mutex::new(held);
                host.clock.on_sleep(move |nth| {
                    if nth == 4 {
                        held.lock().take();
                    }
                });
                host.cells.fail(at, fault);
                let what = format!("{fault:?} at {at}, contended: {contended}");
                let guard = host.acquire(&rename("/a/x", "/b/y"), 900);
                match &guard {
                    Ok(guard) => {
                        // Of what was tried at once in vain nothing is left; it goes on as another operation.
                        let by = format!("1.{}", guard.op().number);
                        let all = format!("/a +{by}<  /a/x !{by}<  /b +{by}<  /b/y !{by}<");
                        assert_eq!(world.locks(), all, "{what}");
                        assert!(guard.op().number <= 2);
                    }
                    Err(error) => assert!(matches!(fault, Fault::Dies | Fault::DiesAfter), "{what}: {error}"),
                }
                drop(guard);
                host.clock.on_sleep(|_| ());
                if !host.cells.happened() {
                    break;
                }
                steps += 1;
                host.cells.land();
                if host.member.beat().is_err() {
                    other.recover(1).unwrap();
                }
                // What is left are ghosts: they hinder nobody, and go when they would.
                for path in ["/a/x", "/b/y"] {
                    drop(other.acquire(&hold(path), 0).unwrap_or_else(|error| panic!("{what}: {error}")));
                }
                other.locks.sweep().unwrap();
                assert_eq!(world.locks(), "", "{what}");
            }
            assert!(steps >= 8, "{fault:?}: only {steps} steps");
        }
    }
}

/// A request to make a lock document is delivered once more after the lock was released: nobody is at the lock, and yet
/// there is a claim.
#[test]
fn a_ghost_hinders_nobody_once_its_operation_is_known_to_be_over() {
    let world = World::new();
    let (host, other) = (world.join(1), world.join(2));
    host.cells.fail(1, Fault::Duplicated);
    drop(host.acquire(&hold("/a"), 0).unwrap());
    assert_eq!(world.locks(), "");
    host.cells.land();
    assert_eq!(world.locks(), "/a !1.1<");
    // Until its session has said that the operation is over, it may be real.
    let LockError::TimedOut(blocked) = other.acquire(&hold("/a"), 500).unwrap_err() else { panic!() };
    assert_eq!(blocked.holders[0].op.session.0, 1);
    let (beats, waits) = (host.clone(), other.clone());
    other.clock.on_sleep(move |nth| {
        waits.member.beat().unwrap();
        if nth == 20 {
            beats.member.beat().unwrap();
        }
    });
    drop(other.acquire(&hold("/a"), 5000).unwrap());
    assert_eq!(world.locks(), "");
}

#[test]
fn a_session_knows_its_own_ghosts_at_once() {
    let world = World::new();
    let host = world.join(1);
    let longer = host.acquire(&share("/long"), 0).unwrap();
    host.cells.fail(1, Fault::Duplicated);
    drop(host.acquire(&hold("/a"), 0).unwrap());
    host.cells.land();
    drop(host.locks.try_acquire(&hold("/a"), "again".into()).unwrap());
    drop(longer);
    assert_eq!(world.locks(), "");
}

/// Also behind an operation that runs for long, which keeps `operations_below` low, and where nobody waits.
#[test]
fn ghosts_are_swept_by_their_own_session() {
    let world = World::new();
    let (host, other) = (world.join(1), world.join(2));
    let longer = host.acquire(&share("/long"), 0).unwrap();
    host.cells.fail(1, Fault::Duplicated);
    drop(host.acquire(&hold("/a"), 0).unwrap());
    host.cells.land();
    host.member.beat().unwrap();
    assert_eq!(world.locks(), "/a !1.2<  /long +1.1<");
    assert_eq!(other.locks.sweep().unwrap(), 0);
    assert_eq!(host.locks.sweep().unwrap(), 1);
    assert_eq!(world.locks(), "/long +1.1<");
    drop(longer);
}

#[test]
fn an_abandoned_operation_keeps_its_locks_until_its_session_is_recovered() {
    let world = World::new();
    let (host, other) = (world.join(1), world.join(9));
    host.acquire(&hold("/a"), 0).unwrap().abandon();
    for _ in 0..3 {
        drop(host.acquire(&hold("/b"), 0).unwrap());
        host.member.beat().unwrap();
    }
    assert_eq!((host.locks.sweep().unwrap(), other.locks.sweep().unwrap()), (0, 0));
    assert!(matches!(other.acquire(&hold("/a"), 500), Err(LockError::TimedOut(_))));
    host.leave().unwrap();
    drop(other.acquire(&hold("/a"), 0).unwrap());
    assert_eq!(world.locks(), "");
}

/// A release that names no claim of its own takes nobody's away.
#[test]
fn a_release_takes_only_its_own_claim() {
    let world = World::new();
    let (host, other) = (world.join(1), world.join(9));
    let first = host.acquire(&share("/a"), 0).unwrap();
    let second = host.acquire(&share("/a"), 0).unwrap();
    let third = other.acquire(&share("/a"), 0).unwrap();
    drop(first);
    assert_eq!(world.locks(), "/a +1.2+9.1<");
    drop(second);
    drop(third);
}
