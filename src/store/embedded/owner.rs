//! Who has an embedded store open: at most one process at a time.
//!
//! The lock is flock(2) on `STORE/owner`, so the kernel frees it when the process dies, however it dies. The file also
//! says who the owner is, for the message that the next one prints.
//!
//! What is hard: `umount` returns when the kernel has let go of the file system, which is before the daemon has closed
//! its store. A mount that follows at once must wait for it, but must not wait for a store that is really in use. The
//! difference is whether the owner's mount is still in the mount table of its process.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::layout::Layout;
use crate::document::text;
use crate::{ambient, mounts};

/// How long a mount waits for a process that is closing the store.
const CLOSING_WAIT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A path as URL-encoded text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct PathText(#[serde(with = "text::bytes")] Arc<[u8]>);

/// What the owner file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The process.
    pub pid: u32,
    /// The boot that the pid belongs to.
    pub boot_id: String,
    /// Where it has the store mounted; nowhere for a command.
    #[serde(default)]
    mount_points: Vec<PathText>,
    /// The boot of an owner before that died, until the store is recovered from it.
    #[serde(default)]
    pub unclean_boot_id: Option<String>,
}

impl Owner {
    /// Where the store is mounted, if it is.
    pub fn mount_points(&self) -> impl Iterator<Item = PathBuf> {
        self.mount_points.iter().map(|path| OsStr::from_bytes(&path.0).into())
    }
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
    let points: Vec<String> = owner.mount_points().map(|path| path.display().to_string()).collect();
    if points.is_empty() { String::new() } else { format!(", mounted at {}", points.join(", ")) }
}

/// The right to open the store; given up when dropped or when the process ends.
#[derive(Debug)]
pub struct Ownership {
    file: File,
    owner: Owner,
}

impl Ownership {
    /// Takes the store, waiting for an owner that is only closing it.
    ///
    /// # Errors
    /// [`OwnerError::InUse`] names the process and its mount points.
    pub fn acquire(layout: &Layout, mount_points: &[PathBuf]) -> Result<Self, OwnerError> {
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
        // Left by an owner that did not come to clear it. Its boot is kept until the store is recovered: if this process
        // dies before, the next one must still know.
        let unclean_boot_id = read_owner(&mut file).map(|left| left.unclean_boot_id.unwrap_or(left.boot_id));
        let owner = Owner {
            pid: std::process::id(),
            boot_id: boot_id(),
            mount_points: mount_points
                .iter()
                .map(|path| PathText(path.as_os_str().as_bytes().into()))
                .collect(),
            unclean_boot_id,
        };
        write_owner(&mut file, Some(&owner)).map_err(io)?;
        Ok(Self { file, owner })
    }

    /// The boot of the last owner, if it died without giving the store up and nobody has recovered the store since.
    pub fn unclean_boot_id(&self) -> Option<&str> {
        self.owner.unclean_boot_id.as_deref()
    }

    /// The store is recovered from the owner before.
    ///
    /// # Errors
    /// The operating system's.
    pub fn recovered(&mut self) -> io::Result<()> {
        self.owner.unclean_boot_id = None;
        write_owner(&mut self.file, Some(&self.owner))
    }

    /// The store is mounted at `mount_point` no longer.
    ///
    /// # Errors
    /// The operating system's.
    pub fn unmounted(&mut self, mount_point: &Path) -> io::Result<()> {
        if self.owner.mount_points.len() == 1 {
            return Ok(()); // The store is about to be given up, and until then the mount table tells.
        }
        self.owner.mount_points.retain(|path| *path.0 != *mount_point.as_os_str().as_bytes());
        write_owner(&mut self.file, Some(&self.owner))
    }

    /// Gives the store up after an orderly close. What has not been recovered stays to be.
    pub fn release(mut self) {
        let left = self.owner.unclean_boot_id.is_some().then_some(&self.owner);
        if let Err(e) = write_owner(&mut self.file, left) {
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

/// What the file says; nothing if the store was closed. An owner that nobody can read is one: a power cut came while it was
/// written, and of which boot that was is not known.
fn read_owner(file: &mut File) -> Option<Owner> {
    let mut text = Vec::new();
    file.rewind().ok()?;
    file.read_to_end(&mut text).ok()?;
    (!text.is_empty()).then(|| serde_json::from_slice(&text).unwrap_or_default())
}

/// A power cut must not take away that the store was open: the file is empty at no moment at which it is.
fn write_owner(file: &mut File, owner: Option<&Owner>) -> io::Result<()> {
    let text = owner.map(serde_json::to_vec).transpose()?.unwrap_or_default();
    file.rewind()?;
    file.write_all(&text)?;
    file.set_len(text.len() as u64)?;
    file.sync_all()
}

/// Whether the owner is a mount whose mount points the kernel has let go already, or is about to say who it is.
fn closing(owner: &Owner) -> bool {
    if owner.pid == 0 {
        return true; // Has just taken the lock, or has just cleared the file: either is over soon.
    }
    if owner.mount_points.is_empty() {
        return true; // A command, which ends by itself; or a mount that has let go of its last mount point.
    }
    match mounts::of(owner.pid) {
        Ok(table) => !owner.mount_points().any(|path| table.iter().any(|m| m.mount_point == path)),
        Err(_) => true, // Gone or going.
    }
}

/// The id of this boot, from the kernel.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|s| s.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_that_a_power_cut_has_torn_did_not_close_the_store() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("owner");
        let open =
            || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        assert_eq!(read_owner(&mut open()), None, "a new one");
        let owner = Owner { pid: 7, boot_id: "boot".to_owned(), ..Owner::default() };
        write_owner(&mut open(), Some(&owner)).unwrap();
        assert_eq!(read_owner(&mut open()), Some(owner.clone()));
        let whole = fs::read(&path).unwrap();
        for torn in [whole[..whole.len() / 2].to_vec(), [&whole[..], b"\"}"].concat(), vec![0; whole.len()]] {
            fs::write(&path, torn).unwrap();
            let found = read_owner(&mut open()).expect("somebody had it open");
            assert_ne!(found.boot_id, boot_id(), "of which boot that was is not known");
        }
        let shorter = Owner { boot_id: String::new(), ..owner };
        write_owner(&mut open(), Some(&shorter)).unwrap();
        assert_eq!(read_owner(&mut open()), Some(shorter));
        write_owner(&mut open(), None).unwrap();
        assert_eq!(read_owner(&mut open()), None);
    }
}
