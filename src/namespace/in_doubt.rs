//! Renames in doubt: the store was away for too long to say whether they were made.
//!
//! Owns their locks, and the thread that finds out when the store is back. Imports `lock` and `store`.
//!
//! What is hard: such a rename may still be made, by a request that is under way, and must not meet a tree that others
//! have moved meanwhile; so its locks are not let go of before that is impossible. Its commit rests on both of its names,
//! each at the version that it has read. So they are written anew as they stand, each at the version that it has now: if
//! that succeeds, the rename has been made before, or meets a version that it has not read and never will be. A name that is
//! not there is checked to be absent at the same instant.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::gate::Gate;
use crate::ambient;
use crate::document::{Key, SessionId};
use crate::lock::LockGuard;
use crate::store::{Commit, CommitError, Need, Store, StoreError};

/// After so long it is tried to find out, then after twice as long, up to the longest.
const AFTER: Duration = Duration::from_millis(250);
const AFTER_MAX: Duration = Duration::from_secs(2);

/// The renames of one session that are in doubt.
pub(super) struct InDoubt {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    store: Arc<dyn Store>,
    gate: Arc<Gate>,
    session: SessionId,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    renames: Vec<Rename>,
    /// How many the thread has in its hands.
    looked_at: usize,
    after: Duration,
    is_over: bool,
}

struct Rename {
    /// From where, and to where.
    names: [Key; 2],
    guard: LockGuard,
}

impl InDoubt {
    pub(super) fn new(store: Arc<dyn Store>, gate: Arc<Gate>, session: SessionId) -> Self {
        let state = State { renames: Vec::new(), looked_at: 0, after: AFTER, is_over: false };
        let shared = Shared { store, gate, session, state: Mutex::new(state), changed: Condvar::new() };
        Self { shared: Arc::new(shared), thread: Mutex::default() }
    }

    /// Keeps the locks of a rename until it is certain what became of it, or the session ends.
    pub(super) fn keep(&self, names: [Key; 2], guard: LockGuard) {
        let mut thread = self.thread.lock();
        let mut state = self.shared.state.lock();
        if state.is_over {
            return guard.abandon();
        }
        let (op, [from, to]) = (guard.op(), &names);
        log::warn!("whether {op} has renamed {from} to {to} the store does not say: it keeps its locks");
        state.renames.push(Rename { names, guard });
        state.after = AFTER;
        drop(state);
        self.shared.changed.notify_all();
        if thread.as_ref().is_none_or(JoinHandle::is_finished) {
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
        self.shared.state.lock().is_over = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().take();
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
        let mut state = self.state.lock();
        loop {
            self.changed.wait_while(&mut state, |state| state.renames.is_empty() && !state.is_over);
            let after = state.after;
            self.changed.wait_while_for(&mut state, |state| !state.is_over, after);
            if state.is_over {
                return;
            }
            // Its patience is for who cannot do without an answer; and the end of the mount waits for this thread.
            if self.store.outage().is_some() {
                continue;
            }
            let renames = std::mem::take(&mut state.renames);
            state.looked_at = renames.len();
            state.after = (after * 2).min(AFTER_MAX);
            drop(state);
            let left: Vec<Rename> = renames.into_iter().filter_map(|rename| self.look_at(rename)).collect();
            state = self.state.lock();
            state.looked_at = 0;
            state.renames.extend(left);
        }
    }

    /// Lets go of the locks of a rename if it is decided; else it is returned.
    fn look_at(&self, rename: Rename) -> Option<Rename> {
        if self.state.lock().is_over || self.store.outage().is_some() {
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

    /// Whether a rename of these names has been made, or never will be; else they were being changed.
    fn is_decided(&self, names: &[Key; 2]) -> Result<bool, StoreError> {
        self.store.forget(names);
        // It takes no room that was not taken before.
        let mut commit = Commit::new().by(self.session).needing(Need::Passing);
        for (key, found) in names.iter().zip(self.store.get_many(names)?) {
            commit = match found {
                Some(found) => {
                    commit.at(key.clone(), found.version).put(key.clone(), (*found.document).clone())
                }
                None => commit.absent(key.clone()),
            };
        }
        let _pass = self.gate.enter()?;
        match self.store.commit(&commit) {
            Ok(_) => Ok(true),
            Err(CommitError::Conflict(_)) => Ok(false),
            Err(CommitError::Store(error)) => Err(error),
        }
    }
}
