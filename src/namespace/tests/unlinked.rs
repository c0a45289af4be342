//! Files without a name that somebody still has open.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::world::{PATIENCE, ROOT, World, another_host, name, refused};
use crate::ambient;
use crate::document::{Ino, Key, Kind};
use crate::namespace::ops::make::{Make, What};
use crate::namespace::tests::advisory::Hosts;
use crate::namespace::tests::away::Engine;
use crate::namespace::{Caller, Namespace, NamespaceError as E, Settings};
use crate::store::{Commit, Reader as _, Store as _, StoreError};

/// One that stays in a document and one that lies in a backing file.
const CONTENTS: [&[u8]; 2] = [b"inline", &[b'b'; 5000]];

fn open_and_unlinked(world: &World, content: &[u8]) -> Ino {
    let f = world.filled(ROOT, "f", content);
    world.open(f).unwrap();
    world.unlink(ROOT, &name("f")).unwrap();
    f
}

/// Nothing of any file is left: the root alone.
fn assert_bare(world: &World) {
    assert_eq!(world.count(Kind::Node), 1);
    for kind in [Kind::Content, Kind::Orphan, Kind::Entry, Kind::Xattr] {
        assert_eq!(world.count(kind), 0, "{kind:?}");
    }
    assert_eq!(world.files().list().count(), 0);
}

#[test]
fn it_is_read_written_cut_and_synced_like_any_other() {
    let world = World::new();
    for content in CONTENTS {
        let f = open_and_unlinked(&world, content);
        assert_eq!((world.bytes(f), world.node(f).nlink), (content.to_vec(), 0));
        world.write(f, 2, b"XY", false).unwrap();
        assert_eq!(world.bytes(f)[2..4], *b"XY");
        world.write(f, 9000, b"far", false).unwrap();
        assert_eq!(world.node(f).size(), 9003);
        world.resize(f, 3).unwrap();
        assert_eq!(world.bytes(f).len(), 3);
        world.fsync(f, false).unwrap();
        world.fsync(f, true).unwrap();
        refused!(world.link(f, ROOT, &name("again")), E::NotFound);
        world.assert_clean();
        world.close_file(f).unwrap();
    }
    world.finish();
}

#[test]
fn the_last_close_removes_it_and_no_earlier_one() {
    for content in CONTENTS {
        let mut world = World::new();
        let f = open_and_unlinked(&world, content);
        world.open(f).unwrap();
        world.close_file(f).unwrap();
        assert_eq!(world.bytes(f), content);
        world.close_file(f).unwrap();
        refused!(world.read(f, 0, 1), E::NotFound);
        refused!(world.open(f), E::Stale);
        world.reopen();
        assert_bare(&world);
        world.finish();
    }
}

#[test]
fn a_file_that_is_replaced_while_it_is_open_stays_readable() {
    for content in CONTENTS {
        let mut world = World::new();
        let f = world.filled(ROOT, "f", content);
        world.open(f).unwrap();
        world.file(ROOT, "g");
        world.mv((ROOT, "g"), (ROOT, "f")).unwrap();
        assert_eq!(world.bytes(f), content);
        world.unlink(ROOT, &name("f")).unwrap();
        world.close_file(f).unwrap();
        world.reopen();
        assert_bare(&world);
        world.finish();
    }
}

#[test]
fn the_next_mount_removes_what_a_crash_left() {
    for content in CONTENTS {
        let mut world = World::new();
        let f = open_and_unlinked(&world, content);
        world.crash();
        refused!(world.read(f, 0, 1), E::NotFound);
        assert_eq!(world.count(Kind::Orphan), 0);
        world.reopen();
        assert_bare(&world);
        world.finish();
    }
}

#[test]
fn the_next_mount_removes_what_was_open_to_the_end() {
    for content in CONTENTS {
        let mut world = World::new();
        open_and_unlinked(&world, content);
        world.reopen();
        world.reopen();
        assert_bare(&world);
        world.finish();
    }
}

