//! Hard links.

use crate::document::{Document, Entry, FileKind, Ino, Key, Name, NodeDelta};
use crate::namespace::{Found, Namespace, NamespaceError, Result};
use crate::rules::{Rule, holds};
use crate::store::Commit;

/// As many names an inode may have; the limit of the kernel's `st_nlink` as programs of 32 bits see it.
const NLINK_MAX: u32 = i32::MAX as u32;

impl Namespace {
    /// Gives `ino` the further name `name` in `parent`.
    ///
    /// # Errors
    /// `Exists`; `NotPermitted` for a directory; `NotFound` if the inode has lost its last name, or the parent is gone.
    pub fn link(&self, ino: Ino, parent: Ino, name: &Name) -> Result<Found> {
        let key = Key::Entry(parent, name.clone());
        self.retry(|| {
            let (version, node) = self.live_node(ino)?;
            if node.kind() == FileKind::Directory {
                return Err(NamespaceError::NotPermitted("a directory has one name only"));
            }
            if node.nlink == 0 {
                return Err(NamespaceError::NotFound);
            }
            if node.nlink >= NLINK_MAX {
                return Err(NamespaceError::TooManyLinks);
            }
            let (_, directory) = self.live_node(parent)?;
            if directory.directory().is_none() {
                return Err(NamespaceError::NotADirectory);
            }
            if self.entry(&key)?.is_some() {
                return Err(NamespaceError::Exists);
            }
            let now = self.now();
            let mut linked = (*node).clone();
            linked.nlink += 1;
            linked.ctime = now;
            let kind = node.kind();
            // The node is checked, not merged: its last name may be going at this moment.
            let mut commit = Commit::new()
                .absent(key.clone())
                .put(key.clone(), Document::Entry(Entry { ino, kind }))
                .put(Key::Node(ino), Document::Node(linked.clone()))
                .merge(Key::Node(parent), NodeDelta::entries_changed(1, 0, now));
            if holds(Rule::LinkChecksVersion) {
                commit = commit.at(Key::Node(ino), version);
            }
            let version = self.commit(&commit)?;
            let unsaid = self.unsaid(ino);
            Ok((ino, self.with_unsaid(self.node_after(ino, (version, linked)), unsaid)))
        })
    }
}
