//! Written bytes that are kept back: everybody behind the mount sees them at once, everybody else when they are sent.

use std::sync::Arc;

use super::two_hosts::other_host;
use super::world::{ADA, ROOT, World, refused};
use crate::document::{AdvisoryFamily, Ino, Key, LockMode};
use crate::namespace::ops::attributes::Change;
use crate::namespace::ops::later::Told::{ByClose, ByFsync};
use crate::namespace::ops::space::Allocation;
use crate::namespace::ops::write::Privileges;
use crate::namespace::ops::xattr::SetMode;
use crate::namespace::{AdvisoryCall, Caller, Namespace, NamespaceError as E, Settings};
use crate::store::{Reader as _, StoreError};

const LIMIT: u64 = 1 << 20;

/// A host that keeps bytes back, beside the one of the world, which does not.
fn keeps_back(world: &World, write_back_bytes: u64) -> Namespace {
    other_host(world, Settings { write_back_bytes, ..Settings::default() })
}

fn whole(namespace: &Namespace, ino: Ino) -> Vec<u8> {
    let size = namespace.attributes(ino).unwrap().size();
    namespace.read(ino, 0, u32::try_from(size).unwrap()).unwrap()
}

fn later(namespace: &Namespace, ino: Ino, at: u64, data: &[u8]) {
    assert_eq!(namespace.write_later(ino, Some(at), data, false).unwrap(), Privileges::Kept);
}

fn dirty(namespace: &Namespace) -> u64 {
    namespace.write_back().unwrap().dirty_bytes
}

fn finish(world: World, mine: &Namespace) {
    assert_eq!(dirty(mine), 0);
    mine.end().unwrap();
    world.finish();
}

#[test]
fn small_pieces_cost_a_commit_for_each_sixteen_chunks() {
    const PIECE: usize = 256;
    let world = World::new();
    let mine = keeps_back(&world, LIMIT);
    let f = world.file(ROOT, "f");
    let window = 16 * mine.contents().chunk_bytes() as usize;
    let bytes: Vec<u8> = (0..3 * window + 100).map(|at| (at / PIECE) as u8).collect();
    let pieces = || (0..).step_by(PIECE).zip(bytes.chunks(PIECE));
    let counted = world.counted(|_| {
        pieces().for_each(|(at, piece)| later(&mine, f, at, piece));
        mine.flush(f).unwrap();
    });
    assert_eq!((counted.commits, counted.conflicts), (4, 0));
    assert_eq!(whole(&world, f), bytes);
    let g = world.file(ROOT, "g");
    let through = world.counted(|_| {
        pieces()
            .for_each(|(at, piece)| assert_eq!(mine.write(g, at, piece, false).unwrap(), Privileges::Kept));
    });
    assert_eq!(through.commits, bytes.len().div_ceil(PIECE) as u64);
    finish(world, &mine);
}

#[test]
fn what_is_kept_back_is_seen_here_at_once_and_elsewhere_when_it_is_sent() {
    let world = World::new();
    let mine = keeps_back(&world, LIMIT);
    let f = world.filled(ROOT, "f", b"0123456789");
    mine.open(f).unwrap();
    let before = mine.attributes(f).unwrap();
    later(&mine, f, 8, b"abcdef");
    let (here, there) = (mine.attributes(f).unwrap(), world.attributes(f).unwrap());
    assert_eq!((here.size(), there.size()), (14, 10));
    assert!(here.mtime > before.mtime && here.ctime == here.mtime && there.mtime == before.mtime);
    assert_eq!(mine.lookup(ROOT, &super::world::name("f")).unwrap().1.size(), 14);
    // Bytes before them are read without them.
    let counted = world.counted(|_| assert_eq!(mine.read(f, 0, 8).unwrap(), b"01234567"));
    assert_eq!((counted.commits, dirty(&mine)), (1, 6), "an access time and nothing else");
    assert_eq!(whole(&world, f), b"0123456789");
    assert_eq!(mine.read(f, 6, 100).unwrap(), b"67abcdef");
    assert_eq!(dirty(&mine), 0);
    let sent = world.attributes(f).unwrap();
    assert_eq!((sent.mtime, sent.ctime, sent.size()), (here.mtime, here.ctime, 14));
    assert_eq!(whole(&world, f), b"01234567abcdef");
    mine.close_file(f).unwrap();
    finish(world, &mine);
}

#[test]
fn a_rename_of_a_file_whose_bytes_wait_leaves_it_the_time_of_its_write() {
    let world = World::new();
    let mine = keeps_back(&world, LIMIT);
    let f = world.filled(ROOT, "f", b"0123456789");
    later(&mine, f, 10, b"more");
    let waits = mine.attributes(f).unwrap();
    world.mv((ROOT, "f"), (ROOT, "g")).unwrap();
    mine.store().forget(&[Key::Node(f)]);
    let renamed = mine.attributes(f).unwrap();
    assert!(renamed.ctime > waits.ctime);
    assert_eq!((renamed.mtime, renamed.size()), (waits.mtime, 14));
    mine.flush(f).unwrap();
    let sent = world.attributes(f).unwrap();
    assert!(sent.ctime >= renamed.ctime);
    assert_eq!((sent.mtime, sent.size()), (waits.mtime, 14));
    finish(world, &mine);
}

