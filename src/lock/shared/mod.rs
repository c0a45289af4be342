//! The provider over lock documents: the locks of a store that many hosts share.
//!
//! Owns taking, waiting and releasing. Imports the rules of one lock, `store::cells`, `ambient`, and what a session knows of
//! itself. Each lock is a document of its own, changed by compare-and-set; the rules are those of every other provider.
//!
//! What is hard, and where it is solved:
//! 1. The rules must not be written twice: [`record`] applies [`decide::one`](super::decide::one) to a document.
//! 2. A request may arrive late, twice or never. An operation knows its claim by its number, which is never used again, so
//!    to ask again is harmless; and what arrives after the end is a ghost: [`claims`].
//! 3. No two operations may wait for each other: locks are taken one after the other in the global order, as in
//!    [`decide`](super::decide). Who waits is in one queue, holds what comes before and nothing that comes after.
//! 4. No wait may be lost, and none may need the one who is waited for to be alive: whoever releases a lock lets in the next
//!    by the same compare-and-set; who waits looks again and again, and removes the ghosts before it.
//! 5. A set that nobody else wants must not cost a request for each lock: [`at_once`].
//! 6. An operation that does not know what became of its commit must not let its locks go: [`SharedGuard::abandon`].

mod at_once;
pub mod claims;
mod guard;
pub mod record;
mod view;

pub use guard::SharedGuard;
pub use view::lock_documents;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::change::{Pauses, Store};
use super::session::{self, Standing};
use super::set::LockEntry;
use super::{Blocked, Counters, LockError, LockSet, Mode, OpId};
use crate::ambient::Clock;
use crate::document::{LockClaim, LockRecord, SessionId};
use crate::store::StoreError;
use crate::store::cells::{CasError, Cell, CellKey, Cells, StoredCell};
use at_once::AtOnce;
use claims::{in_cell, is_ghost, now_ns, take_out};
use guard::Held;
use record::{ask, blocked};

/// How locks are kept and waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long the id of a lock document may be, in bytes: a property of the engine, the same for all its sessions.
    pub id_bytes_max: usize,
    /// Whether a session takes no locks while no heartbeat of it was confirmed for a lease. Where every commit finds out by
    /// itself whether its session lives, that would only turn an absence of the store into an error.
    pub silence_stops: bool,
    /// How long a waiter waits before it looks the second time.
    pub look_after: Duration,
    /// How long it waits between two looks at most.
    pub look_at_least_every: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            id_bytes_max: 512,
            silence_stops: true,
            look_after: Duration::from_millis(2),
            look_at_least_every: Duration::from_millis(100),
        }
    }
}

/// Who waits looks for ghosts at its first look and then at each of these.
const LOOKS_PER_GHOST_HUNT: u32 = 8;
/// How often the compare-and-set of a lock that is free may fail, after the deadline, before it counts as not free.
const TRIES_AFTER_DEADLINE: u32 = 16;

/// The locks of one session. A clone is another handle to the same.
#[derive(Clone)]
pub struct SharedLocks {
    store: Store,
    standing: Arc<Standing>,
    closed: Arc<AtomicBool>,
    settings: Settings,
    counted: Arc<Mutex<Counters>>,
    /// Whether somebody else held or wanted one of the locks that were asked for last.
    met_others: Arc<AtomicBool>,
}

/// Why a lock was not granted.
enum Refusal {
    Blocked(Box<Blocked>),
    Error(LockError),
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Error(match error {
            StoreError::Fenced => LockError::SessionDropped,
            other => LockError::Store(other),
        })
    }
}

impl SharedLocks {
    /// The locks of the session whose `standing` this is.
    pub fn new(
        cells: Arc<dyn Cells>,
        clock: Arc<dyn Clock>,
        standing: Arc<Standing>,
        settings: Settings,
    ) -> Self {
        let store = Store { cells, clock, seed: standing.session().0 };
        let (closed, counted, met_others) = Default::default();
        Self { store, standing, closed, settings, counted, met_others }
    }

