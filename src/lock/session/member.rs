//! A session at work: it joins, beats, watches the others, and leaves.
//!
//! Owns the session's own document. Imports the pure decisions beside it, `store::cells` and `store::intents`.
//!
//! What is hard:
//! 1. A session must never use an intent that whoever fenced it did not find. So it makes all of them while it is joining,
//!    and works only after it has itself seen that it is live.
//! 2. A heartbeat whose answer is lost may have arrived, and may arrive later. It is confirmed only by reading it back.
//! 3. To end is to die in good order: the session fences itself and recovers itself, by the same steps in which anybody
//!    else would. So an end that is cut short needs no case of its own.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::documents::{cell, in_cell, key};
use super::observe::{Observer, Verdict};
use super::standing::Standing;
use super::state::{SessionEvent, after, first_state};
use crate::ambient::Clock;
use crate::document::{Document, Kind, Session, SessionId, SessionState};
use crate::lock::change::{Decision, Store};
use crate::store::cells::{Cell, CellKey, Cells, MarkedDocument, StoredCell};
use crate::store::{Range, Scan, Start, StoreError};

/// What a look at all sessions has found and done.
#[derive(Debug, Default)]
pub struct Observed {
    /// The sessions of which nothing is left now.
    pub ended: Vec<SessionId>,
    /// The others but the own one, as they were read.
    pub others: Vec<Session>,
}

/// What cleans up what a dead session left in the tree. To call it again is harmless.
pub type Collect<'a> = &'a dyn Fn(SessionId) -> Result<(), StoreError>;

/// A session that lives, or did.
pub struct Member {
    pub(super) store: Store,
    standing: Arc<Standing>,
    /// The session's own cell as it knows it, to save a reading. Never locked across a request.
    own: Mutex<Option<StoredCell>>,
}

impl Member {
    /// Begins a session: makes its document, then whatever `create` makes for it (its intents), then calls it live.
    /// `document` says who it is; its state, heartbeat and `operations_below` are set here.
    ///
    /// # Errors
    /// The store's; [`StoreError::Fenced`] if the session was declared dead before it lived: then begin another one.
    pub fn join<T>(
        cells: Arc<dyn Cells>,
        clock: Arc<dyn Clock>,
        document: Session,
        create: impl FnOnce(SessionId) -> Result<T, StoreError>,
    ) -> Result<(Self, T), StoreError> {
        let id = document.id;
        let lease = Duration::from_millis(document.lease_ms);
        let store = Store { cells, clock, seed: id.0 };
        let began = store.clock.now();
        let first = Session { state: first_state(), heartbeat: 0, operations_below: 0, ..document };
        let mut asked = false;
        let made = store.change(&key(id), Some(None), |found| match in_cell(id, found)? {
            // Made, declared dead, recovered and deleted before its answer came, for all that is known here. A second life
            // under the same id would be at the mercy of whoever still recovers the first one.
            None if asked => Err(StoreError::Fenced),
            None => {
                asked = true;
                Ok(Decision::Write(Some(cell(first.clone(), None))))
            }
            // Ours, or a duplicate of ours.
            Some(found) if *found == first => Ok(Decision::Leave),
            Some(_) => Err(StoreError::Fenced),
        })?;
        let created = create(id)?;
        let version = made.as_ref().map(|made| made.version);
        let live = match first.state {
            SessionState::Live => made,
            _ => store.change(&key(id), Some(made), |found| {
                // Only the very document that was made: another one like it was made again by a late request.
                let made = found.filter(|found| Some(found.version) == version);
                let next = in_cell(id, made)?.and_then(|session| after(session, SessionEvent::IntentsMade));
                Ok(next.map_or(Decision::Leave, |next| Decision::Write(Some(cell(next, found)))))
            })?,
        };
        if in_cell(id, live.as_ref())?.map(|session| session.state) != Some(SessionState::Live) {
            return Err(StoreError::Fenced);
        }
        let standing = Standing::new(id, lease, Arc::clone(&store.clock), began);
        Ok((Self { store, standing: Arc::new(standing), own: Mutex::new(live) }, created))
    }

    /// Which session.
    pub fn id(&self) -> SessionId {
        self.standing.session()
    }

    /// What the session knows of itself.
    pub fn standing(&self) -> &Arc<Standing> {
        &self.standing
    }

