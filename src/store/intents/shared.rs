//! A store over cells as a whole process uses it: with the sessions of its mounts, and without any.
//!
//! Owns which session's intents a commit is made with. Imports the port, the cells' port, `ambient` and `later`.
//!
//! What is hard: a commit that names no session (a collector's, a recoverer's) has no intents either, and needs one. It is
//! made for this commit, under an id that no session has, and taken away behind it. A process that is killed in between
//! leaves it, for the `sweep_slots` of `lock::session` to find. Nobody declares that id dead before it has stood still for a
//! lease, and then the commit is made again: so it is not fenced, as on every engine. And whoever finds its intent pending
//! for too long aborts it, as everybody's.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::known::Known;
use super::{IntentStore, create_slots, is_settled, settle};
use crate::ambient::{self, Clock};
use crate::document::{Key, SessionId, Stored, Version};
use crate::later::{Background, Inline, Later};
use crate::store::cells::{CasError, CellKey, Cells};
use crate::store::counts::Counts;
use crate::store::stopped::Stopped;
use crate::store::{
    Capabilities, Commit, CommitError, Granting, Intents, Outages, Reader, Scan, ScanItem, Store,
    StoreCounters, StoreError,
};

/// So many commits of a session are under way at once; further ones wait. Each has to be settled when the session has died.
const SLOTS: u16 = 8;

/// So often a commit of nobody is made, each time under another id, if others take it for dead.
const TRIES: u32 = 3;

/// A store over cells.
pub struct SharedIntents<C: Remote + 'static> {
    cells: Arc<C>,
    clock: Arc<dyn Clock>,
    /// Where the commits of sessions are cleaned up.
    later: Arc<dyn Later>,
    /// Reads for everybody: that needs no session.
    reader: IntentStore<C>,
    known: Arc<Known>,
    sessions: RwLock<HashMap<SessionId, Arc<IntentStore<C>>>>,
    /// Ids of nobody whose intents could not be taken away, as the store was away or their commits were not cleaned up.
    left: Mutex<Vec<SessionId>>,
    stopped: Stopped,
    /// Of commits; of reads it is the reader's.
    counts: Counts,
}

/// What an engine over cells says of itself beside its cells.
pub trait Remote: Cells {
    /// What its requests have met.
    fn outages(&self) -> Option<&Outages>;
}

impl<C: Remote + 'static> SharedIntents<C> {
    /// The store over these cells.
    pub fn new(cells: Arc<C>, clock: Arc<dyn Clock>) -> Self {
        let known = Known::new();
        let reader = IntentStore::new(Arc::clone(&cells), Arc::clone(&clock), SessionId(0), Vec::new())
            .remembering(&known);
        let later = match Background::new("clean-up", SLOTS.into()) {
            Ok(background) => Arc::new(background) as Arc<dyn Later>,
            Err(error) => {
                log::warn!("commits return only when they are cleaned up: no thread for that: {error}");
                Arc::new(Inline)
            }
        };
        Self {
            cells,
            clock,
            later,
            reader,
            known,
            sessions: RwLock::default(),
            left: Mutex::default(),
            stopped: Stopped::default(),
            counts: Counts::default(),
        }
    }

    fn try_commit(
        &self,
        commit: &Commit,
        granting: Option<Granting<'_>>,
    ) -> Result<Option<Version>, CommitError> {
        self.stopped.refuse()?;
        let Some(session) = commit.session else {
            let granted = granting.is_none_or(|granting| granting(None));
            return if granted { self.commit_of_nobody(commit).map(Some) } else { Ok(None) };
        };
        let found = self.sessions.read().get(&session).cloned();
        let store = found.ok_or(StoreError::Fenced)?;
        match granting {
            None => store.commit(commit).map(Some),
            Some(granting) => store.commit_once(commit, granting),
        }
    }

    /// Two requests more than a commit of a session; these are few.
    fn commit_of_nobody(&self, commit: &Commit) -> Result<Version, CommitError> {
        self.take_left_back();
        for _ in 0..TRIES {
            match self.commit_under(SessionId(ambient::random_u64()), commit) {
                // Somebody has taken it for dead, and so it has changed nothing.
                Err(CommitError::Store(StoreError::Fenced)) => {}
                outcome => return outcome,
            }
        }
        Err(StoreError::Engine {
            what: "a commit that names no session".into(),
            source: "it stood still for longer than a lease, again and again".into(),
        }
        .into())
    }

    fn commit_under(&self, id: SessionId, commit: &Commit) -> Result<Version, CommitError> {
        let slots = create_slots(&self.cells, &self.clock, id, 1)?;
        let author = IntentStore::new(Arc::clone(&self.cells), Arc::clone(&self.clock), id, slots)
            .remembering(&self.known);
        let outcome = author.commit(commit);
        // One that has failed may have left its intent in any state. A store that is away is not waited for.
        let unused = author.unused_slot().filter(|_| self.outage().is_none());
        let taken = unused.map(|version| self.cells.cas(&CellKey::Slot(id, 0), Some(version), None));
        if !matches!(taken, Some(Ok(_) | Err(CasError::Conflict))) {
            self.left.lock().push(id);
        }
        outcome
    }

    /// Settles and takes away what commits of nobody have left, once the store is there.
    fn take_left_back(&self) {
        if self.left.lock().is_empty() || self.outage().is_some() {
            return;
        }
        let left = std::mem::take(&mut *self.left.lock());
        for id in left {
            if let Err(error) = self.take_back(id) {
                log::debug!("an intent of nobody is left for now, and does no harm: {error}");
                self.left.lock().push(id);
            }
        }
    }

    /// As a recoverer does with those of a dead session: nothing can be committed by them any more, and no mark is left.
    fn take_back(&self, id: SessionId) -> Result<(), StoreError> {
        settle(&self.cells, &self.clock, id, 1)?;
        let key = CellKey::Slot(id, 0);
        let Some(found) = self.cells.read(&key)? else { return Ok(()) };
        if !is_settled(&found) {
            return Err(StoreError::Engine {
                what: format!("deleting {key:?}"),
                source: "it is in use".into(),
            });
        }
        match self.cells.cas(&key, Some(found.version), None) {
            Err(CasError::Store(error)) => Err(error),
            _ => Ok(()),
        }
    }
}

