//! The session of a mount: how it begins, what it cleans up after those before it, and how it is declared dead. How it ends
//! well is [`end`](super::end)'s.
//!
//! An embedded store has one owner process, proved by the lock on its owner file. So a session that is found when a mount
//! begins is dead: its locks died with its process, and what it left is collected before the tree is served.
//!
//! A process may mount the store several times. The mounts have a session each and share everything else, so a file that
//! was unlinked through one stays while another has it open.
//!
//! What is hard: a session may be declared dead while its mount is still served ([`Namespace::fence`]). First it is made
//! unable to change anything, then its locks go to others, and only then is it recovered.

use std::sync::Arc;

use parking_lot::Mutex;

use super::advisory::Advisory;
use super::collect::Collector;
use super::gate::Gate;
use super::in_doubt::InDoubt;
use super::inodes::InodeTable;
use super::membership::{Beginning, Membership};
use super::numbers::InodeNumbers;
use super::ops;
use super::ops::readdir::{Rests, Splits};
use super::peers::{Peers, Watcher};
use super::write_back::WriteBack;
use super::{Namespace, NamespaceError, Result, Settings};
use crate::ambient;
use crate::content::Contents;
use crate::document::{Document, Ino, Key, Kind, Orphan, Session, SessionId, SessionState, Version, Volume};
use crate::lock::{Broken, LockTable, Locks};
use crate::store::redis::servers::Servers;
use crate::store::{Commit, Range, Reader, Store, StoreError, for_each};

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

/// What fencing a session did.
#[derive(Clone, Debug)]
pub struct Fenced {
    /// It had been fenced before; nothing was done now.
    pub before: bool,
    /// Nothing is left of it to be cleaned up.
    pub recovered: bool,
    /// The operations that held locks or waited for them.
    pub broken: Vec<Broken>,
}

/// How long others would wait for a heartbeat; an embedded store has no others.
const LEASE_MS: u64 = 10_000;

/// What the sessions of a process share.
struct Process {
    store: Arc<dyn Store>,
    contents: Contents,
    settings: Settings,
    inodes: Arc<InodeTable>,
    splits: Arc<Splits>,
    rests: Arc<Rests>,
    collector: Arc<Collector>,
    peers: Arc<Peers>,
    advisory: Arc<Advisory>,
}

impl Process {
    fn start(
        store: Arc<dyn Store>,
        contents: Contents,
        settings: Settings,
        advisory: Advisory,
    ) -> Result<Self> {
        let collector = Arc::new(Collector::start(Arc::clone(&store), contents.clone())?);
        Ok(Self {
            store,
            contents,
            settings,
            inodes: Arc::new(InodeTable::new()),
            splits: Arc::default(),
            rests: Arc::default(),
            collector,
            peers: Arc::default(),
            advisory: Arc::new(advisory),
        })
    }

    /// Begins a session beside those of other hosts, with its locks on servers of their own if any are named.
    fn join(self, info: SessionInfo, lock_servers: Option<Arc<Servers>>) -> Result<Namespace> {
        let volume = begin_epoch_among_others(&*self.store)?;
        let beginning = Beginning {
            info,
            lease: self.settings.lease,
            epoch: volume.epoch,
            volume: &volume.id,
            lock_servers,
        };
        let (membership, locks) = Membership::join(&self.store, &self.collector, beginning)?;
        Ok(self.with(membership.id(), volume, locks, Some(membership)))
    }

    fn with(
        self,
        session: SessionId,
        volume: Volume,
        locks: Locks,
        membership: Option<Membership>,
    ) -> Namespace {
        let gate = Arc::<Gate>::default();
        let losses = self.contents.is_shared().then(|| self.store.losses());
        Namespace {
            numbers: InodeNumbers::new(Arc::clone(&self.store), Arc::clone(&gate)),
            in_doubt: InDoubt::new(Arc::clone(&self.store), Arc::clone(&gate), session),
            store: self.store,
            contents: self.contents.by(session),
            locks,
            membership,
            session,
            gate,
            volume,
            settings: self.settings,
            inodes: self.inodes,
            splits: self.splits,
            rests: self.rests,
            collector: self.collector,
            peers: self.peers,
            advisory: self.advisory,
            opens: Mutex::default(),
            write_back: WriteBack::new(self.settings.write_back_bytes, losses),
            passthrough: Arc::default(),
        }
    }
}

