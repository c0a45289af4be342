//! Documents of a shared engine, remembered in memory for a bounded time.
//!
//! What is read here may be old: by the time that a notice takes, or where notices fail by the cache's time to live. That
//! is harmless to changes, since every commit checks the versions that its plan rests on, and a commit that meets another
//! version makes this forget all that it was planned on. Imports the port and the measure of a document's weight.
//!
//! What is hard: nothing may be remembered that was read before a change of which the notice came first. A read leaves a
//! placeholder before it asks the engine; a notice takes away what is there, placeholders too, and then the answer is used
//! once and not remembered. A commit of this process does the same with what it writes, from before it is sent.
//!
//! A merge says how a document changes and not what it becomes, so in general it is forgotten. If the commit checks the
//! version that is remembered, it is known. And of a directory, which nearly every change merges into, it is remembered as
//! it probably is, under a version that no document has ([`UNCERTAIN`]): good enough to be looked at, and a change that
//! rests on it meets a conflict and reads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use quick_cache::sync::{Cache, DefaultLifecycle, EntryAction, EntryResult, GuardResult, PlaceholderGuard};
use quick_cache::{DefaultHashBuilder, Weighter};

use super::embedded::cache::{FIXED_BYTES, weight_bytes};
use super::{
    Capabilities, Check, Commit, CommitError, Granting, Intents, Listener, Notice, Outages, Reader, Scan,
    ScanItem, Store, StoreCounters, StoreError, Write,
};
use crate::ambient;
use crate::document::{Document, Key, Kind, SessionId, Stored, Version};

/// The version of a directory of which only a merge was seen.
const UNCERTAIN: Version = Version(u64::MAX);

/// How long a reader waits for another one that asks for the same document. Then it asks as well: a store that is away is
/// waited for by all at the same time, and not by one after the other.
const OTHERS_WAITED_FOR: Duration = Duration::from_secs(1);

/// What stood under a key, and when that was asked for.
#[derive(Clone)]
struct Seen {
    found: Option<Stored>,
    asked: Instant,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<Key, Seen> for ByBytes {
    fn weight(&self, key: &Key, seen: &Seen) -> u64 {
        weight_bytes(key, seen.found.as_ref())
    }
}

type Documents = Cache<Key, Seen, ByBytes>;
type Guard<'a> = PlaceholderGuard<'a, Key, Seen, ByBytes, DefaultHashBuilder, DefaultLifecycle<Key, Seen>>;

/// An engine that others change as well, with a memory.
pub struct CachedStore {
    engine: Arc<dyn Store>,
    memory: Arc<Memory>,
    ttl: Duration,
}

struct Memory {
    documents: Documents,
    /// The sessions that change the engine through this memory, which knows their changes already.
    own: RwLock<Vec<SessionId>>,
    listeners: Mutex<Vec<Arc<dyn Listener>>>,
}

impl CachedStore {
    /// Remembers documents of `engine`, at most about `bytes` of them and none for longer than `ttl`.
    ///
    /// # Errors
    /// When the engine cannot tell of changes.
    pub fn new(engine: Arc<dyn Store>, bytes: u64, ttl: Duration) -> Result<Self, StoreError> {
        let items = usize::try_from(bytes / FIXED_BYTES).unwrap_or(usize::MAX);
        let documents = Cache::with_weighter(items, bytes, ByBytes);
        let memory = Arc::new(Memory { documents, own: RwLock::default(), listeners: Mutex::default() });
        engine.listen(Arc::clone(&memory) as Arc<dyn Listener>)?;
        Ok(Self { engine, memory, ttl })
    }

    fn is_fresh(&self, seen: &Seen) -> bool {
        seen.asked.elapsed() < self.ttl
    }

    /// What is remembered of a key and not too old.
    fn remembered(&self, key: &Key) -> Option<Seen> {
        let seen = self.memory.documents.get(key)?;
        if self.is_fresh(&seen) {
            return Some(seen);
        }
        self.memory.documents.remove(key);
        None
    }

