//! Shared locks that a session keeps between the operations that need them.
//!
//! Imports the documents of the layer, `ambient` and `store::cells`. Every rename shares the locks of the directories above
//! it, mostly the same ones as the rename before. A share that was taken again and again is therefore not released with its
//! operation: its claim stays, and later operations use it without a request. It is let go of once
//! nobody has used it for a while, and as soon as somebody waits for the lock. Distributed file systems call this a cached
//! lock, or a delegation, and its recall; here the recall is the waiter's own claim in the lock document, of which a notice
//! tells.
//!
//! What is hard:
//! 1. *Nobody may be overtaken.* Once somebody is seen waiting nobody uses the share any more: who comes then asks in the
//!    document, behind those who wait.
//! 2. *No two operations may wait for each other.* An operation that takes one lock after the other uses a kept share only
//!    when it comes to it in the global order. So whoever uses one holds it as he would his own.
//! 3. *The session must not wait for itself.* An operation that wants the lock alone first makes it wanted.
//! 4. *Others must know what is over.* What an operation could not release is a ghost once the operation has ended. So a
//!    claim that outlives the operation which has made it is claimed under a number of its own, and of nothing else.
//! 5. *A claim is worth what its document says.* What is kept is read again at each [`SharedLocks::look_at_kept`]; what is
//!    not there any more is used no more. What was changed meanwhile was checked by its commit.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::claims::{in_cell, is_own, take_out};
use super::record::holds_shared;
use super::{Settings, SharedGuard, SharedLocks, Wanted};
use crate::document::Key;
use crate::lock::session::Operation;
use crate::lock::{LockError, Mode, OpId, SessionId};
use crate::rules::{Rule, holds};
use crate::store::cells::{CellKey, StoredCell};

/// How many shares are kept at most, and how many are watched for whether they should be.
const KEPT_MAX: usize = 1024;
const WATCHED_MAX: usize = 4096;

/// How an operation has a lock.
#[derive(Clone, Debug)]
pub(super) enum Sharing {
    /// By a claim of its own, which goes with it.
    Own,
    /// By a share that the session keeps, if it does; else by a claim of its own.
    UseKept,
    /// By a claim that is then kept, under a number of its own.
    Keep(Arc<Operation>),
}

impl Sharing {
    /// Whether others are to use the claim.
    pub(super) fn is_to_be_kept(&self) -> bool {
        matches!(self, Self::Keep(_))
    }
}

/// What a session keeps.
#[derive(Default)]
pub(super) struct KeptLocks {
    inner: Mutex<Inner>,
    look: Condvar,
}

/// Never locked across a request.
#[derive(Default)]
struct Inner {
    /// In the order of the keys, so that the same schedule looks at them in the same order.
    kept: BTreeMap<CellKey, Kept>,
    used: HashMap<CellKey, Used>,
    /// Whether the documents are to be looked at now.
    look: bool,
}

/// A share that is kept, or is in use by the operation that took it and is to be kept.
struct Kept {
    claim: Claim,
    users: u32,
    /// Somebody waits for it: nobody new may use it.
    is_wanted: bool,
    /// A moment after which its document has the claim.
    since: Duration,
    last_use: Duration,
}

/// A use of a kept share by an operation.
#[derive(Debug)]
pub(super) struct Use {
    pub(super) key: CellKey,
    /// The number under which the claim stands.
    pub(super) number: u64,
}

/// A claim that is kept.
pub(super) struct Claim {
    /// In whose name it stands. Runs for as long as the claim stands; else the claim would be a ghost.
    operation: Arc<Operation>,
    known: StoredCell,
}

/// How often a share was taken that is not kept.
struct Used {
    times: u32,
    last: Duration,
}

impl KeptLocks {
    /// Uses what is kept, if it is and nobody waits for it. The use ends with [`KeptLocks::end_use`].
    pub(super) fn begin_use(&self, key: &CellKey, now: Duration) -> Option<Use> {
        let mut inner = self.inner.lock();
        let kept = inner.kept.get_mut(key).filter(|kept| !kept.is_wanted)?;
        kept.users += 1;
        kept.last_use = now;
        Some(Use { key: key.clone(), number: kept.claim.operation.number() })
    }

