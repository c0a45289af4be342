//! Whoever cleans up after dead sessions: a session beside them, or somebody who has none. Looks at all sessions, fences
//! those that may be fenced, and takes the steps of [`plan`](super::plan), each on what it has just read.
//!
//! Imports the pure decisions beside it, the claims of the layer, `ambient`, `store::cells` and `store::intents`.
//!
//! A recoverer changes session and lock documents, and names no session as the author: nothing of this needs one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::documents::{cell, in_cell, key};
use super::observe::{Observer, Verdict};
use super::plan::{Found, SlotsSeen, Step, next_step};
use super::state::{SessionEvent, after};
use crate::ambient::Clock;
use crate::document::{Document, Kind, Session, SessionId, SessionState, SlotState, Version};
use crate::lock::change::{Decision, Store};
use crate::lock::shared::claims;
use crate::store::cells::{Cell, CellKey, Cells, Change, Listed, MarkedDocument, StoredCell};
use crate::store::intents::{self, Settled};
use crate::store::{Range, Scan, Start, StoreError};

/// Seven steps are enough, and a few more if delayed requests make slots again meanwhile.
const STEPS_MAX: u32 = 100;

/// What cleans up what a dead session left in the tree. To call it again is harmless.
pub type Collect<'a> = &'a dyn Fn(SessionId) -> Result<(), StoreError>;

/// Which sessions a look reads.
#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    /// All that there are.
    All,
    /// These, by their keys: costs some stores less than to find out which there are. Those that are fenced already are left
    /// alone: most of them are about to end, by themselves or by who has fenced them.
    Known(&'a [SessionId]),
}

/// What a look at sessions has found.
#[derive(Debug, Default)]
pub struct Census {
    /// The sessions that are to be recovered: they are fenced, by this look or before.
    pub dead: Vec<Session>,
    /// The others, as they were read.
    pub others: Vec<Session>,
}

/// What a look for the slots of sessions that have no document did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// The intents of those that had stood still for long enough; their slots are gone.
    pub settled: Settled,
    /// Under which ids others are left.
    pub left: BTreeSet<SessionId>,
}

/// The slots of a session that has no document.
#[derive(Default)]
struct Stray {
    /// All have a lower number.
    slots: u16,
    /// The greatest of theirs.
    version: Version,
}

/// Cleans up after dead sessions.
#[derive(Clone)]
pub struct Recoverer {
    pub(super) store: Store,
}

impl Recoverer {
    /// One for the sessions in these cells. `seed` tells recoverers apart.
    pub fn new(cells: Arc<dyn Cells>, clock: Arc<dyn Clock>, seed: u64) -> Self {
        Self { store: Store { cells, clock, seed } }
    }

    /// Reads sessions once, and fences those that `concerned` names and that may be fenced: to be called four times a
    /// lease or more often, by one thread with one `observer`, which forgets whom a look does not find. `is_gone` says of a
    /// session that its process is gone for certain, as one host can know of its own processes; such a session is not
    /// waited for.
    ///
    /// # Errors
    /// The store's.
    pub fn look(
        &self,
        which: Which<'_>,
        observer: &mut Observer,
        concerned: &dyn Fn(SessionId) -> bool,
        is_gone: &dyn Fn(&Session) -> bool,
    ) -> Result<Census, StoreError> {
        let mut census = Census::default();
        let read = match which {
            Which::All => self.sessions()?,
            Which::Known(known) => self.known(known)?,
        };
        // After the answer: see `observe`.
        let now = self.store.clock.now();
        observer.retain(|known| read.iter().any(|(session, _)| session.id == known));
        for (session, found) in read.into_iter().filter(|(session, _)| concerned(session.id)) {
            let dead = match session.state {
                SessionState::Joining | SessionState::Live => {
                    let lease = Duration::from_millis(session.lease_ms);
                    let verdict = observer.observe(session.id, session.heartbeat, lease, now);
                    (verdict == Verdict::MayFence || is_gone(&session)) && self.fence(session.id, &found)?
                }
                // Somebody is at it, or died at it.
                SessionState::Fenced | SessionState::Recovered => matches!(which, Which::All),
            };
            if dead {
                census.dead.push(session);
            } else {
                census.others.push(session);
            }
        }
        Ok(census)
    }

    /// Declares a session dead, if its document is still exactly the one that was read. Returns whether it was this call
    /// for certain.
    ///
    /// # Errors
    /// The store's.
    pub fn fence(&self, session: SessionId, read: &StoredCell) -> Result<bool, StoreError> {
        let mut tries = 0;
        let left = self.store.change(&key(session), Some(Some(read.clone())), |found| {
            let next = match (found, in_cell(session, found)?) {
                (Some(cell), Some(session)) if cell.version == read.version => {
                    after(session, SessionEvent::Fence)
                }
                _ => None,
            };
            tries += 1;
            Ok(next.map_or(Decision::Leave, |next| Decision::Write(Some(cell(next, found)))))
        })?;
        let state = in_cell(session, left.as_ref())?.map(|session| session.state);
        // After a second look it may be the work of another; whoever sees it fenced recovers it the next time.
        Ok(tries == 1 && state == Some(SessionState::Fenced))
    }