    /// Takes all locks of the set, or none. Does not wait for anybody.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`] with the first lock that was not free; others as [`SharedLocks::acquire`].
    pub fn try_acquire(&self, set: &LockSet, purpose: Arc<str>) -> Result<SharedGuard, LockError> {
        self.take_all(set, purpose, Duration::ZERO).map_err(|refusal| match refusal {
            Refusal::Blocked(blocked) => LockError::WouldBlock(blocked),
            Refusal::Error(error) => error,
        })
    }

    /// Takes all locks of the set, and waits for them for as long as `wait` at most. `purpose` is for people: one line.
    ///
    /// # Errors
    /// [`LockError::TimedOut`] with the lock that was waited for and who held it; [`LockError::SessionDropped`] if this
    /// session is fenced; [`LockError::Store`], [`LockError::Damaged`]. With any of them nothing is held: what could not be
    /// taken back because the store failed is a ghost.
    pub fn acquire(
        &self,
        set: &LockSet,
        purpose: Arc<str>,
        wait: Duration,
    ) -> Result<SharedGuard, LockError> {
        self.take_all(set, purpose, wait).map_err(|refusal| match refusal {
            Refusal::Blocked(blocked) => LockError::TimedOut(blocked),
            Refusal::Error(error) => error,
        })
    }

    /// Grants nothing any more: ends every wait with [`LockError::Closed`], and every later request too. What is held stays
    /// held until its guards are dropped.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// What this session has done so far. `operations` and `locks` are those of this session that hold at this moment.
    pub fn counters(&self) -> Counters {
        *self.counted.lock()
    }

