//! Writing bytes.
//!
//! What is hard: whatever crashes when, no file shows bytes that were never written to it. The rule that gives it: bytes
//! reach their backing file, or their chunks, before the node's document names a size that covers them, and what is there
//! beyond the node's size is cut off before the node is let name a larger one ([`prepare`](Namespace::prepare)), unless
//! the write covers it. When a write fails, what it has left there is cut off at once, so that it neither shows nor takes
//! space.
//!
//! Small contents are one document, written in the same commit as the node. A file that outgrows it moves to a backing
//! file or to chunks, whichever the store has, and stays there.
//!
//! What a map has changed is sent whenever the kernel sees fit, by what it then takes for the size. The file may have been
//! cut elsewhere meanwhile, so such a write ends where the file ends ([`Namespace::write_mapped`]).

use crate::content::{ContentError, ContentFile, MAX_SIZE};
use crate::document::merge::Extent;
use crate::document::{Content, ContentPlace, Document, Ino, Key, NodeDelta, Regular, Timestamp, Version};
use crate::namespace::collect::is_apart;
use crate::namespace::gate::Pass;
use crate::namespace::inodes::{Io, Pin};
use crate::namespace::{Namespace, NamespaceError, Result, privilege_bits};
use crate::store::{Commit, Need, NodeRef, StoreError};

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

/// What a change of content leaves in the node beside the content.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    /// The kernel says that set-user-id and set-group-id bits must go.
    pub(super) drop_privileges: bool,
    /// When the change was asked for.
    pub(super) at: Timestamp,
}

