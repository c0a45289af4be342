//! The store port: documents under keys, read one by one or by range, and changed by [`Store::commit`] alone.
//!
//! Owns the port and its engines. Imports `document` and `ambient`.
//!
//! What is hard, and where it is solved:
//! 1. Several documents change together or not at all, and only if what was read still stands: [`commit`].
//! 2. Engines must not differ in anything that the port promises: `conformance`, which every engine passes.
//! 3. One process at a time owns an embedded store, and the next one must know who that is: [`embedded::owner`].

pub mod cached;
pub mod cells;
pub mod commit;
#[cfg(any(test, feature = "proof"))]
pub mod conformance;
mod counts;
pub mod embedded;
pub mod engine;
mod full;
pub mod intents;
pub mod memory;
mod notice;
pub mod opensearch;
mod outage;
pub mod postgres;
pub mod redis;
pub mod scan;
mod stopped;
mod teller;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use self::cells::{Along, Cells};
use crate::document::codec::CodecError;
use crate::document::{Document, Ino, Key, Node, SessionId, Stored, Version};
use crate::later::Later;

pub use commit::{Check, Commit, CommitError, Durability, Need, Write};
pub use notice::{Listener, Notice};
pub use outage::{Outage, Outages};
pub use scan::{Range, Scan, Start};

/// What went wrong in a store. The kinds are by what the caller must do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// One document is damaged; the others are readable. Restore it, or remove what it stands for.
    #[error("document {key} of the store is damaged: {cause}")]
    Damaged {
        /// The document, or the key space when the key itself is damaged.
        key: String,
        /// What is wrong with it.
        cause: String,
    },
    /// The disk has no room for the change; nothing was changed. Free space and try again.
    #[error("no space left in the store")]
    NoSpace,
    /// The store refuses all work after a failure that left its state on disk unknown. Remount.
    #[error("the store has stopped after a failure: {0}; unmount and mount again")]
    Stopped(String),
    /// The session was declared dead: it can change nothing any more. Unmount and mount again.
    #[error("this session has been declared dead and can change nothing any more; unmount and mount again")]
    Fenced,
    /// No answer came, and what became of the change could not be found out: it was made whole or not at all.
    #[error("the store does not answer, and whether the change was made is not known: {0}")]
    Unknown(String),
    /// The engine failed; nothing was changed, as far as it can tell.
    #[error("{what}: {source}")]
    Engine {
        /// What was being done, and to what.
        what: String,
        /// The engine's own words.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl StoreError {
    /// A failure of the operating system.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ => Self::Engine { what: what.into(), source: source.into() },
        }
    }

    /// A record that does not decode.
    pub fn damaged(key: &Key, cause: &CodecError) -> Self {
        Self::Damaged { key: key.to_string(), cause: cause.to_string() }
    }
}

/// Reads of documents.
pub trait Reader: Send + Sync {
    /// The document under `key`.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if it is there and does not decode; others as the engine fails.
    fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError>;

    /// Several documents, each as it is at some instant between call and return: not a snapshot. Engines that are asked
    /// over a network make one request of it.
    ///
    /// # Errors
    /// As [`Reader::get`], for the first that fails.
    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Stored>>, StoreError> {
        keys.iter().map(|key| self.get(key)).collect()
    }

    /// One page of a range: fewer than the limit only at the end of the range. A document that does not decode takes its
    /// place as an error, and the scan goes on behind it.
    ///
    /// # Errors
    /// As the engine fails.
    fn scan(&self, scan: &Scan) -> Result<Vec<ScanItem>, StoreError>;

    /// The keys alone of one page of a range, where documents are large and what they hold does not matter. Engines that are
    /// asked over a network do not send the documents.
    ///
    /// # Errors
    /// As the engine fails.
    fn scan_keys(&self, scan: &Scan) -> Result<Vec<Key>, StoreError> {
        Ok(self.scan(scan)?.into_iter().map(|(key, _)| key).collect())
    }

    /// The node of `ino`.
    ///
    /// # Errors
    /// As [`Reader::get`].
    fn node(&self, ino: Ino) -> Result<Option<(Version, NodeRef)>, StoreError> {
        Ok(self.get(&Key::Node(ino))?.and_then(|stored| Some((stored.version, NodeRef::new(stored)?))))
    }
}

