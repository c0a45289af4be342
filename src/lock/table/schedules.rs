//! The lock table under simulated threads: schedules at random, and schedules that switch at a few bad moments (PCT,
//! Burckhardt et al., ASPLOS 2010). `cargo test --features shuttle --lib lock::table::schedules`.
//!
//! A wait that is lost ends in a schedule in which no thread can go on, which the simulation reports with the schedule.

#![allow(clippy::unwrap_used)] // Clippy takes these for tests only where nothing else stands beside `test`.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};

use shuttle::thread::{self, spawn};

use super::*;
use crate::lock::Mode;

/// Schedules of each test.
const SCHEDULES: usize = 3_000;
/// How many switches at bad moments, for half of them.
const SWITCHES: usize = 3;

const NEVER: Duration = Duration::from_secs(1_000_000);
const SOON: Duration = Duration::from_secs(1);

fn explore(test: fn()) {
    shuttle::check_random(test, SCHEDULES);
    shuttle::check_pct(test, SCHEDULES, SWITCHES);
}

fn id(path: &str) -> LockId {
    LockId::from_path(path.as_bytes()).unwrap()
}

fn request(session: u64, set: &LockSet) -> Request {
    Request { session: SessionId(session), set: set.clone(), operation: Arc::from("work") }
}

fn rename(source: &str, destination: &str) -> LockSet {
    LockSet::for_rename(&id(source), &id(destination)).unwrap()
}

fn assert_empty(table: &LockTable) {
    let inner = table.shared.inner.lock();
    assert_eq!((inner.state.locks().count(), inner.state.ops().count(), inner.parked.len()), (0, 0, 0));
}

/// Who is inside, kept apart from the table: -1 alone, else the number of shares.
#[derive(Default)]
struct Judge {
    paths: BTreeMap<LockId, AtomicI64>,
}

impl Judge {
    fn of(sets: &[LockSet]) -> Arc<Judge> {
        let ids = sets.iter().flat_map(|set| set.entries().iter().map(|entry| entry.id.clone()));
        Arc::new(Judge { paths: ids.map(|id| (id, AtomicI64::new(0))).collect() })
    }

    fn visit(&self, set: &LockSet) {
        for entry in set.entries() {
            let inside = &self.paths[&entry.id];
            match entry.mode {
                Mode::Shared => assert!(inside.fetch_add(1, SeqCst) >= 0, "shared with exclusive"),
                Mode::Exclusive => assert_eq!(inside.swap(-1, SeqCst), 0, "not alone"),
            }
        }
        thread::yield_now();
        for entry in set.entries() {
            let inside = &self.paths[&entry.id];
            match entry.mode {
                Mode::Shared => drop(inside.fetch_sub(1, SeqCst)),
                Mode::Exclusive => inside.store(0, SeqCst),
            }
        }
    }
}