    fn check(&self) -> Result<(), Refusal> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Refusal::Error(LockError::Closed));
        }
        match self.standing.check() {
            Err(StoreError::Engine { .. }) if !self.settings.silence_stops => Ok(()),
            checked => Ok(checked?),
        }
    }

    /// Removes every ghost from every lock document; returns from how many. To be called once a lease, or somebody may wait
    /// for ever: only its own session knows a ghost while an older operation of the session still runs, and that one may be
    /// waiting for whom the ghost blocks.
    ///
    /// # Errors
    /// The store's.
    pub fn sweep(&self) -> Result<usize, LockError> {
        let mut swept = 0;
        for (key, found) in self.list()? {
            let Ok(Some(record)) = in_cell(&key, Some(&found)) else { continue };
            let ghosts = self.ghosts(record)?;
            if !ghosts.is_empty() {
                take_out(&self.store, &key, Some(found), |op| ghosts.contains(&op))?;
                swept += 1;
            }
        }
        Ok(swept)
    }

    fn take_all(&self, set: &LockSet, purpose: Arc<str>, wait: Duration) -> Result<SharedGuard, Refusal> {
        self.check()?;
        let started = self.store.clock.now();
        let documents = self.documents_of(set);
        let keys: Vec<_> = documents.iter().map(|(key, _)| key.clone()).collect();
        let operation = self.standing.begin();
        // From here on, whatever is taken is released when the guard is dropped.
        let mut guard = SharedGuard {
            locks: self.clone(),
            held: Vec::with_capacity(keys.len()),
            granted: false,
            operation,
        };
        let hints = match self.take_at_once(&documents, &purpose, &mut guard)? {
            AtOnce::Taken => return Ok(self.granted(guard)),
            AtOnce::No(found) => found,
            AtOnce::Unknown => {
                guard.held.extend(keys.iter().map(|key| Held { key: key.clone(), known: None }));
                None
            }
        };
        // A hint, in one round trip: each compare-and-set says whether it still holds.
        let hints = match hints {
            Some(found) => found,
            None => self.store.insist(|| self.store.cells.read_many(&keys))?,
        };
        if wait.is_zero() {
            self.give_way(&documents, &hints, guard.op())?;
        }
        for ((key, entry), hint) in documents.into_iter().zip(hints) {
            let mut taking = Taking {
                locks: self,
                op: guard.op(),
                key: &key,
                entry,
                purpose: &purpose,
                deadline: started.saturating_add(wait),
                waited: false,
            };
            // Listed first, so that it is released also if nobody knows whether it was taken.
            if !guard.held.iter().any(|held| held.key == key) {
                guard.held.push(Held { key: key.clone(), known: None });
            }
            let began = self.store.clock.now();
            let taken = taking.run(hint);
            if taking.waited {
                self.count_wait(began);
            }
            let known = taken.inspect_err(|refusal| self.count_refusal(refusal, wait))?;
            if let Some(held) = guard.held.iter_mut().find(|held| held.key == key) {
                held.known = Some(known);
            }
        }
        Ok(self.granted(guard))
    }

    fn granted(&self, mut guard: SharedGuard) -> SharedGuard {
        guard.granted = true;
        let mut counted = self.counted.lock();
        counted.acquisitions += 1;
        counted.operations += 1;
        counted.locks += guard.held.len() as u64;
        drop(counted);
        guard
    }

    fn count_refusal(&self, refusal: &Refusal, wait: Duration) {
        if matches!(refusal, Refusal::Blocked(_)) && !wait.is_zero() {
            self.counted.lock().expired += 1;
        }
    }

    /// An operation that had to wait for a lock goes on, one way or another.
    fn count_wait(&self, began: Duration) {
        let waited = self.store.clock.now().saturating_sub(began);
        let mut counted = self.counted.lock();
        counted.waits += 1;
        let waited_us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        counted.longest_wait_us = counted.longest_wait_us.max(waited_us);
    }

    /// Refuses at once, before anything is written, if a lock is seen not to be free for somebody who does not wait.
    fn give_way(
        &self,
        documents: &[(CellKey, LockEntry)],
        hints: &[Option<StoredCell>],
        op: OpId,
    ) -> Result<(), Refusal> {
        for ((key, entry), hint) in documents.iter().zip(hints) {
            let Some(record) = in_cell(key, hint.as_ref())? else { continue };
            let claim = self.claim(op, entry.mode, &Arc::from(""));
            if !ask(Some(record), &entry.id, &claim).holds && self.ghosts(record)?.is_empty() {
                let now_ns = now_ns(&*self.store.clock);
                return Err(Refusal::Blocked(Box::new(blocked(record, &entry.id, op, entry.mode, now_ns))));
            }
        }
        Ok(())
    }

    /// The documents of a set, in its order. Should two paths share a document, it is taken once, in the stronger mode.
    fn documents_of(&self, set: &LockSet) -> Vec<(CellKey, LockEntry)> {
        let mut documents: Vec<(CellKey, LockEntry)> = Vec::with_capacity(set.entries().len());
        for entry in set.entries() {
            let key = CellKey::Lock(entry.id.document_id(self.settings.id_bytes_max).into());
            match documents.iter_mut().find(|(known, _)| *known == key) {
                Some((_, known)) => known.mode = known.mode.max(entry.mode),
                None => documents.push((key, entry.clone())),
            }
        }
        documents
    }

    /// The claims of a document that are ghosts.
    fn ghosts(&self, record: &LockRecord) -> Result<Vec<OpId>, StoreError> {
        let own = self.standing.session();
        let sessions: Vec<SessionId> =
            record::sessions(record).into_iter().filter(|session| *session != own).collect();
        let keys: Vec<_> = sessions.iter().map(|session| session::key(*session)).collect();
        let found = self.store.insist(|| self.store.cells.read_many(&keys))?;
        let mut ghosts = Vec::new();
        for claim in record::claims(record).map(record::op_of) {
            let is_ghost = if claim.session == own {
                !self.standing.runs(claim.number)
            } else {
                let at = sessions.binary_search(&claim.session).ok();
                let cell = at.and_then(|at| found.get(at)).and_then(Option::as_ref);
                is_ghost(claim, session::in_cell(claim.session, cell)?)
            };
            if is_ghost {
                ghosts.push(claim);
            }
        }
        Ok(ghosts)
    }

    /// A document must be that of a path with this id.
    fn check_path(
        &self,
        key: &CellKey,
        entry: &LockEntry,
        record: Option<&LockRecord>,
    ) -> Result<(), Refusal> {
        let Some(record) = record else { return Ok(()) };
        if record.path == entry.id.as_bytes() {
            return Ok(());
        }
        view::id_of(key, record, self.settings.id_bytes_max).map(drop).map_err(Refusal::Error)
    }

    fn claim(&self, op: OpId, mode: Mode, purpose: &Arc<str>) -> LockClaim {
        LockClaim {
            session: op.session,
            operation: op.number,
            mode,
            purpose: Arc::clone(purpose),
            since_ns: now_ns(&*self.store.clock),
        }
    }
}

