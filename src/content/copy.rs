//! Copying a range from one file to another inside the host, which may share the blocks. Imports only this layer.
//!
//! What is hard: the source may be 8 EiB of hole, so only its data is copied and its holes are punched in the target;
//! and two copies in opposite directions must not wait for each other, so the source's segments are not held while the
//! target's are. A source that is trimmed meanwhile gives its old bytes or zeros, as with any concurrent read.

use std::os::unix::fs::FileExt;

use super::backing::{BackingFile, fill};
use super::error::ContentError;
use super::host;
use super::names::range_end;

/// The most that one call asks of the host, so that a trim of the target does not wait for long.
const CALL_BYTES: u64 = 64 << 20;

/// The buffer of a copy that the host cannot do.
const BUFFER_BYTES: usize = 256 << 10;

impl BackingFile {
    /// Copies `len` bytes from `from` on to `to` in `target`, where holes become holes. Within one file the ranges must
    /// not overlap. Returns how many bytes were copied: fewer than `len` only where an error struck later than the
    /// first byte, and going on from there will meet it again.
    ///
    /// # Errors
    /// `NoSpace`, `TooLarge` or the host's, before the first byte.
    pub fn copy_to(&self, from: u64, target: &Self, to: u64, len: u64) -> Result<u64, ContentError> {
        let from_end = range_end(from, len)?;
        range_end(to, len)?;
        let mut done = 0;
        while done < len {
            match self.copy_some(from + done, from_end, target, to + done) {
                Ok(copied) => done += copied,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Copies the hole or some of the data that `from..end` begins with. Returns how many bytes, at least 1.
    fn copy_some(&self, from: u64, end: u64, target: &Self, to: u64) -> Result<u64, ContentError> {
        match self.seek_data(from, end)? {
            Some(data) if data == from => {
                let stop = self.seek_hole(from, end)?.max(from + 1);
                self.copy_data(from, target, to, (stop - from).min(CALL_BYTES))
            }
            data => {
                let hole = data.unwrap_or(end) - from;
                target.punch_hole(to, hole)?;
                Ok(hole)
            }
        }
    }

    /// Copies some of `len` bytes, as many as lie in one segment of either file.
    fn copy_data(&self, from: u64, target: &Self, to: u64, len: u64) -> Result<u64, ContentError> {
        let cut = self.cut();
        let pieces = cut.pieces(from, from + len).next().zip(target.cut().pieces(to, to + len).next());
        let Some((source, sink)) = pieces else { return Ok(0) };
        let len = source.len.min(sink.len);
        let Some(file) = self.descriptor_if_present(source.index)? else {
            // Unlinked since it was found to have data.
            target.punch_hole(to, len)?;
            return Ok(len);
        };
        target.with_made(sink.index, |target_file| {
            let asked = usize::try_from(len).unwrap_or(usize::MAX);
            let native = || host::copy_range(&file, source.start, target_file, sink.start, asked);
            match target.directory.abilities.copy_range.attempt(native) {
                Ok(Some(copied)) if copied > 0 => return Ok(copied),
                // Nothing copied: the source was trimmed meanwhile, or this host misjudges its end.
                Ok(_) => {}
                // Some hosts refuse what they cannot do in this way.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                Err(error) => return Err(target.failed("copying to", sink.index, error)),
            }
            let mut buffer = vec![0; asked.min(BUFFER_BYTES)];
            fill(&file, &mut buffer, source.start)
                .map_err(|error| self.failed("reading", source.index, error))?;
            target_file
                .write_all_at(&buffer, sink.start)
                .map_err(|error| target.failed("writing", sink.index, error))?;
            Ok(buffer.len() as u64)
        })
    }
}
