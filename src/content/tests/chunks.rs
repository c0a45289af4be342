//! Chunks: several hosts at one file, dead sessions, sparse files, what is kept and what it costs.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::some_node;
use crate::content::{ChunkFile, Chunks, ContentError, MAX_SIZE, View};
use crate::document::{Document, Ino, Key, Orphan, Session, SessionId, SessionState, Version};
use crate::store::memory::MemoryStore;
use crate::store::{Commit, Reader as _, Store as _, StoreError};

const CHUNK: u64 = 1024;
const SIZE: u64 = 1 << 20;

/// The version of the node of inode 1.
const NODE: Version = Version(1);

fn store() -> Arc<MemoryStore> {
    let store = Arc::<MemoryStore>::default();
    assert_eq!(store.commit(&Commit::new().put(Key::Node(Ino(1)), some_node())).unwrap(), NODE);
    store
}

/// The chunks as one host has them.
fn host(store: &Arc<MemoryStore>) -> Chunks {
    Chunks::with_chunk_bytes(store.clone(), NonZeroU64::new(CHUNK).unwrap())
}

fn read(file: &ChunkFile, offset: u64, len: usize, version: u64) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    file.read_at(&mut bytes, offset, View { version: Version(version), size: SIZE }).unwrap();
    bytes
}

#[test]
fn hosts_that_write_different_bytes_of_one_chunk_lose_none() {
    let store = store();
    std::thread::scope(|scope| {
        for writer in 0..4_u64 {
            let file = host(&store).file(1);
            scope.spawn(move || {
                for at in (writer..2 * CHUNK).step_by(4) {
                    // After so many conflicts in a row the namespace begins again.
                    let write = || {
                        file.begin(2 * CHUNK);
                        file.write_at(&[writer as u8 + 1], at, Some(NODE))
                    };
                    while let Err(error) = write() {
                        assert!(matches!(error, ContentError::Conflict(_)), "{error}");
                    }
                }
            });
        }
    });
    let expected: Vec<u8> = (0..2 * CHUNK).map(|at| (at % 4) as u8 + 1).collect();
    assert_eq!(read(&host(&store).file(1), 0, expected.len(), 1), expected);
}

#[test]
fn a_session_that_is_not_live_changes_nothing() {
    let store = store();
    let id = SessionId(7);
    let put = |state| {
        let session = Session {
            id,
            host: String::new(),
            boot_id: String::new(),
            pid: 1,
            mount_point: String::new(),
            started: crate::document::Timestamp::default(),
            lease_ms: 1,
            heartbeat: 0,
            epoch: 1,
            intents: 0,
            operations_below: 0,
            state,
            locks: None,
        };
        store.commit(&Commit::new().put(Key::Session(id), Document::Session(session))).unwrap();
    };
    put(SessionState::Live);
    let file = host(&store).by(id).file(1);
    file.write_at(&[1; 3000], 0, Some(NODE)).unwrap();
    put(SessionState::Fenced);
    let refused = |outcome: Result<(), ContentError>| {
        assert!(matches!(outcome, Err(ContentError::Store(StoreError::Fenced))), "{outcome:?}");
    };
    refused(file.write_at(&[2; 10], 0, Some(NODE)));
    refused(file.truncate(0, Some(NODE)));
    refused(file.truncate(10, Some(NODE)));
    refused(file.punch_hole(0, CHUNK, Some(NODE)));
    assert_eq!(read(&file, 0, 3000, 1), [1; 3000]);
    // What no node speaks of is removed by whoever finds it.
    store.commit(&Commit::new().delete(Key::Node(Ino(1)))).unwrap();
    host(&store).remove(1).unwrap();
    assert_eq!(host(&store).list().count(), 0);
}

#[test]
fn what_another_host_wrote_is_seen_once_the_node_has_another_version() {
    let store = store();
    let (here, there) = (host(&store).file(1), host(&store).file(1));
    there.write_at(b"old", 0, Some(NODE)).unwrap();
    assert_eq!(read(&here, 0, 3, 1), b"old");
    there.write_at(b"new", 0, Some(NODE)).unwrap();
    assert_eq!(read(&here, 0, 3, 1), b"old");
    assert_eq!(read(&here, 0, 3, 2), b"new");
    // And a write rests on what is there, whatever was kept.
    there.write_at(b"far", 10, Some(NODE)).unwrap();
    here.write_at(b"NE", 0, Some(NODE)).unwrap();
    assert_eq!(read(&there, 0, 13, 3), b"NEw\0\0\0\0\0\0\0far");
}

