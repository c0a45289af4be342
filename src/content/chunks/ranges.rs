//! Operations over ranges of a file that may be mostly absent: cutting, zeroing, copying, finding data and holes.
//!
//! What is hard: a range may be 8 EiB long while three chunks exist. The chunks that exist are walked by their keys, a
//! page at a time; only those at the ends of a range are read.

use super::edit::Edit;
use super::{CHUNK_BYTES, ChunkFile, Tally, View, sectors};
use crate::content::error::ContentError;
use crate::content::names::{MAX_SIZE, Piece, range_end};
use crate::document::Version;

/// As many chunks one commit removes, and one request lists.
const CHUNKS_REMOVED: usize = 256;
const KEYS_LISTED: usize = 1024;

/// A copy goes through memory in pieces of this size.
const COPY_BYTES: u64 = 8 * CHUNK_BYTES;

impl ChunkFile {
    /// Drops every byte at or beyond `size`; never extends. Done again after an error or a crash, it completes. With
    /// `under`, only while the node has that version.
    ///
    /// # Errors
    /// `Conflict` if the node has another version; the store's.
    pub fn truncate(&self, size: u64, under: Option<Version>) -> Result<(), ContentError> {
        // Whatever order a crash breaks off, what is left lies beyond the size, and means nothing.
        let (last, keep) = self.cut().locate(size);
        let beyond = if keep == 0 { last } else { last + 1 };
        self.remove_chunks(beyond, u64::MAX, under)?;
        let mut state = self.state.lock();
        if size == 0 {
            state.tally = Tally { from_nothing: true, change: 0 };
        }
        state.absent_from = beyond;
        state.written.split_off(&beyond);
        drop(state);
        if keep > 0 {
            let rest = Piece { index: last, start: keep, len: self.chunks.shared.chunk_bytes - keep };
            self.zero_within(&[rest], under)?;
        }
        Ok(())
    }

    /// Drops every byte at or beyond `size` that a crash or a failed write has left, while the node has the version
    /// `under`.
    ///
    /// # Errors
    /// As [`truncate`](Self::truncate).
    pub fn trim(&self, size: u64, under: Version) -> Result<(), ContentError> {
        let before = self.state.lock().tally;
        self.truncate(size, Some(under))?;
        // What was never named takes nothing away from what was.
        if size > 0 {
            self.state.lock().tally = before;
        }
        Ok(())
    }

