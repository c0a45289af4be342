//! One file's bytes over its segments: reading, writing, trimming and syncing. [`super::ranges`] and [`super::copy`] add
//! the operations over ranges. Imports only this layer.
//!
//! What is hard:
//! 1. *A segment must not be unlinked under a write*, whose bytes would go with it. I/O holds `segments` shared;
//!    creating and unlinking a segment hold it exclusively. Reads and writes of existing segments therefore run side by
//!    side, and what overlaps is the caller's to order.
//! 2. *No two files' `segments` are ever held at once*, nor one twice by the same thread: with a writer waiting that
//!    would be a deadlock.
//! 3. *After a failed sync* the host may have dropped the bytes and forgotten that it did. The caller must not take a
//!    later success for a cure.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::{RwLock, RwLockWriteGuard};

use super::directory::Directory;
use super::error::ContentError;
use super::names::{Cut, range_end};

/// The bytes of one large file. Cheap to hold: it keeps no descriptor open.
///
/// Bytes at or beyond the size that the file's node names mean nothing: a crash may leave some, since data reaches the
/// file before the node names its size. The caller bounds reads by the node's size, and calls
/// [`truncate`](Self::truncate) with it before it lets the node name a larger one.
#[derive(Debug)]
pub struct BackingFile {
    pub(super) directory: Arc<Directory>,
    pub(super) ino: u64,
    /// The segments that exist.
    pub(super) segments: RwLock<BTreeSet<u64>>,
    /// Whether all bytes are in segment 0, however long it is. Once true, it stays so.
    whole: AtomicBool,
}

impl BackingFile {
    pub(super) fn new(directory: Arc<Directory>, ino: u64, segments: BTreeSet<u64>, whole: bool) -> Self {
        Self { directory, ino, segments: RwLock::new(segments), whole: AtomicBool::new(whole) }
    }

    /// How the file is cut into segments.
    pub(super) fn cut(&self) -> Cut {
        if self.whole.load(Relaxed) { Cut::new(NonZeroU64::MAX) } else { self.directory.cut }
    }

    /// The one file of the host that has all `size` bytes, for somebody who reads and writes there by himself; none if there
    /// are several. As long as anyone holds this handle, the file is not cut into segments.
    ///
    /// # Errors
    /// `TooLarge` if the host has no file of that size; the host's.
    pub fn whole(&self, size: u64) -> Result<Option<Arc<File>>, ContentError> {
        let segments = self.segments.write();
        if !segments.iter().eq([&0]) || self.cut().locate(size).0 > 0 {
            return Ok(None);
        }
        let file = self.directory.descriptor(self.ino, 0)?;
        self.extend_first(&file, size)?;
        self.whole.store(true, Relaxed);
        Ok(Some(file))
    }

    /// Lets the one file of the host be at least so long: who reads there by himself finds its end there.
    ///
    /// # Errors
    /// `TooLarge` if the host has no file of that size; the host's.
    pub fn extend(&self, size: u64) -> Result<(), ContentError> {
        match self.descriptor_if_present(0)? {
            Some(file) => self.extend_first(&file, size),
            None => Ok(()),
        }
    }