    /// Says once that the session lives. To be called three times a lease or more often, by one thread.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] if it does not: it has been declared dead, for ever. Others as the store fails; then try
    /// again.
    pub fn beat(&self) -> Result<(), StoreError> {
        if self.standing.is_fenced() {
            return Err(StoreError::Fenced);
        }
        let id = self.id();
        // Before the request: the observers' lease begins when it arrives, hence later.
        let sent = self.store.clock.now();
        let operations_below = self.standing.operations_below();
        let known = self.own.lock().take().map(Some);
        let mut attempted = None;
        let found = self.store.change(&key(id), known, |found| {
            let Some(session) = in_cell(id, found)? else { return Ok(Decision::Leave) };
            if attempted == Some(session.heartbeat) {
                return Ok(Decision::Leave);
            }
            let Some(next) = after(session, SessionEvent::Beat { operations_below }) else {
                return Ok(Decision::Leave);
            };
            attempted = Some(next.heartbeat);
            Ok(Decision::Write(Some(cell(next, found))))
        })?;
        match in_cell(id, found.as_ref())? {
            Some(session) if session.state == SessionState::Live => {
                *self.own.lock() = found;
                self.standing.confirm(sent);
                Ok(())
            }
            _ => {
                self.standing.fence();
                Err(StoreError::Fenced)
            }
        }
    }

    /// Reads all sessions once, fences those that may be fenced, and recovers those that are: to be called four times a
    /// lease or more often, by one thread with one `observer`. `is_gone` says of a session that its process is gone for
    /// certain, as one host can know of its own processes; such a session is not waited for.
    ///
    /// # Errors
    /// The store's. What was begun is gone on with at the next call, by whoever calls.
    pub fn observe(
        &self,
        observer: &mut Observer,
        is_gone: &dyn Fn(&Session) -> bool,
        collect: Collect<'_>,
    ) -> Result<Observed, StoreError> {
        let mut observed = Observed::default();
        let all = self.sessions()?;
        // After the answer: see `observe`.
        let now = self.store.clock.now();
        observer.retain(|known| all.iter().any(|(session, _)| session.id == known));
        for (session, found) in all.into_iter().filter(|(session, _)| session.id != self.id()) {
            let dead = match session.state {
                SessionState::Joining | SessionState::Live => {
                    let lease = Duration::from_millis(session.lease_ms);
                    let verdict = observer.observe(session.id, session.heartbeat, lease, now);
                    (verdict == Verdict::MayFence || is_gone(&session)) && self.fence(session.id, &found)?
                }
                // Somebody is at it, or died at it.
                SessionState::Fenced | SessionState::Recovered => true,
            };
            if dead {
                self.recover(session.id, collect)?;
                observed.ended.push(session.id);
            } else {
                observed.others.push(session);
            }
        }
        Ok(observed)
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

    /// Ends the session in good order. The caller has let its operations end; what it still starts fails.
    ///
    /// # Errors
    /// The store's: then others do the rest once the lease has run out.
    pub fn leave(&self, collect: Collect<'_>) -> Result<(), StoreError> {
        self.standing.fence();
        self.own.lock().take();
        let id = self.id();
        self.store.change(&key(id), None, |found| {
            let next = in_cell(id, found)?.and_then(|session| after(session, SessionEvent::Fence));
            Ok(next.map_or(Decision::Leave, |next| Decision::Write(Some(cell(next, found)))))
        })?;
        self.recover(id, collect)
    }

    /// All sessions, each as it was at some instant.
    fn sessions(&self) -> Result<Vec<(Session, StoredCell)>, StoreError> {
        const PAGE: usize = 256;
        let mut sessions = Vec::new();
        let mut start = Start::First;
        loop {
            let scan = Scan { range: Range::All(Kind::Session), start, limit: PAGE };
            let page = self.store.insist(|| self.store.cells.scan(&scan))?;
            let last = page.last().map(|(key, _)| key.clone());
            let more = page.len() >= PAGE;
            sessions.extend(page.into_iter().filter_map(|(_, found)| Some((session(&found)?, found))));
            match last {
                Some(last) if more => start = Start::After(last),
                _ => return Ok(sessions),
            }
        }
    }

    pub(super) fn slot_keys(session: SessionId, slots: u16) -> Vec<CellKey> {
        (0..slots).map(|slot| CellKey::Slot(session, slot)).collect()
    }
}

/// The session in a cell of the scan; one that is damaged is left to `lockwood check`.
fn session(found: &StoredCell) -> Option<Session> {
    match &*found.cell {
        Cell::Document(MarkedDocument { before: Some(stored), .. }) => match &*stored.document {
            Document::Session(session) => Some(session.clone()),
            _ => None,
        },
        _ => None,
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Member({:?})", self.standing)
    }
}
