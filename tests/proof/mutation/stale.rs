//! A store one of whose servers is behind, and answers reads: a file was made, and what its clean-up or its recovery reads
//! is of before that. The file must stay. (Neither the model nor the simulator has reads that are not of the present.)

use std::sync::Arc;

use lockwood::ambient::{Clock, SystemClock};
use lockwood::document::{Content, Document, Ino, Key, SessionId, Version};
use lockwood::later::Later;
use lockwood::store::cells::memory::MemoryCells;
use lockwood::store::cells::{CasError, Cell, CellKey, Cells, Listed, ListedCell, ScannedCell, StoredCell};
use lockwood::store::intents::{IntentStore, create_slots, settle};
use lockwood::store::{Commit, Reader, Scan, Store, StoreError};
use parking_lot::Mutex;

use super::{Judged, objection};

const OWNER: SessionId = SessionId(1);
const SLOT: CellKey = CellKey::Slot(OWNER, 0);

#[derive(Default)]
struct Troubled {
    cells: MemoryCells,
    /// The next read of this cell finds nothing.
    unseen: Mutex<Option<CellKey>>,
    /// The next write of this cell that leaves no mark is lost, and the read after it finds nothing.
    lost: Mutex<Option<CellKey>>,
}

impl Cells for Troubled {
    fn read(&self, key: &CellKey) -> Result<Option<StoredCell>, StoreError> {
        let is_unseen = self.unseen.lock().take_if(|unseen| unseen == key).is_some();
        if is_unseen { Ok(None) } else { self.cells.read(key) }
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScannedCell>, StoreError> {
        self.cells.scan(scan)
    }

    fn list(&self, what: Listed) -> Result<Vec<ListedCell>, StoreError> {
        self.cells.list(what)
    }

    fn cas(&self, key: &CellKey, expected: Option<Version>, cell: Option<Cell>) -> Result<Version, CasError> {
        let marks = matches!(&cell, Some(Cell::Document(document)) if document.mark.is_some());
        let lost = self.lost.lock().take_if(|lost| !marks && lost == key);
        if lost.is_some() {
            *self.unseen.lock() = lost;
            return Err(CasError::Unknown("lost".to_owned()));
        }
        self.cells.cas(key, expected, cell)
    }
}

/// Who dies before he cleans up.
struct Never;

impl Later for Never {
    fn run(&self, _: Box<dyn FnOnce() + Send>) {}
}

fn put(ino: u64) -> Commit {
    Commit::new().put(Key::Content(Ino(ino)), Document::Content(Content { bytes: vec![1].into() }))
}

/// What goes wrong: for its owner, or for who recovers what he has left.
pub(super) fn judge() -> Judged {
    let file = CellKey::Document(Key::Content(Ino(2)));
    is_kept(|cells, owner| {
        *cells.lost.lock() = Some(file.clone());
        owner.commit(&put(2)).expect("nobody else is there");
        // The slot is used again.
        owner.commit(&put(3)).expect("nobody else is there");
    })?;
    for unseen in [file, SLOT] {
        is_kept(|cells, owner| {
            owner.cleaning_up(Arc::new(Never)).commit(&put(2)).expect("nobody else is there");
            *cells.unseen.lock() = Some(unseen.clone());
        })?;
    }
    Ok(3)
}

fn is_kept(make: impl FnOnce(&Troubled, IntentStore<Troubled>)) -> Judged {
    let cells = Arc::new(Troubled::default());
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let slots = create_slots(&cells, &clock, OWNER, 1).expect("cells in memory");
    make(&cells, IntentStore::new(Arc::clone(&cells), Arc::clone(&clock), OWNER, slots));
    settle(&cells, &clock, OWNER, 1).expect("cells in memory");
    let slot = cells.read(&SLOT).expect("cells in memory").expect("it is deleted here");
    cells.cas(&SLOT, Some(slot.version), None).expect("nobody else is there");
    let reader = IntentStore::new(cells, clock, SessionId(2), Vec::new());
    if reader.get(&Key::Content(Ino(2))).expect("cells in memory").is_none() {
        return objection(1, "a file is gone whose making was acknowledged");
    }
    Ok(1)
}