impl<C: Remote + 'static> Intents for SharedIntents<C> {
    fn cells(&self) -> Arc<dyn Cells> {
        Arc::clone(&self.cells) as Arc<dyn Cells>
    }

    fn per_session(&self) -> u16 {
        SLOTS
    }

    fn begin(&self, session: SessionId) -> Result<(), StoreError> {
        let slots = create_slots(&self.cells, &self.clock, session, SLOTS)?;
        let store = IntentStore::new(Arc::clone(&self.cells), Arc::clone(&self.clock), session, slots)
            .remembering(&self.known)
            .cleaning_up(Arc::clone(&self.later));
        self.sessions.write().insert(session, Arc::new(store));
        Ok(())
    }

    fn later(&self) -> Arc<dyn Later> {
        Arc::clone(&self.later)
    }

    fn end(&self, session: SessionId) {
        if let Some(store) = self.sessions.write().remove(&session) {
            store.fence();
        }
        self.take_left_back();
    }
}

impl<C: Remote + 'static> Reader for SharedIntents<C> {
    fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        self.reader.get(key)
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Stored>>, StoreError> {
        self.reader.get_many(keys)
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        self.reader.scan(scan)
    }

    fn scan_keys(&self, scan: &Scan) -> Result<Vec<Key>, StoreError> {
        self.reader.scan_keys(scan)
    }
}

impl<C: Remote + 'static> Store for SharedIntents<C> {
    /// The version returned is the greatest that a written document got: each has its own.
    fn commit(&self, commit: &Commit) -> Result<Version, CommitError> {
        let outcome = self.try_commit(commit, None);
        self.counts.committed_if_granted(commit, &outcome);
        Ok(outcome?.unwrap_or_default())
    }

    fn commit_once(&self, commit: &Commit, granting: Granting<'_>) -> Result<Option<Version>, CommitError> {
        let outcome = self.try_commit(commit, Some(granting));
        self.counts.committed_if_granted(commit, &outcome);
        outcome
    }

    /// A change has been made when the engine has answered; that it survives a power cut then is the engine's part.
    fn sync(&self) -> Result<(), StoreError> {
        self.stopped.refuse()?;
        self.counts.synced();
        Ok(())
    }

    fn stop(&self, cause: &str) {
        self.stopped.stop(cause);
    }

    fn outages(&self) -> Option<&Outages> {
        self.cells.outages()
    }

    fn intents(&self) -> Option<&dyn Intents> {
        Some(self)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { snapshots: false, one_version: false, shared: true, notices: false }
    }

    fn snapshot(&self) -> Box<dyn Reader + '_> {
        Box::new(self)
    }

    fn counters(&self) -> StoreCounters {
        let StoreCounters { gets, fetches, scans, .. } = self.reader.counters();
        StoreCounters { gets, fetches, scans, ..self.counts.now() }
    }
}
