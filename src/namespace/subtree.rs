//! What is below a path: the walk of the strategy `document`, which locks every document of a subtree.
//!
//! Owns the walk. Imports ids of locks and the scans of the store.
//!
//! What is hard: others create, remove and move things during the walk and after it, for only renames take locks, and not
//! before they have walked themselves. So what is found is what was there at some time, document by document, and it is
//! not walked again under the locks, where it could grow old as quickly. What that costs is said in docs/locking.md: a
//! document that came into the subtree too late is not locked, and a rename of it may run beside the one of the subtree.
//! Both commits check the entries of all ancestors of their paths, so one of them starts over, and the tree stays a tree.

use std::collections::BTreeSet;

use crate::document::{Document, FileKind, Ino, Key};
use crate::lock::LockId;
use crate::store::{Range, StoreError, for_each};

use super::{Namespace, NamespaceError, Result};

impl Namespace {
    /// The paths of everything below `top`, whose own path is `path`; none if it is no directory. In no particular order.
    ///
    /// A directory that is moved about during the walk is listed once, where it was met first, so the walk ends.
    pub(super) fn below(&self, top: Ino, path: &LockId) -> Result<Vec<LockId>> {
        let mut found = Vec::new();
        let mut met = BTreeSet::from([top]);
        let mut to_list = vec![(top, path.clone())];
        while let Some((directory, path)) = to_list.pop() {
            for_each::<_, NamespaceError>(&*self.store, Range::Entries(directory), |key, stored| {
                let (Key::Entry(_, name), Document::Entry(entry)) = (&key, &*stored?.document) else {
                    let cause = "it is among the entries of a directory".to_owned();
                    return Err(StoreError::Damaged { key: key.to_string(), cause }.into());
                };
                let id = path.join(name.as_bytes())?;
                if entry.kind == FileKind::Directory && met.insert(entry.ino) {
                    to_list.push((entry.ino, id.clone()));
                }
                found.push(id);
                Ok(())
            })?;
        }
        Ok(found)
    }
}
