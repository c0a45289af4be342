//! Renames that meet a lock which somebody holds.

use std::time::Duration;

use super::world::{ROOT, World, name};
use crate::ambient;
use crate::document::{Ino, Name};
use crate::lock::{LockError, Mode};
use crate::namespace::ops::rename::{Manner, Patience, Rename};
use crate::namespace::{Caller, NamespaceError};

fn path(text: &str) -> Vec<Name> {
    text.split('/').map(name).collect()
}

fn rename(from: (Ino, &str), to: (Ino, &str)) -> Rename {
    Rename {
        parent: from.0,
        name: name(from.1),
        new_parent: to.0,
        new_name: name(to.1),
        manner: Manner::Replace,
        taken_for: None,
    }
}

fn soon(milliseconds: u64) -> Patience<'static> {
    Patience::Wait((ambient::monotonic() + Duration::from_millis(milliseconds)).into())
}

#[test]
fn a_rename_that_may_not_wait_says_what_it_would_wait_for() {
    let world = World::new();
    let a = world.dir(ROOT, "a");
    world.file(a, "f");
    let guard = world.hold(&path("a"), Mode::Exclusive, "backup", Patience::Try).unwrap();
    let outcome = world.rename(Caller::ROOT, &rename((a, "f"), (a, "g")), Patience::Try);
    let Err(NamespaceError::Lock(LockError::WouldBlock(blocked))) = outcome else { panic!("{outcome:?}") };
    assert_eq!(blocked.lock.encoded(), "%2Fa");
    assert_eq!((blocked.wanted, blocked.held), (Mode::Shared, Mode::Exclusive));
    assert_eq!(&*blocked.holders[0].operation, "backup");
    drop(guard);
    world.rename(Caller::ROOT, &rename((a, "f"), (a, "g")), Patience::Try).unwrap();
    world.finish();
}

#[test]
fn a_rename_that_waits_in_vain_names_the_lock_and_leaves_nothing_behind() {
    let world = World::new();
    let a = world.dir(ROOT, "a");
    let b = world.dir(a, "b");
    world.file(b, "f");
    let guard = world.hold(&path("a/b"), Mode::Exclusive, "backup", Patience::Try).unwrap();
    let begun = ambient::monotonic();
    let outcome = world.rename(Caller::ROOT, &rename((b, "f"), (ROOT, "f")), soon(100));
    assert!(begun.elapsed() >= Duration::from_millis(100));
    let error = outcome.unwrap_err();
    assert!(matches!(&error, NamespaceError::Lock(LockError::TimedOut(_))), "{error:?}");
    let words = error.to_string();
    assert!(words.contains("%2Fa%2Fb") && words.contains("backup"), "{words}");
    let held = world.locks().documents();
    assert!(held.iter().all(|d| d.waiters.is_empty() && d.holders.len() == 1), "{held:?}");
    assert_eq!(world.find(b, "f").unwrap(), world.find(b, "f").unwrap());
    drop(guard);
    assert_eq!(world.locks().documents().len(), 0);
    world.finish();
}

#[test]
fn a_rename_that_waits_goes_on_when_the_lock_is_free() {
    let world = World::new();
    let a = world.dir(ROOT, "a");
    let f = world.file(a, "f");
    let guard = world.hold(&path("a"), Mode::Exclusive, "backup", Patience::Try).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| world.rename(Caller::ROOT, &rename((a, "f"), (ROOT, "f")), soon(20_000)));
        let begun = ambient::monotonic();
        while world.locks().documents().iter().all(|d| d.waiters.is_empty()) {
            assert!(begun.elapsed() < Duration::from_secs(10), "nobody waits");
            std::thread::yield_now();
        }
        drop(guard);
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(world.find(ROOT, "f").unwrap(), f);
    world.finish();
}

/// Where a held directory is renamed itself, the wait is for something that has moved: the rename follows.
#[test]
fn a_rename_that_waited_while_its_directory_was_moved_happens_where_that_is_now() {
    let world = World::new();
    let a = world.dir(ROOT, "a");
    let f = world.file(a, "f");
    let guard = world.hold(&path("a/f"), Mode::Exclusive, "edit", Patience::Try).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| world.rename(Caller::ROOT, &rename((a, "f"), (a, "g")), soon(20_000)));
        let begun = ambient::monotonic();
        while world.locks().documents().iter().all(|d| d.waiters.is_empty()) {
            assert!(begun.elapsed() < Duration::from_secs(10), "nobody waits");
            std::thread::yield_now();
        }
        drop(guard);
        world.mv((ROOT, "a"), (ROOT, "moved")).unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert_eq!((world.find(ROOT, "moved").unwrap(), world.find(a, "g").unwrap()), (a, f));
    world.finish();
}

#[test]
fn shared_holds_keep_a_path_in_place_and_let_work_go_on_below() {
    let world = World::new();
    let a = world.dir(ROOT, "a");
    world.file(a, "f");
    let guards = [0, 1].map(|_| world.hold(&path("a"), Mode::Shared, "watch", Patience::Try).unwrap());
    world.rename(Caller::ROOT, &rename((a, "f"), (a, "g")), Patience::Try).unwrap();
    let outcome = world.rename(Caller::ROOT, &rename((ROOT, "a"), (ROOT, "b")), Patience::Try);
    assert!(matches!(outcome, Err(NamespaceError::Lock(LockError::WouldBlock(_)))), "{outcome:?}");
    drop(guards);
    world.rename(Caller::ROOT, &rename((ROOT, "a"), (ROOT, "b")), Patience::Try).unwrap();
    world.finish();
}

#[test]
fn everything_but_a_rename_goes_on_under_any_lock() {
    let world = World::new();
    let a = world.dir(ROOT, "a");
    let guard = world.hold(&path("a"), Mode::Exclusive, "backup", Patience::Try).unwrap();
    let f = world.filled(a, "f", b"written");
    assert_eq!((world.bytes(f), world.names(a)), (b"written".to_vec(), vec!["f".to_owned()]));
    world.link(f, a, &name("g")).unwrap();
    world.unlink(a, &name("f")).unwrap();
    world.dir(a, "d");
    world.rmdir(a, &name("d")).unwrap();
    drop(guard);
    world.finish();
}

#[test]
fn the_root_and_what_is_not_there_cannot_be_held() {
    let world = World::new();
    let hold = |names: &[Name]| world.hold(names, Mode::Shared, "try", Patience::Try).map(drop);
    assert!(matches!(hold(&[]), Err(NamespaceError::Lock(LockError::Root))));
    assert!(matches!(hold(&path("absent")), Err(NamespaceError::NotFound)));
    assert_eq!(world.locks().documents().len(), 0);
    world.finish();
}

#[test]
fn whoever_waits_when_the_session_ends_is_told_so() {
    let world = World::new();
    let a = world.dir(ROOT, "a");
    world.file(a, "f");
    let guard = world.hold(&path("a"), Mode::Exclusive, "backup", Patience::Try).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| world.rename(Caller::ROOT, &rename((a, "f"), (a, "g")), soon(20_000)));
        while world.locks().documents().iter().all(|d| d.waiters.is_empty()) {
            std::thread::yield_now();
        }
        world.locks().close();
        let outcome = waiter.join().unwrap();
        assert!(matches!(outcome, Err(NamespaceError::Lock(LockError::Closed))), "{outcome:?}");
    });
    drop(guard);
    world.finish();
}