    /// Declares a session dead whatever it says of itself: when this has returned it changes nothing any more. Nothing to
    /// do if it is fenced already, or gone.
    ///
    /// # Errors
    /// The store's.
    pub fn fence_by_force(&self, session: SessionId) -> Result<(), StoreError> {
        self.take(session, SessionEvent::Fence)
    }

    /// Cleans up after a session that is fenced, or whose fence the caller answers for, until nothing of it is left. Any
    /// number of callers at once; whoever dies at it is replaced by the next. Returns what this call did about its intents.
    ///
    /// # Errors
    /// The store's, and those of `collect`; call again.
    pub fn recover(&self, dead: SessionId, collect: Collect<'_>) -> Result<Settled, StoreError> {
        let (mut claims, mut collected, mut slots) = (true, false, 0);
        let mut settled = Settled::default();
        // What was read, as long as it is true: somebody waits for the locks.
        let mut known = None;
        for _ in 0..STEPS_MAX {
            let (state, seen) = match known.take() {
                Some(known) => known,
                None => {
                    let found = self.store.read(&key(dead))?;
                    let session = in_cell(dead, found.as_ref())?;
                    slots = session.map_or(slots, |session| session.intents);
                    (session.map(|session| session.state), self.slots_seen(dead, slots)?)
                }
            };
            match next_step(&Found { state, slots: seen, claims, collected }) {
                Step::Fence => self.take(dead, SessionEvent::Fence)?,
                Step::SettleIntents => {
                    settled += intents::settle(&self.store.cells, &self.store.clock, dead, slots)?;
                    known = Some((state, SlotsSeen::Sealed));
                }
                Step::DropClaims => {
                    claims::drop_session(&self.store, dead)?;
                    claims = false;
                    known = Some((state, seen));
                }
                Step::Collect => {
                    collect(dead)?;
                    collected = true;
                    known = Some((state, seen));
                }
                Step::MarkRecovered => self.take(dead, SessionEvent::Cleaned)?,
                Step::DeleteSlots => self.delete_slots(&slot_keys(dead, slots))?,
                Step::DeleteSession => {
                    let is_over = |found: &Session| found.state == SessionState::Recovered;
                    self.replace(dead, |found| found.filter(|found| is_over(found)).map(|_| None))?;
                }
                Step::Done => return Ok(settled),
            }
        }
        Err(StoreError::Unknown(format!(
            "the recovery of session {dead} came to no end in {STEPS_MAX} steps"
        )))
    }

