//! Writing later: bytes that are acknowledged first and committed together ([`write_back`](crate::namespace::write_back)),
//! where the mount was told to (`-o write-back`).
//!
//! Of each file one range is gathered, in the turn of its writers: what lies on it or follows it joins it, and anything
//! else sends it to the store first. So do an open file that is synced or closed, a lock that is given up, and everything
//! that needs the bytes there: what reads, seeks, cuts or copies them, and what changes attributes that a write changes too.
//!
//! What is hard:
//! 1. *A write that takes privileges away does so at once*, so it is not one that can come later. Later only what somebody
//!    else has given the file meanwhile can still be there to be taken, and is.
//! 2. *An append goes to the end of the file as it is at the commit*, which another host may have moved. So what was
//!    appended is gathered apart from what was written somewhere.
//! 3. *What does not reach the store is lost*: the log says so, and so does an fsync or close of everybody who had the file
//!    open. To keep it would be to try for ever, beyond the bound and beyond the end of the mount.

use std::time::Duration;

use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

use super::read::regular;
use super::write::{Privileges, Stamp};
use crate::content::{CHUNKS_WRITTEN, ContentError, Objects};
use crate::document::{Body, Ino, Key, Version};
use crate::namespace::inodes::{Io, Pin};
use crate::namespace::passthrough::Ahead;
use crate::namespace::write_back::{Gathered, Lost, Pending, WriteBackCounters};
use crate::namespace::{Namespace, NamespaceError, Result, privilege_bits};
use crate::store::{NodeRef, StoreError};

/// By what an open file is told of lost bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// fsync(2), fdatasync(2).
    ByFsync,
    /// close(2).
    ByClose,
}

/// What was done to a file and its node does not say.
pub(super) struct Unsaid {
    waits: Option<Pending>,
    ahead: Option<Ahead>,
}

impl Namespace {
    /// Writes all of `data` at `at` (none: at the end of the file), and may keep it back for a while; else as
    /// [`Namespace::write`].
    ///
    /// # Errors
    /// Those of [`Namespace::write`]; `BytesLost` if what was kept back before did not reach the store, and then nothing of
    /// `data` is taken.
    pub fn write_later(
        &self,
        ino: Ino,
        at: Option<u64>,
        data: &[u8],
        drop_privileges: bool,
    ) -> Result<Privileges> {
        let account = &self.write_back;
        let len = data.len() as u64;
        if len == 0 || len > account.limit_bytes() {
            return self.write_at(ino, at, data, drop_privileges);
        }
        let reserved = loop {
            match (account.reserve(len), account.oldest()) {
                (Some(reserved), _) => break reserved,
                (None, Some(oldest)) if self.flush(oldest).is_ok() => {}
                // Nothing can be sent, and this write is to wait for the store once and not for each file. Or all that
                // waits is in the hands of writers like this one.
                (None, _) => return self.write_at(ino, at, data, drop_privileges),
            }
        };
        let pin = self.inodes.pin(ino);
        let mut io = pin.io.write();
        match self.gather(&pin, &mut io, ino, at, data, drop_privileges)? {
            Some(more) => {
                reserved.used(more);
                Ok(Privileges::Kept)
            }
            None => {
                drop((reserved, io));
                self.write_at(ino, at, data, drop_privileges)
            }
        }
    }

    /// Gathers `data`, for which there is room. Returns how many bytes more wait now; none if this write cannot come
    /// later.
    fn gather(
        &self,
        pin: &Pin<'_>,
        io: &mut Io,
        ino: Ino,
        at: Option<u64>,
        data: &[u8],
        drop_privileges: bool,
    ) -> Result<Option<u64>> {
        if self.is_fenced() {
            return Err(StoreError::Fenced.into());
        }
        let len = data.len() as u64;
        self.admit_content(len)?;
        let (_, node) = self.live_node(ino)?;
        self.require_here(ino, regular(&node)?.place)?;
        if (drop_privileges && privilege_bits(&node) != 0) || self.capability(ino, &node)?.is_some() {
            return Ok(None);
        }
        if io.gathered.as_ref().is_some_and(|gathered| !gathered.can_take(at, len)) {
            self.put(pin, io, ino)?;
        }
        if io.gathered.is_none() {
            // As it is now, also if something was put.
            let base = regular(&self.live_node(ino)?.1)?.size;
            let border = self.contents.chunk_bytes();
            let new = Gathered::new(at, base, CHUNKS_WRITTEN as u64 * border, border);
            if !new.can_take(at, len) {
                return Ok(None);
            }
            io.gathered = Some(new);
        }
        let Some(gathered) = &mut io.gathered else { return Ok(None) };
        let more = gathered.take(at, data);
        gathered.drop_privileges |= drop_privileges;
        self.write_back.gathered(ino, gathered, self.now());
        Ok(Some(more))
    }

