//! Cells over a store that changes several documents at once: for lock documents and sessions. A cell is then the document
//! itself, and never marked.

use std::sync::Arc;

use super::{
    Answers, CasError, Cell, CellKey, Cells, Change, Listed, ListedCell, MarkedDocument, ScannedCell,
    StoredCell,
};
use crate::document::{Document, Key, Kind, Stored, Version};
use crate::store::{Commit, CommitError, Durability, Intents, Range, Scan, Store, StoreError, for_each};

/// So many documents are changed in one commit, where each could be changed by itself: who waits for one of them waits for
/// these and not for all.
const TOGETHER: usize = 24;

/// The documents of a store as cells. There are no slots: nobody needs intents on such a store.
pub struct DocumentCells {
    store: Arc<dyn Store>,
}

impl DocumentCells {
    /// Those of `store`.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store }
    }
}

/// What sessions and locks of a store are changed in: what is under it where it changes one document at a time, else its
/// documents.
pub fn cells_of(store: &Arc<dyn Store>) -> Arc<dyn Cells> {
    store.intents().map_or_else(|| Arc::new(DocumentCells::new(Arc::clone(store))) as _, Intents::cells)
}

fn document_key(key: &CellKey) -> Result<Key, StoreError> {
    match key {
        CellKey::Document(key) => Ok(key.clone()),
        CellKey::Lock(id) => Ok(Key::Lock(Arc::clone(id))),
        CellKey::Slot(..) => Err(StoreError::Engine {
            what: format!("{key:?}"),
            source: "this store has transactions, and no intents".into(),
        }),
    }
}

fn cell(stored: Stored) -> StoredCell {
    let version = stored.version;
    let cell = match &*stored.document {
        Document::Lock(record) => Cell::Lock(record.clone()),
        _ => Cell::Document(MarkedDocument { before: Some(stored), mark: None }),
    };
    StoredCell { version, cell: cell.into() }
}

/// The document in a cell; a cell without one is an absent document.
fn document(cell: Cell) -> Option<Document> {
    match cell {
        Cell::Lock(record) => Some(Document::Lock(record)),
        Cell::Document(marked) => marked.before.map(|stored| Document::clone(&stored.document)),
        Cell::Slot(_) => None,
    }
}

impl Cells for DocumentCells {
    fn read(&self, key: &CellKey) -> Result<Option<StoredCell>, StoreError> {
        Ok(self.store.get(&document_key(key)?)?.map(cell))
    }

    fn read_many(&self, keys: &[CellKey]) -> Result<Vec<Option<StoredCell>>, StoreError> {
        let keys = keys.iter().map(document_key).collect::<Result<Vec<_>, _>>()?;
        Ok(self.store.get_many(&keys)?.into_iter().map(|stored| stored.map(cell)).collect())
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScannedCell>, StoreError> {
        let page = self.store.scan(scan)?;
        Ok(page.into_iter().map(|(key, stored)| (key, stored.map(cell))).collect())
    }

    fn list(&self, what: Listed) -> Result<Vec<ListedCell>, StoreError> {
        let mut listed = Vec::new();
        if what == Listed::Locks {
            for_each::<_, StoreError>(&*self.store, Range::All(Kind::Lock), |key, stored| {
                if let Key::Lock(id) = key {
                    listed.push((CellKey::Lock(id), stored.map(cell)));
                }
                Ok(())
            })?;
        }
        Ok(listed)
    }

    fn cas(&self, key: &CellKey, expected: Option<Version>, cell: Option<Cell>) -> Result<Version, CasError> {
        self.cas_all(&[Change { key: key.clone(), expected, cell, awaited: true }], Durability::Full)
    }

    /// Several at one instant, as far as all of them can be made.
    fn cas_each(&self, changes: &[Change]) -> Answers {
        let alone = |change: &Change| self.cas(&change.key, change.expected, change.cell.clone());
        let mut answers = Vec::with_capacity(changes.len());
        for group in changes.chunks(if self.changes_several() { TOGETHER } else { 1 }) {
            match self.cas_all(group, Durability::Full) {
                Ok(version) => answers.extend(group.iter().map(|_| Ok(version))),
                Err(CasError::Unknown(cause)) => {
                    answers.extend(group.iter().map(|_| Err(CasError::Unknown(cause.clone()))));
                }
                Err(error) if group.len() == 1 => answers.push(Err(error)),
                Err(_) => answers.extend(group.iter().map(alone)),
            }
        }
        answers
    }

    fn changes_several(&self) -> bool {
        self.store.capabilities().one_version
    }

    fn as_commit(&self, changes: &[Change]) -> Option<Commit> {
        if self.changes_several() { commit_of(changes).ok() } else { None }
    }

    fn cas_all(&self, changes: &[Change], durability: Durability) -> Result<Version, CasError> {
        let commit = Commit { durability, ..commit_of(changes)? };
        self.store.commit(&commit).map_err(|error| match error {
            CommitError::Conflict(_) => CasError::Conflict,
            CommitError::Store(StoreError::Unknown(cause)) => CasError::Unknown(cause),
            CommitError::Store(error) => CasError::Store(error),
        })
    }
}

fn commit_of(changes: &[Change]) -> Result<Commit, StoreError> {
    let mut commit = Commit::new();
    commit.unawaited = changes.iter().all(|change| !change.awaited);
    for Change { key, expected, cell, .. } in changes {
        let key = document_key(key)?;
        commit = match expected {
            Some(version) => commit.at(key.clone(), *version),
            None => commit.absent(key.clone()),
        };
        commit = match cell.clone().and_then(document) {
            Some(document) => commit.put(key, document),
            None => commit.delete(key),
        };
    }
    Ok(commit)
}
