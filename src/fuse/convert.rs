//! Between the types of the namespace and those of `fuser`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};

use crate::document::{Body, FileKind, Ino, Node, Timestamp};
use crate::namespace::ops::attributes::Time;

/// How long the kernel may keep what it was told: for ever. One process owns the store, and all changes go through the
/// kernel or are told to it.
pub(super) const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

const BLOCK_SIZE: u32 = 4096;

pub(super) fn attr(ino: Ino, node: &Node) -> FileAttr {
    let rdev = match node.body {
        Body::CharDevice { rdev } | Body::BlockDevice { rdev } => rdev,
        _ => 0,
    };
    FileAttr {
        ino: INodeNo(ino.0),
        size: node.size(),
        blocks: node.regular().map_or(0, |regular| regular.blocks),
        atime: node.atime.to_system_time(),
        mtime: node.mtime.to_system_time(),
        ctime: node.ctime.to_system_time(),
        crtime: node.btime.to_system_time(),
        kind: file_type(node.kind()),
        perm: (node.mode & 0o7777) as u16,
        nlink: node.nlink,
        uid: node.uid,
        gid: node.gid,
        rdev,
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

/// The attributes of no inode: with them the kernel remembers that a name does not exist.
pub(super) fn absent() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

pub(super) fn time(time: TimeOrNow) -> Time {
    match time {
        TimeOrNow::Now => Time::Now,
        TimeOrNow::SpecificTime(time) => Time::At(received(time)),
    }
}

/// A time as the kernel sent it. `fuser` 0.18.0 reads `sec` seconds and `nsec` nanoseconds before 1970 as `sec` seconds
/// *less* `nsec` nanoseconds; taken apart the same way, the two are right again.
fn received(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(_) => time.into(),
        Err(error) => {
            let before = error.duration();
            let sec = i64::try_from(before.as_secs()).map_or(i64::MIN, |sec| -sec);
            Timestamp { sec, nsec: before.subsec_nanos() }
        }
    }
}