#[test]
fn a_crash_leaves_files_that_have_a_name_alone() {
    let mut world = World::new();
    let kept: Vec<Ino> =
        CONTENTS.iter().enumerate().map(|(at, c)| world.filled(ROOT, &at.to_string(), c)).collect();
    for &f in &kept {
        world.open(f).unwrap();
    }
    world.crash();
    for (f, content) in kept.iter().zip(CONTENTS) {
        assert_eq!(world.bytes(*f), content);
    }
    world.finish();
}

#[test]
fn its_attributes_stay_until_the_last_close_and_go_with_it() {
    let world = World::new();
    let f = world.filled(ROOT, "f", b"x");
    let set = |name: &[u8]| {
        let mode = crate::namespace::ops::xattr::SetMode::Any;
        world.set_attribute(Caller::ROOT, f, name, b"value", mode).unwrap();
    };
    set(b"user.one");
    world.open(f).unwrap();
    world.unlink(ROOT, &name("f")).unwrap();
    set(b"user.two");
    assert_eq!(&*world.get_attribute(f, b"user.one").unwrap(), b"value");
    world.close_file(f).unwrap();
    assert_eq!(world.count(Kind::Xattr), 0);
    world.finish();
}

#[test]
fn a_file_is_open_from_its_creation_on() {
    let world = World::new();
    let f_name = name("f");
    let make = Make {
        parent: ROOT,
        name: &f_name,
        what: What::Regular,
        mode: 0o600,
        umask: 0,
        caller: Caller::ROOT,
    };
    let (f, _) = world.create(&make).unwrap();
    world.unlink(ROOT, &f_name).unwrap();
    world.write(f, 0, b"temporary", false).unwrap();
    assert_eq!(world.bytes(f), b"temporary");
    world.close_file(f).unwrap();
    refused!(world.close_file(f), E::Invalid(_));
    // A create that fails opens nothing.
    world.file(ROOT, "f");
    refused!(world.create(&make), E::Exists);
    assert_eq!(world.open_inodes(), 0);
    world.finish();
}

/// Nobody closes it once more.
#[test]
fn what_a_store_that_fails_keeps_goes_when_it_works_again() {
    let hosts = Hosts::over(Engine::default(), false);
    let (host, engine) = (&hosts.ada, &hosts.engine);
    let is_there = |f: Ino| {
        let kept = [Key::Node(f), Key::Orphan(f)].iter().any(|key| engine.get(key).unwrap().is_some());
        kept || host.contents().list().any(|ino| ino.unwrap() == f.0)
    };
    for (what, fails) in [("removing", &engine.keeps), ("syncing", &engine.unsynced)] {
        for content in CONTENTS {
            let make = Make {
                parent: ROOT,
                name: &name("g"),
                what: What::Regular,
                mode: 0o600,
                umask: 0,
                caller: Caller::ROOT,
            };
            let (f, _) = host.create(&make).unwrap();
            host.write(f, 0, content, false).unwrap();
            host.unlink(ROOT, &name("g")).unwrap();
            fails.store(true, SeqCst);
            assert_eq!(host.close_file(f).is_err(), what == "removing");
            refused!(host.open(f), E::Stale);
            // Until it was tried in vain.
            std::thread::sleep(Duration::from_millis(50));
            assert!(is_there(f) || (what == "syncing" && content.len() < 100), "{what}");
            fails.store(false, SeqCst);
            let begun = ambient::monotonic();
            while is_there(f) {
                assert!(begun.elapsed() < PATIENCE, "{what}: {} bytes are left", content.len());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    hosts.finish();
}

/// What else such a store has lost, nobody knows: the bytes of files without a node may be all that is left of them.
#[test]
fn a_volume_without_its_root_is_refused_before_anything_is_swept() {
    let world = World::new();
    let f = world.filled(ROOT, "f", CONTENTS[1]);
    world.store.commit(&Commit::new().delete(Key::Node(ROOT)).delete(Key::Node(f))).unwrap();
    let begun = Namespace::begin(world.store.clone(), world.files(), Settings::default(), another_host());
    let damaged = |error: &E| matches!(error, E::Store(StoreError::Damaged { .. }));
    assert!(begun.is_err_and(|error| damaged(&error)));
    assert_eq!(world.files().list().map(Result::unwrap).collect::<Vec<_>>(), [f.0]);
}