fn join<T>(threads: Vec<thread::JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Four renames that meet at several paths, twice each; one is impatient, one gives up when asked, one only tries.
fn renames() {
    let sets = [("/a", "/b/x"), ("/b", "/c"), ("/a/d", "/b/y"), ("/c", "/a/z")].map(|(s, d)| rename(s, d));
    let (table, judge) = (LockTable::new(), Judge::of(&sets));
    let work = |(n, set): (usize, &LockSet)| {
        let (table, judge, set) = (table.clone(), Arc::clone(&judge), set.clone());
        spawn(move || {
            for _ in 0..2 {
                let wanted = request(n as u64, &set);
                let granted = match n {
                    0 => table.try_acquire(wanted),
                    1 => table.acquire(wanted, sync::now() + SOON),
                    2 => {
                        let wait = Wait { longest: sync::now() + NEVER, give_up: Some(&|| true) };
                        table.acquire(wanted, wait)
                    }
                    _ => table.acquire(wanted, sync::now() + NEVER),
                };
                match granted {
                    Ok(_guard) => judge.visit(&set),
                    Err(LockError::WouldBlock(_)) if n == 0 => {}
                    Err(LockError::TimedOut(_)) if n == 1 => {}
                    Err(LockError::Interrupted) if n == 2 => {}
                    Err(other) => panic!("{n}: {other}"),
                }
            }
        })
    };
    join(sets.iter().enumerate().map(work).collect());
    assert_empty(&table);
}

/// A table is closed while three wait or ask: each ends, granted or sent away.
fn close() {
    let set = rename("/a", "/b");
    let table = LockTable::new();
    let work = |n: u64| {
        let (table, set) = (table.clone(), set.clone());
        spawn(move || match table.acquire(request(n, &set), sync::now() + NEVER) {
            Ok(guard) => drop(guard),
            Err(LockError::Closed) => {}
            Err(other) => panic!("{other}"),
        })
    };
    let threads = (0..3).map(work).collect();
    table.close();
    join(threads);
    assert_empty(&table);
    assert!(matches!(table.try_acquire(request(1, &set)), Err(LockError::Closed)));
}

/// A session is dropped while it holds and waits; the other one gets its locks, and late releases do no harm.
fn drop_session() {
    let set = rename("/a", "/b");
    let (table, judge) = (LockTable::new(), Judge::of(std::slice::from_ref(&set)));
    let dead = |_| {
        let (table, set) = (table.clone(), set.clone());
        spawn(move || match table.acquire(request(1, &set), sync::now() + NEVER) {
            Ok(guard) => drop(guard),
            Err(LockError::SessionDropped) => {}
            Err(other) => panic!("{other}"),
        })
    };
    let live = |_| {
        let (table, set, judge) = (table.clone(), set.clone(), Arc::clone(&judge));
        spawn(move || {
            let guard = table.acquire(request(2, &set), sync::now() + NEVER).unwrap();
            judge.visit(&set);
            drop(guard);
        })
    };
    let mut threads: Vec<_> = (0..2).map(dead).collect();
    threads.extend((0..2).map(live));
    table.drop_session(SessionId(1));
    join(threads);
    assert_empty(&table);
}

#[test]
fn renames_exclude_each_other_and_all_end() {
    explore(renames);
}

#[test]
fn closing_ends_every_wait() {
    explore(close);
}

#[test]
fn a_dropped_session_blocks_nobody() {
    explore(drop_session);
}

/// Time-outs and grants that fall together end as one of the two: both are seen, and nothing else.
#[test]
fn a_deadline_is_met_or_not() {
    static GRANTED: AtomicU64 = AtomicU64::new(0);
    static EXPIRED: AtomicU64 = AtomicU64::new(0);
    fn deadline() {
        let set = rename("/a", "/b");
        let table = LockTable::new();
        let first = table.try_acquire(request(1, &set)).unwrap();
        let (on_thread, wanted) = (table.clone(), request(2, &set));
        let second = spawn(move || match on_thread.acquire(wanted, sync::now() + SOON) {
            Ok(guard) => {
                drop(guard);
                GRANTED.fetch_add(1, SeqCst);
            }
            Err(LockError::TimedOut(_)) => drop(EXPIRED.fetch_add(1, SeqCst)),
            Err(other) => panic!("{other}"),
        });
        drop(first);
        second.join().unwrap();
        assert_empty(&table);
    }
    explore(deadline);
    let (granted, expired) = (GRANTED.load(SeqCst), EXPIRED.load(SeqCst));
    assert!(granted > 0 && expired > 0, "{granted} granted, {expired} expired: no race was run");
}

/// The judge can object.
#[test]
#[should_panic = "not alone"]
fn a_table_that_grants_everything_is_found() {
    explore(|| {
        let set = rename("/a", "/b");
        let judge = Judge::of(std::slice::from_ref(&set));
        let work = |_| {
            let (judge, set) = (Arc::clone(&judge), set.clone());
            spawn(move || judge.visit(&set))
        };
        join((0..2).map(work).collect());
    });
}
