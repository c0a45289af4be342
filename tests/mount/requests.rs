//! What the kernel asks the daemon for: how many requests each system call costs, first and again. docs/performance.md
//! has the same table.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;

use crate::common::Mounted;

/// Each call is made on so many names.
const NAMES: u64 = 40;

struct Counted<'a> {
    mounted: &'a Mounted,
    /// What asking costs.
    own: u64,
}

impl<'a> Counted<'a> {
    fn new(mounted: &'a Mounted) -> Self {
        let mut counted = Self { mounted, own: 0 };
        counted.now();
        let before = counted.now();
        counted.own = counted.now() - before;
        counted
    }

    /// A close returns before the daemon has its request.
    fn now(&self) -> u64 {
        std::thread::sleep(Duration::from_millis(50));
        self.mounted.status()["requests"].as_u64().unwrap()
    }

    /// How many requests one call costs, made on each name.
    fn each(&self, what: &str, expected: u64, call: impl Fn(PathBuf)) {
        let before = self.now();
        (0..NAMES).for_each(|n| call(self.mounted.path(&format!("d/{n}"))));
        let asked = self.now() - before - self.own;
        // The last call before may have left the directory to be asked for, and this one may leave it.
        let sum = expected * NAMES;
        assert!(
            (sum.saturating_sub(2)..=sum + 2).contains(&asked),
            "{what}: {asked} requests for {NAMES} calls"
        );
    }
}

#[test]
fn each_call_costs_the_requests_that_the_table_says() {
    let Some(mut mounted) = Mounted::new() else { return };
    fs::create_dir(mounted.path("d")).unwrap();
    fs::create_dir(mounted.path("e")).unwrap();
    let counted = Counted::new(&mounted);
    let missing = |path: PathBuf| assert!(fs::symlink_metadata(path).is_err());
    let stat = |path: PathBuf| assert!(fs::symlink_metadata(path).is_ok());
    let read = |path: PathBuf| assert_eq!(File::open(path).unwrap().read_at(&mut [0; 10], 0).unwrap(), 5);
    counted.each("a missing name: LOOKUP", 1, missing);
    counted.each("a missing name again", 0, missing);
    // After each change the kernel asks for the directory anew, when it looks who may change it.
    counted.each("create with O_EXCL: GETATTR of the directory, LOOKUP, CREATE, RELEASE", 4, |path| {
        drop(File::create_new(path).unwrap());
    });
    counted.each("stat of what was just made", 0, stat);
    let write = |path| OpenOptions::new().write(true).open(path).unwrap().write_all(b"small").unwrap();
    // The capabilities that a write would take away are asked for once.
    counted.each("first write: OPEN, GETXATTR, WRITE, RELEASE", 4, write);
    counted.each("write: OPEN, WRITE, RELEASE", 3, write);
    counted.each("stat after a write: GETATTR", 1, stat);
    counted.each("stat again", 0, stat);
    counted.each("first read: OPEN, READ, RELEASE", 3, read);
    counted.each("read again: OPEN, RELEASE", 2, read);
    counted.each("chmod: SETATTR", 1, |path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    });
    counted.each("rename in a directory, twice: GETATTR of it, LOOKUP, RENAME", 6, |path| {
        let other = path.with_extension("other");
        fs::rename(&path, &other).unwrap();
        fs::rename(&other, &path).unwrap();
    });
    counted.each("rename across, twice: GETATTR of both, LOOKUP, RENAME", 8, |old| {
        let new = mounted.path("e").join(old.file_name().unwrap());
        fs::rename(&old, &new).unwrap();
        fs::rename(&new, &old).unwrap();
    });
    counted.each("unlink: GETATTR of the directory, UNLINK", 2, |path| fs::remove_file(path).unwrap());
    counted.each("mkdir: GETATTR of the directory, LOOKUP, MKDIR", 3, |path| fs::create_dir(path).unwrap());
    counted.each("rmdir: GETATTR of the directory, RMDIR", 2, |path| fs::remove_dir(path).unwrap());
    counted.each("symlink: GETATTR of the directory, LOOKUP, SYMLINK", 3, |path| {
        symlink("somewhere", path).unwrap();
    });
    counted.each("readlink: READLINK", 1, |path| drop(fs::read_link(path).unwrap()));
    counted.each("readlink again", 0, |path| drop(fs::read_link(path).unwrap()));
    counted
        .each("unlink of a link: GETATTR of the directory, UNLINK", 2, |path| fs::remove_file(path).unwrap());
    listings(&mut mounted);
    mounted.finish();
}

fn listings(mounted: &mut Mounted) {
    for n in 0..NAMES {
        fs::write(mounted.path(&format!("d/{n}")), b"x").unwrap();
    }
    // The kernel of the next mount knows nothing.
    mounted.remount();
    fs::metadata(mounted.path("d")).unwrap();
    let counted = Counted::new(mounted);
    // OPENDIR, READDIRPLUS, which brings the attributes along, READDIR, which brings nothing more, RELEASEDIR.
    let list = || {
        let entries =
            fs::read_dir(mounted.path("d")).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
        assert_eq!(entries.count() as u64, NAMES);
    };
    let before = counted.now();
    list();
    let first = counted.now() - before - counted.own;
    assert!(first <= 5, "{first} requests for a listing of {NAMES} entries with the attributes of each");
    let before = counted.now();
    list();
    let again = counted.now() - before - counted.own;
    assert!(again <= 5, "{again} requests again");
    counted.each("first read of a small file: OPEN, READ, RELEASE", 3, |path| {
        let file = File::open(path).unwrap();
        file.read_at(&mut [0; 10], 0).unwrap();
    });
}

/// As `ls -l` does, and whoever writes to a file.
fn list_with_attributes(mounted: &Mounted) {
    for entry in fs::read_dir(mounted.path("d")).unwrap() {
        let path = entry.unwrap().path();
        assert!(fs::symlink_metadata(&path).is_ok());
        let list = rustix::fs::lgetxattr(&path, "system.posix_acl_access", &mut [0u8; 0]);
        assert!(matches!(list, Err(Errno::NODATA | Errno::OPNOTSUPP)), "{list:?}");
    }
}

#[test]
fn a_mount_without_extended_attributes_is_not_asked_for_them() {
    let Some(mut mounted) = Mounted::new() else { return };
    fs::create_dir(mounted.path("d")).unwrap();
    for n in 0..NAMES {
        fs::write(mounted.path(&format!("d/{n}")), b"x").unwrap();
    }
    for (options, most, write) in [("rw", NAMES + 5, 4), ("rw,noxattr", 6, 3)] {
        mounted.umount();
        mounted.mount(options);
        let counted = Counted::new(&mounted);
        let before = counted.now();
        list_with_attributes(&mounted);
        let asked = counted.now() - before - counted.own;
        assert!(asked <= most && most - asked <= 4, "{options}: {asked} requests, {most} at most");
        counted.each("first write: OPEN, GETXATTR where there are any, WRITE, RELEASE", write, |path| {
            let path = mounted.path("d").join(path.file_name().unwrap());
            OpenOptions::new().write(true).open(path).unwrap().write_all(b"y").unwrap();
        });
        assert_eq!(mounted.status()["xattr"], options == "rw");
    }
    let refused = rustix::fs::setxattr(mounted.path("d"), "user.a", b"b", rustix::fs::XattrFlags::empty());
    assert_eq!(refused, Err(Errno::OPNOTSUPP));
    mounted.finish();
}
