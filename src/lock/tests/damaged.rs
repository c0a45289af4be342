//! A session whose document does not decode: it keeps nobody from anything but its own locks.

use std::sync::Arc;
use std::time::Duration;

use super::world::{SLOTS, World, hold, rename};
use crate::ambient::Clock;
use crate::document::{LockClaim, LockRecord, SessionId};
use crate::lock::session::{Observer, Which, key};
use crate::lock::{LockError, Mode};
use crate::store::cells::{Cell, CellKey, Cells};
use crate::store::intents;

const DAMAGED: SessionId = SessionId(1);

#[test]
fn its_locks_are_waited_for_and_other_ghosts_are_swept() {
    let world = World::new();
    let (one, other) = (world.join(DAMAGED.0), world.join(2));
    let guard = one.acquire(&hold("/a"), 0).unwrap();
    let claim = LockClaim {
        session: SessionId(77),
        operation: 1,
        mode: Mode::Exclusive,
        purpose: "of nobody".into(),
        since_ns: 0,
    };
    let record = LockRecord { path: b"/zz".into(), holders: vec![claim], waiters: Vec::new() };
    world.cells.cas(&CellKey::Lock("%2Fzz".into()), None, Some(Cell::Lock(record))).unwrap();
    other.cells.damage(key(DAMAGED));
    let refused = other.acquire(&hold("/a"), 300).unwrap_err();
    assert!(
        matches!(&refused, LockError::TimedOut(blocked) if blocked.holders[0].op == guard.op()),
        "{refused}"
    );
    let refused = other.locks.try_acquire(&hold("/a"), "a try".into()).unwrap_err();
    assert!(matches!(refused, LockError::WouldBlock(_)), "{refused}");
    assert_eq!(other.locks.sweep().unwrap(), 1);
    assert_eq!(world.locks(), "/a !1.1<");
    drop(guard);
    drop(other.acquire(&hold("/a"), 0).unwrap());
}

#[test]
fn its_intents_are_left_and_those_of_nobody_are_swept() {
    let world = World::new();
    let (_one, other) = (world.join(DAMAGED.0), world.join(2));
    let (cells, clock): (Arc<dyn Cells>, Arc<dyn Clock>) = (world.cells.clone(), other.clock.clone());
    intents::create_slots(&cells, &clock, SessionId(88), 1).unwrap();
    other.cells.damage(key(DAMAGED));
    other.sweep_slots();
    assert_eq!([DAMAGED.0, 2, 88].map(|id| world.slots(id)), [usize::from(SLOTS), usize::from(SLOTS), 0]);
}

#[test]
fn the_others_are_looked_at() {
    let world = World::new();
    let (_one, other, _third) = (world.join(DAMAGED.0), world.join(2), world.join(3));
    other.cells.damage(key(DAMAGED));
    let known = [DAMAGED, SessionId(3)];
    let mut observer = Observer::default();
    let look = other.member.recoverer().look(Which::Known(&known), &mut observer, &|_| true, &|_| false);
    let others: Vec<_> = look.unwrap().others.iter().map(|session| session.id).collect();
    assert_eq!(others, [SessionId(3)]);
}

#[test]
fn a_lock_that_cannot_be_read_keeps_no_share_of_another_from_who_waits() {
    let world = World::new();
    let (host, other) = (world.join(1), world.join(2));
    let locks = host.keeping(Duration::from_secs(10));
    for _ in 0..3 {
        for (from, to) in [("/a/x", "/a/y"), ("/b/x", "/b/y")] {
            drop(locks.acquire(&rename(from, to), "work".into(), Duration::ZERO).unwrap());
        }
    }
    host.cells.damage(CellKey::Lock("%2Fa".into()));
    let of_host = locks.clone();
    other.clock.on_sleep(move |_| drop(of_host.look_at_kept()));
    drop(other.acquire(&hold("/b"), 5000).unwrap());
    assert!(matches!(locks.look_at_kept(), Err(LockError::Store(_))));
}
