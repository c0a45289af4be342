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

/// Threads take the same locks in turn while another one breaks whom it finds, waiting, before the change or after it. An
/// operation of which it was said that it had changed nothing must not have; one that was said to be done must have.
#[test]
fn what_a_break_says_is_what_happened() {
    const WORKERS: u64 = 3;
    const OF_EACH: usize = 10;
    let (table, stop) = (LockTable::new(), AtomicBool::new(false));
    let log: Mutex<Vec<OpId>> = Mutex::default();
    let mut said: Vec<(OpId, BreakOutcome)> = Vec::new();
    let count = |said: &[(OpId, BreakOutcome)], wanted| said.iter().filter(|(_, got)| *got == wanted).count();
    let wanted = [BreakOutcome::RolledBack, BreakOutcome::AlreadyDone, BreakOutcome::SentAway];
    std::thread::scope(|scope| {
        for worker in 1..=WORKERS {
            let (table, log, stop) = (&table, &log, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let acquired = table.acquire(rename(worker, "/a", "/b"), within(LONG_MS));
                    let Ok(guard) = acquired else { continue };
                    std::thread::sleep(Duration::from_micros(50));
                    let changed: Result<(), LockError> = guard.while_held(|| {
                        log.lock().push(guard.op());
                        Ok(())
                    });
                    std::thread::sleep(Duration::from_micros(50));
                    let _ = changed; // What it must be follows from what was said of it.
                }
            });
        }
        let limit = within(LONG_MS);
        while wanted.iter().any(|outcome| count(&said, *outcome) < OF_EACH) && ambient::monotonic() < limit {
            for operation in table.operations() {
                let broken = table.revoke(operation.id(), &by());
                said.extend(broken.map(|broken| (operation.id(), broken.outcome)));
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
    let log = log.into_inner();
    for (op, outcome) in &said {
        let done = log.contains(op);
        assert_eq!(done, *outcome == BreakOutcome::AlreadyDone, "{op}: {outcome:?}");
    }
    for outcome in wanted {
        assert!(count(&said, outcome) >= OF_EACH, "{outcome:?} was hardly met in {} breaks", said.len());
    }
    assert_empty(&table);
}
