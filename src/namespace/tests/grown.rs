//! Files that grow out of their document, shrink and grow again: no byte that was cut off ever comes back.

use super::world::{INLINE_MAX, ROOT, World, name};
use crate::content::ContentFile;
use crate::document::{ContentPlace, Ino, Key, Kind};
use crate::namespace::NamespaceError;
use crate::store::{Commit, Reader as _, Store as _, StoreError};

const LIMIT: usize = INLINE_MAX as usize;

fn place(world: &World, ino: Ino) -> ContentPlace {
    world.node(ino).regular().unwrap().place
}

#[test]
fn content_stays_in_its_document_up_to_the_limit_and_moves_once_beyond() {
    let world = World::new();
    let mut expected = vec![1; LIMIT];
    let f = world.filled(ROOT, "f", &expected);
    assert_eq!((place(&world, f), world.count(Kind::Content)), (ContentPlace::Inline, 1));
    world.write(f, LIMIT as u64, b"2", false).unwrap();
    expected.push(b'2');
    assert_eq!((place(&world, f), world.count(Kind::Content)), (world.apart(), 0));
    assert_eq!(world.bytes(f), expected);
    // Small again, and still where it was.
    world.resize(f, 3).unwrap();
    world.write(f, 0, b"9", false).unwrap();
    assert_eq!((place(&world, f), world.bytes(f)), (world.apart(), vec![b'9', 1, 1]));
    world.finish();
}

#[test]
fn content_that_begins_beyond_the_limit_never_has_a_document() {
    let world = World::new();
    let f = world.file(ROOT, "f");
    world.write(f, 1 << 30, b"far", false).unwrap();
    assert_eq!((place(&world, f), world.count(Kind::Content)), (world.apart(), 0));
    assert!(world.node(f).regular().unwrap().blocks < 1024);
    world.finish();
}

#[test]
fn content_that_cannot_move_leaves_nothing_where_it_was_to_go() {
    let world = World::new();
    let f = world.filled(ROOT, "f", b"small");
    let key = Key::Content(f);
    let document = world.store.get(&key).unwrap().unwrap().document;
    world.store.commit(&Commit::new().delete(key.clone())).unwrap();
    let moved = world.write(f, LIMIT as u64, b"2", false);
    assert!(matches!(moved, Err(NamespaceError::Store(StoreError::Damaged { .. }))), "{moved:?}");
    assert_eq!(world.files().list().count(), 0);
    world.store.commit(&Commit::new().put(key, (*document).clone())).unwrap();
    assert_eq!(world.bytes(f), b"small");
    world.finish();
}

/// The database may write its journal yet, in which case the next mount finds the commit there.
#[test]
fn content_whose_move_ended_with_the_store_is_still_where_the_commit_says() {
    let world = World::new();
    let f = world.filled(ROOT, "f", b"small");
    world.store.stop("a test");
    let moved = world.write(f, LIMIT as u64, b"2", false);
    assert!(matches!(moved, Err(NamespaceError::Store(StoreError::Stopped(_)))), "{moved:?}");
    let left = usize::from(world.apart() == ContentPlace::Backing);
    assert_eq!(world.files().list().count(), left);
    assert_eq!(world.bytes(f), b"small");
}

#[test]
fn an_inline_file_cut_to_nothing_loses_its_document() {
    let world = World::new();
    let f = world.filled(ROOT, "f", b"x");
    world.resize(f, 0).unwrap();
    assert_eq!((place(&world, f), world.count(Kind::Content)), (ContentPlace::Empty, 0));
    assert_eq!(world.node(f).regular().unwrap().blocks, 0);
    world.finish();
}

