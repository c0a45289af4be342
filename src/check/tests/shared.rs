//! What a store that many hosts share has: other live sessions, chunks, locks; and what dead hosts leave of them.

use super::fixture::*;
use crate::check::{Mode, Report, Rule};
use crate::content::CHUNK_BYTES;
use crate::document::*;

const OTHER: SessionId = SessionId(8);

/// A volume with a file in chunks, mounted here and on another host.
fn volume() -> Sample {
    let mut volume = Sample::online();
    volume.mode = Mode::Shared { sessions: &[SESSION] };
    volume.put(Key::Session(OTHER), session(OTHER, SessionState::Live));
    volume.edit_regular(7, |file| (file.place, file.size) = (ContentPlace::Chunks, 3 * CHUNK_BYTES));
    volume.put(Key::Chunk(Ino(7), 0), chunk(131_072));
    volume.put(Key::Chunk(Ino(7), 2), chunk(1));
    volume
}

fn garbage(report: &Report) -> Vec<(&str, u64)> {
    assert!(report.is_clean(), "{:#?}", report.violations);
    report.garbage.iter().map(|found| (&*found.document, found.allocated_bytes)).collect()
}

fn claim(session: SessionId) -> LockClaim {
    LockClaim { session, operation: 1, mode: LockMode::Shared, purpose: "a test".into(), since_ns: 0 }
}

fn lock(volume: &Sample, id: &str, holders: &[SessionId], waiters: &[SessionId]) {
    let claims = |sessions: &[SessionId]| sessions.iter().copied().map(claim).collect();
    let record = LockRecord { path: b"/a".to_vec(), holders: claims(holders), waiters: claims(waiters) };
    volume.put(Key::Lock(id.into()), Document::Lock(record));
}

#[test]
fn the_sessions_of_other_hosts_and_what_they_have_open_are_sound() {
    let volume = volume();
    volume.put(Key::Orphan(Ino(9)), Document::Orphan(Orphan { session: OTHER }));
    lock(&volume, "%2Fa", &[SESSION, OTHER], &[OTHER]);
    let report = volume.check();
    assert_eq!(garbage(&report), []);
    assert_eq!((report.counts.chunks, report.counts.locks, report.counts.sessions), (2, 1, 2));
}

#[test]
fn a_fenced_host_is_one_leftover_and_not_one_for_each_file_that_it_had_open() {
    let volume = volume();
    volume.put(Key::Session(OTHER), session(OTHER, SessionState::Fenced));
    volume.put(Key::Orphan(Ino(9)), Document::Orphan(Orphan { session: OTHER }));
    let report = volume.check();
    assert!(report.is_leftover_only());
    assert_eq!(report.by_rule.into_iter().collect::<Vec<_>>(), [(Rule::SessionFenced, 1)]);
}

#[test]
fn chunks_that_no_node_speaks_of_are_garbage() {
    let volume = volume();
    volume.put(Key::Chunk(Ino(6), 0), chunk(10)); // It has a backing file.
    for index in [0, 5] {
        volume.put(Key::Chunk(Ino(50), index), chunk(100));
    }
    volume.put(Key::Chunk(Ino(13), 0), chunk(10)); // It waits to be collected.
    // Under a mount, a node that is there may be about to speak of its chunks.
    assert_eq!(garbage(&volume.check()), [("chunk:50", 200)]);
}

#[test]
fn offline_so_are_chunks_beside_other_places_and_beyond_the_end_of_a_file() {
    let volume = Sample::offline();
    for number in [6, 7] {
        volume.put(Key::Chunk(Ino(number), 0), chunk(10));
    }
    volume.edit_regular(7, |file| (file.place, file.size) = (ContentPlace::Chunks, CHUNK_BYTES));
    volume.put(Key::Chunk(Ino(7), 1), chunk(20));
    volume.put(Key::Chunk(Ino(7), 1 << 40), chunk(20));
    assert_eq!(garbage(&volume.check()), [("chunk:6", 10), ("chunk:7", 40)]);
    // So large that the size does not fit into what is remembered of each node.
    volume.edit_regular(7, |file| file.size = (1 << 40) * CHUNK_BYTES);
    assert_eq!(garbage(&volume.check()), [("chunk:6", 10), ("chunk:7", 20)]);
}

#[test]
fn claims_of_sessions_that_are_gone_are_garbage() {
    let volume = volume();
    let recovered = SessionId(9);
    volume.put(Key::Session(recovered), session(recovered, SessionState::Recovered));
    lock(&volume, "%2Fa", &[SESSION], &[]);
    lock(&volume, "%2Fb", &[SESSION, SessionId(99)], &[]);
    lock(&volume, "%2Fc", &[OTHER], &[recovered]);
    let report = volume.check();
    assert_eq!(garbage(&report), [("lock:%2Fb", 0), ("lock:%2Fc", 0)]);
    assert_eq!(
        report.garbage[1].detail,
        "session 0000000000000009 has a claim in it, and has been recovered"
    );
}

#[test]
fn advisory_locks_of_hosts_that_live_are_sound_if_they_can_all_be_held() {
    let (shared, exclusive) = (LockMode::Shared, LockMode::Exclusive);
    let held = [(SESSION, shared, 0, 9), (OTHER, shared, 5, 20), (OTHER, exclusive, 21, OFFSET_MAX)];
    let volume = volume();
    volume.put(Key::Advisory(Ino(3)), advisory(&held));
    let report = volume.check();
    assert_eq!(garbage(&report), []);
    assert_eq!(report.counts.advisory_locks, 3);
    volume.put(Key::Advisory(Ino(3)), advisory(&[(SESSION, exclusive, 0, 9), (OTHER, shared, 9, 9)]));
    let report = volume.check();
    assert_eq!(report.by_rule.into_iter().collect::<Vec<_>>(), [(Rule::AdvisoryLocks, 1)]);
    assert!(report.violations[0].detail.ends_with("are both held at byte 9"), "{:?}", report.violations);
}

#[test]
fn advisory_locks_of_sessions_that_are_gone_are_violations() {
    let volume = volume();
    let recovered = SessionId(9);
    volume.put(Key::Session(recovered), session(recovered, SessionState::Recovered));
    let left = |session| advisory(&[(OTHER, LockMode::Shared, 0, 9), (session, LockMode::Shared, 0, 9)]);
    volume.put(Key::Advisory(Ino(3)), left(SessionId(99)));
    volume.put(Key::Advisory(Ino(7)), left(recovered));
    let report = volume.check();
    assert_eq!(report.by_rule.clone().into_iter().collect::<Vec<_>>(), [(Rule::AdvisorySession, 2)]);
    assert_eq!(report.violations[1].detail, "session 0000000000000009 holds a lock, and has been recovered");
    // Read before its session had ended in good order, and gone since.
    let before = volume.store.snapshot_of_all();
    volume.delete(Key::Advisory(Ino(3)));
    volume.delete(Key::Advisory(Ino(7)));
    assert!(volume.check_with(&before).is_clean());
}
