//! Who gets a lock how often. Counts of grants, no times: a slow machine changes nothing.

#![allow(clippy::unwrap_used)] // Clippy takes these for tests only where nothing else stands beside `test`.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use super::*;
use crate::lock::Mode;
use crate::stop::StopOnDrop;

const PATH: &str = "/a";

fn id() -> LockId {
    LockId::from_path(PATH.as_bytes()).unwrap()
}

fn hold(session: u64, mode: Mode) -> Request {
    let set = LockSet::for_hold(&id(), mode).unwrap();
    Request { session: SessionId(session), set, operation: Arc::from("work") }
}

fn later() -> Instant {
    ambient::monotonic() + Duration::from_secs(60)
}

fn waiters(table: &LockTable) -> usize {
    table.document(&id()).map_or(0, |document| document.waiters.len())
}

/// The index of Jain, Chiu and Hawe (1984): 1 where all have the same, 1/n where one has everything.
fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[test]
fn the_index_tells_fair_from_unfair() {
    assert!((jain(&[7; 32]) - 1.0).abs() < 1e-9);
    assert!((jain(&[5, 0, 0, 0]) - 0.25).abs() < 1e-9);
}

/// 64 clients share a lock and never rest. Whoever asks after the exclusive request is in the queue comes after it; who
/// holds then finishes that hold. So it is granted after one hold of each at most.
#[test]
fn an_exclusive_request_is_not_starved_by_shares_that_never_rest() {
    const SHARERS: u64 = 64;
    const ROUNDS: usize = 20;
    let table = LockTable::new();
    let stop = AtomicBool::new(false);
    // Which exclusive request has been in the queue, and which has been granted, for certain.
    let (queued, granted) = (AtomicU64::new(0), AtomicU64::new(0));
    let overtaken = AtomicU64::new(0);
    let holds = AtomicU64::new(0);
    let began = Barrier::new(SHARERS as usize + 1);
    std::thread::scope(|scope| {
        let _end = StopOnDrop(&stop);
        for session in 1..=SHARERS {
            let (table, stop, queued, granted) = (&table, &stop, &queued, &granted);
            let (overtaken, holds, began) = (&overtaken, &holds, &began);
            scope.spawn(move || {
                began.wait();
                while !stop.load(SeqCst) {
                    let before = queued.load(SeqCst);
                    let guard = table.acquire(hold(session, Mode::Shared), later()).unwrap();
                    // It was in the queue before this one asked, and is not granted yet although this one is.
                    if granted.load(SeqCst) < before {
                        overtaken.fetch_add(1, SeqCst);
                    }
                    holds.fetch_add(1, SeqCst);
                    std::thread::yield_now();
                    drop(guard);
                }
            });
        }
        began.wait();
        for round in 1..=ROUNDS as u64 {
            // However late a busy machine lets the sharers begin: they are at it when the request comes.
            let end = later();
            while holds.load(SeqCst) < round * SHARERS {
                assert!(ambient::monotonic() < end, "the sharers have stopped");
                std::thread::yield_now();
            }
            // Somebody shares it when the exclusive request comes, so that it waits.
            let share = table.acquire(hold(0, Mode::Shared), later()).unwrap();
            let (on_thread, granted) = (&table, &granted);
            let exclusive = scope.spawn(move || {
                let guard = on_thread.acquire(hold(100, Mode::Exclusive), later()).unwrap();
                granted.store(round, SeqCst);
                drop(guard);
            });
            let is_queued = || {
                let document = table.document(&id());
                document.is_some_and(|found| found.waiters.iter().any(|w| w.session == SessionId(100)))
            };
            while !is_queued() && !exclusive.is_finished() {
                std::thread::yield_now();
            }
            queued.store(round, SeqCst);
            drop(share);
            exclusive.join().unwrap();
        }
    });
    let holds = holds.into_inner();
    println!("{ROUNDS} exclusive requests among {holds} shares");
    assert_eq!(overtaken.into_inner(), 0, "shares that were asked for later were granted first");
}

#[test]
fn equal_clients_of_one_directory_get_equal_shares() {
    const CLIENTS: usize = 32;
    const GRANTS: u64 = 32 * 100;
    let table = LockTable::new();
    let grants: Vec<AtomicU64> = (0..CLIENTS).map(|_| AtomicU64::new(0)).collect();
    let total = AtomicU64::new(0);
    // Nobody is granted it before all are in the queue.
    let first = table.acquire(hold(1000, Mode::Exclusive), later()).unwrap();
    std::thread::scope(|scope| {
        for (client, mine) in grants.iter().enumerate() {
            let (table, total) = (&table, &total);
            scope.spawn(move || {
                while total.load(SeqCst) < GRANTS {
                    let guard = table.acquire(hold(client as u64, Mode::Exclusive), later()).unwrap();
                    mine.fetch_add(1, SeqCst);
                    total.fetch_add(1, SeqCst);
                    // Until all others ask too: what counts is the queue, not how the machine runs its threads.
                    while waiters(table) < CLIENTS - 1 && total.load(SeqCst) < GRANTS {
                        std::thread::yield_now();
                    }
                    drop(guard);
                }
            });
        }
        while waiters(&table) < CLIENTS {
            std::thread::yield_now();
        }
        drop(first);
    });
    let shares: Vec<u64> = grants.iter().map(|mine| mine.load(SeqCst)).collect();
    let index = jain(&shares);
    println!("Jain's index of {CLIENTS} clients over {GRANTS} grants: {index:.4} ({shares:?})");
    assert!(index >= 0.95, "{index}: {shares:?}");
}

#[test]
fn who_comes_first_is_granted_first() {
    const CLIENTS: usize = 16;
    let table = LockTable::new();
    let order = Mutex::<Vec<u64>>::default();
    let first = table.acquire(hold(1000, Mode::Exclusive), later()).unwrap();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (table, order) = (&table, &order);
            scope.spawn(move || {
                let guard = table.acquire(hold(client as u64, Mode::Exclusive), later()).unwrap();
                order.lock().push(client as u64);
                drop(guard);
            });
            while waiters(table) <= client {
                std::thread::yield_now();
            }
        }
        drop(first);
    });
    assert_eq!(*order.lock(), (0..CLIENTS as u64).collect::<Vec<_>>());
}