#[test]
fn reads_cost_few_requests() {
    let store = store();
    let writer = host(&store).file(1);
    writer.write_at(&vec![1; 64 * CHUNK as usize], 0, Some(NODE)).unwrap();
    let file = host(&store).file(1);
    let gets = |work: &dyn Fn()| {
        let before = store.counters().gets;
        work();
        store.counters().gets - before
    };
    let small = gets(&|| (0..CHUNK / 16).for_each(|at| drop(read(&file, at * 16, 16, 1))));
    assert_eq!(small, 1, "one chunk is fetched once");
    // The memory engine counts each document of a request: none is fetched twice.
    let all = gets(&|| (1..64).for_each(|at| drop(read(&file, at * CHUNK, CHUNK as usize, 1))));
    assert!(all <= 63 + 4 * 4, "{all} chunks were fetched for 63 reads");
}

#[test]
fn a_sequence_of_small_writes_reads_nothing() {
    let store = store();
    let file = host(&store).file(1);
    file.truncate(0, Some(NODE)).unwrap();
    let before = store.counters();
    (0..200).for_each(|at| file.write_at(&[7; 100], at * 100, Some(NODE)).unwrap());
    let after = store.counters();
    assert_eq!((after.gets - before.gets, after.commits - before.commits), (0, 200));
    assert_eq!(read(&file, 0, 20_000, 1), [7; 20_000]);
}

#[test]
fn the_largest_file_is_mostly_absent_and_costs_what_is_there() {
    let store = store();
    let file = host(&store).file(1);
    file.write_at(b"begin", 0, Some(NODE)).unwrap();
    file.write_at(b"end", MAX_SIZE - 3, Some(NODE)).unwrap();
    let before = store.counters();
    assert_eq!(file.seek_data(5, MAX_SIZE).unwrap(), Some((MAX_SIZE - 3) / CHUNK * CHUNK));
    assert_eq!(file.seek_hole(0, MAX_SIZE).unwrap(), 5);
    file.punch_hole(2, MAX_SIZE - 3, Some(NODE)).unwrap();
    file.truncate(MAX_SIZE - 2, Some(NODE)).unwrap();
    file.truncate(4, Some(NODE)).unwrap();
    let after = store.counters();
    assert!(after.gets + after.scans - before.gets - before.scans < 40);
    assert_eq!(read(&file, 0, 6, 1), b"be\0\0\0\0");
    assert_eq!(store.get(&Key::Chunk(Ino(1), (MAX_SIZE - 3) / CHUNK)).unwrap(), None);
    assert!(matches!(file.write_at(b"x", MAX_SIZE, Some(NODE)), Err(ContentError::TooLarge { .. })));
}

#[test]
fn the_space_taken_follows_what_is_written_and_cut() {
    let store = store();
    let file = host(&store).file(1);
    file.trim(0, NODE).unwrap();
    file.write_at(&[1; 10 * CHUNK as usize], 0, Some(NODE)).unwrap();
    assert_eq!(file.allocated_blocks(99), 20, "what was said of nothing does not count");
    file.named(NODE);
    file.write_at(&[2; 10], 3 * CHUNK, Some(NODE)).unwrap();
    file.write_at(&[2; 100], 10 * CHUNK, Some(NODE)).unwrap();
    assert_eq!(file.allocated_blocks(20), 21);
    file.punch_hole(CHUNK, 2 * CHUNK, Some(NODE)).unwrap();
    file.truncate(5 * CHUNK, Some(NODE)).unwrap();
    assert_eq!(file.allocated_blocks(20), 6);
    file.named(NODE);
    // What a crash left was never counted, and takes nothing away.
    host(&store).file(1).write_at(&[1; 5000], 5 * CHUNK, Some(NODE)).unwrap();
    let next = host(&store).file(1);
    next.trim(5 * CHUNK, NODE).unwrap();
    assert_eq!(next.allocated_blocks(6), 6);
    next.truncate(0, Some(NODE)).unwrap();
    assert_eq!(next.allocated_blocks(6), 0);
}

#[test]
fn every_inode_with_chunks_is_listed_once() {
    let store = store();
    let chunks = host(&store);
    let expected: Vec<u64> = (1..=1500).collect();
    for &ino in &expected {
        let far = if ino % 7 == 0 { 2 } else { 1 };
        let node = (ino == 1).then_some(NODE);
        (0..far).for_each(|at| chunks.file(ino).write_at(b"x", at * (1 << 30), node).unwrap());
    }
    assert_eq!(chunks.list().map(Result::unwrap).collect::<Vec<_>>(), expected);
}

