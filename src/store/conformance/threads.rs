//! What every engine must do when several threads change it at once, and when others listen.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{directory, entry, name, node, put, session};
use crate::document::{
    Document, Ino, Key, LockRecord, NodeDelta, SessionId, SessionState, Timestamp, Version,
};
use crate::store::{Check, Commit, CommitError, Listener, Notice, Store};

struct Noted(Mutex<Vec<Notice>>);

impl Listener for Noted {
    fn notice(&self, notice: &Notice) {
        self.0.lock().push(notice.clone());
    }
}

pub(super) fn changes_are_told(store: &dyn Store) {
    if !store.capabilities().notices {
        return;
    }
    let id = SessionId(u64::MAX - 5);
    put(store, Key::Session(id), session(SessionState::Live));
    let noted = Arc::new(Noted(Mutex::default()));
    store.listen(Arc::clone(&noted) as Arc<dyn Listener>).unwrap();
    let parent = Key::Entry(Ino(4), name("\u{fc}: %"));
    let make = Commit::new().put(parent.clone(), entry(5)).put(node(5), directory(0)).by(id);
    let made = store.commit(&make).unwrap();
    let [unawaited, lock] = ["a", "b"].map(|id| Key::Lock(id.into()));
    let held = || Document::Lock(LockRecord { path: Vec::new(), holders: Vec::new(), waiters: Vec::new() });
    store.commit(&Commit::new().put(unawaited.clone(), held()).unawaited()).unwrap();
    let release = Commit::new().delete(unawaited.clone()).unawaited();
    let removed = store.commit(&Commit::new().delete(parent.clone()).and(release)).unwrap();
    let locked = store.commit(&Commit::new().put(lock.clone(), held())).unwrap();
    let told = |version: Version, session: Option<SessionId>, key: &Key| {
        noted.0.lock().iter().any(|notice| match notice {
            Notice::Changed { at, by, keys } => *at == Some(version) && *by == session && keys.contains(key),
            Notice::Lost => false,
        })
    };
    let begun = crate::ambient::monotonic();
    let all_told = || {
        let all_made = told(made, Some(id), &parent) && told(made, Some(id), &node(5));
        all_made && told(removed, None, &parent) && told(locked, None, &lock)
    };
    while !all_told() {
        assert!(begun.elapsed().as_secs() < 10, "not told: {:?}", noted.0.lock());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let of_unawaited =
        |notice: &Notice| matches!(notice, Notice::Changed { keys, .. } if keys.contains(&unawaited));
    assert!(!noted.0.lock().iter().any(of_unawaited), "{:?}", noted.0.lock());
}

pub(super) fn merges_at_once(store: &dyn Store) {
    const THREADS: u64 = 4;
    const EACH: u64 = 50;
    put(store, node(1), directory(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for i in 0..EACH {
                    let ino = 100 + thread * EACH + i;
                    let create = Commit::new()
                        .absent(node(ino))
                        .put(node(ino), directory(0))
                        .merge(node(1), NodeDelta::entries_changed(1, 1, Timestamp::default()));
                    store.commit(&create).unwrap();
                }
            });
        }
    });
    let (_, now) = store.node(Ino(1)).unwrap().unwrap();
    assert_eq!(now.directory().unwrap().children, THREADS * EACH);
    assert_eq!(store.counters().conflicts, 0);
}

pub(super) fn no_write_skew(store: &dyn Store) {
    const ROUNDS: u64 = 40;
    for round in 0..ROUNDS {
        let [a, b] = [node(10 + 2 * round), node(11 + 2 * round)];
        // Of both kinds of checks: that nothing is there, then that nothing has changed.
        let absent = [a.clone(), b.clone()].map(Check::Absent);
        let put_both = [&a, &b].map(|key| Commit::new().put(key.clone(), directory(1)));
        assert!(race(store, &put_both, absent), "round {round}: each made what the other checked as absent");
        let [of_a, of_b] = [&a, &b].map(|key| put(store, key.clone(), directory(0)));
        let versions = [Check::Version(a.clone(), of_a), Check::Version(b.clone(), of_b)];
        assert!(race(store, &put_both, versions), "round {round}: each changed what the other checked");
    }
}

/// Nor where the commits say that locks cover their checks, and the locks are not what they should be.
pub(super) fn no_write_skew_below_locks(store: &dyn Store) {
    const ROUNDS: u64 = 10;
    let id = SessionId(u64::MAX - 5);
    if let Some(intents) = store.intents() {
        intents.begin(id).unwrap();
    }
    put(store, Key::Session(id), session(SessionState::Live));
    let keys = ["a", "b"].map(|text| Key::Entry(Ino(1), name(text)));
    for round in 0..ROUNDS {
        let checks = keys.clone().map(|key| {
            let version = put(store, key.clone(), entry(10 + round));
            Check::Version(key, version)
        });
        let covered = |key: &Key| Commit::new().put(key.clone(), entry(100 + round)).by(id).covered();
        assert!(
            race(store, &keys.each_ref().map(covered), checks),
            "round {round}: each moved what is above the other"
        );
    }
}

/// Two commits at once, each with the check of what the other writes. Whether one at most was made.
fn race(store: &dyn Store, [of_a, of_b]: &[Commit; 2], [a, b]: [Check; 2]) -> bool {
    let barrier = std::sync::Barrier::new(2);
    let run = |commit: &Commit, check: Check| {
        barrier.wait();
        match store.commit(&commit.clone().check(check)) {
            Ok(_) => 1,
            Err(CommitError::Conflict(_)) => 0,
            Err(other) => panic!("{other}"),
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| run(of_a, b));
        run(of_b, a) + other.join().unwrap() <= 1
    })
}

pub(super) fn no_lost_update(store: &dyn Store) {
    const THREADS: u64 = 4;
    const EACH: u64 = 200;
    put(store, node(1), directory(0));
    let retries = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    // One thread's read-check-write against the others', beside a merge that conflicts with nobody.
                    loop {
                        let (version, now) = store.node(Ino(1)).unwrap().unwrap();
                        let next = directory(now.directory().unwrap().children + 1);
                        match store.commit(&Commit::new().at(node(1), version).put(node(1), next)) {
                            Ok(_) => break,
                            Err(CommitError::Conflict(_)) => retries.fetch_add(1, Ordering::Relaxed),
                            Err(other) => panic!("{other}"),
                        };
                    }
                }
            });
        }
    });
    let (_, now) = store.node(Ino(1)).unwrap().unwrap();
    assert_eq!(now.directory().unwrap().children, THREADS * EACH);
    assert_eq!(store.counters().conflicts, retries.load(Ordering::Relaxed));
}
