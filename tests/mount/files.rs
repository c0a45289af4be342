//! Files as the kernel and programs use them: names, links, maps, locks, temporary files.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::{Mounted, run};

fn errno<T: std::fmt::Debug>(outcome: std::io::Result<T>) -> i32 {
    outcome.unwrap_err().raw_os_error().unwrap()
}

#[test]
fn names_have_up_to_255_bytes_of_any_kind() {
    let Some(mut mounted) = Mounted::new() else { return };
    let path = |bytes: &[u8]| mounted.mount_point.join(OsStr::from_bytes(bytes));
    fs::write(path(&[b'x'; 255]), b"longest").unwrap();
    for outcome in [
        fs::write(path(&[b'x'; 256]), b""),
        fs::create_dir(path(&[b'x'; 256])),
        fs::rename(path(&[b'x'; 255]), path(&[b'y'; 256])),
        fs::hard_link(path(&[b'x'; 255]), path(&[b'y'; 256])),
        symlink("x", path(&[b'y'; 256])),
        fs::metadata(path(&[b'y'; 256])).map(drop),
    ] {
        assert_eq!(errno(outcome), libc::ENAMETOOLONG);
    }
    let odd: [&[u8]; 4] = [b"\xff\xfe", b"line\nbreak", b" ", "\u{1F980}".as_bytes()];
    for name in odd {
        fs::write(path(name), name).unwrap();
    }
    mounted.remount();
    for name in odd {
        assert_eq!(fs::read(mounted.mount_point.join(OsStr::from_bytes(name))).unwrap(), name);
    }
    mounted.finish();
}

#[test]
fn a_loop_of_symbolic_links_is_told() {
    let Some(mounted) = Mounted::new() else { return };
    symlink("b", mounted.path("a")).unwrap();
    symlink("a", mounted.path("b")).unwrap();
    assert_eq!(errno(fs::read(mounted.path("a"))), libc::ELOOP);
    assert_eq!(fs::read_link(mounted.path("a")).unwrap(), Path::new("b"));
    let follow = File::options().read(true).custom_flags(libc::O_NOFOLLOW).open(mounted.path("a"));
    assert_eq!(errno(follow), libc::ELOOP);
    mounted.finish();
}

#[test]
fn an_unnamed_temporary_file_is_refused_and_does_not_hang() {
    let Some(mounted) = Mounted::new() else { return };
    let open = File::options().write(true).custom_flags(libc::O_TMPFILE).open(&mounted.mount_point);
    assert_eq!(errno(open), libc::EOPNOTSUPP);
    // What programs do instead.
    let mut file = tempfile::tempfile_in(&mounted.mount_point).unwrap();
    file.write_all(&[b'x'; 100_000]).unwrap();
    file.seek(SeekFrom::Start(99_999)).unwrap();
    assert_eq!((file.read(&mut [0; 2]).unwrap(), file.metadata().unwrap().nlink()), (1, 0));
    drop(file);
    assert_eq!(fs::read_dir(&mounted.mount_point).unwrap().count(), 0);
    mounted.finish();
}

#[test]
fn an_open_file_without_a_name_is_read_written_and_cut() {
    let Some(mounted) = Mounted::new() else { return };
    for len in [100, 100_000] {
        let path = mounted.path("f");
        let mut file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        file.write_all(&vec![b'x'; len]).unwrap();
        fs::remove_file(&path).unwrap();
        file.set_len(10).unwrap();
        file.write_all_at(b"end", len as u64).unwrap();
        file.sync_all().unwrap();
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        let mut expected = vec![b'x'; 10];
        expected.resize(len, 0);
        expected.extend(b"end");
        assert!(bytes == expected);
        assert_eq!(file.metadata().unwrap().nlink(), 0);
    }
    mounted.finish();
}