fn no_answer(error: CasError) -> Refusal {
    match error {
        CasError::Store(error) => error.into(),
        other => StoreError::Unknown(other.to_string()).into(),
    }
}

/// One operation at one lock.
struct Taking<'a> {
    locks: &'a SharedLocks,
    op: OpId,
    key: &'a CellKey,
    entry: LockEntry,
    purpose: &'a Arc<str>,
    deadline: Duration,
    /// Whether it had to wait for others.
    waited: bool,
}

impl Taking<'_> {
    /// Asks, and waits until the lock is granted. Returns its document. `hint` is what is there as far as is known.
    fn run(&mut self, hint: Option<StoredCell>) -> Result<StoredCell, Refusal> {
        let store = &self.locks.store;
        let Settings { look_after, look_at_least_every, .. } = self.locks.settings;
        let mut looks = Pauses::new(store, self.op.number, look_after, look_at_least_every);
        let (mut lost, mut known) = (0, Some(hint));
        loop {
            let found = match known.take() {
                Some(hint) => hint,
                None => store.read(self.key)?,
            };
            let record = in_cell(self.key, found.as_ref())?;
            self.locks.check_path(self.key, &self.entry, record)?;
            let now = store.clock.now();
            let claim = self.locks.claim(self.op, self.entry.mode, self.purpose);
            let asked = ask(record, &self.entry.id, &claim);
            if let (true, None, Some(found)) = (asked.holds, &asked.write, &found) {
                return Ok(found.clone());
            }
            let late = now >= self.deadline;
            if let Some(record) = record.filter(|_| !asked.holds) {
                if looks.count.is_multiple_of(LOOKS_PER_GHOST_HUNT) {
                    let ghosts = self.locks.ghosts(record)?;
                    if !ghosts.is_empty() {
                        take_out(store, self.key, found, |op| ghosts.contains(&op))?;
                        continue;
                    }
                }
                if late {
                    return Err(self.refused(record));
                }
                // Only here is it clear that somebody waits for long: a session that is dead need not.
                self.locks.check()?;
            }
            let Some(next) = asked.write else {
                self.waited = true;
                looks.pause_at_most(self.deadline.saturating_sub(now));
                continue;
            };
            let cell = Cell::Lock(next);
            match store.cells.cas(self.key, found.as_ref().map(|cell| cell.version), Some(cell.clone())) {
                Ok(version) => {
                    let written = StoredCell { version, cell: cell.into() };
                    if asked.holds {
                        return Ok(written);
                    }
                    known = Some(Some(written));
                }
                // Others were first, or it is not known whether the change was made: to be read again.
                Err(error) => {
                    lost += u32::from(late);
                    if !matches!(
                        error,
                        CasError::Conflict
                            | CasError::Unknown(_)
                            | CasError::Store(StoreError::Engine { .. })
                    ) {
                        return Err(no_answer(error));
                    }
                    if lost > TRIES_AFTER_DEADLINE {
                        return Err(record.map_or_else(|| no_answer(error), |record| self.refused(record)));
                    }
                    looks.pause();
                }
            }
        }
    }

    fn refused(&self, record: &LockRecord) -> Refusal {
        let now_ns = now_ns(&*self.locks.store.clock);
        Refusal::Blocked(Box::new(blocked(record, &self.entry.id, self.op, self.entry.mode, now_ns)))
    }
}

impl std::fmt::Debug for SharedLocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedLocks({:?})", self.standing)
    }
}
