//! Renames in doubt: the store was away for too long to say whether they were made.
//!
//! Owns their locks, and the thread that finds out when the store is back.
//!
//! What is hard: such a rename may still be made, by a request that is under way, and must not meet a tree that others
//! have moved meanwhile; so its locks are not let go of before that is impossible. Its commit rests on both of its names,
//! each at the version that it has read. So one of them is written anew as it stands, at the version that it has now: if that
//! succeeds, the rename has been made before, or meets a version that it has not read, and never will be. Only if there
//! is neither name is nothing written; then it is enough that both are absent at one instant, where the store tells that by
//! more than a read.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::ambient;
use crate::document::{Key, SessionId};
use crate::lock::LockGuard;
use crate::store::{Commit, CommitError, Store, StoreError};

/// After so long it is tried to find out, then after twice as long, up to the longest.
const AFTER: Duration = Duration::from_millis(250);
const AFTER_MAX: Duration = Duration::from_secs(10);

/// The renames of one session that are in doubt.
pub(super) struct InDoubt {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    store: Arc<dyn Store>,
    session: SessionId,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    renames: Vec<Rename>,
    /// How many the thread has in its hands.
    looked_at: usize,
    is_over: bool,
}

struct Rename {
    /// From where, and to where.
    names: [Key; 2],
    guard: LockGuard,
}

impl InDoubt {
    pub(super) fn new(store: Arc<dyn Store>, session: SessionId) -> Self {
        let shared = Shared { store, session, state: Mutex::default(), changed: Condvar::new() };
        Self { shared: Arc::new(shared), thread: Mutex::default() }
    }

    /// Keeps the locks of a rename until it is certain what became of it, or the session ends.
    pub(super) fn keep(&self, names: [Key; 2], guard: LockGuard) {
        let mut thread = self.thread.lock();
        let mut state = self.shared.state.lock();
        if state.is_over {
            return guard.abandon();
        }
        let op = guard.op();
        log::warn!(
            "whether {op} has renamed {} to {} the store does not say: it keeps its locks",
            names[0],
            names[1]
        );
        state.renames.push(Rename { names, guard });
        drop(state);
        self.shared.changed.notify_one();
        if thread.is_none() {
            let theirs = Arc::clone(&self.shared);
            match ambient::spawn("lockwood-doubt", move || theirs.run()) {
                Ok(started) => *thread = Some(started),
                Err(error) => log::error!(
                    "no thread to find out what became of a rename ({error}); its locks are kept until the next such \
                     rename, or the end of the mount"
                ),
            }
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        let state = self.shared.state.lock();
        state.renames.len() + state.looked_at
    }

    /// Leaves what is in doubt to who cleans up after the session.
    pub(super) fn finish(&self) {
        let thread = self.thread.lock().take();
        self.shared.state.lock().is_over = true;
        self.shared.changed.notify_one();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("the thread that finds out what became of renames has panicked");
        }
        std::mem::take(&mut self.shared.state.lock().renames)
            .into_iter()
            .for_each(|left| left.guard.abandon());
    }
}

impl Drop for InDoubt {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Shared {
    fn run(&self) {
        let mut after = AFTER;
        loop {
            let mut state = self.state.lock();
            self.changed.wait_while(&mut state, |state| state.renames.is_empty() && !state.is_over);
            self.changed.wait_while_for(&mut state, |state| !state.is_over, after);
            if state.is_over {
                return;
            }
            let renames = std::mem::take(&mut state.renames);
            state.looked_at = renames.len();
            drop(state);
            let left: Vec<Rename> = renames.into_iter().filter_map(|rename| self.look_at(rename)).collect();
            after = if left.is_empty() { AFTER } else { (after * 2).min(AFTER_MAX) };
            let mut state = self.state.lock();
            state.looked_at = 0;
            state.renames.extend(left);
        }
    }

    /// Lets go of the locks of a rename if it is decided; else it is returned.
    fn look_at(&self, rename: Rename) -> Option<Rename> {
        // Its patience is for who cannot do without an answer; and the end of the mount waits for this thread.
        if self.store.outage().is_some() {
            return Some(rename);
        }
        let op = rename.guard.op();
        match self.is_decided(&rename.names) {
            Ok(true) => {
                log::warn!("what became of {op} is decided: its locks are let go of");
                // Whether they were held to the end is no matter: nothing is changed under them any more.
                let _ = rename.guard.release();
                None
            }
            Ok(false) => Some(rename),
            Err(StoreError::Engine { .. } | StoreError::Unknown(_) | StoreError::NoSpace) => Some(rename),
            Err(error) => {
                if !matches!(error, StoreError::Fenced) {
                    log::error!(
                        "{op} keeps its locks until this mount ends: what became of it is not known: {error}"
                    );
                }
                rename.guard.abandon();
                None
            }
        }
    }

    /// Whether a rename of these names has been made, or never will be.
    fn is_decided(&self, names: &[Key; 2]) -> Result<bool, StoreError> {
        self.store.forget(names);
        let mut commit = Commit::new().by(self.session);
        for (key, found) in names.iter().zip(self.store.get_many(names)?) {
            commit = match found {
                Some(found) => {
                    commit.at(key.clone(), found.version).put(key.clone(), (*found.document).clone())
                }
                None => commit.absent(key.clone()),
            };
        }
        let certain = !commit.writes.is_empty() || self.store.intents().is_none();
        match self.store.commit(&commit) {
            Ok(_) => Ok(certain),
            Err(CommitError::Conflict(_)) => Ok(false),
            Err(CommitError::Store(error)) => Err(error),
        }
    }
}
