//! The provider over independent Redis servers: locks that are kept elsewhere than the tree, by the Redlock algorithm.
//!
//! Owns asking, waiting and listing. Imports the servers (`store::redis::servers`), `ambient`, and what a session knows of
//! itself. docs/redlock.md has the keys, the times and what the algorithm can and cannot promise.
//!
//! What is hard, and where it is solved:
//! 1. The algorithm is for one exclusive lock, and an operation needs a set of shared and exclusive ones, all or none. Each
//!    lock is a set of claims, each with a random value and an end of its own; one script a server takes the whole set:
//!    `acquire.lua`. What the answers mean is [`quorum`].
//! 2. A majority of servers may be split between several who ask at the same time. Nobody keeps what he could not use: it is
//!    released everywhere, and asked for again after a pause of random length. Who asked first leaves a mark where his way
//!    was blocked, to which later ones give way; so nobody starves. The order is the same on all servers, and who waits
//!    holds nothing, so no two can wait for each other.
//! 3. A lock ends by itself if its holder stands still, and the holder cannot know: whatever rests on it must say so before
//!    it takes effect ([`RedlockGuard::lost`]), and even then the end may come between the look and the commit. **Safety
//!    rests on the commit**, which checks the versions of all that it read, and the session.
//! 4. A long holder must keep its locks: [`grant`] asks for more time while they are good, and never after.

mod claim;
mod grant;
mod quorum;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;

use super::session::Standing;
use super::{Blocked, Counters, HeldBy, LockDocument, LockError, LockId, LockSet, OpId, Wait};
use crate::ambient::{self, Clock};
use crate::document::SessionId;
use crate::store::StoreError;
use crate::store::redis::Script;
use crate::store::redis::servers::{Absent, Patience, Purpose, Servers};
use claim::{Asking, Keys, Request, list};
use grant::Grant;
use quorum::{Verdict, Votes, judge};

pub use grant::{Extender, RedlockGuard};

/// The first pause before a set is asked for again, and the longest: each is between half of it and all of it, at random.
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// A mark outlives the longest pause by so much.
const MARK_LASTS: Duration = Duration::from_millis(500);
/// The last extension is up to a quarter of a ttl old when its holder stops, and to find that out takes a lease and a fifth:
/// three quarters of two leases are more than that.
const LEASES_PER_TTL: u32 = 2;
/// A server that does not answer within this part of what a lock lasts does not count; but within these bounds.
const TTLS_PER_ANSWER: u32 = 20;
const ANSWER_LEAST: Duration = Duration::from_millis(20);
const ANSWER_MOST: Duration = Duration::from_millis(500);

/// How locks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a lock lasts without being extended.
    pub ttl: Duration,
    /// Whether locks are extended for as long as they are held.
    pub extend: bool,
}

impl Settings {
    /// Locks that outlast the lease of their session: whoever dies or stands still has been declared dead before they end,
    /// and changes nothing any more. So also here the fence comes before the release, as a rule; who fences takes the locks
    /// out.
    pub fn of_lease(lease: Duration) -> Self {
        Self { ttl: lease * LEASES_PER_TTL, extend: true }
    }

    /// How the servers are asked by whoever keeps locks like that.
    pub fn patience(self) -> Patience {
        let answer_within = (self.ttl / TTLS_PER_ANSWER).clamp(ANSWER_LEAST, ANSWER_MOST);
        Patience { answer_within, rest_after_start: self.ttl }
    }
}

/// The locks of one session. A clone is another handle to the same.
#[derive(Clone)]
pub struct Redlock {
    inner: Arc<Inner>,
}

struct Inner {
    servers: Arc<Servers>,
    keys: Keys,
    standing: Arc<Standing>,
    clock: Arc<dyn Clock>,
    settings: Settings,
    acquire: Script,
    release: Script,
    closed: AtomicBool,
    /// Nothing is extended.
    stands_still: AtomicBool,
    /// What is held, by the number of the operation.
    grants: Mutex<BTreeMap<u64, Arc<Grant>>>,
    counted: Mutex<Counters>,
}

