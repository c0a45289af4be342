//! What readers may see while a commit is made: all of what was there before it, or all of what is there after.
//!
//! A commit is *under way* while its writes go to the database, *showing* while they go to what is kept in memory, and then
//! all is *settled*: everybody sees all of it.
//!
//! What is hard:
//! 1. The database applies a batch document by document, and what it calls a snapshot may show a part of one: a table that
//!    is written meanwhile draws a later number and makes all up to it visible. So a snapshot counts only if it was opened
//!    while all was settled, which a count of the steps tells, as in a sequence lock.
//! 2. The database may hold a commit up for long, until a sync or a merge of tables has ended, and readers are not to wait
//!    for that. So a commit leaves a snapshot of what was there before it, until the database has all of it; and what is in
//!    memory from before it stays there.
//! 3. Nothing older may be shown once something newer was. So that snapshot is gone before the commit puts anything new into
//!    memory; and who has found there what may be of a commit that is showing waits for its end, which is near
//!    ([`Instants::all_shown`]).

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use fjall::{Database, Snapshot};
use parking_lot::Mutex;

use super::TURN_TRIES;
use crate::document::{Stored, Version};

/// The count of steps modulo this tells the step: 0 is settled, 1 under way, 2 showing. There is no 3: a power of two is
/// quicker to divide by.
const CYCLE: u64 = 4;
const SHOWING: u64 = 2;

/// The commits of a store, as its readers have to know of them.
#[derive(Default)]
pub(super) struct Instants {
    /// How many steps there were; see [`CYCLE`].
    steps: AtomicU64,
    /// The version of the last commit that has begun.
    version: AtomicU64,
    /// The database before the commit that is under way.
    before: Mutex<Option<Snapshot>>,
}

/// Which instant it is, as far as commits go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instant(u64);

/// A commit that is being made. Once this is dropped, everybody sees what there is of it: also when a panic drops it, so
/// that nobody waits for ever.
#[must_use]
pub(super) struct Change<'a> {
    instants: &'a Instants,
    /// To be freed behind the end: that may take long.
    before: Option<Snapshot>,
}

impl Instant {
    /// Whether no commit is under way or showing.
    pub(super) fn is_settled(self) -> bool {
        self.0.is_multiple_of(CYCLE)
    }

    fn is_showing(self) -> bool {
        self.0 % CYCLE == SHOWING
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

    /// Whether a commit is showing.
    pub(super) fn is_showing(&self) -> bool {
        self.now().is_showing()
    }

    /// Whether all was settled then, and no commit has begun since.
    pub(super) fn is_still(&self, instant: Instant) -> bool {
        instant.is_settled() && self.now() == instant
    }

    /// The commit that has the turn is under way from here on, and the database gets it.
    pub(super) fn begin(&self, db: &Database, version: Version) -> Change<'_> {
        *self.before.lock() = Some(db.snapshot());
        self.version.store(version.0, SeqCst);
        self.steps.fetch_add(1, SeqCst);
        Change { instants: self, before: None }
    }

    /// Waits, after this was found, until all of the commit is shown that it may come from.
    pub(super) fn all_shown(&self, found: Option<&Stored>) {
        let seen = self.now();
        if !seen.is_showing() || found.is_some_and(|found| found.version.0 != self.version.load(SeqCst)) {
            return;
        }
        self.rest();
        while self.now() == seen {
            std::thread::yield_now();
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

impl Change<'_> {
    /// The database has all of it, or has refused it; from here on it is shown in memory.
    pub(super) fn applied(&mut self) {
        self.instants.steps.fetch_add(1, SeqCst);
        self.before = self.instants.before.lock().take();
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if self.before.is_none() {
            self.before = self.instants.before.lock().take();
        }
        // Nobody else counts: one commit is made at a time.
        let steps = self.instants.steps.load(SeqCst);
        self.instants.steps.store((steps / CYCLE + 1) * CYCLE, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use fjall::{Keyspace, KeyspaceCreateOptions, Readable as _};

    use super::*;
    use crate::document::{Document, Entry, FileKind, Ino};

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
        let stored = |version: u64| Stored {
            version: Version(version),
            document: Document::Entry(Entry { ino: Ino(1), kind: FileKind::Regular }).into(),
        };
        let mut change = instants.begin(&db, Version(7));
        space.insert(b"k", b"new").unwrap();
        // However long that takes.
        let (unsettled, view) = instants.view(&db);
        assert_eq!(read(&view, &space).unwrap(), b"old");
        assert!(!instants.is_settled() && !instants.is_still(settled) && !instants.is_still(unsettled));
        instants.rest();
        assert!(!instants.is_settled());
        // Nor for what is found in memory: it was there before.
        instants.all_shown(None);
        instants.all_shown(Some(&stored(6)));
        change.applied();
        instants.all_shown(Some(&stored(6)));
        std::thread::scope(|scope| {
            let late = scope.spawn(|| instants.view(&db));
            let waiting = [None, Some(stored(7))].map(|found| {
                let instants = &instants;
                scope.spawn(move || instants.all_shown(found.as_ref()))
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!late.is_finished(), "something old was shown, or something new too early");
            assert!(waiting.iter().all(|thread| !thread.is_finished()), "something new was shown too early");
            drop(change);
            let (settled, view) = late.join().unwrap();
            assert_eq!(read(&view, &space).unwrap(), b"new");
            assert!(instants.is_still(settled));
        });
        instants.all_shown(None);
    }

    #[test]
    fn nobody_waits_for_a_commit_that_was_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::builder(dir.path()).open().unwrap();
        let instants = Instants::default();
        for steps in 0..2 {
            let mut change = instants.begin(&db, Version(steps));
            if steps > 0 {
                change.applied();
            }
            drop(change);
            assert!(instants.is_settled());
            instants.all_shown(None);
            assert!(instants.view(&db).0.is_settled());
        }
    }
}
