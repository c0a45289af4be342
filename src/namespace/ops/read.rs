//! Reading bytes, and finding data and holes.

use std::sync::Arc;

use crate::content::{ContentFile, View};
use crate::document::{Content, ContentPlace, Document, Ino, Key, NodeDelta, Regular, Timestamp};
use crate::namespace::collect::is_apart;
use crate::namespace::inodes::{Io, Pin};
use crate::namespace::{Namespace, NamespaceError, Result};
use crate::store::{Check, Commit, NodeRef, StoreError};

/// An access time that is older than this is renewed by the next read, as `relatime` of mount(8) does.
const RELATIME_SECONDS: i64 = 24 * 60 * 60;

impl Namespace {
    /// Up to `len` bytes from `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// `NotFound`; when a document or a backing file cannot be read.
    pub fn read(&self, ino: Ino, offset: u64, len: u32) -> Result<Vec<u8>> {
        let pin = self.inodes.pin(ino);
        let io = self.reading(&pin, ino, offset.saturating_add(u64::from(len)))?;
        let (node, bytes) = self.retry(|| {
            let (_, node) = self.live_node(ino)?;
            let end = regular(&node)?.size.min(offset.saturating_add(u64::from(len)));
            let mut bytes = vec![0; usize::try_from(end.saturating_sub(offset)).unwrap_or(0)];
            if !bytes.is_empty() {
                self.fill(ino, &node, &io, &mut bytes, offset)?;
            }
            Ok((node, bytes))
        })?;
        drop(io);
        self.touch(ino, &node);
        Ok(bytes)
    }

    /// Fills `bytes`, which are all within the file and zero, with what is at `offset`.
    pub(super) fn fill(
        &self,
        ino: Ino,
        node: &NodeRef,
        io: &Io,
        bytes: &mut [u8],
        offset: u64,
    ) -> Result<()> {
        let regular = regular(node)?;
        self.require_here(ino, regular.place)?;
        match regular.place {
            ContentPlace::Empty => {}
            ContentPlace::Inline => {
                let inline = self.inline(ino, node, offset.saturating_add(bytes.len() as u64))?.bytes;
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(inline.len());
                let there = &inline[from..inline.len().min(from.saturating_add(bytes.len()))];
                bytes[..there.len()].copy_from_slice(there);
            }
            ContentPlace::Backing | ContentPlace::Chunks => match &io.file {
                Some(file) => file.read_at(bytes, offset, view(node, regular))?,
                None => self.stored(ino, node)?.read_at(bytes, offset, view(node, regular))?,
            },
        }
        Ok(())
    }

    /// Refuses bytes that are in a place that this store does not have: they are not absent, so they are no zeros.
    pub(super) fn require_here(&self, ino: Ino, place: ContentPlace) -> Result<()> {
        if !place.is_apart() || place == self.contents.place() {
            return Ok(());
        }
        let cause =
            format!("its bytes are in {place:?}, and this store has {:?} only", self.contents.place());
        Err(StoreError::Damaged { key: Key::Node(ino).to_string(), cause }.into())
    }

    /// The bytes of a file of which `node` says that they are apart. Where they are gone they are no zeros: nothing is made
    /// in their place, so that `check` goes on finding it.
    ///
    /// # Errors
    /// `Damaged`; `Conflict` if the node is another one by now.
    pub(super) fn stored(&self, ino: Ino, node: &NodeRef) -> Result<ContentFile> {
        if let Some(file) = self.contents.find(ino.0)? {
            return Ok(file);
        }
        let key = Key::Node(ino);
        // It may have been removed since.
        if self.store.node(ino)?.map(|(version, _)| version) != Some(node.version()) {
            return Err(NamespaceError::Conflict(key));
        }
        let cause = "its bytes should be in a backing file, and there is none".to_owned();
        Err(StoreError::Damaged { key: key.to_string(), cause }.into())
    }

    /// The inline bytes of a file of which `node` says that it has some; `wanted` of them, unless it has fewer.
    ///
    /// # Errors
    /// `Conflict` if the node is another one by now.
    pub(super) fn inline(&self, ino: Ino, node: &NodeRef, wanted: u64) -> Result<Inline> {
        let key = Key::Content(ino);
        let read = || -> Result<Option<Inline>> {
            let Some(stored) = self.store.get(&key)? else { return Ok(None) };
            match &*stored.document {
                Document::Content(Content { bytes }) => {
                    let check =
                        self.contents.is_shared().then(|| Check::Version(key.clone(), stored.version));
                    Ok(Some(Inline { bytes: Arc::clone(bytes), check }))
                }
                other => {
                    let cause = format!("it holds a {}", other.kind().name());
                    Err(StoreError::Damaged { key: key.to_string(), cause }.into())
                }
            }
        };
        let found = read()?;
        if let Some(inline) = found.filter(|inline| !self.contents.is_shared() || inline.len() >= wanted) {
            return Ok(inline);
        }
        // Another host may have changed the file between the two looks, or one of them was at what is remembered.
        self.store.forget(&[Key::Node(ino), key.clone()]);
        let now = self.store.node(ino)?.map(|(version, _)| version);
        if now != Some(node.version()) {
            return Err(NamespaceError::Conflict(key));
        }
        read()?.ok_or_else(|| {
            let cause = format!("it is missing, and node:{ino} says that it is there");
            StoreError::Damaged { key: key.to_string(), cause }.into()
        })
    }

