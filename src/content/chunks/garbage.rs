//! What nothing speaks of: objects that a session has put and that nothing names, left where it died between putting one and
//! naming it, or between letting go of one and removing it; and chunks of inodes that are gone.
//!
//! A session that has ended names nothing any more: every commit checks its session. So what it has not named by then is
//! garbage, however young; and what a living one has put is left alone.

use std::time::Duration;

use super::{Chunks, bytes_of};
use crate::content::error::ContentError;
use crate::document::{Ino, Key, ObjectName, ObjectRef, SessionId};
use crate::store::{Store, StoreError};

/// As many chunks are looked at in one request.
const CHUNKS_LOOKED_AT: usize = 256;

/// Who collects beside a mount waits for no store that takes longer until nothing is lost of what it shows: the end of the
/// mount would wait, too.
const SETTLED_WITHIN: Duration = Duration::from_secs(5);

impl Chunks {
    /// Removes the objects that `session` has put and that nothing names, and returns how many. The session has ended: it
    /// was recovered, or is gone.
    ///
    /// # Errors
    /// The store's, or the object store's.
    pub fn collect_of(&self, session: SessionId) -> Result<u64, ContentError> {
        let Some(objects) = self.objects() else { return Ok(0) };
        let mut found = Vec::new();
        objects.list_of(Some(session), &mut |object| found.push(object.name))?;
        let garbage = unnamed(&*self.shared.store, found)?;
        if garbage.is_empty() {
            return Ok(0);
        }
        if self.shared.store.lost_after_sync() > SETTLED_WITHIN {
            let count = garbage.len();
            log::warn!(
                "session {session} has left {count} objects that nothing names; remove them with lockwood check --collect"
            );
            return Ok(0);
        }
        self.settle()?;
        self.collect_objects(garbage)
    }

    /// Removes those of these objects that nothing names, and returns how many. Whoever found that nothing does has waited
    /// since then until no power cut undoes that ([`settle`](Self::settle)); one may have before.
    ///
    /// # Errors
    /// The store's, or the object store's.
    pub fn collect_objects(&self, names: Vec<String>) -> Result<u64, ContentError> {
        let Some(objects) = self.objects() else { return Ok(0) };
        let garbage = unnamed(&*self.shared.store, names)?;
        garbage.iter().try_for_each(|name| objects.remove(name))?;
        Ok(garbage.len() as u64)
    }

    /// Removes the chunks of an inode that has neither a node nor an orphan document, and returns whether it was so: that of
    /// a file which was removed before its node could say that it has chunks. No inode number is used twice, and chunks are
    /// written while there is a node; so nobody ever speaks of these.
    ///
    /// # Errors
    /// The store's.
    pub fn collect_stray(&self, ino: u64) -> Result<bool, ContentError> {
        let spoken_for = self.shared.store.get_many(&[Key::Node(Ino(ino)), Key::Orphan(Ino(ino))])?;
        let is_stray = spoken_for.iter().all(Option::is_none);
        if is_stray {
            self.remove(ino)?;
        }
        Ok(is_stray)
    }

    /// Returns when no power cut brings back what the store does not show any more, as far as the store can be asked to
    /// wait for that. Before objects are removed which nothing names by what it shows.
    ///
    /// # Errors
    /// The store's.
    pub fn settle(&self) -> Result<(), ContentError> {
        self.shared.store.sync()?;
        std::thread::sleep(self.shared.store.lost_after_sync());
        Ok(())
    }
}

/// Those of these objects that no chunk names, as the engine has it now.
///
/// # Errors
/// The store's.
pub(super) fn unnamed(store: &dyn Store, names: Vec<String>) -> Result<Vec<String>, StoreError> {
    let of_chunk = |name: String| {
        let made = ObjectName::parse(&name)?;
        Some((Key::Chunk(Ino(made.ino), made.index), name))
    };
    // What is no object of ours is nobody's garbage either.
    let (keys, names): (Vec<Key>, Vec<String>) = names.into_iter().filter_map(of_chunk).unzip();
    store.forget(&keys);
    let mut unnamed = Vec::new();
    for (keys, names) in keys.chunks(CHUNKS_LOOKED_AT).zip(names.chunks(CHUNKS_LOOKED_AT)) {
        let found = match store.get_many(keys) {
            // One damaged document keeps nobody from judging by the others.
            Err(StoreError::Damaged { .. }) => keys.iter().map(|key| store.get(key)).collect(),
            found => found?.into_iter().map(Ok).collect::<Vec<_>>(),
        };
        for (name, stored) in names.iter().zip(found) {
            let named = match stored {
                Ok(None) => false,
                // What cannot be told may be named.
                Ok(Some(stored)) => bytes_of(&stored)
                    .ok()
                    .and_then(|bytes| ObjectRef::decode(bytes).ok())
                    .is_none_or(|named| named.object == *name),
                Err(StoreError::Damaged { .. }) => true,
                Err(error) => return Err(error),
            };
            if !named {
                unnamed.push(name.clone());
            }
        }
    }
    Ok(unnamed)
}