/// Every operation that needs the bytes in the store sends them first; the result is that of an array of bytes.
#[test]
fn any_mixture_of_operations_gives_what_it_would_give_without() {
    const SIZE_MAX: u64 = 40_000;
    for seed in 1..=20_u64 {
        let world = World::new();
        let mine = keeps_back(&world, 10_000);
        let files = ["f", "g"].map(|name| world.file(ROOT, name));
        let mut model = [Vec::<u8>::new(), Vec::new()];
        let mut random = seed;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut at = [0, 0];
        for round in 0..300_u64 {
            let which = draw(2) as usize;
            let (f, bytes) = (files[which], &mut model[which]);
            let (from, len) = (draw(SIZE_MAX), draw(3000) + 1);
            let data = vec![(round % 255) as u8 + 1; len as usize];
            let next = at[which];
            let mut put = |bytes: &mut Vec<u8>, from: u64| {
                let end = (from + len) as usize;
                bytes.resize(bytes.len().max(end), 0);
                bytes[from as usize..end].copy_from_slice(&data);
                at[which] = end as u64 % SIZE_MAX;
            };
            match draw(16) {
                0 => {
                    mine.change(Caller::ROOT, f, &Change { size: Some(from), ..Change::default() }).unwrap();
                    bytes.resize(from as usize, 0);
                }
                1 => {
                    mine.allocate(Caller::ROOT, f, from, len, Allocation::PunchHole, true).unwrap();
                    let end = bytes.len().min((from + len) as usize);
                    bytes[end.min(from as usize)..end].fill(0);
                }
                2 => {
                    let other = files[1 - which];
                    let (copied, _) = mine.copy(Caller::ROOT, (other, 0), (f, 0), len).unwrap();
                    let there = model[1 - which][..copied as usize].to_vec();
                    let bytes = &mut model[which];
                    bytes.resize(bytes.len().max(there.len()), 0);
                    bytes[..there.len()].copy_from_slice(&there);
                }
                3 => mine.fsync(f, true).unwrap(),
                4 | 5 => {
                    mine.write_later(f, None, &data, false).unwrap();
                    put(bytes, bytes.len() as u64);
                }
                6 => {
                    mine.write(f, from, &data, false).unwrap();
                    put(bytes, from);
                }
                7 => {
                    let end = bytes.len().min((from + len) as usize);
                    let there = &bytes[end.min(from as usize)..end];
                    assert_eq!(mine.read(f, from, len as u32).unwrap(), there, "seed {seed}, round {round}");
                }
                8 => {
                    later(&mine, f, from, &data);
                    put(bytes, from);
                }
                _ => {
                    later(&mine, f, next, &data);
                    put(bytes, next);
                }
            }
            let size = mine.attributes(f).unwrap().size();
            assert_eq!(size, model[which].len() as u64, "seed {seed}, round {round}");
            assert!(dirty(&mine) <= 10_000);
        }
        mine.flush_all();
        for (f, bytes) in files.iter().zip(&model) {
            assert!(whole(&world, *f) == *bytes && whole(&mine, *f) == *bytes, "seed {seed}");
        }
        finish(world, &mine);
    }
}

#[test]
fn no_more_is_kept_back_than_the_bound_and_the_oldest_makes_room() {
    let world = World::new();
    let mine = keeps_back(&world, 1000);
    let files: Vec<Ino> = (0..10).map(|n| world.file(ROOT, &format!("f{n}"))).collect();
    for (n, f) in files.iter().enumerate() {
        later(&mine, *f, 0, &[n as u8; 300]);
        assert!(dirty(&mine) <= 1000);
    }
    let sizes: Vec<u64> = files.iter().map(|f| world.attributes(*f).unwrap().size()).collect();
    assert_eq!(sizes, [300, 300, 300, 300, 300, 300, 300, 0, 0, 0]);
    // What is larger than the bound does not come later at all.
    later(&mine, files[0], 0, &[9; 1001]);
    assert_eq!(world.attributes(files[0]).unwrap().size(), 1001);
    // Writers of many files at once keep to it, and all goes on.
    std::thread::scope(|scope| {
        for f in &files {
            scope.spawn(|| (0..200).for_each(|n| later(&mine, *f, n * 90, &[n as u8; 90])));
        }
        (0..200).for_each(|_| assert!(dirty(&mine) <= 1000));
    });
    mine.flush_all();
    let expected: Vec<u8> = (0..200).flat_map(|n| [n as u8; 90]).collect();
    assert!(files.iter().all(|f| whole(&world, *f) == expected));
    finish(world, &mine);
}

