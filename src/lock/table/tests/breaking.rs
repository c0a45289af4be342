//! Locks that are broken: what takes effect, what never does, and who goes on.

use std::sync::mpsc;

use super::*;

const BY: &str = "by the test";

fn by() -> Arc<str> {
    BY.into()
}

fn change(guard: &Guard, done: &AtomicU64) -> Result<(), LockError> {
    guard.while_held(|| {
        done.fetch_add(1, Ordering::SeqCst);
        Ok(())
    })
}

fn assert_revoked<T: std::fmt::Debug>(outcome: Result<T, LockError>) {
    assert!(matches!(&outcome, Err(LockError::Revoked { by }) if &**by == BY), "{outcome:?}");
}

#[test]
fn what_was_broken_before_its_change_never_makes_it() {
    let (table, done) = (LockTable::new(), AtomicU64::new(0));
    let guard = table.try_acquire(rename(1, "/a", "/b")).unwrap();
    let next = waiting(&table, rename(2, "/a", "/c"));
    let broken = table.revoke(guard.op(), &by()).unwrap();
    assert_eq!(broken.outcome, BreakOutcome::RolledBack);
    assert_eq!(broken.operation.holds.len(), 2);
    // The next one has the locks already, and the broken one still has its guard.
    let next = next.join().unwrap().unwrap();
    assert_revoked(change(&guard, &done));
    assert_eq!(done.load(Ordering::SeqCst), 0);
    assert!(guard.lost().is_some());
    assert!(table.revoke(guard.op(), &by()).is_none(), "once");
    assert_revoked(guard.release());
    change(&next, &done).unwrap();
    assert!(next.release().is_ok());
    assert_empty(&table);
    assert_eq!(table.counters().broken, 1);
}

#[test]
fn what_was_done_before_it_was_broken_is_said_to_be_done() {
    let (table, done) = (LockTable::new(), AtomicU64::new(0));
    let guard = table.try_acquire(rename(1, "/a", "/b")).unwrap();
    change(&guard, &done).unwrap();
    assert_eq!(table.revoke(guard.op(), &by()).unwrap().outcome, BreakOutcome::AlreadyDone);
    drop(guard);
    assert_empty(&table);
}

#[test]
fn a_change_that_failed_starts_over_only_if_nobody_was_told_that_it_is_ended() {
    let table = LockTable::new();
    let guard = table.try_acquire(rename(1, "/a", "/b")).unwrap();
    let failed: Result<(), LockError> = guard.while_held(|| Err(LockError::Closed));
    assert!(failed.is_err());
    assert_eq!(table.revoke(guard.op(), &by()).unwrap().outcome, BreakOutcome::RolledBack);
    assert_revoked(guard.release());
    let guard = table.try_acquire(rename(1, "/a", "/b")).unwrap();
    let op = guard.op();
    guard.release().unwrap();
    assert!(table.revoke(op, &by()).is_none(), "it has ended, and may have started over");
    assert_empty(&table);
}

/// A break that returned while the change was still coming would let two changes meet.
#[test]
fn a_break_waits_for_the_change_that_is_under_way() {
    let (table, finished) = (LockTable::new(), AtomicBool::new(false));
    let guard = table.try_acquire(rename(1, "/a", "/b")).unwrap();
    let (op, (begun, begins)) = (guard.op(), mpsc::channel());
    std::thread::scope(|scope| {
        let finished = &finished;
        scope.spawn(move || {
            let changed: Result<(), LockError> = guard.while_held(|| {
                begun.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(50));
                finished.store(true, Ordering::SeqCst);
                Ok(())
            });
            changed.unwrap();
            // It keeps its locks for a while longer.
            std::thread::sleep(Duration::from_millis(50));
        });
        begins.recv().unwrap();
        let broken = table.revoke(op, &by()).unwrap();
        assert!(finished.load(Ordering::SeqCst), "the break has returned before the change");
        assert_eq!(broken.outcome, BreakOutcome::AlreadyDone);
    });
    assert_empty(&table);
}

#[test]
fn who_waits_is_sent_away_with_what_it_held() {
    let table = LockTable::new();
    let first = table.try_acquire(hold(1, "/b", Mode::Exclusive)).unwrap();
    let waiter = waiting(&table, rename(2, "/a", "/b"));
    let [_, waits] = &table.operations()[..] else { panic!("two operations") };
    let broken = table.revoke(waits.id(), &by()).unwrap();
    assert_eq!(broken.outcome, BreakOutcome::SentAway);
    assert_eq!(broken.operation.holds[0].id, id("/a"));
    assert_eq!(broken.operation.waits_for.unwrap().id, id("/b"));
    assert_revoked(waiter.join().unwrap());
    first.hold_only();
    assert_eq!(table.revoke(first.op(), &by()).unwrap().outcome, BreakOutcome::Released);
    drop(first);
    assert_empty(&table);
}

#[test]
fn a_session_is_broken_with_all_its_operations_and_nobody_elses() {
    let (table, done) = (LockTable::new(), AtomicU64::new(0));
    let guard = table.try_acquire(rename(1, "/a", "/b")).unwrap();
    let own = waiting(&table, rename(1, "/a", "/c"));
    let other = waiting(&table, rename(2, "/a", "/d"));
    let broken = table.revoke_session(SessionId(1), &by());
    let outcomes: Vec<_> = broken.iter().map(|broken| broken.outcome).collect();
    assert_eq!(outcomes, [BreakOutcome::RolledBack, BreakOutcome::SentAway]);
    assert!(own.join().unwrap().is_err());
    assert_revoked(change(&guard, &done));
    let other = other.join().unwrap().unwrap();
    change(&other, &done).unwrap();
    drop((guard, other));
    assert_empty(&table);
}

/// Threads that add to what only the lock protects, each in two steps, while another one breaks whom it finds: an
/// operation of which it was said that it had changed nothing must not have, and one of which it was said that it was
/// done must have.
#[test]
fn what_a_break_says_is_what_happened() {
    const WORKERS: u64 = 3;
    const ROUNDS: u64 = 400;
    let (table, ended) = (LockTable::new(), AtomicU64::new(0));
    let log: Mutex<Vec<OpId>> = Mutex::default();
    let mut said = Vec::new();
    std::thread::scope(|scope| {
        for worker in 1..=WORKERS {
            let (table, log, ended) = (&table, &log, &ended);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let Ok(guard) = table.acquire(rename(worker, "/a", "/b"), within(LONG_MS)) else {
                        continue;
                    };
                    let op = guard.op();
                    let changed: Result<(), LockError> = guard.while_held(|| {
                        std::thread::yield_now();
                        log.lock().push(op);
                        Ok(())
                    });
                    let _ = changed; // What it must be follows from what was said of it.
                }
                ended.fetch_add(1, Ordering::SeqCst);
            });
        }
        while ended.load(Ordering::SeqCst) < WORKERS {
            for operation in table.operations() {
                let before = log.lock().contains(&operation.id());
                said.extend(
                    table
                        .revoke(operation.id(), &by())
                        .map(|broken| (operation.id(), broken.outcome, before)),
                );
            }
        }
    });
    let log = log.into_inner();
    for (op, outcome, before) in &said {
        let done = log.contains(op);
        assert_eq!(done, *outcome == BreakOutcome::AlreadyDone, "{op}: {outcome:?}, and in the log: {done}");
        assert!(done || !before);
    }
    let count = |wanted| said.iter().filter(|(_, outcome, _)| *outcome == wanted).count();
    assert!(count(BreakOutcome::SentAway) > 0, "no waiter was met in {} breaks", said.len());
    assert_empty(&table);
}
