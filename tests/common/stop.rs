//! The end of threads that go on until a flag is set: also when whoever sets it fails. Tests of the library share it.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Sets its flag when it goes, also when an assertion takes it along.
pub(crate) struct StopOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}