/// What a store that has no snapshots gives in their place: the present at each read.
impl<R: Reader + ?Sized> Reader for &R {
    fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        (**self).get(key)
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Stored>>, StoreError> {
        (**self).get_many(keys)
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        (**self).scan(scan)
    }

    fn scan_keys(&self, scan: &Scan) -> Result<Vec<Key>, StoreError> {
        (**self).scan_keys(scan)
    }
}

/// A key of a page with its document, or with what is wrong with it.
pub type ScanItem = (Key, Result<Stored, StoreError>);

/// A node that shares its document with the engine's cache.
#[derive(Clone, Debug)]
pub struct NodeRef(Stored);

impl NodeRef {
    fn new(stored: Stored) -> Option<Self> {
        matches!(*stored.document, Document::Node(_)).then_some(Self(stored))
    }

    /// The node as a commit has written it, which returned `version`.
    pub fn written(version: Version, node: Node) -> Self {
        Self(Stored { version, document: Document::Node(node).into() })
    }

    /// The version of the document.
    pub fn version(&self) -> Version {
        self.0.version
    }

    /// The same node without a name: what is left of it when it has been removed.
    #[must_use]
    pub fn removed(&self) -> Self {
        self.changed(|node| node.nlink = 0)
    }

    /// The same node as `change` makes it: not what is in the store any more, though it has the version of that.
    #[must_use]
    pub fn changed(&self, change: impl FnOnce(&mut Node)) -> Self {
        let mut node = (**self).clone();
        change(&mut node);
        Self::written(self.0.version, node)
    }
}

impl std::ops::Deref for NodeRef {
    type Target = Node;

    fn deref(&self) -> &Node {
        match &*self.0.document {
            Document::Node(node) => node,
            other => unreachable!("a NodeRef holds a {:?}", other.kind()),
        }
    }
}

/// What a store has done since it was opened. Counts do not wobble, so tests and bounds are stated in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StoreCounters {
    /// Reads of single documents.
    pub gets: u64,
    /// Of these, the ones that the engine had to look up on disk or in its tables.
    pub fetches: u64,
    /// Pages read.
    pub scans: u64,
    /// Commits that took effect.
    pub commits: u64,
    /// Commits refused because a check failed.
    pub conflicts: u64,
    /// Documents written or deleted.
    pub documents_written: u64,
    /// Times that everything was made durable.
    pub syncs: u64,
}

/// What not every engine can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// [`Store::snapshot`] is a view of one instant.
    pub snapshots: bool,
    /// All documents of a commit have the version that it returns; else only that of a commit of one document is told.
    pub one_version: bool,
    /// Other processes change the same documents: [`Commit::session`] is checked.
    pub shared: bool,
    /// [`Store::listen`] tells of changes.
    pub notices: bool,
}

impl Capabilities {
    /// Whether the documents that `commit` writes have the version that making it returns.
    pub fn tells_versions_of(&self, commit: &Commit) -> bool {
        self.one_version || commit.writes.len() == 1
    }
}

/// What sessions need of a store that makes its commits out of intents.
pub trait Intents: Send + Sync {
    /// What is changed one by one: session and lock documents are, beside the intents.
    fn cells(&self) -> Arc<dyn Cells>;

    /// How many intents a session makes before it lives.
    fn per_session(&self) -> u16;

    /// Makes those of a session that is joining. Its commits are made with them from here on, which it may not ask for
    /// before it has seen itself become live.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] if it was declared dead meanwhile; else as the engine fails.
    fn begin(&self, session: SessionId) -> Result<(), StoreError>;

    /// Forgets those of a session that makes no further commit.
    fn end(&self, session: SessionId);

    /// Where requests are made that no operation waits for.
    fn later(&self) -> Arc<dyn Later>;
}

/// Whether a commit is to be made: asked while it is prepared, and before anything that others see is changed. Must not ask
/// the store for documents: who reads what a commit writes may have to wait for it. What it changes by the way that it is
/// given, if any, costs no request of its own.
pub type Granting<'a> = Box<dyn FnOnce(Option<Along<'_>>) -> bool + Send + 'a>;

/// A store of documents.
pub trait Store: Reader {
    /// Applies `commit` at one instant, or not at all. Returns the version of the documents that it writes, all of which
    /// have the same if the engine has [`Capabilities::one_version`].
    ///
    /// # Errors
    /// [`CommitError::Conflict`] names the key of a check that failed, or of one that was made together with it; then
    /// nothing was changed.
    fn commit(&self, commit: &Commit) -> Result<Version, CommitError>;

