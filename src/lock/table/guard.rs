//! What an operation has in hand while it holds its locks. Imports the table.

use std::sync::Arc;

use super::Shared;
use super::fence::Fence;
use crate::lock::decide::Event;
use crate::lock::error::LockError;
use crate::lock::who::OpId;

/// The locks of one operation, held until this is dropped; then released from the leaf to the root. Somebody may break
/// them before ([`LockTable::revoke`](super::LockTable::revoke)): so what rests on them is done by [`Guard::while_held`].
#[must_use = "the locks are released when the guard is dropped"]
pub struct Guard {
    shared: Arc<Shared>,
    op: OpId,
    fence: Arc<Fence>,
}

impl Guard {
    pub(super) fn new(shared: Arc<Shared>, op: OpId, fence: Arc<Fence>) -> Self {
        Self { shared, op, fence }
    }

    /// Which operation holds the locks.
    pub fn op(&self) -> OpId {
        self.op
    }

    /// Makes the change that the locks were taken for. While it runs they are not broken; once they have been, it does
    /// not run. So what a break says of the change is final. To be called once.
    ///
    /// # Errors
    /// [`LockError::Revoked`], and nothing was done; else the change's own.
    pub fn while_held<T, E: From<LockError>>(&self, change: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.fence.pass(change)
    }

    /// Says that nothing will be changed under these locks: they are held for somebody outside.
    pub fn hold_only(&self) {
        self.fence.hold_only();
    }

    /// Why the locks are held no more; `None` while they are.
    pub fn lost(&self) -> Option<LockError> {
        self.fence.revoked()
    }

    /// Releases the locks. Whoever starts over after this must look at the result.
    ///
    /// # Errors
    /// [`LockError::Revoked`]: somebody broke them, and was told that the operation changes nothing any more.
    pub fn release(self) -> Result<(), LockError> {
        self.fence.close()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Before its locks go: who breaks an operation that has ended must be told so.
        let _ = self.fence.close();
        self.shared.end(self.op);
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Guard({})", self.op)
    }
}

impl Shared {
    /// An operation is over.
    fn end(&self, op: OpId) {
        let now = self.now();
        let mut inner = self.inner.lock();
        inner.fences.remove(&op);
        inner.apply(Event::Release { op }, now, None);
    }
}
