//! An engine whose changes of advisory locks, removals and syncs can fail, of which a document can be damaged, whose
//! notices and answers to renames can be lost, and which counts what it is asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;

use crate::document::{Key, Stored, Version};
use crate::store::memory::MemoryStore;
use crate::store::{
    Capabilities, Commit, CommitError, Durability, Listener, Reader, Scan, ScanItem, Store, StoreCounters,
    StoreError, Write,
};

/// What is done to the store while a rename is under way.
type Meanwhile = Box<dyn FnOnce(&MemoryStore) + Send>;

/// An engine that can be away, and whose notices can be lost.
#[derive(Default)]
pub(super) struct Engine {
    pub(super) memory: MemoryStore,
    /// What stands there cannot be read.
    pub(super) damaged: Mutex<Option<Key>>,
    /// No change of advisory locks gets there.
    pub(super) away: AtomicBool,
    /// Nothing that is to go for good does.
    pub(super) keeps: AtomicBool,
    /// Nothing is made to last.
    pub(super) unsynced: AtomicBool,
    /// The answer to the next rename is lost, and whether it is made before that.
    pub(super) loses: Mutex<Option<bool>>,
    /// The rename whose answer was lost.
    pub(super) lost: Mutex<Option<Commit>>,
    /// Is done before the next rename is made.
    pub(super) before_rename: Mutex<Option<Meanwhile>>,
    /// Of each commit that has taken locks, and of nothing else.
    pub(super) locks_taken: Mutex<Vec<Durability>>,
    /// The next change of names is refused for this document, as if it had changed.
    pub(super) refuses: Mutex<Option<Key>>,
    /// No name is changed after that.
    pub(super) names_stay: AtomicBool,
    /// Nobody is told of anything.
    silent: bool,
    /// How often it was asked for documents, one or many.
    reads: AtomicU64,
}

impl Engine {
    /// One whose notices are lost.
    pub(super) fn silent() -> Self {
        Self { silent: true, ..Self::default() }
    }

    /// How many requests `work` makes that read. Heartbeats are counted with the rest, but come seldom: the least of some
    /// tries is the cost.
    pub(super) fn reads_of(&self, mut work: impl FnMut()) -> u64 {
        let counted = (0..5).map(|_| {
            let before = self.reads.load(SeqCst);
            work();
            self.reads.load(SeqCst) - before
        });
        counted.min().unwrap_or(0)
    }
}

fn is_away() -> StoreError {
    StoreError::Engine { what: "a test".to_owned(), source: "away".into() }
}

impl Reader for Engine {
    fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        self.reads.fetch_add(1, SeqCst);
        if self.damaged.lock().as_ref() == Some(key) {
            return Err(StoreError::Damaged { key: key.to_string(), cause: "a test".to_owned() });
        }
        self.memory.get(key)
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Stored>>, StoreError> {
        self.reads.fetch_add(1, SeqCst);
        self.memory.get_many(keys)
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        self.reads.fetch_add(1, SeqCst);
        self.memory.scan(scan)
    }
}

impl Store for Engine {
    fn commit(&self, commit: &Commit) -> Result<Version, CommitError> {
        let of_locks = commit.writes.iter().any(|write| matches!(write.key(), Key::Advisory(_)));
        let removes = commit.writes.iter().any(|write| matches!(write, Write::Delete(Key::Node(_))));
        let of_names = commit.writes.iter().any(|write| matches!(write.key(), Key::Entry(..)));
        let before = self.before_rename.lock().take_if(|_| of_names);
        if let Some(before) = before {
            before(&self.memory);
        }
        if of_names && let Some(is_made) = self.loses.lock().take() {
            *self.lost.lock() = Some(commit.clone());
            if is_made {
                self.memory.commit(commit)?;
            }
            return Err(StoreError::Unknown("a test".to_owned()).into());
        }
        if of_names && let Some(key) = self.refuses.lock().take() {
            return Err(CommitError::Conflict(key));
        }
        if of_names && self.names_stay.load(SeqCst) {
            return Err(is_away().into());
        }
        if (of_locks && self.away.load(SeqCst)) || (removes && self.keeps.load(SeqCst)) {
            return Err(is_away().into());
        }
        let made = self.memory.commit(commit)?;
        let takes = |write: &Write| matches!(write, Write::Put(Key::Lock(_), _));
        if !commit.writes.is_empty() && commit.writes.iter().all(takes) {
            self.locks_taken.lock().push(commit.durability);
        }
        Ok(made)
    }

    fn listen(&self, listener: Arc<dyn Listener>) -> Result<(), StoreError> {
        if self.silent { Ok(()) } else { self.memory.listen(listener) }
    }

    fn sync(&self) -> Result<(), StoreError> {
        if self.unsynced.load(SeqCst) { Err(is_away()) } else { self.memory.sync() }
    }

    fn admit_content(&self, bytes: u64) -> Result<(), StoreError> {
        self.memory.admit_content(bytes)
    }

    fn reserve_bytes(&self) -> u64 {
        self.memory.reserve_bytes()
    }

    fn stop(&self, cause: &str) {
        self.memory.stop(cause);
    }

    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn snapshot(&self) -> Box<dyn Reader + '_> {
        self.memory.snapshot()
    }

    fn counters(&self) -> StoreCounters {
        self.memory.counters()
    }
}
