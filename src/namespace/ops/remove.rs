//! Removing names: unlink and rmdir, and what goes with the last name of an inode.

use crate::document::{Document, Entry, FileKind, Ino, Key, Name, NodeDelta, Orphan, Timestamp, Version};
use crate::namespace::collect::{delete_inode, is_apart};
use crate::namespace::inodes::Life;
use crate::namespace::{Namespace, NamespaceError, Result};
use crate::rules::{Rule, holds};
use crate::store::{Commit, NodeRef};

/// What the commit that takes a name must be followed by.
pub(super) enum After {
    /// The inode has other names, or was a directory.
    Nothing,
    /// The inode is open and has no name left: the last close collects it.
    Orphaned,
    /// The inode is gone; its bytes apart from it are to be removed.
    RemoveContent,
}

impl Namespace {
    /// Removes a name that is no directory.
    ///
    /// # Errors
    /// `NotFound`; `IsADirectory`.
    pub fn unlink(&self, parent: Ino, name: &Name) -> Result<()> {
        let key = Key::Entry(parent, name.clone());
        self.retry(|| {
            let (entry_version, entry) = self.existing_entry(parent, &key)?;
            if entry.kind == FileKind::Directory {
                return Err(NamespaceError::IsADirectory);
            }
            let pin = self.inodes.pin(entry.ino);
            let mut life = pin.life.lock();
            let (version, node) = self.target(&key, entry)?;
            let now = self.now();
            let commit = Commit::new()
                .at(key.clone(), entry_version)
                .delete(key.clone())
                .merge(Key::Node(parent), NodeDelta::entries_changed(-1, 0, now));
            let (commit, after) = self.drop_name(entry.ino, version, &node, &life, now, commit)?;
            self.commit(&commit)?;
            self.name_dropped(entry.ino, &mut life, &after);
            Ok(())
        })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`; `NotADirectory`; `NotEmpty`.
    pub fn rmdir(&self, parent: Ino, name: &Name) -> Result<()> {
        self.rmdir_taken_for(parent, name, None)
    }

    /// Removes an empty directory by a name that is taken to lead to this one.
    ///
    /// # Errors
    /// Those of [`Namespace::rmdir`]; `Stale` if it leads to another and this one is somewhere else.
    pub fn rmdir_taken_for(&self, parent: Ino, name: &Name, taken_for: Option<Ino>) -> Result<()> {
        let key = Key::Entry(parent, name.clone());
        self.retry(|| {
            let (entry_version, entry) = self.existing_entry(parent, &key)?;
            if let Some(meant) = taken_for {
                self.refuse_instead(&key, meant, Some(entry.ino))?;
            }
            if entry.kind != FileKind::Directory {
                return Err(NamespaceError::NotADirectory);
            }
            let (version, node) = self.target(&key, entry)?;
            let commit = Commit::new()
                .at(key.clone(), entry_version)
                .delete(key.clone())
                .merge(Key::Node(parent), NodeDelta::entries_changed(-1, -1, self.now()));
            let commit = self.drop_directory(entry.ino, version, &node, commit)?;
            self.commit(&commit)?;
            Ok(())
        })
    }

    /// Refuses to remove or replace what is `there` under `key`, where a directory was `meant` that is somewhere else:
    /// whoever goes by names would take that for dead.
    pub(super) fn refuse_instead(&self, key: &Key, meant: Ino, there: Option<Ino>) -> Result<()> {
        if there == Some(meant) {
            return Ok(());
        }
        // What is remembered here may be what is old.
        self.store.forget(&[key.clone(), Key::Node(meant)]);
        let is_alive = self.store.node(meant)?.is_some_and(|(_, node)| node.nlink > 0);
        if is_alive { Err(NamespaceError::Stale) } else { Ok(()) }
    }

    pub(super) fn existing_entry(&self, parent: Ino, key: &Key) -> Result<(Version, Entry)> {
        match self.entry(key)? {
            Some(found) => Ok(found),
            None if self.node_or_dead(parent)?.directory().is_none() => Err(NamespaceError::NotADirectory),
            None => Err(NamespaceError::NotFound),
        }
    }

    /// Adds to `commit` what becomes of an inode that is no directory and loses a name. The caller holds its `life` from
    /// before it read the node until after the commit.
    pub(super) fn drop_name(
        &self,
        ino: Ino,
        version: Version,
        node: &NodeRef,
        life: &Life,
        now: Timestamp,
        commit: Commit,
    ) -> Result<(Commit, After)> {
        let commit =
            if holds(Rule::UnlinkChecksVersion) { commit.at(Key::Node(ino), version) } else { commit };
        if node.nlink <= 1 && life.opens == 0 {
            self.inodes.bury(ino, node.removed());
            let commit = delete_inode(&*self.store, ino, node, commit)?;
            if !is_apart(node) {
                return Ok((commit, After::Nothing));
            }
            return Ok((commit.put(Key::Orphan(ino), self.orphan()), After::RemoveContent));
        }
        let mut left = (**node).clone();
        left.nlink = left.nlink.saturating_sub(1);
        left.ctime = now;
        let orphaned = left.nlink == 0;
        let commit = commit.put(Key::Node(ino), Document::Node(left));
        if orphaned {
            Ok((commit.put(Key::Orphan(ino), self.orphan()), After::Orphaned))
        } else {
            Ok((commit, After::Nothing))
        }
    }

    /// Called when the commit of [`Namespace::drop_name`] has taken effect.
    pub(super) fn name_dropped(&self, ino: Ino, life: &mut Life, after: &After) {
        match after {
            After::Orphaned => life.orphaned = true,
            After::RemoveContent => self.collector.remove_content(ino),
            After::Nothing => {}
        }
    }

    /// Adds to `commit` the removal of a directory that must be empty. Its version is checked: a create that slips in
    /// changes it.
    pub(super) fn drop_directory(
        &self,
        ino: Ino,
        version: Version,
        node: &NodeRef,
        commit: Commit,
    ) -> Result<Commit> {
        match node.directory() {
            Some(directory) if directory.children == 0 => {
                // Before it is gone: who has looked it up asks for its attributes next, and must not find nothing.
                self.inodes.bury(ino, node.removed());
                let checked = holds(Rule::RmdirChecksVersion);
                let commit = if checked { commit.at(Key::Node(ino), version) } else { commit };
                delete_inode(&*self.store, ino, node, commit)
            }
            Some(_) => Err(NamespaceError::NotEmpty),
            None => Err(NamespaceError::NotADirectory),
        }
    }

    fn orphan(&self) -> Document {
        Document::Orphan(Orphan { session: self.session })
    }
}
