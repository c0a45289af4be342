//! What the tests share: a clock that moves when somebody sleeps, cells whose requests fail, and sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::ambient::Clock;
use crate::document::{Session, SessionId, SessionState, Version};
use crate::lock::session::state::tests::session;
use crate::lock::session::{Member, Observer, in_cell, key};
use crate::lock::shared::Settings;
use crate::lock::{LockError, LockId, LockSet, Mode, SharedGuard, SharedLocks};
use crate::store::cells::memory::MemoryCells;
use crate::store::cells::{CasError, Cell, CellKey, Cells, Listed, ListedCell, ScannedCell, StoredCell};
use crate::store::intents::{self, IntentStore};
use crate::store::{Scan, StoreError};

pub(super) const LEASE: Duration = Duration::from_secs(1);
pub(super) const SLOTS: u16 = 2;

type Hook = Box<dyn FnMut(u64) + Send>;

/// A clock that stands still until somebody sleeps, or the test moves it. What happens meanwhile is a hook's business.
#[derive(Default)]
pub(super) struct TestClock {
    now_ns: AtomicU64,
    sleeps: AtomicU64,
    hook: Mutex<Option<Hook>>,
}

impl TestClock {
    pub(super) fn advance(&self, by: Duration) {
        self.now_ns.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }

    /// Calls `hook` at every sleep from now on, with its number from 1.
    pub(super) fn on_sleep(&self, hook: impl FnMut(u64) + Send + 'static) {
        self.sleeps.store(0, Ordering::SeqCst);
        *self.hook.lock() = Some(Box::new(hook));
    }
}

impl Clock for TestClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns.load(Ordering::SeqCst))
    }

    fn sleep(&self, duration: Duration) {
        self.advance(duration);
        let nth = self.sleeps.fetch_add(1, Ordering::SeqCst) + 1;
        // Taken out while it runs: it may sleep too.
        let taken = self.hook.lock().take();
        if let Some(mut hook) = taken {
            hook(nth);
            self.hook.lock().get_or_insert(hook);
        }
    }
}

/// What becomes of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is not made, and neither is any after it: its sender has died.
    Dies,
    /// It is made, and none after it.
    DiesAfter,
    /// It is not made, and no answer comes.
    Lost,
    /// It is made, and no answer comes.
    Unanswered,
    /// No answer comes, and it is made when the test says so.
    Late,
    /// It is made, and once more when the test says so.
    Duplicated,
}

impl Fault {
    pub(super) const ALL: [Self; 6] =
        [Self::Dies, Self::DiesAfter, Self::Lost, Self::Unanswered, Self::Late, Self::Duplicated];
}

type Change = (CellKey, Option<Version>, Option<Cell>);

/// One party's way to the cells. Every request is counted, reads included; one of them may go wrong.
pub(super) struct Faulty {
    inner: Arc<MemoryCells>,
    state: Mutex<State>,
    /// Called before each request with its number from 0; not while it runs itself.
    before: Mutex<Option<Hook>>,
    /// The cell under this key does not decode.
    damaged: Mutex<Option<CellKey>>,
}

#[derive(Default)]
struct State {
    requests: u64,
    changes: u64,
    fault: Option<(u64, Fault)>,
    dead: bool,
    happened: bool,
    stash: Vec<Change>,
}

impl Faulty {
    pub(super) fn new(inner: &Arc<MemoryCells>) -> Arc<Self> {
        let (state, before, damaged) = Default::default();
        Arc::new(Self { inner: Arc::clone(inner), state, before, damaged })
    }

    /// From now on, the cell under this key does not decode.
    pub(super) fn damage(&self, key: CellKey) {
        *self.damaged.lock() = Some(key);
    }

    fn whole(&self, key: &CellKey) -> Result<(), StoreError> {
        if self.damaged.lock().as_ref() != Some(key) {
            return Ok(());
        }
        Err(StoreError::Damaged { key: format!("{key:?}"), cause: "a test wants it".to_owned() })
    }

    /// From now on, the request number `at` (from 0) goes wrong.
    pub(super) fn fail(&self, at: u64, fault: Fault) {
        *self.state.lock() = State { fault: Some((at, fault)), ..State::default() };
    }

    pub(super) fn before(&self, hook: impl FnMut(u64) + Send + 'static) {
        self.state.lock().requests = 0;
        *self.before.lock() = Some(Box::new(hook));
    }

    /// Whether there were as many requests as the one that was to fail.
    pub(super) fn happened(&self) -> bool {
        self.state.lock().happened
    }

    /// How many requests and, of them, changes there were since the last call.
    pub(super) fn count(&self) -> (u64, u64) {
        let mut state = self.state.lock();
        (std::mem::take(&mut state.requests), std::mem::take(&mut state.changes))
    }

