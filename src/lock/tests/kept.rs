//! Shares that a session keeps.

use std::sync::Arc;
use std::time::Duration;

use super::at_once::{cost, host_that_keeps};
use super::world::{World, hold, rename, share};
use crate::lock::{LockError, LockSet, SharedGuard, SharedLocks};
use crate::store::Store as _;
use crate::store::memory::MemoryStore;

const KEEP: Duration = Duration::from_secs(10);

fn take(locks: &SharedLocks, set: &LockSet) -> SharedGuard {
    locks.acquire(set, "work".into(), Duration::from_secs(20)).unwrap()
}

/// Renames so often that `/a` is kept.
fn warm(locks: &SharedLocks) {
    for _ in 0..3 {
        drop(take(locks, &rename("/a/x", "/a/y")));
    }
}

#[test]
fn what_is_shared_again_and_again_is_asked_for_once() {
    let store = Arc::new(MemoryStore::new());
    let locks = host_that_keeps(&store, 1, KEEP);
    let set = rename("/a/b/x", "/a/b/y");
    for round in 0..6 {
        let mut guard = None;
        assert_eq!(cost(&store, || guard = Some(take(&locks, &set))), (0, 1, 0));
        assert_eq!(locks.documents().unwrap().len(), 4);
        assert_eq!(cost(&store, || drop(guard)), (0, 1, 0));
        // The targets go with the operation. The ancestors stay, from the third one on.
        assert_eq!(locks.documents().unwrap().len(), if round < 2 { 0 } else { 2 });
    }
    let kept = locks.documents().unwrap();
    let purposes =
        kept.iter().map(|document| document.as_ref().unwrap().holders[0].operations[0].operation.clone());
    assert!(
        purposes.clone().all(|purpose| purpose.starts_with("kept for")),
        "{:?}",
        purposes.collect::<Vec<_>>()
    );
    // Nothing else is asked of the documents that are kept: one commit takes the targets.
    let before = store.counters().documents_written;
    drop(take(&locks, &set));
    assert_eq!(store.counters().documents_written - before, 4);
}

#[test]
fn a_share_is_let_go_of_when_nobody_uses_it_any_more() {
    let world = World::new();
    let host = world.join(1);
    let locks = host.keeping(KEEP);
    warm(&locks);
    assert_eq!(world.locks(), "/a +1.3<");
    host.clock.advance(KEEP / 2);
    locks.look_at_kept().unwrap();
    host.member.beat().unwrap();
    drop(take(&locks, &rename("/a/x", "/a/y")));
    host.clock.advance(KEEP - Duration::from_nanos(1));
    locks.look_at_kept().unwrap();
    assert_eq!(world.locks(), "/a +1.3<");
    host.clock.advance(Duration::from_millis(1));
    locks.look_at_kept().unwrap();
    assert_eq!(world.locks(), "");
    host.cells.count();
    locks.look_at_kept().unwrap();
    assert_eq!(host.cells.count(), (0, 0));
}

#[test]
fn who_waits_for_it_gets_it_and_is_not_overtaken() {
    let world = World::new();
    let (host, other) = (world.join(1), world.join(2));
    let locks = host.keeping(KEEP);
    warm(&locks);
    let in_use = Arc::new(parking_lot::Mutex::new(Some(take(&locks, &rename("/a/x", "/a/y")))));
    let (view, of_host) = (world.clone(), locks.clone());
    other.clock.on_sleep(move |nth| match nth {
        1 => {
            assert_eq!(view.locks(), "/a +1.3<!2.1  /a/x !1.5<  /a/y !1.5<");
            of_host.look_at_kept().unwrap();
            // It is in use.
            assert_eq!(view.locks(), "/a +1.3<!2.1  /a/x !1.5<  /a/y !1.5<");
            let refused = of_host.try_acquire(&rename("/a/v", "/a/w"), "late".into());
            assert!(matches!(refused, Err(LockError::WouldBlock(_))));
            drop(in_use.lock().take());
            assert_eq!(view.locks(), "/a !2.1<");
        }
        nth => panic!("sleep {nth}"),
    });
    drop(other.acquire(&hold("/a"), 10_000).unwrap());
    assert_eq!(world.locks(), "");
    // It is warm no more.
    drop(take(&locks, &rename("/a/x", "/a/y")));
    assert_eq!(world.locks(), "");
}

