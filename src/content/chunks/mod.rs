//! The bytes of large files in pieces that are documents of the store itself, for stores that many hosts share: [`Chunks`]
//! are the pieces of all files, [`ChunkFile`] those of one. Or in objects of an object store, which the documents name
//! ([`held`]). Imports `store`, `document` and this layer.
//!
//! # Format
//!
//! A file is cut into chunks of 128 KiB ([`CHUNK_BYTES`]), numbered from 0. A chunk that is absent is a hole; what a chunk
//! is shorter than its size is one too. No chunk is empty. Where an object store has the bytes, a chunk holds a reference
//! to the object that has its own ([`ObjectRef`](crate::document::ObjectRef)).
//!
//! # What is hard
//!
//! 1. *A chunk is changed as a whole*, and writes are of any length: [`edit`] reads, changes and writes chunks back, in
//!    one commit that checks the versions of what was read: in that of the node, if it fits there. Two hosts that write
//!    different bytes of one chunk so keep both. The commit names the session, so that one that was declared dead writes
//!    nothing.
//! 2. *Files of 8 EiB, mostly absent.* Nothing walks over absent chunks: ranges are walked by the keys that exist
//!    ([`ranges`]), in bounded pages and commits.
//! 3. *A chunk must not be fetched for each small read*, and yet what another host has written must be seen:
//!    [`cache`] keeps a chunk for as long as the node has the version under which it was read.
//! 4. *The space that a file takes* is not asked for at each write but kept by differences: [`Tally`].
//!
//! 5. *Two hosts may let one file grow at once*, and each cuts off what it takes for leftovers beyond the size. So the
//!    commit by which the node names a larger size makes the checks of [`ChunkFile::checks`], and what is cut or written
//!    is so under the version of the node that says the size. A change that finds a chunk that it has written itself
//!    otherwise than it wrote it ends as a conflict. So whoever comes second starts over, and no byte that was
//!    acknowledged goes.
//!
//! As with backing files, bytes at or beyond the node's size mean nothing. Whoever lets the node name a larger size has
//! written every byte between, or first calls [`ChunkFile::truncate`] or [`ChunkFile::trim`], each time: another host may
//! have died in a write since. What a crash leaves of a change that took several commits lies beyond the size, or is part
//! of a range that was being zeroed.

mod cache;
mod edit;
mod garbage;
mod held;
mod ranges;
mod replaced;

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;

use parking_lot::Mutex;

use self::cache::ChunkCache;
pub use self::cache::View;
pub use self::edit::CHUNKS_WRITTEN;
use self::edit::Planned;
use self::replaced::Replaced;
use super::error::ContentError;
use super::host::Space;
use super::names::Cut;
use super::objects::Objects;
use crate::document::{Document, Ino, Key, Kind, SessionId, Stored, Version};
use crate::store::{Check, Commit, Range, Scan, Start, Store, StoreError};

/// The size of a chunk: what the kernel asks for at once when it reads ahead.
pub const CHUNK_BYTES: u64 = 128 << 10;

/// The unit of `st_blocks`, in bytes.
const SECTOR_BYTES: u64 = 512;

/// What statfs(2) says of a store whose room nobody here can know: as if this were free. In blocks of [`CHUNK_BYTES`].
const NOMINAL_BLOCKS: u64 = 1 << 33;
const NOMINAL_FILES: u64 = 1 << 40;

/// The pieces of all files of a store, as one session changes them.
#[derive(Clone)]
pub struct Chunks {
    shared: Arc<Shared>,
    /// Who makes the changes; nobody for what only removes chunks that no node speaks of.
    session: Option<SessionId>,
}

struct Shared {
    store: Arc<dyn Store>,
    /// What has the bytes of chunks, if they have not.
    objects: Option<Objects>,
    /// Those that are about to go.
    replaced: Option<Replaced>,
    cut: Cut,
    chunk_bytes: u64,
    cache: ChunkCache,
}

impl std::fmt::Debug for Chunks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chunks").field("session", &self.session).finish_non_exhaustive()
    }
}

