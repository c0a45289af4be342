//! A disk that is full: what does not fit is refused, what is there stays, and room that is made can be used.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{AtFlags, FallocateFlags, Timespec, Timestamps, fallocate, statvfs, syncfs, utimensat};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;

use crate::common::{Mounted, is_alive, lockwood, run, signal, skipped, until};
use crate::files::write_through_map;

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

/// A disk of ext4, in a file that takes no more than is written. Unlike tmpfs it tells what is reserved from what is
/// written, and takes time to free what a file had.
fn ext4_disk(mib: u64) -> Option<OnDisk> {
    let mut mounted = Mounted::unmounted()?;
    let dir = tempfile::tempdir().unwrap();
    let (image, place) = (dir.path().join("image"), dir.path().join("disk"));
    File::create(&image).unwrap().set_len(mib << 20).unwrap();
    fs::create_dir(&place).unwrap();
    if Command::new("mkfs.ext4").arg("-V").output().is_err() {
        skipped("needs mkfs.ext4");
        return None;
    }
    run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image)).ok();
    let attached = run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&place));
    if attached.code != 0 {
        skipped("needs loop devices");
        return None;
    }
    let disk = Disk(place);
    mounted.store = disk.0.join("store");
    lockwood([std::path::Path::new("format"), &mounted.store]).ok();
    mounted.mount("rw");
    Some(OnDisk { mounted, _disk: disk, _dir: dir })
}

impl OnDisk {
    /// Others take all that is not kept for the store, in a file beside it.
    fn take_the_rest(&self) -> PathBuf {
        let others = self._disk.0.join("others");
        let file = File::create(&others).unwrap();
        let asking = File::create(self.mounted.path("asking")).unwrap();
        // What is still to be written may turn out to take less than was set aside for it.
        syncfs(&file).unwrap();
        let mut taken = 0;
        until("the disk is full", || {
            let room = statvfs(&self.mounted.mount_point).unwrap();
            let more = room.f_bavail * room.f_frsize;
            if more > 0 {
                fallocate(&file, FallocateFlags::empty(), taken, more).unwrap();
                taken += more;
            }
            more == 0
        });
        // The store may have seen plenty of room, and looks again before it gives so much.
        let refused = fallocate(&asking, FallocateFlags::empty(), 0, 1 << 40).unwrap_err();
        assert_eq!(refused, Errno::NOSPC);
        fs::remove_file(self.mounted.path("asking")).unwrap();
        others
    }

    fn free_bytes(&self) -> u64 {
        let room = statvfs(&self._disk.0).unwrap();
        room.f_bavail * room.f_frsize
    }
}

/// Documents of 4 KiB, of which a change takes that much in the journal.
const LINKS: usize = 500;

fn make_links(mounted: &Mounted) {
    for n in 0..LINKS {
        let text: String =
            (n..).map(|i| format!("{:016x}", i.wrapping_mul(0x9e37_79b9_7f4a_7c15))).take(255).collect();
        std::os::unix::fs::symlink(text, mounted.path(&format!("l{n}"))).unwrap();
    }
}

