//! What the namespace needs of the bytes of large files, wherever they are: [`Contents`] of all files, [`ContentFile`] of
//! one. Two places, chosen when the store is opened: backing files of this host, or chunks in the store itself. Imports
//! `document` and this layer.
//!
//! An enum and no trait object: with backing files each call is one branch away from the file.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use super::backing::BackingFile;
use super::chunks::{ChunkFile, Chunks, View};
use super::error::ContentError;
use super::host::Space;
use super::objects::Objects;
use super::{BackingFiles, CHUNK_BYTES};
use crate::document::{ContentPlace, SessionId, Version, Volume};
use crate::store::{Check, Commit, Store};

/// The bytes of all large files of a store.
#[derive(Clone, Debug)]
pub enum Contents {
    /// In backing files beside the database of an embedded store.
    Backing(BackingFiles),
    /// In chunks, documents of the same store.
    Chunks(Chunks),
}

/// The bytes of one large file.
#[derive(Clone, Debug)]
pub enum ContentFile {
    /// In a backing file.
    Backing(Arc<BackingFile>),
    /// In chunks.
    Chunks(ChunkFile),
}

impl From<BackingFiles> for Contents {
    fn from(files: BackingFiles) -> Self {
        Self::Backing(files)
    }
}

impl From<Chunks> for Contents {
    fn from(chunks: Chunks) -> Self {
        Self::Chunks(chunks)
    }
}

impl Contents {
    /// The same bytes, as `session` changes them.
    #[must_use]
    pub fn by(&self, session: SessionId) -> Self {
        match self {
            Self::Backing(files) => Self::Backing(files.clone()),
            Self::Chunks(chunks) => Self::Chunks(chunks.by(session)),
        }
    }

    /// The contents of a volume that many hosts share, whose documents are in `store`. An object store is waited for
    /// for `patience`.
    ///
    /// # Errors
    /// Those of [`Objects::open`], where the volume says that an object store has the bytes.
    pub fn shared(store: Arc<dyn Store>, volume: &Volume, patience: Duration) -> Result<Self, ContentError> {
        let chunks = Chunks::new(store);
        Ok(Self::Chunks(match &volume.content {
            Some(location) => chunks.in_objects(Objects::open(&location.parse()?, &volume.id, patience)?),
            None => chunks,
        }))
    }

    /// The objects that have the bytes, if an object store has.
    pub fn objects(&self) -> Option<&Objects> {
        match self {
            Self::Backing(_) => None,
            Self::Chunks(chunks) => chunks.objects(),
        }
    }