    /// Notes that a share is taken that is not kept; whether it is to be kept from now on.
    fn is_worth_keeping(&self, key: &CellKey, now: Duration, settings: &Settings) -> bool {
        let Settings { keep_for, keep_from_use, .. } = *settings;
        let Inner { kept, used, .. } = &mut *self.inner.lock();
        if keep_for.is_zero() || kept.contains_key(key) || kept.len() >= KEPT_MAX {
            return false;
        }
        if used.len() >= WATCHED_MAX {
            used.retain(|_, used| now.saturating_sub(used.last) < keep_for);
            if used.len() >= WATCHED_MAX {
                used.clear();
            }
        }
        let used = used.entry(key.clone()).or_insert(Used { times: 0, last: now });
        if now.saturating_sub(used.last) >= keep_for {
            used.times = 0;
        }
        used.times += 1;
        used.last = now;
        used.times >= keep_from_use
    }

    /// Keeps a share from now on, with its taker as the first user. None if another operation has come first.
    pub(super) fn keep(
        &self,
        key: &CellKey,
        operation: &Arc<Operation>,
        known: StoredCell,
        now: Duration,
    ) -> Option<Use> {
        let Inner { kept, used, look } = &mut *self.inner.lock();
        let Entry::Vacant(place) = kept.entry(key.clone()) else { return None };
        let claim = Claim { operation: Arc::clone(operation), known };
        place.insert(Kept { claim, users: 1, is_wanted: false, since: now, last_use: now });
        used.remove(key);
        // Somebody may have come between the claim and now, and a notice that came too was none of ours yet.
        *look = true;
        self.look.notify_all();
        Some(Use { key: key.clone(), number: operation.number() })
    }

    /// Ends a use. Returns the claim if it is to be released now.
    fn end_use(&self, Use { key, number }: &Use, now: Duration) -> Option<Claim> {
        let mut inner = self.inner.lock();
        // Another one may be kept by now, should this one have been lost.
        let kept = inner.kept.get_mut(key).filter(|kept| kept.claim.operation.number() == *number)?;
        kept.users = kept.users.saturating_sub(1);
        kept.last_use = now;
        let ends = kept.users == 0 && kept.is_wanted;
        if ends { inner.kept.remove(key).map(|kept| kept.claim) } else { None }
    }

    /// The claim is gone: nobody new may use it.
    pub(super) fn forget(&self, Use { key, number }: &Use) {
        let mut inner = self.inner.lock();
        if inner.kept.get(key).is_some_and(|kept| kept.claim.operation.number() == *number) {
            inner.kept.remove(key);
        }
    }

    /// Somebody wants the lock alone. Returns the claim if it is to be released now; else its last user releases it.
    pub(super) fn want(&self, key: &CellKey) -> Option<Claim> {
        let mut inner = self.inner.lock();
        inner.used.remove(key);
        let kept = inner.kept.get_mut(key)?;
        kept.is_wanted = true;
        if kept.users == 0 { inner.kept.remove(key).map(|kept| kept.claim) } else { None }
    }

    fn keys(&self) -> Vec<CellKey> {
        self.inner.lock().kept.keys().cloned().collect()
    }

    /// Judges what is kept by its document, which was asked for at this moment. Returns the claim if it is to be released
    /// now.
    fn judge(
        &self,
        key: &CellKey,
        found: Option<&StoredCell>,
        by: &Judge,
    ) -> Result<Option<Claim>, LockError> {
        let record = in_cell(key, found)?;
        let mut inner = self.inner.lock();
        let Some(kept) = inner.kept.get_mut(key).filter(|kept| kept.since <= by.asked) else {
            return Ok(None);
        };
        let op = kept.claim.op(by.session);
        let (Some(record), Some(found)) = (record.filter(|record| holds_shared(record, op)), found) else {
            inner.kept.remove(key);
            log::warn!("the share of {key:?} that {op} had is gone; it is taken again when it is needed");
            return Ok(None);
        };
        kept.claim.known = found.clone();
        kept.is_wanted |= !record.waiters.is_empty() && holds(Rule::KeptSharesGivenUp);
        let is_idle = by.asked.saturating_sub(kept.last_use) >= by.keep_for;
        let ends = kept.users == 0 && (kept.is_wanted || is_idle);
        Ok(if ends { inner.kept.remove(key).map(|kept| kept.claim) } else { None })
    }
}

/// By what kept shares are judged.
struct Judge {
    session: SessionId,
    /// When their documents were asked for.
    asked: Duration,
    keep_for: Duration,
}

impl Claim {
    fn op(&self, session: SessionId) -> OpId {
        OpId { session, number: self.operation.number() }
    }
}