    /// The same, once `granting` has said yes, which is asked once at most: the locks that the commit is made under are
    /// taken there, along with what prepares the commit on engines that are asked over a network. None if it has said no;
    /// nothing was changed then.
    ///
    /// # Errors
    /// As [`Store::commit`]; it may have been asked or not.
    fn commit_once(&self, commit: &Commit, granting: Granting<'_>) -> Result<Option<Version>, CommitError> {
        if granting(None) { self.commit(commit).map(Some) } else { Ok(None) }
    }

    /// Makes every commit that has returned survive a power cut, but those of [`Durability::Delayed`].
    ///
    /// # Errors
    /// [`StoreError::Stopped`]: after a failed sync nobody knows what is on disk. [`StoreError::Engine`] where a server was
    /// asked in vain, or has lost such commits ([`losses`](Self::losses)).
    fn sync(&self) -> Result<(), StoreError>;

    /// How often changes that had been acknowledged were found to be gone: what was committed before, and not synced, may be
    /// lost. A [`sync`](Self::sync) fails that waits when it is found out; who has begun before that looks here.
    fn losses(&self) -> u64 {
        0
    }

    /// For how long after [`sync`](Self::sync) has returned a power cut may still undo what was committed before it. Not at
    /// all, but where the engine cannot be asked to wait for its disk.
    fn lost_after_sync(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether there is room for `bytes` of content beside the documents. What is kept free for the documents is not for
    /// content, or the store could not even record that something is removed. An engine on other hosts says itself when it
    /// is full.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`].
    fn admit_content(&self, bytes: u64) -> Result<(), StoreError> {
        let _ = bytes;
        Ok(())
    }

    /// Somebody writes beside the documents without asking: what was known of the room there is may be wrong by now.
    fn forget_room(&self) {}

    /// What is kept free where the documents are, in bytes.
    fn reserve_bytes(&self) -> u64 {
        0
    }

    /// Refuses every further commit and sync: something that the documents rest on has failed, and nobody knows what is on
    /// disk. `cause` is for the errors that follow.
    fn stop(&self, cause: &str);

    /// Tells `listener` of changes from here on, as far as [`Commit::told`] names them; an engine that nobody else changes
    /// never does. Notices come late, twice or not at all; after a gap there is a [`Notice::Lost`].
    ///
    /// # Errors
    /// As the engine fails; then nobody is told anything.
    fn listen(&self, listener: Arc<dyn Listener>) -> Result<(), StoreError> {
        drop(listener);
        Ok(())
    }

    /// Forgets what is remembered of these documents: the next read of each asks the engine.
    fn forget(&self, keys: &[Key]) {
        let _ = keys; // Engines remember nothing that may be old; `cached` does.
    }

    /// What its requests have met, if the engine is on another host.
    fn outages(&self) -> Option<&Outages> {
        None
    }

    /// The outage of this moment, if the engine is on another host and does not answer. Asks nobody.
    fn outage(&self) -> Option<Outage> {
        self.outages().and_then(Outages::now)
    }

    /// The cells and the intents under it, if the engine changes one document at a time.
    fn intents(&self) -> Option<&dyn Intents> {
        None
    }

    /// What this engine can do beyond what every engine does.
    fn capabilities(&self) -> Capabilities;

    /// A view of this instant, which later commits do not change; on an engine without [`Capabilities::snapshots`], of the
    /// present at each read.
    fn snapshot(&self) -> Box<dyn Reader + '_>;

    /// What the store has done.
    fn counters(&self) -> StoreCounters;
}

/// Calls `visit` for every document of a range, page by page.
///
/// # Errors
/// The engine's, or the first that `visit` returns.
pub fn for_each<R: Reader + ?Sized, E: From<StoreError>>(
    reader: &R,
    range: Range,
    mut visit: impl FnMut(Key, Result<Stored, StoreError>) -> Result<(), E>,
) -> Result<(), E> {
    let limit = range.page();
    let mut start = Start::First;
    loop {
        let page = reader.scan(&Scan { range, start, limit })?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        let more = page.len() >= limit;
        start = Start::After(last.clone());
        for (key, item) in page {
            visit(key, item)?;
        }
        if !more {
            return Ok(());
        }
    }
}