#[test]
fn what_is_cut_off_is_not_what_another_host_has_named_meanwhile() {
    let store = store();
    let (here, there) = (host(&store).file(1), host(&store).file(1));
    there.begin(0);
    there.write_at(&[1; 3000], 0, Some(NODE)).unwrap();
    let checks = there.checks(0);
    assert_eq!(checks.len(), 3);
    assert_eq!(there.checks(2500), checks[2..]);
    // Cut before the other host could name its bytes: it must not name them.
    here.trim(0, NODE).unwrap();
    let name = || Commit { checks: there.checks(0), ..Commit::new().put(Key::Node(Ino(1)), some_node()) };
    assert!(store.commit(&name()).is_err());
    // Named before: they must not be cut.
    there.begin(0);
    there.write_at(&[1; 3000], 0, Some(NODE)).unwrap();
    store.commit(&name()).unwrap();
    for size in [0, 100] {
        assert!(matches!(here.trim(size, NODE), Err(ContentError::Conflict(Key::Node(_)))));
    }
    assert_eq!(read(&here, 0, 3000, 1), [1; 3000]);
}

#[test]
fn nothing_is_copied_to_or_punched_in_what_another_host_has_removed() {
    let store = store();
    let (source, target) = (host(&store).file(2), host(&store).file(1));
    let view = View { version: NODE, size: 3000 };
    let copy = || source.copy_to((0, view), (&target, 0, Some(NODE)), 3000);
    source.write_at(&[1; 3000], 0, None).unwrap();
    assert_eq!(copy().unwrap(), 3000);
    target.punch_hole(0, 10, Some(NODE)).unwrap();
    store.commit(&Commit::new().delete(Key::Node(Ino(1)))).unwrap();
    for (at, len) in [(20, 10), (CHUNK, CHUNK)] {
        let punched = target.punch_hole(at, len, Some(NODE));
        assert!(matches!(punched, Err(ContentError::Conflict(Key::Node(_)))), "{punched:?}");
    }
    host(&store).remove(1).unwrap();
    assert!(matches!(copy(), Err(ContentError::Conflict(Key::Node(_)))));
    assert_eq!(host(&store).list().map(Result::unwrap).collect::<Vec<_>>(), [2]);
}

#[test]
fn chunks_of_an_inode_that_is_gone_are_collected_and_no_others() {
    let store = store();
    let chunks = host(&store);
    for ino in 1..4 {
        chunks.file(ino).write_at(&[1; 3000], 0, (ino == 1).then_some(NODE)).unwrap();
    }
    store
        .commit(&Commit::new().put(Key::Orphan(Ino(2)), Document::Orphan(Orphan { session: SessionId(7) })))
        .unwrap();
    assert_eq!([1, 2, 3].map(|ino| chunks.collect_stray(ino).unwrap()), [false, false, true]);
    assert_eq!(chunks.list().map(Result::unwrap).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_change_that_another_host_has_cut_off_does_not_go_on() {
    let store = store();
    let (here, there) = (host(&store).file(1), host(&store).file(1));
    here.begin(0);
    here.write_at(&[1; 64], 0, Some(NODE)).unwrap();
    there.truncate(0, Some(NODE)).unwrap();
    let error = here.write_at(&[2; 16], 64, Some(NODE)).unwrap_err();
    assert!(matches!(error, ContentError::Conflict(_)), "{error}");
    assert_eq!(read(&there, 0, 80, 1), [0; 80]);
    here.begin(0);
    here.write_at(&[2; 16], 64, Some(NODE)).unwrap();
}

/// A store may lose the commit that took the node.
#[test]
fn nothing_of_a_file_that_is_there_is_removed_as_of_one_that_is_gone() {
    let store = store();
    let chunks = host(&store);
    chunks.file(1).write_at(b"bytes", 0, Some(NODE)).unwrap();
    assert!(matches!(chunks.remove(1), Err(ContentError::Conflict(Key::Node(Ino(1))))));
    assert_eq!(chunks.list().count(), 1);
    store.commit(&Commit::new().delete(Key::Node(Ino(1)))).unwrap();
    chunks.remove(1).unwrap();
    assert_eq!(chunks.list().count(), 0);
}
