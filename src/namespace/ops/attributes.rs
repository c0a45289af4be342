//! Changing attributes: chmod, chown, truncate, utimensat, in any combination and in one commit.

use crate::content::MAX_SIZE;
use crate::document::merge::Extent;
use crate::document::{
    Body, Content, ContentPlace, Document, FileKind, Ino, Key, Node, NodeDelta, Timestamp, Version, Xattr,
};
use crate::namespace::acl::{self, Acl};
use crate::namespace::inodes::{Io, Pin};
use crate::namespace::{Caller, Namespace, NamespaceError, Result, privilege_bits};
use crate::store::{Commit, Need, NodeRef};

use super::read::regular;
use super::write::inline_blocks;

/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

/// The attributes to change; the others stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The low twelve bits of `st_mode`.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The size, in bytes.
    pub size: Option<u64>,
    /// The access time.
    pub atime: Option<Time>,
    /// The modification time.
    pub mtime: Option<Time>,
}

impl Change {
    /// Whether only the owner may make it, and who may act as the owner. To others the kernel allows sizes, and the time of
    /// the change; and it takes set-id bits itself for who writes, where it does not leave that to us.
    fn is_of_the_owner(&self, old: &Node) -> bool {
        let sets = |time| matches!(time, Some(Time::At(_)));
        let takes_bits = |mode: u32| mode & !SET_ID == old.mode & !SET_ID && mode & !old.mode == 0;
        self.mode.is_some_and(|mode| !takes_bits(mode & 0o7777))
            || self.uid.or(self.gid).is_some()
            || sets(self.atime)
            || sets(self.mtime)
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// The time of the change.
    Now,
    /// This time.
    At(Timestamp),
}

/// Where a file ends, as its node said it.
#[derive(Clone, Copy)]
struct End {
    version: Version,
    /// In bytes.
    size: u64,
    /// The space that the file takes, in units of 512 bytes.
    blocks: u64,
}

impl Time {
    fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Now => now,
            Self::At(time) => time,
        }
    }
}

