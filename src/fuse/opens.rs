//! Opening and creating files: what the kernel asks for, and what it may keep of a file that is opened.
//!
//! What is hard: on a store that hosts share, what the kernel remembers of a file may be older than a close that has
//! returned on another host. The namespace looks anew at each open. The kernel's attributes go here, by a notice for which
//! it takes no lock of the inode, so that a handler may send it (see [`kernel_cache`](super::kernel_cache)). Its pages,
//! which maps alone have, it drops itself when the open is answered without FOPEN_KEEP_CACHE, before open(2) returns.
//! Listings need nothing: the kernel keeps none, and each asks the store when it is read, so an opendir asks nobody.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::Ordering::Relaxed;

use fuser::{Errno, FileHandle, FopenFlags, INodeNo, OpenFlags, ReplyCreate, ReplyOpen};

use super::adapter::{Adapter, GENERATION, failed, name};
use super::beliefs::Belief;
use super::control;
use super::convert::attr;
use super::passthrough::{Handle, registered};
use crate::ambient;
use crate::document::Ino;
use crate::namespace::ops::make::{Make, What};
use crate::namespace::{Caller, NamespaceError};

impl Adapter {
    /// A number for a file that is opened with `flags`, which is told of what is lost of it, and whose locks go with it.
    fn opened(&self, ino: INodeNo, writes: bool, passed: bool, flags: FopenFlags) -> FileHandle {
        let number = self.0.handles.fetch_add(1, Relaxed) + 1;
        let direct = flags.contains(FopenFlags::FOPEN_DIRECT_IO);
        let handle = FileHandle::from(Handle { number, writes, passed, direct });
        self.0.namespace.opened(Ino(ino.0), handle.0);
        self.0.cache.open(Ino(ino.0));
        handle
    }

    /// A number for a directory that is opened: its fsync is told of what is lost.
    pub(super) fn opened_directory(&self, ino: INodeNo) -> FileHandle {
        let number = self.0.handles.fetch_add(1, Relaxed) + 1;
        let handle = FileHandle::from(Handle { number, writes: false, passed: false, direct: false });
        self.0.namespace.opened(Ino(ino.0), handle.0);
        handle
    }

    /// What is answered when a request fails which Linux makes of an inode that it found by a name, and maybe by one that it
    /// remembers. What stood under that name may have been replaced, on another host or by a rename of which the kernel has
    /// not been answered yet: so of a file that is gone it is told to walk the path anew. Of a directory that other mounts
    /// may have removed it is not: walks cross so many of them that the second fails too.
    pub(super) fn failed_by_name(
        &self,
        operation: &'static str,
        ino: INodeNo,
    ) -> impl FnOnce(NamespaceError) -> Errno {
        move |error| {
            failed(operation, ino)(match error {
                NamespaceError::NotFound if self.0.cache.may_misname(Ino(ino.0)) => NamespaceError::Stale,
                other => other,
            })
        }
    }

    /// open(2) of a file that is there.
    pub(super) fn open_file(&self, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if control::owns(ino) {
            return control::open(&self.0, ino, reply);
        }
        let passthrough = &self.0.passthrough;
        let access = passthrough.access(flags);
        let register = |host: &File| passthrough.register(&reply, flags, host);
        let opened = match self.namespace().open_passing(Ino(ino.0), access, &register) {
            Ok(opened) => opened,
            Err(error) => return reply.error(failed("open", ino)(error)),
        };
        // Whatever it was told of the file, and when: that is not known here.
        self.0.cache.opened(Ino(ino.0), opened.version);
        self.tell(ino, opened.privileges);
        let mut flags = self.0.cache.open_flags();
        if opened.is_apart && passthrough.is_on() {
            // The kernel takes no passthrough with it; and a map that it made so may have changed what its own pages show.
            flags.remove(FopenFlags::FOPEN_KEEP_CACHE);
        }
        match opened.registration.as_ref().and_then(registered) {
            Some(id) => {
                if !access.passes {
                    // It stands above passthrough: only maps are of the host's file.
                    flags |= FopenFlags::FOPEN_DIRECT_IO;
                }
                reply.opened_passthrough(self.opened(ino, access.writes, true, flags), flags, id);
            }
            None => reply.opened(self.opened(ino, access.writes, false, flags), flags),
        }
    }

    /// open(2) with O_CREAT of a name that the kernel takes for free.
    pub(super) fn create_file(
        &self,
        caller: Caller,
        (parent, bytes): (INodeNo, &OsStr),
        (mode, umask): (u32, u32),
        flags: i32,
        reply: ReplyCreate,
    ) {
        let asked = ambient::monotonic();
        let created = control::refuse(parent, bytes).and_then(|()| name(bytes)).and_then(|name| {
            let make = Make { parent: Ino(parent.0), name: &name, what: What::Regular, mode, umask, caller };
            match self.namespace().create(&make) {
                // Another mount was first, and whoever does not insist on making the file wants that one. The kernel opens
                // it, since it has to look first whether the caller may.
                Err(NamespaceError::Exists) if flags & libc::O_EXCL == 0 => Err(NamespaceError::Stale),
                outcome => outcome,
            }
        });
        match created {
            Ok((ino, node)) => {
                let cache = &self.0.cache;
                cache.give(ino, true);
                cache.learns(Ino(parent.0), bytes.as_bytes(), Some(Belief::found(ino, &node)), asked);
                // One time for both, name and attributes; see `kernel_cache` for why it is that of the attributes.
                let ttl = cache.attribute_ttl(asked);
                let flags = self.0.passthrough.new_file(OpenFlags(flags), cache.open_flags());
                let handle = self.opened(INodeNo(ino.0), true, false, flags);
                reply.created(&ttl, &attr(ino, &node), GENERATION, handle, flags);
            }
            Err(error) => reply.error(failed("create", parent)(error)),
        }
    }
}
