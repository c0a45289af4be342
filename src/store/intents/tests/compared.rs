//! What locks cover is compared behind the marks, and the answer is final.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::{entry, file, impatient, session};
use crate::document::{Key, Version};
use crate::store::cells::memory::MemoryCells;
use crate::store::cells::{CasError, Cell, CellKey, Cells, Change, Compared, Listed, StoredCell};
use crate::store::{Commit, Reader as _, Scan, Store as _, StoreError};

/// The cells as a server shows them that has not heard yet of what the one that compares has: reads show nothing new.
struct Behind {
    cells: MemoryCells,
    /// So many comparisons are refused from here on.
    refused: AtomicU64,
    compared: AtomicU64,
}

impl Cells for Behind {
    fn read(&self, key: &CellKey) -> Result<Option<StoredCell>, StoreError> {
        self.cells.read(key)
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

    fn cas_each_and_compare(
        &self,
        changes: &[Change],
        compared: &[Compared],
    ) -> (Vec<Result<Version, CasError>>, bool) {
        self.compared.fetch_add(1, SeqCst);
        let is_refused = self.refused.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
        let (answers, equal) = self.cells.cas_each_and_compare(changes, compared);
        (answers, equal && !is_refused)
    }
}

#[test]
fn a_comparison_that_fails_is_not_made_good_by_a_read() {
    let behind =
        Behind { cells: MemoryCells::new(), refused: AtomicU64::new(0), compared: AtomicU64::new(0) };
    let behind = Arc::new(behind);
    let store = session(&behind, &impatient(), 2, 1);
    let checked = store.commit(&Commit::new().put(entry("above"), file(1))).unwrap();
    let commit = Commit::new().at(entry("above"), checked).put(entry("b"), file(7)).covered();
    behind.refused.store(2, SeqCst);
    store.commit(&commit).unwrap();
    assert_eq!(behind.compared.load(SeqCst), 3, "each refusal costs an attempt");
    // Refused for ever it is never made, though every read says that nothing has changed.
    behind.refused.store(u64::MAX, SeqCst);
    let commit = Commit::new().at(entry("above"), checked).put(entry("c"), file(8)).covered();
    assert!(store.commit(&commit).is_err());
    assert!(store.get(&entry("c")).unwrap().is_none());
}
