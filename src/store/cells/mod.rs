//! The port of engines that change one document at a time: get, scan, and compare-and-set of one cell.
//!
//! What stands here under a key is a [`Cell`]: a document with what the protocols over such engines need beside it. The
//! intents that make [`Store::commit`](crate::store::Store::commit) out of single compare-and-sets are built on this port,
//! and so are lock documents and sessions on these engines. Imports `document`.
//!
//! What is hard: every call may fail with an unknown outcome, arrive late, or arrive twice. So every write is a
//! compare-and-set on a version that no other write of that key ever has, and whoever gets
//! [`CasError::Unknown`] reads again before deciding anything.

pub mod documents;
pub mod memory;

use std::iter;
use std::sync::Arc;

use crate::document::{Key, LockRecord, Mark, SessionId, Slot, Stored, Version};
use crate::store::{Commit, Durability, Scan, StoreError};

/// Which cell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CellKey {
    /// A document of the volume, sessions included.
    Document(Key),
    /// An intent: one of the slots that a session made when it joined.
    Slot(SessionId, u16),
    /// A lock document, by its id.
    Lock(Arc<str>),
}

/// What stands under a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cell {
    /// A document, or the place of one that is about to be made, with the mark of the intent that is changing it.
    Document(MarkedDocument),
    /// An intent.
    Slot(Slot),
    /// A lock document.
    Lock(LockRecord),
}

/// A document and the mark of an intent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MarkedDocument {
    /// What stands here as long as the mark's intent is not committed, with the version that checks compare; none if there
    /// is no such document yet.
    pub before: Option<Stored>,
    /// The intent that is changing it.
    pub mark: Option<Mark>,
}

#[cfg(test)]
impl MarkedDocument {
    /// The same with this one in the place of each document, as [`Cells::scan_outlines`] may give it.
    pub fn outline(&self, any: &crate::document::Document) -> Self {
        use crate::document::MarkChange;
        let before = self.before.as_ref();
        let before =
            before.map(|Stored { version, .. }| Stored { version: *version, document: any.clone().into() });
        let mark = self.mark.as_ref().map(|Mark { intent, change }| Mark {
            intent: *intent,
            change: match change {
                MarkChange::Put(_) => MarkChange::Put(Box::new(any.clone())),
                other => other.clone(),
            },
        });
        Self { before, mark }
    }
}

/// A cell with the version that compare-and-set compares: it grows at every write of the cell, and no two writes of one
/// key ever have the same, not even with a deletion between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCell {
    /// The version of the cell, which is not that of the document in it.
    pub version: Version,
    /// What was written.
    pub cell: Arc<Cell>,
}

/// One of a page, or how it is damaged.
pub type ScannedCell = (Key, Result<StoredCell, StoreError>);

/// One of those that are listed, or how it is damaged.
pub type ListedCell = (CellKey, Result<StoredCell, StoreError>);

/// What was found under a key, or how it is damaged.
pub type Looked = Result<Option<StoredCell>, StoreError>;

/// What was read of several cells.
pub type Found = Result<Vec<Option<StoredCell>>, StoreError>;

/// Why a compare-and-set is not known to have taken effect.
#[derive(Debug, thiserror::Error)]
pub enum CasError {
    /// The cell is not at the expected version: nothing was changed.
    #[error("the cell has changed meanwhile")]
    Conflict,
    /// No answer came: the change may have been made, may still be made, or may never be.
    #[error("no answer came: {0}")]
    Unknown(String),
    /// The engine refused: nothing was changed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A store whose only change is that of one cell.
pub trait Cells: Send + Sync {
    /// The cell under `key`, as it is at some instant between call and return. An engine whose servers replace each other
    /// may show a write that nobody has been answered yet, and lose it with the server that showed it.
    ///
    /// # Errors
    /// As the engine fails; to ask again is harmless.
    fn read(&self, key: &CellKey) -> Result<Option<StoredCell>, StoreError>;

    /// Several cells, each as it is at some instant between call and return: not a snapshot.
    ///
    /// # Errors
    /// As the engine fails.
    fn read_many(&self, keys: &[CellKey]) -> Result<Vec<Option<StoredCell>>, StoreError> {
        keys.iter().map(|key| self.read(key)).collect()
    }

    /// The same, where one that is damaged must hide none of the others.
    ///
    /// # Errors
    /// As the engine fails.
    fn read_each(&self, keys: &[CellKey]) -> Result<Vec<Looked>, StoreError> {
        let alone = |key: &CellKey| match self.read(key) {
            Err(error) if !matches!(error, StoreError::Damaged { .. }) => Err(error),
            looked => Ok(looked),
        };
        match self.read_many(keys) {
            // That costs a request for each, and is rare.
            Err(StoreError::Damaged { .. }) => keys.iter().map(alone).collect(),
            found => Ok(found?.into_iter().map(Ok).collect()),
        }
    }

    /// One page of the documents of a range, as [`Reader::scan`](crate::store::Reader::scan) pages it, those with no
    /// document but a mark included: all as they are at *one* instant between call and return. Without that a reader
    /// could see both names of a renamed file, or neither, and no mark would tell it so. One that is damaged hides none of
    /// the others.
    ///
    /// # Errors
    /// As the engine fails.
    fn scan(&self, scan: &Scan) -> Result<Vec<ScannedCell>, StoreError>;

