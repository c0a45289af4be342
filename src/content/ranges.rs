//! Operations over ranges of a file that may be mostly absent: reserving, zeroing, and finding data and holes. Imports
//! only this layer.
//!
//! What is hard: a range may be 8 EiB long while three segments exist. Everything here walks the segments that exist,
//! except [`BackingFile::allocate`], which first asks whether the host has the room and so never makes more segments
//! than the host can fill.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use super::backing::BackingFile;
use super::error::ContentError;
use super::host;
use super::names::{MAX_SIZE, Piece, range_end};

/// The unit of `st_blocks`, in bytes.
const STAT_BLOCK_BYTES: u64 = 512;

impl BackingFile {
    /// Reserves space for a range, so that writing there does not run out of it. The bytes stay as they are. With `grow`
    /// the backing file reaches to the end of the range afterwards, as a file does whose node says so: what is reserved
    /// behind its end would go with the next cut.
    ///
    /// # Errors
    /// `NoSpace`, at once if the host has plainly too little; `Unsupported` by the host; `TooLarge`; the host's. Part of
    /// the range may then be reserved.
    pub fn allocate(&self, offset: u64, len: u64, grow: bool) -> Result<(), ContentError> {
        let end = range_end(offset, len)?;
        self.require_room(offset, end)?;
        for piece in self.cut().pieces(offset, end) {
            self.with_made(piece.index, |file| {
                host::allocate(file, piece.start, piece.len, grow).map_err(|error| match error.kind() {
                    io::ErrorKind::FileTooLarge => ContentError::TooLarge { offset, len },
                    _ => self.failed("reserving space for", piece.index, error),
                })
            })?;
        }
        Ok(())
    }

