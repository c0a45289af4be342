//! How many requests a recovery makes where several cells are one request: somebody waits for it.

use std::sync::Arc;

use parking_lot::Mutex;

use super::world::{Fault, TestClock, World, hold, rename};
use crate::document::{Document, Ino, Key, Orphan, SessionId, SessionState, Version};
use crate::lock::session::{Observer, Recoverer, Which};
use crate::store::cells::memory::MemoryCells;
use crate::store::cells::{
    Answers, CasError, Cell, CellKey, Cells, Change, Found, Listed, ListedCell, ScannedCell, StoredCell,
};
use crate::store::{Commit, Scan, Store, StoreError};

/// Cells that are asked for several at once, as over a network. Of each request it notes whether there were locks before.
struct InBatches {
    cells: Arc<MemoryCells>,
    world: World,
    seen: Mutex<Vec<bool>>,
}

impl InBatches {
    fn request(&self) {
        let locks = !self.world.locks().is_empty();
        self.seen.lock().push(locks);
    }
}

impl Cells for InBatches {
    fn read(&self, key: &CellKey) -> Result<Option<StoredCell>, StoreError> {
        self.request();
        self.cells.read(key)
    }

    fn read_many(&self, keys: &[CellKey]) -> Found {
        self.request();
        self.cells.read_many(keys)
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScannedCell>, StoreError> {
        self.request();
        self.cells.scan(scan)
    }

    fn list(&self, what: Listed) -> Result<Vec<ListedCell>, StoreError> {
        self.request();
        self.cells.list(what)
    }

    fn cas(&self, key: &CellKey, expected: Option<Version>, cell: Option<Cell>) -> Result<Version, CasError> {
        self.request();
        self.cells.cas(key, expected, cell)
    }

    fn cas_each(&self, changes: &[Change]) -> Answers {
        self.request();
        self.cells.cas_each(changes)
    }
}

/// A session dies in the middle of a commit, or between two, with the locks of a rename and as many holds. Returns after
/// how many requests of whoever finds it dead its locks are free.
fn requests_until_free(holds: u64, in_commit: bool) -> usize {
    let world = World::new();
    let dead = world.join(1);
    dead.acquire(&rename("/a/b/x", "/c/d/y"), 0).unwrap().abandon();
    for path in 0..holds {
        dead.acquire(&hold(&format!("/held{path}")), 0).unwrap().abandon();
    }
    if in_commit {
        let put = |commit: Commit, ino| {
            commit.put(Key::Orphan(Ino(ino)), Document::Orphan(Orphan { session: SessionId(1) }))
        };
        // The marks are set, and nothing is decided.
        dead.cells.before({
            let (cells, view) = (Arc::clone(&dead.cells), world.clone());
            move |_| {
                if view.cells.read(&CellKey::Document(Key::Orphan(Ino(3)))).unwrap().is_some() {
                    cells.fail(0, Fault::Dies);
                }
            }
        });
        assert!(dead.store.commit(&(1..=3).fold(Commit::new(), put)).is_err());
        assert!(world.cells.read(&CellKey::Document(Key::Orphan(Ino(3)))).unwrap().is_some());
    }
    let cells =
        Arc::new(InBatches { cells: Arc::clone(&world.cells), world: world.clone(), seen: Mutex::default() });
    let recoverer = Recoverer::new(cells.clone(), Arc::new(TestClock::default()), 9);
    let known = [SessionId(1)];
    let mut observer = Observer::default();
    let census = recoverer.look(Which::Known(&known), &mut observer, &|_| true, &|_| true).unwrap();
    assert_eq!(census.dead.len(), 1);
    recoverer.recover(SessionId(1), &|_| Ok(())).unwrap();
    assert_eq!((world.state(1), world.slots(1)), (None::<SessionState>, 0));
    let seen = cells.seen.lock();
    seen.iter().filter(|locks| **locks).count()
}

/// The look, the fence, the session, its slots; those are read once more and sealed, all at once; the locks are listed and
/// freed, all at once. What was being committed is aborted before, and its marks are taken away.
#[test]
fn the_locks_of_the_dead_are_free_after_few_requests() {
    for holds in [0, 20] {
        assert_eq!(requests_until_free(holds, false), 8, "{holds} holds");
        assert_eq!(requests_until_free(holds, true), 12, "{holds} holds");
    }
}
