//! The gate of a session: what every change of it passes, and what a fence closes for ever.
//!
//! Imports the store's error and the rules.
//!
//! What is hard: when [`Gate::close`] has returned, nothing of the session may take effect any more. So a change holds a
//! [`Pass`] from before its first effect until after its last, and closing waits for the passes that are out. A change may
//! need a second pass inside the first (bytes, then the commit that names them); so a pass never waits for one who closes,
//! and new changes are refused by a flag, or a busy session could never be closed.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use parking_lot::{RwLock, RwLockReadGuard};

use crate::rules::{Rule, holds};
use crate::store::StoreError;

/// The gate of one session; open at first.
#[derive(Debug, Default)]
pub(super) struct Gate {
    closed: AtomicBool,
    passing: RwLock<()>,
}

/// Leave to change something, until it is dropped.
#[must_use = "the change is let through only while this is held"]
pub(super) struct Pass<'a> {
    _passing: RwLockReadGuard<'a, ()>,
}

impl Gate {
    /// Leave for one change.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] once the gate is closed.
    pub(super) fn enter(&self) -> Result<Pass<'_>, StoreError> {
        // First the lock, then the flag: who sees it open here is waited for by whoever closes it now.
        let pass = Pass { _passing: self.passing.read_recursive() };
        if self.is_closed() && holds(Rule::FencedSessionChangesNothing) {
            return Err(StoreError::Fenced);
        }
        Ok(pass)
    }

    /// Lets no change through any more, and waits for those that are passing. Returns false if it was closed before.
    pub(super) fn close(&self) -> bool {
        let first = !self.closed.swap(true, SeqCst);
        drop(self.passing.write());
        first
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn closing_waits_for_who_passes_and_refuses_who_comes() {
        let (gate, done) = (Gate::default(), AtomicU32::new(0));
        let (entered, inside) = mpsc::channel();
        std::thread::scope(|scope| {
            let (gate, done) = (&gate, &done);
            scope.spawn(move || {
                let outer = gate.enter().unwrap();
                entered.send(()).unwrap();
                while !gate.is_closed() {
                    std::thread::yield_now();
                }
                // What is inside already is refused like everybody, and does not wait for who waits for it.
                assert!(matches!(gate.enter(), Err(StoreError::Fenced)));
                std::thread::sleep(Duration::from_millis(20));
                done.store(1, SeqCst);
                drop(outer);
            });
            inside.recv().unwrap();
            assert!(gate.close());
            assert_eq!(done.load(SeqCst), 1, "closed while a change was passing");
        });
        assert!(gate.enter().is_err());
        assert!(!gate.close());
    }
}