/// What `acquire.lua` returns.
#[derive(Deserialize)]
struct Answer {
    granted: bool,
    /// Which lock was not free, counted from 1.
    #[serde(default)]
    at: usize,
    /// Who has claims to it.
    #[serde(default)]
    claims: Vec<String>,
}

/// What came of one request.
struct Outcome {
    verdict: Verdict,
    votes: Votes,
    /// One of the refusals.
    refusal: Option<Answer>,
    absent: Vec<Absent>,
}

impl Redlock {
    /// The locks of the volume with this id, for the session whose `standing` this is.
    pub fn new(
        servers: Arc<Servers>,
        volume: &str,
        clock: Arc<dyn Clock>,
        standing: Arc<Standing>,
        settings: Settings,
    ) -> Self {
        let inner = Inner {
            keys: Keys::new(&servers.key_tag(), volume),
            servers,
            standing,
            clock,
            settings,
            acquire: Script::new(include_str!("acquire.lua")),
            release: Script::new(include_str!("release.lua")),
            closed: AtomicBool::new(false),
            stands_still: AtomicBool::new(!settings.extend),
            grants: Mutex::default(),
            counted: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Where the locks are.
    pub fn servers(&self) -> &Arc<Servers> {
        &self.inner.servers
    }

    /// Takes all locks of the set, or none. Does not wait for anybody.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`] with the first lock that was not free; others as [`Redlock::acquire`].
    pub fn try_acquire(&self, set: &LockSet, purpose: &str) -> Result<RedlockGuard, LockError> {
        self.take(set, purpose, None)
    }

    /// Takes all locks of the set, and waits for them, and for a majority of the servers, for as long as `wait` at most.
    /// `purpose` is for people: one line.
    ///
    /// # Errors
    /// [`LockError::TimedOut`] with a lock that was not free and who held it; [`LockError::NoMajority`] with the servers
    /// that do not answer; [`LockError::Interrupted`]; [`LockError::Closed`]; [`LockError::SessionDropped`] if this session
    /// is fenced. With any of them nothing is held; what could not be released lasts no longer than [`Settings::ttl`].
    pub fn acquire<'a>(
        &self,
        set: &LockSet,
        purpose: &str,
        wait: impl Into<Wait<'a, Duration>>,
    ) -> Result<RedlockGuard, LockError> {
        self.take(set, purpose, Some(wait.into()))
    }

    /// Grants nothing any more: ends every wait with [`LockError::Closed`], and every later request too. What is held stays
    /// held until its guards are dropped.
    pub fn close(&self) {
        self.inner.closed.store(true, Ordering::Release);
    }

    /// From here on nothing is extended, as if the process stood still; for tests.
    #[cfg(feature = "proof")]
    pub fn stand_still(&self) {
        self.inner.stands_still.store(true, Ordering::Release);
    }

    /// What this session has done so far. `operations` and `locks` are those of this session that hold at this moment.
    pub fn counters(&self) -> Counters {
        *self.inner.counted.lock()
    }

    /// The lock documents of this moment, in the global order: what a majority of the servers says. One that cannot be read
    /// is an error of its own. Times are by the clock of whoever asked for the lock.
    ///
    /// # Errors
    /// [`LockError::NoMajority`].
    pub fn documents(&self) -> Result<Vec<Result<LockDocument, LockError>>, LockError> {
        documents(&self.inner.servers, &self.inner.keys, None)
    }

    /// The lock document of one path; `None` if nobody holds it.
    ///
    /// # Errors
    /// [`LockError::NoMajority`], [`LockError::Damaged`].
    pub fn document(&self, id: &LockId) -> Result<Option<LockDocument>, LockError> {
        let mut all = self.documents()?.into_iter();
        all.find(|document| document.as_ref().is_ok_and(|document| document.id == *id)).transpose()
    }

    /// Takes out every claim of a session that can change nothing any more, so that nobody has to wait for their end.
    ///
    /// # Errors
    /// [`LockError::NoMajority`]: then they end by themselves.
    pub fn drop_session(&self, dead: SessionId) -> Result<(), LockError> {
        documents(&self.inner.servers, &self.inner.keys, Some(dead)).map(drop)
    }

    fn check(&self) -> Result<(), LockError> {
        if self.inner.closed.load(Ordering::Acquire) {
            return Err(LockError::Closed);
        }
        match self.inner.standing.is_fenced() {
            true => Err(LockError::SessionDropped),
            false => Ok(()),
        }
    }

    fn take(
        &self,
        set: &LockSet,
        purpose: &str,
        wait: Option<Wait<'_, Duration>>,
    ) -> Result<RedlockGuard, LockError> {
        let inner = &self.inner;
        self.check()?;
        let began = inner.clock.now();
        let operation = inner.standing.begin();
        let op = OpId { session: inner.standing.session(), number: operation.number() };
        let request = Request::new(&inner.keys, set, op, purpose, &*inner.clock);
        let asking = if wait.is_some() { Asking::Wait } else { Asking::Try };
        let deadline = began.saturating_add(wait.map_or(Duration::ZERO, |wait| wait.longest));
        let mut pause = PAUSE_FIRST;
        let refused = loop {
            let asked = inner.clock.now();
            let outcome = inner.ask(&request, asking);
            if let Verdict::Granted { valid_for } = outcome.verdict {
                if pause > PAUSE_FIRST {
                    inner.count_wait(began);
                }
                return Ok(RedlockGuard::new(Arc::clone(inner), operation, request, asked + valid_for));
            }
            let late = inner.clock.now() >= deadline;
            if late || outcome.votes.granted > 0 {
                // Also from servers that did not answer: they may have granted it.
                inner.release(&request, late);
            }
            if late {
                break inner.refusal(set, outcome, wait.is_some());
            }
            let given_up = || match wait {
                Some(wait) if wait.is_given_up() => Err(LockError::Interrupted),
                _ => Ok(()),
            };
            if let Err(error) = self.check().and_then(|()| given_up()) {
                inner.release(&request, true);
                break error;
            }
            let part = (ambient::random_u64() % 1024) as f64 / 1024.0;
            let left = deadline.saturating_sub(inner.clock.now());
            inner.clock.sleep((pause / 2 + (pause / 2).mul_f64(part)).min(left));
            pause = (pause * 2).min(PAUSE_MAX);
        };
        if wait.is_some() {
            inner.count_wait(began);
            inner.counted.lock().expired += 1;
        }
        Err(refused)
    }
}

impl Inner {
    /// Asks all servers for a set, or for more time.
    fn ask(&self, request: &Request, asking: Asking) -> Outcome {
        let Settings { ttl, .. } = self.settings;
        let begun = self.clock.now();
        let arguments = request.acquire(asking, ttl, MARK_LASTS + self.settings.patience().answer_within);
        let (mut votes, mut refusal, mut absent) = (Votes::default(), None, Vec::new());
        for answer in self.servers.run(&self.acquire, &arguments, Purpose::Grant) {
            match answer.map(|text| serde_json::from_slice::<Answer>(&text)) {
                Ok(Ok(Answer { granted: true, .. })) => votes.granted += 1,
                Ok(Ok(answer)) => {
                    votes.refused += 1;
                    refusal.get_or_insert(answer);
                }
                Ok(Err(error)) => {
                    votes.absent += 1;
                    log::error!("a lock server sent what is no answer: {error}");
                }
                Err(gone) => {
                    votes.absent += 1;
                    absent.push(gone);
                }
            }
        }
        let verdict = judge(votes, ttl, self.clock.now().saturating_sub(begun));
        Outcome { verdict, votes, refusal, absent }
    }

