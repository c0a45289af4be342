//! Ranges and pages: which documents a scan goes over, and where a page of them ends.

use std::ops::Bound;

use crate::document::{EntryPosition, Ino, Key, Kind, key};

/// Which documents a scan goes over, in the order of their encoded keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// All of one kind.
    All(Kind),
    /// The entries of a directory.
    Entries(Ino),
    /// The extended attributes of an inode.
    Xattrs(Ino),
    /// The pieces of the content of an inode.
    Chunks(Ino),
}

impl Range {
    /// How many documents are read at once by who reads them all: some MB at most, of the large ones as well.
    pub(super) fn page(self) -> usize {
        match self {
            Self::All(Kind::Chunk | Kind::Xattr) | Self::Xattrs(_) | Self::Chunks(_) => 64,
            Self::All(_) | Self::Entries(_) => 1024,
        }
    }
}

/// Where a scan begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the first document of the range.
    First,
    /// Behind this key.
    After(Key),
    /// At the first entry that stands at this place or behind it; for [`Range::Entries`] only.
    At(EntryPosition),
}

/// A page of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Which documents.
    pub range: Range,
    /// From where.
    pub start: Start,
    /// At most how many. A page of entries may hold more: it never ends between two entries with the same place, so that
    /// the place of the last one is a cursor.
    pub limit: usize,
}

/// The bounds of a range as encoded keys: the kind, the first key, and the prefix that all keys of the range have.
pub(super) fn bounds(scan: &Scan) -> (Kind, Bound<Vec<u8>>, Vec<u8>) {
    let (kind, prefix) = match scan.range {
        Range::All(kind) => (kind, Vec::new()),
        Range::Entries(Ino(parent)) => (Kind::Entry, parent.to_be_bytes().to_vec()),
        Range::Xattrs(Ino(ino)) => (Kind::Xattr, ino.to_be_bytes().to_vec()),
        Range::Chunks(Ino(ino)) => (Kind::Chunk, ino.to_be_bytes().to_vec()),
    };
    let from = match (&scan.start, scan.range) {
        (Start::After(key), _) => Bound::Excluded(key.encode()),
        (Start::At(position), Range::Entries(parent)) => {
            Bound::Included(key::entries_from(parent, *position).to_vec())
        }
        (Start::At(_) | Start::First, _) => Bound::Included(prefix.clone()),
    };
    (kind, from, prefix)
}

/// Tells when a page is full: at its limit, but never between two entries with the same place.
pub(super) struct Pager {
    limit: usize,
    entries: bool,
    last: Option<EntryPosition>,
}

impl Pager {
    pub(super) fn new(scan: &Scan) -> Self {
        Self { limit: scan.limit.max(1), entries: matches!(scan.range, Range::Entries(_)), last: None }
    }

    /// Whether a page of `len` documents may still take the one under `key`.
    pub(super) fn admits(&mut self, len: usize, key: &Key) -> bool {
        let position = match key {
            Key::Entry(_, name) if self.entries => Some(EntryPosition::of(name.as_bytes())),
            _ => None,
        };
        self.admits_at(len, position)
    }

    /// The same of an entry at this place; none of what is no entry.
    pub(super) fn admits_at(&mut self, len: usize, position: Option<EntryPosition>) -> bool {
        let admitted = len < self.limit || (position.is_some() && position == self.last);
        self.last = position;
        admitted
    }
}
