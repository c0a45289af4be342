//! The lock table with real threads and a real clock.

#![allow(clippy::unwrap_used)] // Clippy takes these for tests only where nothing else stands beside `test`.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering, Ordering::SeqCst};
use std::thread::JoinHandle;

use super::*;
use crate::lock::Mode;

mod breaking;

fn id(path: &str) -> LockId {
    LockId::from_path(path.as_bytes()).unwrap()
}

fn request(session: u64, set: LockSet) -> Request {
    Request { session: SessionId(session), set, operation: Arc::from(format!("work of {session}")) }
}

fn hold(session: u64, path: &str, mode: Mode) -> Request {
    request(session, LockSet::for_hold(&id(path), mode).unwrap())
}

fn rename(session: u64, source: &str, destination: &str) -> Request {
    request(session, LockSet::for_rename(&id(source), &id(destination)).unwrap())
}

fn within(ms: u64) -> Instant {
    ambient::monotonic() + Duration::from_millis(ms)
}

const LONG_MS: u64 = 20_000;

/// Acquires on another thread, and returns once that thread waits.
fn waiting(table: &LockTable, request: Request) -> JoinHandle<Result<Guard, LockError>> {
    let before = table.counters().waits;
    let on_thread = table.clone();
    let thread = ambient::spawn("waiter", move || on_thread.acquire(request, within(LONG_MS))).unwrap();
    let limit = within(LONG_MS);
    while table.counters().waits == before {
        assert!(ambient::monotonic() < limit, "the thread did not come to wait");
        std::thread::yield_now();
    }
    thread
}

fn assert_empty(table: &LockTable) {
    assert_eq!(table.documents(), []);
    assert_eq!(table.counters().operations, 0);
    assert!(table.shared.inner.lock().parked.is_empty());
}

#[test]
fn a_try_takes_everything_or_leaves_nothing() {
    let table = LockTable::new();
    let first = table.try_acquire(rename(1, "/clinton", "/bill")).unwrap();
    let before = table.documents();
    let error = table.try_acquire(rename(2, "/a/x", "/clinton/y")).unwrap_err();
    let LockError::WouldBlock(blocked) = &error else { panic!("{error}") };
    assert_eq!(blocked.lock, id("/clinton"));
    assert_eq!(blocked.holders.len(), 1);
    assert_eq!(blocked.holders[0].op, first.op());
    let ids = |documents: &[LockDocument]| documents.iter().map(|d| d.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&table.documents()), ids(&before));
    assert_eq!(table.counters().waits, 0);
    assert_eq!(table.counters().expired, 0);
    drop(first);
    drop(table.try_acquire(rename(2, "/a/x", "/clinton/y")).unwrap());
    assert_empty(&table);
}

#[test]
fn a_release_wakes_the_thread_that_is_granted() {
    let table = LockTable::new();
    let first = table.try_acquire(hold(1, "/a", Mode::Exclusive)).unwrap();
    let second = waiting(&table, hold(2, "/a", Mode::Exclusive));
    let third = waiting(&table, hold(3, "/a/b", Mode::Shared));
    drop(first);
    let second = second.join().unwrap().unwrap();
    let document = table.document(&id("/a")).unwrap();
    assert_eq!(document.waiters.len(), 1, "the third waits for the second");
    drop(second);
    drop(third.join().unwrap().unwrap());
    assert_empty(&table);
    let counters = table.counters();
    assert_eq!((counters.acquisitions, counters.waits, counters.expired), (3, 2, 0));
    assert!(counters.longest_wait_us > 0);
}