    /// Takes back what a request may have been granted, on every server. One that does not hear it lets it end by itself.
    fn release(&self, request: &Request, with_marks: bool) {
        let answers = self.servers.run(&self.release, &request.release(with_marks), Purpose::Other);
        for gone in answers.into_iter().filter_map(Result::err) {
            log::debug!("locks were not released, and end by themselves: {gone}");
        }
    }

    /// Why a set was not granted.
    fn refusal(&self, set: &LockSet, outcome: Outcome, waited: bool) -> LockError {
        let of = self.servers.count();
        match (outcome.verdict, outcome.refusal) {
            (Verdict::Refused, Some(answer)) => {
                let entry = answer.at.checked_sub(1).and_then(|at| set.entries().get(at));
                let Some(entry) = entry.or(set.entries().first()) else { return LockError::NoLocks };
                let (held, claims, waiting) = view::holders(&answer.claims);
                let now_ms = now_ms(&*self.clock);
                let held_by = |claim: &claim::Claim| HeldBy {
                    op: claim.op(),
                    operation: claim.purpose.as_str().into(),
                    held_for: Duration::from_millis(now_ms.saturating_sub(claim.asked_ms)),
                };
                let blocked = Box::new(Blocked {
                    lock: entry.id.clone(),
                    wanted: entry.mode,
                    held,
                    holders: claims.iter().map(held_by).collect(),
                    waiting_before: waiting,
                });
                if waited { LockError::TimedOut(blocked) } else { LockError::WouldBlock(blocked) }
            }
            (Verdict::TooSlow, _) => LockError::NoMajority {
                answered: outcome.votes.granted,
                needed: self.servers.majority(),
                of,
                causes: format!("their answers took longer than a lock lasts ({:?})", self.settings.ttl),
            },
            _ => no_majority(&self.servers, outcome.absent),
        }
    }

