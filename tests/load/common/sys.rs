//! Thin, safe wrappers of the system calls that the load programs make: always relative to an open directory, never
//! following a symlink in the last component, one call each, the errno untouched.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

fn c(name: &str) -> io::Result<CString> {
    CString::new(name).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens a directory by path.
pub(crate) fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    File::open(path.join(".")).map(OwnedFd::from)
}

/// `openat(2)` with `O_CLOEXEC | O_NOFOLLOW` added.
pub(crate) fn open_at(dir: impl AsFd, name: &str, flags: i32, mode: u32) -> io::Result<OwnedFd> {
    let (name, flags) = (c(name)?, flags | libc::O_CLOEXEC | libc::O_NOFOLLOW);
    // SAFETY: the name is a live C string and the descriptor is borrowed for the call.
    let fd = unsafe { libc::openat(dir.as_fd().as_raw_fd(), name.as_ptr(), flags, mode as libc::mode_t) };
    done(fd)?;
    // SAFETY: openat has just returned this descriptor and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens a directory below another.
pub(crate) fn open_dir_at(dir: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    open_at(dir, name, libc::O_RDONLY | libc::O_DIRECTORY, 0)
}

/// Makes an empty file that was not there.
pub(crate) fn create_at(dir: impl AsFd, name: &str) -> io::Result<File> {
    open_at(dir, name, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, 0o644).map(File::from)
}

/// `fstatat(2)`, not following a symlink.
pub(crate) fn stat_at(dir: impl AsFd, name: &str) -> io::Result<libc::stat> {
    let name = c(name)?;
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: name and buffer live through the call; all-zero bytes are a valid `stat` in any case.
    unsafe {
        let fd = dir.as_fd().as_raw_fd();
        done(libc::fstatat(fd, name.as_ptr(), stat.as_mut_ptr(), libc::AT_SYMLINK_NOFOLLOW))?;
        Ok(stat.assume_init())
    }
}

/// `fstat(2)`; works for a file that has no name any more.
pub(crate) fn stat_fd(fd: impl AsFd) -> io::Result<libc::stat> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the buffer lives through the call; all-zero bytes are a valid `stat` in any case.
    unsafe {
        done(libc::fstat(fd.as_fd().as_raw_fd(), stat.as_mut_ptr()))?;
        Ok(stat.assume_init())
    }
}

/// `mkdirat(2)`.
pub(crate) fn mkdir_at(dir: impl AsFd, name: &str) -> io::Result<()> {
    let name = c(name)?;
    // SAFETY: the name is a live C string and the descriptor is borrowed for the call.
    done(unsafe { libc::mkdirat(dir.as_fd().as_raw_fd(), name.as_ptr(), 0o755) })
}

fn remove_at(dir: impl AsFd, name: &str, flags: i32) -> io::Result<()> {
    let name = c(name)?;
    // SAFETY: the name is a live C string and the descriptor is borrowed for the call.
    done(unsafe { libc::unlinkat(dir.as_fd().as_raw_fd(), name.as_ptr(), flags) })
}

/// `unlinkat(2)` of a file.
pub(crate) fn unlink_at(dir: impl AsFd, name: &str) -> io::Result<()> {
    remove_at(dir, name, 0)
}

/// `unlinkat(2)` of an empty directory.
pub(crate) fn rmdir_at(dir: impl AsFd, name: &str) -> io::Result<()> {
    remove_at(dir, name, libc::AT_REMOVEDIR)
}

/// `renameat2(2)`; the flags are `RENAME_NOREPLACE`, `RENAME_EXCHANGE` or 0.
pub(crate) fn rename_at(
    from: impl AsFd,
    old: &str,
    to: impl AsFd,
    new: &str,
    flags: libc::c_uint,
) -> io::Result<()> {
    let (old, new) = (c(old)?, c(new)?);
    let (from, to) = (from.as_fd().as_raw_fd(), to.as_fd().as_raw_fd());
    // SAFETY: both names are live C strings and the descriptors are borrowed for the call.
    done(unsafe { libc::renameat2(from, old.as_ptr(), to, new.as_ptr(), flags) })
}

/// `linkat(2)` of a file.
pub(crate) fn link_at(dir: impl AsFd, old: &str, new: &str) -> io::Result<()> {
    let (old, new, dir) = (c(old)?, c(new)?, dir.as_fd().as_raw_fd());
    // SAFETY: both names are live C strings and the descriptor is borrowed for the call.
    done(unsafe { libc::linkat(dir, old.as_ptr(), dir, new.as_ptr(), 0) })
}

/// `symlinkat(2)`.
pub(crate) fn symlink_at(target: &str, dir: impl AsFd, name: &str) -> io::Result<()> {
    let (target, name) = (c(target)?, c(name)?);
    // SAFETY: both are live C strings and the descriptor is borrowed for the call.
    done(unsafe { libc::symlinkat(target.as_ptr(), dir.as_fd().as_raw_fd(), name.as_ptr()) })
}

