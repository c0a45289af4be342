//! The three providers as one: the table of a store that one process owns, the lock documents of a shared one, and the locks
//! of a shared one that are kept on servers of their own.
//!
//! Owns nothing but the choice. What differs for the callers: locks that are documents can fail as the store does, and an
//! operation that will not know what became of its commit leaves them behind ([`LockGuard::abandon`]); and operations of
//! other hosts cannot be fenced one by one, only with their session. And locks on servers of their own end by themselves, so
//! whoever holds them may have lost them without knowing.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{
    Broken, ClaimEntry, Counters, Guard, LockDocument, LockError, LockId, LockTable, OpId, OperationDocument,
    Redlock, RedlockGuard, Request, SessionId, SharedGuard, SharedLocks, Wait,
};
use crate::ambient;
use crate::store::Commit;
use crate::store::cells::Along;
use crate::store::redis::servers::Servers;

/// Where the locks of a mount are.
#[derive(Clone, Debug)]
pub enum Locks {
    /// In this process, which owns the store.
    Table(LockTable),
    /// In documents of a store that others use as well.
    Documents(SharedLocks),
    /// On servers of their own.
    Redlock(Redlock),
}

/// The locks of one operation, held until this is dropped.
#[must_use = "the locks are released when the guard is dropped"]
#[derive(Debug)]
pub enum LockGuard {
    /// See [`Locks::Table`].
    Table(Guard),
    /// See [`Locks::Documents`].
    Documents(SharedGuard),
    /// See [`Locks::Redlock`].
    Redlock(RedlockGuard),
}

impl Locks {
    /// Takes all locks of the request at once, or none. Waits for nobody.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`] with the first lock that was not free; others as [`Locks::acquire`].
    pub fn try_acquire(&self, request: Request) -> Result<LockGuard, LockError> {
        self.try_acquire_along(request, None)
    }

    /// The same, by a request to the store that is to be sent anyway, if there is one: where the locks are documents of it,
    /// each changed by itself.
    ///
    /// # Errors
    /// As [`Locks::try_acquire`].
    pub fn try_acquire_along(
        &self,
        request: Request,
        along: Option<Along<'_>>,
    ) -> Result<LockGuard, LockError> {
        match self {
            Self::Table(table) => table.try_acquire(request).map(LockGuard::Table),
            Self::Documents(locks) => {
                locks.try_acquire_along(&request.set, request.operation, along).map(LockGuard::Documents)
            }
            Self::Redlock(locks) => {
                locks.try_acquire(&request.set, &request.operation).map(LockGuard::Redlock)
            }
        }
    }