    fn count_wait(&self, began: Duration) {
        let waited = self.clock.now().saturating_sub(began);
        let mut counted = self.counted.lock();
        counted.waits += 1;
        let waited_us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        counted.longest_wait_us = counted.longest_wait_us.max(waited_us);
    }
}

fn no_majority(servers: &Servers, absent: Vec<Absent>) -> LockError {
    let causes: Vec<String> = absent.iter().map(ToString::to_string).collect();
    LockError::NoMajority {
        answered: servers.count().saturating_sub(absent.len()),
        needed: servers.majority(),
        of: servers.count(),
        causes: causes.join("; "),
    }
}

fn now_ms(clock: &dyn Clock) -> u64 {
    let since = clock.wall_clock().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or_default()
}

/// The lock documents of the volume with this id on these servers, for who has no session there; else as
/// [`Redlock::documents`].
///
/// # Errors
/// [`LockError::NoMajority`].
pub fn lock_documents(
    servers: &Servers,
    volume: &str,
) -> Result<Vec<Result<LockDocument, LockError>>, LockError> {
    documents(servers, &Keys::new(&servers.key_tag(), volume), None)
}

fn documents(
    servers: &Servers,
    keys: &Keys,
    drop: Option<SessionId>,
) -> Result<Vec<Result<LockDocument, LockError>>, LockError> {
    let script = Script::new(include_str!("list.lua"));
    let (mut lists, mut absent) = (Vec::new(), Vec::new());
    for answer in servers.run(&script, &list(keys, drop), Purpose::Other) {
        match answer {
            Ok(text) => lists.push(serde_json::from_slice(&text).map_err(|error| StoreError::Damaged {
                key: keys.index.clone(),
                cause: error.to_string(),
            })?),
            Err(gone) => absent.push(gone),
        }
    }
    if lists.len() < servers.majority() {
        return Err(no_majority(servers, absent));
    }
    Ok(view::documents(lists, servers.majority()))
}

impl std::fmt::Debug for Redlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redlock({:?}, {:?})", self.inner.standing, self.inner.servers)
    }
}
