//! Real threads of several sessions at the same locks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::world::{World, hold, rename, share};
use crate::ambient::SystemClock;
use crate::document::SessionState;
use crate::lock::session::state::tests::session;
use crate::lock::session::{Heart, Member};
use crate::lock::shared::Settings;
use crate::lock::{LockSet, Mode, SharedLocks};
use crate::store::cells::documents::DocumentCells;
use crate::store::cells::{Cells, Listed};
use crate::store::memory::MemoryStore;

const SESSIONS: u64 = 3;
const THREADS: u64 = 2;
const ROUNDS: u64 = 60;
/// What an exclusive holder adds to a path's counter; each sharer adds one.
const EXCLUSIVE: i64 = 1000;

fn sets() -> Vec<LockSet> {
    vec![
        rename("/a", "/b/d/e"),
        rename("/b/d", "/a/c"),
        rename("/a/c", "/a/x"),
        share("/a/c"),
        hold("/b"),
        rename("/b/d/e", "/a/c"),
    ]
}

#[test]
fn threads_of_several_sessions_exclude_each_other() {
    exclude_each_other(World::new().cells);
}

#[test]
fn so_they_do_where_a_set_is_taken_at_once() {
    exclude_each_other(Arc::new(DocumentCells::new(Arc::new(MemoryStore::new()))));
}

/// Every thread takes sets that meet, over and over. No two may be where they exclude each other, nobody waits for ever,
/// and nothing is left.
fn exclude_each_other(cells: Arc<dyn Cells>) {
    let sets = sets();
    let paths: BTreeMap<_, _> = sets
        .iter()
        .flat_map(|set| set.entries().iter().map(|entry| (entry.id.clone(), AtomicI64::new(0))))
        .collect();
    let (paths, sets) = (Arc::new(paths), Arc::new(sets));
    let waits = Arc::new(AtomicU64::new(0));
    let mut threads = Vec::new();
    let mut sessions = Vec::new();
    for id in 1..=SESSIONS {
        let clock = Arc::new(SystemClock::new());
        let document =
            crate::document::Session { intents: 0, lease_ms: 60_000, ..session(id, SessionState::Joining) };
        let (member, ()) = Member::join(cells.clone(), clock.clone(), document, |_| Ok(())).unwrap();
        let member = Arc::new(member);
        let heart = Heart::start(Arc::clone(&member), 60_000).unwrap();
        let settings = Settings { look_after: Duration::from_micros(200), ..Settings::default() };
        let locks = SharedLocks::new(cells.clone(), clock, Arc::clone(member.standing()), settings);
        for thread in 0..THREADS {
            let (locks, paths, sets, waits) = (locks.clone(), paths.clone(), sets.clone(), waits.clone());
            let body = move || {
                for round in 0..ROUNDS {
                    let draw = xxh3_64(&[id as u8, thread as u8, round as u8]);
                    let set = &sets[draw as usize % sets.len()];
                    let guard = match locks.try_acquire(set, "a try".into()) {
                        Ok(guard) => guard,
                        Err(_) => {
                            waits.fetch_add(1, Ordering::Relaxed);
                            locks.acquire(set, "a wait".into(), Duration::from_secs(60)).unwrap()
                        }
                    };
                    for entry in set.entries() {
                        let adds = if entry.mode == Mode::Exclusive { EXCLUSIVE } else { 1 };
                        let before = paths[&entry.id].fetch_add(adds, Ordering::SeqCst);
                        let excluded =
                            if entry.mode == Mode::Exclusive { before != 0 } else { before >= EXCLUSIVE };
                        assert!(!excluded, "{}: {before} before {adds}", entry.id);
                    }
                    // Long enough that the others come meanwhile, however few cores there are.
                    std::thread::sleep(Duration::from_micros(50));
                    for entry in set.entries() {
                        let adds = if entry.mode == Mode::Exclusive { EXCLUSIVE } else { 1 };
                        paths[&entry.id].fetch_sub(adds, Ordering::SeqCst);
                    }
                    drop(guard);
                }
            };
            threads.push(std::thread::Builder::new().spawn(body).unwrap());
        }
        sessions.push((member, heart));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(cells.list(Listed::Locks).unwrap().is_empty());
    assert!(waits.load(Ordering::Relaxed) > 0, "nobody ever met anybody");
    for (member, heart) in sessions {
        drop(heart);
        member.leave(&|_| Ok(())).unwrap();
    }
}
