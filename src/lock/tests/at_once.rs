//! A whole lock set in one request, over a store that changes several documents at once.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{ThreadId, current};
use std::time::Duration;

use super::world::{hold, rename};
use crate::ambient::SystemClock;
use crate::document::{Kind, Session, SessionState};
use crate::lock::session::Member;
use crate::lock::session::state::tests::session;
use crate::lock::shared::Settings;
use crate::lock::{LockError, LockSet, Mode, SharedGuard, SharedLocks};
use crate::store::cells::documents::DocumentCells;
use crate::store::memory::MemoryStore;
use crate::store::{Listener, Notice, Store as _, StoreCounters};

fn host(store: &Arc<MemoryStore>, id: u64) -> SharedLocks {
    host_that_keeps(store, id, Duration::ZERO)
}

/// A session that keeps shares for this long.
pub(super) fn host_that_keeps(store: &Arc<MemoryStore>, id: u64, keep_for: Duration) -> SharedLocks {
    let cells = Arc::new(DocumentCells::new(store.clone()));
    let clock = Arc::new(SystemClock::new());
    let document = Session { intents: 0, lease_ms: 60_000, ..session(id, SessionState::Joining) };
    let (member, ()) = Member::join(cells.clone(), clock.clone(), document, |_| Ok(())).unwrap();
    SharedLocks::new(
        cells,
        clock,
        Arc::clone(member.standing()),
        Settings { keep_for, ..Settings::default() },
    )
}

fn take(locks: &SharedLocks, set: &LockSet) -> SharedGuard {
    locks.acquire(set, "work".into(), Duration::from_secs(20)).unwrap()
}

/// Reads, commits that were made, and commits that met somebody else's, of what `work` does.
pub(super) fn cost(store: &MemoryStore, work: impl FnOnce()) -> (u64, u64, u64) {
    let before = store.counters();
    work();
    let StoreCounters { gets, commits, conflicts, .. } = store.counters();
    (gets - before.gets, commits - before.commits, conflicts - before.conflicts)
}

#[test]
fn a_set_that_nobody_else_wants_costs_one_commit_and_its_release_another() {
    let store = Arc::new(MemoryStore::new());
    let locks = host(&store, 1);
    let set = rename("/a/b/c/x", "/a/b/d/y");
    for _ in 0..3 {
        let mut guard = None;
        assert_eq!(cost(&store, || guard = Some(take(&locks, &set))), (0, 1, 0));
        assert_eq!(locks.documents().unwrap().len(), 6);
        assert_eq!(cost(&store, || drop(guard)), (0, 1, 0));
    }
    assert!(locks.documents().unwrap().is_empty());
}

#[test]
fn shares_of_others_are_met_and_left_alone() {
    let store = Arc::new(MemoryStore::new());
    let (one, other) = (host(&store, 1), host(&store, 2));
    let held = take(&one, &rename("/a/x", "/a/y"));
    let set = rename("/a/v", "/a/w");
    let mut guard = None;
    // The guess, a look at the three documents, and the locks.
    assert_eq!(cost(&store, || guard = Some(take(&other, &set))), (3, 1, 1));
    let shared = |locks: &SharedLocks| {
        let documents = locks.documents().unwrap();
        let mut documents = documents.into_iter().map(Result::unwrap);
        documents.find(|document| document.lock_type == Mode::Shared).map(|document| document.holders.len())
    };
    assert_eq!(shared(&one), Some(2));
    // What is held now is known to have been changed: the first release looks again.
    assert_eq!(cost(&store, || drop(held)), (3, 1, 1));
    assert_eq!(shared(&one), Some(1));
    assert_eq!(cost(&store, || drop(guard)).1, 1);
    assert!(one.documents().unwrap().is_empty());
}

/// How often it was told of a lock, by commits of the thread that has made it.
struct Told(AtomicUsize, ThreadId);

impl Listener for Told {
    fn notice(&self, notice: &Notice) {
        let Notice::Changed { keys, .. } = notice else { return };
        let is_of_lock = keys.iter().any(|key| key.kind() == Kind::Lock) && current().id() == self.1;
        self.0.fetch_add(usize::from(is_of_lock), Relaxed);
    }
}

#[test]
fn others_are_told_of_locks_that_somebody_waits_for_and_of_no_others() {
    let store = Arc::new(MemoryStore::new());
    let (one, other) = (host(&store, 1), host(&store, 2));
    let told = Arc::new(Told(AtomicUsize::new(0), current().id()));
    store.listen(told.clone()).unwrap();
    let set = rename("/a/x", "/a/y");
    let held = take(&one, &set);
    drop(take(&other, &rename("/a/v", "/a/w")));
    assert_eq!(told.0.load(Relaxed), 0);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| drop(take(&other, &set)));
        while !one.documents().unwrap().iter().flatten().any(|document| !document.waiters.is_empty()) {
            std::thread::yield_now();
        }
        // One commit, of all the locks of the set.
        assert_eq!(cost(&store, || drop(held)).2, 1);
        assert_eq!(told.0.load(Relaxed), 1, "who waits is told that it is his turn");
        waiter.join().unwrap();
    });
    drop(take(&one, &set));
    assert_eq!(told.0.load(Relaxed), 1);
}

#[test]
fn a_set_with_a_lock_that_is_not_free_is_not_taken_in_part() {
    let store = Arc::new(MemoryStore::new());
    let (one, other) = (host(&store, 1), host(&store, 2));
    let held = take(&one, &hold("/a/y"));
    let before = one.documents().unwrap().len();
    let refused = other.try_acquire(&rename("/a/x", "/a/y"), "a try".into());
    assert!(matches!(refused, Err(LockError::WouldBlock(_))));
    assert_eq!(one.documents().unwrap().len(), before);
    drop(held);
    drop(other.try_acquire(&rename("/a/x", "/a/y"), "a try".into()).unwrap());
    assert!(one.documents().unwrap().is_empty());
}
