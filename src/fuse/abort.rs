//! Ending a connection to the kernel at once: whatever is asked or waited for by it ends with an error.
//!
//! By the control file system of FUSE, which knows each connection by the minor number of its device. A file that was
//! opened there stays its connection's, whoever gets the number next.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::mounts;

/// Where the control file system is mounted, if it is.
const CONTROL: &str = "/sys/fs/fuse/connections";

/// What ends the connection of one mount.
#[derive(Debug)]
pub struct Abort(File);

impl Abort {
    /// The one of the mount at exactly this path.
    ///
    /// # Errors
    /// Nothing is mounted there, or this user may not; where the control file system is not mounted, root alone may.
    pub fn of(mount_point: &Path) -> io::Result<Self> {
        let table = mounts::own()?;
        let mount = table.iter().rev().find(|m| m.mount_point == mount_point);
        let (_, minor) = mount.ok_or(io::ErrorKind::NotFound)?.device;
        let abort = format!("{CONTROL}/{minor}/abort");
        let opened = OpenOptions::new().write(true).open(&abort).or_else(|refused| match unseen(minor) {
            Err(Errno::PERM) if refused.kind() == io::ErrorKind::NotFound => Err(io::Error::other(format!(
                "the control file system of FUSE is not mounted; root does that with: mount -t fusectl none {CONTROL}"
            ))),
            Err(_) => Err(io::Error::new(refused.kind(), format!("{abort}: {refused}"))),
            Ok(opened) => Ok(opened),
        });
        Ok(Self(opened?))
    }

    /// Ends the connection. One that has ended already is no error.
    ///
    /// # Errors
    /// The kernel's.
    pub fn abort(&self) -> io::Result<()> {
        (&self.0).write_all(b"1")
    }

    /// The file: whatever is written to it ends the connection.
    ///
    /// # Errors
    /// When this process has too many files open.
    pub fn file(&self) -> io::Result<File> {
        self.0.try_clone()
    }
}

/// By a mount of the control file system that nobody else sees.
fn unseen(minor: u32) -> rustix::io::Result<File> {
    let control = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&control)?;
    let root = fsmount(&control, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let abort = openat(&root, format!("{minor}/abort"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(abort.into())
}
