//! Decoded documents in memory, bounded in bytes.
//!
//! What is hard: a reader that fetched a document from the tables must not put it here after a commit has replaced it.
//! The cache hands the reader a placeholder before it fetches; a commit that writes or deletes the key meanwhile
//! removes the placeholder, and what the reader fetched is then used once and not kept.

use quick_cache::Weighter;
use quick_cache::sync::{Cache, GuardResult};

use crate::document::{Body, Document, Key, Stored};
use crate::store::StoreError;

#[derive(Clone)]
struct ByBytes;

/// What an entry of the cache costs beside its variable parts: the key, the counted document and the cache's own record.
const FIXED_BYTES: u64 = 320;

impl Weighter<Key, Stored> for ByBytes {
    fn weight(&self, key: &Key, stored: &Stored) -> u64 {
        let name = match key {
            Key::Entry(_, name) => name.as_bytes().len(),
            Key::Xattr(_, name) => name.len(),
            _ => 0,
        };
        let document = match &*stored.document {
            Document::Content(content) => content.bytes.len(),
            Document::Xattr(xattr) => xattr.value.len(),
            Document::Node(node) => match &node.body {
                Body::Symlink { target } => target.len(),
                _ => 0,
            },
            _ => 0,
        };
        FIXED_BYTES + (name + document) as u64
    }
}

/// Documents that were read or written lately.
pub struct DocumentCache {
    cache: Cache<Key, Stored, ByBytes>,
}

impl DocumentCache {
    /// A cache of at most about `bytes`.
    pub fn new(bytes: u64) -> Self {
        let items = usize::try_from(bytes / FIXED_BYTES).unwrap_or(usize::MAX);
        Self { cache: Cache::with_weighter(items, bytes, ByBytes) }
    }

    /// The document under `key`, from memory or else by `fetch`. What is absent is not remembered.
    ///
    /// # Errors
    /// What `fetch` returns.
    pub fn get_or_fetch(
        &self,
        key: &Key,
        fetch: impl FnOnce() -> Result<Option<Stored>, StoreError>,
    ) -> Result<Option<Stored>, StoreError> {
        match self.cache.get_value_or_guard(key, None) {
            GuardResult::Value(stored) => Ok(Some(stored)),
            GuardResult::Guard(guard) => {
                let fetched = fetch()?;
                if let Some(stored) = &fetched {
                    // Refused when a commit took the placeholder away; see the module.
                    let _ = guard.insert(stored.clone());
                }
                Ok(fetched)
            }
            GuardResult::Timeout => fetch(),
        }
    }

    /// Called by a commit that wrote `stored`, once the database has it.
    pub fn put(&self, key: &Key, stored: Stored) {
        // A document too heavy to be kept would leave a reader's placeholder standing; removing takes that away too.
        self.cache.remove(key);
        self.cache.insert(key.clone(), stored);
    }

    /// Called by a commit that deleted the document, once the database has it.
    pub fn remove(&self, key: &Key) {
        self.cache.remove(key);
    }
}
