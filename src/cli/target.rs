//! What a verb is pointed at: a mount, a store that is or is not mounted, or a volume on a shared engine.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs, io};

use super::place::{PATIENCE, Place};
use super::{Failure, lock_servers};
use crate::content::{Chunks, Contents};
use crate::document::Volume;
use crate::fuse::attach;
use crate::fuse::control::{self, Status};
use crate::fuse::mount::FS_TYPE;
use crate::lock::shared::{Settings as LockSettings, lock_documents};
use crate::lock::{LockDocument, LockError, redlock};
use crate::mounts::{self, Daemon, MountEntry};
use crate::namespace::{self, AdvisoryLocks, Outsider};
use crate::shell::quoted;
use crate::store::Store;
use crate::store::cells::documents::cells_of;
use crate::store::embedded::layout::{Layout, LayoutError};
use crate::store::embedded::owner;
use crate::store::engine::{self, EngineOptions, is_engine};

/// A mount or a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A mounted tree: its mount point.
    Mount(PathBuf),
    /// A store that nobody has mounted.
    Store(PathBuf),
    /// A volume that many hosts share, whoever has it mounted.
    Shared(SharedVolume),
}

/// A volume on a shared engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SharedVolume(Place);

impl Target {
    /// What `path` is. A store that is mounted counts as its mount.
    pub(super) fn find(path: &Path) -> Result<Self, Failure> {
        let place = Place::parse(path.as_os_str())?;
        if matches!(place, Place::Engine { .. }) {
            return Ok(Self::Shared(SharedVolume(place)));
        }
        if let Some(mount_point) = mount_of(path)? {
            return Ok(Self::Mount(mount_point));
        }
        let layout = Layout::existing(path).map_err(|error| -> Failure {
            match error {
                LayoutError::Missing(_) | LayoutError::NotAStore { .. } => {
                    format!("{}: neither a mount of lockwood nor a store ({error})", path.display()).into()
                }
                other => other.into(),
            }
        })?;
        let table = mounts::own()?;
        let mounted = |path: &PathBuf| table.iter().any(|m| m.mount_point == *path);
        Ok(match owner::current(&layout).and_then(|owner| owner.mount_points().find(mounted)) {
            Some(mount_point) => {
                served(&mount_point)?;
                Self::Mount(mount_point)
            }
            None => {
                refuse_anothers(&layout)?;
                Self::Store(path.to_owned())
            }
        })
    }
}

impl Target {
    /// The volume, if it is one that many hosts share, named by its URL or by a mount of it.
    pub(super) fn shared(&self) -> Result<Option<SharedVolume>, Failure> {
        match self {
            Self::Shared(volume) => Ok(Some(volume.clone())),
            Self::Mount(mount_point) => SharedVolume::mounted_at(mount_point),
            Self::Store(_) => Ok(None),
        }
    }
}

impl SharedVolume {
    /// What is mounted at a mount point, if that is a volume that many hosts share.
    fn mounted_at(mount_point: &Path) -> Result<Option<Self>, Failure> {
        let status = read_control(mount_point, "status")?.ok_or_else(|| no_control(mount_point, "status"))?;
        let Status { store, .. } = serde_json::from_str(&status)?;
        Ok(is_engine(&store).then(|| Place::parse(store.as_ref())).transpose()?.map(Self))
    }

    /// Opens the volume, as one of many who read it.
    pub(super) fn open(&self) -> Result<(Arc<dyn Store>, Volume), Failure> {
        let Place::Engine { url, password } = &self.0 else { return Err("no URL".into()) };
        let options = EngineOptions { password: password.clone(), allow_volatile: true, patience: PATIENCE };
        Ok(engine::open(url, options)?)
    }

    /// The lock documents of this moment, in the global order. Damaged ones are named on standard error.
    pub(super) fn locks(&self) -> Result<Vec<LockDocument>, Failure> {
        let (store, volume) = self.open()?;
        let all = match namespace::lock_servers(&*store)? {
            Some(servers) => redlock::lock_documents(&*lock_servers::parse_to_look(&servers)?, &volume.id)?,
            None => lock_documents(&*cells_of(&store), LockSettings::default().id_bytes_max)?,
        };
        Ok(readable(all))
    }

    /// The advisory locks of this moment.
    pub(super) fn advisory(&self) -> Result<Vec<AdvisoryLocks>, Failure> {
        Ok(namespace::advisory_of_all(&*self.open()?.0)?)
    }

    /// Somebody who can fence its sessions and clean up after them.
    pub(super) fn outsider(&self) -> Result<Outsider, Failure> {
        let (store, volume) = self.open()?;
        let servers = namespace::lock_servers(&*store)?;
        let servers = servers.map(|servers| lock_servers::parse_to_look(&servers)).transpose()?;
        let contents = Contents::shared(Arc::clone(&store), &volume, PATIENCE).unwrap_or_else(|error| {
            // Locks must come free whatever has become of the objects.
            eprintln!(
                "lockwood: {error}; what is left there is for `lockwood check {} --collect`",
                quoted(&self.to_string())
            );
            Chunks::new(Arc::clone(&store)).into()
        });
        Ok(Outsider::new(store, &volume, contents, servers, owner::boot_id())?)
    }
}

