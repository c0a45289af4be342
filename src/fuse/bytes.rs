//! Writing to open files, and what closing and syncing them gives back: an error that came after a write was acknowledged
//! is told here.

use fuser::{Errno, FileHandle, INodeNo, LockOwner, OpenFlags, ReplyEmpty, ReplyWrite, Request, WriteFlags};

use super::adapter::{Adapter, caller, failed, reply_empty};
use super::control;
use super::passthrough::Handle;
use crate::document::Ino;
use crate::namespace::NamespaceError;
use crate::namespace::ops::later::Told;

/// Whoever opens a file like this wants each write to be durable when it returns.
const DURABLE: i32 = libc::O_SYNC | libc::O_DSYNC;
/// And like this, to be in the store.
const AT_ONCE: i32 = DURABLE | libc::O_DIRECT;

impl Adapter {
    pub(super) fn write_bytes(
        &self,
        request: &Request,
        (ino, fh): (INodeNo, FileHandle),
        (offset, data): (u64, &[u8]),
        write_flags: WriteFlags,
        flags: OpenFlags,
        reply: ReplyWrite,
    ) {
        if control::owns(ino) {
            return control::write(&self.0, caller(request), fh, data, reply);
        }
        let namespace = self.namespace();
        let drop_privileges = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        // As no kernel is asked to keep written bytes back (FUSE_WRITEBACK_CACHE), only maps leave dirty pages.
        let from_map = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        // What is appended goes to the end, which may have moved.
        let appends = flags.0 & libc::O_APPEND != 0;
        let at = (!appends || !self.0.cache.end_may_be_old()).then_some(offset);
        let written = match at {
            _ if from_map => namespace.write_mapped(Ino(ino.0), offset, data, drop_privileges),
            _ if flags.0 & AT_ONCE == 0 => namespace.write_later(Ino(ino.0), at, data, drop_privileges),
            Some(offset) => namespace.write(Ino(ino.0), offset, data, drop_privileges),
            None => namespace.append(Ino(ino.0), data, drop_privileges),
        };
        match written {
            Ok(privileges) => self.tell(ino, privileges),
            Err(error) => return reply.error(self.failed_by_name("write", ino)(error)),
        }
        let written = data.len() as u32;
        // Of a write that fills no pages of its own Linux does not ask for the sync that O_SYNC stands for.
        if !Handle::from(fh).direct || flags.0 & DURABLE == 0 {
            return reply.written(written);
        }
        self.aside(move |adapter| match adapter.synced(ino, fh, true) {
            Ok(()) => reply.written(written),
            Err(error) => reply.error(adapter.failed_by_name("write", ino)(error)),
        });
    }

    /// A process closes a file: first what it has written is sent, then its locks are given up.
    pub(super) fn flush_bytes(&self, ino: INodeNo, fh: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        if control::owns(ino) {
            return reply.ok();
        }
        let namespace = &self.0.namespace;
        let flushed = namespace.flush(Ino(ino.0));
        let flushed =
            namespace.lost(Ino(ino.0), fh.0, Told::ByClose).and(flushed).map_err(failed("close", ino));
        let unlocked = self.close_owner(ino, owner);
        reply_empty(reply, flushed.and(unlocked));
    }

    /// An open file is gone. The kernel asks for no answer; a map may have written since the last close.
    pub(super) fn release_file(&self, ino: INodeNo, fh: FileHandle) -> Result<(), Errno> {
        let namespace = self.namespace();
        let handle = Handle::from(fh);
        let passed = handle.passed.then(|| self.0.passthrough.access_of(handle.writes));
        let flushed = match passed {
            Some(_) => Ok(()),
            None => namespace.flush(Ino(ino.0)).map_err(failed("close", ino)),
        };
        namespace.closed(Ino(ino.0), fh.0);
        self.0.cache.close_file(Ino(ino.0));
        let released = self.close_handle(ino, fh);
        let closed = namespace.close_file_as(Ino(ino.0), passed).map_err(failed("close", ino));
        let closed = closed.map(|privileges| self.tell(ino, privileges));
        flushed.and(closed).and(released)
    }

    pub(super) fn sync_file(&self, ino: INodeNo, fh: FileHandle, data_only: bool, reply: ReplyEmpty) {
        self.aside(move |adapter| {
            reply_empty(reply, adapter.synced(ino, fh, data_only).map_err(failed("fsync", ino)));
        });
    }

    /// Makes an open file durable, or says what of it is lost.
    fn synced(&self, ino: INodeNo, fh: FileHandle, data_only: bool) -> Result<(), NamespaceError> {
        let namespace = self.namespace();
        let synced = namespace.fsync(Ino(ino.0), data_only);
        namespace.lost(Ino(ino.0), fh.0, Told::ByFsync).and(synced)
    }
}
