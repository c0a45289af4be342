//! Recovery by somebody who has no session: on a volume that many hosts share, from any host, with nothing mounted there.
//!
//! Owns what is told of a session that was cleaned up after. The steps are those of every mount: `lock::session` takes them,
//! and [`collect_of`](super::collect_of) collects.

use std::sync::Arc;

use serde::Serialize;

use super::{alive, collect_of, drop_locks, sessions_of};
use crate::ambient::{self, Clock, SystemClock};
use crate::content::Contents;
use crate::document::{Document, Key, Kind, Session, SessionId, SessionState, Volume};
use crate::lock::redlock::{self, Redlock, Settings as RedlockSettings};
use crate::lock::session::{Census, Observer, Recoverer, Standing, Swept, Which};
use crate::lock::shared::{Settings as LockSettings, lock_documents};
use crate::lock::{LockDocument, LockError, OperationDocument, operations_of};
use crate::namespace::collect::Collector;
use crate::namespace::{DEFAULT_LEASE, Result};
use crate::store::cells::Cells;
use crate::store::cells::documents::cells_of;
use crate::store::redis::servers::Servers;
use crate::store::{Commit, Range, Store, StoreError, for_each};

/// Whoever recovers the sessions of a shared volume, and has none there.
pub struct Outsider {
    store: Arc<dyn Store>,
    volume: String,
    cells: Arc<dyn Cells>,
    contents: Contents,
    collector: Collector,
    recoverer: Recoverer,
    redlock: Option<Redlock>,
    boot_id: String,
}

/// What a look has found.
#[derive(Debug)]
pub struct Looked {
    /// The sessions that are dead, as they were read before this look fenced them; they are to be recovered.
    pub dead: Vec<Session>,
    /// Those that may live.
    pub others: Vec<Session>,
}

/// A session that was cleaned up after.
#[derive(Clone, Debug, Serialize)]
pub struct Recovered {
    /// As it was found.
    pub session: Session,
    /// Others had declared it dead before.
    pub before: bool,
    /// Commits of its that had been decided, and were completed. Engines that commit at once leave none.
    pub rolled_forward: u32,
    /// Commits of its that had not been decided, and were undone. Engines that commit at once leave none.
    pub aborted: u32,
    /// Its operations that held tree locks, which are released, or waited for them. None can be told if the locks are on
    /// servers of their own of which no majority answers: then they end by themselves.
    pub operations: Option<Vec<OperationDocument>>,
    /// How many advisory locks of its are released.
    pub advisory_locks: u64,
    /// How many files are removed that it had open and that have no name.
    pub files: u64,
    /// How many objects are removed that it had put into an object store and that nothing names.
    pub objects: u64,
}

