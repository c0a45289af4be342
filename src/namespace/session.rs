//! The session of a mount: how it begins, what it cleans up after those before it, and how it ends.
//!
//! An embedded store has one owner process, proved by the lock on its owner file. So a session that is found when a mount
//! begins is dead: its locks died with its process, and what it left is collected before the tree is served.

use std::sync::Arc;

use super::collect::Collector;
use super::inodes::InodeTable;
use super::numbers::InodeNumbers;
use super::{Namespace, NamespaceError, Result, Settings};
use crate::ambient;
use crate::content::BackingFiles;
use crate::document::{Document, Key, Kind, Session, SessionId, SessionState, Volume};
use crate::lock::LockTable;
use crate::store::{Commit, Range, Store, StoreError, for_each};

/// What a session says of itself.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// The name of the host.
    pub host: String,
    /// The boot of the host.
    pub boot_id: String,
    /// The process.
    pub pid: u32,
    /// Where the volume is mounted.
    pub mount_point: String,
}

/// How long others would wait for a heartbeat; an embedded store has no others.
const LEASE_MS: u64 = 10_000;

impl Namespace {
    /// Begins a session on `store`, and first recovers what dead sessions left.
    ///
    /// # Errors
    /// When the store fails, or holds no volume.
    pub fn begin(
        store: Arc<dyn Store>,
        backing: BackingFiles,
        settings: Settings,
        info: SessionInfo,
    ) -> Result<Self> {
        let volume = begin_epoch(&*store)?;
        let session = SessionId(ambient::random_u64());
        let collector = Collector::start(Arc::clone(&store), backing.clone())?;
        let dead = dead_sessions(&*store)?;
        if !dead.is_empty() {
            recover(&*store, &collector, &dead)?;
        }
        let document = Session {
            id: session,
            host: info.host,
            boot_id: info.boot_id,
            pid: info.pid,
            mount_point: info.mount_point,
            started: ambient::wall_clock().into(),
            lease_ms: LEASE_MS,
            heartbeat: 0,
            epoch: volume.epoch,
            intents: 0,
            operations_below: 0,
            state: SessionState::Live,
        };
        store.commit(&Commit::new().put(Key::Session(session), Document::Session(document)))?;
        Ok(Self {
            numbers: InodeNumbers::new(Arc::clone(&store)),
            store,
            backing,
            locks: LockTable::new(),
            session,
            volume,
            settings,
            inodes: InodeTable::new(),
            splits: super::ops::readdir::Splits::default(),
            collector,
        })
    }

    /// Ends the session: nobody waits for a lock any more, what is to be removed is removed, and the session's document
    /// goes last. Files that are still open and have no name are collected by the next mount.
    ///
    /// # Errors
    /// When the store fails; the next mount then recovers.
    pub fn end(&self) -> Result<()> {
        self.locks.close();
        self.collector.finish();
        let mut left = false;
        for_each::<_, StoreError>(&*self.store, Range::All(Kind::Orphan), |_, _| {
            left = true;
            Ok(())
        })?;
        if left {
            // The document stays behind and tells the next mount to collect.
            log::warn!("files without a name were open to the end; the next mount collects them");
        } else {
            self.store.commit(&Commit::new().delete(Key::Session(self.session)))?;
        }
        Ok(self.store.sync()?)
    }

    /// How many inodes are open or at work on.
    pub fn open_inodes(&self) -> usize {
        self.inodes.open_count()
    }
}

fn begin_epoch(store: &dyn Store) -> Result<Volume> {
    let missing = || StoreError::Damaged { key: Key::Volume.to_string(), cause: "it is missing".to_owned() };
    let stored = store.get(&Key::Volume)?.ok_or_else(missing)?;
    let Document::Volume(volume) = &*stored.document else { return Err(missing().into()) };
    let volume = Volume { epoch: volume.epoch + 1, ..volume.clone() };
    let commit =
        Commit::new().at(Key::Volume, stored.version).put(Key::Volume, Document::Volume(volume.clone()));
    store.commit(&commit)?;
    Ok(volume)
}

fn dead_sessions(store: &dyn Store) -> Result<Vec<Key>> {
    let mut dead = Vec::new();
    for_each::<_, NamespaceError>(store, Range::All(Kind::Session), |key, stored| {
        match stored.as_ref().map(|s| &*s.document) {
            Ok(Document::Session(s)) => log::warn!(
                "session {} (process {} on {}, mounted at {}) ended without closing the store; recovering",
                s.id,
                s.pid,
                s.host,
                s.mount_point
            ),
            _ => log::warn!("{key} is damaged; recovering what it left"),
        }
        dead.push(key);
        Ok(())
    })?;
    Ok(dead)
}

/// Collects what was unlinked but open when its session died, then removes the session's document: in this order, so
/// that a crash in between recovers again.
fn recover(store: &dyn Store, collector: &Collector, dead: &[Key]) -> Result<()> {
    let mut orphans = Vec::new();
    for_each::<_, NamespaceError>(store, Range::All(Kind::Orphan), |key, _| {
        orphans.extend(match key {
            Key::Orphan(ino) => Some(ino),
            _ => None,
        });
        Ok(())
    })?;
    let mut left = 0;
    for ino in &orphans {
        if let Err(error) = collector.collect_now(*ino) {
            log::error!("{}: {error}; it is left, and takes space; run lockwood check", Key::Orphan(*ino));
            left += 1;
        }
    }
    for key in dead.iter().filter(|_| left == 0) {
        store.commit(&Commit::new().delete(key.clone()))?;
    }
    collector.sweep();
    log::info!("recovered {} dead sessions and {} files without a name", dead.len(), orphans.len());
    Ok(())
}
