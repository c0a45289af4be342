//! The kernel's mount table, as /proc shows it. Imports nothing of Lockwood; every layer may import it.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

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

/// The type of Lockwood's mounts in the mount table.
pub const FS_TYPE: &str = "fuse.lockwood";

/// Whether a mount of Lockwood's is the topmost one at exactly this path.
pub fn is_ours(mount_point: &Path) -> bool {
    let table = own().unwrap_or_default();
    table.iter().rev().find(|m| m.mount_point == mount_point).is_some_and(|m| m.fs_type == FS_TYPE)
}

/// Whether a FUSE mount has lost its daemon. The kernel answers much from its cache even then, but never this.
pub fn is_dead(mount_point: &Path) -> bool {
    matches!(
        rustix::fs::statfs(mount_point),
        Err(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED)
    )
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
