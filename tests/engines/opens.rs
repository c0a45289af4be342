//! Close-to-open between two mounts, each a daemon of its own as on two hosts: whoever opens a file sees what was closed
//! before, at once, and what is done by a name is done to what has it. A rename is shown to have moved what it has moved.
//!
//! What is hard: whether a notice comes in time is chance. So each round first makes the other host remember what is there.

use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{skipped, until};
use crate::two::{Two, over_postgres, over_redis};

/// So many that a mount which trusts what it remembers fails one of them: a notice takes some milliseconds.
const ROUNDS: usize = 40;

/// The first byte as a map of the file shows it.
fn first_mapped(file: &File) -> u8 {
    // SAFETY: a new shared map of a file that is open for reading; nothing else is touched.
    let map = unsafe {
        libc::mmap(std::ptr::null_mut(), 1, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert_ne!(map, libc::MAP_FAILED);
    // A page that cannot be had is an error here, and would be SIGBUS, which ends all tests, at the first touch.
    // SAFETY: the page of this map.
    let populated = succeeded(unsafe { libc::madvise(map, 1, libc::MADV_POPULATE_READ) });
    populated.unwrap_or_else(|error| panic!("a map of the file has no page: {error}"));
    // SAFETY: the first byte of the map; then it is unmapped, and nobody uses it any more.
    let (byte, unmapped) = unsafe { (map.cast::<u8>().read_volatile(), libc::munmap(map, 1)) };
    assert_eq!(unmapped, 0);
    byte
}

/// Opens a file and holds it to what was written.
fn opens_to(path: &Path, text: &str, what: &str) {
    let mut file = File::open(path).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(file.metadata().unwrap().len(), text.len() as u64, "{what}: the size");
    assert_eq!(char::from(first_mapped(&file)), text.chars().next().unwrap(), "{what}: a map");
    let mut found = String::new();
    file.read_to_string(&mut found).unwrap();
    assert!(found == text, "{what}: {} bytes that begin with {:.9}", found.len(), found);
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn succeeded(code: libc::c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What is done to a file by its name, and whether that is to be seen there.
struct Change {
    what: &'static str,
    make: fn(&Path) -> io::Result<()>,
    is_made: fn(&Path) -> bool,
}

const CHANGES: [Change; 5] = [
    Change {
        what: "chmod",
        make: |path| fs::set_permissions(path, Permissions::from_mode(0o640)),
        is_made: |path| fs::metadata(path).is_ok_and(|found| found.mode() & 0o7777 == 0o640),
    },
    Change {
        what: "truncate",
        // SAFETY: a C string that lives until the call returns.
        make: |path| succeeded(unsafe { libc::truncate(c_path(path).as_ptr(), 5) }),
        is_made: |path| fs::read(path).is_ok_and(|found| found.len() == 5),
    },
    Change {
        what: "utimensat",
        make: |path| {
            let times = [libc::timespec { tv_sec: 7, tv_nsec: 0 }; 2];
            // SAFETY: as above, and two times.
            succeeded(unsafe { libc::utimensat(libc::AT_FDCWD, c_path(path).as_ptr(), times.as_ptr(), 0) })
        },
        is_made: |path| fs::metadata(path).is_ok_and(|found| found.mtime() == 7),
    },
    Change {
        what: "setxattr",
        make: |path| {
            let (path, value) = (c_path(path), b"b");
            // SAFETY: as above, and a value of the length that is said.
            succeeded(unsafe {
                libc::setxattr(path.as_ptr(), c"user.a".as_ptr(), value.as_ptr().cast(), 1, 0)
            })
        },
        // SAFETY: C strings as above; with no room asked for, the length is all that is said.
        is_made: |path| unsafe {
            libc::getxattr(c_path(path).as_ptr(), c"user.a".as_ptr(), std::ptr::null_mut(), 0) == 1
        },
    },
    Change {
        what: "link",
        make: |path| fs::hard_link(path, path.with_extension("linked")),
        is_made: |path| {
            let linked = path.with_extension("linked");
            let found = fs::metadata(path).is_ok_and(|found| found.nlink() == 2);
            fs::remove_file(linked).is_ok() && found
        },
    },
];

fn who_opens_sees_what_was_closed(two: &Two) {
    for round in 0..ROUNDS {
        let (one, other) = (two.point(round % 2), two.point(1 - round % 2));
        // Short and long files in turn, and as long as the one before or not.
        let sign = char::from(b'a' + (round % 26) as u8);
        let text = format!("{sign}{round:08}").repeat(if round % 8 < 4 { 1 } else { 1000 });
        let remember = |name: &str| {
            let path = other.join(name);
            let known = File::open(&path).map(|file| first_mapped_of(&file));
            let known = (known.ok(), fs::read(&path).ok(), fs::metadata(&path).ok());
            // The kernel tells of a close after it has returned, and who has the old file open may open it once more.
            until("the daemon knows of the close", || two.status(1 - round % 2)["open_inodes"] == 0);
            known
        };
        remember("f");
        fs::write(one.join("f"), &text).unwrap();
        opens_to(&other.join("f"), &text, "written");
        remember("f");
        let next = text.replace(sign, "+");
        fs::write(one.join("next"), &next).unwrap();
        fs::rename(one.join("next"), one.join("f")).unwrap();
        opens_to(&other.join("f"), &next, "replaced");
        let Change { what, make, is_made } = &CHANGES[round % CHANGES.len()];
        remember("f");
        // Who has the old file open keeps it, without a name.
        let kept = (round % 2 == 0).then(|| File::open(one.join("f")).unwrap());
        fs::write(one.join("next"), &text).unwrap();
        fs::rename(one.join("next"), one.join("f")).unwrap();
        make(&other.join("f")).unwrap_or_else(|error| panic!("{what} of what was replaced: {error}"));
        assert!(is_made(&other.join("f")), "{what} of what was replaced, and not of what has replaced it");
        drop(kept);
        // A name that is remembered not to be there.
        let made = format!("made{round}");
        assert_eq!(fs::metadata(other.join(&made)).unwrap_err().kind(), ErrorKind::NotFound);
        fs::write(one.join(&made), &text).unwrap();
        let file = File::options().write(true).create(true).truncate(false).open(other.join(&made)).unwrap();
        assert_eq!(file.metadata().unwrap().len(), text.len() as u64, "made");
        fs::remove_file(one.join(&made)).unwrap();
        let gone = format!("gone{round}");
        fs::write(one.join(&gone), &text).unwrap();
        assert_eq!(fs::metadata(other.join(&gone)).unwrap().len(), text.len() as u64, "to be removed");
        fs::remove_file(one.join(&gone)).unwrap();
        let error = File::open(other.join(&gone)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "removed");
    }
}

/// What a rename has moved is what is found at the new name by the host that made it and knew something else at the old one.
/// What it has replaced is dead there, and nothing else.
fn who_renames_finds_what_was_moved(two: &Two) {
    let ino = |path: &Path| fs::metadata(path).unwrap().ino();
    fs::create_dir(two.point(0).join("into")).unwrap();
    for round in 0..ROUNDS {
        // Names of its own, which nobody remembers from another round.
        let at = |host: usize, name: &str| two.point((round + host) % 2).join(format!("{name}{round}"));
        for name in ["old", "new", "over", "free"] {
            fs::create_dir(at(0, name)).unwrap();
        }
        let [old, over, moved] = [at(1, "old"), at(1, "over"), at(1, "into/moved")];
        let (replaced, kept) = (ino(&old), File::open(&over).unwrap());
        assert!(!moved.exists(), "round {round}");
        for (there, away, new) in [("old", "away", "new"), ("over", "kept", "free")] {
            fs::rename(at(0, there), at(0, away)).unwrap();
            fs::rename(at(0, new), at(0, there)).unwrap();
        }
        fs::rename(&old, &moved).unwrap();
        assert_ne!(ino(&moved), replaced, "round {round}");
        fs::create_dir(moved.join("here")).unwrap();
        assert_eq!(fs::read_dir(at(0, "away")).unwrap().count(), 0, "round {round}: made elsewhere");
        fs::remove_dir(moved.join("here")).unwrap();
        fs::rename(&moved, &over).unwrap();
        let alive = format!("/proc/self/fd/{}/alive", kept.as_raw_fd());
        fs::create_dir(&alive).unwrap_or_else(|error| panic!("round {round}: taken to be dead: {error}"));
        fs::remove_dir(alive).unwrap();
        [over, at(0, "kept"), at(0, "away")].iter().for_each(|path| fs::remove_dir(path).unwrap());
    }
}

/// A host that renames what nobody else changes has its kernel ask for no name again.
fn own_renames_leave_the_kernel_what_it_knows(two: &Two) {
    const KNOWN: usize = 50;
    /// Longer than the kernel keeps a name.
    const KEPT: Duration = Duration::from_millis(500);
    /// Well within the time for which it does.
    const QUICK: Duration = Duration::from_millis(250);
    let (here, requests) = (two.point(0).join("own"), || two.status(0)["requests"].as_u64().unwrap());
    fs::create_dir(&here).unwrap();
    let known: Vec<_> = (0..KNOWN).map(|n| here.join(format!("known{n}"))).collect();
    known.iter().for_each(|path| drop(File::create_new(path).unwrap()));
    let moved = |from: &str, to: &str| fs::rename(here.join(from), here.join(to)).unwrap();
    let is_quick = (0..20).any(|round| {
        // Then the kernel knows none of them any more, and learns of each anew.
        std::thread::sleep(KEPT);
        let begun = Instant::now();
        known.iter().for_each(|path| assert!(path.exists()));
        File::create(here.join("new")).unwrap();
        moved("new", "file");
        File::create(here.join("new")).unwrap();
        moved("new", "file");
        moved("file", "other");
        fs::remove_file(here.join("other")).unwrap();
        for name in ["dir", "empty"] {
            fs::create_dir(here.join(name)).unwrap();
        }
        moved("dir", "empty");
        fs::remove_dir(here.join("empty")).unwrap();
        let before = requests();
        known.iter().for_each(|path| assert!(path.exists()));
        let asked = requests() - before;
        let is_quick = begun.elapsed() < QUICK;
        assert!(!is_quick || asked < KNOWN as u64 / 2, "round {round}: {asked} requests for {KNOWN} names");
        is_quick
    });
    if !is_quick {
        skipped("this machine is too slow to tell what a rename has the kernel ask for");
    }
}

/// The same, of a file that may be empty.
fn first_mapped_of(file: &File) -> Option<u8> {
    (file.metadata().unwrap().len() > 0).then(|| first_mapped(file))
}

#[test]
fn who_opens_or_renames_gets_what_is_there_over_postgresql() {
    over_postgres(|two, _| {
        who_opens_sees_what_was_closed(&two);
        who_renames_finds_what_was_moved(&two);
        own_renames_leave_the_kernel_what_it_knows(&two);
        two.finish();
    });
}

#[test]
fn who_opens_or_renames_gets_what_is_there_over_redis() {
    over_redis(|two| {
        who_opens_sees_what_was_closed(&two);
        who_renames_finds_what_was_moved(&two);
        own_renames_leave_the_kernel_what_it_knows(&two);
        two.finish();
    });
}
