//! The advisory locks of a store that one process owns, for the mounts of that process. With one mount alone the kernel
//! keeps them itself.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::without;
use crate::document::{AdvisoryLock, Ino, SessionId};

/// All locks, by inode; no inode has none.
#[derive(Debug, Default)]
pub struct AdvisoryTable(Mutex<HashMap<Ino, Vec<AdvisoryLock>>>);

impl AdvisoryTable {
    /// The locks of an inode.
    pub fn of(&self, ino: Ino) -> Vec<AdvisoryLock> {
        self.0.lock().get(&ino).cloned().unwrap_or_default()
    }

    /// The locks of every inode that has any, in the order of inodes.
    pub fn all(&self) -> Vec<(Ino, Vec<AdvisoryLock>)> {
        let mut all: Vec<_> = self.0.lock().iter().map(|(ino, locks)| (*ino, locks.clone())).collect();
        all.sort_unstable_by_key(|(ino, _)| *ino);
        all
    }

    /// Replaces the locks of an inode by what `decide` makes of them, unless that is nothing. Returns whether it did.
    pub fn change(
        &self,
        ino: Ino,
        decide: impl FnOnce(&[AdvisoryLock]) -> Option<Vec<AdvisoryLock>>,
    ) -> bool {
        let mut all = self.0.lock();
        let Some(next) = decide(all.get(&ino).map_or(&[], Vec::as_slice)) else { return false };
        if next.is_empty() {
            all.remove(&ino);
        } else {
            all.insert(ino, next);
        }
        true
    }

    /// Takes all locks of a session away.
    pub fn drop_session(&self, session: SessionId) {
        self.0.lock().retain(|_, locks| {
            if let Some(left) = without(locks, |lock| lock.session == session) {
                *locks = left;
            }
            !locks.is_empty()
        });
    }
}