impl SharedLocks {
    /// These documents have changed, or any may have: ends a wait if the session keeps one of them.
    pub fn kept_changed(&self, keys: Option<&[Key]>) {
        let Inner { kept, look, .. } = &mut *self.kept.inner.lock();
        let keeps =
            |key: &Key| matches!(key, Key::Lock(id) if kept.contains_key(&CellKey::Lock(Arc::clone(id))));
        if keys.is_none_or(|keys| !kept.is_empty() && keys.iter().any(keeps)) {
            *look = true;
            self.kept.look.notify_all();
        }
    }

    /// Waits until a share is kept, or one that is kept has changed, but no longer than this.
    pub fn await_kept_change(&self, at_most: Duration) {
        let mut inner = self.kept.inner.lock();
        if !inner.look {
            self.kept.look.wait_for(&mut inner, at_most);
        }
        inner.look = false;
    }

    /// Looks at the shares that the session keeps, and lets go of those that somebody waits for or that nobody has used for
    /// a while. To be called once a second, and after each [`SharedLocks::await_kept_change`]. Asks for nothing if none is
    /// kept.
    ///
    /// # Errors
    /// The store's; [`LockError::Store`] for a document that is damaged, and the others were looked at.
    pub fn look_at_kept(&self) -> Result<(), LockError> {
        let keys = self.kept.keys();
        if keys.is_empty() {
            return Ok(());
        }
        let (asked, keep_for) = (self.store.clock.now(), self.settings.keep_for);
        let found = self.store.cells.read_each(&keys)?;
        let judge = Judge { session: self.standing.session(), asked, keep_for };
        let mut judged = Ok(());
        for (key, found) in keys.iter().zip(found) {
            let looked = found.map_err(LockError::from);
            match looked.and_then(|found| self.kept.judge(key, found.as_ref(), &judge)) {
                Ok(ended) => self.let_go(key, ended),
                // Who waits for the others must not wait for that.
                Err(error) => judged = Err(error),
            }
        }
        judged
    }

    /// Ends the uses of an operation.
    pub(super) fn end_uses(&self, uses: &mut Vec<Use>) {
        for used in uses.drain(..) {
            let ended = self.kept.end_use(&used, self.store.clock.now());
            self.let_go(&used.key, ended);
        }
    }

    /// Says of the shares of a rename how it has them. What people hold is claimed in their own name, so that all can see
    /// who it is.
    pub(super) fn choose_sharing(&self, documents: &mut [Wanted]) {
        let now = self.store.clock.now();
        for wanted in documents.iter_mut().filter(|wanted| wanted.entry.mode == Mode::Shared) {
            let keep = self.kept.is_worth_keeping(&wanted.key, now, &self.settings);
            wanted.sharing =
                if keep { Sharing::Keep(Arc::new(self.standing.begin())) } else { Sharing::UseKept };
        }
    }

    /// Uses a share that the session keeps, if it does and the operation may.
    pub(super) fn begin_use(&self, wanted: &Wanted, uses: &mut Vec<Use>) -> bool {
        if matches!(wanted.sharing, Sharing::Own) {
            return false;
        }
        let used = self.kept.begin_use(&wanted.key, self.store.clock.now());
        let is_used = used.is_some();
        uses.extend(used);
        is_used
    }

    /// Makes wanted what the session keeps of the locks that an operation of its own wants alone.
    pub(super) fn want_kept(&self, documents: &[Wanted]) {
        for wanted in documents.iter().filter(|wanted| wanted.entry.mode == Mode::Exclusive) {
            let ended = self.kept.want(&wanted.key);
            self.let_go(&wanted.key, ended);
        }
    }

    /// Keeps, of the locks that were granted, the shares that are to be kept.
    pub(super) fn keep_of(&self, guard: &mut SharedGuard) {
        let SharedGuard { held, uses, .. } = guard;
        let now = self.store.clock.now();
        held.retain(|held| {
            let kept = held
                .keeper
                .as_ref()
                .zip(held.known.clone())
                .and_then(|(keeper, known)| self.kept.keep(&held.key, keeper, known, now));
            let stays = kept.is_none();
            uses.extend(kept);
            stays
        });
    }

    /// Releases the claim of a share that is kept no more.
    pub(super) fn let_go(&self, key: &CellKey, ended: Option<Claim>) {
        let Some(claim) = ended else { return };
        let op = claim.op(self.standing.session());
        if let Err(error) = take_out(&self.store, key, Some(claim.known), |claim| is_own(claim, op)) {
            log::warn!("{key:?} was not released by {op}: {error}; others will remove the claim");
        }
        drop(claim.operation);
    }
}
