//! Cells in memory: the port in its plainest form, for tests and simulations.

use std::collections::BTreeMap;
use std::ops::Bound;

use parking_lot::Mutex;

use super::{CasError, Cell, CellKey, Cells, Listed, ListedCell, ScannedCell, StoredCell};
use crate::document::{Key, Version};
use crate::store::scan::{Pager, bounds};
use crate::store::{Scan, StoreError};

/// Cells that are forgotten when this is dropped.
#[derive(Debug, Default)]
pub struct MemoryCells {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    cells: BTreeMap<Slot, StoredCell>,
    last: u64,
}

/// A place in the map: documents stand in the order of their encoded keys, as the port's scans want them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Slot {
    Document(crate::document::Kind, Vec<u8>),
    Other(CellKey),
}

impl Slot {
    fn of(key: &CellKey) -> Self {
        match key {
            CellKey::Document(key) => Self::Document(key.kind(), key.encode()),
            other => Self::Other(other.clone()),
        }
    }
}

impl MemoryCells {
    /// No cells.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts back what was there once, with the version that it had: as if the writes since had never been made.
    #[cfg(test)]
    pub fn put_back(&self, key: &CellKey, before: Option<StoredCell>) {
        let cells = &mut self.inner.lock().cells;
        match before {
            Some(before) => cells.insert(Slot::of(key), before),
            None => cells.remove(&Slot::of(key)),
        };
    }
}

impl Cells for MemoryCells {
    fn read(&self, key: &CellKey) -> Result<Option<StoredCell>, StoreError> {
        Ok(self.inner.lock().cells.get(&Slot::of(key)).cloned())
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScannedCell>, StoreError> {
        let (kind, from, prefix) = bounds(scan);
        let from = from.map(|bytes| Slot::Document(kind, bytes));
        let inner = self.inner.lock();
        let mut page = Vec::new();
        let mut pager = Pager::new(scan);
        for (slot, cell) in inner.cells.range((from, Bound::Unbounded)) {
            let Slot::Document(k, bytes) = slot else { break };
            if *k != kind || !bytes.starts_with(&prefix) {
                break;
            }
            let Some(key) = Key::decode(kind, bytes) else { continue };
            if !pager.admits(page.len(), &key) {
                break;
            }
            page.push((key, Ok(cell.clone())));
        }
        Ok(page)
    }

    fn list(&self, what: Listed) -> Result<Vec<ListedCell>, StoreError> {
        let inner = self.inner.lock();
        let wanted = |slot: &Slot| match (slot, what) {
            (Slot::Other(key @ CellKey::Lock(_)), Listed::Locks)
            | (Slot::Other(key @ CellKey::Slot(..)), Listed::Slots) => Some(key.clone()),
            _ => None,
        };
        Ok(inner.cells.iter().filter_map(|(slot, cell)| Some((wanted(slot)?, Ok(cell.clone())))).collect())
    }

    fn cas(&self, key: &CellKey, expected: Option<Version>, cell: Option<Cell>) -> Result<Version, CasError> {
        let mut inner = self.inner.lock();
        let slot = Slot::of(key);
        if inner.cells.get(&slot).map(|stored| stored.version) != expected {
            return Err(CasError::Conflict);
        }
        inner.last += 1;
        let version = Version(inner.last);
        match cell {
            Some(cell) => inner.cells.insert(slot, StoredCell { version, cell: cell.into() }),
            None => inner.cells.remove(&slot),
        };
        Ok(version)
    }
}