    fn forget_all_of(&self, commit: &Commit) {
        let checked = commit.checks.iter().map(Check::key);
        for key in checked.chain(commit.writes.iter().map(Write::key)) {
            self.memory.documents.remove(key);
        }
    }
}

impl Memory {
    /// Puts a placeholder in the place of what is remembered, and returns both. At one instant: a notice that came in
    /// between would find nothing to take away, and what rests on what was there before it would be remembered.
    fn hold(&self, key: &Key) -> (Option<Seen>, Option<Guard<'_>>) {
        let replace = |_: &Key, _: &mut Seen| EntryAction::<()>::ReplaceWithGuard;
        match self.documents.entry(key, Some(Duration::ZERO), replace) {
            EntryResult::Replaced(guard, seen) => (Some(seen), Some(guard)),
            EntryResult::Vacant(guard) => (None, Some(guard)),
            // Somebody reads it, who is not to remember what he finds.
            EntryResult::Timeout | EntryResult::Retained(()) | EntryResult::Removed(..) => {
                self.documents.remove(key);
                match self.documents.get_value_or_guard(key, Some(Duration::ZERO)) {
                    GuardResult::Guard(guard) => (None, Some(guard)),
                    GuardResult::Value(_) | GuardResult::Timeout => (None, None),
                }
            }
        }
    }
}

/// Others change these so often, or only once, that they are asked for every time. Chunks are kept by `content::chunks`,
/// under the version of their node: an old one from here would be taken for one that was read under a new version.
fn is_remembered(key: &Key) -> bool {
    !matches!(
        key.kind(),
        Kind::Volume | Kind::Session | Kind::Lock | Kind::Advisory | Kind::Orphan | Kind::Chunk
    )
}

/// What a merge probably makes of a document.
struct Merged {
    document: Document,
    /// Whether it is sure once the commit is made.
    is_certain: bool,
    /// When what it rests on was asked for.
    seen: Instant,
}

fn merged(commit: &Commit, write: &Write, seen: Seen) -> Option<Merged> {
    let (Write::Merge(key, _), Some(before)) = (write, &seen.found) else { return None };
    let checked = |check: &Check| matches!(check, Check::Version(of, version) if of == key && *version == before.version);
    let is_certain = commit.checks.iter().any(checked);
    let is_directory = matches!(&*before.document, Document::Node(node) if node.directory().is_some());
    if !is_certain && !is_directory {
        return None;
    }
    let document = write.apply(Some(before)).ok()??;
    Some(Merged { document, is_certain: is_certain && before.version != UNCERTAIN, seen: seen.asked })
}

impl Reader for CachedStore {
    fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        if !is_remembered(key) {
            return self.engine.get(key);
        }
        loop {
            match self.memory.documents.get_value_or_guard(key, Some(OTHERS_WAITED_FOR)) {
                GuardResult::Value(seen) if self.is_fresh(&seen) => return Ok(seen.found),
                GuardResult::Value(_) => drop(self.memory.documents.remove(key)),
                GuardResult::Guard(guard) => {
                    let asked = ambient::monotonic();
                    let found = self.engine.get(key)?;
                    // Refused if the placeholder was taken away; see the module.
                    let _ = guard.insert(Seen { found: found.clone(), asked });
                    return Ok(found);
                }
                GuardResult::Timeout => return self.engine.get(key),
            }
        }
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Stored>>, StoreError> {
        let mut all: Vec<Option<Seen>> = Vec::with_capacity(keys.len());
        let (mut missing, mut guards) = (Vec::new(), Vec::new());
        for key in keys {
            let seen = if is_remembered(key) { self.remembered(key) } else { None };
            if seen.is_none() {
                // Not waited for: two readers of several keys could wait for each other.
                let guard = match self.memory.documents.get_value_or_guard(key, Some(Duration::ZERO)) {
                    GuardResult::Guard(guard) if is_remembered(key) => Some(guard),
                    _ => None,
                };
                missing.push(key.clone());
                guards.push(guard);
            }
            all.push(seen);
        }
        let asked = ambient::monotonic();
        let found = if missing.is_empty() { Vec::new() } else { self.engine.get_many(&missing)? };
        let mut found = found.into_iter().zip(guards).map(|(found, guard)| {
            if let Some(guard) = guard {
                let _ = guard.insert(Seen { found: found.clone(), asked });
            }
            found
        });
        Ok(all
            .into_iter()
            .map(|seen| seen.map_or_else(|| found.next().flatten(), |seen| seen.found))
            .collect())
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        self.engine.scan(scan)
    }

