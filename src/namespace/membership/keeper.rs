//! The thread that looks at the locks which a session keeps between its operations, so that nobody waits for them in vain.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::ambient;
use crate::lock::SharedLocks;
use crate::store::{Listener, Notice, Store, StoreError};

/// How long somebody waits for a kept lock, at most, if no notice tells of him.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(1);

/// Looks at what a session keeps, when somebody has changed one of the documents and once a second, until this is dropped.
pub(super) struct Keeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    locks: SharedLocks,
    ended: AtomicBool,
}

impl Keeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// The store's if it tells of no changes, and the operating system's if there is no room for a thread.
    pub(super) fn start(locks: SharedLocks, store: &dyn Store) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared { locks, ended: AtomicBool::new(false) });
        store.listen(Arc::new(Ear(Arc::downgrade(&shared))))?;
        let theirs = Arc::clone(&shared);
        let thread = ambient::spawn("lockwood-keep", move || theirs.run());
        let thread = thread.map_err(|error| StoreError::io("starting a thread of the session", error))?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.ended.store(true, Relaxed);
        self.shared.locks.kept_changed(None);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            log::error!(
                "the thread that looks at kept locks has panicked; who waits for one waits until this session ends"
            );
        }
    }
}

impl Shared {
    fn run(&self) {
        while !self.ended.load(Relaxed) {
            if let Err(error) = self.locks.look_at_kept() {
                log::debug!("the locks that are kept were not looked at: {error}; trying again");
            }
            self.locks.await_kept_change(LOOK_AT_LEAST_EVERY);
        }
    }
}

/// Hears what the store tells. The store has it for as long as it lives, and the locks have the store: so it must not keep
/// them.
struct Ear(Weak<Shared>);

impl Listener for Ear {
    fn notice(&self, notice: &Notice) {
        let Some(shared) = self.0.upgrade() else { return };
        match notice {
            Notice::Changed { keys, .. } => shared.locks.kept_changed(Some(keys)),
            Notice::Lost => shared.locks.kept_changed(None),
        }
    }
}
