//! Decoded documents in memory, bounded in bytes. That there is none is remembered as well: a name that is about to be made
//! is looked up by the kernel, by the plan and by the check of the commit.
//!
//! What is hard: a reader that fetched a document from the tables must not put it here after a commit has replaced it.
//! The cache hands the reader a placeholder before it fetches, which a commit replaces like anything else by what it has
//! written; what the reader fetched is then used once and not kept. Nor is it kept if a commit was under way all the time
//! ([`Fetched::lasting`]); who looks while one is does not wait for another's fetch either, for he would have to fetch as
//! well afterwards, one by one.
//! What stands here while a commit is under way is what was there before it, and may be read until the commit shows what is
//! there after it ([`instants`](super::instants)).

use std::time::Duration;

use quick_cache::Weighter;
use quick_cache::sync::{Cache, GuardResult};

use crate::document::{Body, Document, Key, Stored};
use crate::store::StoreError;

/// A document, or that there is none.
type Remembered = Option<Stored>;

#[derive(Clone)]
struct ByBytes;

/// What an entry of the cache costs beside its variable parts: the key, the counted document and the cache's own record.
pub(in crate::store) const FIXED_BYTES: u64 = 320;

impl Weighter<Key, Remembered> for ByBytes {
    fn weight(&self, key: &Key, remembered: &Remembered) -> u64 {
        weight_bytes(key, remembered.as_ref())
    }
}

/// About how much memory it takes to remember what stands under a key.
pub(in crate::store) fn weight_bytes(key: &Key, remembered: Option<&Stored>) -> u64 {
    let name = match key {
        Key::Entry(_, name) => name.as_bytes().len(),
        Key::Xattr(_, name) => name.len(),
        _ => 0,
    };
    let document = match remembered.map(|stored| &*stored.document) {
        Some(Document::Content(content)) => content.bytes.len(),
        Some(Document::Chunk(chunk)) => chunk.bytes.len(),
        Some(Document::Xattr(xattr)) => xattr.value.len(),
        Some(Document::Node(node)) => match &node.body {
            Body::Symlink { target } => target.len(),
            _ => 0,
        },
        _ => 0,
    };
    FIXED_BYTES + (name + document) as u64
}

/// What the tables had.
pub struct Fetched {
    /// The document, if there is one.
    pub found: Option<Stored>,
    /// Whether no commit was under way that may have changed it: only then it may be kept.
    pub lasting: bool,
}

/// Documents that were read or written lately.
pub struct DocumentCache {
    cache: Cache<Key, Remembered, ByBytes>,
    /// What weighs more may be refused: a shard keeps nothing that takes all of it.
    heavy_bytes: u64,
}

impl DocumentCache {
    /// A cache of at most about `bytes`.
    pub fn new(bytes: u64) -> Self {
        let items = usize::try_from(bytes / FIXED_BYTES).unwrap_or(usize::MAX);
        let cache = Cache::with_weighter(items, bytes, ByBytes);
        Self { heavy_bytes: cache.shard_capacity() / 2, cache }
    }

    /// The document under `key`, from memory or else by `fetch`; if `waits`, by that of somebody who is about it already.
    ///
    /// # Errors
    /// What `fetch` returns.
    pub fn get_or_fetch(
        &self,
        key: &Key,
        waits: bool,
        fetch: impl FnOnce() -> Result<Fetched, StoreError>,
    ) -> Result<Option<Stored>, StoreError> {
        let longest = (!waits).then_some(Duration::ZERO);
        match self.cache.get_value_or_guard(key, longest) {
            GuardResult::Value(remembered) => Ok(remembered),
            GuardResult::Guard(guard) => {
                let Fetched { found, lasting } = fetch()?;
                if lasting {
                    // Refused when a commit has replaced the placeholder; see the module.
                    let _ = guard.insert(found.clone());
                }
                Ok(found)
            }
            GuardResult::Timeout => Ok(fetch()?.found),
        }
    }

    /// Called by a commit, once the database has what stands under the key from now on.
    pub fn put(&self, key: &Key, now: Option<Stored>) {
        // If it is refused, a reader's placeholder is left standing.
        if weight_bytes(key, now.as_ref()) > self.heavy_bytes {
            self.cache.remove(key);
        }
        self.cache.insert(key.clone(), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Content, Ino, Version};

    const KEY: Key = Key::Content(Ino(1));

    fn content(version: u64, bytes: usize) -> Option<Stored> {
        let content = Content { bytes: vec![0; bytes].into() };
        Some(Stored { version: Version(version), document: Document::Content(content).into() })
    }

    fn version(stored: Option<Stored>) -> Option<u64> {
        stored.map(|stored| stored.version.0)
    }

    /// What a look finds; fetched is version 9.
    fn look(cache: &DocumentCache) -> Option<u64> {
        let fetch = || Ok(Fetched { found: content(9, 1), lasting: false });
        version(cache.get_or_fetch(&KEY, true, fetch).unwrap())
    }

    #[test]
    fn what_was_fetched_is_not_kept_once_a_commit_has_replaced_it() {
        const CAPACITY: usize = 1 << 20;
        let light = [content(2, 1), None];
        let heavy = [content(2, CAPACITY), content(2, CAPACITY / 20)];
        for lasting in [true, false] {
            for now in light.iter().chain(&heavy) {
                let cache = DocumentCache::new(CAPACITY as u64);
                let fetch = || {
                    cache.put(&KEY, now.clone());
                    Ok(Fetched { found: content(1, 1), lasting })
                };
                assert_eq!(version(cache.get_or_fetch(&KEY, true, fetch).unwrap()), Some(1));
                let found = look(&cache);
                assert!(
                    found == version(now.clone()) || (found == Some(9) && heavy.contains(now)),
                    "found {found:?}"
                );
            }
        }
    }

    #[test]
    fn what_was_fetched_is_kept_if_it_lasts() {
        let cache = DocumentCache::new(1 << 20);
        for (lasting, kept) in [(false, 9), (true, 1)] {
            let fetch = || Ok(Fetched { found: content(1, 1), lasting });
            cache.get_or_fetch(&KEY, true, fetch).unwrap();
            assert_eq!(look(&cache), Some(kept));
        }
    }
}
