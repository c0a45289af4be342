//! Whether a process of this host is gone: who died here need not be waited for.
//!
//! A session holds flock(2) on a file of its own, which the kernel frees when the process dies, however it dies. Whoever
//! can lock the file of a session of this boot knows that its process is gone. No file proves nothing: the process may
//! see another file system.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::document::{Session, SessionId};

/// The lock of a session that runs.
pub(super) struct Proof {
    _held: File,
    path: PathBuf,
}

/// The directory of root's sessions, or else of the user's.
fn directory() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/run/lockwood"));
    }
    std::env::var_os("XDG_RUNTIME_DIR").map(|runtime| Path::new(&runtime).join("lockwood"))
}

fn path(session: SessionId) -> Option<PathBuf> {
    Some(directory()?.join(session.to_string()))
}

impl Proof {
    /// Makes the file of a session and locks it. Without one, others wait for the lease.
    pub(super) fn hold(session: SessionId) -> Option<Self> {
        let path = path(session)?;
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path.parent()?).and_then(|()| {
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            Ok(file)
        });
        match made {
            Ok(file) => Some(Self { _held: file, path }),
            Err(error) => {
                log::warn!(
                    "{}: {error}; should this mount die, its locks are held for a lease",
                    path.display()
                );
                None
            }
        }
    }

    /// The session has ended: nobody looks for it any more.
    pub(super) fn withdraw(&self) {
        let _ = fs::remove_file(&self.path); // Only a leftover if it fails.
    }
}

/// Whether the session's process ran on this host, in this boot, and is gone for certain.
pub(super) fn is_gone(session: &Session, boot_id: &str) -> bool {
    if session.boot_id != boot_id {
        return false;
    }
    let file = path(session.id).map(|path| OpenOptions::new().read(true).open(path));
    match file {
        Some(Ok(file)) => flock(&file, FlockOperation::NonBlockingLockShared).is_ok(),
        _ => false,
    }
}

/// Takes away the file of a session that is recovered, if it is of this host.
pub(super) fn forget(session: SessionId) {
    if let Some(path) = path(session) {
        let _ = fs::remove_file(path); // There is none of another host's.
    }
}
