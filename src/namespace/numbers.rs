//! Inode numbers: handed out in blocks, a block a session, so that sessions never contend for them.
//!
//! What a session does not use of its block when it ends or dies is never used. At a block a mount that lasts for
//! 2^48 mounts.

use std::sync::Arc;

use parking_lot::Mutex;

use super::gate::Gate;
use super::{NamespaceError, Result};
use crate::document::{Document, Ino, Key};
use crate::store::{Commit, Store, StoreError};

const BLOCK: u64 = 1 << 16;

/// Numbers of inodes above this are for what is not in the store, such as control files.
pub(super) const INO_MAX: u64 = 1 << 62;

/// The inode numbers that this session may use.
pub(super) struct InodeNumbers {
    store: Arc<dyn Store>,
    gate: Arc<Gate>,
    block: Mutex<std::ops::Range<u64>>,
}

impl InodeNumbers {
    pub(super) fn new(store: Arc<dyn Store>, gate: Arc<Gate>) -> Self {
        Self { store, gate, block: Mutex::new(0..0) }
    }

    /// A number that no inode of the volume ever had.
    pub(super) fn take(&self) -> Result<Ino> {
        let mut block = self.block.lock();
        loop {
            if let Some(number) = block.next() {
                return Ok(Ino(number));
            }
            *block = match self.reserve() {
                Err(NamespaceError::Conflict(_)) => continue,
                other => other?,
            };
        }
    }

    /// Uses none of the numbers any more among which this one is: it was found taken. A store that has lost what it had
    /// acknowledged, as a server that takes over may have, gives them out once more.
    pub(super) fn give_up(&self, taken: Ino) {
        log::warn!(
            "inode {taken} is there already: the store has lost that its number was reserved; taking others"
        );
        let mut block = self.block.lock();
        if (block.end.saturating_sub(BLOCK)..block.end).contains(&taken.0) {
            *block = 0..0;
        }
    }

    fn reserve(&self) -> Result<std::ops::Range<u64>> {
        let stored = self.store.get(&Key::Volume)?;
        let volume = stored.as_ref().and_then(|s| match &*s.document {
            Document::Volume(volume) => Some((s.version, volume.clone())),
            _ => None,
        });
        let Some((version, mut volume)) = volume else {
            let cause = "it is missing".to_owned();
            return Err(StoreError::Damaged { key: Key::Volume.to_string(), cause }.into());
        };
        let first = volume.next_ino;
        volume.next_ino = first.saturating_add(BLOCK);
        if volume.next_ino > INO_MAX {
            return Err(StoreError::NoSpace.into());
        }
        let next = volume.next_ino;
        let commit = Commit::new().at(Key::Volume, version).put(Key::Volume, Document::Volume(volume));
        let _pass = self.gate.enter()?;
        self.store.commit(&commit)?;
        // A power cut must not give out again what a file on the host may already be called after.
        self.store.sync()?;
        Ok(first..next)
    }
}
