//! Many sessions with many threads each, over the same cells, while some are settled in the middle of their work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use super::{add, clock, counter, directory, entry, file, node, session};
use crate::document::{Ino, Key, SessionId, Version};
use crate::stop::StopOnDrop;
use crate::store::cells::memory::MemoryCells;
use crate::store::intents::settle;
use crate::store::{Commit, CommitError, Range, Reader, Scan, Start, Store, StoreError};

const ACCOUNTS: u64 = 5;
const EACH: u64 = 1000;

/// The account with its balance and the version that says so.
fn account(store: &impl Reader, ino: u64) -> (Version, u64) {
    let (version, node) = store.node(Ino(ino)).unwrap().unwrap();
    (version, node.directory().unwrap().children)
}

/// Moves one from an account to another, `times` times; how often that was done.
fn transfer(store: &impl Store, times: u64, seed: u64) -> Result<u64, StoreError> {
    let mut done = 0;
    for i in 0..times {
        let (from, to) = ((seed + i) % ACCOUNTS, (seed * 3 + i * 2 + 1) % ACCOUNTS);
        if from == to {
            continue;
        }
        loop {
            let (source, target) = (account(store, from), account(store, to));
            if source.1 == 0 {
                break;
            }
            let commit = Commit::new()
                .at(node(from), source.0)
                .at(node(to), target.0)
                .put(node(from), directory(source.1 - 1))
                .put(node(to), directory(target.1 + 1))
                .merge(node(99), add(1));
            match store.commit(&commit) {
                Ok(_) => {
                    done += 1;
                    break;
                }
                Err(CommitError::Conflict(_)) => {}
                Err(CommitError::Store(error)) => {
                    assert!(matches!(error, StoreError::Fenced), "{error}");
                    return Ok(done);
                }
            }
        }
    }
    Ok(done)
}

#[test]
fn nothing_is_lost_between_sessions_though_one_is_settled() {
    const SESSIONS: u64 = 3;
    const THREADS: u64 = 2;
    const TIMES: u64 = 60;
    let cells = Arc::new(MemoryCells::new());
    let stores: Vec<_> = (1..=SESSIONS).map(|id| session(&cells, &clock(), id, 2)).collect();
    let onlooker = session(&cells, &clock(), 9, 1);
    let setup = (0..ACCOUNTS).fold(Commit::new(), |commit, ino| commit.put(node(ino), directory(EACH)));
    onlooker.commit(&setup.put(node(99), directory(0))).unwrap();
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let threads = stores.iter().flat_map(|store| (0..THREADS).map(move |thread| (store, thread)));
        let work = |(store, thread)| {
            let done = &done;
            scope.spawn(move || done.fetch_add(transfer(store, TIMES, thread + 1).unwrap(), SeqCst))
        };
        let workers: Vec<_> = threads.map(work).collect();
        // The last session is declared dead in the middle of it, by two at once.
        while counter(&onlooker, 99).unwrap_or_default() < 40 && !workers.iter().all(|w| w.is_finished()) {
            std::thread::yield_now();
        }
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| settle(&cells, &clock(), SessionId(SESSIONS), 2).unwrap());
            }
        });
        let dead = stores[SESSIONS as usize - 1].commit(&Commit::new().merge(node(0), add(1)));
        assert!(matches!(dead, Err(CommitError::Store(StoreError::Fenced))), "{dead:?}");
    });
    let sum: u64 = (0..ACCOUNTS).map(|ino| account(&onlooker, ino).1).sum();
    assert_eq!(sum, ACCOUNTS * EACH, "money was made or lost");
    // What was acknowledged took effect, and nothing else.
    assert_eq!(counter(&onlooker, 99), Some(done.load(SeqCst)));
}

#[test]
fn a_directory_never_shows_both_names_or_neither() {
    /// At least so many renames, and so many pages read meanwhile.
    const TIMES: u64 = 300;
    let cells = Arc::new(MemoryCells::new());
    let (writer, reader) = (session(&cells, &clock(), 1, 1), session(&cells, &clock(), 2, 1));
    writer.commit(&Commit::new().put(entry("a"), file(7)).put(node(1), directory(0))).unwrap();
    let over = AtomicBool::new(false);
    let pages = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let _end = StopOnDrop(&over);
        let looks = scope.spawn(|| {
            let all = Scan { range: Range::Entries(Ino::ROOT), start: Start::First, limit: 10 };
            while !over.load(SeqCst) {
                let page: Vec<Key> = reader.scan(&all).unwrap().into_iter().map(|(key, _)| key).collect();
                assert!(page == [entry("a")] || page == [entry("b")], "{page:?}");
                pages.fetch_add(1, SeqCst);
            }
        });
        let mut i = 0;
        while (i < TIMES || pages.load(SeqCst) < TIMES) && !looks.is_finished() {
            let (from, to) = if i % 2 == 0 { ("a", "b") } else { ("b", "a") };
            let rename = Commit::new()
                .check(crate::store::Check::Exists(entry(from)))
                .absent(entry(to))
                .delete(entry(from))
                .put(entry(to), file(7))
                .merge(node(1), add(1));
            writer.commit(&rename).unwrap();
            i += 1;
        }
    });
    assert!(counter(&reader, 1) >= Some(TIMES));
}
