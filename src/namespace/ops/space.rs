//! fallocate: reserving, freeing and zeroing ranges of a file.

use crate::content::MAX_SIZE;
use crate::document::merge::Extent;
use crate::document::{ContentPlace, Ino, Key, NodeDelta};
use crate::namespace::{Caller, Namespace, NamespaceError, Result, privilege_bits};

use super::read::regular;

/// What becomes of the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Space is reserved; what is in the range stays.
    Reserve,
    /// The range reads as zeros, and its space is freed.
    PunchHole,
    /// The range reads as zeros, and its space is reserved.
    Zero,
}

impl Namespace {
    /// Reserves, frees or zeroes `len` bytes at `offset`. With `keep_size` the file does not grow.
    ///
    /// # Errors
    /// `Invalid` for an empty range; `TooLarge`; no space.
    pub fn allocate(
        &self,
        caller: Caller,
        ino: Ino,
        offset: u64,
        len: u64,
        allocation: Allocation,
        keep_size: bool,
    ) -> Result<()> {
        let end = offset.checked_add(len).filter(|end| *end <= MAX_SIZE).ok_or(NamespaceError::TooLarge)?;
        if len == 0 {
            return Err(NamespaceError::Invalid("an empty range"));
        }
        let pin = self.inodes.pin(ino);
        let mut io = pin.io.write();
        let (_, node) = self.live_node(ino)?;
        let (file, commit) = self.prepare(&pin, &mut io, ino, regular(&node)?)?;
        match allocation {
            Allocation::Reserve => file.allocate(offset, len)?,
            Allocation::PunchHole => file.punch_hole(offset, len)?,
            Allocation::Zero => {
                file.zero_range(offset, len)?;
                file.allocate(offset, len)?;
            }
        }
        let now = self.now();
        let extent = Extent {
            size_at_least: if keep_size { 0 } else { end },
            blocks: file.allocated_blocks()?,
            place: ContentPlace::Backing,
        };
        let mode_clear = if caller.keeps_privileges() { 0 } else { privilege_bits(&node) };
        let delta = NodeDelta {
            mtime: Some(now),
            ctime: Some(now),
            mode_clear,
            extent: Some(extent),
            ..NodeDelta::default()
        };
        self.store.commit(&commit.merge(Key::Node(ino), delta))?;
        Ok(())
    }
}
