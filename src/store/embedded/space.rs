//! Room on the disk: refuses a change that would grow the store while the database can still do its own work.
//!
//! The database stops for good when its journal or a table cannot be written. So a change that needs room is refused
//! before it reaches the database, while there is room left for what is in memory already; what frees room passes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::fs::statvfs;

use crate::store::StoreError;
use crate::store::commit::{Commit, Write};

/// Kept free for the journal, for the documents in memory that still go to tables, and for merging tables.
const RESERVE_BYTES: u64 = 96 << 20;

/// Below this not even a delete is taken: it too needs room in the journal.
const FLOOR_BYTES: u64 = 4 << 20;

/// With more than this free, only one commit in [`RELAXED_INTERVAL`] looks; that many commits cannot use it up.
const PLENTY_BYTES: u64 = 1 << 30;
const RELAXED_INTERVAL: u32 = 1024;

/// Watches the free space of the file system that the store is on.
pub struct SpaceGuard {
    dir: PathBuf,
    reserve_bytes: u64,
    skip: AtomicU32,
}

impl SpaceGuard {
    /// Watches the file system of `dir`.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(dir: &Path) -> Result<Self, StoreError> {
        let total = space(dir)?.total_bytes;
        // On a disk that is small itself the reserve must not be most of it.
        Ok(Self { dir: dir.to_owned(), reserve_bytes: RESERVE_BYTES.min(total / 8), skip: AtomicU32::new(0) })
    }

    /// Lets `commit` pass if there is room for it.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`].
    pub fn admit(&self, commit: &Commit) -> Result<(), StoreError> {
        let skip = self.skip.load(Relaxed);
        if skip > 0 {
            self.skip.store(skip - 1, Relaxed);
            return Ok(());
        }
        let free = space(&self.dir)?.free_bytes;
        if free > PLENTY_BYTES {
            self.skip.store(RELAXED_INTERVAL, Relaxed);
        }
        let needed = if commit.writes.iter().any(Write::grows) { self.reserve_bytes } else { FLOOR_BYTES };
        if free < needed { Err(StoreError::NoSpace) } else { Ok(()) }
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
