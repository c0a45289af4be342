//! Cells as a server shows them that has not heard yet of what others have done.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};

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
    pub(super) cells: MemoryCells,
    /// The next read of one of these cells finds what was there before, once for each time that it is named.
    pub(super) early: Mutex<Vec<(CellKey, Option<StoredCell>)>>,
    /// The next write of this cell is lost.
    pub(super) lost: Mutex<Option<CellKey>>,
    /// So many comparisons are refused from here on.
    pub(super) refused: AtomicI64,
    pub(super) compared: AtomicU64,
}

impl Cells for Behind {
    fn read(&self, key: &CellKey) -> Result<Option<StoredCell>, StoreError> {
        let mut early = self.early.lock();
        match early.iter().position(|(early, _)| early == key) {
            Some(at) => Ok(early.remove(at).1),
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
        match self.lost.lock().take_if(|lost| lost == key) {
            Some(_) => Err(CasError::Unknown("lost".into())),
            None => self.cells.cas(key, expected, cell),
        }
    }

    fn cas_each_and_compare(&self, changes: &[Change], compared: &[Compared]) -> (Answers, bool) {
        self.compared.fetch_add(1, SeqCst);
        let is_refused = self.refused.fetch_sub(1, SeqCst) > 0;
        let (answers, equal) = self.cells.cas_each_and_compare(changes, compared);
        (answers, equal && !is_refused)
    }
}