#[test]
fn a_deadline_names_the_lock_and_its_holder_and_lets_the_next_go_on() {
    let table = LockTable::new();
    let _shared = table.try_acquire(hold(0xabc, "/a", Mode::Shared)).unwrap();
    let started = ambient::monotonic();
    let error = table.acquire(rename(2, "/a", "/b"), within(30)).unwrap_err();
    assert!(ambient::monotonic() - started >= Duration::from_millis(29));
    let LockError::TimedOut(blocked) = &error else { panic!("{error}") };
    assert_eq!(blocked.lock, id("/a"));
    assert!(blocked.holders[0].held_for >= Duration::from_millis(29));
    let text = error.to_string();
    for part in ["exclusive lock of /a (%2Fa)", "held shared", "0000000000000abc", "work of 2748"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(table.counters().expired, 1);
    assert!(table.counters().longest_wait_us >= 29_000);
    // A share that queued behind the exclusive goes on at the exclusive's deadline.
    let on_thread = table.clone();
    let gives_up = ambient::spawn("gives-up", move || on_thread.acquire(rename(2, "/a", "/b"), within(2000)));
    let gives_up = gives_up.unwrap();
    while table.document(&id("/a")).unwrap().waiters.is_empty() && !gives_up.is_finished() {
        std::thread::yield_now();
    }
    let share = waiting(&table, hold(3, "/a", Mode::Shared));
    assert!(share.join().unwrap().is_ok());
    assert!(matches!(gives_up.join().unwrap(), Err(LockError::TimedOut(_))));
}

#[test]
fn who_gives_up_holds_nothing_and_lets_the_next_go_on() {
    let table = LockTable::new();
    let shared = table.try_acquire(hold(1, "/a", Mode::Shared)).unwrap();
    let (on_thread, gives_up) = (table.clone(), Arc::new(AtomicBool::new(false)));
    let asked = Arc::clone(&gives_up);
    let waits = ambient::spawn("gives-up", move || {
        let give_up = || asked.load(SeqCst);
        let wait = Wait { longest: within(LONG_MS), give_up: Some(&give_up) };
        on_thread.acquire(rename(2, "/a", "/b"), wait)
    });
    while table.document(&id("/a")).unwrap().waiters.is_empty() {
        std::thread::yield_now();
    }
    let share = waiting(&table, hold(3, "/a", Mode::Shared));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!share.is_finished() && !waits.as_ref().unwrap().is_finished(), "nobody has given up yet");
    gives_up.store(true, SeqCst);
    assert!(matches!(waits.unwrap().join().unwrap(), Err(LockError::Interrupted)));
    drop(share.join().unwrap().unwrap());
    drop(shared);
    assert_empty(&table);
    // What is free is taken, whatever the caller would answer.
    let wait = Wait { longest: within(LONG_MS), give_up: Some(&|| true) };
    drop(table.acquire(rename(2, "/a", "/b"), wait).unwrap());
}

#[test]
fn close_ends_every_wait_and_keeps_what_is_held() {
    let table = LockTable::new();
    let guard = table.try_acquire(hold(1, "/a", Mode::Exclusive)).unwrap();
    let waits: Vec<_> = (2..5).map(|n| waiting(&table, hold(n, "/a", Mode::Shared))).collect();
    table.close();
    for thread in waits {
        assert!(matches!(thread.join().unwrap(), Err(LockError::Closed)));
    }
    assert!(matches!(table.try_acquire(hold(6, "/b", Mode::Shared)), Err(LockError::Closed)));
    assert!(matches!(table.acquire(hold(6, "/b", Mode::Shared), within(5)), Err(LockError::Closed)));
    assert_eq!(table.documents().len(), 1);
    drop(guard);
    assert_empty(&table);
}

#[test]
fn a_dropped_session_frees_its_locks_and_ends_its_waits() {
    let table = LockTable::new();
    let dead = table.try_acquire(hold(1, "/a", Mode::Exclusive)).unwrap();
    let other = table.try_acquire(hold(2, "/b", Mode::Exclusive)).unwrap();
    let dead_wait = waiting(&table, hold(1, "/b", Mode::Exclusive));
    let live_wait = waiting(&table, hold(3, "/a", Mode::Exclusive));
    table.drop_session(SessionId(1));
    assert!(matches!(dead_wait.join().unwrap(), Err(LockError::SessionDropped)));
    let live = live_wait.join().unwrap().unwrap();
    drop(dead);
    assert_eq!(table.document(&id("/a")).unwrap().holders[0].session, SessionId(3));
    drop((live, other));
    assert_empty(&table);
}