    /// Whether other hosts may change the bytes too.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Chunks(_))
    }

    /// What nodes call this place.
    pub fn place(&self) -> ContentPlace {
        match self {
            Self::Backing(_) => ContentPlace::Backing,
            Self::Chunks(_) => ContentPlace::Chunks,
        }
    }

    /// The size of a chunk, also where there are none.
    pub fn chunk_bytes(&self) -> u64 {
        match self {
            Self::Backing(_) => CHUNK_BYTES,
            Self::Chunks(chunks) => chunks.chunk_bytes(),
        }
    }

    /// The bytes of an inode, to be changed; made if they are absent.
    ///
    /// # Errors
    /// Those of [`BackingFiles::file`].
    pub fn file(&self, ino: u64) -> Result<ContentFile, ContentError> {
        match self {
            Self::Backing(files) => files.file(ino).map(ContentFile::Backing),
            Self::Chunks(chunks) => Ok(ContentFile::Chunks(chunks.file(ino))),
        }
    }

    /// The bytes of an inode whose node says that they are here; none if it is certain that there are none.
    ///
    /// # Errors
    /// Those of [`BackingFiles::find`].
    pub fn find(&self, ino: u64) -> Result<Option<ContentFile>, ContentError> {
        match self {
            Self::Backing(files) => Ok(files.find(ino)?.map(ContentFile::Backing)),
            Self::Chunks(chunks) => Ok(Some(ContentFile::Chunks(chunks.file(ino)))),
        }
    }

    /// The same file as somebody else of this process has it, to be changed through here.
    #[must_use]
    pub fn again(&self, file: &ContentFile) -> ContentFile {
        match (self, file) {
            (Self::Chunks(chunks), ContentFile::Chunks(file)) => ContentFile::Chunks(file.by(chunks)),
            _ => file.clone(),
        }
    }

    /// Removes the bytes of an inode that has no node any more, also what a crash has left beyond its size; absent is fine.
    ///
    /// # Errors
    /// Those of [`BackingFiles::remove`]; `Conflict` if there is a node in a shared store; the store's.
    pub fn remove(&self, ino: u64) -> Result<(), ContentError> {
        match self {
            Self::Backing(files) => files.remove(ino),
            Self::Chunks(chunks) => chunks.remove(ino),
        }
    }

    /// Removes bytes that the node does not know of and that a failed change has left, if it still has the version `under`
    /// where other hosts may change it.
    ///
    /// # Errors
    /// As [`remove`](Self::remove); `Conflict` if the node has another version.
    pub fn undo(&self, ino: u64, under: Version) -> Result<(), ContentError> {
        match self {
            Self::Backing(files) => files.remove(ino),
            Self::Chunks(chunks) => chunks.file(ino).truncate(0, Some(under)),
        }
    }

    /// Removes what `session`, which has ended, has left in an object store and nothing names; returns how many objects.
    ///
    /// # Errors
    /// The store's, or the object store's.
    pub fn collect_of(&self, session: SessionId) -> Result<u64, ContentError> {
        match self {
            Self::Backing(_) => Ok(0),
            Self::Chunks(chunks) => chunks.collect_of(session),
        }
    }

    /// Every inode that has bytes here. An error concerns what it names, and the walk goes on after it.
    pub fn list(&self) -> Box<dyn Iterator<Item = Result<u64, ContentError>>> {
        match self {
            Self::Backing(files) => Box::new(files.list()),
            Self::Chunks(chunks) => Box::new(chunks.list()),
        }
    }

    /// The room there is.
    ///
    /// # Errors
    /// The host's.
    pub fn space(&self) -> Result<Space, ContentError> {
        match self {
            Self::Backing(files) => files.space(),
            Self::Chunks(chunks) => Ok(chunks.space()),
        }
    }

    /// The backing files, if those have the bytes.
    pub fn backing(&self) -> Option<&BackingFiles> {
        match self {
            Self::Backing(files) => Some(files),
            Self::Chunks(_) => None,
        }
    }

    /// Makes it durable which files there are; of documents the store makes it so.
    ///
    /// # Errors
    /// The host's.
    pub fn sync_names(&self) -> Result<(), ContentError> {
        match self {
            Self::Backing(files) => files.sync_names(),
            Self::Chunks(_) => Ok(()),
        }
    }
}

impl ContentFile {
    /// Fills `buf` from `offset`. What is absent reads as zeros.
    ///
    /// # Errors
    /// Those of [`BackingFile::read_at`]; the store's.
    pub fn read_at(&self, buf: &mut [u8], offset: u64, view: View) -> Result<(), ContentError> {
        match self {
            Self::Backing(file) => file.read_at(buf, offset),
            Self::Chunks(file) => file.read_at(buf, offset, view),
        }
    }

    /// Writes all of `data` at `offset`, as the node in the version `under` lets it be planned.
    ///
    /// # Errors
    /// Those of [`BackingFile::write_at`]; the store's; `Conflict` if another host has changed the node.
    pub fn write_at(&self, data: &[u8], offset: u64, under: Version) -> Result<(), ContentError> {
        match self {
            Self::Backing(file) => file.write_at(data, offset),
            Self::Chunks(file) => file.write_at(data, offset, Some(under)),
        }
    }

