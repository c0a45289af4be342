//! Cells that count requests, fail at one of them, or run something just before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;

use crate::document::Version;
use crate::store::cells::memory::MemoryCells;
use crate::store::cells::{
    Answers, CasError, Cell, CellKey, Cells, Change, Listed, ListedCell, ScannedCell, StoredCell,
};
use crate::store::{Scan, StoreError};

/// What happens to the requests from a given one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// All are lost: the session has crashed, as far as the store can see.
    Crash,
    /// That one is made, and then all are lost.
    CrashAfter,
    /// That one is lost: no answer.
    LostOnce,
    /// That one is made, and its answer is lost.
    AnswerLostOnce,
    /// That one is made twice.
    Twice,
}

/// A request that compares and sets, as it was sent.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) key: CellKey,
    pub(super) expected: Option<Version>,
    pub(super) cell: Option<Cell>,
}

type Hook = Box<dyn FnOnce() + Send>;

/// Cells over others, shared with other sessions, that misbehave for this one.
pub(super) struct Faulty {
    pub(super) cells: Arc<MemoryCells>,
    count: AtomicU64,
    fault: Mutex<Option<(u64, Fault)>>,
    hooks: Mutex<Vec<(u64, Hook)>>,
    /// What was there before a request whose answer was lost, until another request for that cell is answered.
    unanswered: Mutex<Option<(CellKey, Option<StoredCell>)>>,
    /// Every compare-and-set since the count began.
    pub(super) sent: Mutex<Vec<Sent>>,
}

impl Faulty {
    pub(super) fn new(cells: &Arc<MemoryCells>) -> Arc<Self> {
        Arc::new(Self {
            cells: cells.clone(),
            count: AtomicU64::new(0),
            fault: Mutex::new(None),
            hooks: Mutex::new(Vec::new()),
            unanswered: Mutex::new(None),
            sent: Mutex::new(Vec::new()),
        })
    }

    /// Counts from here on, and does `fault` at that request (from zero).
    pub(super) fn arm(&self, fault: Option<(u64, Fault)>) {
        self.count.store(0, SeqCst);
        self.sent.lock().clear();
        *self.fault.lock() = fault;
    }

    /// Runs `hook` just before that request.
    pub(super) fn before(&self, request: u64, hook: impl FnOnce() + Send + 'static) {
        self.hooks.lock().push((request, Box::new(hook)));
    }

    /// Another server takes over: what nobody was answered is lost.
    pub(super) fn fail_over(&self) -> bool {
        let lost = self.unanswered.lock().take();
        lost.is_some_and(|(key, before)| {
            self.cells.put_back(&key, before);
            true
        })
    }

    /// How many requests there were since [`Faulty::arm`].
    pub(super) fn requests(&self) -> u64 {
        self.count.load(SeqCst)
    }

    fn request(&self) -> Option<Fault> {
        let number = self.count.fetch_add(1, SeqCst);
        let hooks: Vec<_> = self.hooks.lock().extract_if(.., |(at, _)| *at == number).collect();
        hooks.into_iter().for_each(|(_, hook)| hook());
        match *self.fault.lock() {
            Some((at, fault)) if number == at => Some(fault),
            Some((at, Fault::Crash | Fault::CrashAfter)) if number > at => Some(Fault::Crash),
            _ => None,
        }
    }

    fn read_with<T>(&self, read: impl Fn(&MemoryCells) -> Result<T, StoreError>) -> Result<T, StoreError> {
        match self.request() {
            None | Some(Fault::Twice) => read(&self.cells),
            Some(_) => Err(StoreError::Engine { what: "read".into(), source: "lost".into() }),
        }
    }
}

impl Cells for Faulty {
    fn read(&self, key: &CellKey) -> Result<Option<StoredCell>, StoreError> {
        self.read_with(|cells| cells.read(key))
    }

    fn read_many(&self, keys: &[CellKey]) -> Result<Vec<Option<StoredCell>>, StoreError> {
        self.read_with(|cells| cells.read_many(keys))
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScannedCell>, StoreError> {
        self.read_with(|cells| cells.scan(scan))
    }

    fn list(&self, what: Listed) -> Result<Vec<ListedCell>, StoreError> {
        self.read_with(|cells| cells.list(what))
    }

    fn cas(&self, key: &CellKey, expected: Option<Version>, cell: Option<Cell>) -> Result<Version, CasError> {
        let fault = self.request();
        self.sent.lock().push(Sent { key: key.clone(), expected, cell: cell.clone() });
        let make = || {
            let made = self.cells.cas(key, expected, cell.clone());
            self.unanswered.lock().take_if(|(of, _)| made.is_ok() && of == key);
            made
        };
        let unknown = || Err(CasError::Unknown("lost".into()));
        match fault {
            None => make(),
            Some(Fault::Crash | Fault::LostOnce) => unknown(),
            Some(Fault::CrashAfter | Fault::AnswerLostOnce) => {
                let before = self.cells.read(key)?;
                if make().is_ok() {
                    *self.unanswered.lock() = Some((key.clone(), before));
                }
                unknown()
            }
            Some(Fault::Twice) => {
                let _ = make();
                make()
            }
        }
    }

    /// What goes along with the beginning of an intent is of one request with it. All else fails by itself.
    fn cas_each(&self, changes: &[Change]) -> Answers {
        if !matches!(changes, [Change { key: CellKey::Slot(..), .. }, _, ..]) {
            let single = |change: &Change| self.cas(&change.key, change.expected, change.cell.clone());
            return changes.iter().map(single).collect();
        }
        let fault = self.request();
        let sent = |change: &Change| {
            let Change { key, expected, cell, .. } = change.clone();
            Sent { key, expected, cell }
        };
        self.sent.lock().extend(changes.iter().map(sent));
        let make = || self.cells.cas_each(changes);
        let unanswered = || changes.iter().map(|_| Err(CasError::Unknown("lost".into()))).collect();
        match fault {
            None => make(),
            Some(Fault::Crash | Fault::LostOnce) => unanswered(),
            Some(Fault::CrashAfter | Fault::AnswerLostOnce) => {
                drop(make());
                unanswered()
            }
            Some(Fault::Twice) => {
                drop(make());
                make()
            }
        }
    }
}
