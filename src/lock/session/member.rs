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
use super::observe::Observer;
use super::recover::{Census, Collect, Recoverer, Which};
use super::standing::Standing;
use super::state::{SessionEvent, after, first_state};
use crate::ambient::Clock;
use crate::document::{Session, SessionId, SessionState};
use crate::lock::change::{Decision, Store};
use crate::store::StoreError;
use crate::store::cells::{Cells, StoredCell};

/// What a look at sessions has found and done.
#[derive(Debug, Default)]
pub struct Observed {
    /// The sessions of which nothing is left now.
    pub ended: Vec<SessionId>,
    /// The others but the own one, as they were read.
    pub others: Vec<Session>,
    /// Why one that was dead could not be cleaned up after, if that is so; it is gone on with at the next look.
    pub failed: Option<StoreError>,
}

/// A session that lives, or did.
pub struct Member {
    recoverer: Recoverer,
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
        let recoverer = Recoverer { store };
        Ok((Self { recoverer, standing: Arc::new(standing), own: Mutex::new(live) }, created))
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
        let sent = self.recoverer.store.clock.now();
        let operations_below = self.standing.operations_below();
        let known = self.own.lock().take().map(Some);
        let mut attempted = None;
        let found = self.recoverer.store.change(&key(id), known, |found| {
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

    /// Reads the other ones of these sessions once, fences those that may be fenced, and recovers those that are: to be
    /// called as [`Recoverer::look`] is.
    ///
    /// A session of which no heartbeat was confirmed for three quarters of another's lease does not take that one for
    /// dead: the server that does not answer it may not answer the other either. It begins anew to count when its own are
    /// confirmed again.
    ///
    /// # Errors
    /// The store's, of the look. One that cannot be cleaned up after keeps none of the others from it.
    pub fn observe(
        &self,
        which: Which<'_>,
        observer: &mut Observer,
        is_gone: &dyn Fn(&Session) -> bool,
        collect: Collect<'_>,
    ) -> Result<Observed, StoreError> {
        let own = self.id();
        observer.unheard_for(self.standing.silent());
        let Census { dead, others } =
            self.recoverer.look(which, observer, &|session| session != own, is_gone)?;
        let mut observed = Observed { others, ..Observed::default() };
        for session in dead {
            match self.recoverer.recover(session.id, collect) {
                Ok(_) => observed.ended.push(session.id),
                Err(error) => drop(observed.failed.get_or_insert(error)),
            }
        }
        Ok(observed)
    }

    /// As [`Recoverer::recover`].
    ///
    /// # Errors
    /// The same.
    pub fn recover(&self, dead: SessionId, collect: Collect<'_>) -> Result<(), StoreError> {
        self.recoverer.recover(dead, collect).map(drop)
    }

    /// What this session cleans up after others with.
    pub fn recoverer(&self) -> &Recoverer {
        &self.recoverer
    }

    /// Ends the session in good order. The caller has let its operations end; what it still starts fails.
    ///
    /// # Errors
    /// The store's: then others do the rest once the lease has run out.
    pub fn leave(&self, collect: Collect<'_>) -> Result<(), StoreError> {
        self.standing.fence();
        self.own.lock().take();
        let id = self.id();
        self.recoverer.store.change(&key(id), None, |found| {
            let next = in_cell(id, found)?.and_then(|session| after(session, SessionEvent::Fence));
            Ok(next.map_or(Decision::Leave, |next| Decision::Write(Some(cell(next, found)))))
        })?;
        self.recover(id, collect)
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Member({:?})", self.standing)
    }
}
