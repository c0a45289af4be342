//! Nodes: the attributes of one file, directory, symlink or special file.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Ino, Name, Timestamp, text};

/// What a node is; stored in its entries too, so that a listing knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// The document of one inode.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Node {
    /// The permission bits with set-user-id, set-group-id and sticky: the low twelve of `st_mode`.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// How many names lead here; for a directory two and one for each directory in it. Zero: unlinked but open.
    pub nlink: u32,
    /// Last access, as often as `relatime` of mount(8) keeps it.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the node.
    pub ctime: Timestamp,
    /// When the node was made.
    pub btime: Timestamp,
    /// How many extended attributes stand beside the node.
    pub xattrs: u32,
    /// What only this kind of node has.
    pub body: Body,
}

/// What only one kind of node has.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// A regular file.
    Regular(Regular),
    /// A directory.
    Directory(Directory),
    /// A symbolic link and where it points.
    Symlink {
        /// The target, 1 to 4095 bytes.
        #[serde(with = "text::bytes")]
        target: Arc<[u8]>,
    },
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device and its number.
    CharDevice {
        /// As in `st_rdev`.
        rdev: u32,
    },
    /// A block device and its number.
    BlockDevice {
        /// As in `st_rdev`.
        rdev: u32,
    },
}

/// What a regular file has beyond the common attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Regular {
    /// In bytes, at most 2^63 - 1. What the content does not hold up to here reads as zeros.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Where the bytes are.
    pub place: ContentPlace,
}

/// Where the bytes of a regular file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentPlace {
    /// Nowhere: nothing was ever written, every byte reads as zero.
    Empty,
    /// In a content document.
    Inline,
    /// In backing files beside the database.
    Backing,
    /// In chunks, on stores that many hosts share.
    Chunks,
}

impl ContentPlace {
    /// Whether the bytes are outside of documents that are written together with the node.
    pub fn is_apart(self) -> bool {
        matches!(self, Self::Backing | Self::Chunks)
    }
}

/// What a directory has beyond the common attributes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Directory {
    /// The directory that this one is in; the root is in itself.
    pub parent: Ino,
    /// Its name there; none for the root.
    pub name: Option<Name>,
    /// How many entries it has.
    pub children: u64,
}

impl Node {
    /// What the node is.
    pub fn kind(&self) -> FileKind {
        match self.body {
            Body::Regular(_) => FileKind::Regular,
            Body::Directory(_) => FileKind::Directory,
            Body::Symlink { .. } => FileKind::Symlink,
            Body::Fifo => FileKind::Fifo,
            Body::Socket => FileKind::Socket,
            Body::CharDevice { .. } => FileKind::CharDevice,
            Body::BlockDevice { .. } => FileKind::BlockDevice,
        }
    }

    /// `st_size`: of a directory the number of its entries, so that it tells something.
    pub fn size(&self) -> u64 {
        match &self.body {
            Body::Regular(regular) => regular.size,
            Body::Directory(directory) => directory.children,
            Body::Symlink { target } => target.len() as u64,
            _ => 0,
        }
    }

    /// The part that only directories have.
    pub fn directory(&self) -> Option<&Directory> {
        match &self.body {
            Body::Directory(directory) => Some(directory),
            _ => None,
        }
    }

    /// The part that only regular files have.
    pub fn regular(&self) -> Option<&Regular> {
        match &self.body {
            Body::Regular(regular) => Some(regular),
            _ => None,
        }
    }
}