    /// Requests that were under way arrive now.
    pub(super) fn land(&self) {
        let stash = std::mem::take(&mut self.state.lock().stash);
        for (key, expected, cell) in stash {
            let _ = self.inner.cas(&key, expected, cell);
        }
    }

    fn next(&self) -> Result<Option<Fault>, StoreError> {
        let requests = self.state.lock().requests;
        let taken = self.before.lock().take();
        if let Some(mut hook) = taken {
            hook(requests);
            *self.before.lock() = Some(hook);
        }
        let mut state = self.state.lock();
        let number = state.requests;
        state.requests += 1;
        let fault = state.fault.filter(|(at, _)| *at == number).map(|(_, fault)| fault);
        state.happened |= fault.is_some();
        state.dead |= fault == Some(Fault::Dies);
        if state.dead {
            return Err(StoreError::Engine {
                what: "a request".to_owned(),
                source: "its sender died".into(),
            });
        }
        state.dead |= fault == Some(Fault::DiesAfter);
        Ok(fault)
    }

    /// A read goes wrong as an error that goes away.
    fn read_as<T>(&self, read: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        match self.next()? {
            None | Some(Fault::DiesAfter | Fault::Dies) => read(),
            Some(_) => Err(StoreError::Engine { what: "a read".to_owned(), source: "no answer".into() }),
        }
    }
}

impl Cells for Faulty {
    fn read(&self, key: &CellKey) -> Result<Option<StoredCell>, StoreError> {
        self.read_as(|| self.whole(key).and_then(|()| self.inner.read(key)))
    }

    fn read_many(&self, keys: &[CellKey]) -> Result<Vec<Option<StoredCell>>, StoreError> {
        let whole = || keys.iter().try_for_each(|key| self.whole(key));
        self.read_as(|| whole().and_then(|()| self.inner.read_many(keys)))
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScannedCell>, StoreError> {
        self.read_as(|| self.inner.scan(scan))
    }

    fn list(&self, what: Listed) -> Result<Vec<ListedCell>, StoreError> {
        self.read_as(|| self.inner.list(what))
    }

    fn cas(&self, key: &CellKey, expected: Option<Version>, cell: Option<Cell>) -> Result<Version, CasError> {
        let fault = self.next()?;
        self.state.lock().changes += 1;
        let no_answer = || Err(CasError::Unknown("no answer".to_owned()));
        match fault {
            None | Some(Fault::Dies) => self.inner.cas(key, expected, cell),
            Some(Fault::DiesAfter) => {
                let _ = self.inner.cas(key, expected, cell);
                Err(StoreError::Engine { what: "a change".to_owned(), source: "its sender died".into() }
                    .into())
            }
            Some(Fault::Lost) => no_answer(),
            Some(Fault::Unanswered) => {
                let _ = self.inner.cas(key, expected, cell);
                no_answer()
            }
            Some(Fault::Late) => {
                self.state.lock().stash.push((key.clone(), expected, cell));
                no_answer()
            }
            Some(Fault::Duplicated) => {
                self.state.lock().stash.push((key.clone(), expected, cell.clone()));
                self.inner.cas(key, expected, cell)
            }
        }
    }
}

/// With the feature, a rule that the environment names is off, to see that some test objects.
pub(in crate::lock) fn read_rules() {
    #[cfg(feature = "proof")]
    crate::rules::read_environment().unwrap();
}

/// A session with its own clock and its own way to the cells.
#[derive(Clone)]
pub(super) struct Host {
    pub(super) cells: Arc<Faulty>,
    pub(super) clock: Arc<TestClock>,
    pub(super) member: Arc<Member>,
    pub(super) locks: SharedLocks,
    pub(super) store: Arc<IntentStore<dyn Cells>>,
}

/// The volume that they all work on.
#[derive(Clone, Default)]
pub(super) struct World {
    pub(super) cells: Arc<MemoryCells>,
}

impl World {
    pub(super) fn new() -> Self {
        read_rules();
        Self::default()
    }

    pub(super) fn join(&self, id: u64) -> Host {
        self.try_join(id, &Faulty::new(&self.cells), |_| ()).unwrap()
    }

    pub(super) fn join_for(&self, id: u64, lease: Duration) -> Host {
        self.try_join_for(id, lease, &Faulty::new(&self.cells), |_| ()).unwrap()
    }

    /// Joins; `meanwhile` is called once the slots are made.
    pub(super) fn try_join(
        &self,
        id: u64,
        cells: &Arc<Faulty>,
        meanwhile: impl FnOnce(SessionId),
    ) -> Result<Host, StoreError> {
        self.try_join_for(id, LEASE, cells, meanwhile)
    }

