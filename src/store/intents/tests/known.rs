//! What is known need not be read again; and where it is old, that is found out.

use std::sync::Arc;

use super::{add, clock, counter, entry, file, impatient, node, session};
use crate::document::{Chunk, Document, Ino, Key, Orphan, SessionId, Version};
use crate::store::cells::Cells;
use crate::store::cells::memory::MemoryCells;
use crate::store::conformance::directory;
use crate::store::intents::IntentStore;
use crate::store::{Commit, CommitError, Reader, Store};

type Sessions = (IntentStore<MemoryCells>, IntentStore<MemoryCells>);

/// Two sessions of two processes, and a directory that the first of them has made.
fn two() -> Sessions {
    let cells = Arc::new(MemoryCells::new());
    let (own, other) = (session(&cells, &impatient(), 1, 2), session(&cells, &impatient(), 2, 2));
    own.commit(&Commit::new().put(node(1), directory(0))).unwrap();
    (own, other)
}

fn make(text: &str) -> Commit {
    Commit::new()
        .absent(entry(text))
        .put(entry(text), file(7))
        .put(node(7), directory(0))
        .merge(node(1), add(1))
}

fn rename(from: &str, at: Version, to: &str) -> Commit {
    let there = Commit::new().at(entry(from), at).delete(entry(from));
    there.absent(entry(to)).put(entry(to), file(7)).merge(node(1), add(0)).merge(node(7), add(0))
}

fn version_of(store: &impl Reader, text: &str) -> Option<Version> {
    store.get(&entry(text)).unwrap().map(|stored| stored.version)
}

/// How many documents a commit fetches.
fn fetched(store: &IntentStore<MemoryCells>, commit: &Commit) -> u64 {
    let before = store.counters().fetches;
    store.commit(commit).unwrap();
    store.counters().fetches - before
}

#[test]
fn what_a_session_has_written_or_read_is_not_read_again() {
    let (own, other) = two();
    assert_eq!(fetched(&own, &make("a").absent(node(7))), 0);
    let at = version_of(&own, "a").unwrap();
    assert_eq!(fetched(&own, &rename("a", at, "b")), 0);
    assert_eq!((version_of(&own, "a"), counter(&own, 1)), (None, Some(1)));
    // Who has looked at it before.
    let at = version_of(&other, "b").unwrap();
    assert_eq!(fetched(&other, &rename("b", at, "c")), 2, "the two directories");
    let at = version_of(&other, "c").unwrap();
    assert_eq!(fetched(&other, &rename("c", at, "d")), 0);
    assert!(version_of(&own, "d").is_some() && version_of(&own, "b").is_none());
}

#[test]
fn what_others_have_changed_meanwhile_is_found_out() {
    let (own, other) = two();
    other.commit(&Commit::new().merge(node(1), add(5))).unwrap();
    own.commit(&Commit::new().merge(node(1), add(1))).unwrap();
    assert_eq!((counter(&own, 1), counter(&other, 1)), (Some(6), Some(6)));
    // Having met others it reads first; their clock stands still, and so it goes on to.
    assert_eq!(fetched(&own, &Commit::new().merge(node(1), add(1))), 1);
    assert_eq!(counter(&other, 1), Some(7));
}

#[test]
fn nothing_is_concluded_from_what_is_known() {
    let (own, other) = two();
    own.commit(&make("a")).unwrap();
    other.commit(&Commit::new().put(entry("a"), file(8))).unwrap();
    // From somebody else it has learnt which version there is.
    let at = version_of(&other, "a").unwrap();
    own.commit(&Commit::new().at(entry("a"), at).put(entry("a"), file(9))).unwrap();
    // What does not fit what is known may fit what is there.
    other.commit(&Commit::new().merge(node(1), add(5))).unwrap();
    own.commit(&Commit::new().merge(node(1), add(-5))).unwrap();
    assert_eq!(counter(&other, 1), Some(1));
}

#[test]
fn a_name_that_is_taken_to_be_free_and_is_not_is_a_conflict() {
    let (own, other) = two();
    other.commit(&make("a")).unwrap();
    let refused = own.commit(&make("a"));
    assert!(matches!(&refused, Err(CommitError::Conflict(key)) if *key == entry("a")), "{refused:?}");
    assert_eq!(counter(&own, 1), Some(1));
}

#[test]
fn a_node_that_is_taken_to_be_new_and_is_not_is_replaced() {
    let (own, other) = two();
    other.commit(&Commit::new().put(node(2), directory(5))).unwrap();
    own.commit(&Commit::new().put(node(2), directory(6))).unwrap();
    assert_eq!((counter(&own, 2), counter(&other, 2)), (Some(6), Some(6)));
}

/// The next chunk of a file, and a file that goes while its chunks are there still.
#[test]
fn what_a_commit_makes_is_not_looked_for() {
    let (own, other) = two();
    let (chunk, orphan) = (Key::Chunk(Ino(1), 0), Key::Orphan(Ino(1)));
    let append = || {
        let chunk_of = |bytes: &[u8]| Document::Chunk(Chunk { bytes: bytes.into() });
        Commit::new().absent(chunk.clone()).put(chunk.clone(), chunk_of(b"more")).merge(node(1), add(1))
    };
    let orphan_of = |session| Document::Orphan(Orphan { session: SessionId(session) });
    let bury = |session| Commit::new().put(orphan.clone(), orphan_of(session)).merge(node(1), add(1));
    assert_eq!(fetched(&own, &append()), 0);
    assert_eq!(fetched(&own, &bury(1)), 0);
    // Where it is there all the same.
    let refused = other.commit(&append());
    assert!(matches!(&refused, Err(CommitError::Conflict(key)) if *key == chunk), "{refused:?}");
    other.commit(&bury(2)).unwrap();
    let found = own.get(&orphan).unwrap().unwrap();
    assert_eq!(*found.document, orphan_of(2));
    assert_eq!(counter(&own, 1), Some(3));
}

#[test]
fn no_more_is_remembered_than_there_is_room_for() {
    let cells = Arc::new(MemoryCells::new()) as Arc<dyn Cells>;
    let own = session(&cells, &clock(), 1, 1);
    for n in 0..5_000 {
        own.commit(&Commit::new().put(node(n), directory(n))).unwrap();
    }
    assert!((0..5_000).all(|n| counter(&own, n) == Some(n)));
    assert!(own.known.len() <= 4096 + 64, "{}", own.known.len());
}