    fn scan_keys(&self, scan: &Scan) -> Result<Vec<Key>, StoreError> {
        self.engine.scan_keys(scan)
    }
}

impl CachedStore {
    /// Has the engine make a commit, unless it is not granted, and remembers what is known by that.
    fn remember(
        &self,
        commit: &Commit,
        make: impl FnOnce() -> Result<Option<Version>, CommitError>,
    ) -> Result<Option<Version>, CommitError> {
        if let Some(session) = commit.session
            && !self.memory.own.read().contains(&session)
        {
            self.memory.own.write().push(session);
        }
        let written = commit.writes.iter().filter(|write| is_remembered(write.key()));
        let guards: Vec<_> = written
            .map(|write| {
                let (before, guard) = self.memory.hold(write.key());
                let merged =
                    before.filter(|seen| self.is_fresh(seen)).and_then(|seen| merged(commit, write, seen));
                (write, merged, guard)
            })
            .collect();
        let asked = ambient::monotonic();
        let version = match make() {
            Ok(Some(version)) => version,
            Ok(None) => return Ok(None),
            Err(error) => {
                drop(guards);
                self.forget_all_of(commit);
                return Err(error);
            }
        };
        let one_version = self.capabilities().tells_versions_of(commit);
        for (write, merged, guard) in guards {
            let mut asked = asked;
            let found = match write {
                // Without its version it is of no use.
                Write::Put(key, _) if !one_version => {
                    drop(guard);
                    self.memory.documents.remove(key);
                    continue;
                }
                Write::Put(_, document) => {
                    Some(Stored { version, document: Document::clone(document).into() })
                }
                Write::Delete(_) => None,
                Write::Merge(key, _) => match merged.filter(|_| one_version) {
                    Some(Merged { document, is_certain, seen }) => {
                        asked = seen;
                        let version = if is_certain { version } else { UNCERTAIN };
                        Some(Stored { version, document: document.into() })
                    }
                    // What it has become only the engine knows. Without a guard a reader may have seen what was before.
                    None => {
                        drop(guard);
                        self.memory.documents.remove(key);
                        continue;
                    }
                },
            };
            // Refused if the placeholder was taken away. Whoever has read since then has remembered what was before.
            let is_remembered = guard.is_some_and(|guard| guard.insert(Seen { found, asked }).is_ok());
            if !is_remembered {
                self.memory.documents.remove(write.key());
            }
        }
        Ok(Some(version))
    }
}

impl Store for CachedStore {
    fn commit(&self, commit: &Commit) -> Result<Version, CommitError> {
        Ok(self.remember(commit, || self.engine.commit(commit).map(Some))?.unwrap_or_default())
    }

    fn commit_once(&self, commit: &Commit, granting: Granting<'_>) -> Result<Option<Version>, CommitError> {
        self.remember(commit, || self.engine.commit_once(commit, granting))
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.engine.sync()
    }

    fn losses(&self) -> u64 {
        self.engine.losses()
    }

    fn lost_after_sync(&self) -> Duration {
        self.engine.lost_after_sync()
    }

    fn admit_content(&self, bytes: u64) -> Result<(), StoreError> {
        self.engine.admit_content(bytes)
    }

    fn reserve_bytes(&self) -> u64 {
        self.engine.reserve_bytes()
    }

    fn stop(&self, cause: &str) {
        self.engine.stop(cause);
    }

    fn listen(&self, listener: Arc<dyn Listener>) -> Result<(), StoreError> {
        self.memory.listeners.lock().push(listener);
        Ok(())
    }

    fn forget(&self, keys: &[Key]) {
        keys.iter().for_each(|key| drop(self.memory.documents.remove(key)));
        self.engine.forget(keys);
    }

    fn outages(&self) -> Option<&Outages> {
        self.engine.outages()
    }

    fn intents(&self) -> Option<&dyn Intents> {
        self.engine.intents()
    }

    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn snapshot(&self) -> Box<dyn Reader + '_> {
        self.engine.snapshot()
    }

    fn counters(&self) -> StoreCounters {
        self.engine.counters()
    }
}