    /// The first byte at or behind `offset` that is in no hole.
    ///
    /// # Errors
    /// `NoData` if there is none.
    pub fn seek_data(&self, ino: Ino, offset: u64) -> Result<u64> {
        self.seek(ino, offset, |io_file, inline_len, size| match io_file {
            Some(file) => file.seek_data(offset, size)?.ok_or(NamespaceError::NoData),
            None if offset < inline_len => Ok(offset),
            None => Err(NamespaceError::NoData),
        })
    }

    /// The first byte at or behind `offset` that is in a hole; the end of the file counts as one.
    ///
    /// # Errors
    /// `NoData` if `offset` is at or behind the end.
    pub fn seek_hole(&self, ino: Ino, offset: u64) -> Result<u64> {
        self.seek(ino, offset, |io_file, inline_len, size| match io_file {
            Some(file) => Ok(file.seek_hole(offset, size)?),
            None => Ok(offset.max(inline_len).min(size)),
        })
    }

    fn seek(
        &self,
        ino: Ino,
        offset: u64,
        find: impl Fn(Option<&ContentFile>, u64, u64) -> Result<u64>,
    ) -> Result<u64> {
        let pin = self.inodes.pin(ino);
        let _io = self.reading(&pin, ino, u64::MAX)?;
        self.retry(|| {
            let (_, node) = self.live_node(ino)?;
            let regular = regular(&node)?;
            if offset >= regular.size {
                return Err(NamespaceError::NoData);
            }
            match regular.place {
                ContentPlace::Empty => find(None, 0, regular.size),
                ContentPlace::Inline => find(None, self.inline(ino, &node, 0)?.len(), regular.size),
                ContentPlace::Backing | ContentPlace::Chunks => {
                    self.require_here(ino, regular.place)?;
                    find(Some(&self.stored(ino, &node)?), 0, regular.size)
                }
            }
        })
    }

    /// Keeps the access time, if this mount does and it is due; returns whether it may have. That it cannot be kept is no
    /// reason to fail a read.
    pub(super) fn touch(&self, ino: Ino, node: &NodeRef) -> bool {
        let now = self.now();
        if !self.settings.relatime || !access_time_is_due(node.atime, node.mtime, node.ctime, now) {
            return false;
        }
        let delta = NodeDelta { atime: Some(now), ..NodeDelta::default() };
        if let Err(error) = self.commit_if_room(&Commit::new().merge(Key::Node(ino), delta)) {
            log::debug!("the access time of inode {ino} was not kept: {error}");
        }
        true
    }
}

fn access_time_is_due(atime: Timestamp, mtime: Timestamp, ctime: Timestamp, now: Timestamp) -> bool {
    atime <= mtime || atime <= ctime || now.sec.saturating_sub(atime.sec) >= RELATIME_SECONDS
}

/// The bytes of a small file.
pub(super) struct Inline {
    pub(super) bytes: Arc<[u8]>,
    /// What a change that rests on them must check, where other hosts may change them.
    check: Option<Check>,
}

impl Inline {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// `commit`, if the bytes are still these.
    pub(super) fn unchanged(&self, mut commit: Commit) -> Commit {
        commit.checks.extend(self.check.clone());
        commit
    }
}

/// What a reader of the bytes has seen of the node.
pub(super) fn view(node: &NodeRef, regular: &Regular) -> View {
    View { version: node.version(), size: regular.size }
}

pub(super) fn regular(node: &NodeRef) -> Result<&Regular> {
    node.regular().ok_or(match node.directory() {
        Some(_) => NamespaceError::IsADirectory,
        None => NamespaceError::Invalid("not a regular file"),
    })
}

impl Pin<'_> {
    /// The bytes of the inode that are apart from `node`, or that are about to be; opened once and kept while it is in use.
    /// They are changed by the session of `namespace`, whichever opened them.
    ///
    /// # Errors
    /// Those of [`Namespace::stored`], where the node says that they are there.
    pub(super) fn file(
        &self,
        io: &mut Io,
        ino: Ino,
        node: &NodeRef,
        namespace: &Namespace,
    ) -> Result<ContentFile> {
        match io.file {
            // An empty file has lost nothing.
            None if is_apart(node) && node.size() > 0 => {
                let file = namespace.stored(ino, node)?;
                Ok(io.file.insert(file).clone())
            }
            _ => self.made(io, ino, namespace),
        }
    }

    /// As [`file`](Self::file), made if they are absent.
    pub(super) fn made(&self, io: &mut Io, ino: Ino, namespace: &Namespace) -> Result<ContentFile> {
        if let Some(file) = &io.file {
            return Ok(namespace.contents.again(file));
        }
        let file = namespace.contents.file(ino.0)?;
        io.file = Some(file.clone());
        Ok(file)
    }
}
