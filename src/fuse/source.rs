//! What is mounted: the store in a directory, which this process then owns, or a volume that many hosts share. Owns the
//! differences between the two at the beginning and at the end of a mount.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::descriptors::Shares;
use super::mount::MountError;
use crate::content::{BackingFiles, Contents};
use crate::document::Volume;
use crate::namespace::{Namespace, SessionInfo, Settings};
use crate::store::cached::CachedStore;
use crate::store::embedded::Tuning;
use crate::store::embedded::open::OpenVolume;
use crate::store::engine::{self, EngineOptions};
use crate::store::redis::servers::Servers;
use crate::store::{Store, StoreError};

/// What to mount.
#[derive(Clone, Debug)]
pub enum Source {
    /// A store in this directory.
    Directory(PathBuf),
    /// A volume on a shared engine.
    Engine {
        /// Where, without the password.
        url: String,
        /// How it is asked.
        options: EngineOptions,
        /// Nothing that others may have changed is remembered for longer.
        cache_ttl: Duration,
        /// The servers that keep the locks; none if the engine does.
        lock_servers: Option<Arc<Servers>>,
    },
}

/// For how long documents are remembered here, and what the kernel makes of them there. The one time comes after the
/// other: the kernel may be told at the end of the first. A tenth of all is for the way.
fn shares(cache_ttl: Duration) -> [Duration; 2] {
    [cache_ttl / 2, cache_ttl * 2 / 5]
}

/// A source that is open.
pub(super) enum OpenSource {
    Owned {
        volume: OpenVolume,
        backing: BackingFiles,
    },
    Shared {
        store: Arc<CachedStore>,
        volume: Volume,
        contents: Contents,
        kernel_ttl: Duration,
        lock_servers: Option<Arc<Servers>>,
    },
}

impl Source {
    /// The directory that no mount point may cover.
    pub(super) fn directory(&self) -> Option<&Path> {
        match self {
            Self::Directory(path) => Some(path),
            Self::Engine { .. } => None,
        }
    }

    pub(super) fn open(&self, mount_points: &[PathBuf], tuning: Tuning) -> Result<OpenSource, MountError> {
        Ok(match self {
            Self::Directory(path) => {
                let shares = Shares::own();
                let tuning = Tuning { tables_open: shares.tables, ..tuning };
                let volume = OpenVolume::open(path, mount_points, tuning)?;
                let backing = BackingFiles::open(&volume.layout.content(), shares.backing)?;
                OpenSource::Owned { volume, backing }
            }
            Self::Engine { url, options, cache_ttl, lock_servers } => {
                let (engine, volume) = engine::open(url, options.clone())?;
                let [memory_ttl, kernel_ttl] = shares(*cache_ttl);
                let store = Arc::new(CachedStore::new(engine, tuning.document_cache_bytes, memory_ttl)?);
                let contents = Contents::shared(Arc::clone(&store) as _, &volume, options.patience)?;
                OpenSource::Shared { store, volume, contents, kernel_ttl, lock_servers: lock_servers.clone() }
            }
        })
    }
}

impl OpenSource {
    pub(super) fn volume(&self) -> &Volume {
        match self {
            Self::Owned { volume, .. } => &volume.volume,
            Self::Shared { volume, .. } => volume,
        }
    }

    /// For how long the kernel may keep what others may have changed; none if nobody else changes anything.
    pub(super) fn kernel_ttl(&self) -> Option<Duration> {
        match self {
            Self::Owned { .. } => None,
            Self::Shared { kernel_ttl, .. } => Some(*kernel_ttl),
        }
    }

    /// Begins the first session.
    pub(super) fn begin(&self, settings: Settings, info: SessionInfo) -> Result<Namespace, MountError> {
        Ok(match self {
            Self::Owned { volume, backing } => {
                Namespace::begin(volume.store.clone(), backing.clone(), settings, info)?
            }
            Self::Shared { store, contents, lock_servers, .. } => Namespace::join_with_locks_at(
                lock_servers.clone(),
                Arc::clone(store) as Arc<dyn Store>,
                contents.clone(),
                settings,
                info,
            )?,
        })
    }

    /// Whether it has to be recovered before anything else.
    pub(super) fn crashed(&self) -> bool {
        matches!(self, Self::Owned { volume, .. } if volume.crashed())
    }

    /// What the owner before left is cleaned up.
    pub(super) fn recovered(&mut self) -> Result<(), StoreError> {
        match self {
            Self::Owned { volume, .. } => volume.recovered(),
            Self::Shared { .. } => Ok(()),
        }
    }

    /// It is mounted at `mount_point` no longer, and still is elsewhere.
    pub(super) fn unmounted(&mut self, mount_point: &Path) -> Result<(), StoreError> {
        match self {
            Self::Owned { volume, .. } => volume.unmounted(mount_point),
            Self::Shared { .. } => Ok(()),
        }
    }

    pub(super) fn close(self) -> Result<(), StoreError> {
        match self {
            Self::Owned { volume, .. } => volume.close(),
            // Nobody answers: what was to be synced has failed before, or was acknowledged as it was.
            Self::Shared { store, .. } if store.outage().is_some() => Ok(()),
            Self::Shared { store, .. } => store.sync(),
        }
    }
}