    /// Takes all locks of the request, and blocks the calling thread until it has them, at the longest until the deadline,
    /// or until the caller gives up.
    ///
    /// # Errors
    /// [`LockError::TimedOut`] with the lock that was waited for and who held it; [`LockError::Interrupted`];
    /// [`LockError::Closed`]; [`LockError::SessionDropped`]; [`LockError::Revoked`]; [`LockError::NoMajority`];
    /// [`LockError::Store`]. With any of them, nothing is held.
    pub fn acquire<'a>(&self, request: Request, wait: impl Into<Wait<'a>>) -> Result<LockGuard, LockError> {
        let wait = wait.into();
        let Request { set, operation, .. } = &request;
        match self {
            Self::Table(table) => table.acquire(request, wait).map(LockGuard::Table),
            Self::Documents(locks) => {
                let wait = wait.since(ambient::monotonic());
                locks.acquire(set, Arc::clone(operation), wait).map(LockGuard::Documents)
            }
            Self::Redlock(locks) => {
                let wait = wait.since(ambient::monotonic());
                locks.acquire(set, operation, wait).map(LockGuard::Redlock)
            }
        }
    }

    /// Whether a commit is to be prepared while its locks are being taken: where taking them costs a request, and nobody was
    /// met at those that were asked for last.
    pub fn may_be_taken_beside(&self) -> bool {
        match self {
            Self::Documents(locks) => !locks.expects_others(),
            Self::Table(_) | Self::Redlock(_) => false,
        }
    }

    /// Grants a session of this process nothing any more: ends its waits, and its later requests too.
    pub fn close_session(&self, session: SessionId) {
        match self {
            Self::Table(table) => table.close_session(session),
            Self::Documents(locks) => locks.close(),
            Self::Redlock(locks) => locks.close(),
        }
    }

    /// The lock documents of this moment, in the global order. Damaged ones are left out, and logged.
    ///
    /// # Errors
    /// The store's.
    pub fn documents(&self) -> Result<Vec<LockDocument>, LockError> {
        let documents = match self {
            Self::Table(table) => return Ok(table.documents()),
            Self::Documents(locks) => locks.documents()?,
            Self::Redlock(locks) => locks.documents()?,
        };
        let readable = |document: Result<LockDocument, LockError>| {
            document.inspect_err(|error| log::error!("{error}")).ok()
        };
        Ok(documents.into_iter().filter_map(readable).collect())
    }

    /// The lock document of one path; `None` if nobody holds it.
    ///
    /// # Errors
    /// The store's; [`LockError::Damaged`].
    pub fn document(&self, id: &LockId) -> Result<Option<LockDocument>, LockError> {
        match self {
            Self::Table(table) => Ok(table.document(id)),
            Self::Documents(locks) => locks.document(id),
            Self::Redlock(locks) => locks.document(id),
        }
    }

    /// The operations that hold or wait at this moment, in the order of their ids.
    ///
    /// # Errors
    /// The store's.
    pub fn operations(&self) -> Result<Vec<OperationDocument>, LockError> {
        match self {
            Self::Table(table) => Ok(table.operations()),
            Self::Documents(_) | Self::Redlock(_) => Ok(operations_of(&self.documents()?)),
        }
    }

    /// What has been done so far, by this process.
    pub fn counters(&self) -> Counters {
        match self {
            Self::Table(table) => table.counters(),
            Self::Documents(locks) => locks.counters(),
            Self::Redlock(locks) => locks.counters(),
        }
    }

    /// Breaks one operation of this process: see [`LockTable::revoke`]. `None` if it is not there any more, or if its locks
    /// are documents or elsewhere: then its session is what can be fenced.
    pub fn revoke(&self, op: OpId, by: &Arc<str>) -> Option<Broken> {
        match self {
            Self::Table(table) => table.revoke(op, by),
            Self::Documents(_) | Self::Redlock(_) => None,
        }
    }

    /// Where the locks are, if that is not with the tree.
    pub fn servers(&self) -> Option<&Arc<Servers>> {
        match self {
            Self::Table(_) | Self::Documents(_) => None,
            Self::Redlock(locks) => Some(locks.servers()),
        }
    }

    /// Whether a lock that was granted is held until it is released, whatever happens to its holder: only then may a
    /// commit to a store that changes one document at a time rely on locks for what it checks. Locks that end by
    /// themselves are for isolation alone.
    pub fn cover_checks(&self) -> bool {
        !matches!(self, Self::Redlock(_))
    }
}

impl LockGuard {
    /// Which operation holds the locks.
    pub fn op(&self) -> OpId {
        match self {
            Self::Table(guard) => guard.op(),
            Self::Documents(guard) => guard.op(),
            Self::Redlock(guard) => guard.op(),
        }
    }

    /// Makes the change that the locks were taken for. While it runs they are not broken; once they have been, it does
    /// not run. To be called once.
    ///
    /// # Errors
    /// [`LockError::Revoked`] and [`LockError::Lapsed`], and nothing was done; else the change's own.
    pub fn while_held<T, E: From<LockError>>(&self, change: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        match self {
            Self::Table(guard) => guard.while_held(change),
            // Who breaks locks that are documents fences the session first; then the store refuses the change.
            Self::Documents(_) => change(),
            // They may end between this look and the change, which therefore checks all that it rests on.
            Self::Redlock(guard) => match guard.lost() {
                Some(lost) => Err(lost.into()),
                None => change(),
            },
        }
    }

