//! A commit whose checks are covered by locks, made by somebody who holds none: what it checks and does not write is changed
//! after its first mark is set. It has to notice. (Under the locks nothing of the kind can happen, so neither the model nor
//! the simulator can see whether the check is there.)

use std::sync::Arc;

use lockwood::ambient::{Clock, SystemClock};
use lockwood::document::{Content, Document, Entry, FileKind, Ino, Key, Name, SessionId, Version};
use lockwood::store::cells::memory::MemoryCells;
use lockwood::store::cells::{CasError, Cell, CellKey, Cells, Listed, ListedCell, ScannedCell, StoredCell};
use lockwood::store::intents::{IntentStore, create_slots};
use lockwood::store::{Commit, Reader, Scan, Store, StoreError};
use parking_lot::Mutex;

use super::{Judged, objection};

/// Cells that do something of their own once, when the first mark has been set.
struct Meddled {
    cells: Arc<MemoryCells>,
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Cells for Meddled {
    fn read(&self, key: &CellKey) -> Result<Option<StoredCell>, StoreError> {
        self.cells.read(key)
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScannedCell>, StoreError> {
        self.cells.scan(scan)
    }

    fn list(&self, what: Listed) -> Result<Vec<ListedCell>, StoreError> {
        self.cells.list(what)
    }

    fn cas(&self, key: &CellKey, expected: Option<Version>, cell: Option<Cell>) -> Result<Version, CasError> {
        let marks = matches!(&cell, Some(Cell::Document(document)) if document.mark.is_some());
        let outcome = self.cells.cas(key, expected, cell);
        let then = if marks && outcome.is_ok() { self.then.lock().take() } else { None };
        if let Some(then) = then {
            then();
        }
        outcome
    }
}

fn store<C: Cells + 'static>(cells: &Arc<C>, session: u64) -> IntentStore<C> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let session = SessionId(session);
    let slots = create_slots(cells, &clock, session, 2).expect("cells in memory");
    IntentStore::new(Arc::clone(cells), clock, session, slots)
}

fn content(byte: u8) -> Document {
    Document::Content(Content { bytes: vec![byte].into() })
}

fn entry(ino: u64) -> Document {
    Document::Entry(Entry { ino: Ino(ino), kind: FileKind::Regular })
}

/// Entries are compared when the marks are set; all else is marked.
pub(super) fn judge() -> Judged {
    let name = |text: &str| Key::Entry(Ino::ROOT, Name::new(text.as_bytes()).expect("a name"));
    changed_meanwhile([Key::Content(Ino(2)), Key::Content(Ino(3))], content(1), content(2))?;
    changed_meanwhile([name("checked"), name("written")], entry(1), entry(2))
}

fn changed_meanwhile([checked, written]: [Key; 2], before: Document, after: Document) -> Judged {
    let cells = Arc::new(MemoryCells::new());
    let other = store(&cells, 2);
    let start = Commit::new().put(checked.clone(), before.clone()).put(written.clone(), before);
    other.commit(&start).expect("nobody else is there");
    let version = other.get(&checked).expect("cells in memory").expect("it was put").version;
    let meddled = Arc::new(Meddled { cells, then: Mutex::default() });
    let (key, changed) = (checked.clone(), after.clone());
    *meddled.then.lock() = Some(Box::new(move || {
        let _ = other.commit(&Commit::new().put(key, changed)); // Whether it may is not this judge's affair.
    }));
    let own = store(&meddled, 1);
    let commit = Commit::new().at(checked.clone(), version).put(written, after).covered();
    let outcome = own.commit(&commit);
    let changed = own.get(&checked).expect("cells in memory").is_none_or(|now| now.version != version);
    if outcome.is_ok() && changed {
        return objection(1, "a commit took effect although what it checks had changed after its first mark");
    }
    Ok(1)
}