    /// Settles and deletes the slots whose session has no document: a commit of nobody's was cut short, or a request to make
    /// slots came late. Some are left and waited for, as a commit of nobody's that is still being made would have to be made
    /// again. They are settled once their slots have stood still for a lease in the eyes of `observer`, so this is to be
    /// called like [`look`](Self::look).
    ///
    /// # Errors
    /// The store's, the first: one that cannot be settled keeps none of the others from it.
    pub fn sweep_slots(&self, observer: &mut Observer, lease: Duration) -> Result<Swept, StoreError> {
        let mut strays: BTreeMap<SessionId, Stray> = BTreeMap::new();
        for (slot, found) in self.store.insist(|| self.store.cells.list(Listed::Slots))? {
            let (CellKey::Slot(session, index), Ok(found)) = (slot, found) else { continue };
            let stray = strays.entry(session).or_default();
            stray.slots = stray.slots.max(index.saturating_add(1));
            stray.version = stray.version.max(found.version);
        }
        // Read after the slots were seen: a session's document is made before its slots.
        let keys: Vec<CellKey> = strays.keys().map(|session| key(*session)).collect();
        let found = self.store.insist(|| self.store.cells.read_each(&keys))?;
        let now = self.store.clock.now();
        // A document that is damaged is one all the same.
        let mut has_document = found.iter().map(|found| !matches!(found, Ok(None)));
        strays.retain(|_, _| !has_document.next().unwrap_or(true));
        observer.retain(|known| strays.contains_key(&known));
        let mut swept = Swept::default();
        let mut failed = None;
        for (session, Stray { slots, version }) in strays {
            if observer.observe(session, version.0, lease, now) == Verdict::Wait {
                swept.left.insert(session);
                continue;
            }
            let settled = intents::settle(&self.store.cells, &self.store.clock, session, slots);
            match settled.and_then(|done| self.delete_slots(&slot_keys(session, slots)).map(|()| done)) {
                Ok(done) => swept.settled += done,
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        failed.map_or(Ok(swept), Err)
    }

    fn slots_seen(&self, session: SessionId, slots: u16) -> Result<SlotsSeen, StoreError> {
        let keys = slot_keys(session, slots);
        let found = self.store.insist(|| self.store.cells.read_many(&keys))?;
        let is_sealed =
            |found: &StoredCell| matches!(&*found.cell, Cell::Slot(slot) if slot.state == SlotState::Sealed);
        let mut there = found.iter().flatten();
        Ok(match there.clone().next() {
            None => SlotsSeen::Gone,
            Some(_) if there.all(is_sealed) => SlotsSeen::ReadSealed,
            Some(_) => SlotsSeen::Open,
        })
    }

    /// Takes a session one step on, unless it is there already.
    fn take(&self, session: SessionId, event: SessionEvent) -> Result<(), StoreError> {
        self.replace(session, |found| after(found?, event).map(Some))
    }

    /// Replaces a session's document by what `next` makes of it, or deletes it (none); nothing to do is none at all.
    fn replace(
        &self,
        session: SessionId,
        next: impl Fn(Option<&Session>) -> Option<Option<Session>>,
    ) -> Result<(), StoreError> {
        self.store.change(&key(session), None, |found: Option<&StoredCell>| {
            let next = next(in_cell(session, found)?);
            Ok(next.map_or(Decision::Leave, |next| Decision::Write(next.map(|next| cell(next, found)))))
        })?;
        Ok(())
    }

    fn delete_slots(&self, slots: &[CellKey]) -> Result<(), StoreError> {
        let found = self.store.insist(|| self.store.cells.read_many(slots))?;
        let there = slots.iter().zip(found).filter_map(|(key, found)| Some((key, found?)));
        let (settled, others): (Vec<_>, Vec<_>) = there.partition(|(_, found)| intents::is_settled(found));
        let deletion = |(key, found): &(&CellKey, StoredCell)| {
            let key = CellKey::clone(key);
            Change { key, expected: Some(found.version), cell: None, awaited: false }
        };
        let changes: Vec<_> = settled.iter().map(deletion).collect();
        let answers = self.store.cells.cas_each(&changes);
        let refused =
            settled.iter().zip(answers).filter_map(|(slot, answer)| answer.is_err().then_some(slot));
        for (key, _) in refused.chain(&others) {
            // Not settled, though it was: what was done about it is lost with a server, or another one is behind.
            let gone = |found: Option<&StoredCell>| match found {
                Some(found) if intents::is_settled(found) => Ok(Decision::Write(None)),
                Some(_) => Err(StoreError::Engine {
                    what: format!("deleting {key:?}"),
                    source: "it is in use; it is settled again later".into(),
                }),
                None => Ok(Decision::Leave),
            };
            self.store.change(key, None, gone)?;
        }
        Ok(())
    }

    /// Those of these sessions that there still are, each as it was at some instant. One that is damaged is left to
    /// `lockwood check`.
    fn known(&self, sessions: &[SessionId]) -> Result<Vec<(Session, StoredCell)>, StoreError> {
        let keys: Vec<CellKey> = sessions.iter().copied().map(key).collect();
        let found = self.store.insist(|| self.store.cells.read_each(&keys))?;
        let there = found.into_iter().filter_map(|found| found.ok().flatten());
        Ok(there.filter_map(|found| Some((session(&found)?, found))).collect())
    }

    /// All sessions, each as it was at some instant. One that is damaged is left to `lockwood check`.
    ///
    /// # Errors
    /// The store's.
    pub fn sessions(&self) -> Result<Vec<(Session, StoredCell)>, StoreError> {
        const PAGE: usize = 256;
        let mut sessions = Vec::new();
        let mut start = Start::First;
        loop {
            let scan = Scan { range: Range::All(Kind::Session), start, limit: PAGE };
            let page = self.store.insist(|| self.store.cells.scan(&scan))?;
            let last = page.last().map(|(key, _)| key.clone());
            let more = page.len() >= PAGE;
            sessions.extend(page.into_iter().filter_map(|(_, found)| {
                let found = found.ok()?;
                Some((session(&found)?, found))
            }));
            match last {
                Some(last) if more => start = Start::After(last),
                _ => return Ok(sessions),
            }
        }
    }
}

/// The session in a cell.
fn session(found: &StoredCell) -> Option<Session> {
    match &*found.cell {
        Cell::Document(MarkedDocument { before: Some(stored), .. }) => match &*stored.document {
            Document::Session(session) => Some(session.clone()),
            _ => None,
        },
        _ => None,
    }
}

fn slot_keys(session: SessionId, slots: u16) -> Vec<CellKey> {
    (0..slots).map(|slot| CellKey::Slot(session, slot)).collect()
}

impl std::fmt::Debug for Recoverer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Recoverer")
    }
}