/// The bytes of one inode, apart from its node, that are about to change, and what the node says of them now.
pub(super) struct Prepared<'a> {
    pub(super) file: ContentFile,
    /// Makes the node say where the bytes are; to be finished by [`Namespace::finish`].
    pub(super) commit: Commit,
    ino: Ino,
    node: &'a NodeRef,
    place: ContentPlace,
    size: u64,
    /// The space that the node says they take.
    blocks: u64,
    /// The bytes change before the commit; a fence waits for both.
    _pass: Pass<'a>,
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

    /// Writes what of `data` lies within the file as it is by now: what a map has changed, which makes no file longer. It is
    /// never kept back, as the kernel has done that already: kept back, it would meet yet another size.
    ///
    /// # Errors
    /// As [`Namespace::write`].
    pub fn write_mapped(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        drop_privileges: bool,
    ) -> Result<Privileges> {
        self.in_turn(ino, |pin, io| {
            let stamp = self.stamp(drop_privileges);
            self.retry(|| {
                let (_, node) = self.live_node(ino)?;
                let room = regular(&node)?.size.saturating_sub(offset);
                let within = usize::try_from(room).map_or(data, |room| &data[..room.min(data.len())]);
                self.write_to(pin, io, (ino, &node), offset, within, stamp)
            })
        })
    }

    /// Writes `data` at `at`, or at the end.
    pub(super) fn write_at(
        &self,
        ino: Ino,
        at: Option<u64>,
        data: &[u8],
        drop_privileges: bool,
    ) -> Result<Privileges> {
        self.in_turn(ino, |pin, io| self.write_through(pin, io, ino, at, data, self.stamp(drop_privileges)))
    }

    /// Works in the turn of whoever writes to the file, when what was kept back of it is committed.
    fn in_turn<T>(&self, ino: Ino, work: impl FnOnce(&Pin<'_>, &mut Io) -> Result<T>) -> Result<T> {
        let pin = self.inodes.pin(ino);
        let mut io = pin.io.write();
        self.put(&pin, &mut io, ino)?;
        work(&pin, &mut io)
    }

    /// Commits `data`, in the turn of whoever writes to the file.
    pub(super) fn write_through(
        &self,
        pin: &Pin<'_>,
        io: &mut Io,
        ino: Ino,
        at: Option<u64>,
        data: &[u8],
        stamp: Stamp,
    ) -> Result<Privileges> {
        self.retry(|| {
            let (_, node) = self.live_node(ino)?;
            let offset = at.unwrap_or(regular(&node)?.size);
            self.write_to(pin, io, (ino, &node), offset, data, stamp)
        })
    }

    /// Commits `data` at `offset` of a file that has this node.
    fn write_to(
        &self,
        pin: &Pin<'_>,
        io: &mut Io,
        (ino, node): (Ino, &NodeRef),
        offset: u64,
        data: &[u8],
        stamp: Stamp,
    ) -> Result<Privileges> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= MAX_SIZE);
        let end = end.ok_or(NamespaceError::TooLarge)?;
        if data.is_empty() {
            return Ok(Privileges::Kept);
        }
        if !regular(node)?.place.is_apart() && end <= u64::from(self.volume.inline_max) {
            let (commit, extent) = self.write_inline(ino, node, data, offset)?;
            let delta = NodeDelta { extent: Some(extent), ..NodeDelta::default() };
            return Ok(self.commit_content(ino, node, stamp, commit, delta)?.1);
        }
        self.admit_write(pin, io, (ino, node), offset, data.len() as u64)?;
        let prepared = self.prepare(pin, io, ino, node, offset)?;
        let written = prepared.file.stage_at(data, offset, node.version()).map_err(Into::into);
        self.finish(io, prepared, written.map(|()| end), stamp)
    }

    /// Lets `len` bytes at `offset` pass if there is room for them, or if they have their place already: what is there can
    /// be written over, and what was reserved can be used, however full the disk is.
    fn admit_write(
        &self,
        pin: &Pin<'_>,
        io: &mut Io,
        (ino, node): (Ino, &NodeRef),
        offset: u64,
        len: u64,
    ) -> Result<()> {
        match self.store.admit_content(len) {
            Err(StoreError::NoSpace) => {
                if regular(node)?.place == ContentPlace::Backing
                    && pin.file(io, ino, node, self)?.is_allocated(offset, len)?
                {
                    return Ok(());
                }
                self.admit_content(len)
            }
            admitted => Ok(admitted?),
        }
    }

    /// The stamp of a change that is made now.
    pub(super) fn stamp(&self, drop_privileges: bool) -> Stamp {
        Stamp { drop_privileges, at: self.now() }
    }

    fn write_inline(&self, ino: Ino, node: &NodeRef, data: &[u8], offset: u64) -> Result<(Commit, Extent)> {
        let (commit, mut bytes) = match regular(node)?.place {
            ContentPlace::Inline => {
                let inline = self.inline(ino, node, 0)?;
                (inline.unchanged(Commit::new()), inline.bytes.to_vec())
            }
            _ => (Commit::new(), Vec::new()),
        };
        let before = bytes.len();
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
        let commit = if bytes.len() == before { commit.needing(Need::Passing) } else { commit };
        let document = Document::Content(Content { bytes: bytes.into() });
        Ok((commit.put(Key::Content(ino), document), extent))
    }

    /// The backing file or the chunks, holding what the node says that the file holds and nothing more below `from`, and
    /// a commit that makes the node say that its bytes are there. The caller writes every byte from `from` on to the
    /// size that the node is to name.
    pub(super) fn prepare<'a>(
        &'a self,
        pin: &Pin<'_>,
        io: &mut Io,
        ino: Ino,
        node: &'a NodeRef,
        from: u64,
    ) -> Result<Prepared<'a>> {
        let Regular { size, place, blocks } = *regular(node)?;
        self.require_here(ino, place)?;
        let pass = self.gate.enter()?;
        let file = pin.file(io, ino, node, self)?;
        let apart = place.is_apart();
        let prepared = Prepared {
            file,
            commit: Commit::new(),
            ino,
            node,
            place,
            size,
            blocks: if apart { blocks } else { 0 },
            _pass: pass,
        };
        match self.make_ready(io, &prepared, from) {
            Ok(commit) => Ok(Prepared { commit, ..prepared }),
            Err(error) => {
                self.abandon(io, &prepared, &error);
                Err(error)
            }
        }
    }

    /// Lets the bytes be what the node says; returns the commit.
    fn make_ready(&self, io: &mut Io, prepared: &Prepared<'_>, from: u64) -> Result<Commit> {
        let Prepared { file, ino, node, place, size, .. } = prepared;
        let (ino, apart, size) = (*ino, place.is_apart(), *size);
        let mut commit = Commit::new();
        // Until the commit the node may not know of this file: a try that failed may have left anything in it.
        let known = if apart { size } else { 0 };
        file.begin(known);
        let inline = match place {
            ContentPlace::Inline => Some(self.inline(ino, node, 0)?),
            _ => None,
        };
        let written = inline.as_ref().map_or(known, |inline| inline.bytes.len() as u64);
        let must_trim = if self.contents.is_shared() {
            // Another host may have left something since this one looked; but the caller writes over all that shows.
            from > written || size > written
        } else {
            !io.trimmed || !apart
        };
        if must_trim {
            file.trim(known, node.version())?;
            io.trimmed = true;
        }
        if let Some(inline) = inline {
            file.write_at(&inline.bytes, 0, node.version())?;
            // The document may be durable, and goes with the commit; what takes its place must be so before.
            file.sync(true).inspect_err(|error| {
                if !matches!(error, ContentError::NoSpace { .. }) {
                    self.sync_failed(error);
                }
            })?;
            commit = inline.unchanged(commit).delete(Key::Content(ino));
        }
        Ok(commit)
    }

    /// Commits a change of bytes apart from the node that reaches to the end that `outcome` says (0: the file does not
    /// grow); or undoes it.
    pub(super) fn finish(
        &self,
        io: &mut Io,
        mut prepared: Prepared<'_>,
        outcome: Result<u64>,
        stamp: Stamp,
    ) -> Result<Privileges> {
        let mut commit = std::mem::take(&mut prepared.commit);
        let Prepared { file, ino, node, place, size, blocks, .. } = &prepared;
        let committed = outcome.and_then(|size_at_least| {
            let extent = Extent {
                size_at_least,
                blocks: file.allocated_blocks(*blocks)?,
                place: self.contents.place(),
            };
            commit.checks.extend(file.checks(if place.is_apart() { *size } else { 0 }));
            let delta = NodeDelta { extent: Some(extent), ..NodeDelta::default() };
            let (version, privileges) = self.commit_content(*ino, node, stamp, file.join(commit), delta)?;
            file.named(version);
            self.changed_by_node(*ino, (*size).max(size_at_least));
            Ok(privileges)
        });
        committed.inspect_err(|error| self.abandon(io, &prepared, error))
    }

    /// Cuts off what a change that `error` has ended left of bytes.
    fn abandon(&self, io: &mut Io, prepared: &Prepared<'_>, error: &NamespaceError) {
        let Prepared { file, ino, node, place, size, .. } = prepared;
        io.trimmed = false;
        // The next mount may find the commit in the journal, and what it names must be there then. If it finds none, what is
        // left here is cut off or swept away.
        if !self.contents.is_shared() && matches!(error, NamespaceError::Store(StoreError::Stopped(_))) {
            return;
        }
        let refused = matches!(
            error,
            NamespaceError::Conflict(_) | NamespaceError::Store(StoreError::Fenced | StoreError::NoSpace)
        );
        if !file.failed(refused) {
            return;
        }
        let undone = if place.is_apart() {
            // What is reserved in a backing file stays.
            let cut = if self.contents.is_shared() { ContentFile::truncate } else { ContentFile::trim };
            cut(file, *size, node.version()).map_err(NamespaceError::from)
        } else {
            io.file = None;
            self.undo(*ino)
        };
        // After a conflict the next try cuts it off, under what the node says then.
        if let Err(error) = undone
            && !matches!(error, NamespaceError::Conflict(_))
        {
            log::warn!("what a failed change of inode {ino} left takes space for now: {error}");
        }
    }

    /// Removes bytes that a failed change has left apart from a node which does not know of them: nobody else ever would,
    /// not even whoever removes the file, which another host may have done meanwhile.
    fn undo(&self, ino: Ino) -> Result<()> {
        self.retry(|| match self.store.node(ino)? {
            // Another host has let the node know of its own.
            Some((_, node)) if is_apart(&node) => Ok(()),
            Some((version, _)) => Ok(self.contents.undo(ino.0, version)?),
            None => Ok(self.contents.remove(ino.0)?),
        })
    }

    /// Commits a change of content with what goes with every one: times, privileges and capabilities.
    pub(super) fn commit_content(
        &self,
        ino: Ino,
        node: &NodeRef,
        stamp: Stamp,
        commit: Commit,
        mut delta: NodeDelta,
    ) -> Result<(Version, Privileges)> {
        // What was changed after it was asked for keeps its place: times do not go back. A rename or a link says nothing of
        // the bytes.
        let after = |time: Timestamp| if time > stamp.at { self.now() } else { stamp.at };
        (delta.mtime, delta.ctime) = (Some(after(node.mtime.min(node.ctime))), Some(after(node.ctime)));
        delta.mode_clear = if stamp.drop_privileges { privilege_bits(node) } else { 0 };
        let dropped = delta.mode_clear != 0;
        let mut commit = self.drop_capabilities(ino, node, commit, &mut delta)?;
        if self.contents.is_shared() {
            // Only within a process do writers take turns.
            commit = commit.at(Key::Node(ino), node.version());
        }
        let version = self.commit(&commit.merge(Key::Node(ino), delta))?;
        Ok((version, if dropped { Privileges::Dropped } else { Privileges::Kept }))
    }

    /// Adds to `commit` that a file loses its capabilities (`security.capability`) when its content or owner changes.
    pub(super) fn drop_capabilities(
        &self,
        ino: Ino,
        node: &NodeRef,
        commit: Commit,
        delta: &mut NodeDelta,
    ) -> Result<Commit> {
        Ok(match self.capability(ino, node)? {
            Some((key, version)) => {
                delta.xattrs -= 1;
                commit.at(key.clone(), version).delete(key)
            }
            None => commit,
        })
    }
}
