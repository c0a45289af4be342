//! Inodes in use: who has a file open, and whose turn it is to change its bytes.
//!
//! What is hard:
//! 1. A file that loses its last name is deleted at once if nobody has it open, and kept if somebody has. Opening and
//!    unlinking take turns on the inode's [`Life`], so neither decides on what the other is about to change.
//! 2. The table must not grow with the volume: an inode is in it while it is open or an operation is at work on it.
//! 3. A directory that is some process's working directory can be asked for after it was removed. Its last attributes are
//!    kept for a while in [`InodeTable::dead`].

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::advisory::held::Held;
use super::write_back::Gathered;
use crate::content::ContentFile;
use crate::document::Ino;
use crate::store::NodeRef;

const SHARDS: usize = 64;

/// As many removed inodes are remembered. The kernel forgets an inode soon after its last name; what it does not is the
/// working directories of a few processes.
const DEAD_MAX: usize = 4096;

type Shard = Mutex<HashMap<Ino, Arc<OpenInode>>>;

/// The inodes in use.
pub(super) struct InodeTable {
    shards: [Shard; SHARDS],
    dead: Mutex<HashMap<Ino, NodeRef>>,
}

/// One inode in use.
#[derive(Default)]
pub(super) struct OpenInode {
    /// Taken by whoever opens, closes or removes the inode.
    pub(super) life: Mutex<Life>,
    /// Taken shared by readers and exclusively by writers of the content.
    pub(super) io: RwLock<Io>,
    /// Taken by whoever takes or gives up advisory locks.
    pub(super) advisory: Mutex<Held>,
}

/// Who has the inode open.
#[derive(Default)]
pub(super) struct Life {
    /// Open handles.
    pub(super) opens: u64,
    /// Whether the inode has lost its last name; the last close collects it.
    pub(super) orphaned: bool,
}

/// What is known of the content while the inode is in use.
#[derive(Default)]
pub(super) struct Io {
    /// The bytes that are apart from the node, once they were needed.
    pub(super) file: Option<ContentFile>,
    /// Whether they are known to hold nothing beyond the node's size.
    pub(super) trimmed: bool,
    /// Bytes that were acknowledged and are not in the store yet.
    pub(super) gathered: Option<Gathered>,
}

/// The right to use an inode's entry in the table.
pub(super) struct Pin<'a> {
    table: &'a InodeTable,
    ino: Ino,
    /// Taken out under the shard's lock only, so that the count of handles means something there.
    inode: Option<Arc<OpenInode>>,
}

impl InodeTable {
    pub(super) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Shard::default()), dead: Mutex::default() }
    }

    fn shard(&self, ino: Ino) -> &Shard {
        &self.shards[(ino.0 % SHARDS as u64) as usize]
    }

    /// The inode's entry, made if there is none.
    pub(super) fn pin(&self, ino: Ino) -> Pin<'_> {
        let mut shard = self.shard(ino).lock();
        let inode = shard.entry(ino).or_default();
        Pin { table: self, ino, inode: Some(Arc::clone(inode)) }
    }

    /// Remembers what a removed inode was.
    pub(super) fn bury(&self, ino: Ino, node: NodeRef) {
        let mut dead = self.dead.lock();
        if dead.len() >= DEAD_MAX {
            dead.clear();
        }
        dead.insert(ino, node);
    }

    /// What a removed inode was, if that is remembered.
    pub(super) fn dead(&self, ino: Ino) -> Option<NodeRef> {
        self.dead.lock().get(&ino).cloned()
    }

    /// The kernel has forgotten the inode.
    pub(super) fn forget(&self, ino: Ino) {
        self.dead.lock().remove(&ino);
    }

    /// How many inodes are open.
    pub(super) fn open_count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

impl std::ops::Deref for Pin<'_> {
    type Target = OpenInode;

    fn deref(&self) -> &OpenInode {
        match &self.inode {
            Some(inode) => inode,
            None => unreachable!("a pin has its inode until it is dropped"),
        }
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        let mut shard = self.table.shard(self.ino).lock();
        let Some(inode) = self.inode.take() else { return };
        // Handles come and go under the shard's lock only, so two mean: the table's and this one.
        let idle = || inode.life.lock().opens == 0 && inode.io.read().gathered.is_none();
        if Arc::strong_count(&inode) == 2 && idle() {
            shard.remove(&self.ino);
        }
    }
}
