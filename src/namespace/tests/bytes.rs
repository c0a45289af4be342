//! The bytes of files, in documents and apart from them alike.

use super::world::{ROOT, World, name, refused};
use crate::content::MAX_SIZE;
use crate::document::{ContentPlace, Ino, Kind};
use crate::namespace::ops::space::Allocation;
use crate::namespace::{Caller, NamespaceError as E};

fn place(world: &World, ino: Ino) -> ContentPlace {
    world.node(ino).regular().unwrap().place
}

fn allocate(world: &World, ino: Ino, offset: u64, len: u64, allocation: Allocation, keep: bool) {
    world.allocate(Caller::ROOT, ino, offset, len, allocation, keep).unwrap();
}

#[test]
fn a_read_ends_where_the_file_ends() {
    let world = World::new();
    for content in [&b"short"[..], &[9; 300]] {
        let f = world.filled(ROOT, "f", content);
        let len = content.len() as u64;
        assert_eq!(world.read(f, 2, 1 << 20).unwrap(), content[2..]);
        for offset in [len, len + 1, MAX_SIZE, u64::MAX] {
            assert_eq!(world.read(f, offset, 10).unwrap(), b"");
        }
        world.unlink(ROOT, &name("f")).unwrap();
    }
    refused!(world.read(ROOT, 0, 1), E::IsADirectory);
    world.finish();
}

#[test]
fn what_was_never_written_reads_as_zeros() {
    let world = World::new();
    let f = world.file(ROOT, "f");
    world.resize(f, 10).unwrap();
    assert_eq!((place(&world, f), world.bytes(f)), (ContentPlace::Empty, vec![0; 10]));
    world.write(f, 5, b"ab", false).unwrap();
    assert_eq!(world.bytes(f), b"\0\0\0\0\0ab\0\0\0");
    world.write(f, 1000, b"c", false).unwrap();
    let mut expected = b"\0\0\0\0\0ab".to_vec();
    expected.resize(1000, 0);
    expected.push(b'c');
    assert_eq!(world.bytes(f), expected);
    world.finish();
}

#[test]
fn a_write_of_nothing_changes_nothing() {
    let world = World::new();
    let f = world.filled(ROOT, "f", b"x");
    let before = world.node(f);
    world.write(f, 5000, b"", false).unwrap();
    assert_eq!((world.node(f).size(), world.node(f).mtime), (1, before.mtime));
    world.finish();
}

#[test]
fn what_a_map_has_changed_ends_where_the_file_ends() {
    let world = World::new();
    for len in [50, 9000] {
        let f = world.filled(ROOT, "f", &vec![b'a'; len]);
        world.write_mapped(f, 0, b"whole", false).unwrap();
        world.write_mapped(f, len as u64 - 3, b"partly", false).unwrap();
        let mut expected = vec![b'a'; len];
        expected[..5].copy_from_slice(b"whole");
        expected[len - 3..].copy_from_slice(b"par");
        assert_eq!(world.bytes(f), expected);
        let before = world.node(f);
        for beyond in [len as u64, len as u64 + 4096, MAX_SIZE] {
            world.write_mapped(f, beyond, b"not at all", false).unwrap();
        }
        assert_eq!((world.bytes(f), world.node(f).mtime), (expected, before.mtime));
        world.unlink(ROOT, &name("f")).unwrap();
    }
    world.finish();
}

#[test]
fn seeking_finds_data_and_holes_of_inline_content() {
    let world = World::new();
    let f = world.filled(ROOT, "f", b"data");
    world.resize(f, 1000).unwrap();
    assert_eq!((world.seek_data(f, 0).unwrap(), world.seek_data(f, 3).unwrap()), (0, 3));
    refused!(world.seek_data(f, 4), E::NoData);
    assert_eq!((world.seek_hole(f, 0).unwrap(), world.seek_hole(f, 10).unwrap()), (4, 10));
    for offset in [1000, 1001, u64::MAX] {
        refused!(world.seek_data(f, offset), E::NoData);
        refused!(world.seek_hole(f, offset), E::NoData);
    }
    let empty = world.file(ROOT, "empty");
    refused!(world.seek_hole(empty, 0), E::NoData);
    world.resize(empty, 5).unwrap();
    refused!(world.seek_data(empty, 0), E::NoData);
    assert_eq!(world.seek_hole(empty, 2).unwrap(), 2);
    world.finish();
}

#[test]
fn seeking_finds_data_and_holes_of_large_files() {
    const MIB: u64 = 1 << 20;
    let world = World::new();
    let f = world.file(ROOT, "f");
    world.write(f, 8 * MIB, &[1; 4096], false).unwrap();
    world.resize(f, 16 * MIB).unwrap();
    assert_eq!(world.seek_data(f, 0).unwrap(), 8 * MIB);
    assert_eq!(world.seek_hole(f, 0).unwrap(), 0);
    assert_eq!(world.seek_hole(f, 8 * MIB).unwrap(), 8 * MIB + 4096);
    refused!(world.seek_data(f, 8 * MIB + 4096), E::NoData);
    assert_eq!(world.seek_hole(f, 12 * MIB).unwrap(), 12 * MIB);
    refused!(world.seek_hole(f, 16 * MIB), E::NoData);
    world.finish();
}

