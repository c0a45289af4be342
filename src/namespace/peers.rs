//! The mounts of one process on one store: which of their sessions live, and who is told of a change before it is
//! acknowledged.
//!
//! Every change is one commit ([`Namespace::commit`](super::Namespace)), and its writes name all documents that changed. So
//! telling the other mounts between the commit and the reply is all that coherence needs here; what a mount makes of it
//! is its [`Watcher`]'s business. A mount alone has no watchers and pays nothing.

use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};

use crate::document::{Ino, SessionId};
use crate::store::Write;

/// Stands between a mount and what was changed through the others.
pub trait Watcher: Send + Sync {
    /// Another mount has made these writes. When this returns, nobody behind this mount sees what was there before,
    /// unless he began to look earlier. Called under locks of the namespace, so it may not ask for anything there.
    fn changed(&self, writes: &[Write]);

    /// Another mount has given a file another size: a write that [`Watcher::changed`] was told of came with other bytes.
    fn bytes_changed(&self, ino: Ino);

    /// A directory was moved through another mount, and nobody holds a lock for it any more: waits a little until the
    /// kernel has let go of where it was.
    fn settle(&self);

    /// Whether somebody behind this mount may still ask for the inode.
    fn knows(&self, ino: Ino) -> bool;
}

/// The sessions of one process.
#[derive(Default)]
pub(super) struct Peers {
    live: Mutex<Vec<SessionId>>,
    watchers: OnceLock<Vec<(SessionId, Arc<dyn Watcher>)>>,
}

impl Peers {
    /// The sessions that live. While the guard is held none begins or ends.
    pub(super) fn live(&self) -> MutexGuard<'_, Vec<SessionId>> {
        self.live.lock()
    }

    /// From here on each of these is told what the others change. Only the first call counts.
    pub(super) fn watch(&self, watchers: Vec<(SessionId, Arc<dyn Watcher>)>) {
        if self.watchers.set(watchers).is_err() {
            log::error!("the watchers of the mounts were set already");
        }
    }

    /// Tells everybody but `by`.
    pub(super) fn tell(&self, by: SessionId, writes: &[Write]) {
        self.others(by).for_each(|watcher| watcher.changed(writes));
    }

    /// Tells everybody but `by` that a file has another size.
    pub(super) fn tell_size(&self, by: SessionId, ino: Ino) {
        self.others(by).for_each(|watcher| watcher.bytes_changed(ino));
    }

    /// Waits a little until the others have let go of where a directory was that `by` has moved.
    pub(super) fn settle(&self, by: SessionId) {
        self.others(by).for_each(|watcher| watcher.settle());
    }

    /// Whether anybody but `by` may still ask for the inode.
    pub(super) fn others_know(&self, by: SessionId, ino: Ino) -> bool {
        self.others(by).any(|watcher| watcher.knows(ino))
    }

    fn others(&self, by: SessionId) -> impl Iterator<Item = &Arc<dyn Watcher>> {
        let all = self.watchers.get().into_iter().flatten();
        all.filter(move |(session, _)| *session != by).map(|(_, watcher)| watcher)
    }
}
