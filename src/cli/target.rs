//! What a verb is pointed at: a mount, or a store that is or is not mounted.

use std::io;
use std::path::{Path, PathBuf};

use super::Failure;
use crate::fuse::control;
use crate::fuse::mount::FS_TYPE;
use crate::mounts;
use crate::store::embedded::layout::Layout;
use crate::store::embedded::owner;

/// A mount or a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A mounted tree: its mount point.
    Mount(PathBuf),
    /// A store that nobody has mounted.
    Store(PathBuf),
}

impl Target {
    /// What `path` is. A store that is mounted counts as its mount.
    pub(super) fn find(path: &Path) -> Result<Self, Failure> {
        if let Some(mount_point) = mount_of(path)? {
            return Ok(Self::Mount(mount_point));
        }
        let layout = Layout::existing(path).map_err(|error| {
            format!("{}: neither a mount of lockwood nor a store ({error})", path.display())
        })?;
        let table = mounts::own()?;
        let mounted = |path: &PathBuf| table.iter().any(|m| m.mount_point == *path);
        Ok(match owner::current(&layout).and_then(|owner| owner.mount_points().find(mounted)) {
            Some(mount_point) => Self::Mount(mount_point),
            None => Self::Store(path.to_owned()),
        })
    }
}

/// The mount point of the mount of ours that `path` is on, if it is on one.
pub(super) fn mount_of(path: &Path) -> Result<Option<PathBuf>, Failure> {
    let absolute = match path.canonicalize() {
        Ok(absolute) => absolute,
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => {
            return Err(dead(path));
        }
        Err(e) => return Err(format!("{}: {e}", path.display()).into()),
    };
    let table = mounts::own()?;
    let nearest = table
        .iter()
        .rev()
        .filter(|m| absolute.starts_with(&m.mount_point))
        .max_by_key(|m| m.mount_point.components().count());
    let Some(ours) = nearest.filter(|m| m.fs_type == FS_TYPE) else { return Ok(None) };
    if mounts::is_dead(&ours.mount_point) {
        return Err(dead(&ours.mount_point));
    }
    Ok(Some(ours.mount_point.clone()))
}

fn dead(path: &Path) -> Failure {
    format!("{0}: the daemon of this mount has died; take it away with: lockwood umount {0}", path.display())
        .into()
}

/// The path of a control file.
pub(super) fn control_path(mount_point: &Path, name: &str) -> PathBuf {
    mount_point.join(control::NAME).join(name)
}

/// What a control file of a mount shows; none if it is not there.
pub(super) fn read_control(mount_point: &Path, name: &str) -> Result<Option<String>, Failure> {
    let path = control_path(mount_point, name);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            Err(format!("{}: {e}; only root and the user who mounted may look", path.display()).into())
        }
        Err(e) => Err(format!("{}: {e}", path.display()).into()),
    }
}
