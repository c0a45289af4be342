//! Writing bytes.
//!
//! What is hard: whatever crashes when, no file shows bytes that were never written to it. The rule that gives it: bytes
//! reach their backing file before the node's document names a size that covers them, and what a backing file holds
//! beyond the node's size is cut off before the node is let name a larger one ([`prepare`](Namespace::prepare)). When a
//! write fails, what it has left in the backing file is cut off at once, so that it neither shows nor takes space.
//!
//! Small contents are one document, written in the same commit as the node. A file that outgrows it moves to a backing
//! file, and stays there.

use std::sync::Arc;

use crate::content::{BackingFile, MAX_SIZE};
use crate::document::merge::Extent;
use crate::document::{Content, ContentPlace, Document, Ino, Key, NodeDelta, Regular};
use crate::namespace::gate::Pass;
use crate::namespace::inodes::{Io, Pin};
use crate::namespace::{Namespace, NamespaceError, Result, privilege_bits};
use crate::store::{Commit, NodeRef};

use super::read::regular;

const SECTOR: u64 = 512;

/// The space that inline content is said to take, in units of 512 bytes.
pub(super) fn inline_blocks(len: usize) -> u64 {
    (len as u64).div_ceil(SECTOR)
}

/// Whether a change took privileges (set-user-id, set-group-id) from the file, which the kernel must learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privileges {
    /// The mode is as before.
    Kept,
    /// Bits of the mode are gone.
    Dropped,
}

/// The backing file of one inode that is about to change, and what the node says of it now.
pub(super) struct Prepared<'a> {
    pub(super) file: Arc<BackingFile>,
    /// Makes the node say where the bytes are; to be finished by [`Namespace::finish`].
    pub(super) commit: Commit,
    ino: Ino,
    node: &'a NodeRef,
    place: ContentPlace,
    size: u64,
    /// The bytes change before the commit; a fence waits for both.
    pass: Pass<'a>,
}

impl Namespace {
    /// Writes all of `data` at `offset`.
    ///
    /// `drop_privileges`: the kernel says that set-user-id and set-group-id bits must go.
    ///
    /// # Errors
    /// `TooLarge`; no space; `NotFound`.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8], drop_privileges: bool) -> Result<Privileges> {
        self.write_at(ino, Some(offset), data, drop_privileges)
    }

    /// Writes all of `data` at the end of the file, wherever that is by now.
    ///
    /// # Errors
    /// As [`Namespace::write`].
    pub fn append(&self, ino: Ino, data: &[u8], drop_privileges: bool) -> Result<Privileges> {
        self.write_at(ino, None, data, drop_privileges)
    }

    fn write_at(&self, ino: Ino, at: Option<u64>, data: &[u8], drop_privileges: bool) -> Result<Privileges> {
        let pin = self.inodes.pin(ino);
        let mut io = pin.io.write();
        self.retry(|| {
            let (_, node) = self.live_node(ino)?;
            let regular = regular(&node)?;
            let offset = at.unwrap_or(regular.size);
            let end = offset.checked_add(data.len() as u64).filter(|end| *end <= MAX_SIZE);
            let end = end.ok_or(NamespaceError::TooLarge)?;
            if data.is_empty() {
                return Ok(Privileges::Kept);
            }
            if regular.place != ContentPlace::Backing && end <= u64::from(self.volume.inline_max) {
                let (commit, extent) = self.write_inline(ino, regular, data, offset)?;
                let delta = NodeDelta { extent: Some(extent), ..NodeDelta::default() };
                return self.commit_content(ino, &node, drop_privileges, commit, delta);
            }
            self.store.admit_content(data.len() as u64)?;
            let prepared = self.prepare(&pin, &mut io, ino, &node)?;
            let written = prepared.file.write_at(data, offset).map_err(Into::into);
            self.finish(&mut io, prepared, written.map(|()| end), drop_privileges)
        })
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

    /// The backing file, holding exactly what the node says that the file holds, and a commit that makes the node say
    /// that its bytes are there.
    pub(super) fn prepare<'a>(
        &'a self,
        pin: &Pin<'_>,
        io: &mut Io,
        ino: Ino,
        node: &'a NodeRef,
    ) -> Result<Prepared<'a>> {
        let Regular { size, place, .. } = *regular(node)?;
        let pass = self.gate.enter()?;
        let file = pin.backing(io, ino, self)?;
        let mut commit = Commit::new();
        if !io.trimmed || place != ContentPlace::Backing {
            // Until the commit the node may not know of this file: a try that failed may have left anything in it.
            let known = if place == ContentPlace::Backing { size } else { 0 };
            file.trim(known)?;
            io.trimmed = true;
        }
        if place == ContentPlace::Inline {
            file.write_at(&self.inline(ino)?, 0)?;
            // The document may be durable, and goes with the commit; what takes its place must be so before.
            file.sync(true)?;
            commit = commit.delete(Key::Content(ino));
        }
        Ok(Prepared { file, commit, ino, node, place, size, pass })
    }

    /// Commits a change of a backing file that reaches to the end that `outcome` says (0: the file does not grow); or
    /// undoes it.
    pub(super) fn finish(
        &self,
        io: &mut Io,
        prepared: Prepared<'_>,
        outcome: Result<u64>,
        drop_privileges: bool,
    ) -> Result<Privileges> {
        let Prepared { file, commit, ino, node, place, size, pass: _pass } = prepared;
        let committed = outcome.and_then(|size_at_least| {
            let extent =
                Extent { size_at_least, blocks: file.allocated_blocks()?, place: ContentPlace::Backing };
            let delta = NodeDelta { extent: Some(extent), ..NodeDelta::default() };
            self.commit_content(ino, node, drop_privileges, commit, delta)
        });
        committed.inspect_err(|_| {
            io.trimmed = false;
            let undone = if place == ContentPlace::Backing {
                file.truncate(size)
            } else {
                // The node does not know of this file, so nobody would ever remove it.
                io.backing = None;
                self.backing.remove(ino.0)
            };
            if let Err(error) = undone {
                log::warn!("what a failed change of inode {ino} left takes space for now: {error}");
            }
        })
    }

    /// Commits a change of content with what goes with every one: times, privileges and capabilities.
    fn commit_content(
        &self,
        ino: Ino,
        node: &NodeRef,
        drop_privileges: bool,
        commit: Commit,
        mut delta: NodeDelta,
    ) -> Result<Privileges> {
        let now = self.now();
        (delta.mtime, delta.ctime) = (Some(now), Some(now));
        delta.mode_clear = if drop_privileges { privilege_bits(node) } else { 0 };
        let dropped = delta.mode_clear != 0;
        let commit = self.drop_capabilities(ino, node, commit, &mut delta)?;
        self.commit(&commit.merge(Key::Node(ino), delta))?;
        Ok(if dropped { Privileges::Dropped } else { Privileges::Kept })
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
}