    /// Whether a range has its place on the disk already, by writing or by [`allocate`](Self::allocate): to write there
    /// takes no more.
    ///
    /// # Errors
    /// `TooLarge`; the host's.
    pub fn is_allocated(&self, offset: u64, len: u64) -> Result<bool, ContentError> {
        for piece in self.cut().pieces(offset, range_end(offset, len)?) {
            let Some(file) = self.descriptor_if_present(piece.index)? else { return Ok(false) };
            let is_allocated = host::is_allocated(&file, piece.start, piece.start + piece.len)
                .map_err(|error| self.failed("looking at the space of", piece.index, error))?;
            if !is_allocated {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes a range read as zeros and frees its space where the host can.
    ///
    /// # Errors
    /// `TooLarge`; the host's, after which part of the range may have been zeroed.
    pub fn punch_hole(&self, offset: u64, len: u64) -> Result<(), ContentError> {
        let end = range_end(offset, len)?;
        self.unlink_whole(offset, end)?;
        self.each_present(offset, end, "punching a hole in", |file, piece| {
            let native = || host::punch_hole(file, piece.start, piece.len);
            match self.directory.abilities.punch_hole.attempt(native)? {
                Some(()) => Ok(()),
                None => over_data(file, piece, |start, len| host::write_zeros(file, start, len)),
            }
        })
    }

    /// Makes a range read as zeros and keeps what space it has where the host can. It reserves none: holes stay holes,
    /// so that zeroing a sparse file cannot fill the disk. Follow it by [`allocate`](Self::allocate) for the full
    /// meaning of `FALLOC_FL_ZERO_RANGE`.
    ///
    /// # Errors
    /// `TooLarge`; the host's, after which part of the range may have been zeroed.
    pub fn zero_range(&self, offset: u64, len: u64) -> Result<(), ContentError> {
        let end = range_end(offset, len)?;
        self.each_present(offset, end, "zeroing", |file, piece| {
            over_data(file, piece, |start, len| {
                let native = || host::zero_range(file, start, len);
                match self.directory.abilities.zero_range.attempt(native)? {
                    Some(()) => Ok(()),
                    None => host::write_zeros(file, start, len),
                }
            })
        })
    }

    /// The first offset at or after `offset`, and below `size`, that may hold other than zeros.
    ///
    /// # Errors
    /// The host's.
    pub fn seek_data(&self, offset: u64, size: u64) -> Result<Option<u64>, ContentError> {
        let mut at = offset;
        while let Some(piece) = self.next_present(at, size) {
            let found = match self.descriptor_if_present(piece.index)? {
                Some(file) => host::seek_data(&file, piece.start)
                    .map_err(|error| self.failed("looking for data in", piece.index, error))?,
                None => None,
            };
            match found {
                Some(start) if start < piece.start + piece.len => {
                    return Ok(Some(self.cut().offset(piece.index, start)));
                }
                _ => at = self.cut().offset(piece.index, piece.start + piece.len),
            }
        }
        Ok(None)
    }

    /// The first offset at or after `offset` that is in a hole, at most `size`: the end of a file counts as one.
    ///
    /// # Errors
    /// The host's.
    pub fn seek_hole(&self, offset: u64, size: u64) -> Result<u64, ContentError> {
        for piece in self.cut().pieces(offset, size.min(MAX_SIZE)) {
            let Some(file) = self.descriptor_if_present(piece.index)? else {
                return Ok(self.cut().offset(piece.index, piece.start));
            };
            let start = host::seek_hole(&file, piece.start)
                .map_err(|error| self.failed("looking for a hole in", piece.index, error))?;
            if start < piece.start + piece.len {
                return Ok(self.cut().offset(piece.index, start));
            }
        }
        Ok(size)
    }

    /// Refuses to reserve more than the host could have, counting as reserved already all that it possibly is.
    fn require_room(&self, offset: u64, end: u64) -> Result<(), ContentError> {
        let cut = self.cut();
        let mut wanted = end - offset;
        let segments = self.segments.read();
        for &index in segments.range(cut.locate(offset).0..) {
            let Some(piece) = cut.clip(index, offset, end) else { break };
            let held = self.directory.metadata(self.ino, index)?.blocks().saturating_mul(STAT_BLOCK_BYTES);
            wanted -= held.min(piece.len);
        }
        drop(segments);
        let space = self.directory.space()?;
        if wanted > space.blocks_free.saturating_mul(space.block_size) {
            let (index, _) = self.cut().locate(offset);
            let path = self.directory.segment_path(self.ino, index);
            return Err(ContentError::NoSpace { doing: "reserving space for", path });
        }
        Ok(())
    }

    /// Unlinks the segments that lie in a range as a whole, but for the first.
    fn unlink_whole(&self, offset: u64, end: u64) -> Result<(), ContentError> {
        let cut = self.cut();
        let (first, last) = (cut.locate(offset).0.max(1), cut.locate(end).0);
        if first > last || self.segments.read().range(first..=last).next().is_none() {
            return Ok(());
        }
        let mut segments = self.segments.write();
        let whole: Vec<u64> = segments
            .range(first..=last)
            .copied()
            .filter(|&index| cut.clip(index, offset, end).is_some_and(|piece| cut.is_whole(piece)))
            .collect();
        for index in whole {
            self.directory.unlink(self.ino, index)?;
            segments.remove(&index);
        }
        Ok(())
    }

    /// Works on every segment in a range that exists, each of which stays while it is worked on.
    fn each_present(
        &self,
        offset: u64,
        end: u64,
        doing: &'static str,
        work: impl Fn(&File, Piece) -> io::Result<()>,
    ) -> Result<(), ContentError> {
        let mut at = offset;
        while let Some(piece) = self.next_present(at, end) {
            let segments = self.segments.read();
            if segments.contains(&piece.index) {
                let file = self.directory.descriptor(self.ino, piece.index)?;
                work(&file, piece).map_err(|error| self.failed(doing, piece.index, error))?;
            }
            drop(segments);
            at = self.cut().offset(piece.index, piece.start + piece.len);
        }
        Ok(())
    }

    /// The part of `offset..end` in the first segment there that exists.
    fn next_present(&self, offset: u64, end: u64) -> Option<Piece> {
        let cut = self.cut();
        let segments = self.segments.read();
        let index = segments.range(cut.locate(offset).0..).next().copied()?;
        cut.clip(index, offset, end.min(MAX_SIZE))
    }
}

/// Works on the stretches of a piece, start and length, that may hold other than zeros.
fn over_data(file: &File, piece: Piece, mut work: impl FnMut(u64, u64) -> io::Result<()>) -> io::Result<()> {
    let end = piece.start + piece.len;
    let mut at = piece.start;
    while let Some((start, stop)) = host::next_data(file, at, end)? {
        work(start, stop - start)?;
        at = stop;
    }
    Ok(())
}
