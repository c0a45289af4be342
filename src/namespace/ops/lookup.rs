//! Looking up names and attributes.

use crate::content::{BackingFiles, Space};
use crate::document::{Body, Ino, Key, Name};
use crate::namespace::{Found, Namespace, NamespaceError, Result};
use crate::store::NodeRef;

impl Namespace {
    /// What `name` in the directory `parent` stands for.
    ///
    /// # Errors
    /// `NotFound`; `NotADirectory` if the parent is none.
    pub fn lookup(&self, parent: Ino, name: &Name) -> Result<Found> {
        self.retry(|| {
            let key = Key::Entry(parent, name.clone());
            if self.is_shared() {
                // One request for both, to be remembered: a name that is not there is mostly to be made, in the directory.
                self.store.get_many(&[key.clone(), Key::Node(parent)])?;
            }
            match self.entry(&key)? {
                Some((_, entry)) => {
                    let unsaid = self.unsaid(entry.ino);
                    let (_, node) = self.target(&key, entry)?;
                    Ok((entry.ino, self.with_unsaid(node, unsaid)))
                }
                None if self.node_or_dead(parent)?.directory().is_none() => {
                    Err(NamespaceError::NotADirectory)
                }
                None => Err(NamespaceError::NotFound),
            }
        })
    }

    /// The attributes of `ino`, also of one that was removed while somebody held it.
    ///
    /// # Errors
    /// `NotFound` if there never was one, or it has been forgotten, or only other hosts have it open.
    pub fn attributes(&self, ino: Ino) -> Result<NodeRef> {
        let unsaid = self.unsaid(ino);
        let node = self.node_or_dead(ino)?;
        self.refuse_others(ino, &node)?;
        Ok(self.with_unsaid(node, unsaid))
    }

    /// The directory that `directory` is in; of the root itself.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`.
    pub fn parent(&self, directory: Ino) -> Result<Found> {
        let node = self.node_or_dead(directory)?;
        let parent = node.directory().ok_or(NamespaceError::NotADirectory)?.parent;
        Ok((parent, self.node_or_dead(parent)?))
    }

    /// Where a symbolic link points.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if it is no symbolic link.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        match &self.node_or_dead(ino)?.body {
            Body::Symlink { target } => Ok(target.to_vec()),
            _ => Err(NamespaceError::Invalid("not a symbolic link")),
        }
    }

    /// The room for more: less what the store keeps free for its own work.
    ///
    /// # Errors
    /// The host's.
    pub fn space(&self) -> Result<Space> {
        let mut space = self.contents.space()?;
        let is_taken = self.contents.backing().is_some_and(BackingFiles::is_room_kept);
        let reserved =
            if is_taken { 0 } else { self.store.reserve_bytes().div_ceil(space.block_size.max(1)) };
        space.blocks_available = space.blocks_available.saturating_sub(reserved);
        Ok(space)
    }

    /// The kernel knows the inode no longer, as far as this mount goes.
    pub fn forget(&self, ino: Ino) {
        if self.inodes.dead(ino).is_some() && !self.peers.others_know(self.session, ino) {
            self.inodes.forget(ino);
        }
    }
}
