//! Mount points: which can be used, and which together.

use std::io;
use std::path::{Path, PathBuf};

use super::attach;
use super::mount::{FS_TYPE, MountError};
use crate::lock::printable;
use crate::mounts::{self, Daemon};
use crate::shell::quoted;

/// The mount points as the kernel will name them.
///
/// # Errors
/// Names the mount point that is missing, taken, given twice, within another one or above the store.
pub(super) fn usable(paths: &[PathBuf], store: Option<&Path>) -> Result<Vec<PathBuf>, MountError> {
    let mut found: Vec<PathBuf> = Vec::new();
    for path in paths {
        let point = usable_mount_point(path)?;
        if let Some(store) = store {
            refuse_through_itself(&point, store)?;
        }
        for other in &found {
            let cause = if *other == point {
                "it is given twice".to_owned()
            } else if point.starts_with(other) {
                format!("it is within the mount point {}", other.display())
            } else if other.starts_with(&point) {
                format!("the mount point {} is within it", other.display())
            } else {
                continue;
            };
            return Err(MountError::MountPoint { path: path.clone(), cause });
        }
        found.push(point);
    }
    Ok(found)
}

/// The mount point as the kernel will name it. A mount of ours that has lost its daemon is taken away first.
fn usable_mount_point(path: &Path) -> Result<PathBuf, MountError> {
    let unusable = |cause: String| MountError::MountPoint { path: path.to_owned(), cause };
    match mounts::daemon(path, mounts::ANSWER_WAIT).map_err(|e| unusable(e.to_string()))? {
        Daemon::Answers => {}
        Daemon::IsSilent => {
            let commands = match std::path::absolute(path).and_then(|path| mounts::above(&path)) {
                Ok(Some(m)) if m.fs_type == FS_TYPE => attach::ways_to_take_away(&m.mount_point),
                Ok(Some(m)) => format!("umount -f -l {}", quoted(&m.mount_point)),
                _ => "umount -f -l".to_owned(),
            };
            return Err(unusable(format!(
                "what is mounted there has not answered for {} s; let its daemon go on, or take it away with: {commands}",
                mounts::ANSWER_WAIT.as_secs()
            )));
        }
        Daemon::HasDied => {
            let absolute = std::path::absolute(path).map_err(|e| unusable(e.to_string()))?;
            detach_dead(&absolute).map_err(|e| {
                unusable(format!(
                    "a mount whose daemon has died is there, and does not go away ({e}); try: umount -l {}",
                    quoted(&absolute)
                ))
            })?;
        }
    }
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(unusable("not a directory".to_owned())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(unusable("it does not exist; make the directory first".to_owned()));
        }
        Err(e) => return Err(unusable(e.to_string())),
    }
    let path = path.canonicalize().map_err(|e| unusable(e.to_string()))?;
    let table = mounts::own().map_err(|e| unusable(e.to_string()))?;
    match table.iter().rev().find(|m| m.mount_point == path) {
        Some(m) if m.fs_type == FS_TYPE => {
            let source = printable(m.source.as_encoded_bytes());
            Err(unusable(format!("{source} is mounted there already")))
        }
        _ => Ok(path),
    }
}

fn detach_dead(path: &Path) -> io::Result<()> {
    let table = mounts::own()?;
    let ours = table.iter().rev().find(|m| m.mount_point == path && m.fs_type == FS_TYPE);
    let Some(dead) = ours else { return Err(io::Error::other("it is not a mount of lockwood")) };
    log::warn!(
        "{}: the daemon of this mount of {} has died; detaching it",
        path.display(),
        printable(dead.source.as_os_str().as_encoded_bytes())
    );
    attach::detach(path)
}

/// A store below its own mount point, or with it in itself, would be reached through itself.
fn refuse_through_itself(mount_point: &Path, store: &Path) -> Result<(), MountError> {
    let refused = |cause: String| Err(MountError::MountPoint { path: mount_point.to_owned(), cause });
    match store.canonicalize() {
        Ok(store) if store.starts_with(mount_point) => {
            refused(format!("the store {} is below it", store.display()))
        }
        Ok(store) if mount_point.starts_with(&store) => {
            refused(format!("it is in the store {} itself", store.display()))
        }
        _ => Ok(()), // A store that does not exist is reported when it is opened.
    }
}