    /// Says that nothing will be changed under these locks: they are held for somebody outside.
    pub fn hold_only(&self) {
        if let Self::Table(guard) = self {
            guard.hold_only();
        }
    }

    /// Why the locks are held no more; `None` while they are.
    pub fn lost(&self) -> Option<LockError> {
        match self {
            Self::Table(guard) => guard.lost(),
            Self::Documents(guard) => guard.lost(),
            Self::Redlock(guard) => guard.lost(),
        }
    }

    /// What asks the store whether it has the locks still, if they are documents of one that others use: see
    /// [`SharedGuard::look`]. For those who hold them without a commit that would find out.
    pub fn look(&self) -> Option<impl FnOnce() -> Result<Option<LockError>, LockError> + Send + use<>> {
        match self {
            Self::Documents(guard) => Some(guard.look()),
            Self::Table(_) | Self::Redlock(_) => None,
        }
    }

    /// What releases the locks, for the commit of the change that they were taken for: so one request does both. None if
    /// they are no documents of the store that is changed, and if others are likely to have come meanwhile. Whoever makes
    /// the commit says how it ended: [`LockGuard::released`], or [`LockGuard::met_others`] if it conflicts in a lock.
    pub fn release_along(&self) -> Option<Commit> {
        match self {
            Self::Documents(guard) => guard.release_along(),
            Self::Table(_) | Self::Redlock(_) => None,
        }
    }

    /// Notes that the commit with the release was made.
    pub fn released(&self) {
        if let Self::Documents(guard) = self {
            guard.released();
        }
    }

    /// The commit with the release was refused, since a lock document has changed. Whether the locks are held still.
    ///
    /// # Errors
    /// The store's.
    pub fn met_others(&self) -> Result<bool, LockError> {
        match self {
            Self::Documents(guard) => guard.met_others(),
            Self::Table(_) | Self::Redlock(_) => Ok(true),
        }
    }

    /// Releases the locks. Whoever starts over after this must look at the result.
    ///
    /// # Errors
    /// [`LockError::Revoked`]: somebody broke them, and was told that the operation changes nothing any more.
    /// [`LockError::Lapsed`]: they were somebody else's already, perhaps.
    pub fn release(self) -> Result<(), LockError> {
        match self {
            Self::Table(guard) => guard.release(),
            Self::Documents(guard) => {
                drop(guard);
                Ok(())
            }
            Self::Redlock(guard) => guard.lost().map_or(Ok(()), Err),
        }
    }

    /// Leaves the locks where they are until the session has ended, if they are documents, or until they end by themselves:
    /// for an operation that will not know what became of its change.
    pub fn abandon(self) {
        match self {
            Self::Table(_) => {}
            Self::Documents(guard) => guard.abandon(),
            Self::Redlock(guard) => guard.abandon(),
        }
    }
}

/// The operations that lock documents tell of.
pub fn operations_of(documents: &[LockDocument]) -> Vec<OperationDocument> {
    let mut operations: BTreeMap<OpId, OperationDocument> = BTreeMap::new();
    for document in documents {
        let holders = document.holders.iter().flat_map(|holder| {
            holder.operations.iter().map(|o| (holder.session, o.op, o.since, &o.operation, None))
        });
        let waiters =
            document.waiters.iter().map(|w| (w.session, w.op, w.since, &w.operation, Some(w.lock_type)));
        for (session, op, since, text, waits) in holders.chain(waiters) {
            let lock_type = waits.unwrap_or(document.lock_type);
            let claim = ClaimEntry { id: document.id.clone(), lock_type };
            let found = operations.entry(OpId { session, number: op }).or_insert_with(|| OperationDocument {
                session,
                op,
                operation: text.clone(),
                since,
                holds: Vec::new(),
                waits_for: None,
            });
            found.since = found.since.min(since);
            match waits {
                None => found.holds.push(claim),
                Some(_) => found.waits_for = Some(claim),
            }
        }
    }
    operations.into_values().collect()
}
