//! Attaching a session to the kernel.
//!
//! Who may mount does so with mount(2), as `fuse.lockwood`, so that the mount table, mount(8) and /etc/fstab know it by
//! that type; `fuser` itself would mount as plain `fuse`. Everybody else goes through `fuser` and fusermount3.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use fuser::{Config, Filesystem, MountOption, Session, SessionACL};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::abort::Abort;
use super::mount::FS_TYPE;
use crate::shell::quoted;

/// Mounts `filesystem` as `source` at `mount_point`.
///
/// # Errors
/// The kernel's, or fusermount3's.
pub(super) fn attach<F: Filesystem>(
    filesystem: F,
    source: &str,
    mount_point: &Path,
    mut config: Config,
) -> io::Result<Session<F>> {
    if rustix::process::geteuid().is_root() {
        let device = mount_as_root(source, mount_point, &config)?;
        let session = Session::from_fd(filesystem, device, config.acl, config);
        return session.inspect_err(|_| {
            let _ = detach(mount_point); // What failed is reported; this only tidies up.
        });
    }
    config.mount_options.extend([
        MountOption::FSName(escaped(source)),
        MountOption::Subtype("lockwood".to_owned()),
        MountOption::DefaultPermissions,
    ]);
    Session::new(filesystem, mount_point, &config)
}

/// An option's value as fusermount3 takes it, to which a bare comma is the end of the option.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

fn mount_as_root(source: &str, mount_point: &Path, config: &Config) -> io::Result<OwnedFd> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let others = if config.acl == SessionACL::Owner { "" } else { ",allow_other" };
    let data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions{others}",
        device.as_raw_fd(),
        std::fs::metadata(mount_point)?.mode(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    let flags = kernel_flags(&config.mount_options);
    rustix::mount::mount(source, mount_point, FS_TYPE, flags, CString::new(data)?.as_c_str())?;
    Ok(device.into())
}

/// Changes the kernel's flags of a mount of ours, as `mount -o remount,ro` does.
///
/// # Errors
/// The kernel's; busy if files are open for writing and the tree is to be read-only.
pub fn remount(mount_point: &Path, options: &[MountOption]) -> io::Result<()> {
    let ours = crate::mounts::own()?
        .iter()
        .rev()
        .find(|m| m.mount_point == mount_point)
        .is_some_and(|m| m.fs_type == FS_TYPE);
    if !ours {
        return Err(io::Error::other("not a mount of lockwood"));
    }
    Ok(rustix::mount::mount_remount(mount_point, kernel_flags(options), "")?)
}

fn kernel_flags(options: &[MountOption]) -> MountFlags {
    let mut flags = MountFlags::empty();
    for option in options {
        flags |= match option {
            MountOption::RO => MountFlags::RDONLY,
            MountOption::NoDev => MountFlags::NODEV,
            MountOption::NoSuid => MountFlags::NOSUID,
            MountOption::NoExec => MountFlags::NOEXEC,
            MountOption::NoAtime => MountFlags::NOATIME,
            MountOption::Sync => MountFlags::SYNCHRONOUS,
            MountOption::DirSync => MountFlags::DIRSYNC,
            _ => MountFlags::empty(),
        };
    }
    flags
}

/// Takes the tree away if nobody uses it.
///
/// # Errors
/// The kernel's; busy if somebody does.
pub fn unmount(mount_point: &Path) -> io::Result<()> {
    with_helper(mount_point, UnmountFlags::empty(), &[])
}

/// Takes the tree away; who uses it goes on until the files are closed.
///
/// # Errors
/// The kernel's.
pub fn detach(mount_point: &Path) -> io::Result<()> {
    with_helper(mount_point, UnmountFlags::DETACH, &["-z"])
}

/// Takes the tree away, and ends what is asked for and waited for there with an error, also where else it is mounted. The
/// daemon is not needed.
///
/// # Errors
/// The kernel's, or that this user may not; see [`Abort::of`].
pub fn force(mount_point: &Path) -> io::Result<()> {
    match rustix::mount::unmount(mount_point, UnmountFlags::FORCE | UnmountFlags::DETACH) {
        Err(Errno::PERM) => {
            Abort::of(mount_point)?.abort()?;
            detach(mount_point)
        }
        taken => Ok(taken?),
    }
}

/// The commands that take a mount of ours away whose daemon does not answer.
pub fn ways_to_take_away(mount_point: &Path) -> String {
    format!(
        "lockwood umount --lazy {0}; or, if programs wait for it that shall not, with: lockwood umount --force {0}",
        quoted(mount_point)
    )
}

fn with_helper(mount_point: &Path, flags: UnmountFlags, helper: &[&str]) -> io::Result<()> {
    match rustix::mount::unmount(mount_point, flags) {
        Err(Errno::PERM) => {}
        other => return other.map_err(Into::into),
    }
    let status = Command::new("fusermount3").arg("-u").args(helper).arg("--").arg(mount_point).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(io::Error::other(format!("fusermount3 ended with {status}"))),
        Err(e) => Err(io::Error::other(format!("fusermount3 (Debian package fuse3) is needed: {e}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_with_commas_stays_one_option() {
        assert_eq!(escaped("postgres://u@h1,h2/db"), "postgres://u@h1\\,h2/db");
        assert_eq!(escaped("/a\\,b"), "/a\\\\\\,b");
        assert_eq!(escaped("/plain path"), "/plain path");
    }
}