    /// As [`write_at`](Self::write_at), but what can be is left to the commit that [`join`](Self::join) completes.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn stage_at(&self, data: &[u8], offset: u64, under: Version) -> Result<(), ContentError> {
        match self {
            Self::Backing(file) => file.write_at(data, offset),
            Self::Chunks(file) => file.stage_at(data, offset, under),
        }
    }

    /// The one file of the host that has all `size` bytes; see [`BackingFile::whole`].
    ///
    /// # Errors
    /// Those of [`BackingFile::whole`].
    pub fn whole(&self, size: u64) -> Result<Option<Arc<File>>, ContentError> {
        match self {
            Self::Backing(file) => file.whole(size),
            Self::Chunks(_) => Ok(None),
        }
    }

    /// Lets that file be at least so long; see [`BackingFile::extend`].
    ///
    /// # Errors
    /// Those of [`BackingFile::extend`].
    pub fn extend(&self, size: u64) -> Result<(), ContentError> {
        match self {
            Self::Backing(file) => file.extend(size),
            Self::Chunks(_) => Ok(()),
        }
    }

    /// Adds what is still to be written to the commit of the node.
    pub fn join(&self, commit: Commit) -> Commit {
        match self {
            Self::Backing(_) => commit,
            Self::Chunks(file) => file.join(commit),
        }
    }

    /// A change begins, which ends with a commit of the node; the file has `size` bytes so far.
    pub fn begin(&self, size: u64) {
        match self {
            Self::Backing(_) => {}
            Self::Chunks(file) => file.begin(size),
        }
    }

    /// What the commit must check by which the node names a larger size than `size`.
    pub fn checks(&self, size: u64) -> Vec<Check> {
        match self {
            Self::Backing(_) => Vec::new(),
            Self::Chunks(file) => file.checks(size),
        }
    }

    /// Drops every byte at or beyond `size`, and what was reserved there; never extends. The node says that size in the
    /// version `under`.
    ///
    /// # Errors
    /// The host's or the store's; `Conflict` if another host has changed the node.
    pub fn truncate(&self, size: u64, under: Version) -> Result<(), ContentError> {
        match self {
            Self::Backing(file) => file.truncate(size),
            Self::Chunks(file) => file.truncate(size, Some(under)),
        }
    }

    /// Drops every byte at or beyond `size` that a crash or a failed write has left. What was reserved stays. The node says
    /// that size in the version `under`.
    ///
    /// # Errors
    /// The host's or the store's; `Conflict` if another host has changed the node.
    pub fn trim(&self, size: u64, under: Version) -> Result<(), ContentError> {
        match self {
            Self::Backing(file) => file.trim(size),
            Self::Chunks(file) => file.trim(size, under),
        }
    }

    /// Makes the bytes durable before documents that are committed later, and as durable as a sync of the store makes
    /// those. Chunks are documents themselves.
    ///
    /// # Errors
    /// The host's: bytes may be lost.
    pub fn sync(&self, data_only: bool) -> Result<(), ContentError> {
        match self {
            Self::Backing(file) => file.sync(data_only),
            Self::Chunks(_) => Ok(()),
        }
    }

    /// The space that the file takes, in blocks of 512 bytes, if its node says `before`; see [`ChunkFile`] for how exact
    /// it is.
    ///
    /// # Errors
    /// The host's.
    pub fn allocated_blocks(&self, before: u64) -> Result<u64, ContentError> {
        match self {
            Self::Backing(file) => file.allocated_blocks(),
            Self::Chunks(file) => Ok(file.allocated_blocks(before)),
        }
    }

    /// The change has ended with the commit that made this version of the node.
    pub fn named(&self, version: Version) {
        match self {
            Self::Backing(_) => {}
            Self::Chunks(file) => file.named(version),
        }
    }

    /// Another host has changed the node since it said that the file takes `before` blocks.
    pub fn overtaken(&self, before: u64) {
        match self {
            Self::Backing(_) => {}
            Self::Chunks(file) => file.overtaken(before),
        }
    }

    /// The change has ended without a commit of the node, as far as anybody can tell; `refused`: for certain. Whether it
    /// may have left something.
    pub fn failed(&self, refused: bool) -> bool {
        match self {
            Self::Backing(_) => true,
            Self::Chunks(file) => file.failed(refused),
        }
    }

    /// Reserves space for a range, so that writing there does not run out of it. A store of documents has nothing to
    /// reserve: there it does nothing.
    ///
    /// # Errors
    /// Those of [`BackingFile::allocate`].
    pub fn allocate(&self, offset: u64, len: u64, grow: bool) -> Result<(), ContentError> {
        match self {
            Self::Backing(file) => file.allocate(offset, len, grow),
            Self::Chunks(_) => Ok(()),
        }
    }

    /// Whether a range has its place on the disk already; see [`BackingFile::is_allocated`].
    ///
    /// # Errors
    /// The host's.
    pub fn is_allocated(&self, offset: u64, len: u64) -> Result<bool, ContentError> {
        match self {
            Self::Backing(file) => file.is_allocated(offset, len),
            Self::Chunks(_) => Ok(false),
        }
    }

    /// Makes a range read as zeros and frees its space, as the node in the version `under` lets it be planned.
    ///
    /// # Errors
    /// Those of [`BackingFile::punch_hole`]; the store's; `Conflict` if another host has changed the node.
    pub fn punch_hole(&self, offset: u64, len: u64, under: Version) -> Result<(), ContentError> {
        match self {
            Self::Backing(file) => file.punch_hole(offset, len),
            Self::Chunks(file) => file.punch_hole(offset, len, Some(under)),
        }
    }

    /// Makes a range read as zeros and keeps its space where that means something, as [`punch_hole`](Self::punch_hole)
    /// does it.
    ///
    /// # Errors
    /// Those of [`BackingFile::zero_range`]; the store's; `Conflict` if another host has changed the node.
    pub fn zero_range(&self, offset: u64, len: u64, under: Version) -> Result<(), ContentError> {
        match self {
            Self::Backing(file) => file.zero_range(offset, len),
            Self::Chunks(file) => file.punch_hole(offset, len, Some(under)),
        }
    }

    /// The first offset at or after `offset`, and below `size`, that may hold other than zeros.
    ///
    /// # Errors
    /// The host's or the store's.
    pub fn seek_data(&self, offset: u64, size: u64) -> Result<Option<u64>, ContentError> {
        match self {
            Self::Backing(file) => file.seek_data(offset, size),
            Self::Chunks(file) => file.seek_data(offset, size),
        }
    }

    /// The first offset at or after `offset` that is in a hole, at most `size`.
    ///
    /// # Errors
    /// The host's or the store's.
    pub fn seek_hole(&self, offset: u64, size: u64) -> Result<u64, ContentError> {
        match self {
            Self::Backing(file) => file.seek_hole(offset, size),
            Self::Chunks(file) => file.seek_hole(offset, size),
        }
    }

    /// Copies `len` bytes from `from` on, as the source is seen in `view`, to `to` in `target`, which is in the same place,
    /// where holes become holes. The node of the target has the version `under`. Returns how many bytes were copied: fewer
    /// than `len` only where an error struck later than the first byte.
    ///
    /// # Errors
    /// Those of [`BackingFile::copy_to`]; the store's, before the first byte; `Conflict` if another host has changed the
    /// target's node.
    pub fn copy_to(
        &self,
        (from, view): (u64, View),
        (target, to, under): (&Self, u64, Version),
        len: u64,
    ) -> Result<u64, ContentError> {
        match (self, target) {
            (Self::Backing(file), Self::Backing(target)) => file.copy_to(from, target, to, len),
            (Self::Chunks(file), Self::Chunks(target)) => {
                file.copy_to((from, view), (target, to, Some(under)), len)
            }
            _ => unreachable!("a store keeps all contents in one place"),
        }
    }
}