    fn try_join_for(
        &self,
        id: u64,
        lease: Duration,
        cells: &Arc<Faulty>,
        meanwhile: impl FnOnce(SessionId),
    ) -> Result<Host, StoreError> {
        let clock = Arc::new(TestClock::default());
        let port: Arc<dyn Cells> = cells.clone();
        let dyn_clock: Arc<dyn Clock> = clock.clone();
        let document = Session {
            lease_ms: lease.as_millis() as u64,
            intents: SLOTS,
            ..session(id, SessionState::Joining)
        };
        let (member, slots) = Member::join(port.clone(), dyn_clock.clone(), document, |session| {
            let slots = intents::create_slots(&port, &dyn_clock, session, SLOTS);
            meanwhile(session);
            slots
        })?;
        let store = Arc::new(IntentStore::new(port.clone(), dyn_clock.clone(), member.id(), slots));
        let locks = SharedLocks::new(port, dyn_clock, Arc::clone(member.standing()), Settings::default());
        Ok(Host { cells: cells.clone(), clock, member: Arc::new(member), locks, store })
    }

    /// A session's document.
    pub(super) fn session(&self, id: u64) -> Option<Session> {
        let cell = self.cells.read(&key(SessionId(id))).unwrap();
        in_cell(SessionId(id), cell.as_ref()).unwrap().cloned()
    }

    pub(super) fn state(&self, id: u64) -> Option<SessionState> {
        self.session(id).map(|session| session.state)
    }

    /// How many slots a session has.
    pub(super) fn slots(&self, id: u64) -> usize {
        let slots = self.cells.list(Listed::Slots).unwrap();
        slots.iter().filter(|(key, _)| matches!(key, CellKey::Slot(session, _) if session.0 == id)).count()
    }

    /// Takes away every lock document.
    pub(super) fn forget_locks(&self) {
        for (key, found) in self.cells.list(Listed::Locks).unwrap() {
            self.cells.cas(&key, Some(found.unwrap().version), None).unwrap();
        }
    }

    /// The lock documents: path, holders, `<`, waiters; `+` shared and `!` exclusive, `session.operation`.
    pub(super) fn locks(&self) -> String {
        let locks = self.cells.list(Listed::Locks).unwrap();
        let line = |(_, found): &ListedCell| {
            let found = found.as_ref().unwrap();
            let Cell::Lock(record) = &*found.cell else { panic!("{found:?}") };
            let claim = |claim: &crate::document::LockClaim| {
                let sign = if claim.mode == Mode::Shared { '+' } else { '!' };
                format!("{sign}{}.{}", claim.session.0, claim.operation)
            };
            let list = |claims: &[_]| claims.iter().map(claim).collect::<Vec<_>>().join("");
            let path = String::from_utf8_lossy(&record.path);
            format!("{path} {}<{}", list(&record.holders), list(&record.waiters))
        };
        locks.iter().map(line).collect::<Vec<_>>().join("  ")
    }
}

impl Host {
    pub(super) fn acquire(&self, set: &LockSet, wait_ms: u64) -> Result<SharedGuard, LockError> {
        self.locks.acquire(set, "a test".into(), Duration::from_millis(wait_ms))
    }

    /// The locks of the same session, of which shares are kept for this long.
    pub(super) fn keeping(&self, keep_for: Duration) -> SharedLocks {
        let settings = Settings { keep_for, ..Settings::default() };
        let standing = Arc::clone(self.member.standing());
        SharedLocks::new(self.cells.clone(), self.clock.clone(), standing, settings)
    }

    pub(super) fn recover(&self, dead: u64) -> Result<(), StoreError> {
        self.member.recover(SessionId(dead), &|_| Ok(()))
    }

    /// Takes away the slots of no session that stand still: that takes two looks.
    pub(super) fn sweep_slots(&self) {
        let mut observer = Observer::default();
        let mut sweep = || self.member.recoverer().sweep_slots(&mut observer, Duration::ZERO).unwrap();
        sweep();
        assert!(sweep().left.is_empty());
    }

    pub(super) fn leave(&self) -> Result<(), StoreError> {
        self.member.leave(&|_| Ok(()))
    }
}

pub(super) fn id(path: &str) -> LockId {
    LockId::from_path(path.as_bytes()).unwrap()
}

pub(super) fn share(path: &str) -> LockSet {
    LockSet::for_hold(&id(path), Mode::Shared).unwrap()
}

pub(super) fn hold(path: &str) -> LockSet {
    LockSet::for_hold(&id(path), Mode::Exclusive).unwrap()
}

pub(super) fn rename(source: &str, destination: &str) -> LockSet {
    LockSet::for_rename(&id(source), &id(destination)).unwrap()
}
