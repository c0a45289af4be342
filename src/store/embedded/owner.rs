//! Who has an embedded store open: at most one process at a time.
//!
//! The lock is flock(2) on `STORE/owner`, so the kernel frees it when the process dies, however it dies. The file also
//! says who the owner is, for the message that the next one prints.
//!
//! What is hard: `umount` returns when the kernel has let go of the file system, which is before the daemon has closed
//! its store. A mount that follows at once must wait for it, but must not wait for a store that is really in use. The
//! difference is whether the owner's mount is still in the mount table of its process.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::layout::Layout;
use crate::{ambient, mounts};

/// How long a mount waits for a process that is closing the store.
const CLOSING_WAIT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What the owner file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The process.
    pub pid: u32,
    /// The boot that the pid belongs to.
    pub boot_id: String,
    /// Where it mounts the store; empty for a command.
    pub mount_point: String,
}

/// Why the store could not be had.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// Somebody else has it.
    #[error("{store} is in use by process {pid}{at}", pid = owner.pid, at = mounted_at(owner))]
    InUse {
        /// The store.
        store: PathBuf,
        /// By whom.
        owner: Owner,
    },
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// What was touched.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

fn mounted_at(owner: &Owner) -> String {
    if owner.mount_point.is_empty() { String::new() } else { format!(", mounted at {}", owner.mount_point) }
}

/// The right to open the store; given up when dropped or when the process ends.
#[derive(Debug)]
pub struct Ownership {
    file: File,
    previous: Option<Owner>,
}

impl Ownership {
    /// Takes the store, waiting for an owner that is only closing it.
    ///
    /// # Errors
    /// [`OwnerError::InUse`] names the process and its mount point.
    pub fn acquire(layout: &Layout, mount_point: &str) -> Result<Self, OwnerError> {
        let path = layout.owner();
        let io = |source| OwnerError::Io { path: path.clone(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(io)?;
        let begun = ambient::monotonic();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(e) => return Err(io(e.into())),
            }
            let owner = read_owner(&mut file).unwrap_or_default();
            if !closing(&owner) || begun.elapsed() > CLOSING_WAIT {
                return Err(OwnerError::InUse { store: layout.root().to_owned(), owner });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        // Left by an owner that did not come to clear it.
        let previous = read_owner(&mut file);
        let owner =
            Owner { pid: std::process::id(), boot_id: boot_id(), mount_point: mount_point.to_owned() };
        write_owner(&mut file, Some(&owner)).map_err(io)?;
        Ok(Self { file, previous })
    }

    /// The owner before, if it died without giving the store up.
    pub fn crashed_owner(&self) -> Option<&Owner> {
        self.previous.as_ref()
    }

    /// Gives the store up after an orderly close.
    pub fn release(mut self) {
        if let Err(e) = write_owner(&mut self.file, None) {
            log::warn!("the owner file could not be cleared: {e}");
        }
    }
}

/// Who has the store open now, if anybody.
pub fn current(layout: &Layout) -> Option<Owner> {
    let mut file = File::open(layout.owner()).ok()?;
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => read_owner(&mut file),
        _ => None,
    }
}

fn read_owner(file: &mut File) -> Option<Owner> {
    let mut text = Vec::new();
    file.rewind().ok()?;
    file.read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

fn write_owner(file: &mut File, owner: Option<&Owner>) -> io::Result<()> {
    let text = owner.map(serde_json::to_vec).transpose()?.unwrap_or_default();
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(&text)
}

/// Whether the owner is a mount whose mount point the kernel has let go already, or is about to say who it is.
fn closing(owner: &Owner) -> bool {
    if owner.pid == 0 {
        return true; // Has just taken the lock, or has just cleared the file: either is over soon.
    }
    if owner.mount_point.is_empty() {
        return true; // A command, which ends by itself.
    }
    match fs::read(format!("/proc/{}/mountinfo", owner.pid)) {
        Ok(table) => !mounts::parse(&table).iter().any(|m| m.mount_point == Path::new(&owner.mount_point)),
        Err(_) => true, // Gone or going.
    }
}

/// The id of this boot, from the kernel.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|s| s.trim().to_owned()).unwrap_or_default()
}