impl Listener for Memory {
    fn notice(&self, notice: &Notice) {
        match notice {
            Notice::Changed { by: Some(session), .. } if self.own.read().contains(session) => {}
            Notice::Changed { keys, .. } => {
                for key in keys {
                    self.documents.remove(key);
                }
            }
            Notice::Lost => self.documents.clear(),
        }
        // After the memory has forgotten: who is told, and asks, gets what is new.
        let listeners = self.listeners.lock().clone();
        for listener in listeners {
            listener.notice(notice);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Ino, NodeDelta, Session, SessionState, Timestamp};
    use crate::store::conformance::{self, directory};
    use crate::store::memory::MemoryStore;

    const LONG: Duration = Duration::from_secs(3600);

    fn cached(engine: &Arc<MemoryStore>, ttl: Duration) -> CachedStore {
        CachedStore::new(Arc::clone(engine) as Arc<dyn Store>, 1 << 20, ttl).unwrap()
    }

    fn key() -> Key {
        Key::Node(Ino(7))
    }

    fn children(store: &CachedStore) -> Option<u64> {
        store.node(Ino(7)).unwrap().map(|(_, node)| node.directory().unwrap().children)
    }

    #[test]
    fn conforms() {
        for ttl in [Duration::ZERO, LONG] {
            conformance::run(&|| Box::new(cached(&Arc::new(MemoryStore::new()), ttl)));
        }
    }

    #[test]
    fn what_others_change_is_forgotten_when_they_tell() {
        let engine = Arc::new(MemoryStore::new());
        let store = cached(&engine, LONG);
        assert_eq!(children(&store), None);
        engine.commit(&Commit::new().put(key(), directory(1))).unwrap();
        assert_eq!(children(&store), Some(1));
        let before = engine.counters().gets;
        assert_eq!(children(&store), Some(1));
        assert_eq!(store.get_many(&[key()]).unwrap().len(), 1);
        assert_eq!(engine.counters().gets, before, "asked for what is remembered");
        store.forget(&[key()]);
        assert_eq!(children(&store), Some(1));
        assert_eq!(engine.counters().gets, before + 1);
    }

    #[test]
    fn nothing_is_remembered_beyond_its_time() {
        let engine = Arc::new(MemoryStore::new());
        let store = cached(&engine, Duration::from_millis(20));
        engine.commit(&Commit::new().put(key(), directory(1))).unwrap();
        assert_eq!(children(&store), Some(1));
        std::thread::sleep(Duration::from_millis(30));
        let before = engine.counters().gets;
        assert_eq!(children(&store), Some(1));
        assert_eq!(engine.counters().gets, before + 1);
    }

    /// A session that lives.
    fn live(engine: &MemoryStore) -> SessionId {
        let id = SessionId(3);
        let session = Document::Session(Session {
            id,
            host: String::new(),
            boot_id: String::new(),
            pid: 1,
            mount_point: String::new(),
            started: Timestamp::default(),
            lease_ms: 1,
            heartbeat: 0,
            epoch: 0,
            intents: 0,
            operations_below: 0,
            state: SessionState::Live,
            locks: None,
        });
        engine.commit(&Commit::new().put(Key::Session(id), session)).unwrap();
        id
    }

    #[test]
    fn own_changes_are_remembered_though_the_engine_tells_of_them() {
        let engine = Arc::new(MemoryStore::new());
        let store = cached(&engine, LONG);
        let id = live(&engine);
        store.commit(&Commit::new().put(key(), directory(4)).by(id)).unwrap();
        let before = engine.counters().gets;
        assert_eq!(children(&store), Some(4));
        assert_eq!(engine.counters().gets, before);
        // Who loses makes everything that it was planned on be read again.
        let (version, _) = store.node(Ino(7)).unwrap().unwrap();
        engine.commit(&Commit::new().put(key(), directory(5)).by(id)).unwrap();
        let lost = store.commit(&Commit::new().at(key(), version).delete(key()).by(id));
        assert!(matches!(lost, Err(CommitError::Conflict(_))));
        assert_eq!(children(&store), Some(5));
    }

    #[test]
    fn what_a_reader_finds_while_a_commit_is_made_is_not_kept() {
        let engine = Arc::new(MemoryStore::new());
        let store = cached(&engine, LONG);
        engine.commit(&Commit::new().put(key(), directory(1))).unwrap();
        assert_eq!(children(&store), Some(1));
        let commit = Commit::new().delete(key()).by(live(&engine));
        let made = store.remember(&commit, || {
            // Somebody takes the placeholder away, and another reads before the commit is made.
            store.forget(&[key()]);
            assert_eq!(children(&store), Some(1));
            engine.commit(&commit).map(Some)
        });
        assert!(made.unwrap().is_some());
        assert_eq!(children(&store), None);
    }

    #[test]
    fn a_merge_is_remembered_as_far_as_it_is_known() {
        let engine = Arc::new(MemoryStore::new());
        let store = cached(&engine, LONG);
        let more = |children| NodeDelta { children, ..NodeDelta::default() };
        let id = live(&engine);
        engine.commit(&Commit::new().put(key(), directory(1))).unwrap();
        let (version, _) = store.node(Ino(7)).unwrap().unwrap();
        let before = engine.counters().gets;
        let version = store.commit(&Commit::new().at(key(), version).merge(key(), more(1)).by(id)).unwrap();
        assert_eq!(store.node(Ino(7)).unwrap().map(|(version, _)| version), Some(version));
        store.commit(&Commit::new().merge(key(), more(1)).by(id)).unwrap();
        assert_eq!((children(&store), engine.counters().gets), (Some(3), before));
        // Who changes it on that ground must look first.
        let (uncertain, _) = store.node(Ino(7)).unwrap().unwrap();
        let refused = store.commit(&Commit::new().at(key(), uncertain).put(key(), directory(9)).by(id));
        assert!(matches!(refused, Err(CommitError::Conflict(_))));
        assert_eq!((children(&store), engine.counters().gets), (Some(3), before + 1));
    }
}