impl Namespace {
    /// Begins a session on `store`, and first recovers what dead sessions left. `contents` says where the bytes of large
    /// files are: in backing files, or in chunks of the same store.
    ///
    /// # Errors
    /// When the store fails, or holds no volume.
    pub fn begin(
        store: Arc<dyn Store>,
        contents: impl Into<Contents>,
        settings: Settings,
        info: SessionInfo,
    ) -> Result<Self> {
        let advisory = Advisory::in_process(&info.host);
        root_is_there(&*store)?;
        let process = Process::start(store, contents.into(), settings, advisory)?;
        let dead = dead_sessions(&*process.store)?;
        if !dead.is_empty() {
            recover(&*process.store, &process.collector, &dead)?;
        }
        ops::passthrough::recover(&*process.store, &process.contents)?;
        let (session, volume) = begin_session(&*process.store, info)?;
        process.peers.live().push(session);
        Ok(process.with(session, volume, Locks::Table(LockTable::new()), None))
    }

    /// Begins a session on a store that other hosts use as well.
    ///
    /// # Errors
    /// When the store fails, or holds no volume.
    pub fn join(
        store: Arc<dyn Store>,
        contents: impl Into<Contents>,
        settings: Settings,
        info: SessionInfo,
    ) -> Result<Self> {
        Self::join_with_locks_at(None, store, contents, settings, info)
    }

    /// The same, with the locks on servers of their own, if any are named: then all sessions of the volume must name them.
    ///
    /// # Errors
    /// Those of [`Namespace::join`]; [`NamespaceError::OtherLocks`]; `Lock` if too few of the servers answer.
    pub fn join_with_locks_at(
        lock_servers: Option<Arc<Servers>>,
        store: Arc<dyn Store>,
        contents: impl Into<Contents>,
        settings: Settings,
        info: SessionInfo,
    ) -> Result<Self> {
        root_is_there(&*store)?;
        let advisory = Advisory::among_hosts(&info.host, &*store)?;
        let joined = Process::start(store, contents.into(), settings, advisory)?.join(info, lock_servers)?;
        joined.peers.live().push(joined.session);
        Ok(joined)
    }

    /// Begins a further session of this process on the same store.
    ///
    /// # Errors
    /// When the store fails.
    pub fn beside(&self, info: SessionInfo) -> Result<Self> {
        let process = Process {
            store: Arc::clone(&self.store),
            contents: self.contents.clone(),
            settings: self.settings,
            inodes: Arc::clone(&self.inodes),
            splits: Arc::clone(&self.splits),
            rests: Arc::clone(&self.rests),
            collector: Arc::clone(&self.collector),
            peers: Arc::clone(&self.peers),
            advisory: Arc::clone(&self.advisory),
        };
        let mut live = self.peers.live();
        let other = if self.is_shared() {
            process.join(info, self.locks.servers().cloned())?
        } else {
            let (session, volume) = begin_session(&*process.store, info)?;
            process.with(session, volume, self.locks.clone(), None)
        };
        live.push(other.session);
        Ok(other)
    }

    /// From here on every change through one of the sessions is told to the others before it is acknowledged. Called once,
    /// when all sessions of the process have begun and none has been asked for anything.
    pub fn watch(&self, watchers: Vec<(SessionId, Arc<dyn Watcher>)>) {
        self.peers.watch(watchers);
    }

    /// The documents of this instant, and the sessions of this process that lived then.
    pub fn snapshot(&self) -> (Box<dyn Reader + '_>, Vec<SessionId>) {
        let live = self.peers.live();
        (self.store.snapshot(), live.clone())
    }

    /// Declares this session dead. When this has returned, nothing of it takes effect any more: changes fail with
    /// [`StoreError::Fenced`], reads go on. Its locks are released and its waiting operations sent away. `by` says who did
    /// it, for the log and for those operations.
    ///
    /// Files that are open and have no name stay as long as they are open; then the session stays fenced, and is recovered
    /// when the volume is mounted again.
    ///
    /// # Errors
    /// When the store fails. The session is fenced and without locks even so; only its document does not say it.
    pub fn fence(&self, by: &Arc<str>) -> Result<Fenced> {
        if !self.gate.close() {
            return Ok(Fenced { before: true, recovered: false, broken: Vec::new() });
        }
        log::error!(
            "session {} was fenced {by}: its mount changes nothing any more; unmount and mount again",
            self.session
        );
        let table = match (&self.locks, &self.membership) {
            (Locks::Table(table), None) => table,
            _ => return self.fence_other(self.session, by),
        };
        let broken = table.revoke_session(self.session, by);
        self.advisory.drop_session(self.session);
        self.set_state(SessionState::Fenced)?;
        let recovered = !self.has_orphans()?;
        if recovered {
            self.set_state(SessionState::Recovered)?;
        }
        self.store.sync()?;
        Ok(Fenced { before: false, recovered, broken })
    }