impl Namespace {
    /// Refuses what only the owner may do. The kernel has looked, at the owner that it knew: the file may have been given to
    /// somebody else since, through another mount. It is told to look again. A kernel alone knows best.
    ///
    /// # Errors
    /// `Stale`.
    pub(super) fn may_as_owner(&self, caller: Caller, node: &Node) -> Result<()> {
        let is_alone = !self.is_shared() && self.peers.live().len() <= 1;
        if is_alone || caller.may_act_for(node) { Ok(()) } else { Err(NamespaceError::Stale) }
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// `NotFound`; `TooLarge`; `IsADirectory` or `Invalid` for the size of what is no regular file.
    pub fn change(&self, caller: Caller, ino: Ino, change: &Change) -> Result<NodeRef> {
        let pin = self.inodes.pin(ino);
        // Writers of the content take turns; other attributes need no turn.
        let mut io = change.size.map(|_| pin.io.write());
        match &mut io {
            Some(io) => self.put(&pin, io, ino)?,
            // What was written before it must not come after it: it would set times and take privileges again.
            None => self.settle(ino),
        }
        self.retry(|| {
            // Bytes apart from the node change before and after the commit; a fence waits for all.
            let _pass = self.gate.enter()?;
            let (version, old) = self.node_to_change(ino)?;
            if change.is_of_the_owner(&old) {
                self.may_as_owner(caller, &old)?;
            }
            let mut node = (*old).clone();
            let mut commit = Commit::new().at(Key::Node(ino), version);
            let now = self.now();
            let shrunk = match (change.size, &mut io) {
                (Some(size), Some(io)) => {
                    let (next, shrunk) = self.resize(&pin, io, ino, (&old, &mut node), size, commit)?;
                    commit = next;
                    // Refused if the host has no file of that size. Until the node says it, it means nothing.
                    self.extend_passed(ino, size)?;
                    node.mtime = now;
                    shrunk
                }
                _ => None,
            };
            commit = self.change_access(caller, ino, change, &old, &mut node, commit)?;
            node.atime = change.atime.map_or(node.atime, |t| t.resolve(now));
            node.mtime = change.mtime.map_or(node.mtime, |t| t.resolve(now));
            node.ctime = now;
            let mut commit = commit.put(Key::Node(ino), Document::Node(node.clone()));
            if change.size.zip(old.regular()).is_some_and(|(size, regular)| size < regular.size) {
                commit = commit.needing(Need::Less);
            }
            let version = self.commit(&commit)?;
            // It has happened. Nothing from here on may fail, or make it happen again: by now others may have written more.
            if let (Some(size), Some(io)) = (shrunk, &mut io) {
                let blocks = old.regular().map_or(0, |regular| regular.blocks);
                let is_told = self.store.capabilities().tells_versions_of(&commit);
                self.cut(&pin, io, ino, is_told.then_some(End { version, size, blocks }));
            }
            if let Some(size) = change.size {
                self.changed_by_node(ino, size);
                self.peers.tell_size(self.session, ino);
            }
            Ok(self.node_after(ino, (version, node)))
        })
    }

    /// Cuts the bytes of a file beyond the end that its node says already; where it is not told, the node is asked. So a
    /// crash before this loses nothing: what is over is cut before the file grows again. If another host has changed the
    /// file since, the end is where the node says it is now, and no byte before that is touched.
    fn cut(&self, pin: &Pin<'_>, io: &mut Io, ino: Ino, mut told: Option<End>) {
        io.trimmed = false;
        let cut = self.retry(|| {
            let end = match told.take() {
                Some(end) => end,
                None => self.end_of(ino)?,
            };
            self.cut_at(pin, io, ino, end)
        });
        match cut {
            Ok(()) => io.trimmed = true,
            // Whoever has removed the file removes all its bytes.
            Err(NamespaceError::NotFound) => {}
            Err(error) => {
                log::warn!(
                    "inode {ino} is shorter, and what was cut off takes space until it grows or goes: {error}"
                );
            }
        }
    }

    fn end_of(&self, ino: Ino) -> Result<End> {
        let (version, node) = self.live_node(ino)?;
        let regular = regular(&node)?;
        Ok(End { version, size: regular.size, blocks: regular.blocks })
    }

    /// Cuts at this end, and puts right which space is taken.
    fn cut_at(&self, pin: &Pin<'_>, io: &mut Io, ino: Ino, end: End) -> Result<()> {
        let End { version, size, blocks } = end;
        // Whoever empties a file needs nothing that was in it.
        let file = pin.made(io, ino, self)?;
        file.begin(size);
        let cut = file.truncate(size, version).map_err(NamespaceError::from).and_then(|()| {
            let blocks = file.allocated_blocks(blocks)?;
            let extent = Extent { size_at_least: 0, blocks, place: self.contents.place() };
            let delta = NodeDelta { extent: Some(extent), ..NodeDelta::default() };
            let commit = Commit::new().merge(Key::Node(ino), delta).needing(Need::Less);
            // Other hosts count what they take from what the node says.
            self.commit(&if self.contents.is_shared() { commit.at(Key::Node(ino), version) } else { commit })
        });
        match cut {
            Ok(version) => file.named(version),
            Err(NamespaceError::Conflict(_)) => file.overtaken(blocks),
            Err(_) => {}
        }
        cut.map(drop)
    }

    /// Mode and owner, and what follows from them for the access control list and for privileges.
    fn change_access(
        &self,
        caller: Caller,
        ino: Ino,
        change: &Change,
        old: &NodeRef,
        node: &mut Node,
        mut commit: Commit,
    ) -> Result<Commit> {
        let chowned = change.uid.is_some() || change.gid.is_some();
        node.uid = change.uid.unwrap_or(node.uid);
        node.gid = change.gid.unwrap_or(node.gid);
        let resized = change.size.is_some() && !caller.keeps_privileges();
        if chowned || resized {
            node.mode &= !privilege_bits(old);
        }
        if chowned || change.size.is_some() {
            let mut delta = NodeDelta::default();
            commit = self.drop_capabilities(ino, old, commit, &mut delta)?;
            node.xattrs = node.xattrs.saturating_add_signed(delta.xattrs);
        }
        if let Some(mode) = change.mode {
            node.mode = mode & 0o7777;
            if old.xattrs > 0
                && let Some(list) = self.attribute(ino, acl::ACCESS)?
            {
                let list = Acl::parse(&list)?.with_mode(node.mode);
                let value = list.to_bytes().into();
                let key = Key::Xattr(ino, acl::ACCESS.into());
                commit = commit.put(key, Document::Xattr(Xattr { value }));
            }
        }
        Ok(commit)
    }

    /// Sets the size. The second result is the size to which the bytes are to be cut after the commit.
    fn resize(
        &self,
        pin: &Pin<'_>,
        io: &mut Io,
        ino: Ino,
        (old, node): (&NodeRef, &mut Node),
        size: u64,
        commit: Commit,
    ) -> Result<(Commit, Option<u64>)> {
        if size > MAX_SIZE {
            return Err(NamespaceError::TooLarge);
        }
        let kind = node.kind();
        let Body::Regular(regular) = &mut node.body else {
            return Err(match kind {
                FileKind::Directory => NamespaceError::IsADirectory,
                _ => NamespaceError::Invalid("only a regular file has a size to set"),
            });
        };
        self.require_here(ino, regular.place)?;
        let old_size = std::mem::replace(&mut regular.size, size);
        match regular.place {
            ContentPlace::Empty => Ok((commit, None)),
            ContentPlace::Inline if size == 0 => {
                (regular.place, regular.blocks) = (ContentPlace::Empty, 0);
                Ok((commit.delete(Key::Content(ino)), None))
            }
            ContentPlace::Inline => {
                let inline = self.inline(ino, old, 0)?;
                if size >= inline.bytes.len() as u64 {
                    return Ok((commit, None));
                }
                let bytes = &inline.bytes[..size as usize];
                regular.blocks = inline_blocks(bytes.len());
                let document = Document::Content(Content { bytes: bytes.into() });
                Ok((inline.unchanged(commit).put(Key::Content(ino), document), None))
            }
            ContentPlace::Backing | ContentPlace::Chunks if size < old_size => {
                if size > 0 {
                    pin.file(io, ino, old, self)?;
                }
                Ok((commit, Some(size)))
            }
            ContentPlace::Backing | ContentPlace::Chunks => {
                if !io.trimmed || self.contents.is_shared() {
                    let file = pin.file(io, ino, old, self)?;
                    file.begin(old_size);
                    file.trim(old_size, old.version())?;
                    io.trimmed = true;
                }
                Ok((commit, None))
            }
        }
    }
}