fn set_times(mounted: &Mounted, n: usize) -> io::Result<()> {
    let time = Timespec { tv_sec: 1_000_000 + n as i64, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    let path = mounted.path(&format!("l{}", n % LINKS));
    Ok(utimensat(rustix::fs::CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// The journal is kept for as long as something of it is in memory alone.
#[test]
fn what_changes_only_what_is_there_goes_on_and_on_when_the_disk_is_full() {
    let Some(disk) = ext4_disk(1400) else { return };
    let mounted = &disk.mounted;
    make_links(mounted);
    disk.take_the_rest();
    for n in 0..35_000 {
        set_times(mounted, n).unwrap_or_else(|e| panic!("{n} changes, {} free: {e}", disk.free_bytes()));
    }
    for n in 0..LINKS {
        fs::remove_file(mounted.path(&format!("l{n}"))).unwrap();
    }
    mounted.assert_clean();
}

/// On a disk where the journal is larger than all that is kept for the store, changes end before removing does.
#[test]
fn what_makes_room_passes_when_changes_are_refused() {
    let Some(mut disk) = small_disk() else { return };
    make_links(&disk.mounted);
    let path = |name: &str| disk.mounted.path(name);
    fs::write(path("small"), [1; 3000]).unwrap();
    fs::write(path("large"), vec![1; 1 << 20]).unwrap();
    let others = disk.take_the_rest();
    let refused = (0..100_000).find_map(|n| set_times(&disk.mounted, n).err()).expect("the disk is full");
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC), "{refused}");
    let mut bytes = Vec::new();
    File::open(path("small")).unwrap().read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, [1; 3000]);
    for (name, len) in [("small", 1000), ("small", 0), ("large", 100_000), ("large", 0)] {
        File::options().write(true).open(path(name)).unwrap().set_len(len).unwrap();
    }
    for n in 0..LINKS / 2 {
        fs::remove_file(path(&format!("l{n}"))).unwrap();
    }
    disk.mounted.assert_clean();
    fs::remove_file(others).unwrap();
    fs::write(path("again"), b"room").unwrap();
    for n in LINKS / 2..LINKS {
        set_times(&disk.mounted, n).unwrap();
    }
    disk.mounted.remount();
    disk.mounted.assert_clean();
}

/// The host frees what a large file had after the removal has returned.
#[test]
fn the_room_of_a_file_that_was_removed_can_be_used_at_once() {
    let Some(disk) = ext4_disk(600) else { return };
    let mounted = &disk.mounted;
    let big = vec![7; 100 << 20];
    for round in 0..3 {
        fs::write(mounted.path("big"), &big).unwrap();
        let others = disk.take_the_rest();
        fs::remove_file(mounted.path("big")).unwrap();
        fs::write(mounted.path("more"), &big[..1 << 20]).unwrap_or_else(|e| panic!("round {round}: {e}"));
        fs::remove_file(mounted.path("more")).unwrap();
        fs::remove_file(others).unwrap();
    }
    mounted.assert_clean();
}

/// POSIX promises it: what is there may be written over, and what fallocate(2) has reserved is there.
#[test]
fn bytes_that_have_their_place_are_written_when_the_disk_is_full() {
    const MIB: usize = 1 << 20;
    let Some(disk) = ext4_disk(400) else { return };
    let mounted = &disk.mounted;
    let open = |name: &str| {
        File::options().read(true).write(true).create_new(true).open(mounted.path(name)).unwrap()
    };
    let (written, reserved, holes, small) = (open("written"), open("reserved"), open("holes"), open("small"));
    written.write_all_at(&vec![1; 4 * MIB], 0).unwrap();
    fallocate(&reserved, FallocateFlags::empty(), 0, 4 << 20).unwrap();
    fallocate(&reserved, FallocateFlags::KEEP_SIZE, 4 << 20, 4 << 20).unwrap();
    holes.write_all_at(&[1; 8192], 0).unwrap();
    holes.set_len(4 << 20).unwrap();
    small.write_all_at(&[1; 3000], 0).unwrap();
    for file in [&written, &reserved, &holes, &small] {
        file.sync_all().unwrap();
    }
    disk.take_the_rest();
    let piece = vec![2; MIB];
    for n in 0..4 {
        written.write_all_at(&piece, n << 20).unwrap();
    }
    for n in 0..8 {
        reserved.write_all_at(&piece, n << 20).unwrap();
    }
    small.write_all_at(&[2; 2000], 1000).unwrap();
    let refused = [
        written.write_all_at(&piece, (4 << 20) - 1),
        holes.write_all_at(&piece, 0),
        small.write_all_at(&[2; 2], 2999),
        reserved.write_all_at(&piece, 8 << 20),
    ];
    for refused in refused {
        assert_eq!(refused.map_err(|e| e.raw_os_error()), Err(Some(libc::ENOSPC)));
    }
    write_through_map(&written, 4 * MIB);
    let mut bytes = vec![0; 8 * MIB];
    reserved.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 2));
    drop((written, reserved, holes, small));
    mounted.assert_clean();
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
    let mounted = &mut disk.mounted;
    mounted.umount();
    mounted.mount("passthrough=write");
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
    // Nor does it keep the store from being opened if the daemon dies now.
    let pid = mounted.pid();
    signal(pid, Signal::KILL);
    until("the daemon is dead", || !is_alive(pid));
    drop(file);
    mounted.mount("passthrough=write");
    fs::remove_file(mounted.path("other")).unwrap();
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
