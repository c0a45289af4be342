//! Writing bytes.
//!
//! What is hard: whatever crashes when, no file shows bytes that were never written to it. The rule that gives it: bytes
//! reach their backing file before the node's document names a size that covers them, and what a backing file holds
//! beyond the node's size is cut off before the node is let name a larger one ([`prepare`](Namespace::prepare)).
//!
//! Small contents are one document, written in the same commit as the node. A file that outgrows it moves to a backing
//! file, and does not come back until it is cut to nothing.

use std::sync::Arc;

use crate::content::{BackingFile, MAX_SIZE};
use crate::document::merge::Extent;
use crate::document::{Content, ContentPlace, Document, Ino, Key, NodeDelta, Regular};
use crate::namespace::inodes::{Io, Pin};
use crate::namespace::{Caller, Namespace, NamespaceError, Result, privilege_bits};
use crate::store::{Commit, NodeRef};

use super::read::regular;

const SECTOR: u64 = 512;

/// The space that inline content is said to take, in units of 512 bytes.
pub(super) fn inline_blocks(len: usize) -> u64 {
    (len as u64).div_ceil(SECTOR)
}

impl Namespace {
    /// Writes all of `data` at `offset`.
    ///
    /// `drop_privileges`: the kernel says that set-user-id and set-group-id bits must go.
    ///
    /// # Errors
    /// `TooLarge`; no space; `NotFound`.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8], drop_privileges: bool) -> Result<()> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= MAX_SIZE);
        let end = end.ok_or(NamespaceError::TooLarge)?;
        let pin = self.inodes.pin(ino);
        let mut io = pin.io.write();
        let (_, node) = self.live_node(ino)?;
        let regular = regular(&node)?;
        if data.is_empty() {
            return Ok(());
        }
        let inline = regular.place != ContentPlace::Backing && end <= u64::from(self.volume.inline_max);
        let commit = if inline {
            self.write_inline(ino, regular, data, offset)?
        } else {
            self.write_backing(&pin, &mut io, ino, regular, data, offset)?
        };
        let now = self.now();
        let mode_clear = if drop_privileges { privilege_bits(&node) } else { 0 };
        let (commit, extent) = commit;
        let mut delta = NodeDelta {
            mtime: Some(now),
            ctime: Some(now),
            mode_clear,
            extent: Some(extent),
            ..NodeDelta::default()
        };
        let commit = self.drop_capabilities(ino, &node, commit, &mut delta)?.merge(Key::Node(ino), delta);
        self.store.commit(&commit)?;
        Ok(())
    }

    fn write_inline(
        &self,
        ino: Ino,
        regular: &Regular,
        data: &[u8],
        offset: u64,
    ) -> Result<(Commit, Extent)> {
        let mut bytes = match regular.place {
            ContentPlace::Inline => self.inline(ino)?.to_vec(),
            _ => Vec::new(),
        };
        let from = offset as usize; // At most `inline_max`: the caller has seen to it.
        let end = from + data.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[from..end].copy_from_slice(data);
        let extent = Extent {
            size_at_least: end as u64,
            blocks: inline_blocks(bytes.len()),
            place: ContentPlace::Inline,
        };
        let document = Document::Content(Content { bytes: bytes.into() });
        Ok((Commit::new().put(Key::Content(ino), document), extent))
    }

    fn write_backing(
        &self,
        pin: &Pin<'_>,
        io: &mut Io,
        ino: Ino,
        regular: &Regular,
        data: &[u8],
        offset: u64,
    ) -> Result<(Commit, Extent)> {
        let (file, commit) = self.prepare(pin, io, ino, regular)?;
        if let Err(error) = file.write_at(data, offset) {
            // Part of the bytes may stand beyond the node's size now.
            io.trimmed = false;
            return Err(error.into());
        }
        let extent = Extent {
            size_at_least: offset + data.len() as u64,
            blocks: file.allocated_blocks()?,
            place: ContentPlace::Backing,
        };
        Ok((commit, extent))
    }

    /// The backing file, holding exactly what the node says that the file holds, and a commit that makes the node say
    /// that its bytes are there: to be finished with the [`Extent`].
    pub(super) fn prepare(
        &self,
        pin: &Pin<'_>,
        io: &mut Io,
        ino: Ino,
        regular: &Regular,
    ) -> Result<(Arc<BackingFile>, Commit)> {
        let file = pin.backing(io, ino, self)?;
        let mut commit = Commit::new();
        if !io.trimmed || regular.place != ContentPlace::Backing {
            // Until the commit the node may not know of this file: a try that failed may have left anything in it.
            let known = if regular.place == ContentPlace::Backing { regular.size } else { 0 };
            file.truncate(known)?;
            io.trimmed = true;
        }
        if regular.place == ContentPlace::Inline {
            file.write_at(&self.inline(ino)?, 0)?;
            commit = commit.delete(Key::Content(ino));
        }
        Ok((file, commit))
    }

    /// Adds to `commit` that a file loses its capabilities (`security.capability`) when its content or owner changes.
    pub(super) fn drop_capabilities(
        &self,
        ino: Ino,
        node: &NodeRef,
        commit: Commit,
        delta: &mut NodeDelta,
    ) -> Result<Commit> {
        const CAPABILITY: &[u8] = b"security.capability";
        if node.xattrs == 0 {
            return Ok(commit);
        }
        let key = Key::Xattr(ino, CAPABILITY.into());
        match self.store.get(&key)? {
            Some(stored) => {
                delta.xattrs -= 1;
                Ok(commit.at(key.clone(), stored.version).delete(key))
            }
            None => Ok(commit),
        }
    }

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
    ) -> Result<u64> {
        const COPY_MAX: u64 = 64 << 20;
        const PIECE: u32 = 1 << 20;
        let (_, source) = self.live_node(from)?;
        let len = len.min(regular(&source)?.size.saturating_sub(from_offset)).min(COPY_MAX);
        if let Some(copied) = self.copy_backing((from, from_offset), (to, to_offset), len)? {
            return Ok(copied);
        }
        let mut done = 0;
        while done < len {
            let piece = u32::try_from(len - done).unwrap_or(PIECE).min(PIECE);
            let bytes = self.read(from, from_offset + done, piece)?;
            if bytes.is_empty() {
                break;
            }
            self.write(to, to_offset + done, &bytes, !caller.keeps_privileges())?;
            done += bytes.len() as u64;
        }
        Ok(done)
    }

    /// Copies between two backing files, within the host and with its holes. `None` if that is not how these two are.
    fn copy_backing(
        &self,
        (from, from_offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        len: u64,
    ) -> Result<Option<u64>> {
        let end =
            to_offset.checked_add(len).filter(|end| *end <= MAX_SIZE).ok_or(NamespaceError::TooLarge)?;
        if from == to || len <= u64::from(self.volume.inline_max) {
            return Ok(None);
        }
        let (from_pin, to_pin) = (self.inodes.pin(from), self.inodes.pin(to));
        // Both in the order of inode numbers, so that two copies in opposite directions do not wait for each other.
        let (_from_io, mut to_io) = if from < to {
            let from_io = from_pin.io.read();
            (from_io, to_pin.io.write())
        } else {
            let to_io = to_pin.io.write();
            (from_pin.io.read(), to_io)
        };
        let (_, source) = self.live_node(from)?;
        let (_, target) = self.live_node(to)?;
        let (source, target_regular) = (regular(&source)?, regular(&target)?);
        let (ContentPlace::Backing, Some(source_file)) = (source.place, self.backing.find(from.0)?) else {
            return Ok(None);
        };
        let (target_file, commit) = self.prepare(&to_pin, &mut to_io, to, target_regular)?;
        let copied = source_file
            .copy_to(from_offset, &target_file, to_offset, len)
            .inspect_err(|_| to_io.trimmed = false)?;
        let now = self.now();
        let extent = Extent {
            size_at_least: to_offset + copied.min(end - to_offset),
            blocks: target_file.allocated_blocks()?,
            place: ContentPlace::Backing,
        };
        let delta = NodeDelta {
            mtime: Some(now),
            ctime: Some(now),
            mode_clear: privilege_bits(&target),
            extent: Some(extent),
            ..NodeDelta::default()
        };
        self.store.commit(&commit.merge(Key::Node(to), delta))?;
        Ok(Some(copied))
    }
}
