//! The system calls of the host that the standard library does not offer, each behind one safe function, and what has
//! been learned of which of them the host's filesystem lacks. Knows nothing of inodes and segments. Imports nothing of
//! Lockwood.
//!
//! What is hard: filesystems differ. Each call that may be missing is tried, and once it proves missing it is not
//! tried again ([`Abilities`]); the callers hold the fallback. Tests clear an ability to drive that fallback.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// How many zeros are written at once where the host cannot do it better.
const ZEROS_BYTES: usize = 128 << 10;
static ZEROS: [u8; ZEROS_BYTES] = [0; ZEROS_BYTES];

/// The room on the filesystem that holds the content, in the units of statvfs(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// The unit of the three counts of blocks, in bytes.
    pub block_size: u64,
    /// All blocks.
    pub blocks: u64,
    /// Blocks that nothing uses.
    pub blocks_free: u64,
    /// Blocks that an ordinary user may still use.
    pub blocks_available: u64,
    /// All inodes.
    pub files: u64,
    /// Inodes that nothing uses.
    pub files_free: u64,
}

/// An operation that a host may lack, until it has been tried.
#[derive(Debug)]
pub(super) struct Ability(AtomicBool);

impl Ability {
    /// Tries `call`, unless the host is known to lack it. None if it does: the caller does it another way.
    pub(super) fn attempt<T>(&self, call: impl FnOnce() -> io::Result<T>) -> io::Result<Option<T>> {
        if !self.0.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match call() {
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EXDEV)) =>
            {
                self.lose();
                Ok(None)
            }
            done => done.map(Some),
        }
    }

    /// Notes that the host lacks it.
    pub(super) fn lose(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// The operations with a fallback.
#[derive(Debug)]
pub(super) struct Abilities {
    pub(super) punch_hole: Ability,
    pub(super) zero_range: Ability,
    pub(super) copy_range: Ability,
}

impl Abilities {
    /// Nothing is known to be missing.
    pub(super) fn untried() -> Self {
        let untried = || Ability(AtomicBool::new(true));
        Self { punch_hole: untried(), zero_range: untried(), copy_range: untried() }
    }
}

/// Reserves space for a range; the file's size stays, or with `grow` reaches to the end of the range.
pub(super) fn allocate(file: &File, start: u64, len: u64, grow: bool) -> io::Result<()> {
    fallocate(file, if grow { 0 } else { libc::FALLOC_FL_KEEP_SIZE }, start, len)
}

/// Frees the space of a range, which then reads as zeros; the file's size stays.
pub(super) fn punch_hole(file: &File, start: u64, len: u64) -> io::Result<()> {
    fallocate(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, start, len)
}

/// Makes a range read as zeros and keeps its space; the file's size stays.
pub(super) fn zero_range(file: &File, start: u64, len: u64) -> io::Result<()> {
    fallocate(file, libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE, start, len)
}

fn fallocate(file: &File, mode: i32, start: u64, len: u64) -> io::Result<()> {
    let (start, len) = (signed(start)?, signed(len)?);
    loop {
        // SAFETY: the descriptor is open while `file` is borrowed; no memory is passed.
        if unsafe { libc::fallocate(file.as_raw_fd(), mode, start, len) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Writes zeros over a range, in bounded pieces.
pub(super) fn write_zeros(file: &File, start: u64, len: u64) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        let piece = usize::try_from(len - done).map_or(ZEROS_BYTES, |left| left.min(ZEROS_BYTES));
        file.write_all_at(&ZEROS[..piece], start + done)?;
        done += piece as u64;
    }
    Ok(())
}

/// The first byte at or after `start` that may be other than zero; none if only holes follow. A host that cannot tell
/// has data up to the file's end.
pub(super) fn seek_data(file: &File, start: u64) -> io::Result<Option<u64>> {
    match seek(file, start, libc::SEEK_DATA) {
        Err(error) if cannot_seek(&error) => {
            Ok(Some(start).filter(|&at| file.metadata().is_ok_and(|m| at < m.len())))
        }
        found => found,
    }
}

/// The first byte at or after `start` that is in a hole; past the end of the file is one.
pub(super) fn seek_hole(file: &File, start: u64) -> io::Result<u64> {
    match seek(file, start, libc::SEEK_HOLE) {
        Err(error) if cannot_seek(&error) => Ok(file.metadata()?.len().max(start)),
        found => Ok(found?.unwrap_or(start)),
    }
}

/// The first stretch of `start..end` that may hold other than zeros, as its two ends.
pub(super) fn next_data(file: &File, start: u64, end: u64) -> io::Result<Option<(u64, u64)>> {
    match seek_data(file, start)? {
        // A hole punched between the two calls would make the stretch empty; it is then one byte, so that whoever
        // walks the stretches goes on.
        Some(data) if data < end => Ok(Some((data, seek_hole(file, data)?.clamp(data + 1, end)))),
        _ => Ok(None),
    }
}

/// The head of FIEMAP's request, and the one extent that is asked for: see the kernel's documentation of fiemap.
#[repr(C)]
#[derive(Default)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extent: FiemapExtent,
}

#[repr(C)]
#[derive(Default)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `_IOWR('f', 11, struct fiemap)`, without its extents.
const FS_IOC_FIEMAP: libc::Ioctl = 0xC020_660B_u32 as libc::Ioctl;
/// Compressed, beside the inode, or shared with other files: to write there takes a new place.
const EXTENT_MOVES: u32 = 0x0008 | 0x0200 | 0x2000;

/// Whether all of `start..end` has a place on the disk of which it is the only user, be it written or reserved. Of a host
/// that does not say so, all that is no hole has.
pub(super) fn is_allocated(file: &File, start: u64, end: u64) -> io::Result<bool> {
    let mut at = start;
    while at < end {
        let mut asked = Fiemap { start: at, length: end - at, extent_count: 1, ..Fiemap::default() };
        // SAFETY: the descriptor is open while `file` is borrowed; the struct has room for the one extent that it says.
        if unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &raw mut asked) } != 0 {
            return match io::Error::last_os_error() {
                error if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOTTY)) => {
                    Ok(seek_hole(file, start)? >= end)
                }
                error => Err(error),
            };
        }
        let FiemapExtent { logical, length, flags, .. } = asked.extent;
        let next = logical.saturating_add(length);
        if asked.mapped_extents == 0 || logical > at || next <= at || flags & EXTENT_MOVES != 0 {
            return Ok(false);
        }
        at = next;
    }
    Ok(true)
}

