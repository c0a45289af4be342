//! Room on the disk: refuses a change that would grow the store while the database can still do its own work.
//!
//! The database stops for good when its journal or a table cannot be written. So a change that needs room is refused
//! before it reaches the database, while there is room left for what is in memory already; what frees room passes.
//!
//! What is hard: what changes only what is there takes room too, until the database has tidied up. What bounds that:
//! 1. The journal goes on for 61 MiB, whatever is in tables already. Then another is begun, and the old one goes as soon as
//!    nothing of what it has is in memory alone. So while the disk is short of room all of memory goes to tables together,
//!    at each [`step`](SpaceGuard::step_bytes), before the next commit.
//! 2. A kind of document has up to three tables of that size before they are merged, and while they are, what they are
//!    merged with is there twice: all of the kind, at most.
//! 3. What is in memory must have room in tables at any time, or nothing more comes there.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::fs::statvfs;

use crate::store::StoreError;
use crate::store::commit::{Commit, Need};

/// Kept free for the journal (61 MiB, and a step until that is noticed), for a step in memory, and for the tables that are
/// not merged yet.
const RESERVE_BYTES: u64 = 160 << 20;

/// Besides, as much as is there twice while it is merged. A level of tables has at most 256 MiB before the next is begun,
/// and is merged with what has come since.
const MERGED_MAX_BYTES: u64 = 320 << 20;

/// The last of the reserve, which only what frees room may use: what changes things alone must not keep it from that.
const LAST_BYTES: u64 = 48 << 20;

/// Below this not even a delete is taken: it too needs room in the journal.
const FLOOR_BYTES: u64 = 2 << 20;

/// A step is this part of the reserve.
const STEPS: u64 = 10;

/// While there is more than this beyond the reserve, the free space is looked at only now and then.
const PLENTY_BYTES: u64 = 1 << 30;

/// As much may be used between two looks.
const UNWATCHED_BYTES: u64 = 128 << 20;

/// Watches the free space of the file system that the store is on.
pub struct SpaceGuard {
    dir: PathBuf,
    /// What the reserve is at most, apart from what is merged, and what that is at most.
    share_bytes: u64,
    merged_bytes: AtomicU64,
    unwatched_bytes: AtomicU64,
}

impl SpaceGuard {
    /// Watches the file system of `dir`.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(dir: &Path) -> Result<Self, StoreError> {
        // On a disk that is small itself the reserve must not be most of it.
        let share_bytes = space(dir)?.total_bytes / 8;
        Ok(Self { dir: dir.to_owned(), share_bytes, merged_bytes: 0.into(), unwatched_bytes: 0.into() })
    }

    /// What is kept free.
    pub fn reserve_bytes(&self) -> u64 {
        let merged = self.merged_bytes.load(Relaxed).min(MERGED_MAX_BYTES).min(self.share_bytes);
        self.journaled_bytes() + merged
    }

    /// The largest kind of document has so much in tables.
    pub fn has_in_tables(&self, largest_bytes: u64) {
        self.merged_bytes.store(largest_bytes, Relaxed);
    }

    /// While room is short, memory goes to tables when it has so much.
    pub fn step_bytes(&self) -> u64 {
        self.journaled_bytes() / STEPS
    }

    fn journaled_bytes(&self) -> u64 {
        RESERVE_BYTES.min(self.share_bytes)
    }

    /// The free space; none if it is plenty for `bytes` more.
    ///
    /// # Errors
    /// The operating system's.
    pub fn look(&self, bytes: u64) -> Result<Option<u64>, StoreError> {
        let unwatched = self.unwatched_bytes.load(Relaxed);
        if bytes <= unwatched {
            self.unwatched_bytes.store(unwatched - bytes, Relaxed);
            return Ok(None);
        }
        let free = space(&self.dir)?.free_bytes;
        let plenty = free > self.reserve_bytes() + PLENTY_BYTES;
        self.unwatched_bytes.store(if plenty { UNWATCHED_BYTES } else { 0 }, Relaxed);
        Ok(Some(free))
    }

    /// Whether memory is to go to tables before anything more comes there. It begins early, so that there is little of it
    /// when the reserve is reached; and not without room for the tables, which others may have taken.
    pub fn is_due(&self, in_memory_bytes: u64, free: u64) -> bool {
        let is_short = free < 2 * self.reserve_bytes();
        is_short && in_memory_bytes >= self.step_bytes().max(1) && free >= FLOOR_BYTES + in_memory_bytes
    }

    /// Lets `commit` pass if there is room for it beside what is in memory.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`].
    pub fn admit(&self, commit: &Commit, in_memory_bytes: u64, free: u64) -> Result<(), StoreError> {
        let reserve = self.reserve_bytes();
        let floor = FLOOR_BYTES.min(reserve) + in_memory_bytes;
        let keep = match commit.need() {
            Need::Lasting => reserve.max(floor),
            Need::Passing => floor + LAST_BYTES.min(self.journaled_bytes() / 2),
            Need::Less => floor,
        };
        fits(commit.cost_bytes(), keep, free)
    }

    /// Lets `bytes` of content beside the documents pass if there is room for them.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`].
    pub fn admit_content(&self, bytes: u64) -> Result<(), StoreError> {
        self.look(bytes)?.map_or(Ok(()), |free| fits(bytes, self.reserve_bytes(), free))
    }

    /// The next change is let pass only after another look.
    pub fn forget(&self) {
        self.unwatched_bytes.store(0, Relaxed);
    }
}

fn fits(bytes: u64, keep: u64, free: u64) -> Result<(), StoreError> {
    if free < keep.saturating_add(bytes) { Err(StoreError::NoSpace) } else { Ok(()) }
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
