//! What readers may see while a commit is under way: all of what was there before it, or all of what is there after.
//!
//! A commit has three steps: its writes go to the database (*under way*), then to what is kept in memory (*showing*), and
//! then it is *settled*, and everybody sees all of it.
//!
//! What is hard:
//! 1. The database applies a batch document by document, and what it calls a snapshot may show a part of one: a table that
//!    is written meanwhile draws a later number and makes all up to it visible. So a snapshot counts only if it was opened
//!    while all was settled, which a count of the steps tells, as in a sequence lock.
//! 2. The database may hold a commit up for long, until a sync or a merge of tables has ended, and readers are not to wait
//!    for that. So a commit leaves a snapshot of what was there before it, until the database has all of it; and what is in
//!    memory from before it stays there.
//! 3. Nothing older may be shown once something newer was. So that snapshot is gone before the commit puts anything new into
//!    memory; and who has found something in memory while a commit was showing, which may be new, waits for the end, which
//!    is near ([`Instants::all_shown`]).

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use fjall::{Database, Snapshot};
use parking_lot::Mutex;

use super::TURN_TRIES;

const STEPS: u64 = 4;
const SHOWING: u64 = 2;

/// The commits of a store, as its readers have to know of them.
#[derive(Default)]
pub(super) struct Instants {
    /// The steps of all commits, four of each, of which the last are taken at once: 0 modulo 4 is settled, 1 is under way,
    /// and 2 is showing. Grows.
    steps: AtomicU64,
    /// The database before the commit that is under way.
    before: Mutex<Option<Snapshot>>,
}

/// Which instant it is, as far as commits go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instant(u64);

impl Instant {
    /// Whether no commit is under way or showing.
    pub(super) fn is_settled(self) -> bool {
        self.0.is_multiple_of(STEPS)
    }

    fn is_showing(self) -> bool {
        self.0 % STEPS == SHOWING
    }
}

impl Instants {
    /// This instant.
    pub(super) fn now(&self) -> Instant {
        Instant(self.steps.load(SeqCst))
    }

    /// Whether no commit is under way or showing.
    pub(super) fn is_settled(&self) -> bool {
        self.now().is_settled()
    }

    /// Whether all was settled then, and no commit has begun since.
    pub(super) fn is_still(&self, instant: Instant) -> bool {
        instant.is_settled() && self.now() == instant
    }

    /// A commit has the turn, and the database gets it from here on.
    pub(super) fn begin(&self, db: &Database) {
        *self.before.lock() = Some(db.snapshot());
        self.steps.fetch_add(1, SeqCst);
    }

    /// The database has all of it, or has refused it; from here on it is shown in memory. What is returned is to be dropped
    /// behind the end: that may take long.
    #[must_use]
    pub(super) fn applied(&self) -> Option<Snapshot> {
        self.steps.fetch_add(1, SeqCst);
        self.before.lock().take()
    }

    /// All of it can be seen, in memory too.
    pub(super) fn end(&self) {
        self.steps.fetch_add(STEPS - SHOWING, SeqCst);
    }

    /// Waits, after something was found in memory, until all of the commit is shown that it may come from.
    pub(super) fn all_shown(&self) {
        for tries in 0.. {
            if !self.now().is_showing() {
                return;
            }
            if tries < TURN_TRIES { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }

    /// Waits for the end of a commit that is under way, for as long as one takes that nothing holds up.
    pub(super) fn rest(&self) {
        for _ in 0..TURN_TRIES {
            if self.is_settled() {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// The database before the commit that is under way, or after it, and when that was asked for.
    pub(super) fn view(&self, db: &Database) -> (Instant, Snapshot) {
        loop {
            let now = self.now();
            if now.is_settled() {
                let view = db.snapshot();
                if self.is_still(now) {
                    return (now, view);
                }
            } else if let Some(view) = self.before.lock().clone() {
                return (now, view);
            }
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use fjall::{Keyspace, KeyspaceCreateOptions, Readable as _};

    use super::*;

    fn read(view: &Snapshot, space: &Keyspace) -> Option<Vec<u8>> {
        view.get(space, b"k").unwrap().map(|value| value.to_vec())
    }

    #[test]
    fn a_commit_is_not_seen_in_part_and_nobody_waits_for_the_database() {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::builder(dir.path()).open().unwrap();
        let space = db.keyspace("s", KeyspaceCreateOptions::default).unwrap();
        let instants = Instants::default();
        space.insert(b"k", b"old").unwrap();
        let (settled, view) = instants.view(&db);
        assert_eq!(read(&view, &space).unwrap(), b"old");
        assert!(instants.is_still(settled));
        instants.begin(&db);
        space.insert(b"k", b"new").unwrap();
        // However long that takes.
        let (unsettled, view) = instants.view(&db);
        assert_eq!(read(&view, &space).unwrap(), b"old");
        assert!(!instants.is_settled() && !instants.is_still(settled) && !instants.is_still(unsettled));
        instants.rest();
        assert!(!instants.is_settled());
        drop(instants.applied());
        std::thread::scope(|scope| {
            let late = scope.spawn(|| instants.view(&db));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!late.is_finished(), "something old was shown, or something new too early");
            instants.end();
            let (settled, view) = late.join().unwrap();
            assert_eq!(read(&view, &space).unwrap(), b"new");
            assert!(instants.is_still(settled));
        });
    }
}
