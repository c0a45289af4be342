//! fsync: what was acknowledged survives a power cut.

use crate::content::ContentError;
use crate::document::Ino;
use crate::namespace::collect::is_apart;
use crate::namespace::{Namespace, Result};

impl Namespace {
    /// Makes a file durable: its bytes first, then the documents that speak of them. Whoever has it open then asks what is
    /// lost of it ([`Namespace::lost`]).
    ///
    /// # Errors
    /// `BytesLost`. When the disk fails. What is on it is then unknown, and the store takes no further change.
    pub fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        self.flush(ino)?;
        let open = {
            let pin = self.inodes.pin(ino);
            let io = pin.io.read();
            io.file.clone()
        };
        let node = self.node_or_dead(ino)?;
        let file = match open {
            Some(file) => Some(file),
            // Not used since it was opened, but perhaps written before that.
            None if is_apart(&node) => self.contents.find(ino.0)?,
            None => None,
        };
        if let Some(file) = file {
            file.sync(data_only).inspect_err(|error| self.sync_failed(error))?;
        }
        self.sync()
    }

    /// Makes all changes of names and attributes durable. The documents become durable all together, those of other files
    /// too, so the backing files that they name must be found again: their names go first. Chunks are documents themselves.
    ///
    /// # Errors
    /// As [`Namespace::fsync`].
    pub fn sync(&self) -> Result<()> {
        self.contents.sync_names().inspect_err(|error| self.sync_failed(error))?;
        let synced = self.store.sync();
        self.write_back.store_has_lost(self.store.losses());
        Ok(synced?)
    }

    /// Stops the store: after a sync that failed nobody knows what is on the disk. One for which nothing could be opened has
    /// not asked the disk, and can be tried again.
    pub(super) fn sync_failed(&self, error: &ContentError) {
        if !error.is_of_descriptors() {
            self.store.stop(&error.to_string());
        }
    }
}