impl Chunks {
    /// The chunks in `store`, as nobody's session changes them.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::with_chunk_bytes(store, NonZeroU64::new(CHUNK_BYTES).unwrap_or(NonZeroU64::MAX))
    }

    /// With chunks of another size, so that tests cross many borders with few bytes. All of a store have one size.
    pub fn with_chunk_bytes(store: Arc<dyn Store>, chunk_bytes: NonZeroU64) -> Self {
        let cut = Cut::new(chunk_bytes);
        let chunk_bytes = chunk_bytes.get();
        let cache = ChunkCache::new();
        let shared = Shared { store, objects: None, replaced: None, cut, chunk_bytes, cache };
        Self { shared: Arc::new(shared), session: None }
    }

    /// The same chunks, as `session` changes them.
    #[must_use]
    pub fn by(&self, session: SessionId) -> Self {
        Self { shared: Arc::clone(&self.shared), session: Some(session) }
    }

    /// The same chunks, with their bytes in objects.
    #[must_use]
    pub fn in_objects(self, objects: Objects) -> Self {
        let Shared { store, cut, chunk_bytes, .. } = &*self.shared;
        let (store, cache) = (Arc::clone(store), ChunkCache::new());
        let replaced = Some(Replaced::new(Arc::clone(&store), objects.clone()));
        let (cut, chunk_bytes) = (*cut, *chunk_bytes);
        let shared = Shared { store, objects: Some(objects), replaced, cut, chunk_bytes, cache };
        Self { shared: Arc::new(shared), session: self.session }
    }

    /// The objects that have the bytes, if chunks have not.
    pub fn objects(&self) -> Option<&Objects> {
        self.shared.objects.as_ref()
    }

    /// The size of a chunk.
    pub fn chunk_bytes(&self) -> u64 {
        self.shared.chunk_bytes
    }

    /// The chunks of an inode. Whoever changes them takes turns, and keeps the handle for as long as it has a turn.
    pub fn file(&self, ino: u64) -> ChunkFile {
        ChunkFile { chunks: self.clone(), ino: Ino(ino), state: Arc::default() }
    }

    /// Removes every chunk of an inode that has no node any more; absent is fine.
    ///
    /// # Errors
    /// `Conflict` if there is a node; the store's; some may then be removed, and doing it again completes it.
    pub fn remove(&self, ino: u64) -> Result<(), ContentError> {
        self.file(ino).truncate(0, None)
    }

    /// Every inode that has chunks, in order. What is made or removed meanwhile may be seen or not.
    pub fn list(&self) -> impl Iterator<Item = Result<u64, ContentError>> + use<> {
        const PAGE: usize = 1024;
        let shared = Arc::clone(&self.shared);
        let mut page = VecDeque::new();
        let mut next = Some(Start::First);
        std::iter::from_fn(move || {
            if page.is_empty() {
                let scan = Scan { range: Range::All(Kind::Chunk), start: next.take()?, limit: PAGE };
                let keys = match shared.store.scan_keys(&scan) {
                    Ok(keys) => keys,
                    Err(error) => return Some(Err(error.into())),
                };
                page.extend(keys.iter().filter_map(|key| match key {
                    Key::Chunk(ino, _) => Some(ino.0),
                    _ => None,
                }));
                // From one file to the next, however many chunks it has.
                if keys.len() >= PAGE {
                    next = page.back().map(|&ino| Start::After(Key::Chunk(Ino(ino), u64::MAX)));
                }
            }
            let ino = page.pop_front()?;
            while page.front() == Some(&ino) {
                page.pop_front();
            }
            Some(Ok(ino))
        })
    }

    /// No store says how much room it has; so much is said to be free that nobody is kept from trying.
    pub fn space(&self) -> Space {
        Space {
            block_size: 4096,
            blocks: NOMINAL_BLOCKS,
            blocks_free: NOMINAL_BLOCKS,
            blocks_available: NOMINAL_BLOCKS,
            files: NOMINAL_FILES,
            files_free: NOMINAL_FILES,
        }
    }
}

/// The chunks of one inode. Cheap to make; what it has learned is shared by its clones.
#[derive(Clone, Debug)]
pub struct ChunkFile {
    chunks: Chunks,
    ino: Ino,
    state: Arc<Mutex<State>>,
}

/// What whoever changes a file knows of its chunks.
#[derive(Debug)]
struct State {
    /// From this chunk on there are none, unless another host has made some: a guess, which every commit checks.
    absent_from: u64,
    /// The chunks that the change under way has written, with their versions, or removed.
    written: BTreeMap<u64, Option<Version>>,
    /// What the commit of the node is to write.
    staged: Option<Planned>,
    /// The last change has met what another host has written, so nothing is guessed.
    met_others: bool,
    tally: Tally,
}

impl Default for State {
    fn default() -> Self {
        Self {
            absent_from: u64::MAX,
            written: BTreeMap::new(),
            staged: None,
            met_others: false,
            tally: Tally::default(),
        }
    }
}

/// By how much the space that a file takes has changed since its node said it, in sectors.
///
/// Exact while one host at a time changes the file, but for chunks that are removed unseen because they lie in a range
/// as a whole: those count as full.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// All chunks are gone: what the node says does not count any more.
    from_nothing: bool,
    /// Sectors more, or fewer.
    change: i64,
}

impl ChunkFile {
    /// The inode whose bytes these are.
    pub fn ino(&self) -> u64 {
        self.ino.0
    }

