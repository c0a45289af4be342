//! fallocate: reserving, freeing and zeroing ranges of a file.

use crate::content::MAX_SIZE;
use crate::document::Ino;
use crate::namespace::{Caller, Namespace, NamespaceError, Result};

use super::write::Privileges;

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
    ) -> Result<Privileges> {
        let end = offset.checked_add(len).filter(|end| *end <= MAX_SIZE).ok_or(NamespaceError::TooLarge)?;
        if len == 0 {
            return Err(NamespaceError::Invalid("an empty range"));
        }
        let pin = self.inodes.pin(ino);
        let mut io = pin.io.write();
        self.put(&pin, &mut io, ino)?;
        let stamp = self.stamp(!caller.keeps_privileges());
        self.retry(|| {
            let (_, node) = self.live_node(ino)?;
            if allocation != Allocation::PunchHole {
                self.admit_content(len)?;
            }
            // What is only reserved, or lies before what is zeroed, must read as zeros.
            let from = if keep_size { 0 } else { u64::MAX };
            let prepared = self.prepare(&pin, &mut io, ino, &node, from)?;
            let file = &prepared.file;
            let done = match allocation {
                Allocation::Reserve => file.allocate(offset, len, !keep_size),
                Allocation::PunchHole => file.punch_hole(offset, len, node.version()),
                Allocation::Zero => {
                    let zeroed = file.zero_range(offset, len, node.version());
                    zeroed.and_then(|()| file.allocate(offset, len, !keep_size))
                }
            };
            let outcome = done.map(|()| if keep_size { 0 } else { end }).map_err(Into::into);
            self.finish(&mut io, prepared, outcome, stamp)
        })
    }
}
