//! What differs between the lock strategies. What does not is tested under each of them, in `renames` and `races`.

use std::time::Duration;

use super::world::{ROOT, World, name, refused};
use crate::ambient;
use crate::document::{Ino, Locking, Name};
use crate::lock::{LockDocument, LockError, LockGuard, Mode};
use crate::namespace::ops::rename::{Manner, Patience, Rename};
use crate::namespace::{Caller, NamespaceError as E, Result};

fn hold(world: &World, path: &str, mode: Mode) -> Result<LockGuard> {
    let names: Vec<Name> = path.split('/').map(name).collect();
    world.hold(&names, mode, "backup", Patience::Try)
}

/// Renames if that needs no wait. The lock that was not free, if there is one.
fn blocked_at(world: &World, from: (Ino, &str), to: (Ino, &str)) -> Option<String> {
    let (name, new_name) = (name(from.1), name(to.1));
    let rename =
        Rename { parent: from.0, name, new_parent: to.0, new_name, manner: Manner::Replace, taken_for: None };
    match world.rename(Caller::ROOT, &rename, Patience::Try) {
        Ok(_) => None,
        Err(E::Lock(LockError::WouldBlock(blocked))) => Some(blocked.lock.to_string()),
        Err(other) => panic!("{other}"),
    }
}

fn held(world: &World) -> Vec<String> {
    let show = |d: LockDocument| format!("{} {}", d.path, d.lock_type);
    world.locks().documents().into_iter().map(show).collect()
}

/// `/a` with the directory `d` and the file `d/f` in it, and `/b`; their inodes in the order of a, d, b.
fn two_trees(world: &World) -> (Ino, Ino, Ino) {
    let a = world.dir(ROOT, "a");
    let d = world.dir(a, "d");
    world.file(d, "f");
    (a, d, world.dir(ROOT, "b"))
}

#[test]
fn under_global_one_lock_stands_for_everything() {
    let world = World::with(Locking::Global);
    let (a, _, b) = two_trees(&world);
    world.file(b, "g");
    let guard = hold(&world, "a", Mode::Exclusive).unwrap();
    assert_eq!(held(&world), ["/ exclusive"]);
    assert_eq!(blocked_at(&world, (b, "g"), (b, "h")), Some("/".to_owned()));
    drop(guard);
    let shared = [0, 1].map(|_| hold(&world, "a/d", Mode::Shared).unwrap());
    assert_eq!(held(&world), ["/ shared"]);
    assert_eq!(blocked_at(&world, (b, "g"), (a, "g")), Some("/".to_owned()));
    drop(shared);
    assert_eq!(blocked_at(&world, (b, "g"), (a, "g")), None);
    world.finish();
}

#[test]
fn under_document_every_path_is_locked_and_no_ancestor() {
    let world = World::with(Locking::Document);
    let (a, d, b) = two_trees(&world);
    let guard = hold(&world, "a/d", Mode::Exclusive).unwrap();
    assert_eq!(held(&world), ["/a/d exclusive", "/a/d/f exclusive"]);
    assert_eq!(blocked_at(&world, (d, "f"), (b, "f")), Some("/a/d/f".to_owned()));
    world.file(b, "g");
    assert_eq!(blocked_at(&world, (b, "g"), (d, "g")), Some("/a/d".to_owned()), "into what is held");
    assert_eq!(blocked_at(&world, (ROOT, "a"), (b, "a")), Some("/a/d".to_owned()), "an ancestor of it");
    assert_eq!(blocked_at(&world, (b, "g"), (a, "g")), None, "beside it");
    drop(guard);
    let shared = hold(&world, "a", Mode::Shared).unwrap();
    assert_eq!(held(&world), ["/a shared"]);
    assert_eq!(blocked_at(&world, (d, "f"), (d, "h")), None, "below it");
    assert_eq!(blocked_at(&world, (ROOT, "a"), (b, "a")), Some("/a".to_owned()));
    drop(shared);
    world.finish();
}

#[test]
fn under_document_the_walk_finds_all_of_a_large_subtree() {
    let world = World::with(Locking::Document);
    let a = world.dir(ROOT, "a");
    for directory in 0..3 {
        let d = world.dir(a, &directory.to_string());
        // More than a page of a scan.
        for file in 0..1100 {
            world.file(d, &file.to_string());
        }
    }
    let guard = hold(&world, "a", Mode::Exclusive).unwrap();
    assert_eq!(world.locks().documents().len(), 1 + 3 * 1101);
    drop(guard);
    assert_eq!(world.locks().documents().len(), 0);
    world.finish();
}

/// The promise of docs/locking.md: what came into a subtree after the walk is not locked.
#[test]
fn under_document_what_is_created_after_the_walk_is_not_locked() {
    let world = World::with(Locking::Document);
    let (_, d, b) = two_trees(&world);
    let guard = hold(&world, "a", Mode::Exclusive).unwrap();
    world.file(d, "late");
    assert_eq!(blocked_at(&world, (d, "late"), (b, "late")), None);
    assert_eq!(blocked_at(&world, (d, "f"), (b, "f")), Some("/a/d/f".to_owned()));
    drop(guard);
    world.finish();
}

/// Runs a rename of `/a` to `/c` that waits for the lock of `/c`, and `meanwhile` before it gets that.
fn waits_while(world: &World, meanwhile: impl FnOnce()) {
    world.dir(ROOT, "c");
    let guard = hold(world, "c", Mode::Exclusive).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| world.mv((ROOT, "a"), (ROOT, "c")));
        let begun = ambient::monotonic();
        while world.locks().documents().iter().all(|d| d.waiters.is_empty()) {
            assert!(begun.elapsed() < Duration::from_secs(10), "nobody waits");
            std::thread::yield_now();
        }
        meanwhile();
        drop(guard);
        waiter.join().unwrap().unwrap();
    });
    refused!(world.find(ROOT, "a"), E::NotFound);
}

#[test]
fn under_document_a_rename_starts_over_if_it_walked_another_directory_than_it_found_in_the_end() {
    for (replaced, locked) in [(false, 2), (true, 3)] {
        let world = World::with(Locking::Document);
        world.dir(ROOT, "a");
        waits_while(&world, || {
            if replaced {
                world.rmdir(ROOT, &name("a")).unwrap();
                let a = world.dir(ROOT, "a");
                world.file(a, "new");
            }
        });
        // The hold, the rename, and the rename once more with the locks of the new directory.
        assert_eq!(world.locks().counters().acquisitions, locked);
        world.finish();
    }
}

#[test]
fn under_version_nothing_is_locked_and_nothing_can_be() {
    let world = World::with(Locking::Version);
    let (a, _, b) = two_trees(&world);
    refused!(hold(&world, "a", Mode::Exclusive), E::Lock(LockError::NoLocks));
    refused!(hold(&world, "a", Mode::Shared), E::Lock(LockError::NoLocks));
    assert_eq!(blocked_at(&world, (a, "d"), (b, "d")), None);
    assert_eq!(world.locks().counters().acquisitions, 0);
    world.finish();
}
