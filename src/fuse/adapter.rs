//! The adapter: decode a request, call the namespace, reply. No semantics.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;

use super::advisory::LockCall;
use super::control::{self, Control};
use super::convert::{FOREVER, attr, file_type, time};
use super::errno::report;
use super::flusher::Flusher;
use super::kernel_cache::KernelCache;
use super::passthrough::Passthrough;
use super::waiting::WaitingRoom;
use crate::ambient;
use crate::document::{Ino, Name};
use crate::namespace::ops::attributes::Change;
use crate::namespace::ops::later::Told;
use crate::namespace::ops::make::What;
use crate::namespace::ops::space::Allocation;
use crate::namespace::ops::write::Privileges;
use crate::namespace::{Caller, Namespace, NamespaceError, Result};

const MAX_WRITE: u32 = 1 << 20;
const MAX_BACKGROUND: u16 = 64;

/// As many entries are read from the store at once for a listing: several replies' worth, as a store answers for many at
/// once with less than for as many alone.
const LISTED_PAGE: usize = 512;

/// Inode numbers are never reused, so one generation is enough.
pub(super) const GENERATION: Generation = Generation(0);

/// What the handlers share.
pub(super) struct Shared {
    pub(super) namespace: Namespace,
    pub(super) control: Control,
    pub(super) waiting: WaitingRoom,
    /// Apart from the others: who waits for an advisory lock may do so for ever.
    pub(super) lock_waits: WaitingRoom,
    pub(super) cache: Arc<KernelCache>,
    pub(super) flusher: Flusher,
    pub(super) passthrough: Passthrough,
    /// Whether there are extended attributes and access control lists. The kernel asks once for what is not implemented.
    pub(super) attributes: bool,
    /// All mounts of the process, this one among them.
    pub(super) mounts: OnceLock<Vec<Weak<Shared>>>,
    /// The root's attributes as they were known last.
    pub(super) root: Mutex<Option<FileAttr>>,
    /// Requests of the kernel that were answered, but those for control files. FORGET has no answer.
    pub(super) requests: AtomicU64,
    /// The number of the last file that was opened.
    pub(super) handles: AtomicU64,
}

/// The file system as `fuser` calls it.
#[derive(Clone)]
pub(super) struct Adapter(pub(super) Arc<Shared>);

pub(super) fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

pub(super) fn name(bytes: &OsStr) -> Result<Name> {
    Ok(Name::new(bytes.as_bytes())?)
}

/// An errno for a result, reported where that is due.
pub(super) fn failed<'a>(operation: &'a str, ino: INodeNo) -> impl FnOnce(NamespaceError) -> Errno + 'a {
    move |error| report(operation, &format_args!("inode {ino}"), &error)
}