    /// Sends what was gathered of a file to the store, and what the kernel has written past it, in the turn of whoever
    /// writes to it.
    ///
    /// # Errors
    /// `BytesLost`. It is logged, and who has the file open is still to be told.
    pub(in crate::namespace) fn put(&self, pin: &Pin<'_>, io: &mut Io, ino: Ino) -> Result<()> {
        self.catch_up(ino)?;
        let Some(gathered) = io.gathered.take() else { return Ok(()) };
        let Gathered { at, bytes, drop_privileges, .. } = &gathered;
        let written = self.write_back.pending(ino).map_or_else(|| self.now(), |pending| pending.written);
        let stamp = Stamp { drop_privileges: *drop_privileges, at: written };
        let sent = self.write_through(pin, io, ino, *at, bytes, stamp);
        match sent {
            Ok(_) => {
                self.write_back.sent(ino, bytes.len() as u64, None);
                Ok(())
            }
            Err(error) => Err(self.lose(ino, &gathered, &error)),
        }
    }

    /// Says that these bytes did not reach the store and why, in the turn of whoever writes to the file.
    fn lose(&self, ino: Ino, gathered: &Gathered, error: &NamespaceError) -> NamespaceError {
        let (bytes, lost) = (gathered.bytes.len() as u64, lost(error));
        let place = gathered.at.map_or_else(|| "at its end".to_owned(), |at| format!("at {at}"));
        log::error!(
            "inode {ino}: {bytes} bytes that were written {place} and acknowledged are lost: {error}; the file is what \
             find MOUNTPOINT -inum {ino} names"
        );
        self.write_back.sent(ino, bytes, Some(lost));
        NamespaceError::BytesLost { no_space: lost == Lost::NoSpace }
    }

    /// Sends what was gathered of a file to the store.
    ///
    /// # Errors
    /// `BytesLost`; each open file of it is told once more by [`Namespace::lost`].
    pub fn flush(&self, ino: Ino) -> Result<()> {
        if self.write_back.pending(ino).is_none() && self.passthrough.get(ino).is_none() {
            return Ok(());
        }
        let pin = self.inodes.pin(ino);
        let mut io = pin.io.write();
        self.put(&pin, &mut io, ino)
    }

    /// The same, for whom it is no failure of its own: it is logged, and who has the file open is told.
    pub(in crate::namespace) fn settle(&self, ino: Ino) {
        let _ = self.flush(ino);
    }

    /// Sends everything to the store, at the end of the mount. If that does not answer, or where the objects are, it is
    /// waited for once and not for each file.
    pub fn flush_all(&self) {
        self.catch_up_all();
        let mut failed = false;
        for ino in self.write_back.files() {
            let pin = self.inodes.pin(ino);
            let mut io = pin.io.write();
            let objects = || self.contents.objects().and_then(Objects::outage);
            match self.store.outage().or_else(objects).filter(|_| failed) {
                None => failed |= self.put(&pin, &mut io, ino).is_err(),
                Some(outage) => {
                    let what = "committing written bytes".to_owned();
                    let source = format!("the store does not answer: {}", outage.cause).into();
                    if let Some(gathered) = io.gathered.take() {
                        self.lose(ino, &gathered, &StoreError::Engine { what, source }.into());
                    }
                }
            }
        }
    }

