//! Advisory locks (flock(2), fcntl(2)): which are granted, and what a holder has afterwards.
//!
//! Owns the decision, a pure function of the locks of one inode and a request, and in [`table`] where the locks are that no
//! other process shares. Imports `document`. Where they are documents, and who waits how long, is the namespace's.
//!
//! What is hard:
//! 1. A request of fcntl(2) replaces what its holder has in a range, so ranges are cut, and grow together with their
//!    neighbours: [`lock`] and [`unlock`] keep the ranges of a holder apart, and as few as can be.
//! 2. A commit whose answer was lost is decided again on what is there. So every decision knows its own work: asking twice
//!    changes nothing.
//! 3. flock(2) changes its mode in two steps, or two holders that share could wait for each other for ever: the old lock is
//!    given up where the new one cannot be had, [`Outcome::Blocked`]. fcntl(2) keeps the old one, as POSIX wants.
//!
//! There is no EDEADLK: who waits in a circle waits until one of them gives up. To find circles, all hosts would have to
//! write down who waits for whom, a commit for each wait.

mod table;
#[cfg(test)]
mod tests;

use crate::document::{AdvisoryFamily, AdvisoryHolder, AdvisoryLock, LockMode};

pub use table::AdvisoryTable;

/// An inode has at most so many locks, so that its document stays within what every engine takes.
pub const LOCKS_MAX: usize = 4096;

/// Why an advisory lock was not granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdvisoryError {
    /// Somebody else holds it, and the caller did not want to wait.
    #[error("session {} on {} (process {}) holds it", .0.session, .0.host, .0.pid)]
    Held(Box<AdvisoryLock>),
    /// The process that waited was sent a signal.
    #[error("the process that waited for it was interrupted")]
    Interrupted,
    /// The inode would have more than [`LOCKS_MAX`] locks.
    #[error("the file would have more than {LOCKS_MAX} locks")]
    TooMany,
    /// Too many requests wait already.
    #[error("too many requests wait for locks already")]
    TooManyWait,
    /// The volume is being unmounted.
    #[error("the volume is being unmounted")]
    Closed,
}

/// What becomes of a request for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The holder has it already.
    AsIs,
    /// It is granted, and these are the locks of the inode afterwards.
    Granted(Vec<AdvisoryLock>),
    /// Another's lock is in the way.
    Blocked {
        /// The first that is.
        by: Box<AdvisoryLock>,
        /// The locks of the inode without the one that the holder wanted to change, if it loses that.
        left: Option<Vec<AdvisoryLock>>,
    },
    /// There are too many.
    TooMany,
}

/// The first lock that keeps `wanted` from being granted: the answer to F_GETLK.
pub fn blocker<'a>(locks: &'a [AdvisoryLock], wanted: &AdvisoryLock) -> Option<&'a AdvisoryLock> {
    let conflict = |lock: &&AdvisoryLock| {
        lock.family == wanted.family
            && lock.holder() != wanted.holder()
            && overlap(lock, wanted.start, wanted.end)
            && (lock.mode == LockMode::Exclusive || wanted.mode == LockMode::Exclusive)
    };
    locks.iter().find(conflict)
}

/// Decides whether `wanted` is granted, beside these locks of its inode.
pub fn lock(locks: &[AdvisoryLock], wanted: &AdvisoryLock) -> Outcome {
    let holder = wanted.holder();
    let is_it = |lock: &AdvisoryLock| {
        lock.holder() == holder
            && lock.mode == wanted.mode
            && lock.start <= wanted.start
            && wanted.end <= lock.end
    };
    if locks.iter().any(is_it) {
        return Outcome::AsIs;
    }
    if let Some(by) = blocker(locks, wanted) {
        let left = match holder.family {
            AdvisoryFamily::Flock => without(locks, |lock| lock.holder() == holder),
            AdvisoryFamily::Fcntl => None,
        };
        return Outcome::Blocked { by: Box::new(by.clone()), left };
    }
    let mut all = cut(locks, holder, wanted.start, wanted.end);
    let mut granted = wanted.clone();
    all.retain(|lock| {
        let joins = lock.holder() == holder && lock.mode == granted.mode && touch(lock, wanted);
        if joins {
            granted.start = granted.start.min(lock.start);
            granted.end = granted.end.max(lock.end);
            granted.since = granted.since.min(lock.since);
        }
        !joins
    });
    all.push(granted);
    if all.len() > LOCKS_MAX.max(locks.len()) {
        return Outcome::TooMany;
    }
    sort(&mut all);
    Outcome::Granted(all)
}

/// The locks after `holder` has given up this range; none if it held nothing there.
pub fn unlock(
    locks: &[AdvisoryLock],
    holder: AdvisoryHolder,
    start: u64,
    end: u64,
) -> Option<Vec<AdvisoryLock>> {
    if !locks.iter().any(|lock| lock.holder() == holder && overlap(lock, start, end)) {
        return None;
    }
    let mut all = cut(locks, holder, start, end);
    sort(&mut all);
    Some(all)
}

/// The locks but those that `goes` names; none if it names none.
pub fn without(locks: &[AdvisoryLock], goes: impl Fn(&AdvisoryLock) -> bool) -> Option<Vec<AdvisoryLock>> {
    let left: Vec<_> = locks.iter().filter(|lock| !goes(lock)).cloned().collect();
    (left.len() < locks.len()).then_some(left)
}

fn overlap(lock: &AdvisoryLock, start: u64, end: u64) -> bool {
    lock.start <= end && start <= lock.end
}

/// Whether two ranges overlap, or one begins where the other ends.
fn touch(lock: &AdvisoryLock, wanted: &AdvisoryLock) -> bool {
    lock.start <= wanted.end.saturating_add(1) && wanted.start <= lock.end.saturating_add(1)
}

/// The locks without what `holder` has from `start` to `end`: of one that goes beyond, what is beyond stays.
fn cut(locks: &[AdvisoryLock], holder: AdvisoryHolder, start: u64, end: u64) -> Vec<AdvisoryLock> {
    let mut left = Vec::with_capacity(locks.len() + 2);
    for lock in locks {
        if lock.holder() != holder || !overlap(lock, start, end) {
            left.push(lock.clone());
            continue;
        }
        if lock.start < start {
            left.push(AdvisoryLock { end: start - 1, ..lock.clone() });
        }
        if end < lock.end {
            left.push(AdvisoryLock { start: end + 1, ..lock.clone() });
        }
    }
    left
}

fn sort(locks: &mut [AdvisoryLock]) {
    locks.sort_unstable_by_key(|lock| (lock.family, lock.start, lock.session, lock.owner));
}
