//! Pages of keys are read without the documents, and are those of the pages with them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::{add, clock, impatient, node, session};
use crate::document::{
    Chunk, Document, Ino, IntentId, Key, MarkChange, Marked, SessionId, Slot, SlotState, Version,
};
use crate::store::cells::memory::MemoryCells;
use crate::store::cells::{
    CasError, Cell, CellKey, Cells, Listed, ListedCell, MarkedDocument, ScannedCell, StoredCell,
};
use crate::store::conformance::directory;
use crate::store::intents::decide;
use crate::store::intents::shared::{Remote, SharedIntents};
use crate::store::{Commit, Intents as _, Outages, Range, Reader, Scan, Start, Store as _, StoreError};

/// Cells over a network: of an outline no document is sent, and another one stands in its place.
#[derive(Default)]
struct Far {
    cells: MemoryCells,
    /// How many pages were sent with their documents.
    whole: AtomicU64,
}

impl Cells for Far {
    fn read(&self, key: &CellKey) -> Result<Option<StoredCell>, StoreError> {
        self.cells.read(key)
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScannedCell>, StoreError> {
        self.whole.fetch_add(1, SeqCst);
        self.cells.scan(scan)
    }

    fn scan_outlines(&self, scan: &Scan) -> Result<Vec<ScannedCell>, StoreError> {
        let outline = |stored: StoredCell| {
            let Cell::Document(document) = &*stored.cell else { panic!("{stored:?}") };
            StoredCell { cell: Cell::Document(document.outline(&directory(77))).into(), ..stored }
        };
        let page = self.cells.scan(scan)?;
        Ok(page.into_iter().map(|(key, stored)| (key, stored.map(outline))).collect())
    }

    fn list(&self, what: Listed) -> Result<Vec<ListedCell>, StoreError> {
        self.cells.list(what)
    }

    fn cas(&self, key: &CellKey, expected: Option<Version>, cell: Option<Cell>) -> Result<Version, CasError> {
        self.cells.cas(key, expected, cell)
    }
}

impl Remote for Far {
    fn outages(&self) -> Option<&Outages> {
        None
    }
}

fn chunk(index: u64) -> Key {
    Key::Chunk(Ino(7), index)
}

fn bytes() -> Document {
    Document::Chunk(Chunk { bytes: [1, 2, 3][..].into() })
}

/// What the slot of a mark may say.
#[derive(Clone, Copy, Debug)]
enum Says {
    /// In this state under the mark's number, with the mark listed at its version.
    Listed(SlotState),
    /// Committed, with the mark listed at another version: a request that came twice.
    Duplicate,
    /// Committed, and it lists nothing.
    NotListed,
    /// Committed under another number.
    OtherNumber,
    /// Nothing: it is not there.
    Absent,
}

const SAYINGS: [Says; 9] = [
    Says::Listed(SlotState::Free),
    Says::Listed(SlotState::Pending),
    Says::Listed(SlotState::Committed),
    Says::Listed(SlotState::Aborted),
    Says::Listed(SlotState::Sealed),
    Says::Duplicate,
    Says::NotListed,
    Says::OtherNumber,
    Says::Absent,
];

/// A chunk under every mark there can be, and without one. How many chunks that are.
fn every_mark(cells: &Far) -> u64 {
    let owner = SessionId(9);
    let mut index = 0;
    for before in [false, true] {
        for change in [MarkChange::Put(Box::new(bytes())), MarkChange::Delete, MarkChange::Keep] {
            for says in SAYINGS {
                index += 1;
                let slot = u16::try_from(index).unwrap();
                let key = CellKey::Document(chunk(index));
                let intent = IntentId { session: owner, slot, number: 3 };
                let document = MarkedDocument::clone(&plain(before));
                let marked = decide::marked(document.before, intent, change.clone());
                let at = cells.cas(&key, None, Some(marked)).unwrap();
                let (number, state, version) = match says {
                    Says::Listed(state) => (3, state, Some(at)),
                    Says::Duplicate => (3, SlotState::Committed, Some(Version(at.0 + 1000))),
                    Says::NotListed => (3, SlotState::Committed, None),
                    Says::OtherNumber => (4, SlotState::Committed, Some(at)),
                    Says::Absent => continue,
                };
                let lists = |version| Marked { key: chunk(index), version: Some(version) };
                let slot_cell = Slot { number, state, marked: version.map(lists).into_iter().collect() };
                cells.cas(&CellKey::Slot(owner, slot), None, Some(Cell::Slot(slot_cell))).unwrap();
            }
        }
        index += 1;
        cells.cas(&CellKey::Document(chunk(index)), None, Some(Cell::Document(plain(before)))).unwrap();
    }
    index
}

fn plain(there: bool) -> MarkedDocument {
    let before = there.then(|| crate::document::Stored { version: Version(1), document: bytes().into() });
    MarkedDocument { before, mark: None }
}

fn keys_of(store: &impl Reader, scan: &Scan) -> Vec<Key> {
    store.scan(scan).unwrap().into_iter().map(|(key, _)| key).collect()
}

#[test]
fn keys_are_those_of_the_documents_under_every_mark() {
    let cells = Arc::new(Far::default());
    let store = session(&cells, &impatient(), 1, 1);
    let chunks = every_mark(&cells);
    let range = Range::Chunks(Ino(7));
    let all = Scan { range, start: Start::First, limit: 100 };
    let there = keys_of(&store, &all);
    assert_eq!(store.scan_keys(&all).unwrap(), there);
    // What is put is there once that is committed and listed; what is deleted is not there any more.
    assert_eq!(there.len(), 1 + 8 + 9 + 9 + 1);
    assert!(there.len() < usize::try_from(chunks).unwrap());
    for limit in 1..there.len() {
        for after in (0..chunks).step_by(5) {
            let scan = Scan { range, start: Start::After(chunk(after)), limit };
            assert_eq!(store.scan_keys(&scan).unwrap(), keys_of(&store, &scan), "{limit} after {after}");
        }
    }
}

#[test]
fn a_process_lists_keys_without_the_documents() {
    let cells = Arc::new(Far::default());
    let store = SharedIntents::new(Arc::clone(&cells), clock());
    let id = SessionId(1);
    store.begin(id).unwrap();
    let made = Commit::new().put(node(1), directory(0)).put(chunk(0), bytes()).put(chunk(1), bytes()).by(id);
    store.commit(&made).unwrap();
    store.commit(&Commit::new().delete(chunk(0)).merge(node(1), add(1)).by(id)).unwrap();
    let scan = Scan { range: Range::Chunks(Ino(7)), start: Start::First, limit: 10 };
    assert_eq!(store.scan_keys(&scan).unwrap(), [chunk(1)]);
    assert_eq!(cells.whole.load(SeqCst), 0);
}
