//! copy_file_range: from place to place where both files are apart from their nodes, else through memory.

use crate::content::MAX_SIZE;
use crate::document::Ino;
use crate::namespace::{Caller, Namespace, NamespaceError, Result};

use super::read::{regular, view};
use super::write::Privileges;

/// One call copies no more, so that it does not hold up a thread for long; the program asks again.
const COPY_MAX: u64 = 64 << 20;
const PIECE: u32 = 1 << 20;

impl Namespace {
    /// Copies up to `len` bytes from one file to another, or within one; returns how many. Ranges of one file that
    /// overlap are the kernel's to refuse.
    ///
    /// # Errors
    /// As reading and writing.
    pub fn copy(
        &self,
        caller: Caller,
        (from, from_offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        len: u64,
    ) -> Result<(u64, Privileges)> {
        let len = len.min(COPY_MAX);
        if let Some(done) = self.copy_apart(caller, (from, from_offset), (to, to_offset), len)? {
            return Ok(done);
        }
        let (mut done, mut privileges) = (0, Privileges::Kept);
        while done < len {
            let piece = u32::try_from(len - done).unwrap_or(PIECE).min(PIECE);
            let read = self.read(from, from_offset + done, piece);
            let copied = read.and_then(|bytes| match bytes.len() as u64 {
                0 => Ok((0, Privileges::Kept)),
                copied => Ok((copied, self.write(to, to_offset + done, &bytes, !caller.keeps_privileges())?)),
            });
            match copied {
                Ok((0, _)) => break,
                Ok((copied, took)) => {
                    done += copied;
                    if took == Privileges::Dropped {
                        privileges = took;
                    }
                }
                // What was copied is told first; who goes on meets the error.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok((done, privileges))
    }

    /// Copies between two files whose bytes are apart from their nodes, with their holes. `None` if that is not how
    /// these two are.
    fn copy_apart(
        &self,
        caller: Caller,
        (from, from_offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        len: u64,
    ) -> Result<Option<(u64, Privileges)>> {
        to_offset.checked_add(len).filter(|end| *end <= MAX_SIZE).ok_or(NamespaceError::TooLarge)?;
        if from == to || len <= u64::from(self.volume.inline_max) {
            return Ok(None);
        }
        self.flush(from)?;
        let (from_pin, to_pin) = (self.inodes.pin(from), self.inodes.pin(to));
        // Both in the order of inode numbers, so that two copies in opposite directions do not wait for each other.
        let (_from_io, mut to_io) = if from < to {
            let from_io = from_pin.io.read();
            (from_io, to_pin.io.write())
        } else {
            let to_io = to_pin.io.write();
            (from_pin.io.read(), to_io)
        };
        self.put(&to_pin, &mut to_io, to)?;
        let stamp = self.stamp(!caller.keeps_privileges());
        self.retry(|| {
            let (_, source_node) = self.live_node(from)?;
            let source = regular(&source_node)?;
            let source_view = view(&source_node, source);
            let len = len.min(source.size.saturating_sub(from_offset));
            if len == 0 {
                return Ok(Some((0, Privileges::Kept)));
            }
            if source.place != self.contents.place() {
                return Ok(None);
            }
            let source_file = self.stored(from, &source_node)?;
            let (_, target) = self.live_node(to)?;
            self.admit_content(len)?;
            let prepared = self.prepare(&to_pin, &mut to_io, to, &target, to_offset)?;
            let (file, under) = (&prepared.file, target.version());
            let copied = source_file.copy_to((from_offset, source_view), (file, to_offset, under), len);
            if !matches!(copied, Ok(copied) if copied == len) {
                // What came after the last byte that counts may stand beyond the node's size.
                to_io.trimmed = false;
            }
            let done = copied.as_ref().copied().unwrap_or_default();
            let outcome = copied.map_err(Into::into).and_then(|copied| {
                let end = to_offset + copied;
                // A hole at the end of what is copied leaves the host's file shorter.
                self.extend_passed(to, end)?;
                Ok(end)
            });
            let privileges = self.finish(&mut to_io, prepared, outcome, stamp)?;
            Ok(Some((done, privileges)))
        })
    }
}
