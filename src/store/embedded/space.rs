//! Room on the disk: refuses a change that would grow the store while the database can still do its own work.
//!
//! The database stops for good when its journal or a table cannot be written. So a change that needs room is refused
//! before it reaches the database, while there is room left for what is in memory already; what frees room passes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::fs::statvfs;

use crate::store::StoreError;
use crate::store::commit::Commit;

/// Kept free for the journal, for the documents in memory that still go to tables, and for merging tables.
const RESERVE_BYTES: u64 = 96 << 20;

/// Below this not even a delete is taken: it too needs room in the journal.
const FLOOR_BYTES: u64 = 2 << 20;

/// While there is more than this beyond the reserve, the free space is looked at only now and then.
const PLENTY_BYTES: u64 = 1 << 30;

/// As much may be used between two looks.
const UNWATCHED_BYTES: u64 = 128 << 20;

/// Watches the free space of the file system that the store is on.
pub struct SpaceGuard {
    dir: PathBuf,
    reserve_bytes: u64,
    unwatched_bytes: AtomicU64,
}

impl SpaceGuard {
    /// Watches the file system of `dir`.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(dir: &Path) -> Result<Self, StoreError> {
        let total = space(dir)?.total_bytes;
        // On a disk that is small itself the reserve must not be most of it.
        let reserve_bytes = RESERVE_BYTES.min(total / 8);
        Ok(Self { dir: dir.to_owned(), reserve_bytes, unwatched_bytes: AtomicU64::new(0) })
    }

    /// What is kept free.
    pub fn reserve_bytes(&self) -> u64 {
        self.reserve_bytes
    }

    /// Lets `commit` pass if there is room for it.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`].
    pub fn admit(&self, commit: &Commit) -> Result<(), StoreError> {
        let keep = if commit.grows() { self.reserve_bytes } else { FLOOR_BYTES.min(self.reserve_bytes) };
        self.admit_bytes(commit.cost_bytes(), keep)
    }

    /// Lets `bytes` of content beside the documents pass if there is room for them.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`].
    pub fn admit_content(&self, bytes: u64) -> Result<(), StoreError> {
        self.admit_bytes(bytes, self.reserve_bytes)
    }

    /// The next change is let pass only after another look.
    pub fn forget(&self) {
        self.unwatched_bytes.store(0, Relaxed);
    }

    fn admit_bytes(&self, bytes: u64, keep: u64) -> Result<(), StoreError> {
        let unwatched = self.unwatched_bytes.load(Relaxed);
        if bytes <= unwatched {
            self.unwatched_bytes.store(unwatched - bytes, Relaxed);
            return Ok(());
        }
        let free = space(&self.dir)?.free_bytes;
        let plenty = free > self.reserve_bytes + PLENTY_BYTES;
        self.unwatched_bytes.store(if plenty { UNWATCHED_BYTES } else { 0 }, Relaxed);
        if free < keep.saturating_add(bytes) { Err(StoreError::NoSpace) } else { Ok(()) }
    }
}

struct Space {
    total_bytes: u64,
    free_bytes: u64,
}

fn space(dir: &Path) -> Result<Space, StoreError> {
    let found =
        statvfs(dir).map_err(|e| StoreError::io(format!("the free space of {}", dir.display()), e.into()))?;
    Ok(Space { total_bytes: found.f_blocks * found.f_frsize, free_bytes: found.f_bavail * found.f_frsize })
}
