//! Opening a volume in an embedded store: ownership first, then the journal, then the documents.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use super::layout::{self, Layout, LayoutError};
use super::owner::{self, OwnerError, Ownership};
use super::{EmbeddedStore, Tuning, journal};
use crate::document::Volume;
use crate::store::StoreError;

/// Why a volume could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is no store, or not one of ours to read.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Somebody else has it open.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// Its documents cannot be opened.
    #[error("{path}: {source}")]
    Store {
        /// The store.
        path: String,
        /// Why not.
        source: StoreError,
    },
}

/// An open volume, owned by this process.
pub struct OpenVolume {
    /// Where it is.
    pub layout: Layout,
    /// Its documents.
    pub store: Arc<EmbeddedStore>,
    /// What it is.
    pub volume: Volume,
    ownership: Ownership,
}

impl OpenVolume {
    /// Opens the volume at `root`, to be mounted at these places or, without any, for a command.
    ///
    /// # Errors
    /// [`OpenError`] says what to do.
    pub fn open(root: &Path, mount_points: &[PathBuf], tuning: Tuning) -> Result<Self, OpenError> {
        let layout = Layout::existing(root)?;
        let ownership = Ownership::acquire(&layout, mount_points)?;
        let failed = |source| OpenError::Store { path: root.display().to_string(), source };
        let unclean = ownership.unclean_boot_id();
        if unclean.is_some() {
            log::warn!("{}: the process that had it open last died without closing it", root.display());
        }
        // It is of a process that is dead, and on a full disk opening and cleaning up need the room.
        match fs::remove_file(layout.ballast()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                log::warn!("{}: {error}; the room that it takes stays taken", layout.ballast().display());
            }
            _ => {}
        }
        // After a clean end as well: what has been altered since must not reach the database, which trusts its journal.
        let torn_pages = unclean.is_some_and(|boot_id| boot_id != owner::boot_id());
        journal::trim(&layout.db(), torn_pages).map_err(failed)?;
        let store = EmbeddedStore::open(&layout.db(), tuning).map_err(failed)?;
        let volume = layout::volume(&store, root)?;
        Ok(Self { layout, store: Arc::new(store), volume, ownership })
    }

    /// Whether the owner before died without closing the store.
    pub fn crashed(&self) -> bool {
        self.ownership.unclean_boot_id().is_some()
    }

    /// What the owner before left is cleaned up.
    ///
    /// # Errors
    /// The operating system's.
    pub fn recovered(&mut self) -> Result<(), StoreError> {
        if self.crashed() {
            // Else a store that crashes again and again replays ever more of its journal.
            self.store.start_flush()?;
        }
        self.ownership.recovered().map_err(|e| StoreError::io("the owner file", e))
    }

    /// The volume is mounted at `mount_point` no longer, and still is elsewhere.
    ///
    /// # Errors
    /// The operating system's.
    pub fn unmounted(&mut self, mount_point: &Path) -> Result<(), StoreError> {
        self.ownership.unmounted(mount_point).map_err(|e| StoreError::io("the owner file", e))
    }

    /// Closes the volume and gives it up. If closing fails the store is left as after a crash.
    ///
    /// # Errors
    /// The store's.
    pub fn close(self) -> Result<(), StoreError> {
        let Self { store, ownership, .. } = self;
        // The database lets go of its files when the last handle is dropped: before anybody else may own the store.
        match Arc::try_unwrap(store) {
            Ok(store) => store.close()?,
            // Whoever has it as well may still change it, so its journal is needed.
            Err(shared) => shared.flush().map(drop)?,
        }
        ownership.release();
        Ok(())
    }
}
