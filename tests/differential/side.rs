//! One of the two sides: a directory, system calls in it, and the files that are open there.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    self as sys, AtFlags, FallocateFlags, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps,
    XattrFlags,
};
use rustix::io::{Errno, pread, pwrite};

use crate::draw::Op;

/// Bytes that a call gave, or its errno.
pub(crate) type Outcome = Result<Vec<u8>, Errno>;

pub(crate) struct Side {
    root: PathBuf,
    directory: Option<OwnedFd>,
    open: BTreeMap<usize, OwnedFd>,
}

fn done(outcome: Result<(), Errno>) -> Outcome {
    outcome.map(|()| Vec::new())
}

impl Side {
    pub(crate) fn new(root: &Path) -> Self {
        let mut side = Self { root: root.to_owned(), directory: None, open: BTreeMap::new() };
        side.enter();
        side
    }

    /// Lets go of everything, so that it can be unmounted.
    pub(crate) fn leave(&mut self) {
        self.open.clear();
        self.directory = None;
    }

    pub(crate) fn enter(&mut self) {
        self.directory = Some(File::open(&self.root).expect("a directory").into());
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn at(&self) -> &OwnedFd {
        self.directory.as_ref().expect("a directory")
    }

    fn open_at(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        // Without O_NONBLOCK a named pipe would wait for its other end.
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
        sys::openat(self.at(), path, flags, Mode::from_raw_mode(0o666))
    }

    pub(crate) fn modified(&self, path: &str) -> Option<(i64, u64)> {
        let stat = sys::statat(self.at(), path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some((stat.st_mtime, stat.st_mtime_nsec as u64))
    }

    /// Type, mode, owner, links and size; of a directory no size.
    fn stat(stat: &sys::Stat) -> Vec<u8> {
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let size = if is_directory { 0 } else { stat.st_size };
        let owner = (stat.st_uid, stat.st_gid);
        format!("{:o} {owner:?} {} {size} {}", stat.st_mode, stat.st_nlink, stat.st_rdev).into_bytes()
    }

    pub(crate) fn perform(&mut self, op: &Op) -> Outcome {
        let at = self.at();
        match op {
            Op::Mkdir(path, mode) => done(sys::mkdirat(at, path, Mode::from_raw_mode(*mode))),
            Op::Rmdir(path) => done(sys::unlinkat(at, path, AtFlags::REMOVEDIR)),
            Op::Unlink(path) => done(sys::unlinkat(at, path, AtFlags::empty())),
            Op::Create(path) => {
                self.open_at(path, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY).map(|_| Vec::new())
            }
            Op::Node(path, kind, rdev) => {
                done(sys::mknodat(at, path, *kind, Mode::from_raw_mode(0o640), *rdev))
            }
            Op::Symlink(target, path) => done(sys::symlinkat(target.as_str(), at, path)),
            Op::Link(from, to) => done(sys::linkat(at, from, at, to, AtFlags::empty())),
            Op::Rename(from, to, flags) => self.rename(from, to, *flags),
            Op::Stat(path) => sys::statat(at, path, AtFlags::SYMLINK_NOFOLLOW).map(|s| Self::stat(&s)),
            Op::Readlink(path) => sys::readlinkat(at, path, Vec::new()).map(|target| target.into_bytes()),
            Op::Chmod(path, mode) => {
                done(sys::chmodat(at, path, Mode::from_raw_mode(*mode), AtFlags::empty()))
            }
            Op::Chown(path, uid, gid) => {
                let (uid, gid) = (sys::Uid::from_raw(*uid), sys::Gid::from_raw(*gid));
                done(sys::chownat(at, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW))
            }
            Op::SetTimes(path, sec, nsec) => self.set_times(path, *sec, *nsec),
            Op::SetXattr(path, name, value, flags) => {
                let flags = XattrFlags::from_bits_retain(*flags);
                done(sys::lsetxattr(self.root.join(path), name.as_str(), value, flags))
            }
            Op::GetXattr(path, name) => {
                let mut value = vec![0; 4096];
                let len = sys::lgetxattr(self.root.join(path), name.as_str(), &mut value)?;
                value.truncate(len);
                Ok(value)
            }
            Op::RemoveXattr(path, name) => done(sys::lremovexattr(self.root.join(path), name.as_str())),
            _ => self.perform_on_bytes(op),
        }
    }

    /// A whiteout is seen and then removed: ext4 gives it the access control list of its directory, we give it none, and
    /// nobody looks at it.
    fn rename(&self, from: &str, to: &str, flags: u32) -> Outcome {
        let at = self.at();
        sys::renameat_with(at, from, at, to, RenameFlags::from_bits_retain(flags))?;
        match sys::statat(at, from, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(left) if left.st_mode == libc::S_IFCHR && left.st_rdev == 0 => {
                sys::unlinkat(at, from, AtFlags::empty())?;
                Ok(b"a whiteout was left".to_vec())
            }
            Ok(_) => Ok(b"something else is there".to_vec()),
            Err(error) => Ok(format!("{error}").into_bytes()),
        }
    }

    fn set_times(&self, path: &str, sec: i64, nsec: i64) -> Outcome {
        let time = Timespec { tv_sec: sec, tv_nsec: nsec };
        let times = Timestamps { last_access: time, last_modification: time };
        sys::utimensat(self.at(), path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        let (sec, nsec) = self.modified(path).ok_or(Errno::NOENT)?;
        Ok(format!("{sec} {nsec}").into_bytes())
    }

    fn perform_on_bytes(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Write(path, offset, data) => {
                let file = self.open_at(path, OFlags::CREATE | OFlags::WRONLY)?;
                pwrite(&file, data, *offset).map(|len| len.to_le_bytes().to_vec())
            }
            Op::Append(path, data) => {
                let file = self.open_at(path, OFlags::WRONLY | OFlags::APPEND)?;
                pwrite(&file, data, 0).map(|len| len.to_le_bytes().to_vec())
            }
            Op::Read(path, offset, len) => Self::read(&self.open_at(path, OFlags::RDONLY)?, *offset, *len),
            Op::Truncate(path, size) => done(sys::ftruncate(self.open_at(path, OFlags::WRONLY)?, *size)),
            Op::Overwrite(path) => self.open_at(path, OFlags::WRONLY | OFlags::TRUNC).map(|_| Vec::new()),
            Op::Fallocate(path, mode, offset, len) => {
                let file = self.open_at(path, OFlags::WRONLY)?;
                done(sys::fallocate(&file, FallocateFlags::from_bits_retain(*mode), *offset, *len))
            }
            Op::Copy(from, to, offsets, len) => {
                let [mut source, mut target] = *offsets;
                let from = self.open_at(from, OFlags::RDONLY)?;
                let to = self.open_at(to, OFlags::WRONLY)?;
                // How much is copied at once is the file system's choice: all of it is what counts.
                let mut left = *len;
                while left > 0 {
                    match sys::copy_file_range(&from, Some(&mut source), &to, Some(&mut target), left)? {
                        0 => break,
                        copied => left -= copied,
                    }
                }
                Ok((len - left).to_le_bytes().to_vec())
            }
            _ => self.perform_on_open(op),
        }
    }

    fn perform_on_open(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Open(slot, path) => {
                let file = self.open_at(path, OFlags::RDWR)?;
                self.open.insert(*slot, file);
                Ok(Vec::new())
            }
            Op::Close(slot) => self.open.remove(slot).map(|_| Vec::new()).ok_or(Errno::BADF),
            Op::WriteOpen(slot, offset, data) => {
                pwrite(self.slot(*slot)?, data, *offset).map(|len| len.to_le_bytes().to_vec())
            }
            Op::ReadOpen(slot, offset, len) => Self::read(self.slot(*slot)?, *offset, *len),
            Op::TruncateOpen(slot, size) => done(sys::ftruncate(self.slot(*slot)?, *size)),
            Op::StatOpen(slot) => sys::fstat(self.slot(*slot)?).map(|stat| Self::stat(&stat)),
            Op::SyncOpen(slot) => done(sys::fsync(self.slot(*slot)?)),
            other => unreachable!("{other:?} is done elsewhere"),
        }
    }

    fn slot(&self, slot: usize) -> Result<&OwnedFd, Errno> {
        self.open.get(&slot).ok_or(Errno::BADF)
    }

    fn read(file: &OwnedFd, offset: u64, len: usize) -> Outcome {
        let mut bytes = vec![0; len];
        let mut filled = 0;
        while filled < len {
            match pread(file, &mut bytes[filled..], offset + filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }
}