    fn extend_first(&self, file: &File, size: u64) -> Result<(), ContentError> {
        let extended = file.metadata().and_then(|found| match found.len() < size {
            true => file.set_len(size),
            false => Ok(()),
        });
        extended.map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => ContentError::TooLarge { offset: 0, len: size },
            _ => self.failed("extending", 0, error),
        })
    }

    /// The inode whose bytes these are.
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// Fills `buf` from `offset`. What is absent or past the end of the backing file reads as zeros.
    ///
    /// # Errors
    /// `TooLarge` for a range that no file has; the host's.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<(), ContentError> {
        let end = range_end(offset, buf.len() as u64)?;
        let mut rest = buf;
        for piece in self.cut().pieces(offset, end) {
            // A piece is part of the buffer, so its length fits.
            let (here, after) = rest.split_at_mut(usize::try_from(piece.len).unwrap_or(usize::MAX));
            rest = after;
            let segments = self.segments.read();
            if segments.contains(&piece.index) {
                let file = self.directory.descriptor(self.ino, piece.index)?;
                fill(&file, here, piece.start).map_err(|error| self.failed("reading", piece.index, error))?;
            } else {
                here.fill(0);
            }
        }
        Ok(())
    }

    /// Writes all of `data` at `offset`, making only the segments that it touches.
    ///
    /// # Errors
    /// `NoSpace`, `TooLarge` or the host's; part of the data may then have been written.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<(), ContentError> {
        let end = range_end(offset, data.len() as u64)?;
        let mut rest = data;
        for piece in self.cut().pieces(offset, end) {
            let (here, after) = rest.split_at(usize::try_from(piece.len).unwrap_or(usize::MAX));
            rest = after;
            self.with_made(piece.index, |file| {
                file.write_all_at(here, piece.start).map_err(|error| match error.kind() {
                    io::ErrorKind::FileTooLarge => ContentError::TooLarge { offset, len: data.len() as u64 },
                    _ => self.failed("writing", piece.index, error),
                })
            })?;
        }
        Ok(())
    }

    /// Drops every byte at or beyond `size`, and frees what was reserved there; never extends. Done again after an error
    /// or a crash, it completes.
    ///
    /// # Errors
    /// The host's.
    pub fn truncate(&self, size: u64) -> Result<(), ContentError> {
        self.drop_beyond(size, true)
    }

    /// Drops every byte at or beyond `size` that a crash or a failed write has left. What was reserved stays.
    ///
    /// # Errors
    /// The host's.
    pub fn trim(&self, size: u64) -> Result<(), ContentError> {
        self.drop_beyond(size, false)
    }

    fn drop_beyond(&self, size: u64, free_reserved: bool) -> Result<(), ContentError> {
        let (last, keep) = self.cut().locate(size);
        // The first segment stays, empty: it says that there is a backing file.
        let beyond = if keep == 0 { last.max(1) } else { last + 1 };
        let mut segments = self.segments.write();
        self.unlink_from(&mut segments, beyond)?;
        if segments.contains(&last) {
            let file = self.directory.descriptor(self.ino, last)?;
            let failed = |error| self.failed("truncating", last, error);
            let len = file.metadata().map_err(failed)?.len();
            // Setting the length that a file has already frees what is reserved behind its end.
            if len > keep || free_reserved {
                file.set_len(len.min(keep)).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Makes the bytes durable, and the names of the segments that hold them; with `data_only`, without metadata that
    /// reading does not need (fdatasync).
    ///
    /// # Errors
    /// The host's: bytes may be lost, and a later success does not mean otherwise.
    pub fn sync(&self, data_only: bool) -> Result<(), ContentError> {
        let present: Vec<u64> = self.segments.read().iter().copied().collect();
        for index in present {
            // Without the lock while the host is at work: a segment unlinked meanwhile needs no sync.
            let Some(file) = self.descriptor_if_present(index)? else { continue };
            let synced = if data_only { file.sync_data() } else { file.sync_all() };
            synced.map_err(|error| self.failed("syncing", index, error))?;
        }
        self.directory.sync_names(self.ino)
    }

    /// The space that the host has given to the file, in blocks of 512 bytes, over all segments.
    ///
    /// # Errors
    /// The host's.
    pub fn allocated_blocks(&self) -> Result<u64, ContentError> {
        let segments = self.segments.read();
        segments.iter().try_fold(0, |sum: u64, &index| {
            Ok(sum.saturating_add(self.directory.metadata(self.ino, index)?.blocks()))
        })
    }

    /// Makes the first segment, which says that the inode has a backing file, if it is absent.
    pub(super) fn make_first(&self) -> Result<(), ContentError> {
        self.with_made(0, |_| Ok(()))
    }

    /// Whether any segment exists.
    pub(super) fn is_stored(&self) -> bool {
        !self.segments.read().is_empty()
    }

    /// Removes every segment. The handle stays good: it is that of an empty file.
    pub(super) fn remove_all(&self) -> Result<(), ContentError> {
        self.unlink_from(&mut self.segments.write(), 0)
    }

    /// Works on a segment, made if it is absent, which stays while the work lasts.
    pub(super) fn with_made<T>(
        &self,
        index: u64,
        work: impl FnOnce(&File) -> Result<T, ContentError>,
    ) -> Result<T, ContentError> {
        let shared = self.segments.read();
        if shared.contains(&index) {
            return work(&*self.directory.descriptor(self.ino, index)?);
        }
        drop(shared);
        let mut exclusive = self.segments.write();
        let file = if exclusive.contains(&index) {
            self.directory.descriptor(self.ino, index)?
        } else {
            let file = self.directory.create(self.ino, index)?;
            exclusive.insert(index);
            file
        };
        let _shared = RwLockWriteGuard::downgrade(exclusive);
        work(&file)
    }

    /// An open segment if it exists. It may be unlinked while the caller uses it.
    pub(super) fn descriptor_if_present(&self, index: u64) -> Result<Option<Arc<File>>, ContentError> {
        let segments = self.segments.read();
        segments.contains(&index).then(|| self.directory.descriptor(self.ino, index)).transpose()
    }

    /// Unlinks the segments from `first` on, the last first: what a failure leaves is a shorter file.
    fn unlink_from(&self, segments: &mut BTreeSet<u64>, first: u64) -> Result<(), ContentError> {
        while let Some(&index) = segments.range(first..).next_back() {
            self.directory.unlink(self.ino, index)?;
            segments.remove(&index);
        }
        Ok(())
    }

    pub(super) fn failed(&self, doing: &'static str, index: u64, error: io::Error) -> ContentError {
        ContentError::from_io(doing, &self.directory.segment_path(self.ino, index), error)
    }
}

impl Drop for BackingFile {
    fn drop(&mut self) {
        self.directory.forget(self.ino);
    }
}

/// Fills `buf` from a segment; past its end are zeros.
pub(super) fn fill(file: &File, buf: &mut [u8], start: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], start + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buf[done..].fill(0);
    Ok(())
}