/// `readlinkat(2)`.
pub(crate) fn readlink_at(dir: impl AsFd, name: &str) -> io::Result<String> {
    let name = c(name)?;
    let mut buffer = [0u8; 4096];
    let room = buffer.len();
    // SAFETY: the kernel writes at most `room` bytes into a buffer of that size.
    let length =
        unsafe { libc::readlinkat(dir.as_fd().as_raw_fd(), name.as_ptr(), buffer.as_mut_ptr().cast(), room) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// `fchmodat(2)`.
pub(crate) fn chmod_at(dir: impl AsFd, name: &str, mode: u32) -> io::Result<()> {
    let name = c(name)?;
    // SAFETY: the name is a live C string and the descriptor is borrowed for the call.
    done(unsafe { libc::fchmodat(dir.as_fd().as_raw_fd(), name.as_ptr(), mode as libc::mode_t, 0) })
}

/// `fsetxattr(2)`.
pub(crate) fn set_xattr(fd: impl AsFd, name: &str, value: &[u8]) -> io::Result<()> {
    let name = c(name)?;
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: name and value live through the call; the length is the value's.
    done(unsafe { libc::fsetxattr(fd, name.as_ptr(), value.as_ptr().cast(), value.len(), 0) })
}

/// `fremovexattr(2)`.
pub(crate) fn remove_xattr(fd: impl AsFd, name: &str) -> io::Result<()> {
    let name = c(name)?;
    // SAFETY: the name is a live C string and the descriptor is borrowed for the call.
    done(unsafe { libc::fremovexattr(fd.as_fd().as_raw_fd(), name.as_ptr()) })
}

/// `fgetxattr(2)`; `None` if there is no such attribute.
pub(crate) fn get_xattr(fd: impl AsFd, name: &str) -> io::Result<Option<Vec<u8>>> {
    let name = c(name)?;
    let mut value = vec![0u8; 4096];
    let room = value.len();
    // SAFETY: the kernel writes at most `room` bytes into a buffer of that size.
    let length =
        unsafe { libc::fgetxattr(fd.as_fd().as_raw_fd(), name.as_ptr(), value.as_mut_ptr().cast(), room) };
    match usize::try_from(length) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(_) => match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ENODATA) => Ok(None),
            e => Err(e),
        },
    }
}

/// The names in a directory, without `.` and `..`, each with its `d_type`, by `getdents64(2)` on a fresh descriptor.
pub(crate) fn read_dir(dir: impl AsFd) -> io::Result<Vec<(String, u8)>> {
    let fd = open_dir_at(dir, ".")?;
    let mut buffer = vec![0u8; 64 * 1024];
    let mut entries = Vec::new();
    loop {
        // SAFETY: the kernel writes at most the buffer's length into it.
        let got =
            unsafe { libc::syscall(libc::SYS_getdents64, fd.as_raw_fd(), buffer.as_mut_ptr(), buffer.len()) };
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        if got == 0 {
            return Ok(entries);
        }
        // linux_dirent64: ino u64, off i64, reclen u16, type u8, name with a final NUL.
        let mut rest = &buffer[..got];
        while rest.len() > 19 {
            let length = usize::from(u16::from_ne_bytes([rest[16], rest[17]])).clamp(19, rest.len());
            let name = &rest[19..length];
            let name =
                String::from_utf8_lossy(&name[..name.iter().position(|b| *b == 0).unwrap_or(name.len())]);
            if name != "." && name != ".." {
                entries.push((name.into_owned(), rest[18]));
            }
            rest = &rest[length..];
        }
    }
}

/// Removes a directory and all below it, if it is there.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// For the start of a program: as many open files as the hard limit has, and a silent end when the reader of its output
/// is gone.
pub(crate) fn set_up_process() {
    // SAFETY: the default action of a signal needs no handler; no other thread runs yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls take a live `rlimit`; a refusal leaves the old limit, which is no harm.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// The processors that this process may run on; none if the kernel does not say.
pub(crate) fn cores() -> Vec<usize> {
    // SAFETY: a set of processors is bits, and all of them may be 0.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is live and of the size that is given.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } != 0 {
        return Vec::new();
    }
    // SAFETY: each number is within the set.
    (0..libc::CPU_SETSIZE as usize).filter(|core| unsafe { libc::CPU_ISSET(*core, &set) }).collect()
}

/// Keeps this thread on one of the [`cores`].
pub(crate) fn stay_on(core: usize) -> io::Result<()> {
    // SAFETY: as above; the number is one that the kernel has given.
    let refused = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    if refused == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The symbol of an errno, as people know it.
pub(crate) fn errno_name(errno: i32) -> String {
    let name = match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EINTR => "EINTR",
        libc::EIO => "EIO",
        libc::EAGAIN => "EAGAIN",
        libc::EACCES => "EACCES",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::EXDEV => "EXDEV",
        libc::ENODEV => "ENODEV",
        libc::ENOTDIR => "ENOTDIR",
        libc::EISDIR => "EISDIR",
        libc::EINVAL => "EINVAL",
        libc::EMFILE => "EMFILE",
        libc::ENOSPC => "ENOSPC",
        libc::EROFS => "EROFS",
        libc::EMLINK => "EMLINK",
        libc::ENOSYS => "ENOSYS",
        libc::ENOTEMPTY => "ENOTEMPTY",
        libc::ELOOP => "ELOOP",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::ECONNABORTED => "ECONNABORTED",
        libc::ENOTCONN => "ENOTCONN",
        libc::ESTALE => "ESTALE",
        other => return format!("errno {other}"),
    };
    name.to_owned()
}
