//! Names: looking them up, making and removing what they lead to, and what the kernel learns by that.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Instant;

use fuser::{Errno, INodeNo, ReplyEntry, Request};

use super::adapter::{Adapter, GENERATION, caller, failed, name};
use super::beliefs::Belief;
use super::control;
use super::convert::{absent, attr};
use crate::ambient;
use crate::document::{Ino, Name};
use crate::namespace::ops::make::{Make, What};
use crate::namespace::{Found, Namespace, NamespaceError, Result};

impl Adapter {
    /// `asked`: when the request was begun, about this name in `parent`.
    pub(super) fn reply_entry(
        &self,
        reply: ReplyEntry,
        asked: Instant,
        (parent, name): (INodeNo, &OsStr),
        found: std::result::Result<Found, Errno>,
    ) {
        let cache = &self.0.cache;
        match found {
            Ok((ino, node)) => {
                cache.give(ino, node.regular().is_some());
                cache.learns(Ino(parent.0), name.as_bytes(), Some(Belief::found(ino, &node)), asked);
                let (attributes, name) = (cache.attribute_ttl(asked), cache.name_ttl(asked));
                reply.entry_with_ttls(&attributes, &name, &attr(ino, &node), GENERATION);
            }
            Err(errno) => reply.error(errno),
        }
    }

    /// Looks a name up, which may be one of a control file.
    pub(super) fn look_up(&self, parent: INodeNo, bytes: &OsStr, reply: ReplyEntry) {
        if let Some(found) = self.0.control.lookup(&self.0.namespace, parent, bytes) {
            return match found {
                Ok(attr) => reply.entry(&control::TTL, &attr, GENERATION),
                Err(errno) => reply.error(errno),
            };
        }
        let asked = ambient::monotonic();
        match self.look(parent, bytes) {
            // Until the name is made, which the kernel sees, it need not ask again.
            Err(NamespaceError::NotFound) if !matches!(bytes.as_bytes(), b"." | b"..") => {
                self.0.cache.learns(Ino(parent.0), bytes.as_bytes(), None, asked);
                reply.entry(&self.0.cache.name_ttl(asked), &absent(), GENERATION);
            }
            found => self.reply_entry(reply, asked, (parent, bytes), found.map_err(failed("lookup", parent))),
        }
    }

    pub(super) fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        bytes: &OsStr,
        what: What,
        mode: u32,
        umask: u32,
    ) -> Result<Found> {
        let name = name(bytes)?;
        control::refuse(parent, bytes)?;
        let make = Make { parent: Ino(parent.0), name: &name, what, mode, umask, caller: caller(request) };
        self.namespace().make(&make)
    }

    pub(super) fn remove(
        &self,
        parent: INodeNo,
        bytes: &OsStr,
        remove: impl FnOnce(&Namespace, Ino, &Name) -> Result<()>,
    ) -> Result<()> {
        control::refuse(parent, bytes)?;
        let parent = Ino(parent.0);
        let name = name(bytes)?;
        remove(self.namespace(), parent, &name)?;
        self.0.cache.freed(parent, &name);
        Ok(())
    }

    /// A name that lookup alone may have: those of handles (`.` and `..`) beside ordinary ones.
    fn look(&self, parent: INodeNo, bytes: &OsStr) -> Result<Found> {
        let namespace = self.namespace();
        let parent = Ino(parent.0);
        match bytes.as_bytes() {
            b"." => match namespace.attributes(parent)? {
                node if node.nlink == 0 => Err(NamespaceError::NotFound),
                node => Ok((parent, node)),
            },
            b".." => namespace.parent(parent),
            _ => namespace.lookup(parent, &name(bytes)?),
        }
    }

    /// Removes the directory that the kernel takes a name for.
    pub(super) fn remove_directory(&self, parent: INodeNo, bytes: &OsStr) -> Result<()> {
        self.remove(parent, bytes, |namespace, parent, name| {
            namespace.rmdir_taken_for(parent, name, self.0.cache.beliefs.of(parent, name).directory())
        })
    }
}
