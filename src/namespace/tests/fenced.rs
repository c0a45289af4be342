//! Operations and sessions that somebody ends from outside: nothing of them takes effect afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use super::world::{ADA, ROOT, World, name};
use crate::document::{Document, Key, SessionState};
use crate::lock::{BreakOutcome, Broken, LockError};
use crate::namespace::ops::rename::Patience;
use crate::namespace::{NamespaceError as E, Result};
use crate::stop::StopOnDrop;
use crate::store::{Reader as _, Store as _, StoreError};

fn by() -> Arc<str> {
    "by the test".into()
}

fn state(world: &World) -> SessionState {
    let stored = world.store.get(&Key::Session(world.session())).unwrap().unwrap();
    let Document::Session(session) = &*stored.document else { panic!("{stored:?}") };
    session.state
}

/// One file goes to and fro while its renames are broken as they are met. Each rename must end as its break said.
#[test]
fn a_rename_ends_as_the_break_of_it_said() {
    const MET: usize = 40;
    let world = World::new();
    let (a, b) = (world.dir(ROOT, "a"), world.dir(ROOT, "b"));
    let file = world.file(a, "f");
    let stop = AtomicBool::new(false);
    let mut said: Vec<Broken> = Vec::new();
    let is_undone = |broken: &Broken| broken.outcome != BreakOutcome::AlreadyDone;
    let refused = std::thread::scope(|scope| {
        let (world, stop) = (&world, &stop);
        let end = StopOnDrop(stop);
        let renamer = scope.spawn(move || {
            let (mut here, mut there, mut refused) = (a, b, 0);
            while !stop.load(SeqCst) {
                match world.mv((here, "f"), (there, "f")) {
                    Ok(()) => std::mem::swap(&mut here, &mut there),
                    Err(E::Lock(LockError::Revoked { .. })) => refused += 1,
                    Err(other) => panic!("{other}"),
                }
                assert_eq!(world.find(here, "f").unwrap(), file, "it is where its renames left it");
                assert!(world.find(there, "f").is_err(), "and nowhere else");
            }
            refused
        });
        while (said.len() < MET || !said.iter().any(is_undone)) && !renamer.is_finished() {
            let met = world.locks().operations();
            said.extend(met.iter().filter_map(|operation| world.locks().revoke(operation.id(), &by())));
        }
        drop(end);
        renamer.join().unwrap()
    });
    assert_eq!(refused, said.iter().filter(|broken| is_undone(broken)).count());
    world.finish();
}

#[test]
fn a_fenced_session_changes_nothing_and_can_be_read() {
    let mut world = World::new();
    let a = world.dir(ROOT, "a");
    let (small, large) = (world.file(a, "small"), world.file(a, "large"));
    world.write(small, 0, b"small", false).unwrap();
    world.write(large, 0, &[7; 1000], false).unwrap();
    let fenced = world.fence(&by()).unwrap();
    assert!(!fenced.before && fenced.recovered && fenced.broken.is_empty());
    assert!(world.is_fenced() && world.fence(&by()).unwrap().before);
    assert_eq!(state(&world), SessionState::Recovered);
    let commits = world.store.counters().commits;
    let changes: [Result<()>; 6] = [
        world.write(small, 0, b"other", false).map(drop),
        world.write(large, 10, b"other", false).map(drop),
        world.mv((a, "small"), (ROOT, "small")),
        world.unlink(a, &name("large")),
        world.hold(&[name("a")], crate::lock::Mode::Shared, "backup", Patience::Try).map(drop),
        world.set_attribute(ADA, small, b"user.a", b"x", crate::namespace::ops::xattr::SetMode::Any),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        assert!(matches!(change, Err(E::Store(StoreError::Fenced))), "change {at}: {change:?}");
    }
    assert_eq!(world.store.counters().commits, commits);
    assert_eq!(world.read(small, 0, 100).unwrap(), b"small");
    assert_eq!(world.read(large, 0, 1000).unwrap(), [7; 1000]);
    world.reopen();
    assert_eq!(state(&world), SessionState::Live);
    world.write(large, 10, b"other", false).unwrap();
    world.finish();
}

/// Writers of both kinds of files are at work when the session is fenced: when the fence has returned nothing changes.
#[test]
fn nothing_of_what_was_under_way_comes_after_the_fence() {
    for _ in 0..5 {
        let mut world = World::new();
        let (small, large) = (world.file(ROOT, "small"), world.file(ROOT, "large"));
        world.write(large, 0, &[0; 4096], false).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (world, stop) = (&world, &stop);
            let _end = StopOnDrop(stop);
            for (ino, len) in [(small, 16), (large, 4096)] {
                scope.spawn(move || {
                    let mut round = 0_u8;
                    while !stop.load(SeqCst) {
                        round = round.wrapping_add(1);
                        let _ = world.write(ino, 0, &vec![round; len], false);
                    }
                });
            }
            while world.read(small, 0, 16).unwrap().is_empty() {
                std::thread::yield_now();
            }
            world.fence(&by()).unwrap();
            let seen =
                || [small, large].map(|ino| (world.read(ino, 0, 4096).unwrap(), world.node(ino).mtime));
            let before = (seen(), world.store.counters().commits);
            std::thread::sleep(Duration::from_millis(5));
            let after = (seen(), world.store.counters().commits);
            assert!(before == after, "a write took effect after the fence");
        });
        world.reopen();
        world.finish();
    }
}

#[test]
fn a_file_without_a_name_outlives_the_fence_and_is_collected_by_the_next_mount() {
    let mut world = World::new();
    let ino = world.file(ROOT, "f");
    world.write(ino, 0, b"still read", false).unwrap();
    world.open(ino).unwrap();
    world.unlink(ROOT, &name("f")).unwrap();
    let fenced = world.fence(&by()).unwrap();
    assert!(!fenced.recovered);
    assert_eq!(state(&world), SessionState::Fenced);
    assert_eq!(world.read(ino, 0, 100).unwrap(), b"still read");
    assert!(world.close_file(ino).is_err());
    world.reopen();
    world.finish();
}
