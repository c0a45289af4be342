//! The kernel's mount table, as /proc shows it, and whether a mount has its daemon. Every layer may import it.

use std::ffi::{CString, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, test_kill_process, waitpid,
};

use crate::ambient;

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The device number of the file system, as in `st_dev`.
    pub device: (u32, u32),
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// The type: `fuse.lockwood` for a mount of ours.
    pub fs_type: OsString,
    /// The source, exactly as it was given.
    pub source: OsString,
}

/// The mount table of this process.
///
/// # Errors
/// When /proc is not mounted.
pub fn own() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Where else a file system is seen that was unmounted at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// At another place of this mount namespace, by a bind mount.
    Here(PathBuf),
    /// At a place of the mount namespace of another process, which has a copy of the mount since it was made, as containers
    /// have.
    Apart(u32, PathBuf),
}

/// Finds where else the file system is mounted that this was an entry of. By more than its device number, which another one
/// may have by now. Processes whose table cannot be read are passed over.
pub fn elsewhere(gone: &MountEntry) -> Option<Elsewhere> {
    let is_it =
        |m: &MountEntry| m.device == gone.device && m.fs_type == gone.fs_type && m.source == gone.source;
    let seen = |process: &str| {
        let table = std::fs::read(format!("/proc/{process}/mountinfo")).ok()?;
        Some(parse(&table).into_iter().find(|m| is_it(m))?.mount_point)
    };
    seen("self").map(Elsewhere::Here).or_else(|| {
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.find_map(|pid| Some(Elsewhere::Apart(pid, seen(&pid.to_string())?)))
    })
}

/// The mount table of another process; where processes are hidden (hidepid of proc(5)), this one's own has to do for it.
///
/// # Errors
/// When the process is gone or going.
pub fn of(pid: u32) -> io::Result<Vec<MountEntry>> {
    let hidden = [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied];
    match std::fs::read(format!("/proc/{pid}/mountinfo")) {
        Err(error) if hidden.contains(&error.kind()) && is_there(pid) => own(),
        table => Ok(parse(&table?)),
    }
}

/// Whether there is a process with this number, also where others' are hidden.
pub fn is_there(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// The type of Lockwood's mounts in the mount table.
pub const FS_TYPE: &str = "fuse.lockwood";

/// The mount that an absolute path is on, by its name alone.
///
/// # Errors
/// When /proc is not mounted.
pub fn above(path: &Path) -> io::Result<Option<MountEntry>> {
    let above = own()?.into_iter().filter(|m| path.starts_with(&m.mount_point));
    // Of those at the same place the last one is on top.
    Ok(above.max_by_key(|m| m.mount_point.components().count()))
}

/// Whether a mount of Lockwood's is the topmost one at exactly this path.
pub fn is_ours(mount_point: &Path) -> bool {
    let table = own().unwrap_or_default();
    table.iter().rev().find(|m| m.mount_point == mount_point).is_some_and(|m| m.fs_type == FS_TYPE)
}

/// How long a daemon may take to say that it is there, for which it needs nobody else.
pub const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// What comes of asking whether a FUSE mount has its daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Daemon {
    /// It answers; so does what is no FUSE mount, or is not there.
    Answers,
    /// It has died.
    HasDied,
    /// It does not answer: it is stopped, or waits for something itself.
    IsSilent,
}

/// Asks whether a FUSE mount has its daemon, and waits for so long. The kernel answers much from its cache even when the
/// daemon is gone, but never this.
///
/// # Errors
/// When no process can be made, or it is killed.
pub fn daemon(mount_point: &Path, patience: Duration) -> io::Result<Daemon> {
    let path = CString::new(mount_point.as_os_str().as_bytes())?;
    // In a process of its own: once a daemon has read a question, who waits for the answer cannot be ended, not even by a
    // kill, and no process ends before its last thread.
    // SAFETY: the child does nothing but what the next block does.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        // SAFETY: only system calls, with memory that was there before, as is allowed in the child of one thread of many.
        0 => unsafe {
            // Somebody may wait for the end of what goes through these.
            libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
            let mut answer = MaybeUninit::uninit();
            let is_dead = libc::statfs(path.as_ptr(), answer.as_mut_ptr()) != 0
                && matches!(*libc::__errno_location(), libc::ENOTCONN | libc::ECONNABORTED);
            libc::_exit(i32::from(is_dead))
        },
        pid => Pid::from_raw(pid).ok_or(io::ErrorKind::Other)?,
    };
    let ended = pidfd_open(child, PidfdFlags::empty())?;
    let begun = ambient::monotonic();
    loop {
        let left = Timespec::try_from(patience.saturating_sub(begun.elapsed())).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(0) => {
                let _ = kill_process(child, Signal::KILL); // It ends when the daemon answers or is gone.
                return Ok(Daemon::IsSilent);
            }
            Ok(_) => break,
        }
    }
    let status = waitpid(Some(child), WaitOptions::empty())?.and_then(|(_, status)| status.exit_status());
    match status {
        Some(0) => Ok(Daemon::Answers),
        Some(1) => Ok(Daemon::HasDied),
        // Nothing was learnt, and nobody may take a mount away for that.
        _ => Err(io::Error::other("the process that asked for the daemon of this mount was killed")),
    }
}

/// The lines of a mountinfo file; lines of another form are passed over. See proc(5) for the fields.
pub fn parse(table: &[u8]) -> Vec<MountEntry> {
    table.split(|&b| b == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    let separator = fields.iter().position(|f| *f == b"-")?;
    let device = std::str::from_utf8(fields.get(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    Some(MountEntry {
        device: (major.parse().ok()?, minor.parse().ok()?),
        mount_point: unescape(fields.get(4)?).into(),
        fs_type: unescape(fields.get(separator + 1)?),
        source: unescape(fields.get(separator + 2)?),
    })
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let escaped = tail.first_chunk::<3>().filter(|_| first == b'\\').and_then(|digits| {
            let text = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(text, 8).ok()
        });
        match escaped {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_mount_table() {
        let table = b"36 35 98:0 / /mnt\\040two rw,noatime master:1 - fuse.lockwood /a\\134b rw,errors=continue\nbad\n";
        let found = parse(table);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].mount_point, PathBuf::from("/mnt two"));
        assert_eq!(found[0].source, OsString::from("/a\\b"));
        assert_eq!(found[0].fs_type, OsString::from("fuse.lockwood"));
        assert_eq!(found[0].device, (98, 0));
    }
}