pub(super) fn reply_empty(reply: ReplyEmpty, outcome: std::result::Result<(), Errno>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

impl Adapter {
    /// One request more.
    fn count(&self) {
        self.0.requests.fetch_add(1, Relaxed);
    }

    /// For one request.
    pub(super) fn namespace(&self) -> &Namespace {
        self.count();
        &self.0.namespace
    }

    /// Does what may take long in a thread that serves no other requests.
    pub(super) fn aside(&self, work: impl FnOnce(&Self) + Send + 'static) {
        let adapter = self.clone();
        self.0.waiting.run_somewhere(move || work(&adapter));
    }

    /// Lets the kernel know before the reply that a file has lost privileges: nobody may run it with them afterwards.
    pub(super) fn tell(&self, ino: INodeNo, privileges: Privileges) {
        if privileges == Privileges::Dropped {
            self.0.cache.notices.attributes(Ino(ino.0));
        }
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = InitFlags::FUSE_EXPORT_SUPPORT
            | InitFlags::FUSE_DONT_MASK
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_ASYNC_DIO
            | self.attribute_capabilities()
            | self.0.cache.capabilities();
        for flag in wanted.iter() {
            if config.add_capabilities(flag).is_err() {
                log::warn!("this kernel lacks {flag:?}; see docs/semantics.md for what that costs");
            }
        }
        self.0.passthrough.negotiate(config);
        // Both are below what fuser allows, and then they cannot fail.
        let _ = config.set_max_write(MAX_WRITE);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, bytes: &OsStr, reply: ReplyEntry) {
        self.look_up(parent, bytes, reply);
    }

    fn forget(&self, _request: &Request, ino: INodeNo, lookups: u64) {
        if control::owns(ino) {
            return self.0.control.forget(ino);
        }
        self.0.cache.take_back(Ino(ino.0), lookups);
        self.0.namespace.forget(Ino(ino.0));
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        if control::owns(ino) {
            return match self.0.control.attributes(ino) {
                Some(attr) => reply.attr(&control::TTL, &attr),
                None => reply.error(Errno::ENOENT),
            };
        }
        let is_root = ino == INodeNo::ROOT;
        // While the store is away `.lockwood` says so; Linux asks for the root before it looks there.
        let is_away = || self.namespace().store().outage().is_some();
        let known = || if is_root && is_away() { *self.0.root.lock() } else { None };
        if let Some(attr) = known() {
            return reply.attr(&control::TTL, &attr);
        }
        let asked = ambient::monotonic();
        match self.namespace().attributes(Ino(ino.0)).map(|node| attr(Ino(ino.0), &node)) {
            Ok(attr) => {
                if is_root {
                    *self.0.root.lock() = Some(attr);
                }
                reply.attr(&self.0.cache.asked_ttl(asked), &attr);
            }
            Err(error) => match known() {
                Some(attr) => reply.attr(&control::TTL, &attr),
                None => reply.error(self.failed_by_name("getattr", ino)(error)),
            },
        }
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if control::owns(ino) {
            // Opening a control file for writing may truncate it; nothing else about it changes.
            return match self.0.control.attributes(ino) {
                Some(attr) if mode.or(uid).or(gid).is_none() => reply.attr(&control::TTL, &attr),
                _ => reply.error(Errno::EPERM),
            };
        }
        let change = Change { mode, uid, gid, size, atime: atime.map(time), mtime: mtime.map(time) };
        let asked = ambient::monotonic();
        match self.namespace().change(caller(request), Ino(ino.0), &change) {
            Ok(node) => reply.attr(&self.0.cache.attribute_ttl(asked), &attr(Ino(ino.0), &node)),
            Err(error) => reply.error(self.failed_by_name("setattr", ino)(error)),
        }
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        match self.namespace().readlink(Ino(ino.0)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(self.failed_by_name("readlink", ino)(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        bytes: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let what = match mode & libc::S_IFMT {
            libc::S_IFREG | 0 => What::Regular,
            libc::S_IFIFO => What::Fifo,
            libc::S_IFSOCK => What::Socket,
            libc::S_IFCHR => What::CharDevice(rdev),
            libc::S_IFBLK => What::BlockDevice(rdev),
            _ => return reply.error(Errno::EINVAL),
        };
        let asked = ambient::monotonic();
        let made = self.make(request, parent, bytes, what, mode, umask);
        self.reply_entry(reply, asked, (parent, bytes), made.map_err(failed("mknod", parent)));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        bytes: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let asked = ambient::monotonic();
        let made = self.make(request, parent, bytes, What::Directory, mode, umask);
        self.reply_entry(reply, asked, (parent, bytes), made.map_err(failed("mkdir", parent)));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, bytes: &OsStr, target: &Path, reply: ReplyEntry) {
        let what = What::Symlink(target.as_os_str().as_bytes().to_vec());
        let asked = ambient::monotonic();
        let made = self.make(request, parent, bytes, what, 0o777, 0);
        self.reply_entry(reply, asked, (parent, bytes), made.map_err(failed("symlink", parent)));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, bytes: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.remove(parent, bytes, Namespace::unlink).map_err(failed("unlink", parent)));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, bytes: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.remove_directory(parent, bytes).map_err(failed("rmdir", parent)));
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        old: &OsStr,
        new_parent: INodeNo,
        new: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.move_name(caller(request), (parent, old), (new_parent, new), flags, reply);
    }

    fn link(&self, _request: &Request, ino: INodeNo, parent: INodeNo, bytes: &OsStr, reply: ReplyEntry) {
        let asked = ambient::monotonic();
        let linked = control::refuse(parent, bytes)
            .and_then(|()| name(bytes))
            .and_then(|name| self.namespace().link(Ino(ino.0), Ino(parent.0), &name));
        self.reply_entry(reply, asked, (parent, bytes), linked.map_err(self.failed_by_name("link", ino)));
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.open_file(ino, flags, reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        bytes: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.create_file(caller(request), (parent, bytes), (mode, umask), flags, reply);
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if control::owns(ino) {
            return match control::read(&self.0, fh, offset, size) {
                Some(bytes) => reply.data(&bytes),
                None => reply.error(Errno::EBADF),
            };
        }
        match self.namespace().read(Ino(ino.0), offset, size) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(self.failed_by_name("read", ino)(error)),
        }
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.write_bytes(request, (ino, fh), (offset, data), write_flags, flags, reply);
    }

    fn flush(&self, _request: &Request, ino: INodeNo, fh: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        self.flush_bytes(ino, fh, owner, reply);
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if control::owns(ino) {
            control::close(&self.0, fh);
            return reply.ok();
        }
        reply_empty(reply, self.release_file(ino, fh));
    }

    fn getlk(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        self.test_lock(request, &LockCall { ino, fh, owner: lock_owner, start, end, typ, pid }, reply);
    }

    fn setlk(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        self.set_lock(request, &LockCall { ino, fh, owner: lock_owner, start, end, typ, pid }, sleep, reply);
    }

    fn fsync(&self, _request: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        if control::owns(ino) {
            return reply.ok();
        }
        self.sync_file(ino, fh, datasync, reply);
    }

    fn fsyncdir(&self, _request: &Request, ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.aside(move |adapter| {
            let namespace = adapter.namespace();
            let synced = namespace.sync();
            let synced = namespace.lost(Ino(ino.0), fh.0, Told::ByFsync).and(synced);
            reply_empty(reply, synced.map_err(failed("fsync", ino)));
        });
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.count();
        // Not to be kept by the kernel: it ends a listing at an offset whose entry has gone since.
        reply.opened(self.opened_directory(ino), FopenFlags::empty());
    }

    fn releasedir(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.count();
        self.0.namespace.closed(Ino(ino.0), fh.0);
        reply.ok();
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if control::owns(ino) {
            return self.0.control.list(&self.0.namespace, ino, offset, reply);
        }
        let listed = self.namespace().list(Ino(ino.0), offset, LISTED_PAGE, |entry| {
            let name = OsStr::from_bytes(&entry.name);
            !reply.add(INodeNo(entry.ino.0), entry.next, file_type(entry.kind), name)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(failed("readdir", ino)(error)),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        if control::owns(ino) {
            return self.0.control.list_with_attributes(&self.0.namespace, ino, offset, reply);
        }
        let namespace = self.namespace();
        let listed = namespace.list(Ino(ino.0), offset, LISTED_PAGE, |entry| {
            let node = match namespace.listed_attributes(entry) {
                Ok(Some(node)) => node,
                Ok(None) => return true, // Removed since the page was read.
                Err(error) => {
                    // One damaged node must not hide the others.
                    report("readdir", &format_args!("inode {}", entry.ino), &error);
                    return true;
                }
            };
            let name = OsStr::from_bytes(&entry.name);
            let attr: FileAttr = attr(entry.ino, &node);
            !reply.add(INodeNo(entry.ino.0), entry.next, name, &FOREVER, &attr, GENERATION)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(failed("readdir", ino)(error)),
        }
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        match self.namespace().space() {
            Ok(s) => {
                let block = u32::try_from(s.block_size).unwrap_or(4096);
                let name_max = crate::document::name::NAME_MAX as u32;
                reply.statfs(
                    s.blocks,
                    s.blocks_free,
                    s.blocks_available,
                    s.files,
                    s.files_free,
                    block,
                    name_max,
                    block,
                );
            }
            Err(error) => reply.error(failed("statfs", INodeNo::ROOT)(error)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.set_attribute(caller(request), ino, (name, value), flags, reply);
    }

    fn getxattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.get_attribute(ino, name, size, reply);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.list_attributes(caller(request), ino, size, reply);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove_attribute(caller(request), ino, name, reply);
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let allocation = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Allocation::Reserve,
            libc::FALLOC_FL_PUNCH_HOLE => Allocation::PunchHole,
            libc::FALLOC_FL_ZERO_RANGE => Allocation::Zero,
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let keep_size = keep_size || allocation == Allocation::PunchHole;
        let caller = caller(request);
        self.aside(move |adapter| {
            let namespace = adapter.namespace();
            let done = namespace.allocate(caller, Ino(ino.0), offset, length, allocation, keep_size);
            let done = done.map(|privileges| adapter.tell(ino, privileges));
            reply_empty(reply, done.map_err(failed("fallocate", ino)));
        });
    }

    fn lseek(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let Ok(from) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        let found = match whence {
            libc::SEEK_DATA => self.namespace().seek_data(Ino(ino.0), from),
            libc::SEEK_HOLE => self.namespace().seek_hole(Ino(ino.0), from),
            _ => return reply.error(Errno::EINVAL),
        };
        match found.map(i64::try_from) {
            Ok(Ok(offset)) => reply.offset(offset),
            Ok(Err(_)) => reply.error(Errno::EOVERFLOW),
            Err(error) => reply.error(self.failed_by_name("lseek", ino)(error)),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        if control::owns(ino_in) || control::owns(ino_out) {
            return reply.error(Errno::EXDEV);
        }
        let (from, to) = ((Ino(ino_in.0), offset_in), (Ino(ino_out.0), offset_out));
        let caller = caller(request);
        self.aside(move |adapter| match adapter.namespace().copy(caller, from, to, len) {
            Ok((copied, privileges)) => {
                adapter.tell(ino_out, privileges);
                reply.written(copied as u32); // At most 64 MiB a call.
            }
            Err(error) => reply.error(failed("copy", ino_out)(error)),
        });
    }

    fn ioctl(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    /// ENOSYS tells the kernel that files are always ready, and it asks no more.
    fn poll(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }
}