fn cannot_seek(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS))
}

/// lseek(2), of which only the answer is of use: all I/O here names its offset. None at the end of the file.
fn seek(file: &File, start: u64, whence: i32) -> io::Result<Option<u64>> {
    // SAFETY: the descriptor is open while `file` is borrowed; no memory is passed.
    let found = unsafe { libc::lseek(file.as_raw_fd(), signed(start)?, whence) };
    match u64::try_from(found) {
        Ok(at) => Ok(Some(at)),
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            error => Err(error),
        },
    }
}

/// Copies at most `len` bytes inside the host, sharing blocks where it can. Returns how many; 0 at the source's end.
pub(super) fn copy_range(source: &File, from: u64, target: &File, to: u64, len: usize) -> io::Result<u64> {
    let (mut from, mut to) = (signed(from)?, signed(to)?);
    loop {
        // SAFETY: both descriptors are open while their files are borrowed, and both offsets are locals that outlive
        // the call.
        let copied = unsafe {
            libc::copy_file_range(source.as_raw_fd(), &raw mut from, target.as_raw_fd(), &raw mut to, len, 0)
        };
        if let Ok(copied) = u64::try_from(copied) {
            return Ok(copied);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// The room on the filesystem that holds `path`.
pub(super) fn space(path: &Path) -> io::Result<Space> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut answer = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `path` ends in a zero byte and `answer` has room for the struct that the call writes.
    if unsafe { libc::statvfs(path.as_ptr(), answer.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has written the whole struct.
    let answer = unsafe { answer.assume_init() };
    Ok(Space {
        block_size: answer.f_frsize,
        blocks: answer.f_blocks,
        blocks_free: answer.f_bfree,
        blocks_available: answer.f_bavail,
        files: answer.f_files,
        files_free: answer.f_ffree,
    })
}

fn signed(offset: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}
