//! Reading bytes, and finding data and holes.

use crate::document::{Content, ContentPlace, Document, Ino, Key, NodeDelta, Regular, Timestamp};
use crate::namespace::inodes::{Io, Pin};
use crate::namespace::{Namespace, NamespaceError, Result};
use crate::store::{Commit, NodeRef, StoreError};

/// An access time that is older than this is renewed by the next read, as `relatime` of mount(8) does.
const RELATIME_SECONDS: i64 = 24 * 60 * 60;

impl Namespace {
    /// Up to `len` bytes from `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// `NotFound`; when a document or a backing file cannot be read.
    pub fn read(&self, ino: Ino, offset: u64, len: u32) -> Result<Vec<u8>> {
        let pin = self.inodes.pin(ino);
        let io = pin.io.read();
        let (_, node) = self.live_node(ino)?;
        let regular = regular(&node)?;
        let end = regular.size.min(offset.saturating_add(u64::from(len)));
        let mut bytes = vec![0; usize::try_from(end.saturating_sub(offset)).unwrap_or(0)];
        if !bytes.is_empty() {
            self.fill(ino, regular, &io, &mut bytes, offset)?;
        }
        drop(io);
        self.touch(ino, &node);
        Ok(bytes)
    }

    /// Fills `bytes`, which are all within the file and zero, with what is at `offset`.
    pub(super) fn fill(
        &self,
        ino: Ino,
        regular: &Regular,
        io: &Io,
        bytes: &mut [u8],
        offset: u64,
    ) -> Result<()> {
        match regular.place {
            ContentPlace::Empty => {}
            ContentPlace::Inline => {
                let inline = self.inline(ino)?;
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(inline.len());
                let there = &inline[from..inline.len().min(from.saturating_add(bytes.len()))];
                bytes[..there.len()].copy_from_slice(there);
            }
            ContentPlace::Backing => match &io.backing {
                Some(file) => file.read_at(bytes, offset)?,
                None => {
                    if let Some(file) = self.backing.find(ino.0)? {
                        file.read_at(bytes, offset)?;
                    }
                }
            },
        }
        Ok(())
    }

    /// The inline bytes of a file that has some.
    pub(super) fn inline(&self, ino: Ino) -> Result<std::sync::Arc<[u8]>> {
        let key = Key::Content(ino);
        match self.store.get(&key)?.as_ref().map(|stored| &*stored.document) {
            Some(Document::Content(Content { bytes })) => Ok(std::sync::Arc::clone(bytes)),
            Some(_) | None => {
                let cause = format!("it is missing, and node:{ino} says that it is there");
                Err(StoreError::Damaged { key: key.to_string(), cause }.into())
            }
        }
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
        find: impl FnOnce(Option<&crate::content::BackingFile>, u64, u64) -> Result<u64>,
    ) -> Result<u64> {
        let pin = self.inodes.pin(ino);
        let _io = pin.io.read();
        let (_, node) = self.live_node(ino)?;
        let regular = regular(&node)?;
        if offset >= regular.size {
            return Err(NamespaceError::NoData);
        }
        match regular.place {
            ContentPlace::Empty => find(None, 0, regular.size),
            ContentPlace::Inline => find(None, self.inline(ino)?.len() as u64, regular.size),
            ContentPlace::Backing => find(self.backing.find(ino.0)?.as_deref(), 0, regular.size),
        }
    }

    /// Keeps the access time, if this mount does and it is due. That it cannot be kept is no reason to fail a read.
    pub(super) fn touch(&self, ino: Ino, node: &NodeRef) {
        if !self.settings.relatime {
            return;
        }
        let now = self.now();
        if !access_time_is_due(node.atime, node.mtime, node.ctime, now) {
            return;
        }
        let delta = NodeDelta { atime: Some(now), ..NodeDelta::default() };
        if let Err(error) = self.commit(&Commit::new().merge(Key::Node(ino), delta)) {
            log::debug!("the access time of inode {ino} was not kept: {error}");
        }
    }
}

fn access_time_is_due(atime: Timestamp, mtime: Timestamp, ctime: Timestamp, now: Timestamp) -> bool {
    atime <= mtime || atime <= ctime || now.sec.saturating_sub(atime.sec) >= RELATIME_SECONDS
}

pub(super) fn regular(node: &NodeRef) -> Result<&Regular> {
    node.regular().ok_or(match node.directory() {
        Some(_) => NamespaceError::IsADirectory,
        None => NamespaceError::Invalid("not a regular file"),
    })
}

impl Pin<'_> {
    /// The backing file, opened once and kept while the inode is in use. Made if it is absent.
    pub(super) fn backing(
        &self,
        io: &mut Io,
        ino: Ino,
        namespace: &Namespace,
    ) -> Result<std::sync::Arc<crate::content::BackingFile>> {
        if let Some(file) = &io.backing {
            return Ok(std::sync::Arc::clone(file));
        }
        let file = namespace.backing.file(ino.0)?;
        io.backing = Some(std::sync::Arc::clone(&file));
        Ok(file)
    }
}