/// Without those that are damaged, which are named on standard error.
pub(super) fn readable(all: Vec<Result<LockDocument, LockError>>) -> Vec<LockDocument> {
    let told = |document: Result<LockDocument, _>| document.inspect_err(|e| eprintln!("lockwood: {e}")).ok();
    all.into_iter().filter_map(told).collect()
}

impl fmt::Display for SharedVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Root opens no store whose documents are another user's: even to be read they are opened with files that are made
/// anew, and this user could not open those any more. One that root has opened before is spoiled already, and where the host
/// gives root's files to another user (NFS with root_squash) all of them are its own.
pub(super) fn refuse_anothers(layout: &Layout) -> Result<(), Failure> {
    // What is not there is named by whoever opens it.
    let owner = fs::metadata(layout.db()).map_or(0, |db| db.uid());
    if owner == 0 || !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let is_roots =
        |entry: io::Result<fs::DirEntry>| entry.and_then(|e| e.metadata()).is_ok_and(|m| m.uid() == 0);
    if fs::read_dir(layout.db()).is_ok_and(|mut entries| entries.any(is_roots))
        || owner_of_new(layout.root()) == Some(owner)
    {
        return Ok(());
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let has_number = |line: &&str| line.split(':').nth(2) == Some(owner.to_string().as_str());
    let named = users.lines().find(has_number).and_then(|line| line.split(':').next());
    // As sudo takes one who has no name.
    let name = named.map_or_else(|| format!("#{owner}"), str::to_owned);
    Err(format!(
        "{} belongs to user {name}, who could not open any more what root leaves in it; run this as that user: \
         sudo -u '{name}' lockwood ...; or make it root's once and for all: chown -R root {}",
        layout.root().display(),
        quoted(layout.root())
    )
    .into())
}

/// Whose a file is that this process makes in a directory; none if it can make none.
fn owner_of_new(directory: &Path) -> Option<u32> {
    let path = directory.join(format!(".owner-{}", std::process::id()));
    let owner = File::create_new(&path).and_then(|file| file.metadata()).map(|made| made.uid());
    fs::remove_file(&path).and(owner).ok()
}

/// The mount point of the mount of ours that `path` is on, if it is on one.
pub(super) fn mount_of(path: &Path) -> Result<Option<PathBuf>, Failure> {
    served(&resolved(path)?)
}

/// `path` without symbolic links.
pub(super) fn resolved(path: &Path) -> Result<PathBuf, Failure> {
    let named = |e: io::Error| -> Failure { format!("{}: {e}", path.display()).into() };
    // What is below a mount only its daemon can resolve, which must be there for that.
    served(&std::path::absolute(path).map_err(named)?)?;
    path.canonicalize().map_err(|e| match e.raw_os_error() {
        Some(libc::ENOTCONN) => dead(path),
        _ => named(e),
    })
}

/// The mount point of the mount of ours that this path is on. Its daemon has answered.
fn served(absolute: &Path) -> Result<Option<PathBuf>, Failure> {
    let ours = mounts::above(absolute)?.filter(|m| m.fs_type == FS_TYPE);
    let Some(MountEntry { mount_point, .. }) = ours else {
        return Ok(None);
    };
    if is_dead(&mount_point)? { Err(dead(&mount_point)) } else { Ok(Some(mount_point)) }
}

/// Whether the daemon of a mount has died.
///
/// # Errors
/// When it is there and does not answer.
pub(super) fn is_dead(mount_point: &Path) -> Result<bool, Failure> {
    match mounts::daemon(mount_point, mounts::ANSWER_WAIT)? {
        Daemon::Answers => Ok(false),
        Daemon::HasDied => Ok(true),
        Daemon::IsSilent => Err(format!(
            "{}: the daemon of this mount has not answered for {} s: it is stopped, or all its threads wait for its \
             store; let it go on, or take the mount away with: {}",
            mount_point.display(),
            mounts::ANSWER_WAIT.as_secs(),
            attach::ways_to_take_away(mount_point)
        )
        .into()),
    }
}

fn dead(path: &Path) -> Failure {
    format!(
        "{}: the daemon of this mount has died; take it away with: lockwood umount {}",
        path.display(),
        quoted(path)
    )
    .into()
}

/// The path of a control file.
pub(super) fn control_path(mount_point: &Path, name: &str) -> PathBuf {
    mount_point.join(control::NAME).join(name)
}

/// A daemon that lacks a control file.
pub(super) fn no_control(mount_point: &Path, name: &str) -> Failure {
    format!(
        "{} is not there: the daemon of this mount is of another version; unmount and mount again",
        control_path(mount_point, name).display()
    )
    .into()
}

/// What a control file of a mount shows; none if it is not there.
pub(super) fn read_control(mount_point: &Path, name: &str) -> Result<Option<String>, Failure> {
    let path = control_path(mount_point, name);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            Err(format!("{}: {e}; only root and the user who mounted may look", path.display()).into())
        }
        Err(e) => Err(format!("{}: {e}", path.display()).into()),
    }
}
