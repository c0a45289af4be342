//! What a commit reads is of several instants.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{add, entry, file, impatient, node, session};
use crate::document::{Key, Version};
use crate::store::cells::memory::MemoryCells;
use crate::store::cells::{CasError, Cell, CellKey, Cells, Listed, StoredCell};
use crate::store::conformance::directory;
use crate::store::{Commit, CommitError, Scan, Store as _, StoreError};

/// Cells of which one was read before the others.
struct Torn {
    cells: MemoryCells,
    early: Mutex<Option<(CellKey, Option<StoredCell>)>>,
}

impl Cells for Torn {
    fn read(&self, key: &CellKey) -> Result<Option<StoredCell>, StoreError> {
        match self.early.lock().take_if(|(early, _)| early == key) {
            Some((_, before)) => Ok(before),
            None => self.cells.read(key),
        }
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<(Key, StoredCell)>, StoreError> {
        self.cells.scan(scan)
    }

    fn list(&self, what: Listed) -> Result<Vec<(CellKey, StoredCell)>, StoreError> {
        self.cells.list(what)
    }

    fn cas(&self, key: &CellKey, expected: Option<Version>, cell: Option<Cell>) -> Result<Version, CasError> {
        self.cells.cas(key, expected, cell)
    }
}

#[test]
fn an_entry_that_goes_between_two_looks_is_a_conflict_and_no_damage() {
    let torn = Arc::new(Torn { cells: MemoryCells::new(), early: Mutex::default() });
    let [own, other] = [1, 2].map(|id| session(&torn, &impatient(), id, 1));
    let made = Commit::new().put(node(1), directory(1)).put(entry("a"), file(7));
    let version = other.commit(&made).unwrap();
    let removal = || Commit::new().at(entry("a"), version).delete(entry("a")).merge(node(1), add(-1));
    let place = CellKey::Document(entry("a"));
    let before = torn.read(&place).unwrap();
    other.commit(&removal()).unwrap();
    *torn.early.lock() = Some((place, before));
    let refused = own.commit(&removal());
    assert!(matches!(&refused, Err(CommitError::Conflict(key)) if *key == entry("a")), "{refused:?}");
    assert!(torn.early.lock().is_none(), "it was looked at too late");
}

#[test]
fn a_count_that_is_wrong_is_damage_however_often_it_is_looked_at() {
    let torn = Arc::new(Torn { cells: MemoryCells::new(), early: Mutex::default() });
    let own = session(&torn, &impatient(), 1, 1);
    let version = own.commit(&Commit::new().put(node(1), directory(0)).put(entry("a"), file(7))).unwrap();
    let refused =
        own.commit(&Commit::new().at(entry("a"), version).delete(entry("a")).merge(node(1), add(-1)));
    assert!(matches!(&refused, Err(CommitError::Store(StoreError::Damaged { .. }))), "{refused:?}");
}