#[test]
fn a_panic_of_the_holder_releases() {
    let table = LockTable::new();
    let on_thread = table.clone();
    let thread = ambient::spawn("panics", move || {
        let _guard = on_thread.try_acquire(hold(1, "/a", Mode::Exclusive)).unwrap();
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(thread.unwrap().join().is_err());
    assert_empty(&table);
}

#[test]
fn a_lock_document_reads_like_the_one_in_the_manual() {
    let table = LockTable::new();
    let _one = table.try_acquire(hold(7, "/clinton/projects", Mode::Shared)).unwrap();
    let _two = table.try_acquire(hold(7, "/clinton", Mode::Shared)).unwrap();
    let _three = table.try_acquire(hold(3, "/clinton/\u{e9}", Mode::Exclusive)).unwrap();
    let wait = waiting(&table, rename(9, "/clinton", "/bill"));
    let document = table.document(&id("/clinton")).unwrap();
    let json = serde_json::to_value(&document).unwrap();
    assert_eq!(json["id"], "%2Fclinton");
    assert_eq!(json["path"], "/clinton");
    assert_eq!(json["lock_type"], "shared");
    assert_eq!(json["lock_count"], 3);
    assert_eq!(json["holders"][0]["session"], "0000000000000003");
    assert_eq!(json["holders"][0]["count"], 1);
    assert_eq!(json["holders"][1]["session"], "0000000000000007");
    assert_eq!(json["holders"][1]["count"], 2);
    assert_eq!(json["holders"][1]["operations"][1]["op"], 2);
    assert_eq!(json["holders"][1]["operations"][1]["operation"], "work of 7");
    assert_eq!(json["waiters"][0]["lock_type"], "exclusive");
    assert_eq!(json["waiters"][0]["operation"], "work of 9");
    let since: super::super::Timestamp = serde_json::from_value(json["waiters"][0]["since"].clone()).unwrap();
    let now = super::super::Timestamp::before(ambient::wall_clock(), Duration::ZERO);
    assert!(since <= now && now.unix_ms - since.unix_ms < LONG_MS);
    assert_eq!(serde_json::from_value::<LockDocument>(json).unwrap(), document);
    let paths: Vec<_> = table.documents().into_iter().map(|document| document.path).collect();
    assert_eq!(paths, ["/bill", "/clinton", "/clinton/projects", "/clinton/\u{e9}"]);
    table.close();
    assert!(wait.join().unwrap().is_err());
}

/// What stands on a path while somebody holds it, kept apart from the table: -1 exclusive, else the number of shares.
struct Judge {
    paths: Vec<(LockId, AtomicI64)>,
}

impl Judge {
    fn enter(&self, set: &LockSet, by: i64) {
        for entry in set.entries() {
            let (_, cell) = self.paths.iter().find(|(path, _)| *path == entry.id).unwrap();
            match (entry.mode, by) {
                (Mode::Shared, _) => {
                    assert!(cell.fetch_add(by, Ordering::SeqCst) >= 0, "shared with exclusive")
                }
                (Mode::Exclusive, 1) => assert_eq!(cell.swap(-1, Ordering::SeqCst), 0, "not alone"),
                (Mode::Exclusive, _) => assert_eq!(cell.swap(0, Ordering::SeqCst), -1, "not alone"),
            }
        }
    }
}

/// A few hundred milliseconds of eight threads that rename among twelve paths, some of which give up early.
#[test]
fn threads_under_stress_exclude_each_other_and_all_end() {
    let names = ["/a", "/a/b", "/a/b/c", "/a/b/c/d", "/d", "/d/e", "/d/e/f", "/g", "/g/h", "/i", "/j", "/k"];
    let judge = Arc::new(Judge { paths: names.iter().map(|name| (id(name), AtomicI64::new(0))).collect() });
    let table = LockTable::new();
    let stop = Arc::new(AtomicBool::new(false));
    let (granted, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let work = |session: u64| {
        let (table, judge, stop) = (table.clone(), Arc::clone(&judge), Arc::clone(&stop));
        let (granted, refused) = (Arc::clone(&granted), Arc::clone(&refused));
        move || {
            let mut random = session.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut pick = move |below: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % below
            };
            while !stop.load(Ordering::Relaxed) {
                let (source, destination) = (names[pick(12) as usize], names[pick(12) as usize]);
                let Ok(set) = LockSet::for_rename(&id(source), &id(destination)) else { continue };
                let wait_us = if pick(4) == 0 { pick(300) } else { 20_000_000 };
                let deadline = ambient::monotonic() + Duration::from_micros(wait_us);
                match table.acquire(request(session % 3, set.clone()), deadline) {
                    Ok(guard) => {
                        judge.enter(&set, 1);
                        if pick(2) == 0 {
                            std::thread::sleep(Duration::from_micros(pick(100)));
                        }
                        judge.enter(&set, -1);
                        granted.fetch_add(1, Ordering::Relaxed);
                        drop(guard);
                    }
                    Err(LockError::TimedOut(blocked)) => {
                        assert!(wait_us < 300, "a wait was lost: {blocked}");
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        }
    };
    let threads: Vec<_> = (0..8).map(|n| ambient::spawn("stress", work(n)).unwrap()).collect();
    // A run in which nobody waited or nobody gave up has shown nothing.
    let has_shown = || {
        let [granted, refused] = [&granted, &refused].map(|count| count.load(Ordering::Relaxed));
        table.counters().waits > 50 && refused > 0 && granted > 50
    };
    let begun = ambient::monotonic();
    std::thread::sleep(Duration::from_millis(300));
    while !has_shown() && begun.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(10));
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_empty(&table);
    let counters = table.counters();
    assert_eq!(counters.acquisitions, granted.load(Ordering::Relaxed));
    assert!(has_shown(), "{counters:?}");
}