#[test]
fn a_write_through_a_map_reaches_the_file_and_its_modification_time() {
    let Some(mut mounted) = Mounted::new() else { return };
    let path = mounted.path("f");
    for len in [100, 100_000usize] {
        fs::write(&path, vec![b'a'; len]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let before = file.metadata().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        write_through_map(&file, len);
        file.sync_all().unwrap();
        let after = fs::metadata(&path).unwrap();
        assert!((after.mtime(), after.mtime_nsec()) > (before.mtime(), before.mtime_nsec()), "{len} bytes");
        drop(file);
        mounted.remount();
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.len() == len && bytes[0] == b'B' && bytes[len - 1] == b'E', "{len} bytes");
    }
    mounted.finish();
}

/// Changes the first and the last byte.
pub(crate) fn write_through_map(file: &File, len: usize) {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new shared map of a file that is open for both, as long as the file is; nothing else is touched.
    let map =
        unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(map, libc::MAP_FAILED);
    // SAFETY: both places are within the map, and nobody else has it.
    unsafe {
        map.cast::<u8>().write(b'B');
        map.cast::<u8>().add(len - 1).write(b'E');
    }
    // SAFETY: the map that was made above, which nobody uses any more.
    unsafe {
        assert_eq!(libc::msync(map, len, libc::MS_SYNC), 0);
        assert_eq!(libc::munmap(map, len), 0);
    }
}

const CHILD_PATH: &str = "LOCKWOOD_TEST_POSIX_LOCK";

/// An exclusive POSIX record lock of the whole file.
fn posix_lock(file: &File) -> std::io::Result<()> {
    // SAFETY: a flock of zeros is a valid one.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: the descriptor is open and the structure lives throughout the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// The other process of the next test: does nothing unless it is told which file to lock.
#[test]
fn child_that_takes_a_posix_lock() {
    let Some(path) = std::env::var_os(CHILD_PATH) else { return };
    let file = File::options().read(true).write(true).open(path).unwrap();
    posix_lock(&file).unwrap();
}

#[test]
fn locks_of_fcntl_and_flock_keep_other_processes_out() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("f");
    let file = File::create_new(&path).unwrap();
    let in_child = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "files::child_that_takes_a_posix_lock"]).env(CHILD_PATH, &path);
        run(&mut command).code
    };
    let flock = || run(Command::new("flock").arg("-n").arg(&path).arg("true")).code;
    assert_eq!((in_child(), flock()), (0, 0));
    posix_lock(&file).unwrap();
    assert_eq!((in_child(), flock()), (101, 0));
    // Another descriptor of the same process, and its close gives the record lock up, as POSIX wants.
    drop(File::open(&path).unwrap());
    assert_eq!(in_child(), 0);
    file.lock().unwrap();
    assert_eq!((in_child(), flock()), (0, 1));
    file.unlock().unwrap();
    assert_eq!(flock(), 0);
    drop(file);
    mounted.finish();
}

#[test]
fn many_appenders_lose_nothing() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("log");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let path = &path;
            scope.spawn(move || {
                let mut file = File::options().append(true).create(true).open(path).unwrap();
                for line in 0..200 {
                    file.write_all(format!("{thread} {line:03}\n").as_bytes()).unwrap();
                }
            });
        }
    });
    let text = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!((text.len(), lines.len()), (800 * 6, 800));
    mounted.finish();
}

#[test]
fn ranges_are_copied_and_holes_stay_holes() {
    let Some(mounted) = Mounted::new() else { return };
    let from = mounted.path("from");
    let file = File::create(&from).unwrap();
    file.write_all_at(&[1; 70_000], 5 << 20).unwrap();
    file.set_len(64 << 20).unwrap();
    drop(file);
    assert_eq!(fs::copy(&from, mounted.path("to")).unwrap(), 64 << 20);
    let [from, to] = ["from", "to"].map(|name| fs::read(mounted.path(name)).unwrap());
    assert!(from == to);
    assert!(fs::metadata(mounted.path("to")).unwrap().blocks() < 2000);
    mounted.finish();
}
