//! Cells as a server shows them that has not heard yet of what others have done.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;

use crate::document::Version;
use crate::store::cells::memory::MemoryCells;
use crate::store::cells::{
    Answers, CasError, Cell, CellKey, Cells, Change, Compared, Listed, ListedCell, ScannedCell, StoredCell,
};
use crate::store::{Scan, StoreError};

/// The cells, and what is shown instead.
#[derive(Default)]
pub(super) struct Behind {
    cells: MemoryCells,
    /// The next read of this cell finds what was there before.
    pub(super) early: Mutex<Option<(CellKey, Option<StoredCell>)>>,
    /// So many comparisons are refused from here on.
    pub(super) refused: AtomicU64,
    pub(super) compared: AtomicU64,
}

impl Cells for Behind {
    fn read(&self, key: &CellKey) -> Result<Option<StoredCell>, StoreError> {
        match self.early.lock().take_if(|(early, _)| early == key) {
            Some((_, before)) => Ok(before),
            None => self.cells.read(key),
        }
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScannedCell>, StoreError> {
        self.cells.scan(scan)
    }

    fn list(&self, what: Listed) -> Result<Vec<ListedCell>, StoreError> {
        self.cells.list(what)
    }

    fn cas(&self, key: &CellKey, expected: Option<Version>, cell: Option<Cell>) -> Result<Version, CasError> {
        self.cells.cas(key, expected, cell)
    }

    fn cas_each_and_compare(&self, changes: &[Change], compared: &[Compared]) -> (Answers, bool) {
        self.compared.fetch_add(1, SeqCst);
        let is_refused = self.refused.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
        let (answers, equal) = self.cells.cas_each_and_compare(changes, compared);
        (answers, equal && !is_refused)
    }
}
