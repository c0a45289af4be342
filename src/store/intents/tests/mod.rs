//! Intents: the store port's conformance, costs, and what goes wrong at every request.

mod at_once;
mod behind;
mod compared;
mod crashes;
mod faults;
mod granted;
mod keys;
mod known;
mod late;
mod later;
mod lost;
mod stale;
mod table;
mod threads;
mod torn;

use std::sync::Arc;

use super::{IntentStore, create_slots};
use crate::ambient::{Clock, SystemClock};
use crate::document::{
    Document, Entry, FileKind, Ino, Key, LockClaim, LockRecord, Name, NodeDelta, SessionId, Slot, Timestamp,
};
use crate::store::cells::memory::MemoryCells;
use crate::store::cells::{Cell, CellKey, Cells, Change};
use crate::store::conformance::{self, directory};
use crate::store::{Commit, Reader};

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

/// A clock that does not wait: a second's patience is over at once.
struct Impatient;

impl Clock for Impatient {
    fn now(&self) -> std::time::Duration {
        std::time::Duration::ZERO
    }

    fn sleep(&self, _: std::time::Duration) {}
}

fn impatient() -> Arc<dyn Clock> {
    Arc::new(Impatient)
}

/// The store as a new session sees it.
fn session<C: Cells + ?Sized + 'static>(
    cells: &Arc<C>,
    clock: &Arc<dyn Clock>,
    id: u64,
    slots: u16,
) -> IntentStore<C> {
    // LOCKWOOD_RULES_OFF: to see that these tests object.
    #[cfg(feature = "proof")]
    crate::rules::read_environment().unwrap();
    let made = create_slots(cells, clock, SessionId(id), slots).unwrap();
    IntentStore::new(cells.clone(), clock.clone(), SessionId(id), made)
}

fn node(ino: u64) -> Key {
    Key::Node(Ino(ino))
}

fn entry(text: &str) -> Key {
    Key::Entry(Ino::ROOT, Name::new(text.as_bytes()).unwrap())
}

fn file(ino: u64) -> Document {
    Document::Entry(Entry { ino: Ino(ino), kind: FileKind::Regular })
}

fn add(children: i64) -> NodeDelta {
    NodeDelta::entries_changed(children, 0, Timestamp::default())
}

/// A lock document that nobody else has made.
fn lock(holders: Vec<LockClaim>) -> Change {
    let record = LockRecord { path: b"/a".to_vec(), holders, waiters: Vec::new() };
    Change { key: CellKey::Lock("a".into()), expected: None, cell: Some(Cell::Lock(record)), awaited: false }
}

/// The first slot of session 1.
fn slot(cells: &MemoryCells) -> Slot {
    match &*cells.read(&CellKey::Slot(SessionId(1), 0)).unwrap().unwrap().cell {
        Cell::Slot(slot) => slot.clone(),
        other => panic!("no slot: {other:?}"),
    }
}

fn is_marked(cells: &MemoryCells, ino: u64) -> bool {
    let found = cells.read(&CellKey::Document(node(ino))).unwrap().unwrap();
    matches!(&*found.cell, Cell::Document(document) if document.mark.is_some())
}

/// What a counter holds, with its version.
fn counter(store: &impl Reader, ino: u64) -> Option<u64> {
    store.node(Ino(ino)).unwrap().map(|(_, node)| node.directory().unwrap().children)
}

#[test]
fn conforms() {
    conformance::run(&|| Box::new(session(&Arc::new(MemoryCells::new()), &clock(), 1, 4)));
    // One slot for all threads, and an engine behind a pointer.
    let cells = || Arc::new(MemoryCells::new()) as Arc<dyn Cells>;
    conformance::run(&|| Box::new(session(&cells(), &clock(), 1, 1)));
}

#[test]
fn an_intent_that_is_damaged_hides_what_it_has_marked_and_nothing_else() {
    use super::decide::marked;
    use crate::document::{IntentId, MarkChange};
    use crate::store::{Range, Scan, Start, Store, StoreError};
    let cells = Arc::new(MemoryCells::new());
    let store = session(&cells, &impatient(), 1, 2);
    store.commit(&Commit::new().put(entry("a"), file(1)).put(entry("c"), file(3))).unwrap();
    let intent = IntentId { session: SessionId(9), slot: 0, number: 1 };
    let mark = marked(None, intent, MarkChange::Put(Box::new(file(2))));
    cells.cas(&CellKey::Document(entry("b")), None, Some(mark.clone())).unwrap();
    // What stands in the slot's place is no slot.
    cells.cas(&CellKey::Slot(intent.session, intent.slot), None, Some(mark)).unwrap();
    let scan = Scan { range: Range::Entries(Ino::ROOT), start: Start::First, limit: 10 };
    let page = store.scan(&scan).unwrap();
    assert_eq!(page.len(), 3);
    for (key, stored) in page {
        assert_eq!(matches!(stored, Err(StoreError::Damaged { .. })), key == entry("b"), "{key}: {stored:?}");
    }
    assert_eq!(store.scan_keys(&scan).unwrap().len(), 3);
    let refused = store.get(&entry("b")).unwrap_err().to_string();
    assert!(refused.contains("the intent that has marked it"), "{refused}");
    assert!(store.get(&entry("c")).unwrap().is_some());
}

#[test]
fn a_page_is_full_whatever_it_leaves_out() {
    use crate::store::{Range, Scan, Start, Store};
    let cells = Arc::new(MemoryCells::new());
    let store = session(&cells, &clock(), 1, 2);
    let names: Vec<_> = (0..40).map(|i| format!("file {i}")).collect();
    for (i, name) in names.iter().enumerate().filter(|(i, _)| i % 2 == 0) {
        store.commit(&Commit::new().put(entry(name), file(i as u64))).unwrap();
    }
    // Marks that make documents and were never committed stand between the others.
    let dead = super::decide::marked(
        None,
        crate::document::IntentId { session: SessionId(9), slot: 0, number: 1 },
        crate::document::MarkChange::Put(Box::new(file(1))),
    );
    for name in names.iter().skip(1).step_by(2) {
        cells.cas(&CellKey::Document(entry(name)), None, Some(dead.clone())).unwrap();
    }
    for limit in 1..=21 {
        let mut start = Start::First;
        let mut seen = 0;
        loop {
            let page = store.scan(&Scan { range: Range::Entries(Ino::ROOT), start, limit }).unwrap();
            seen += page.len();
            assert!(page.len() <= limit);
            match page.last() {
                Some((last, _)) if page.len() == limit => start = Start::After(last.clone()),
                _ => break,
            }
        }
        assert_eq!(seen, 20, "pages of {limit}");
    }
}
