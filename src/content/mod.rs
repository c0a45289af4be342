//! The bytes of large files: in backing files beside the database of an embedded store, or in [`chunks`], documents of a
//! store that many hosts share, or in [`objects`] that these name. [`place`] is what the namespace sees of each. Small files
//! live inline in documents and are not seen here. Owns the directory `STORE/content` and everything in it, the documents of
//! kind chunk, and the objects. Imports `store` and `document`, for chunks alone.
//!
//! # Format of backing files
//!
//! A file is cut into segments of 1 TiB ([`SEGMENT_BYTES`]). Segment 0 is `content/<shard>/<ino>` and segment *n* is
//! `content/<shard>/<ino>.<n>`: the shard is the low byte of the inode as 2 hexadecimal digits, the inode has 16, and *n*
//! has no leading zeros. The byte at offset *o* is the byte *o* mod 1 TiB of segment *o* / 1 TiB. What is absent, a byte
//! or a segment, is zero. A file whose segment 0 is longer than that is not cut: all of it is there. Beside the shards
//! stand `ahead` and `ballast` while somebody writes to backing files past the documents. Nothing else is stored, so the
//! directory can be read with ordinary tools.
//!
//! # What is hard
//!
//! 1. Files of 8 EiB - 1 on hosts whose files end at 16 TiB, mostly absent: `names` cuts them, and `ranges` and `copy`
//!    walk what exists.
//! 2. Any number of files held open over a bounded number of descriptors: `directory`.
//! 3. Segments that come and go under concurrent I/O: the lock in [`BackingFile`].
//! 4. Hosts that lack an operation: `host`, with a fallback at each caller.
//! 5. Crashes. Data reaches the file before the node names its size, so after a crash a backing file may hold more than
//!    its node says. **Bytes at or beyond the node's size mean nothing**, and the caller calls
//!    [`BackingFile::truncate`] with the node's size before it lets the node name a larger one.
//!
//! One process owns the directory at a time; the store's lock sees to that.

mod ahead;
mod backing;
mod ballast;
mod chunks;
mod copy;
mod directory;
mod error;
mod host;
mod names;
mod objects;
mod place;
mod ranges;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

pub use backing::BackingFile;
pub use chunks::{CHUNK_BYTES, CHUNKS_WRITTEN, ChunkFile, Chunks, View};
pub use error::ContentError;
pub use host::Space;
pub use names::{MAX_SIZE, SEGMENT_BYTES};
pub use objects::{FoundObject, Location, ObjectCounters, Objects};
pub use place::{ContentFile, Contents};

use ahead::Ahead;
use ballast::Ballast;
use directory::{Directory, make_directory};

/// All backing files of a store.
#[derive(Clone, Debug)]
pub struct BackingFiles {
    directory: Arc<Directory>,
    ahead: Arc<Ahead>,
    ballast: Arc<Ballast>,
}

impl BackingFiles {
    /// Opens the directory, which must exist. About `max_open` descriptors are kept open; an operation under way may
    /// hold one more.
    ///
    /// # Errors
    /// `WrongKind` if it is not a directory, or a symbolic link; the host's.
    pub fn open(dir: &Path, max_open: usize) -> Result<Self, ContentError> {
        let segment_bytes = NonZeroU64::new(SEGMENT_BYTES).unwrap_or(NonZeroU64::MAX);
        Self::with_segments(dir, max_open, segment_bytes)
    }

