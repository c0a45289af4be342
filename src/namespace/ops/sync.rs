//! fsync: what was acknowledged survives a power cut.

use crate::document::Ino;
use crate::namespace::{Namespace, Result};

impl Namespace {
    /// Makes a file durable: its bytes first, then the documents that speak of them.
    ///
    /// # Errors
    /// When the disk fails. What is on it is then unknown, and the store takes no further change.
    pub fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        let backing = {
            let pin = self.inodes.pin(ino);
            let io = pin.io.read();
            io.backing.clone()
        };
        if let Some(file) = backing {
            file.sync(data_only)?;
        } else if let Some(file) = self.unopened_backing(ino)? {
            file.sync(data_only)?;
        }
        Ok(self.store.sync()?)
    }

    /// The backing file of an inode that this mount has not touched since it was pinned; an earlier open may have.
    fn unopened_backing(&self, ino: Ino) -> Result<Option<std::sync::Arc<crate::content::BackingFile>>> {
        let node = self.node_or_dead(ino)?;
        if crate::namespace::collect::has_backing(&node) { Ok(self.backing.find(ino.0)?) } else { Ok(None) }
    }

    /// Makes all changes of names and attributes durable.
    ///
    /// # Errors
    /// As [`Namespace::fsync`].
    pub fn sync(&self) -> Result<()> {
        Ok(self.store.sync()?)
    }
}
