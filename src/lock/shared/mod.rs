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
//! 6. What is shared again and again must not cost a request each time: [`kept`].
//! 7. While it is not known what became of its commit an operation must not let its locks go, and if its session ends
//!    before that, nobody but who recovers it may: [`SharedGuard::abandon`].

mod at_once;
pub mod claims;
mod guard;
mod kept;
pub mod record;
mod taking;
mod view;

pub use guard::SharedGuard;
pub use view::lock_documents;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::change::Store;
use super::session::{self, Standing};
use super::set::LockEntry;
use super::{Blocked, Counters, LockError, LockSet, Mode, OpId, Wait};
use crate::ambient::Clock;
use crate::document::{LockClaim, LockRecord, SessionId};
use crate::later::{Inline, Later, UnderWay};
use crate::store::cells::{Along, CellKey, Cells, Looked, StoredCell};
use crate::store::{Durability, StoreError};
use at_once::AtOnce;
use claims::{in_cell, is_ghost, now_ns, take_out};
use guard::Held;
use kept::{KeptLocks, Sharing};
use record::{ask, blocked};
use taking::Taking;

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
    /// For how long a session keeps a share that nobody uses; with zero it keeps none. Whoever sets this calls
    /// [`SharedLocks::look_at_kept`].
    pub keep_for: Duration,
    /// From its how manieth use on a share is kept, each use at most `keep_for` after the one before.
    pub keep_from_use: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            id_bytes_max: 512,
            silence_stops: true,
            look_after: Duration::from_millis(2),
            look_at_least_every: Duration::from_millis(100),
            keep_for: Duration::ZERO,
            keep_from_use: 3,
        }
    }
}

/// What people read of a share that is kept.
const KEPT: &str = "kept for the next renames below; let go of when somebody waits";
/// Who waits looks for ghosts at its first look and then at each of these.
const LOOKS_PER_GHOST_HUNT: u32 = 8;
/// For so long also who does not wait for others waits for a release of the same session that is under way.
const OWN_RELEASE_WAITED_FOR: Duration = Duration::from_millis(20);
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
    kept: Arc<KeptLocks>,
    /// Where locks are released.
    later: Arc<dyn Later>,
    /// The documents that are being released while their operation has ended already. Who wants one of them waits for that,
    /// or it would take him for somebody else.
    releasing: Arc<UnderWay<CellKey>>,
}

/// A lock that an operation wants.
struct Wanted {
    key: CellKey,
    entry: LockEntry,
    sharing: Sharing,
}

