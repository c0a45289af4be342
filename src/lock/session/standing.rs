//! What a session knows of itself: whether it may start a change, and which of its operations run. No I/O.
//!
//! Stopping by oneself is courtesy: it saves work that could not be committed. Safety rests on the sealed slots of the
//! fenced, since a session learns of its fence after it has happened, at best.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::ambient::Clock;
use crate::document::SessionId;
use crate::rules::{Rule, holds};
use crate::store::StoreError;

/// A session's knowledge of itself, shared by all that works for it.
pub struct Standing {
    session: SessionId,
    lease: Duration,
    clock: Arc<dyn Clock>,
    fenced: AtomicBool,
    inner: Mutex<Inner>,
}

/// Never locked across a request or a sleep.
struct Inner {
    /// A moment, by the session's clock, before which the last confirmed heartbeat was not sent.
    confirmed: Duration,
    /// The lease that its own heartbeat keeps pace with.
    pace: Duration,
    /// The number of the last operation.
    last: u64,
    running: BTreeSet<u64>,
}

impl Standing {
    /// Of a session that has just become live; `confirmed` is when it began to ask for that.
    pub fn new(session: SessionId, lease: Duration, clock: Arc<dyn Clock>, confirmed: Duration) -> Self {
        let inner = Inner { confirmed, pace: lease, last: 0, running: BTreeSet::new() };
        Self { session, lease, clock, fenced: AtomicBool::new(false), inner: Mutex::new(inner) }
    }

    /// Whose.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Whether the session is known to be fenced. It never ends.
    pub fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    /// Notes that the session is fenced, or is to be treated so: its heart has stopped, or it is leaving.
    pub fn fence(&self) {
        self.fenced.store(true, Ordering::Release);
    }

    /// Whether a change may be started now.
    ///
    /// # Errors
    /// [`StoreError::Fenced`], for ever; [`StoreError::Engine`] as long as no heartbeat was confirmed for a whole lease.
    pub fn check(&self) -> Result<(), StoreError> {
        if self.is_fenced() && holds(Rule::FencedSessionStops) {
            return Err(StoreError::Fenced);
        }
        let silent = self.silent();
        if silent >= self.lease && holds(Rule::UnconfirmedSessionStops) {
            return Err(StoreError::Engine {
                what: "starting a change".to_owned(),
                source: format!("the store has confirmed no heartbeat of this session for {silent:.1?}")
                    .into(),
            });
        }
        Ok(())
    }

    /// Sees to it that the session beats often enough to judge of others, the shortest of whose leases this is.
    pub fn keep_pace_with(&self, shortest: Duration) {
        self.inner.lock().pace = shortest.min(self.lease);
    }

    /// The shortest lease that its heartbeat has to keep pace with.
    pub(in crate::lock) fn pace(&self) -> Duration {
        self.inner.lock().pace
    }

    /// For how long no heartbeat was confirmed.
    pub(super) fn silent(&self) -> Duration {
        self.clock.now().saturating_sub(self.inner.lock().confirmed)
    }

    /// Notes that a heartbeat was confirmed that was not sent before `sent`.
    pub(super) fn confirm(&self, sent: Duration) {
        let mut inner = self.inner.lock();
        inner.confirmed = inner.confirmed.max(sent);
    }

    /// Begins an operation, under a number that is never used again.
    pub fn begin(self: &Arc<Self>) -> Operation {
        let mut inner = self.inner.lock();
        inner.last += 1;
        let number = inner.last;
        inner.running.insert(number);
        Operation { standing: Arc::clone(self), number, ends: AtomicBool::new(true) }
    }

    /// Whether an operation has begun and not ended.
    pub fn runs(&self, number: u64) -> bool {
        self.inner.lock().running.contains(&number)
    }

    /// All operations below this number are over.
    pub fn operations_below(&self) -> u64 {
        let inner = self.inner.lock();
        inner.running.first().copied().unwrap_or(inner.last + 1)
    }
}

/// An operation that runs, until this is dropped. Dropped last of all that the operation has: from then on its claims are
/// ghosts, which others remove.
pub struct Operation {
    standing: Arc<Standing>,
    number: u64,
    ends: AtomicBool,
}

impl Operation {
    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Never ends: its claims are no ghosts until its session is recovered.
    pub(in crate::lock) fn keep_running(&self) {
        self.ends.store(false, Ordering::Relaxed);
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if *self.ends.get_mut() {
            self.standing.inner.lock().running.remove(&self.number);
        }
    }
}

impl std::fmt::Debug for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Operation({}:{})", self.standing.session, self.number)
    }
}

impl std::fmt::Debug for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = if self.is_fenced() { "fenced" } else { "not known to be fenced" };
        write!(f, "Standing({}, {word})", self.session)
    }
}