/// Cuts at `cut`, does `between`, grows to what it was, and looks.
fn cut_and_grow(len: usize, cut: usize, between: impl Fn(&mut World)) {
    let mut world = World::new();
    let f = world.filled(ROOT, "f", &vec![b'x'; len]);
    world.open(f).unwrap();
    world.resize(f, cut as u64).unwrap();
    world.close_file(f).unwrap();
    between(&mut world);
    world.resize(f, len as u64).unwrap();
    let mut expected = vec![b'x'; cut];
    expected.resize(len, 0);
    assert_eq!(world.bytes(f), expected, "cut at {cut} of {len}");
    between(&mut world);
    assert_eq!(world.bytes(f), expected, "cut at {cut} of {len}, and looked at later");
    world.finish();
}

#[test]
fn cut_and_grown_again_it_shows_zeros() {
    for (len, cut) in [(40, 0), (40, 7), (LIMIT, 1), (9000, 0), (9000, 7), (9000, 4096), (9000, 8999)] {
        cut_and_grow(len, cut, |_| {});
        cut_and_grow(len, cut, World::reopen);
        cut_and_grow(len, cut, World::crash);
    }
}

#[test]
fn cut_and_grown_by_a_write_behind_the_end_it_shows_zeros() {
    for (len, cut) in [(40, 7), (9000, 7), (9000, 4096)] {
        for reopened in [false, true] {
            let mut world = World::new();
            let f = world.filled(ROOT, "f", &vec![b'x'; len]);
            world.resize(f, cut as u64).unwrap();
            if reopened {
                world.reopen();
            }
            world.write(f, len as u64 - 1, b"e", false).unwrap();
            let mut expected = vec![b'x'; cut];
            expected.resize(len - 1, 0);
            expected.push(b'e');
            assert_eq!(world.bytes(f), expected, "cut at {cut} of {len}, reopened: {reopened}");
            world.finish();
        }
    }
}

#[test]
fn bytes_that_a_crash_left_beyond_the_end_are_not_shown() {
    for grow in [true, false] {
        let mut world = World::new();
        let f = world.filled(ROOT, "f", &[b'x'; 1000]);
        // As a write that died between its bytes and its commit leaves it.
        world
            .files()
            .find(f.0)
            .unwrap()
            .unwrap()
            .write_at(&[b'!'; 2000], 1000, world.node(f).version())
            .unwrap();
        world.crash();
        assert_eq!(world.bytes(f), [b'x'; 1000]);
        if grow {
            world.resize(f, 3001).unwrap();
        } else {
            let _ = world.write(f, 3000, b"\0", false).unwrap();
        }
        let mut expected = vec![b'x'; 1000];
        expected.resize(3001, 0);
        assert_eq!(world.bytes(f), expected);
        world.finish();
    }
}

#[test]
fn a_backing_file_that_a_crash_left_without_a_node_is_swept_or_used_clean() {
    let mut world = World::new();
    let f = world.filled(ROOT, "f", b"inline");
    // As a promotion that died before its commit leaves it; and one whose node never came to be.
    world.files().file(f.0).unwrap().write_at(&[b'!'; 500], 0, world.node(f).version()).unwrap();
    match world.files().file(60_000).unwrap() {
        ContentFile::Backing(file) => file.write_at(&[b'!'; 500], 0).unwrap(),
        ContentFile::Chunks(file) => file.write_at(&[b'!'; 500], 0, None).unwrap(),
    }
    world.crash();
    world.write(f, 200, b"z", false).unwrap();
    let mut expected = b"inline".to_vec();
    expected.resize(200, 0);
    expected.push(b'z');
    assert_eq!(world.bytes(f), expected);
    world.unlink(ROOT, &name("f")).unwrap();
    world.finish();
}

#[test]
fn what_was_synced_is_there_after_a_crash_whatever_it_was() {
    let mut world = World::new();
    let mut expected = Vec::new();
    let f = world.file(ROOT, "f");
    for step in 0..40u8 {
        let len = usize::from(step) * 3;
        world.write(f, expected.len() as u64, &vec![step; len], false).unwrap();
        expected.extend(vec![step; len]);
        world.fsync(f, step % 2 == 0).unwrap();
        if step % 5 == 0 {
            world.crash();
        }
        assert_eq!(world.bytes(f), expected);
    }
    world.sync().unwrap();
    world.finish();
}
