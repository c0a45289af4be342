//! Listing directories.
//!
//! What is hard: an entry that is present throughout is listed exactly once, whatever is created, removed and renamed
//! meanwhile, from any offset that was ever returned, across remounts and for NFS. The place of an entry is a hash of its
//! name (see `document::key`), and an offset is the place where to go on; nothing is remembered in between.
//!
//! Two names of one directory with the same hash share a place. The offset behind the last of them is the next place as
//! ever; the offset between them cannot be expressed by a place, so it is remembered, under a number that no place has.
//!
//! One answer to the kernel holds less than is worth reading from a store at once. What is left of a page is kept for
//! whoever goes on where the answer ended ([`Rests`]), while the directory has the version that it had before the page was
//! read: whatever changes an entry changes that. Where other hosts change it, that version is known late. So whoever begins
//! a listing takes away what others have left, and no listing shows anything from before its beginning.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use quick_cache::sync::Cache;

use crate::document::{Document, Entry, EntryPosition, FileKind, Ino, Key, Name, Version};
use crate::namespace::{Namespace, NamespaceError, Result};
use crate::store::{NodeRef, Range, Scan, ScanItem, Start};

/// An entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The inode.
    pub ino: Ino,
    /// The name, or `.` or `..`.
    pub name: Vec<u8>,
    /// What it is.
    pub kind: FileKind,
    /// Where to go on behind it.
    pub next: u64,
}

const BEHIND_DOT: u64 = 1;
const BEHIND_DOT_DOT: u64 = 2;

/// Offsets from here on stand for places between two entries with one hash.
const SPLIT_FIRST: u64 = 1 << 62;

/// As many such offsets are remembered. More means that somebody makes colliding names on purpose.
const SPLITS_MAX: usize = 1 << 16;

/// As many pages are kept of which a part is still to be listed.
const RESTS_MAX: usize = 64;

/// Entries of one directory, in order.
struct Page {
    /// That of the directory's node before they were read.
    version: Version,
    items: Vec<ScanItem>,
    /// Whether there may be more behind them.
    more: bool,
}

/// Where a listing goes on: at this offset, in this page, from its item of this index on.
type Rest = (u64, Arc<Page>, usize);

/// What is left of the page of each directory that was read last.
pub(in crate::namespace) struct Rests(Cache<Ino, Rest>);

impl Default for Rests {
    fn default() -> Self {
        Self(Cache::new(RESTS_MAX))
    }
}

impl Rests {
    /// What is left for who goes on at `offset`, if nothing in the directory has changed since it was read.
    fn take(&self, directory: Ino, offset: u64, version: Version) -> Option<(Arc<Page>, usize)> {
        let (_, (at_offset, page, at)) = self.0.remove(&directory)?;
        (offset > BEHIND_DOT_DOT && offset == at_offset && page.version == version).then_some((page, at))
    }

    fn keep(&self, directory: Ino, rest: Rest) {
        self.0.insert(directory, rest);
    }
}

#[derive(Default)]
pub(in crate::namespace) struct Splits {
    names: Mutex<HashMap<u64, (Ino, Name)>>,
}

impl Splits {
    fn remember(&self, parent: Ino, name: &Name) -> u64 {
        let mut names = self.names.lock();
        if let Some((offset, _)) = names.iter().find(|(_, (p, n))| *p == parent && n == name) {
            return *offset;
        }
        if names.len() >= SPLITS_MAX {
            names.clear();
        }
        let offset = SPLIT_FIRST + names.len() as u64;
        names.insert(offset, (parent, name.clone()));
        offset
    }

    fn start(&self, parent: Ino, offset: u64) -> Start {
        if offset < SPLIT_FIRST {
            return Start::At(EntryPosition(offset));
        }
        match self.names.lock().get(&offset) {
            Some((p, name)) if *p == parent => Start::After(Key::Entry(parent, name.clone())),
            _ => Start::At(EntryPosition(SPLIT_FIRST)),
        }
    }
}

impl Namespace {
    /// Lists `directory` from `offset` (0, or a `next` that was returned before), about `limit` entries at a time, until
    /// `visit` says false or there is no more.
    ///
    /// # Errors
    /// `NotFound` if it was removed; `NotADirectory`.
    pub fn list(
        &self,
        directory: Ino,
        offset: u64,
        limit: usize,
        mut visit: impl FnMut(&Listed) -> bool,
    ) -> Result<()> {
        let (mut version, node) = self.live_node(directory)?;
        let parent = node.directory().ok_or(NamespaceError::NotADirectory)?.parent;
        let dots = [(directory, &b"."[..], 0, BEHIND_DOT), (parent, b"..", BEHIND_DOT, BEHIND_DOT_DOT)];
        for (ino, name, at, next) in dots {
            let listed = Listed { ino, name: name.to_vec(), kind: FileKind::Directory, next };
            if offset <= at && !visit(&listed) {
                return Ok(());
            }
        }
        if self.touch(directory, &node) {
            version = self.live_node(directory)?.0;
        }
        let (mut page, mut at) = match self.rests.take(directory, offset, version) {
            Some(rest) => rest,
            None => (self.page(directory, version, self.splits.start(directory, offset), limit)?, 0),
        };
        let mut offset = offset;
        loop {
            let place_of = |at: usize| match page.items.get(at) {
                Some((Key::Entry(_, name), _)) => Some(EntryPosition::of(name.as_bytes())),
                _ => None,
            };
            let mut place = place_of(at);
            while let Some((key, stored)) = page.items.get(at) {
                at += 1;
                let (own, follower) = (place, place_of(at));
                place = follower;
                let (Key::Entry(_, name), Some(own)) = (key, own) else { continue };
                let Document::Entry(Entry { ino, kind }) = *stored_document(stored)? else { continue };
                let shared = follower == Some(own);
                let next = if shared { self.splits.remember(directory, name) } else { own.0 + 1 };
                if !visit(&Listed { ino, name: name.as_bytes().to_vec(), kind, next }) {
                    self.rests.keep(directory, (offset, page, at - 1));
                    return Ok(());
                }
                offset = next;
            }
            match page.items.last() {
                Some((last, _)) if page.more => {
                    page = self.page(directory, version, Start::After(last.clone()), limit)?;
                    at = 0;
                }
                // The kernel asks once more, to hear that this was all.
                _ => {
                    self.rests.keep(directory, (offset, page, at));
                    return Ok(());
                }
            }
        }
    }

    fn page(&self, directory: Ino, version: Version, start: Start, limit: usize) -> Result<Arc<Page>> {
        let items = self.store.scan(&Scan { range: Range::Entries(directory), start, limit })?;
        let more = items.len() >= limit;
        Ok(Arc::new(Page { version, items, more }))
    }

    /// The attributes of an entry that a listing returned; none if it has been removed since.
    ///
    /// # Errors
    /// The store's.
    pub fn listed_attributes(&self, listed: &Listed) -> Result<Option<NodeRef>> {
        let unsaid = self.unsaid(listed.ino);
        Ok(self.store.node(listed.ino)?.map(|(_, node)| self.with_unsaid(node, unsaid)))
    }
}

fn stored_document(
    stored: &std::result::Result<crate::document::Stored, crate::store::StoreError>,
) -> Result<&Document> {
    match stored {
        Ok(stored) => Ok(&stored.document),
        Err(error) => {
            log::error!("listing: {error}");
            Err(NamespaceError::Store(crate::store::StoreError::Damaged {
                key: "entry".to_owned(),
                cause: error.to_string(),
            }))
        }
    }
}
