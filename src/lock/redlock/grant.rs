//! A set of locks in hand, and the thread that extends it.
//!
//! Owns for how long a set is good, by the holder's clock. Imports `ambient`.
//!
//! What is hard: a request for more time must not overtake the release, or the set would be held by nobody until it ends
//! by itself. So a set has a turn, which is taken for each of the two and kept until its answers are there. And more time is
//! asked for only while the set is good: afterwards somebody else may have held the locks in between.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::claim::{Asking, Request};
use super::quorum::extended;
use super::{Inner, Redlock};
use crate::ambient;
use crate::lock::session::Operation;
use crate::lock::{LockError, OpId};

/// The thread looks so often in the time that a lock lasts, and extends what is older than the time between two looks. So no
/// set is left alone for longer than two of these, a quarter of its time.
const LOOKS_PER_TTL: u32 = 8;

/// What one operation holds.
pub(super) struct Grant {
    request: Request,
    /// Until when, in nanoseconds of the session's clock.
    until_ns: AtomicU64,
    /// Whether it is over.
    turn: Mutex<bool>,
}

impl Grant {
    fn until(&self) -> Duration {
        Duration::from_nanos(self.until_ns.load(Ordering::Acquire))
    }

    fn set_until(&self, until: Duration) {
        self.until_ns.store(nanos(until), Ordering::Release);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The locks of one operation, held until this is dropped or they have run out; then released on every server.
#[must_use = "the locks are released when the guard is dropped"]
pub struct RedlockGuard {
    inner: Arc<Inner>,
    grant: Arc<Grant>,
    /// Dropped after the locks are released.
    operation: Operation,
}

impl RedlockGuard {
    pub(super) fn new(inner: Arc<Inner>, operation: Operation, request: Request, until: Duration) -> Self {
        let mut counted = inner.counted.lock();
        counted.acquisitions += 1;
        counted.operations += 1;
        counted.locks += request.locks() as u64;
        drop(counted);
        let grant = Grant { request, until_ns: AtomicU64::new(nanos(until)), turn: Mutex::new(false) };
        let grant = Arc::new(grant);
        inner.grants.lock().insert(operation.number(), Arc::clone(&grant));
        Self { inner, grant, operation }
    }

    /// Which operation holds the locks.
    pub fn op(&self) -> OpId {
        OpId { session: self.inner.standing.session(), number: self.operation.number() }
    }

    /// For how long the locks are held for certain; zero if they are not.
    pub fn valid_for(&self) -> Duration {
        self.grant.until().saturating_sub(self.inner.clock.now())
    }

    /// Why the locks are held no more; `None` while they are.
    pub fn lost(&self) -> Option<LockError> {
        if self.inner.standing.is_fenced() {
            return Some(LockError::SessionDropped);
        }
        let over = self.inner.clock.now().checked_sub(self.grant.until())?;
        Some(LockError::Lapsed { since: over })
    }

    /// Leaves the claims where they are, until they end by themselves: for an operation that does not know what became of
    /// its change.
    pub fn abandon(self) {
        *self.grant.turn.lock() = true;
    }
}

impl Drop for RedlockGuard {
    fn drop(&mut self) {
        let inner = &self.inner;
        inner.grants.lock().remove(&self.operation.number());
        let mut counted = inner.counted.lock();
        counted.operations = counted.operations.saturating_sub(1);
        counted.locks = counted.locks.saturating_sub(self.grant.request.locks() as u64);
        drop(counted);
        let mut over = self.grant.turn.lock();
        // In a panic nobody knows how far the operation came.
        if !*over && !std::thread::panicking() {
            inner.release(&self.grant.request, true);
        }
        *over = true;
    }
}

impl std::fmt::Debug for RedlockGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RedlockGuard({}, {:?} left)", self.op(), self.valid_for())
    }
}

impl Inner {
    /// Asks for more time for all that has used up a part of its own. Not for a session that has heard nothing of the store
    /// for a lease: it is being declared dead, and whoever does that takes its locks out, which must not come back.
    fn extend_all(&self) {
        let grants: Vec<Arc<Grant>> = self.grants.lock().values().cloned().collect();
        let ttl = self.settings.ttl;
        for grant in grants {
            let left = grant.until().saturating_sub(self.clock.now());
            if left < ttl - ttl / LOOKS_PER_TTL && self.standing.check().is_ok() {
                self.extend(&grant);
            }
        }
    }

    fn extend(&self, grant: &Grant) {
        let over = grant.turn.lock();
        let (asked, until) = (self.clock.now(), grant.until());
        if *over || asked >= until {
            return;
        }
        let outcome = self.ask(&grant.request, Asking::Extend);
        let next = extended(until, asked, self.clock.now(), outcome.verdict);
        if next == until {
            log::warn!(
                "locks could not be extended, and end in {:.1?}: {:?}; {:?}",
                until.saturating_sub(self.clock.now()),
                outcome.votes,
                outcome.absent
            );
        }
        grant.set_until(next);
    }
}

/// Extends what a session holds, until this is dropped.
pub struct Extender {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stop {
    asked: Mutex<bool>,
    wake: Condvar,
}

impl Extender {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system's, when it has no room for another thread.
    pub fn start(locks: &Redlock) -> io::Result<Self> {
        let stop = Arc::new(Stop::default());
        let (theirs, inner) = (Arc::clone(&stop), Arc::clone(&locks.inner));
        let thread = ambient::spawn("redlock-extend", move || {
            let mut asked = theirs.asked.lock();
            while !*asked {
                theirs.wake.wait_for(&mut asked, inner.settings.ttl / LOOKS_PER_TTL);
                if !*asked && !inner.stands_still.load(Ordering::Acquire) {
                    parking_lot::MutexGuard::unlocked(&mut asked, || inner.extend_all());
                }
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Extender {
    fn drop(&mut self) {
        *self.stop.asked.lock() = true;
        self.stop.wake.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that extends locks has panicked; locks end when their time is over");
        }
    }
}
