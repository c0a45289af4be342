//! What an engine counts while it works: see [`StoreCounters`] for what each number means.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Commit, CommitError, StoreCounters};

/// Counters that many threads add to.
#[derive(Debug, Default)]
pub(super) struct Counts {
    gets: AtomicU64,
    fetches: AtomicU64,
    scans: AtomicU64,
    commits: AtomicU64,
    conflicts: AtomicU64,
    documents_written: AtomicU64,
    syncs: AtomicU64,
}

fn add(counter: &AtomicU64, number: usize) {
    counter.fetch_add(number as u64, Relaxed);
}

impl Counts {
    /// So many documents were asked for.
    pub(super) fn got(&self, documents: usize) {
        add(&self.gets, documents);
    }

    /// So many of them had to be looked up.
    pub(super) fn fetched(&self, documents: usize) {
        add(&self.fetches, documents);
    }

    /// A page was asked for.
    pub(super) fn scanned(&self) {
        add(&self.scans, 1);
    }

    /// What came of a commit.
    pub(super) fn committed<T>(&self, commit: &Commit, outcome: &Result<T, CommitError>) {
        match outcome {
            Ok(_) => {
                add(&self.commits, 1);
                add(&self.documents_written, commit.writes.len());
            }
            Err(CommitError::Conflict(_)) => add(&self.conflicts, 1),
            Err(CommitError::Store(_)) => {}
        }
    }

    /// What came of a commit that was made if it was granted.
    pub(super) fn committed_if_granted<T>(&self, commit: &Commit, outcome: &Result<Option<T>, CommitError>) {
        if !matches!(outcome, Ok(None)) {
            self.committed(commit, outcome);
        }
    }

    /// Everything was made durable.
    pub(super) fn synced(&self) {
        add(&self.syncs, 1);
    }

    /// What was counted so far.
    pub(super) fn now(&self) -> StoreCounters {
        StoreCounters {
            gets: self.gets.load(Relaxed),
            fetches: self.fetches.load(Relaxed),
            scans: self.scans.load(Relaxed),
            commits: self.commits.load(Relaxed),
            conflicts: self.conflicts.load(Relaxed),
            documents_written: self.documents_written.load(Relaxed),
            syncs: self.syncs.load(Relaxed),
        }
    }

    /// The same of an engine that remembers nothing: it looks up all that it is asked for.
    pub(super) fn remote(&self) -> StoreCounters {
        let now = self.now();
        StoreCounters { fetches: now.gets, ..now }
    }
}