    /// The same page for whoever asks which documents there are, and not what they hold: versions and marks are as they are,
    /// and in the place of each document, before a mark or announced by it, there may be any other. Engines that are asked
    /// over a network do not send the documents.
    ///
    /// # Errors
    /// As the engine fails.
    fn scan_outlines(&self, scan: &Scan) -> Result<Vec<ScannedCell>, StoreError> {
        self.scan(scan)
    }

    /// All lock documents, or all slots of every session, that exist; not a snapshot. One that is damaged hides none of the
    /// others.
    ///
    /// # Errors
    /// As the engine fails.
    fn list(&self, what: Listed) -> Result<Vec<ListedCell>, StoreError>;

    /// Makes, replaces (`cell` given) or deletes (none) the cell under `key` if it is at `expected`, none meaning that there
    /// is no such cell. Returns its new version; after a deletion that number means nothing.
    ///
    /// # Errors
    /// [`CasError`].
    fn cas(&self, key: &CellKey, expected: Option<Version>, cell: Option<Cell>) -> Result<Version, CasError>;

    /// Makes such a change, reads other cells, and does what else there is to do, in any order: see
    /// [`cas_along`](Self::cas_along). Engines that are asked over a network do all that at once.
    fn cas_and_read(
        &self,
        change: Change,
        read: &[CellKey],
        beside: Option<Beside<'_>>,
    ) -> (Result<Version, CasError>, Found) {
        let found = self.read_many(read);
        let answer = match beside {
            Some(beside) => self.cas_along(change, beside),
            None => self.cas(&change.key, change.expected, change.cell),
        };
        (answer, found)
    }

    /// Does what is to be done beside a change, and makes the change together with the first ones that are asked for there,
    /// as [`cas_each`](Self::cas_each) makes them; or after it, if none are.
    ///
    /// # Errors
    /// As [`cas`](Self::cas).
    fn cas_along(&self, change: Change, beside: Beside<'_>) -> Result<Version, CasError> {
        let mut answer = None;
        beside(&mut |changes| {
            if answer.is_some() {
                return self.cas_each(changes);
            }
            let together: Vec<_> = iter::once(&change).chain(changes).cloned().collect();
            let mut answers = self.cas_each(&together);
            answer = Some(answers.remove(0));
            answers
        });
        answer.unwrap_or_else(|| self.cas(&change.key, change.expected, change.cell))
    }

    /// Makes several such changes, each by itself, in any order, as [`cas`](Self::cas) makes one. Engines that are asked
    /// over a network make one request of it. The answers are in the order of the changes.
    fn cas_each(&self, changes: &[Change]) -> Answers {
        changes.iter().map(|change| self.cas(&change.key, change.expected, change.cell.clone())).collect()
    }

    /// The same, and whether other cells are at these versions: false if one is not, or if that is not known. Each is
    /// compared after those of the changes were made that are of documents of its kind. Engines that are asked over a
    /// network make one request of all that.
    fn cas_each_and_compare(&self, changes: &[Change], compared: &[Compared]) -> (Answers, bool) {
        let answers = self.cas_each(changes);
        let keys: Vec<_> = compared.iter().map(|compared| compared.key.clone()).collect();
        let is_at = |(found, compared): (&Option<StoredCell>, &Compared)| {
            found.as_ref().is_some_and(|found| found.version == compared.at)
        };
        let equal = self.read_many(&keys).is_ok_and(|found| found.iter().zip(compared).all(is_at));
        (answers, equal)
    }

    /// Whether [`cas_all`](Self::cas_all) changes several cells at one instant. Nothing may rest on it but speed.
    fn changes_several(&self) -> bool {
        false
    }

    /// Such changes as a part of a commit to the store that has these cells, so that both are made at one instant; none
    /// where the engine cannot.
    fn as_commit(&self, changes: &[Change]) -> Option<Commit> {
        let _ = changes;
        None
    }

    /// Makes several such changes at one instant, or none of them. Returns the version that all have now. With
    /// [`Durability::Delayed`] a crash of the servers may undo that, and its version is still no other write's.
    ///
    /// # Errors
    /// [`CasError`]; `Store` where the engine cannot.
    fn cas_all(&self, changes: &[Change], durability: Durability) -> Result<Version, CasError> {
        let _ = (changes, durability);
        let source = "this store changes one cell at a time".into();
        Err(StoreError::Engine { what: "several cells".to_owned(), source }.into())
    }
}

/// A change of one cell, as [`Cells::cas`] takes it.
#[derive(Clone, Debug)]
pub struct Change {
    /// Which cell.
    pub key: CellKey,
    /// The version that it must have; none if it must not be there.
    pub expected: Option<Version>,
    /// What becomes of it; none to delete it.
    pub cell: Option<Cell>,
    /// Whether it may be a lock that somebody waits for, before the change or after it: he is to be told.
    pub awaited: bool,
}

/// What is done beside a change, which may go along with what is changed there.
pub type Beside<'a> = Box<dyn FnOnce(Along<'_>) + Send + 'a>;

/// Makes changes as [`Cells::cas_each`] does, along with a request that is to be sent anyway.
pub type Along<'a> = &'a mut dyn FnMut(&[Change]) -> Answers;

/// What became of each of several changes, in their order.
pub type Answers = Vec<Result<Version, CasError>>;

/// A cell that is to be at a version.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Which cell.
    pub key: CellKey,
    /// The version.
    pub at: Version,
}

/// What [`Cells::list`] lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// The lock documents.
    Locks,
    /// The slots of every session.
    Slots,
}