    /// Sends what has waited for long enough, and returns how long nothing else will have. For a thread that does so all the
    /// time; `is_over` is asked between files.
    pub fn flush_due(&self, is_over: impl Fn() -> bool) -> Duration {
        let (due, next) = self.write_back.due();
        if due.is_empty() {
            return next;
        }
        due.into_iter().take_while(|_| !is_over()).for_each(|ino| self.settle(ino));
        Duration::ZERO
    }

    /// A turn of readers of the bytes below `end`, who find all of them in the store.
    ///
    /// # Errors
    /// `BytesLost`.
    pub(super) fn reading<'a>(
        &self,
        pin: &'a Pin<'_>,
        ino: Ino,
        end: u64,
    ) -> Result<RwLockReadGuard<'a, Io>> {
        let io = pin.io.read();
        let waits = io.gathered.as_ref().is_some_and(|gathered| gathered.concerns(end));
        if !waits && self.ahead(ino).is_none() {
            return Ok(io);
        }
        drop(io);
        let mut io = pin.io.write();
        self.put(pin, &mut io, ino)?;
        Ok(RwLockWriteGuard::downgrade(io))
    }

    /// A file or directory was opened, and whoever did so is to be told if something written to it is lost later.
    pub fn opened(&self, ino: Ino, handle: u64) {
        self.write_back.store_has_lost(self.store.losses());
        self.write_back.opened(ino, handle);
    }

    /// An open file is gone, and nobody can be told through it any more.
    pub fn closed(&self, ino: Ino, handle: u64) {
        self.write_back.closed(ino, handle);
    }

    /// Tells an open file that something is lost which was written while it was open. Its next fsync is told once; a close
    /// is told and leaves it to others, who share the open file, to be told too.
    ///
    /// # Errors
    /// `BytesLost`.
    pub fn lost(&self, ino: Ino, handle: u64, by: Told) -> Result<()> {
        let lost = self.write_back.lost(ino, handle, by == Told::ByFsync);
        lost.map_or(Ok(()), |lost| Err(NamespaceError::BytesLost { no_space: lost == Lost::NoSpace }))
    }

    /// Whether written bytes may be kept back, and what became of them; none if not.
    pub fn write_back(&self) -> Option<WriteBackCounters> {
        self.write_back.is_on().then(|| self.write_back.counters())
    }

    /// What attributes have to show beyond the node of a file; to be looked at before the node is.
    pub(super) fn unsaid(&self, ino: Ino) -> Unsaid {
        Unsaid { waits: self.write_back.pending(ino), ahead: self.ahead(ino) }
    }

    /// A node as it is with the bytes that wait, or that the kernel has written itself.
    pub(super) fn with_unsaid(&self, node: NodeRef, unsaid: Unsaid) -> NodeRef {
        let node = self.with_ahead(node, unsaid.ahead);
        let Some(pending) = unsaid.waits else { return node };
        node.changed(|node| {
            if node.mtime.min(node.ctime) <= pending.written {
                node.mtime = pending.written;
            }
            node.ctime = node.ctime.max(pending.written);
            if let Body::Regular(regular) = &mut node.body {
                regular.size = regular.size.max(pending.end);
                // As if none lay where bytes are already: programs take a file without blocks for one without data.
                regular.blocks += pending.bytes.div_ceil(512);
            }
        })
    }

    /// The document of a file's capabilities (`security.capability`), which any write takes away.
    pub(super) fn capability(&self, ino: Ino, node: &NodeRef) -> Result<Option<(Key, Version)>> {
        const CAPABILITY: &[u8] = b"security.capability";
        if node.xattrs == 0 {
            return Ok(None);
        }
        let key = Key::Xattr(ino, CAPABILITY.into());
        let stored = self.store.get(&key)?;
        Ok(stored.map(|stored| (key, stored.version)))
    }
}

fn lost(error: &NamespaceError) -> Lost {
    match error {
        NamespaceError::Store(StoreError::NoSpace)
        | NamespaceError::Content(ContentError::NoSpace { .. } | ContentError::Store(StoreError::NoSpace)) => {
            Lost::NoSpace
        }
        _ => Lost::Failed,
    }
}