impl Outsider {
    /// For the volume in `store`, whose locks are on `lock_servers`, if any are named. `boot_id` is of this host, whose own
    /// dead are known at once.
    ///
    /// # Errors
    /// When there is no room for a thread.
    pub fn new(
        store: Arc<dyn Store>,
        volume: &Volume,
        contents: impl Into<Contents>,
        lock_servers: Option<Arc<Servers>>,
        boot_id: String,
    ) -> Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let cells = cells_of(&store);
        let seed = ambient::random_u64();
        let redlock = lock_servers.map(|servers| {
            // Nothing is ever locked by it.
            let standing = Standing::new(SessionId(seed), DEFAULT_LEASE, Arc::clone(&clock), clock.now());
            let settings = RedlockSettings::of_lease(DEFAULT_LEASE);
            Redlock::new(servers, &volume.id, Arc::clone(&clock), Arc::new(standing), settings)
        });
        let contents = contents.into();
        Ok(Self {
            collector: Collector::start(Arc::clone(&store), contents.clone())?,
            contents,
            recoverer: Recoverer::new(Arc::clone(&cells), clock, seed),
            volume: volume.id.clone(),
            store,
            cells,
            redlock,
            boot_id,
        })
    }

    /// All sessions.
    ///
    /// # Errors
    /// The store's.
    pub fn sessions(&self) -> Result<Vec<Session>> {
        Ok(self.recoverer.sessions()?.into_iter().map(|(session, _)| session).collect())
    }

    /// The lock documents of this moment, in the global order; one that is damaged is an error of its own.
    ///
    /// # Errors
    /// The store's; [`LockError::NoMajority`].
    pub fn locks(&self) -> std::result::Result<Vec<std::result::Result<LockDocument, LockError>>, LockError> {
        match &self.redlock {
            Some(redlock) => redlock::lock_documents(redlock.servers(), &self.volume),
            None => lock_documents(&*self.cells, LockSettings::default().id_bytes_max),
        }
    }

    /// Reads all sessions, or the one that is named, and fences those that may be: whose heartbeat has stood still for a
    /// lease in the eyes of `observer`, or whose process was of this host and is gone. To be called again, four times a
    /// lease or more often, with the same `observer`.
    ///
    /// # Errors
    /// The store's.
    pub fn look(&self, observer: &mut Observer, only: Option<SessionId>) -> Result<Looked> {
        let concerned = |session: SessionId| only.is_none_or(|only| only == session);
        let is_gone = |session: &Session| alive::is_gone(session, &self.boot_id);
        let Census { dead, others } = self.recoverer.look(Which::All, observer, &concerned, &is_gone)?;
        Ok(Looked { dead, others })
    }

    /// Cleans up after commits that named no session and were cut short, once they have stood still for a lease in the eyes
    /// of `observer`: to be called as [`Self::look`] is, until none is left of those that were at first.
    ///
    /// # Errors
    /// The store's.
    pub fn sweep_intents(&self, observer: &mut Observer) -> Result<Swept> {
        match self.store.intents() {
            Some(_) => Ok(self.recoverer.sweep_slots(observer, DEFAULT_LEASE)?),
            None => Ok(Swept::default()),
        }
    }

    /// Declares a session dead, whatever it says of itself, and cleans up after it: see [`Self::recover`].
    ///
    /// # Errors
    /// The store's; whoever sees the session next goes on with it.
    pub fn fence(&self, session: &Session) -> Result<Recovered> {
        self.recoverer.fence_by_force(session.id)?;
        self.recover(session)
    }

    /// How the document of a session is damaged, if it is.
    ///
    /// # Errors
    /// The store's.
    pub fn damage(&self, session: SessionId) -> Result<Option<StoreError>> {
        match self.store.get(&Key::Session(session)) {
            Ok(_) => Ok(None),
            Err(damaged @ StoreError::Damaged { .. }) => Ok(Some(damaged)),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes the document of a session that cannot be read. Without one the session changes nothing any more, and what it
    /// claims is nobody's: the mounts of the volume take that away.
    ///
    /// # Errors
    /// The store's.
    pub fn discard(&self, session: SessionId) -> Result<()> {
        self.store.commit(&Commit::new().delete(Key::Session(session)))?;
        Ok(self.store.sync()?)
    }

    /// Cleans up after a session that is dead, as it was read before it was fenced. When this has returned nothing of it is
    /// left, and its locks are free.
    ///
    /// # Errors
    /// The store's; whoever sees the session next goes on with it.
    pub fn recover(&self, session: &Session) -> Result<Recovered> {
        let dead = session.id;
        // It is fenced, so it takes nothing more: what is found here is what is let go.
        let operations = self.operations_of(dead)?;
        let (advisory_locks, files) = (self.advisory_locks_of(dead)?, self.files_of(dead)?);
        let settled =
            self.recoverer.recover(dead, &|dead| collect_of(&*self.store, &self.collector, dead))?;
        drop_locks(self.redlock.as_ref(), dead);
        let objects = self.contents.collect_of(dead).unwrap_or_else(|error| {
            log::warn!("what session {dead} left in the object store stays there: {error}");
            0
        });
        self.store.sync()?;
        alive::forget(dead);
        Ok(Recovered {
            session: session.clone(),
            before: matches!(session.state, SessionState::Fenced | SessionState::Recovered),
            rolled_forward: settled.rolled_forward,
            aborted: settled.aborted,
            operations,
            advisory_locks,
            files,
            objects,
        })
    }

    fn operations_of(&self, dead: SessionId) -> Result<Option<Vec<OperationDocument>>> {
        let all = match self.locks() {
            Err(LockError::NoMajority { .. }) => return Ok(None),
            all => all?,
        };
        // One that cannot be read is left to `lockwood check`.
        let readable: Vec<LockDocument> = all.into_iter().filter_map(|document| document.ok()).collect();
        let own = operations_of(&readable).into_iter().filter(|operation| operation.session == dead);
        Ok(Some(own.collect()))
    }

    fn advisory_locks_of(&self, dead: SessionId) -> Result<u64> {
        self.count(Kind::Advisory, |document| match document {
            Document::Advisory(record) => record.locks.iter().filter(|lock| lock.session == dead).count(),
            _ => 0,
        })
    }

    fn files_of(&self, dead: SessionId) -> Result<u64> {
        self.count(Kind::Orphan, |document| {
            usize::from(matches!(document, Document::Orphan(orphan) if orphan.session == dead))
        })
    }

    fn count(&self, kind: Kind, of: impl Fn(&Document) -> usize) -> Result<u64> {
        let mut sum = 0;
        for_each::<_, StoreError>(&*self.store, Range::All(kind), |_, stored| {
            sum += stored.map_or(0, |stored| of(&stored.document)) as u64;
            Ok(())
        })?;
        Ok(sum)
    }
}

/// The servers that the sessions of a volume say they keep their locks on; none if that is with the tree, or if there is no
/// session. All that are at work say the same; what the dead say counts where none is.
///
/// # Errors
/// The store's.
pub fn lock_servers(store: &dyn Store) -> Result<Option<String>> {
    let mut sessions = sessions_of(store)?;
    sessions.sort_by_key(|session| session.state != SessionState::Live);
    Ok(sessions.into_iter().find_map(|session| session.locks))
}
