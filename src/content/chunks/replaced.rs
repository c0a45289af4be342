//! Objects that a commit has stopped naming, until they are removed. Owns the thread that removes them.
//!
//! What is hard: on an engine that writes to its disk once in a while, a power cut undoes the last commits, and a chunk
//! names again what it named before them. So an object goes only after a sync of the store that has begun after the commit
//! which stopped naming it; one sync goes before all that wait. And after it the chunks are looked at again: a power cut may
//! have come before it. Nobody else waits for it, unless too many do.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::garbage::unnamed;
use crate::ambient;
use crate::content::objects::Objects;
use crate::store::{Store, StoreError};

/// As many objects wait at most; their names take some MiB.
const WAITING_MAX: usize = 1 << 16;

/// So long whoever replaces more waits for room, and so long the last ones may take at the end. What is not removed then is
/// garbage.
const PATIENCE: Duration = Duration::from_secs(5);

/// After a sync that failed the next one is tried after this time.
const AGAIN: Duration = Duration::from_millis(500);

/// The objects of one process that are about to go.
pub(super) struct Replaced {
    shared: Arc<Shared>,
    /// Started when the first one comes.
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    store: Arc<dyn Store>,
    objects: Objects,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// In the order in which they came.
    names: Vec<String>,
    /// Nobody hands in more.
    has_ended: bool,
    /// The thread does nothing more.
    is_done: bool,
}

impl Replaced {
    pub(super) fn new(store: Arc<dyn Store>, objects: Objects) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { shared: Arc::new(Shared { store, objects, state, changed }), thread: Mutex::default() }
    }

    /// Removes objects which nothing names since a commit that has returned, once nothing brings that name back.
    pub(super) fn remove_later(&self, names: impl Iterator<Item = String>) {
        let names: Vec<String> = names.collect();
        if names.is_empty() || !self.is_started() {
            return;
        }
        let mut state = self.shared.state.lock();
        let is_full = |state: &mut State| state.names.len() > WAITING_MAX;
        if self.shared.changed.wait_while_for(&mut state, is_full, PATIENCE).timed_out() {
            let count = names.len();
            log::warn!(
                "{count} objects that nothing names are left in the object store; lockwood check finds them"
            );
            return;
        }
        state.names.extend(names);
        self.shared.changed.notify_all();
    }

    fn is_started(&self) -> bool {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            match ambient::spawn("lockwood-replaced", move || shared.work()) {
                Ok(started) => *thread = Some(started),
                Err(error) => {
                    log::error!("objects that nothing names are left, for want of a thread: {error}")
                }
            }
        }
        thread.is_some()
    }
}

impl Drop for Replaced {
    fn drop(&mut self) {
        let Some(thread) = self.thread.lock().take() else { return };
        let mut state = self.shared.state.lock();
        state.has_ended = true;
        self.shared.changed.notify_all();
        // It would be waited for in vain.
        if state.names.is_empty() || self.shared.store.lost_after_sync() <= PATIENCE {
            self.shared.changed.wait_while_for(&mut state, |state| !state.is_done, PATIENCE);
        }
        let (is_done, left) = (state.is_done, state.names.len());
        drop(state);
        if left > 0 {
            log::warn!(
                "{left} objects that nothing names are left in the object store; lockwood check finds them"
            );
        }
        // One that still waits for the store is waited for by nobody.
        if is_done && thread.join().is_err() {
            log::error!("the thread that removes replaced objects panicked");
        }
    }
}

impl Shared {
    fn work(&self) {
        loop {
            let mut state = self.state.lock();
            self.changed.wait_while(&mut state, |state| state.names.is_empty() && !state.has_ended);
            let (count, was_last) = (state.names.len(), state.has_ended);
            drop(state);
            let gone = if count > 0 { self.settled(count) } else { Ok(Vec::new()) };
            let mut state = self.state.lock();
            match gone {
                Ok(gone) => {
                    state.names.drain(..count);
                    parking_lot::MutexGuard::unlocked(&mut state, || self.objects.discard(gone.into_iter()));
                    self.changed.notify_all();
                }
                Err(error) => {
                    log::debug!("{count} objects that nothing names wait for a sync of the store: {error}");
                    if !was_last {
                        self.changed.wait_while_for(&mut state, |state| !state.has_ended, AGAIN);
                    }
                }
            }
            if was_last {
                state.is_done = true;
                self.changed.notify_all();
                return;
            }
        }
    }

    /// Those of the first `count` that nothing names, once no power cut changes that.
    fn settled(&self, count: usize) -> Result<Vec<String>, StoreError> {
        self.store.sync()?;
        // What cannot be waited for takes its time, also at the end.
        std::thread::sleep(self.store.lost_after_sync());
        let names = self.state.lock().names[..count].to_vec();
        unnamed(&*self.store, names)
    }
}