#[test]
fn a_punched_hole_reads_as_zeros_and_frees_its_space() {
    let world = World::new();
    let f = world.filled(ROOT, "f", &[7; 3 * 65536]);
    let before = world.node(f).regular().unwrap().blocks;
    allocate(&world, f, 65536, 65536, Allocation::PunchHole, true);
    let mut expected = vec![7; 3 * 65536];
    expected[65536..2 * 65536].fill(0);
    assert_eq!(world.bytes(f), expected);
    assert_eq!(world.node(f).regular().unwrap().blocks, before - 128);
    assert_eq!(world.seek_hole(f, 0).unwrap(), 65536);
    assert_eq!(world.seek_data(f, 65536).unwrap(), 2 * 65536);
    allocate(&world, f, 190_000, 1 << 30, Allocation::PunchHole, true);
    assert_eq!(world.node(f).size(), 3 * 65536);
    world.finish();
}

#[test]
fn punching_and_zeroing_work_on_content_that_was_inline() {
    let world = World::new();
    for allocation in [Allocation::PunchHole, Allocation::Zero, Allocation::Reserve] {
        let f = world.filled(ROOT, "f", b"0123456789");
        allocate(&world, f, 2, 3, allocation, true);
        let expected: &[u8] =
            if allocation == Allocation::Reserve { b"0123456789" } else { b"01\0\0\x0056789" };
        assert_eq!(world.bytes(f), expected, "{allocation:?}");
        assert_eq!(world.count(Kind::Content), 0);
        world.unlink(ROOT, &name("f")).unwrap();
    }
    world.finish();
}

#[test]
fn reserving_and_zeroing_grow_the_file_unless_told_not_to() {
    let world = World::new();
    for allocation in [Allocation::Reserve, Allocation::Zero] {
        let f = world.filled(ROOT, "f", b"start");
        allocate(&world, f, 100, 100, allocation, true);
        assert_eq!(world.node(f).size(), 5);
        allocate(&world, f, 100, 100, allocation, false);
        assert_eq!(world.node(f).size(), 200);
        let mut expected = b"start".to_vec();
        expected.resize(200, 0);
        assert_eq!(world.bytes(f), expected);
        world.unlink(ROOT, &name("f")).unwrap();
    }
    let f = world.file(ROOT, "f");
    refused!(world.allocate(Caller::ROOT, f, 0, 0, Allocation::Reserve, false), E::Invalid(_));
    refused!(world.allocate(Caller::ROOT, f, MAX_SIZE, 1, Allocation::Reserve, false), E::TooLarge);
    world.finish();
}

#[test]
fn files_end_at_8_eib_less_one_byte() {
    let mut world = World::new();
    let f = world.filled(ROOT, "f", b"start");
    world.resize(f, MAX_SIZE).unwrap();
    refused!(world.resize(f, MAX_SIZE + 1), E::TooLarge);
    world.write(f, MAX_SIZE - 3, b"end", false).unwrap();
    refused!(world.write(f, MAX_SIZE - 3, b"ends", false), E::TooLarge);
    refused!(world.write(f, u64::MAX, b"x", false), E::TooLarge);
    world.reopen();
    assert_eq!((world.node(f).size(), MAX_SIZE), (MAX_SIZE, i64::MAX as u64));
    assert_eq!(world.read(f, 0, 6).unwrap(), b"start\0");
    assert_eq!(world.read(f, MAX_SIZE - 4, 100).unwrap(), b"\0end");
    assert_eq!(world.read(f, 1 << 61, 8).unwrap(), [0; 8]);
    let data = world.seek_data(f, 1 << 20).unwrap();
    assert!(data > MAX_SIZE - (1 << 20), "{data}");
    world.resize(f, 2).unwrap();
    assert_eq!(world.bytes(f), b"st");
    world.finish();
}

#[test]
fn copies_are_the_same_bytes_wherever_they_lie() {
    let world = World::new();
    let small: Vec<u8> = (0..40).collect();
    let large: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
    for (at, content) in [&small, &large].into_iter().enumerate() {
        let from = world.filled(ROOT, &format!("from{at}"), content);
        for (other, old) in [&b""[..], b"inline", &[3; 1000]].into_iter().enumerate() {
            let to = world.file(ROOT, &format!("to{at}{other}"));
            world.write(to, 0, old, false).unwrap();
            let len = content.len() as u64;
            assert_eq!(world.copy(Caller::ROOT, (from, 5), (to, 3), u64::MAX >> 2).unwrap().0, len - 5);
            let mut expected = old.to_vec();
            let end = content.len() - 5 + 3;
            expected.resize(expected.len().max(end), 0);
            expected[3..end].copy_from_slice(&content[5..]);
            assert_eq!(world.bytes(to), expected);
            assert_eq!(world.copy(Caller::ROOT, (from, len), (to, 0), 10).unwrap().0, 0);
        }
    }
    world.finish();
}