impl Wanted {
    /// What the claim is for: that of a share which is kept outlives the operation.
    fn purpose<'a>(&self, of_operation: &'a Arc<str>) -> Cow<'a, Arc<str>> {
        match self.sharing {
            Sharing::Keep(_) => Cow::Owned(KEPT.into()),
            Sharing::Own | Sharing::UseKept => Cow::Borrowed(of_operation),
        }
    }

    /// In whose name `op` claims it.
    fn claimed_by(&self, op: OpId) -> OpId {
        match &self.sharing {
            Sharing::Keep(keeper) => OpId { number: keeper.number(), ..op },
            Sharing::Own | Sharing::UseKept => op,
        }
    }
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
        let (closed, counted, met_others, kept, releasing) = Default::default();
        let later = Arc::new(Inline);
        Self { store, standing, closed, settings, counted, met_others, kept, later, releasing }
    }

    /// The same locks, released there: whoever drops a guard does not wait for it.
    pub fn releasing(self, later: Arc<dyn Later>) -> Self {
        Self { later, ..self }
    }

    /// Takes all locks of the set, or none. Waits for nobody, but for a moment where a release of this session is under way.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`] with the first lock that was not free; others as [`SharedLocks::acquire`].
    pub fn try_acquire(&self, set: &LockSet, purpose: Arc<str>) -> Result<SharedGuard, LockError> {
        self.try_acquire_along(set, purpose, None)
    }

    /// The same, by a request that is to be sent anyway, if there is one. It is not used where the store changes several
    /// documents at one instant, and where others were met.
    ///
    /// # Errors
    /// As [`SharedLocks::try_acquire`].
    pub fn try_acquire_along(
        &self,
        set: &LockSet,
        purpose: Arc<str>,
        along: Option<Along<'_>>,
    ) -> Result<SharedGuard, LockError> {
        self.take_all(set, purpose, Duration::ZERO.into(), along).map_err(|refusal| match refusal {
            Refusal::Blocked(blocked) => LockError::WouldBlock(blocked),
            Refusal::Error(error) => error,
        })
    }

    /// Takes all locks of the set, and waits for them for as long as `wait` at most. `purpose` is for people: one line.
    ///
    /// # Errors
    /// [`LockError::TimedOut`] with the lock that was waited for and who held it; [`LockError::Interrupted`];
    /// [`LockError::SessionDropped`] if this session is fenced; [`LockError::Store`], [`LockError::Damaged`]. With any of
    /// them nothing is held: what could not be taken back because the store failed is a ghost.
    pub fn acquire<'a>(
        &self,
        set: &LockSet,
        purpose: Arc<str>,
        wait: impl Into<Wait<'a, Duration>>,
    ) -> Result<SharedGuard, LockError> {
        self.take_all(set, purpose, wait.into(), None).map_err(|refusal| match refusal {
            Refusal::Blocked(blocked) => LockError::TimedOut(blocked),
            Refusal::Error(error) => error,
        })
    }

    /// Whether somebody else held or wanted one of the locks that were asked for last.
    pub fn expects_others(&self) -> bool {
        self.met_others.load(Ordering::Relaxed)
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
        let listed: Vec<_> =
            self.list()?.into_iter().filter_map(|(key, found)| Some((key, found.ok()?))).collect();
        let records: Vec<_> = listed
            .iter()
            .filter_map(|(key, found)| Some((key, found, in_cell(key, Some(found)).ok()??)))
            .collect();
        // Each session once, and behind all claims.
        let sessions = self.sessions_of(records.iter().map(|(_, _, record)| *record))?;
        let mut swept = 0;
        for (key, found, record) in records {
            let ghosts = self.ghosts_among(record, &sessions);
            if !ghosts.is_empty() {
                take_out(&self.store, key, Some(found.clone()), |op| ghosts.contains(&op))?;
                swept += 1;
            }
        }
        Ok(swept)
    }

    fn take_all(
        &self,
        set: &LockSet,
        purpose: Arc<str>,
        wait: Wait<'_, Duration>,
        along: Option<Along<'_>>,
    ) -> Result<SharedGuard, Refusal> {
        self.check()?;
        let is_try = wait.longest.is_zero();
        let wait = Wait { longest: self.store.clock.now().saturating_add(wait.longest), ..wait };
        let documents = self.documents_of(set);
        let keys = documents.iter().map(|wanted| &wanted.key);
        let until = wait.longest.max(self.store.clock.now().saturating_add(OWN_RELEASE_WAITED_FOR));
        let goes_on = || self.store.clock.now() < until && !wait.is_given_up() && self.check().is_ok();
        self.releasing.wait_for(&*self.store.clock, keys, goes_on);
        self.want_kept(&documents);
        let mut guard = self.empty_guard();
        // The commit of a rename checks that they are there. Who holds one for people checks nothing, nor do those who will
        // use a share that is kept.
        let is_checked = set.is_of_rename() && documents.iter().all(|wanted| !wanted.sharing.is_to_be_kept());
        let durability = if is_checked { Durability::Delayed } else { Durability::Full };
        match self.take_at_once(&documents, &purpose, &mut guard, along, durability)? {
            AtOnce::Taken => Ok(self.granted(guard)),
            AtOnce::No(found) => self.take_in_order(documents, found, &purpose, guard, wait, is_try),
            AtOnce::Unknown => {
                guard.held.extend(documents.iter().map(|wanted| Held::new(wanted, None)));
                self.take_in_order(documents, None, &purpose, guard, wait, is_try)
            }
            AtOnce::Partly => {
                // What is to be kept was claimed in a name of its own, which ends as well.
                drop((guard, documents));
                let documents = self.documents_of(set);
                self.take_in_order(documents, None, &purpose, self.empty_guard(), wait, is_try)
            }
        }
    }

    /// The guard of an operation that begins: from here on, whatever is taken is released when it is dropped.
    fn empty_guard(&self) -> SharedGuard {
        SharedGuard {
            locks: self.clone(),
            held: Vec::new(),
            uses: Vec::new(),
            durability: Durability::Full,
            granted: false,
            released: AtomicBool::new(false),
            operation: Arc::new(self.standing.begin()),
        }
    }

    /// Takes the locks one after the other, each waited for until `wait` ends. `hints`: what is there, as far as is known.
    fn take_in_order(
        &self,
        documents: Vec<Wanted>,
        hints: Option<Vec<Option<StoredCell>>>,
        purpose: &Arc<str>,
        mut guard: SharedGuard,
        wait: Wait<'_, Duration>,
        is_try: bool,
    ) -> Result<SharedGuard, Refusal> {
        // A hint, in one round trip: each compare-and-set says whether it still holds.
        let hints = match hints {
            Some(found) => found,
            None => {
                let keys: Vec<_> = documents.iter().map(|wanted| wanted.key.clone()).collect();
                self.store.insist(|| self.store.cells.read_many(&keys))?
            }
        };
        // One alone is looked at nowhere else.
        if let [hint] = hints.as_slice() {
            self.met_others.store(hint.is_some(), Ordering::Relaxed);
        }
        if is_try {
            self.give_way(&documents, &hints, guard.op())?;
        }
        for (wanted, hint) in documents.into_iter().zip(hints) {
            // Not what may be claimed already by the request of which no answer came.
            if guard.held.iter().all(|held| held.key != wanted.key)
                && self.begin_use(&wanted, &mut guard.uses)
            {
                continue;
            }
            // An operation that has come before may have kept it since.
            self.want_kept(std::slice::from_ref(&wanted));
            let key = wanted.key.clone();
            let mut taking = Taking {
                locks: self,
                op: wanted.claimed_by(guard.op()),
                purpose: &wanted.purpose(purpose),
                wanted: &wanted,
                wait,
                waited: false,
            };
            // Listed first, so that it is released also if nobody knows whether it was taken.
            if !guard.held.iter().any(|held| held.key == key) {
                guard.held.push(Held::new(&wanted, None));
            }
            let began = self.store.clock.now();
            let taken = taking.run(hint);
            if taking.waited {
                self.count_wait(began);
            }
            let known = taken.inspect_err(|refusal| self.count_refusal(refusal, is_try))?;
            if let Some(held) = guard.held.iter_mut().find(|held| held.key == key) {
                held.known = Some(known);
            }
        }
        Ok(self.granted(guard))
    }

    fn granted(&self, mut guard: SharedGuard) -> SharedGuard {
        guard.granted = true;
        self.keep_of(&mut guard);
        let mut counted = self.counted.lock();
        counted.acquisitions += 1;
        counted.operations += 1;
        counted.locks += (guard.held.len() + guard.uses.len()) as u64;
        drop(counted);
        guard
    }

    fn count_refusal(&self, refusal: &Refusal, is_try: bool) {
        if matches!(refusal, Refusal::Blocked(_)) && !is_try {
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
    fn give_way(&self, documents: &[Wanted], hints: &[Option<StoredCell>], op: OpId) -> Result<(), Refusal> {
        for (Wanted { key, entry, .. }, hint) in documents.iter().zip(hints) {
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
    fn documents_of(&self, set: &LockSet) -> Vec<Wanted> {
        let mut documents: Vec<Wanted> = Vec::with_capacity(set.entries().len());
        for entry in set.entries() {
            let key = CellKey::Lock(entry.id.document_id(self.settings.id_bytes_max).into());
            match documents.iter_mut().find(|known| known.key == key) {
                Some(known) => known.entry.mode = known.entry.mode.max(entry.mode),
                None => documents.push(Wanted { key, entry: entry.clone(), sharing: Sharing::Own }),
            }
        }
        if set.is_of_rename() {
            self.choose_sharing(&mut documents);
        }
        documents
    }

    /// The claims of a document that are ghosts.
    fn ghosts(&self, record: &LockRecord) -> Result<Vec<OpId>, StoreError> {
        Ok(self.ghosts_among(record, &self.sessions_of([record])?))
    }

    /// The documents of the other sessions that have claims.
    fn sessions_of<'a>(
        &self,
        records: impl IntoIterator<Item = &'a LockRecord>,
    ) -> Result<BTreeMap<SessionId, Looked>, StoreError> {
        let all: BTreeSet<SessionId> = records.into_iter().flat_map(record::sessions).collect();
        let others: Vec<SessionId> =
            all.into_iter().filter(|session| *session != self.standing.session()).collect();
        let keys: Vec<_> = others.iter().map(|session| session::key(*session)).collect();
        let found = self.store.insist(|| self.store.cells.read_each(&keys))?;
        Ok(others.into_iter().zip(found).collect())
    }

    /// The claims of a document that are ghosts, by what was read of their sessions after them. Those of a session whose
    /// document is damaged are none: nobody knows whether it lives, so they are waited for like others.
    fn ghosts_among(&self, record: &LockRecord, sessions: &BTreeMap<SessionId, Looked>) -> Vec<OpId> {
        let is_over = |claim: &OpId| {
            if claim.session == self.standing.session() {
                return !self.standing.runs(claim.number);
            }
            match sessions.get(&claim.session) {
                Some(Ok(cell)) => session::in_cell(claim.session, cell.as_ref())
                    .is_ok_and(|session| is_ghost(*claim, session)),
                Some(Err(_)) | None => false,
            }
        };
        record::claims(record).map(record::op_of).filter(is_over).collect()
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

impl std::fmt::Debug for SharedLocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedLocks({:?})", self.standing)
    }
}
