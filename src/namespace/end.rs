//! The end of a session: what it still does, what it leaves to others, and in which order.
//!
//! Of the sessions of one process the last one closes what they shared. One that ends before the others leaves the files
//! that wait for their last close to one of them.
//!
//! What is hard: on a store that other hosts use nobody may wait for long for a session whose store is away. It need not do
//! all that it would: what it leaves, they clean up after its lease.

use super::session::orphans;
use super::{Namespace, NamespaceError, Result};
use crate::document::{Document, Key, Orphan, SessionId};
use crate::store::Commit;

impl Namespace {
    /// What was written is with the store, or lost, and nobody is served through this session any more, nor, if `is_last`,
    /// through another one of the process. Whoever waits for a store that is away is to come to an end: what the session
    /// leaves, others clean up after.
    pub fn hurry(&self, is_last: bool) {
        if let Some(membership) = &self.membership {
            membership.hurry(&*self.store, is_last);
        }
    }

    /// Ends the session: nobody waits for a lock any more, and the session's document goes last.
    ///
    /// The last session of the process also finishes what is to be removed. Files that are still open then and have no
    /// name are collected by the next mount.
    ///
    /// # Errors
    /// When the store fails; the next mount then recovers.
    pub fn end(&self) -> Result<()> {
        self.flush_all();
        self.locks.close_session(self.session);
        self.in_doubt.finish();
        self.advisory.drop_session(self.session);
        let mut live = self.peers.live();
        live.retain(|session| *session != self.session);
        if let Some(membership) = &self.membership {
            // All that follows would wait for it, too.
            membership.leave_if_away(&*self.store)?;
        }
        let left = match live.first() {
            Some(heir) => {
                self.close_all();
                self.hand_over(*heir)?;
                false
            }
            None => {
                self.collector.finish();
                self.membership.is_none() && !orphans(&*self.store)?.is_empty()
            }
        };
        if let Some(membership) = &self.membership {
            membership.leave(&*self.store, &self.collector)?;
        } else if left {
            // The document stays behind and tells the next mount to collect.
            log::warn!("files without a name were open to the end; the next mount collects them");
        } else {
            self.store.commit(&Commit::new().delete(Key::Session(self.session)))?;
        }
        Ok(self.store.sync()?)
    }

    /// Closes what a connection that was cut off has left open.
    fn close_all(&self) {
        let opens = self.opens.lock().clone();
        for (ino, times) in opens {
            for _ in 0..times {
                if let Err(error) = self.close_file(ino) {
                    log::error!("closing inode {ino}: {error}; the next mount collects it");
                }
            }
        }
    }

    /// Leaves the files without a name that this session has unlinked to another one.
    fn hand_over(&self, heir: SessionId) -> Result<()> {
        for (key, version, left) in orphans(&*self.store)? {
            if left.is_none_or(|orphan| orphan.session != self.session) {
                continue;
            }
            let orphan = Document::Orphan(Orphan { session: heir });
            let commit = Commit::new().at(key.clone(), version).put(key, orphan);
            match self.store.commit(&commit).map_err(NamespaceError::from) {
                // Somebody has closed it for the last time meanwhile, and it is gone.
                Ok(_) | Err(NamespaceError::Conflict(_)) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }
}
