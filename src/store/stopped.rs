//! Whether an engine takes no change any more, and why.

use std::sync::OnceLock;

use super::StoreError;

/// The cause for which a store was stopped, once it was.
#[derive(Debug, Default)]
pub(super) struct Stopped(OnceLock<String>);

impl Stopped {
    /// Stops it. False if it was stopped before: the first cause is the one to tell.
    pub(super) fn stop(&self, cause: &str) -> bool {
        self.0.set(cause.to_owned()).is_ok()
    }

    /// Lets through what works on a store that was not stopped.
    pub(super) fn refuse(&self) -> Result<(), StoreError> {
        self.0.get().map_or(Ok(()), |cause| Err(StoreError::Stopped(cause.clone())))
    }
}
