//! Merges: changes of a node that commute with each other, so that a thousand creates in one directory do not conflict.
//!
//! Counters are added to, so their order does not matter. Of times the last change's stand: a file whose time was set
//! into the future, or a clock that was set back, must not keep later changes from being seen. The rest (`reparent`,
//! `extent`) has one writer at a time by other means, stated at each field, and rides along so that it does not conflict
//! with the counters.

use super::{Body, ContentPlace, Ino, Name, Node, Timestamp};

/// A change of a node that needs no version of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDelta {
    /// Added to the number of entries of a directory.
    pub children: i64,
    /// Added to the link count.
    pub nlink: i32,
    /// Added to the number of extended attributes.
    pub xattrs: i32,
    /// The access time afterwards.
    pub atime: Option<Timestamp>,
    /// The modification time afterwards.
    pub mtime: Option<Timestamp>,
    /// The change time afterwards.
    pub ctime: Option<Timestamp>,
    /// Mode bits taken away (set-user-id and set-group-id after a write).
    pub mode_clear: u32,
    /// Where a moved directory stands from now on. Guarded by the version of its entry, which the same commit checks.
    pub reparent: Option<(Ino, Name)>,
    /// What a write did to a regular file. Writers of one file take turns in the namespace.
    pub extent: Option<Extent>,
}

/// What a write did to a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The file is at least this long afterwards, in bytes.
    pub size_at_least: u64,
    /// The space that it takes now, in units of 512 bytes.
    pub blocks: u64,
    /// Where its bytes are now.
    pub place: ContentPlace,
}

/// A merge that makes no sense for the node that it met: a counter below zero, or a part that its kind does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the change does not fit the node: {0}")]
pub struct MergeError(&'static str);

impl NodeDelta {
    /// The times of a directory whose entries changed at `now`, and by how many entries.
    pub fn entries_changed(children: i64, subdirectories: i32, now: Timestamp) -> Self {
        Self { children, nlink: subdirectories, mtime: Some(now), ctime: Some(now), ..Self::default() }
    }

    /// Applies the change.
    ///
    /// # Errors
    /// [`MergeError`] if the node cannot take it; the node is then half changed and must be dropped.
    pub fn apply(&self, node: &mut Node) -> Result<(), MergeError> {
        node.nlink = node.nlink.checked_add_signed(self.nlink).ok_or(MergeError("link count"))?;
        node.xattrs = node.xattrs.checked_add_signed(self.xattrs).ok_or(MergeError("attribute count"))?;
        node.atime = self.atime.unwrap_or(node.atime);
        node.mtime = self.mtime.unwrap_or(node.mtime);
        node.ctime = self.ctime.unwrap_or(node.ctime);
        node.mode &= !self.mode_clear;
        if self.children != 0 || self.reparent.is_some() {
            let Body::Directory(directory) = &mut node.body else {
                return Err(MergeError("not a directory"));
            };
            directory.children =
                directory.children.checked_add_signed(self.children).ok_or(MergeError("entry count"))?;
            if let Some((parent, name)) = &self.reparent {
                directory.parent = *parent;
                directory.name = Some(name.clone());
            }
        }
        if let Some(extent) = self.extent {
            let Body::Regular(regular) = &mut node.body else {
                return Err(MergeError("not a regular file"));
            };
            regular.size = regular.size.max(extent.size_at_least);
            regular.blocks = extent.blocks;
            regular.place = extent.place;
        }
        Ok(())
    }
}