    /// Declares a session of any host dead, and cleans up after it, on a store that other hosts use as well. When this has
    /// returned, nothing of that session takes effect any more, and its locks are free.
    ///
    /// # Errors
    /// When the store fails; whoever sees the session next goes on with it.
    pub fn fence_other(&self, session: SessionId, by: &Arc<str>) -> Result<Fenced> {
        if let Some(membership) = &self.membership {
            log::warn!("session {session} was fenced {by}");
            membership.fence(&*self.store, &self.collector, session)?;
        }
        Ok(Fenced { before: false, recovered: true, broken: Vec::new() })
    }

    /// Whether other hosts use the store as well.
    pub fn is_shared(&self) -> bool {
        self.membership.is_some()
    }

    /// Whether the session was declared dead, as far as it knows.
    pub fn is_fenced(&self) -> bool {
        self.gate.is_closed() || self.membership.as_ref().is_some_and(Membership::is_fenced)
    }

    /// Writes the session's document; not through the gate, since a fenced session has one too.
    fn set_state(&self, state: SessionState) -> Result<()> {
        self.retry(|| {
            let key = Key::Session(self.session);
            let Some(stored) = self.store.get(&key)? else { return Err(NamespaceError::NotFound) };
            let Document::Session(session) = &*stored.document else { return Err(NamespaceError::NotFound) };
            let session = Session { state, ..session.clone() };
            let commit = Commit::new().at(key.clone(), stored.version).put(key, Document::Session(session));
            Ok(self.store.commit(&commit).map(drop)?)
        })
    }

    /// Whether there are files without a name that this session has unlinked: open, or about to be collected.
    fn has_orphans(&self) -> Result<bool> {
        let own = |left: &Option<Orphan>| left.is_none_or(|orphan| orphan.session == self.session);
        Ok(orphans(&*self.store)?.iter().any(|(_, _, left)| own(left)))
    }
}

/// Writes the document of a new session, and the epoch that it begins.
fn begin_session(store: &dyn Store, info: SessionInfo) -> Result<(SessionId, Volume)> {
    let volume = begin_epoch(store)?;
    let session = SessionId(ambient::random_u64());
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
        locks: None,
    };
    store.commit(&Commit::new().put(Key::Session(session), Document::Session(document)))?;
    Ok((session, volume))
}

/// What is to be collected, with its version; without the document where that cannot be read.
pub(super) fn orphans(store: &dyn Store) -> Result<Vec<(Key, Version, Option<Orphan>)>> {
    let mut found = Vec::new();
    for_each::<_, StoreError>(store, Range::All(Kind::Orphan), |key, stored| {
        found.push(match stored {
            Ok(stored) => match &*stored.document {
                Document::Orphan(orphan) => (key, stored.version, Some(*orphan)),
                _ => (key, stored.version, None),
            },
            Err(_) => (key, Version(0), None),
        });
        Ok(())
    })?;
    Ok(found)
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

/// As [`begin_epoch`], where others may begin one at the same time.
fn begin_epoch_among_others(store: &dyn Store) -> Result<Volume> {
    const TRIES: u32 = 1000;
    for _ in 0..TRIES {
        match begin_epoch(store) {
            Err(NamespaceError::Conflict(_)) => std::thread::sleep(super::PAUSE_MAX),
            other => return other,
        }
    }
    Err(NamespaceError::Contended { attempts: TRIES, key: Key::Volume })
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

/// Refuses a volume that has lost its root. Others may be lost with it, and what no node names any more is swept away once a
/// session begins: of such a volume that would be the bytes of files that can still be restored.
fn root_is_there(store: &dyn Store) -> Result<()> {
    match store.node(Ino::ROOT)? {
        Some((_, node)) if node.directory().is_some() => Ok(()),
        _ => Err(StoreError::Damaged {
            key: Key::Node(Ino::ROOT).to_string(),
            cause:
                "the root directory is missing; nothing was changed: run lockwood check, and restore a backup"
                    .to_owned(),
        }
        .into()),
    }
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