#[test]
fn the_session_itself_may_want_it_alone() {
    for cells in [true, false] {
        let world = World::new();
        let store = Arc::new(MemoryStore::new());
        let host = world.join(1);
        let locks = if cells { host.keeping(KEEP) } else { host_that_keeps(&store, 1, KEEP) };
        warm(&locks);
        let moved = take(&locks, &rename("/a", "/b"));
        let refused = locks.try_acquire(&rename("/a/x", "/a/y"), "below".into());
        assert!(matches!(refused, Err(LockError::WouldBlock(_))), "{refused:?}");
        drop(moved);
        assert!(locks.documents().unwrap().is_empty());
    }
}

#[test]
fn what_people_hold_is_claimed_in_their_own_name() {
    let world = World::new();
    let locks = world.join(1).keeping(KEEP);
    warm(&locks);
    let held = take(&locks, &share("/a/b"));
    assert_eq!(world.locks(), "/a +1.3+1.6<  /a/b +1.6<");
    drop(held);
    assert_eq!(world.locks(), "/a +1.3<");
}

#[test]
fn what_is_lost_is_used_no_more() {
    let world = World::new();
    let (host, other) = (world.join(1), world.join(2));
    let locks = host.keeping(KEEP);
    warm(&locks);
    // As a server does that forgets what it has acknowledged.
    world.forget_locks();
    locks.look_at_kept().unwrap();
    let guard = take(&locks, &rename("/a/x", "/a/y"));
    assert_eq!(world.locks(), "/a +1.5<  /a/x !1.5<  /a/y !1.5<");
    drop(guard);
    drop(other.acquire(&hold("/a"), 0).unwrap());
}

#[test]
fn an_operation_that_does_not_know_how_it_ended_keeps_the_share_in_use() {
    let world = World::new();
    let (host, other) = (world.join(1), world.join(2));
    let locks = host.keeping(KEEP);
    warm(&locks);
    take(&locks, &rename("/a/x", "/a/y")).abandon();
    host.clock.advance(KEEP * 2);
    locks.look_at_kept().unwrap();
    assert_eq!(world.locks(), "/a +1.3<  /a/x !1.5<  /a/y !1.5<");
    let refused = other.acquire(&hold("/a"), 50);
    assert!(matches!(refused, Err(LockError::TimedOut(_))), "{refused:?}");
    locks.look_at_kept().unwrap();
    assert_eq!(world.locks(), "/a +1.3<  /a/x !1.5<  /a/y !1.5<");
}

#[test]
fn the_release_can_go_with_the_commit() {
    let store = Arc::new(MemoryStore::new());
    let (one, other) = (host_that_keeps(&store, 1, KEEP), host_that_keeps(&store, 2, KEEP));
    let guard = take(&one, &rename("/a/x", "/a/y"));
    let release = guard.release_along().unwrap();
    assert_eq!((release.checks.len(), release.writes.len()), (3, 3));
    store.commit(&release).unwrap();
    guard.released();
    assert_eq!(cost(&store, || drop(guard)), (0, 0, 0));
    assert!(one.documents().unwrap().is_empty());
    // Somebody has come meanwhile: it conflicts, and nothing is released.
    let guard = take(&one, &rename("/a/x", "/a/y"));
    let release = guard.release_along().unwrap();
    let beside = take(&other, &rename("/a/v", "/a/w"));
    store.commit(&release).unwrap_err();
    assert!(guard.met_others().unwrap());
    // Nobody waited until its locks were on a disk, so its commit finds out whether they are there, whoever was met.
    assert!(guard.release_along().is_some());
    let held = take(&one, &hold("/b"));
    held.met_others().unwrap();
    assert!(held.release_along().is_none());
    drop((guard, beside, held));
    assert!(one.documents().unwrap().is_empty());
}