#[test]
fn records_that_hosts_append_later_are_all_there_and_whole() {
    const RECORD: usize = 100;
    let world = World::new();
    let f = world.file(ROOT, "f");
    let hosts = [keeps_back(&world, LIMIT), keeps_back(&world, 2000)];
    std::thread::scope(|scope| {
        for (host, namespace) in hosts.iter().enumerate() {
            scope.spawn(move || {
                for n in 0..100 {
                    namespace.write_later(f, None, &[host as u8 + 1; RECORD], false).unwrap();
                    if n % 7 == 0 {
                        namespace.flush(f).unwrap();
                    }
                }
                namespace.flush(f).unwrap();
            });
        }
    });
    let bytes = whole(&world, f);
    for host in [1, 2] {
        let records = bytes.chunks(RECORD).filter(|record| record.iter().all(|byte| *byte == host)).count();
        assert_eq!(records, 100, "records of host {host} are lost or torn");
    }
    hosts.iter().for_each(|host| host.end().unwrap());
    world.finish();
}

#[test]
fn privileges_go_with_the_write_and_not_with_what_sends_it() {
    let world = World::new();
    let mine = keeps_back(&world, LIMIT);
    let f = world.filled(ROOT, "f", b"program");
    let mode = |mode| Change { mode: Some(mode), ..Change::default() };
    world.change(Caller::ROOT, f, &mode(0o4755)).unwrap();
    assert_eq!(mine.write_later(f, Some(0), b"P", true).unwrap(), Privileges::Dropped);
    assert_eq!((world.node(f).mode, dirty(&mine)), (0o755, 0));
    // What is given after the write stays.
    assert_eq!(mine.write_later(f, Some(1), b"R", true).unwrap(), Privileges::Kept);
    mine.change(Caller::ROOT, f, &mode(0o4755)).unwrap();
    mine.set_attribute(ADA, f, b"security.capability", b"c", SetMode::Any).unwrap();
    mine.flush(f).unwrap();
    assert_eq!(world.node(f).mode, 0o4755);
    assert_eq!(&*world.get_attribute(f, b"security.capability").unwrap(), b"c");
    // A capability goes at once too, whoever writes.
    assert_eq!(mine.write_later(f, Some(2), b"O", false).unwrap(), Privileges::Kept);
    refused!(world.get_attribute(f, b"security.capability"), E::NoAttribute);
    assert_eq!(whole(&world, f), b"PROgram");
    finish(world, &mine);
}

#[test]
fn who_gets_a_lock_elsewhere_reads_what_was_written_under_it() {
    let world = World::new();
    let mine = keeps_back(&world, LIMIT);
    let f = world.file(ROOT, "f");
    let call =
        AdvisoryCall { ino: f, handle: 1, owner: 1, family: AdvisoryFamily::Fcntl, start: 0, end: 9, pid: 1 };
    mine.lock_advisory(&call, LockMode::Exclusive, None).unwrap();
    later(&mine, f, 0, b"under the lock");
    mine.unlock_advisory(&call).unwrap();
    assert_eq!(whole(&world, f), b"under the lock");
    finish(world, &mine);
}

#[test]
fn what_does_not_reach_the_store_is_told_to_whoever_had_the_file_open() {
    let world = World::new();
    let mine = keeps_back(&world, LIMIT);
    let [f, g] = ["f", "g"].map(|name| world.filled(ROOT, name, b"kept"));
    mine.opened(f, 1);
    mine.opened(f, 2);
    later(&mine, f, 0, b"lost");
    later(&mine, g, 0, b"lost");
    let by: Arc<str> = "by the test".into();
    mine.fence(&by).unwrap();
    refused!(mine.write_later(f, Some(4), b"more", false), E::Store(StoreError::Fenced));
    refused!(mine.fsync(f, false), E::BytesLost { no_space: false });
    mine.opened(f, 3);
    for handle in [1, 2] {
        for by in [ByClose, ByClose, ByFsync] {
            refused!(mine.lost(f, handle, by), E::BytesLost { no_space: false });
        }
        mine.lost(f, handle, ByClose).unwrap();
    }
    mine.lost(f, 3, ByFsync).unwrap();
    refused!(mine.read(g, 0, 4), E::BytesLost { no_space: false });
    assert_eq!((whole(&mine, f), whole(&world, g)), (b"kept".to_vec(), b"kept".to_vec()));
    assert_eq!(mine.write_back().unwrap().lost_bytes, 8);
    assert!(world.store.get(&crate::document::Key::Session(mine.session())).unwrap().is_some());
    finish(world, &mine);
}

/// A file that another host has removed takes no bytes any more.
#[test]
fn bytes_of_a_file_that_is_gone_are_lost_and_nothing_waits() {
    let world = World::new();
    let mine = keeps_back(&world, LIMIT);
    let f = world.file(ROOT, "f");
    later(&mine, f, 0, b"late");
    world.unlink(ROOT, &super::world::name("f")).unwrap();
    refused!(mine.flush(f), E::BytesLost { no_space: false });
    mine.flush(f).unwrap();
    finish(world, &mine);
}
