//! Times: which operation sets which, and the whole range of them.

use super::world::{ROOT, World, name};
use crate::document::{Ino, Timestamp};
use crate::namespace::Caller;
use crate::namespace::ops::attributes::{Change, Time};

fn set_times(world: &World, ino: Ino, at: Timestamp) {
    let change = Change { atime: Some(Time::At(at)), mtime: Some(Time::At(at)), ..Change::default() };
    world.change(Caller::ROOT, ino, &change).unwrap();
}

#[test]
fn times_of_all_ages_are_kept_to_the_nanosecond() {
    let mut world = World::new();
    let f = world.file(ROOT, "f");
    for sec in [i64::MIN, -(1 << 40), -2, -1, 0, 1, 1 << 40, i64::MAX] {
        for nsec in [0, 1, 500_000_000, 999_999_999] {
            let at = Timestamp { sec, nsec };
            set_times(&world, f, at);
            let node = world.node(f);
            assert_eq!((node.atime, node.mtime), (at, at));
        }
    }
    world.reopen();
    assert_eq!(world.node(f).mtime, Timestamp { sec: i64::MAX, nsec: 999_999_999 });
    world.finish();
}

#[test]
fn now_is_now_and_what_is_not_named_stays() {
    let world = World::new();
    let f = world.file(ROOT, "f");
    let old = Timestamp { sec: -2, nsec: 500_000_000 };
    set_times(&world, f, old);
    let created = world.node(f);
    world.change(Caller::ROOT, f, &Change { mtime: Some(Time::Now), ..Change::default() }).unwrap();
    let node = world.node(f);
    assert_eq!((node.atime, node.btime), (old, created.btime));
    assert!(node.mtime >= created.ctime && node.ctime >= created.ctime);
    world.finish();
}

#[test]
fn writing_and_cutting_set_the_modification_time_and_other_changes_do_not() {
    let world = World::new();
    let f = world.filled(ROOT, "f", b"x");
    let old = Timestamp { sec: 5, nsec: 5 };
    let modify: [(&dyn Fn(), bool); 6] = [
        (
            &|| {
                let _ = world.write(f, 0, b"y", false).unwrap();
            },
            true,
        ),
        (&|| drop(world.resize(f, 700).unwrap()), true),
        (&|| drop(world.resize(f, 700).unwrap()), true),
        (&|| drop(world.link(f, ROOT, &name("g")).unwrap()), false),
        (&|| world.mv((ROOT, "g"), (ROOT, "h")).unwrap(), false),
        (
            &|| {
                let change = Change { mode: Some(0o600), ..Change::default() };
                world.change(Caller::ROOT, f, &change).unwrap();
            },
            false,
        ),
    ];
    for (at, (work, modifies)) in modify.into_iter().enumerate() {
        set_times(&world, f, old);
        let before = world.node(f).ctime;
        work();
        assert_eq!(world.node(f).mtime > old, modifies, "step {at}");
        assert!(world.node(f).ctime > before, "step {at}");
    }
    world.finish();
}

#[test]
fn reading_keeps_the_access_time_as_relatime_does() {
    let world = World::new();
    let f = world.filled(ROOT, "f", b"x");
    let before = world.node(f);
    world.read(f, 0, 1).unwrap();
    let first = world.node(f).atime;
    assert!(first > before.atime, "the first read after a change counts");
    world.read(f, 0, 1).unwrap();
    assert_eq!(world.node(f).atime, first, "the next one does not");
    let yesterday = Timestamp { sec: first.sec - 90_000, nsec: 0 };
    let old = Time::At(yesterday);
    let change = Change { atime: Some(old), mtime: Some(old), ..Change::default() };
    world.change(Caller::ROOT, f, &change).unwrap();
    world.read(f, 0, 1).unwrap();
    assert!(world.node(f).atime > yesterday);
    world.finish();
}

#[test]
fn a_directory_is_modified_by_what_happens_in_it() {
    let world = World::new();
    let d = world.dir(ROOT, "d");
    let works: [&dyn Fn(); 4] = [
        &|| {
            world.file(d, "f");
        },
        &|| world.unlink(d, &name("f")).unwrap(),
        &|| {
            world.dir(d, "sub");
        },
        &|| world.rmdir(d, &name("sub")).unwrap(),
    ];
    for work in works {
        let before = world.node(d);
        work();
        let after = world.node(d);
        assert!(after.mtime > before.mtime && after.ctime > before.ctime);
    }
    world.finish();
}

/// POSIX: a change sets the time of the file to the time of the change, whatever that was set to before.
#[test]
fn a_time_in_the_future_gives_way_to_the_next_change() {
    let world = World::new();
    let d = world.dir(ROOT, "d");
    let f = world.filled(d, "f", b"x");
    let future = Timestamp { sec: 4_102_444_800, nsec: 0 };
    for ino in [d, f] {
        set_times(&world, ino, future);
    }
    world.write(f, 0, b"y", false).unwrap();
    world.file(d, "g");
    assert!(world.node(f).mtime < future, "a file that was written");
    assert!(world.node(d).mtime < future, "a directory that has a new entry");
    world.finish();
}
