//! The engine in memory: the port's contract in its plainest form, for tests. Several mounts may share it, as processes
//! share an engine behind a network.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::commit::{Commit, CommitError};
use super::counts::Counts;
use super::scan::{Pager, bounds};
use super::stopped::Stopped;
use super::{Capabilities, Listener, Notice, Reader, Scan, ScanItem, Store, StoreCounters, StoreError};
use crate::document::{Key, Kind, Stored, Version};

type Tree = BTreeMap<(Kind, Vec<u8>), Stored>;

/// A store that forgets everything when it is dropped.
#[derive(Default)]
pub struct MemoryStore {
    tree: RwLock<Tree>,
    counts: Counts,
    last: Mutex<u64>,
    stopped: Stopped,
    listeners: Mutex<Vec<Arc<dyn Listener>>>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }
}

impl MemoryStore {
    fn apply(&self, commit: &Commit) -> Result<Version, CommitError> {
        let mut tree = self.tree.write();
        self.stopped.refuse()?;
        let current = |key: &Key| tree.get(&(key.kind(), key.encode()));
        let session = commit.session.and_then(|session| current(&Key::Session(session)));
        if !commit.may_be_made(session) {
            return Err(StoreError::Fenced.into());
        }
        if let Some(failed) = commit.checks.iter().find(|check| !check.holds(current(check.key()))) {
            return Err(CommitError::Conflict(failed.key().clone()));
        }
        let after: Result<Vec<_>, _> = commit.writes.iter().map(|w| w.apply(current(w.key()))).collect();
        let after = after?;
        let version = {
            let mut last = self.last.lock();
            *last += 1;
            Version(*last)
        };
        for (write, document) in commit.writes.iter().zip(after) {
            let slot = (write.key().kind(), write.key().encode());
            match document {
                Some(document) => tree.insert(slot, Stored { version, document: document.into() }),
                None => tree.remove(&slot),
            };
        }
        Ok(version)
    }

    fn tell(&self, commit: &Commit, at: Version) {
        let keys: Vec<Key> = commit.told().cloned().collect();
        if keys.is_empty() {
            return;
        }
        let notice = Notice::Changed { at: Some(at), by: commit.session, keys };
        for listener in &*self.listeners.lock() {
            listener.notice(&notice);
        }
    }
}

struct Snapshot(Tree);

fn scan(tree: &Tree, scan: &Scan) -> Vec<ScanItem> {
    let (kind, from, prefix) = bounds(scan);
    let from = from.map(|bytes| (kind, bytes));
    let mut page = Vec::new();
    let mut pager = Pager::new(scan);
    for ((k, bytes), stored) in tree.range((from, Bound::Unbounded)) {
        if *k != kind || !bytes.starts_with(&prefix) {
            break;
        }
        let Some(key) = Key::decode(kind, bytes) else { continue };
        if !pager.admits(page.len(), &key) {
            break;
        }
        page.push((key, Ok(stored.clone())));
    }
    page
}

impl Reader for Snapshot {
    fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        Ok(self.0.get(&(key.kind(), key.encode())).cloned())
    }

    fn scan(&self, request: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        Ok(scan(&self.0, request))
    }
}

impl Reader for MemoryStore {
    fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        self.counts.got(1);
        self.counts.fetched(1);
        Ok(self.tree.read().get(&(key.kind(), key.encode())).cloned())
    }

    fn scan(&self, request: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        self.counts.scanned();
        Ok(scan(&self.tree.read(), request))
    }
}

impl Store for MemoryStore {
    fn commit(&self, commit: &Commit) -> Result<Version, CommitError> {
        let outcome = self.apply(commit);
        self.counts.committed(commit, &outcome);
        if let Ok(version) = &outcome {
            self.tell(commit, *version);
        }
        outcome
    }

    fn listen(&self, listener: Arc<dyn Listener>) -> Result<(), StoreError> {
        self.listeners.lock().push(listener);
        Ok(())
    }

    fn stop(&self, cause: &str) {
        self.stopped.stop(cause);
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.stopped.refuse()?;
        self.counts.synced();
        Ok(())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { snapshots: true, one_version: true, shared: true, notices: true }
    }

    fn snapshot(&self) -> Box<dyn Reader + '_> {
        Box::new(Snapshot(self.tree.read().clone()))
    }

    fn counters(&self) -> StoreCounters {
        self.counts.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::conformance;

    #[test]
    fn conforms() {
        conformance::run(&|| Box::new(MemoryStore::new()));
    }
}
