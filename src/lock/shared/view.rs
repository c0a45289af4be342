//! Lock documents of a shared store as people see them: the same form as those of an embedded one.
//!
//! Imports [`LockDocument`] and the records.

use super::SharedLocks;
use super::claims::in_cell;
use crate::document::{LockClaim, LockRecord};
use crate::lock::{
    HolderEntry, LockDocument, LockError, LockId, Mode, OperationEntry, Timestamp, WaiterEntry,
};
use crate::store::cells::{CellKey, Cells, Listed, ListedCell, StoredCell};

impl SharedLocks {
    /// The lock documents, in the global order; each as it was at some instant. One that is damaged is an error of its own.
    ///
    /// # Errors
    /// The store's.
    pub fn documents(&self) -> Result<Vec<Result<LockDocument, LockError>>, LockError> {
        Ok(describe_all(self.list()?, self.settings.id_bytes_max))
    }

    /// The lock document of one path; `None` if nobody holds it.
    ///
    /// # Errors
    /// The store's; [`LockError::Damaged`].
    pub fn document(&self, id: &LockId) -> Result<Option<LockDocument>, LockError> {
        let key = CellKey::Lock(id.document_id(self.settings.id_bytes_max).into());
        let found = self.store.read(&key)?;
        found.map(|found| describe(&key, &found, self.settings.id_bytes_max)).transpose()
    }

    pub(super) fn list(&self) -> Result<Vec<ListedCell>, LockError> {
        Ok(self.store.insist(|| self.store.cells.list(Listed::Locks))?)
    }
}

/// The lock documents of a store, for who has no session there; else as [`SharedLocks::documents`].
///
/// # Errors
/// The store's.
pub fn lock_documents(
    cells: &dyn Cells,
    id_bytes_max: usize,
) -> Result<Vec<Result<LockDocument, LockError>>, LockError> {
    Ok(describe_all(cells.list(Listed::Locks)?, id_bytes_max))
}

fn describe_all(cells: Vec<ListedCell>, id_bytes_max: usize) -> Vec<Result<LockDocument, LockError>> {
    let documents = cells.into_iter().map(|(key, found)| describe(&key, &found?, id_bytes_max));
    let mut documents: Vec<_> = documents.collect();
    documents.sort_by_cached_key(|document| document.as_ref().ok().map(|document| document.id.clone()));
    documents
}

/// The path of a lock document, which its id must belong to.
///
/// # Errors
/// [`LockError::Damaged`].
pub(super) fn id_of(key: &CellKey, record: &LockRecord, id_bytes_max: usize) -> Result<LockId, LockError> {
    let CellKey::Lock(id) = key else {
        return Err(LockError::Damaged { id: format!("{key:?}"), reason: "it is no lock".to_owned() });
    };
    let damaged = |reason: String| LockError::Damaged { id: id.escape_debug().to_string(), reason };
    let path = LockId::from_path(&record.path).map_err(|error| damaged(error.to_string()))?;
    let expected = path.document_id(id_bytes_max);
    if expected != **id {
        return Err(damaged(format!("it has the path {path}, whose id is {expected}")));
    }
    Ok(path)
}

fn describe(key: &CellKey, found: &StoredCell, id_bytes_max: usize) -> Result<LockDocument, LockError> {
    let missing = || LockError::Damaged { id: format!("{key:?}"), reason: "it is no lock".to_owned() };
    let record = in_cell(key, Some(found))?.ok_or_else(missing)?;
    let id = id_of(key, record, id_bytes_max)?;
    let mut holders: Vec<&LockClaim> = record.holders.iter().collect();
    holders.sort_by_key(|claim| super::record::op_of(claim));
    let of_sessions = holders.chunk_by(|one, next| one.session == next.session);
    let holder_entries = of_sessions.filter_map(|claims| {
        let operation = |claim: &&LockClaim| OperationEntry {
            op: claim.operation,
            since: since(claim),
            operation: claim.purpose.to_string(),
        };
        Some(HolderEntry {
            session: claims.first()?.session,
            count: claims.len() as u64,
            since: claims.iter().map(|claim| since(claim)).min()?,
            operations: claims.iter().map(operation).collect(),
        })
    });
    let waiter = |claim: &LockClaim| WaiterEntry {
        session: claim.session,
        op: claim.operation,
        lock_type: claim.mode,
        since: since(claim),
        operation: claim.purpose.to_string(),
    };
    Ok(LockDocument {
        path: id.to_string(),
        id,
        lock_type: record.holders.iter().map(|claim| claim.mode).max().unwrap_or(Mode::Shared),
        lock_count: record.holders.len() as u64,
        holders: holder_entries.collect(),
        waiters: record.waiters.iter().map(waiter).collect(),
    })
}

fn since(claim: &LockClaim) -> Timestamp {
    Timestamp { unix_ms: claim.since_ns / 1_000_000 }
}
