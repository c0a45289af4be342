//! What is remembered of each node while everything that refers to it goes by. Imports `document`.
//!
//! What is hard: ten million files must fit in one GiB. A record has 40 bytes, and a directory 48 more; names are not
//! kept but the 62-bit hash that is the place of an entry, which two names of one parent share by accident with a
//! probability of 2^-62. Records are kept in the order of their inodes and found by bisection.

use crate::document::{Body, ContentPlace, EntryPosition, FileKind, Ino, Node};
use crate::store::StoreError;

/// What a node is, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A regular file, and where its bytes are.
    Regular(ContentPlace),
    /// A directory, and its number in [`Table::directories`].
    Directory(u32),
    /// Anything else.
    Other(FileKind),
    /// There is a document, but nobody can read it. It is accused itself, and nothing else for what it might explain.
    Unreadable,
}

/// What is remembered of every node.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) ino: Ino,
    /// As the node says.
    pub(super) nlink: u32,
    /// Entries that lead here.
    pub(super) names: u32,
    /// As the node says.
    pub(super) xattrs: u32,
    /// Attribute documents.
    pub(super) xattrs_seen: u32,
    /// The size as the node says, or the largest number if it does not fit; inline bytes are fewer.
    pub(super) size: u32,
    pub(super) what: What,
    /// An orphan document holds it.
    pub(super) orphan: bool,
    /// A content document stands beside it.
    pub(super) content: bool,
}

/// Where following the parents of a directory leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walk {
    Unknown,
    OnPath,
    Rooted,
    Lost,
}

/// What is remembered of a directory beside its record.
#[derive(Debug)]
pub(super) struct Directory {
    /// As the node says.
    pub(super) parent: Ino,
    /// The place of its name, or [`NO_NAME`].
    pub(super) place: EntryPosition,
    /// As the node says.
    pub(super) children: u64,
    /// Entries in it.
    pub(super) entries: u64,
    /// Of these, those that lead to directories.
    pub(super) subdirectories: u32,
    /// Of these, those that nobody can read.
    pub(super) unreadable: u32,
    pub(super) walk: Walk,
}

/// Stands where a directory has no name; no name has this place.
pub(super) const NO_NAME: EntryPosition = EntryPosition(0);

/// Every node of the volume.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) records: Vec<Record>,
    pub(super) directories: Vec<Directory>,
}

impl Table {
    /// Adds a node, or `None` for one that does not decode. Afterwards the table must be sealed.
    pub(super) fn push(&mut self, ino: Ino, node: Option<&Node>) {
        let what = match node.map(|node| (&node.body, node.kind())) {
            None => What::Unreadable,
            Some((Body::Regular(regular), _)) => What::Regular(regular.place),
            Some((Body::Directory(directory), _)) => {
                // `seal` refuses more; to get so far takes a third of a TiB.
                let number = u32::try_from(self.directories.len()).unwrap_or(u32::MAX);
                let place = directory.name.as_ref().map_or(NO_NAME, |n| EntryPosition::of(n.as_bytes()));
                self.directories.push(Directory {
                    parent: directory.parent,
                    place,
                    children: directory.children,
                    entries: 0,
                    subdirectories: 0,
                    unreadable: 0,
                    walk: Walk::Unknown,
                });
                What::Directory(number)
            }
            Some((_, kind)) => What::Other(kind),
        };
        let regular = node.and_then(Node::regular);
        self.records.push(Record {
            ino,
            nlink: node.map_or(0, |node| node.nlink),
            names: 0,
            xattrs: node.map_or(0, |node| node.xattrs),
            xattrs_seen: 0,
            size: regular.map_or(0, |regular| u32::try_from(regular.size).unwrap_or(u32::MAX)),
            what,
            orphan: false,
            content: false,
        });
    }

    /// Makes records findable. A scan delivers them in order, so that there is nothing to sort.
    pub(super) fn seal(&mut self) -> Result<(), StoreError> {
        if !self.records.is_sorted_by_key(|record| record.ino) {
            self.records.sort_unstable_by_key(|record| record.ino);
        }
        u32::try_from(self.directories.len()).map(drop).map_err(|e| StoreError::Engine {
            what: "the volume has too many directories to be checked".to_owned(),
            source: e.into(),
        })
    }

    /// The number of the record of `ino`.
    pub(super) fn find(&self, ino: Ino) -> Option<usize> {
        self.records.binary_search_by_key(&ino, |record| record.ino).ok()
    }

    /// The record of `ino`.
    pub(super) fn get(&self, ino: Ino) -> Option<&Record> {
        self.records.get(self.find(ino)?)
    }

    /// The record of `ino`, to change it.
    pub(super) fn get_mut(&mut self, ino: Ino) -> Option<&mut Record> {
        let at = self.find(ino)?;
        self.records.get_mut(at)
    }

    /// What is remembered of a directory, given what it is.
    pub(super) fn directory(&self, what: What) -> Option<&Directory> {
        match what {
            What::Directory(number) => self.directories.get(number as usize),
            _ => None,
        }
    }

    /// As [`Table::directory`], to change it.
    pub(super) fn directory_mut(&mut self, what: What) -> Option<&mut Directory> {
        match what {
            What::Directory(number) => self.directories.get_mut(number as usize),
            _ => None,
        }
    }
}

impl What {
    /// The kind of the node, unless nobody can read it.
    pub(super) fn kind(self) -> Option<FileKind> {
        match self {
            Self::Regular(_) => Some(FileKind::Regular),
            Self::Directory(_) => Some(FileKind::Directory),
            Self::Other(kind) => Some(kind),
            Self::Unreadable => None,
        }
    }

    /// Whether entries may stand under it, for all that is known.
    pub(super) fn may_hold_entries(self) -> bool {
        matches!(self, Self::Directory(_) | Self::Unreadable)
    }
}

// The promise at the head of the module.
const _: () = assert!(size_of::<Record>() <= 40 && size_of::<Directory>() <= 48);
