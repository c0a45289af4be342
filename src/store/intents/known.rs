//! Cells as a process last saw them, so that a commit need not read once more what it rests on.
//!
//! Owns what is remembered and for how long it is trusted. Imports the documents, the cells' port and the commit.
//!
//! What is remembered may be old, and that is harmless: whatever a commit checks or writes is marked or compared at the
//! version that its plan rests on, and who finds another one makes the plan again, from what he reads then. But the attempt
//! is lost, which costs more than the reading saves. So it is trusted for a moment only, in which others rarely change the
//! same, and who has met others reads for a while.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quick_cache::sync::Cache;

use crate::document::{Key, Kind};
use crate::store::cells::{Cell, CellKey, Compared, StoredCell};
use crate::store::{Check, Commit, Write};

/// So many cells are remembered, each of some hundred bytes: no others are than those of entries and nodes.
const CELLS_MAX: usize = 4096;
/// For so long a cell is trusted after it was seen.
const TRUST: Duration = Duration::from_secs(1);
/// For so long nothing is trusted after others were met.
const DOUBT: Duration = Duration::from_secs(1);

/// A cell, and when it was seen.
#[derive(Clone)]
struct Sight {
    cell: StoredCell,
    at: Duration,
}

/// What is remembered.
pub(super) struct Known {
    cells: Cache<Key, Sight>,
    doubted_until: Mutex<Duration>,
}

/// What a commit will find under a key, as far as it is known: the cell, or that there is none.
pub(super) type Foreseen = Option<Option<StoredCell>>;

impl Known {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { cells: Cache::new(CELLS_MAX), doubted_until: Mutex::default() })
    }

    /// This was read, or written, under the key.
    pub(super) fn saw(&self, key: &Key, stored: Option<&StoredCell>, at: Duration) {
        if !matches!(key.kind(), Kind::Entry | Kind::Node) {
            return;
        }
        match stored {
            Some(stored) if is_plain(stored) => {
                // Of two who read at the same time the one with the older answer may come last.
                let is_old = self.cells.peek(key).is_some_and(|known| known.cell.version > stored.version);
                if !is_old {
                    self.cells.insert(key.clone(), Sight { cell: stored.clone(), at });
                }
            }
            _ => self.forget([key]),
        }
    }

    /// These were compared, and found to be as they were expected.
    pub(super) fn found_equal(&self, compared: &[Compared], at: Duration) {
        for Compared { key, at: version } in compared {
            let CellKey::Document(key) = key else { continue };
            if let Some(Sight { cell, .. }) =
                self.cells.get(key).filter(|known| known.cell.version == *version)
            {
                self.saw(key, Some(&cell), at);
            }
        }
    }

    /// Others change these, or this process is about to.
    pub(super) fn forget<'a>(&self, keys: impl IntoIterator<Item = &'a Key>) {
        keys.into_iter().for_each(|key| drop(self.cells.remove(key)));
    }

    /// A commit has rested on what is no longer so.
    pub(super) fn doubt<'a>(&self, keys: impl IntoIterator<Item = &'a Key>, now: Duration) {
        self.forget(keys);
        *self.doubted_until.lock() = now + DOUBT;
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    /// What the commit will find under each of its keys.
    pub(super) fn foresee(&self, commit: &Commit, keys: &[Key], now: Duration) -> Vec<Foreseen> {
        if now < *self.doubted_until.lock() {
            return vec![None; keys.len()];
        }
        let foreseen = |key: &Key| match self.cells.get(key) {
            Some(Sight { cell, at }) => (now.saturating_sub(at) < TRUST).then_some(Some(cell)),
            None => makes(commit, key).then_some(None),
        };
        keys.iter().map(foreseen).collect()
    }
}

/// Whether the commit makes what stands under a key, as far as can be told: it says that there is nothing yet, or does not
/// even ask what there is of an inode, which is so of new ones, or of an orphan, which a file becomes once.
fn makes(commit: &Commit, key: &Key) -> bool {
    let mut checks = commit.checks.iter().filter(|check| check.key() == key).peekable();
    let is_put = || commit.writes.iter().any(|write| matches!(write, Write::Put(put, _) if put == key));
    match checks.peek() {
        None => matches!(key.kind(), Kind::Node | Kind::Orphan) && is_put(),
        Some(_) => checks.any(|check| matches!(check, Check::Absent(_))),
    }
}

/// A document without a mark.
fn is_plain(stored: &StoredCell) -> bool {
    matches!(&*stored.cell, Cell::Document(cell) if cell.before.is_some() && cell.mark.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Ino, Version};
    use crate::store::cells::MarkedDocument;
    use crate::store::conformance::directory;

    #[test]
    fn what_was_seen_is_trusted_for_a_moment() {
        let key = Key::Node(Ino(1));
        let cell = |version| {
            let document = crate::document::Stored { version: Version(1), document: directory(1).into() };
            let cell = Cell::Document(MarkedDocument { before: Some(document), mark: None });
            StoredCell { version: Version(version), cell: cell.into() }
        };
        let compared = |version| [Compared { key: CellKey::Document(key.clone()), at: Version(version) }];
        let (known, commit) = (Known::new(), Commit::new());
        let foreseen = |now| known.foresee(&commit, std::slice::from_ref(&key), now).remove(0);
        known.saw(&key, Some(&cell(5)), Duration::ZERO);
        assert_eq!(foreseen(TRUST / 2), Some(Some(cell(5))));
        assert_eq!(foreseen(TRUST), None);
        known.found_equal(&compared(4), TRUST);
        assert_eq!(foreseen(TRUST), None);
        known.found_equal(&compared(5), TRUST);
        assert_eq!(foreseen(TRUST), Some(Some(cell(5))));
        // An answer that was overtaken.
        known.saw(&key, Some(&cell(3)), TRUST);
        assert_eq!(foreseen(TRUST), Some(Some(cell(5))));
        known.doubt([&Key::Volume], TRUST);
        assert_eq!(foreseen(TRUST + DOUBT / 2), None);
        known.saw(&key, Some(&cell(6)), TRUST + DOUBT);
        assert_eq!(foreseen(TRUST + DOUBT), Some(Some(cell(6))));
    }
}