    /// Makes a range read as zeros and removes the chunks in it. With `under`, only while the node has that version.
    ///
    /// # Errors
    /// `TooLarge`; `Conflict` if the node has another version; the store's. Part of the range may then have been zeroed.
    pub fn punch_hole(&self, offset: u64, len: u64, under: Option<Version>) -> Result<(), ContentError> {
        let end = range_end(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let cut = self.cut();
        let ((first, start), (last, stop)) = (cut.locate(offset), cut.locate(end));
        let mut edges = Vec::new();
        edges.extend(cut.clip(first, offset, end).filter(|_| start > 0 || first == last));
        if stop > 0 && last != first {
            edges.extend(cut.clip(last, offset, end));
        }
        self.zero_within(&edges, under)?;
        self.remove_chunks(if start > 0 { first + 1 } else { first }, last, under)
    }

    /// Zeroes parts of chunks. A part that reaches to a chunk's end shortens it.
    fn zero_within(&self, pieces: &[Piece], under: Option<Version>) -> Result<(), ContentError> {
        self.edit(pieces, false, under, |piece, old| {
            let start = usize::try_from(piece.start).unwrap_or(usize::MAX);
            match old {
                Some(old) if start < old.len() => {
                    let stop = start.saturating_add(usize::try_from(piece.len).unwrap_or(usize::MAX));
                    if stop < old.len() {
                        let mut bytes = old.to_vec();
                        bytes[start..stop].fill(0);
                        Edit::Put(bytes.into())
                    } else if start > 0 {
                        Edit::Put(old[..start].into())
                    } else {
                        Edit::Delete
                    }
                }
                _ => Edit::Keep,
            }
        })
    }

    /// Removes the chunks from `first` on and below `end`. The last one may be short; the others count as full.
    fn remove_chunks(&self, first: u64, end: u64, under: Option<Version>) -> Result<(), ContentError> {
        let mut next = first;
        while next < end {
            let mut there = self.present(next, CHUNKS_REMOVED)?;
            let more = there.len() >= CHUNKS_REMOVED;
            there.retain(|&index| index < end);
            let Some(&last) = there.last() else { break };
            // From nothing on there is nothing to count.
            let short = if first == 0 && end == u64::MAX { 0 } else { self.len_of(last)? };
            let full = self.chunks.shared.chunk_bytes;
            let freed = sectors(full as usize) * (there.len() as i64 - 1) + sectors(short as usize);
            let objects = self.objects_of(&there)?;
            let commit =
                there.iter().fold(self.commit(under), |commit, &index| commit.delete(self.key(index)));
            self.store().commit(&commit).map_err(ContentError::from)?;
            self.replace(objects);
            self.state.lock().tally.change -= freed;
            there.iter().for_each(|&index| self.chunks.shared.cache.forget(self.ino.0, index));
            if !more {
                break;
            }
            next = last + 1;
        }
        Ok(())
    }

    /// The first offset at or after `offset`, and below `size`, that may hold other than zeros.
    ///
    /// # Errors
    /// The store's.
    pub fn seek_data(&self, offset: u64, size: u64) -> Result<Option<u64>, ContentError> {
        let size = size.min(MAX_SIZE);
        let (index, start) = self.cut().locate(offset);
        if offset < size && start < self.len_of(index)? {
            return Ok(Some(offset));
        }
        let found = self.present(index + 1, 1)?.first().map(|&index| self.cut().offset(index, 0));
        Ok(found.filter(|&found| found < size))
    }

    /// The first offset at or after `offset` that is in a hole, at most `size`. A hole that begins and ends within the
    /// span of one chunk, with data in the next one, may be passed over: finding it would mean to read all chunks before
    /// it.
    ///
    /// # Errors
    /// The store's.
    pub fn seek_hole(&self, offset: u64, size: u64) -> Result<u64, ContentError> {
        let (index, start) = self.cut().locate(offset);
        if offset >= size || start >= self.len_of(index)? {
            return Ok(offset.min(size));
        }
        let mut last = index;
        let (end, within) = self.cut().locate(size.min(MAX_SIZE));
        // Of the chunks that begin below `size`, and no others: who copies wants a few.
        let end = end + u64::from(within > 0);
        while last + 1 < end {
            let wanted = usize::try_from(end - last - 1).unwrap_or(usize::MAX).min(KEYS_LISTED);
            let page = self.present(last + 1, wanted)?;
            let run = (last + 1..).zip(&page).take_while(|(next, there)| next == *there).count();
            last += run as u64;
            if run < wanted {
                break;
            }
        }
        Ok(self.cut().offset(last, self.len_of(last)?).clamp(offset, size))
    }

    /// Copies `len` bytes from `from` on to `to` in `target`, where holes become holes; with `under`, only while the node of
    /// the target has that version. Within one file the ranges must not overlap. Returns how many bytes were copied: fewer
    /// than `len` only where an error struck later than the first.
    ///
    /// # Errors
    /// `TooLarge`, `Conflict` if the node has another version, or the store's, before the first byte.
    pub fn copy_to(
        &self,
        (from, view): (u64, View),
        (target, to, under): (&Self, u64, Option<Version>),
        len: u64,
    ) -> Result<u64, ContentError> {
        let end = range_end(from, len)?;
        range_end(to, len)?;
        let mut done = 0;
        while done < len {
            match self.copy_some((from + done, end, view), (target, to + done, under)) {
                Ok(copied) => done += copied,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Copies the hole or some of the data that `from..end` begins with. Returns how many bytes, at least 1.
    fn copy_some(
        &self,
        (from, end, view): (u64, u64, View),
        (target, to, under): (&Self, u64, Option<Version>),
    ) -> Result<u64, ContentError> {
        match self.seek_data(from, end)? {
            Some(data) if data == from => {
                let most = end.min(from + COPY_BYTES);
                let len = self.seek_hole(from, most)?.max(from + 1) - from;
                let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
                self.read_at(&mut bytes, from, view)?;
                target.write_at(&bytes, to, under)?;
                Ok(len)
            }
            data => {
                let hole = data.unwrap_or(end) - from;
                target.punch_hole(to, hole, under)?;
                Ok(hole)
            }
        }
    }
}