    /// The same file, as another session changes it.
    pub(super) fn by(&self, chunks: &Chunks) -> Self {
        Self { chunks: chunks.clone(), ..self.clone() }
    }

    /// A change begins, which ends with a commit of the node. The file has `size` bytes so far, so it probably has no chunk
    /// beyond them.
    pub fn begin(&self, size: u64) {
        let (last, keep) = self.cut().locate(size);
        let mut state = self.state.lock();
        state.written.clear();
        state.staged = None;
        state.absent_from = match (state.met_others, keep) {
            (true, _) => u64::MAX,
            (false, 0) => last,
            (false, _) => last + 1,
        };
    }

    /// What must hold when the node names a larger size than `size`: what the change has written at or beyond that is
    /// still there.
    pub fn checks(&self, size: u64) -> Vec<Check> {
        let (first, _) = self.cut().locate(size);
        let state = self.state.lock();
        state
            .written
            .range(first..)
            .map(|(&index, &version)| match version {
                Some(version) => Check::Version(self.key(index), version),
                None => Check::Absent(self.key(index)),
            })
            .collect()
    }

    /// The space that the file takes, in blocks of 512 bytes, if it took `before` when
    /// [`named`](Self::named) was called last. Not 0 where data may be: programs take a file
    /// without blocks for one without data.
    pub fn allocated_blocks(&self, before: u64) -> u64 {
        let state = self.state.lock();
        let change = state.tally.change + state.staged.as_ref().map_or(0, |staged| staged.change);
        match (state.tally.from_nothing, change) {
            (true, change) => u64::try_from(change).unwrap_or(0),
            (false, 0) => before,
            (false, change) => before.saturating_add_signed(change).max(1),
        }
    }

    /// The change has ended with the commit that made this version of the node, which says now what
    /// [`allocated_blocks`](Self::allocated_blocks) has said.
    pub fn named(&self, version: Version) {
        let staged = self.state.lock().staged.take();
        if let Some(staged) = staged {
            self.made(staged, self.tells_all_versions().then_some(version));
        }
        let mut state = self.state.lock();
        state.written.clear();
        state.tally = Tally::default();
        state.met_others = false;
    }

    /// Another host has changed the node since it said `before` blocks, and says now what that host has changed beside
    /// them. So what is gone by now is less by so much, also where it was all there was.
    pub fn overtaken(&self, before: u64) {
        let tally = &mut self.state.lock().tally;
        if std::mem::take(&mut tally.from_nothing) {
            tally.change -= before.cast_signed();
        }
    }

    /// The change has ended without a commit of the node, as far as anybody can tell; `refused`: for certain. Whether it
    /// has left something in the store.
    pub fn failed(&self, refused: bool) -> bool {
        let staged = self.state.lock().staged.take();
        if let Some(staged) = staged {
            self.unstage(staged, refused);
        }
        let mut state = self.state.lock();
        state.met_others = true;
        !std::mem::take(&mut state.written).is_empty()
    }

    fn store(&self) -> &dyn Store {
        &*self.chunks.shared.store
    }

    fn cut(&self) -> Cut {
        self.chunks.shared.cut
    }

    fn key(&self, index: u64) -> Key {
        Key::Chunk(self.ino, index)
    }

    /// A commit of the session's, if the node still has the version `under`; none: if there is no node (any more). A store
    /// may lose its last commits, and what was removed is back then, with its bytes.
    fn commit(&self, under: Option<Version>) -> Commit {
        let commit = Commit { session: self.chunks.session, ..Commit::new() };
        match under {
            Some(version) => commit.at(Key::Node(self.ino), version),
            None => commit.absent(Key::Node(self.ino)),
        }
    }

    /// A page of the chunks that exist from `index` on.
    fn present(&self, index: u64, limit: usize) -> Result<Vec<u64>, StoreError> {
        let start = index.checked_sub(1).map_or(Start::First, |before| Start::After(self.key(before)));
        let keys = self.store().scan_keys(&Scan { range: Range::Chunks(self.ino), start, limit })?;
        Ok(keys
            .iter()
            .filter_map(|key| match key {
                Key::Chunk(_, index) => Some(*index),
                _ => None,
            })
            .collect())
    }
}

/// What a chunk holds.
fn bytes_of(stored: &Stored) -> Result<&Arc<[u8]>, StoreError> {
    match &*stored.document {
        Document::Chunk(chunk) => Ok(&chunk.bytes),
        other => Err(StoreError::Damaged {
            key: Kind::Chunk.name().to_owned(),
            cause: format!("a {} stands there", other.kind().name()),
        }),
    }
}

fn sectors(len: usize) -> i64 {
    (len as u64).div_ceil(SECTOR_BYTES).cast_signed()
}
