//! Extended attributes, access control lists among them, as the kernel asks for them.
//!
//! What is hard: Linux remembers no answer about an attribute, and of an access control list only until the next listing. So
//! `ls -l` costs a request for each entry. A mount that has none (`noxattr`) says so once, and is asked no more.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use fuser::{Errno, INodeNo, InitFlags, ReplyEmpty, ReplyXattr};

use super::adapter::{Adapter, reply_empty};
use super::control;
use crate::document::Ino;
use crate::namespace::Caller;
use crate::namespace::ops::xattr::SetMode;

impl Adapter {
    /// What to ask of the kernel for them.
    pub(super) fn attribute_capabilities(&self) -> InitFlags {
        if self.0.attributes { InitFlags::FUSE_POSIX_ACL } else { InitFlags::empty() }
    }

    /// setxattr(2).
    pub(super) fn set_attribute(
        &self,
        caller: Caller,
        ino: INodeNo,
        (name, value): (&OsStr, &[u8]),
        flags: i32,
        reply: ReplyEmpty,
    ) {
        if let Some(refusal) = self.refusal(ino, Errno::EPERM) {
            return reply.error(refusal);
        }
        let mode = match flags {
            libc::XATTR_CREATE => SetMode::Create,
            libc::XATTR_REPLACE => SetMode::Replace,
            _ => SetMode::Any,
        };
        let set = self.namespace().set_attribute(caller, Ino(ino.0), name.as_bytes(), value, mode);
        reply_empty(reply, set.map_err(self.failed_by_name("setxattr", ino)));
    }

    /// getxattr(2).
    pub(super) fn get_attribute(&self, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if let Some(refusal) = self.refusal(ino, Errno::NO_XATTR) {
            return reply.error(refusal);
        }
        match self.namespace().get_attribute(Ino(ino.0), name.as_bytes()) {
            Ok(value) => reply_bytes(reply, size, &value),
            Err(error) => reply.error(self.failed_by_name("getxattr", ino)(error)),
        }
    }

    /// listxattr(2).
    pub(super) fn list_attributes(&self, caller: Caller, ino: INodeNo, size: u32, reply: ReplyXattr) {
        if !self.0.attributes {
            return reply.error(Errno::ENOSYS);
        }
        if control::owns(ino) {
            return reply_bytes(reply, size, &[]);
        }
        match self.namespace().list_attributes(caller, Ino(ino.0)) {
            Ok(names) => reply_bytes(reply, size, &names),
            Err(error) => reply.error(self.failed_by_name("listxattr", ino)(error)),
        }
    }

    /// removexattr(2).
    pub(super) fn remove_attribute(&self, caller: Caller, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if let Some(refusal) = self.refusal(ino, Errno::NO_XATTR) {
            return reply.error(refusal);
        }
        let removed = self.namespace().remove_attribute(caller, Ino(ino.0), name.as_bytes());
        reply_empty(reply, removed.map_err(self.failed_by_name("removexattr", ino)));
    }

    /// Why a request is refused whatever the namespace has; `of_control` for a control file.
    fn refusal(&self, ino: INodeNo, of_control: Errno) -> Option<Errno> {
        if !self.0.attributes {
            return Some(Errno::ENOSYS);
        }
        control::owns(ino).then_some(of_control)
    }
}

fn reply_bytes(reply: ReplyXattr, size: u32, bytes: &[u8]) {
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    match size {
        0 => reply.size(len),
        size if len > size => reply.error(Errno::ERANGE),
        _ => reply.data(bytes),
    }
}