    /// Opens the directory, and makes it, durably and with mode 0700, if it is absent.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn create(dir: &Path, max_open: usize) -> Result<Self, ContentError> {
        make_directory(dir)?;
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let synced = File::open(parent).and_then(|parent| parent.sync_all());
        synced.map_err(|error| ContentError::from_io("syncing the directory", parent, error))?;
        Self::open(dir, max_open)
    }

    fn with_segments(dir: &Path, max_open: usize, segment_bytes: NonZeroU64) -> Result<Self, ContentError> {
        let directory = Arc::new(Directory::new(dir, max_open, segment_bytes)?);
        let (ahead, ballast) = (Arc::new(Ahead::new(dir)), Arc::new(Ballast::new(dir)));
        Ok(Self { directory, ahead, ballast })
    }

    /// The backing file of an inode, made if it is absent. While anyone holds it, everyone gets the same.
    ///
    /// # Errors
    /// `NoSpace`; `WrongKind` if something else stands in its place; the host's.
    pub fn file(&self, ino: u64) -> Result<Arc<BackingFile>, ContentError> {
        let file = self.directory.handle(ino)?;
        file.make_first()?;
        Ok(file)
    }

    /// The backing file of an inode if anything is stored for it. Makes nothing.
    ///
    /// # Errors
    /// `WrongKind` if something else stands in its place; the host's.
    pub fn find(&self, ino: u64) -> Result<Option<Arc<BackingFile>>, ContentError> {
        let file = self.directory.handle(ino)?;
        Ok(file.is_stored().then_some(file))
    }

    /// Removes everything stored for an inode, also what a crash has left beyond its size; absent is fine. Whoever still
    /// holds the file holds an empty one, and would make it again by writing.
    ///
    /// # Errors
    /// `WrongKind` if something else stands in its place; the host's.
    pub fn remove(&self, ino: u64) -> Result<(), ContentError> {
        self.directory.handle(ino)?.remove_all()
    }

    /// Every inode for which anything is stored, shard by shard, in no order that means anything. An error concerns what
    /// it names (`Foreign`: a file that is not ours), and the walk goes on after it. What is made or removed meanwhile
    /// may be seen or not.
    pub fn list(&self) -> impl Iterator<Item = Result<u64, ContentError>> + use<> {
        let directory = Arc::clone(&self.directory);
        (0..names::SHARDS).flat_map(move |shard| directory.list(shard))
    }

    /// The backing file of `ino` may have more than its node says from here on, until [`caught_up`](Self::caught_up),
    /// also if the process dies; if `durably`, also if the machine does.
    ///
    /// # Errors
    /// The host's.
    pub fn may_be_ahead(&self, ino: u64, durably: bool) -> Result<(), ContentError> {
        self.ahead.mark(ino)?;
        if durably { self.ahead.sync() } else { Ok(()) }
    }

    /// The node of `ino` says all that its backing file has, and nobody writes there past it any more.
    ///
    /// # Errors
    /// The host's.
    pub fn caught_up(&self, ino: u64) -> Result<(), ContentError> {
        self.ahead.unmark(ino)
    }

    /// The inodes whose backing files a process that died has left ahead, as far as it knew.
    ///
    /// # Errors
    /// `WrongKind` if something else stands where that is kept; the host's.
    pub fn left_ahead(&self) -> Result<Vec<u64>, ContentError> {
        self.ahead.left()
    }

    /// All that a dead process has left ahead is caught up with, and what it kept free is free.
    ///
    /// # Errors
    /// The host's.
    pub fn none_left_ahead(&self) -> Result<(), ContentError> {
        self.ballast.remove()?;
        self.ahead.clear()
    }

    /// Keeps `bytes` of the disk for the store while there are less than `scarce` beyond them, by taking them. For whoever
    /// lets others write to the disk without asking.
    ///
    /// # Errors
    /// The host's.
    pub fn keep_room(&self, bytes: u64, scarce: u64) -> Result<(), ContentError> {
        let space = self.directory.space()?;
        let free = space.blocks_available.saturating_mul(space.block_size);
        match self.ballast.is_held() {
            false if (bytes..bytes + scarce).contains(&free) => self.ballast.hold(bytes),
            true if free >= 2 * scarce => {
                self.ballast.give_back();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Gives back what [`keep_room`](Self::keep_room) has taken; returns whether it had taken any.
    pub fn give_back_room(&self) -> bool {
        self.ballast.give_back()
    }

    /// Whether room is kept by taking it.
    pub fn is_room_kept(&self) -> bool {
        self.ballast.is_held()
    }

    /// The room on the filesystem that holds the content.
    ///
    /// # Errors
    /// The host's.
    pub fn space(&self) -> Result<Space, ContentError> {
        self.directory.space()
    }

    /// Makes the names of all files that were made or removed durable. [`BackingFile::sync`] does it for its own file;
    /// this is for many at once.
    ///
    /// # Errors
    /// The host's.
    pub fn sync_names(&self) -> Result<(), ContentError> {
        self.directory.sync_all_names()
    }
}
