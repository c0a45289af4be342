//! Backing files against the nodes that keep their bytes there. Owns [`BackingList`], all that a check needs to know of
//! backing files; imports `document` and `store`.
//!
//! What is hard: under a running mount the files are listed after the instant of the snapshot. A file may have been made
//! or removed since; so the live documents decide, and a file counts as missing only if it was looked for between two
//! reads that saw the same version of its node. That holds because a file is made before the commit that names it, and
//! removed after the commit that lets go of it.

use std::io;

use super::table::What;
use super::{Judge, Mode, Phase, Rule};
use crate::content::{BackingFiles, CHUNK_BYTES, ContentError, Contents, Objects};
use crate::document::{ContentPlace, Ino, Key, Kind, Version};
use crate::store::{Reader, StoreError};

/// What is known of the backing files of one inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackingFile {
    /// The space that they take, in bytes.
    pub allocated: u64,
}

/// The backing files of a volume.
pub trait BackingList {
    /// Calls `visit` once for every inode that has a backing file, in any order.
    ///
    /// # Errors
    /// The operating system's.
    fn inodes(&self, visit: &mut dyn FnMut(Ino)) -> io::Result<()>;

    /// What is known of the backing files of `ino` now; `None` if it has none.
    ///
    /// # Errors
    /// The operating system's.
    fn file(&self, ino: Ino) -> io::Result<Option<BackingFile>>;

    /// The objects that have the bytes of chunks, if an object store has.
    fn objects(&self) -> Option<&Objects> {
        None
    }

    /// The size of the chunks of a store that keeps contents in chunks, in bytes.
    fn chunk_bytes(&self) -> u64 {
        CHUNK_BYTES
    }
}

impl Judge<'_> {
    /// Judges the backing files, if they are to be judged.
    pub(super) fn backing(&mut self) -> Result<(), StoreError> {
        let Some(list) = self.inputs.backing else { return Ok(()) };
        let mut listed = Vec::new();
        list.inodes(&mut |ino| listed.push(ino))
            .map_err(|e| StoreError::io("the backing files cannot be listed", e))?;
        listed.sort_unstable();
        listed.dedup();
        let total = listed.len() as u64;
        for (done, &ino) in (1..).zip(&listed) {
            self.file(list, ino)?;
            self.advance(Phase::Backing, done, Some(total));
        }
        for at in 0..self.table.records.len() {
            let record = &self.table.records[at];
            let needs_one = record.what == What::Regular(ContentPlace::Backing);
            if needs_one && listed.binary_search(&record.ino).is_err() {
                self.missing(list, record.ino)?;
            }
        }
        Ok(())
    }

    /// A file that is there.
    fn file(&mut self, list: &dyn BackingList, ino: Ino) -> Result<(), StoreError> {
        let Some(file) = look(list, ino)? else { return Ok(()) };
        self.report.counts.backing_files += 1;
        self.report.counts.backing_bytes = self.report.counts.backing_bytes.saturating_add(file.allocated);
        let detail = match self.table.get(ino) {
            Some(record) if record.what == What::Regular(ContentPlace::Backing) => return Ok(()),
            Some(record) if record.orphan || record.what == What::Unreadable => return Ok(()),
            Some(_) => "its node keeps no bytes in backing files",
            None if self.orphans_without_node.binary_search(&ino).is_ok() => return Ok(()),
            None if self.gap(Kind::Node) || self.gap(Kind::Orphan) => return Ok(()),
            None => "its node is missing",
        };
        if self.inputs.mode != Mode::Offline {
            // A node that is there now may be about to name the file.
            if self.is_there_now(&[Key::Node(ino), Key::Orphan(ino)])? || look(list, ino)?.is_none() {
                return Ok(());
            }
        }
        self.report.collect(format!("backing:{ino}"), file.allocated, detail);
        Ok(())
    }

    /// A file that seems not to be there, although its node keeps its bytes in one.
    fn missing(&mut self, list: &dyn BackingList, ino: Ino) -> Result<(), StoreError> {
        let mut found = look(list, ino)?;
        if self.inputs.mode != Mode::Offline {
            let Some(live) = self.live() else { return Ok(()) };
            let Some(version) = needs_file(live, ino)? else { return Ok(()) };
            found = look(list, ino)?;
            if needs_file(live, ino)? != Some(version) {
                return Ok(()); // It changes as we look; the next check will see it at rest.
            }
        }
        if found.is_none() {
            let detail = format_args!("its bytes should be in a backing file, and there is none");
            self.report.accuse(Rule::BackingMissing, &Key::Node(ino), detail);
        }
        Ok(())
    }

    /// Whether any of these documents is there now, for all that is known under a mount.
    pub(super) fn is_there_now(&self, keys: &[Key]) -> Result<bool, StoreError> {
        let Some(live) = self.live() else { return Ok(true) };
        for key in keys {
            if exists(live, key)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn live(&self) -> Option<&dyn Reader> {
        self.inputs.live
    }
}

fn look(list: &dyn BackingList, ino: Ino) -> Result<Option<BackingFile>, StoreError> {
    list.file(ino).map_err(|e| StoreError::io(format!("the backing file of inode {ino} cannot be read"), e))
}

/// The version of a node that takes space in a backing file now, if it does and can be read.
fn needs_file(live: &dyn Reader, ino: Ino) -> Result<Option<Version>, StoreError> {
    match live.node(ino) {
        Ok(Some((version, node))) => {
            let regular = node.regular();
            Ok(regular.is_some_and(|r| r.place == ContentPlace::Backing).then_some(version))
        }
        Ok(None) | Err(StoreError::Damaged { .. }) => Ok(None),
        Err(other) => Err(other),
    }
}

/// Whether a document is there, readable or not.
fn exists(live: &dyn Reader, key: &Key) -> Result<bool, StoreError> {
    match live.get(key) {
        Ok(stored) => Ok(stored.is_some()),
        Err(StoreError::Damaged { .. }) => Ok(true),
        Err(other) => Err(other),
    }
}

impl BackingList for BackingFiles {
    fn inodes(&self, visit: &mut dyn FnMut(Ino)) -> io::Result<()> {
        for ino in self.list() {
            match ino {
                Ok(ino) => visit(Ino(ino)),
                Err(ContentError::Foreign { path }) => {
                    log::warn!("{} is none of the store's files; it is passed over", path.display());
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(())
    }

    fn file(&self, ino: Ino) -> io::Result<Option<BackingFile>> {
        let Some(file) = self.find(ino.0).map_err(io::Error::other)? else { return Ok(None) };
        let blocks = file.allocated_blocks().map_err(io::Error::other)?;
        Ok(Some(BackingFile { allocated: blocks.saturating_mul(512) }))
    }
}

/// Chunks are documents, and judged as those.
impl BackingList for Contents {
    fn inodes(&self, visit: &mut dyn FnMut(Ino)) -> io::Result<()> {
        match self {
            Self::Backing(files) => files.inodes(visit),
            Self::Chunks(_) => Ok(()),
        }
    }

    fn file(&self, ino: Ino) -> io::Result<Option<BackingFile>> {
        match self {
            Self::Backing(files) => BackingList::file(files, ino),
            Self::Chunks(_) => Ok(None),
        }
    }

    fn objects(&self) -> Option<&Objects> {
        Self::objects(self)
    }

    fn chunk_bytes(&self) -> u64 {
        Self::chunk_bytes(self)
    }
}
