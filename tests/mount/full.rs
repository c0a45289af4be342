//! A disk that is full: what does not fit is refused, what is there stays, and room that is made can be used.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::PathBuf;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::common::{Mounted, lockwood, skipped, until};

const DISK: &std::ffi::CStr = c"size=200m";

/// Smaller files are not synced one by one: there are too many.
const SYNCED_FROM: usize = 100_000;

/// A small disk, taken away when the store on it is closed.
struct Disk(PathBuf);

impl Drop for Disk {
    fn drop(&mut self) {
        if unmount(&self.0, UnmountFlags::empty()).is_err() {
            let _ = unmount(&self.0, UnmountFlags::DETACH);
        }
    }
}

/// Drops in this order: first the mount, then the disk below its store, then the directory of both.
struct OnDisk {
    mounted: Mounted,
    _disk: Disk,
    _dir: tempfile::TempDir,
}

fn small_disk() -> Option<OnDisk> {
    disk_of(DISK)
}

fn disk_of(size: &std::ffi::CStr) -> Option<OnDisk> {
    let mut mounted = Mounted::unmounted()?;
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("disk");
    fs::create_dir(&place).unwrap();
    mount("tmpfs", &place, "tmpfs", MountFlags::empty(), size).unwrap();
    let disk = Disk(place);
    mounted.store = disk.0.join("store");
    lockwood([std::path::Path::new("format"), &mounted.store]).ok();
    mounted.mount("rw");
    Some(OnDisk { mounted, _disk: disk, _dir: dir })
}

/// Writes files of `len` bytes until one is refused. Returns how many were written and synced, and why it ended.
fn fill(mounted: &Mounted, prefix: &str, len: usize, most: usize) -> (usize, io::Error) {
    for n in 0..most {
        let write = || {
            let mut file = File::create(mounted.path(&format!("{prefix}{n}")))?;
            file.write_all(&vec![n as u8; len])?;
            if len > SYNCED_FROM { file.sync_all() } else { Ok(()) }
        };
        if let Err(error) = write() {
            return (n, error);
        }
    }
    panic!("the disk takes more than it holds");
}

fn assert_kept(mounted: &Mounted, prefix: &str, len: usize, count: usize) {
    for n in 0..count {
        let bytes = fs::read(mounted.path(&format!("{prefix}{n}"))).unwrap();
        assert!(bytes == vec![n as u8; len], "{prefix}{n}");
    }
}

/// The kernel asks nobody before it writes to a file that it was given. So it is given none for writing where the disk is
/// small, and what the store needs to remove files is kept from it where it is large.
#[test]
fn what_the_kernel_writes_itself_leaves_room_to_remove_files() {
    const MIB: usize = 1 << 20;
    let memory = fs::read_to_string("/proc/meminfo").unwrap();
    let available = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    if available.trim().trim_end_matches(" kB").parse::<usize>().unwrap() < 6 << 20 {
        return skipped("needs 6 GiB of memory for a disk that is large enough to be filled past the daemon");
    }
    let Some(mut disk) = disk_of(c"size=1400m") else { return };
    disk.mounted.umount();
    disk.mounted.mount("passthrough=write");
    let mounted = &disk.mounted;
    if mounted.status()["passthrough"] != "write" {
        return skipped("no passthrough");
    }
    for name in ["large", "other"] {
        fs::write(mounted.path(name), vec![7; MIB]).unwrap();
    }
    until("the daemon knows of the close", || mounted.status()["open_inodes"] == 0);
    let requests = || mounted.status()["requests"].as_u64().unwrap();
    let before = requests();
    let mut file = File::options().append(true).open(mounted.path("large")).unwrap();
    let piece = vec![1; MIB];
    let refused =
        (0..3000).find_map(|_| file.write_all(&piece).err()).expect("the disk takes more than it holds");
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC), "{refused}");
    assert!(requests() - before < 100, "the kernel asks for each write");
    let written = file.metadata().unwrap().len();
    assert!(written > 1100 * MIB as u64, "{written}");
    assert!(mounted.store.join("content/ballast").exists());
    let full = fs::write(mounted.path("more"), b"more").unwrap_err();
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    fs::remove_file(mounted.path("other")).unwrap();
    drop(file);
    until("the daemon knows of the close", || mounted.status()["open_inodes"] == 0);
    assert_eq!(fs::metadata(mounted.path("large")).unwrap().len(), written);
    mounted.assert_clean();
    fs::remove_file(mounted.path("large")).unwrap();
    until("there is room again", || fs::write(mounted.path("more"), b"more").is_ok());
    until("what was kept is given back", || !mounted.store.join("content/ballast").exists());
    mounted.assert_clean();
}

#[test]
fn a_disk_full_of_contents_refuses_more_and_files_can_still_be_removed() {
    const MIB: usize = 1 << 20;
    let Some(mut disk) = small_disk() else { return };
    let mounted = &mut disk.mounted;
    let (count, error) = fill(mounted, "f", 4 * MIB, 60);
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    assert!(count > 10, "{count} files");
    assert_kept(mounted, "f", 4 * MIB, count);
    // Removing must work without room.
    fs::remove_file(mounted.path("f0")).unwrap();
    fs::remove_file(mounted.path(&format!("f{count}"))).unwrap();
    fs::remove_file(mounted.path("f1")).unwrap();
    let again = || fs::write(mounted.path("again"), vec![0xAB; 4 * MIB]);
    crate::common::until("the room is given back", || again().is_ok());
    mounted.assert_clean();
    mounted.umount();
    mounted.assert_clean();
    mounted.mount("rw");
    assert!(fs::read(mounted.path("again")).unwrap() == vec![0xAB; 4 * MIB]);
    for n in 2..count {
        assert!(fs::read(mounted.path(&format!("f{n}"))).unwrap() == vec![n as u8; 4 * MIB]);
    }
    mounted.umount();
    mounted.assert_clean();
}

#[test]
fn a_disk_full_of_documents_refuses_more_and_goes_on_when_there_is_room() {
    let Some(mut disk) = small_disk() else { return };
    let mounted = &mut disk.mounted;
    // Others take most of the disk, so that small files, which live in documents, fill the rest of it soon.
    let ballast = mounted.store.parent().unwrap().join("ballast");
    fs::write(&ballast, vec![1; 150 << 20]).unwrap();
    let (count, error) = fill(mounted, "s", 1500, 1_000_000);
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    assert!(count > 1000, "{count} files");
    assert_kept(mounted, "s", 1500, count);
    for n in 0..count / 2 {
        fs::remove_file(mounted.path(&format!("s{n}"))).unwrap();
    }
    assert!(fs::metadata(mounted.path("s0")).is_err());
    mounted.assert_clean();
    fs::remove_file(&ballast).unwrap();
    fs::write(mounted.path("again"), b"room").unwrap();
    mounted.remount();
    assert_eq!(fs::read(mounted.path("again")).unwrap(), b"room");
    for n in count / 2..count {
        assert!(fs::read(mounted.path(&format!("s{n}"))).unwrap() == vec![n as u8; 1500]);
    }
    mounted.umount();
    mounted.assert_clean();
}
