//! Advisory locks: what the kernel asks for, and waiting for as long as it takes.
//!
//! Owns the threads that wait, and how a wait ends: when the lock is granted, when the process is sent a signal
//! ([`pending`](super::pending)), or with the mount. A mount that is alone on its store is not asked: its kernel keeps the
//! locks itself.

use std::sync::Arc;

use fuser::{Errno, FileHandle, INodeNo, LockOwner, ReplyEmpty, ReplyLock, Request};
use parking_lot::Mutex;

use super::adapter::{Adapter, failed, reply_empty};
use super::control;
use super::lock_flags::family;
use super::pending::{After, is_interrupted};
use crate::document::{AdvisoryLock, Ino, LockMode};
use crate::lock::advisory::AdvisoryError;
use crate::namespace::{AdvisoryCall, NamespaceError, Result};

/// What the kernel says of a lock.
#[derive(Clone, Copy)]
pub(super) struct LockCall {
    pub(super) ino: INodeNo,
    pub(super) fh: FileHandle,
    pub(super) owner: LockOwner,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) typ: i32,
    pub(super) pid: u32,
}

impl LockCall {
    /// The call, and the mode; none to unlock.
    fn read(&self, request: &Request) -> Result<(AdvisoryCall, Option<LockMode>)> {
        let mode = match self.typ {
            libc::F_RDLCK => Some(LockMode::Shared),
            libc::F_WRLCK => Some(LockMode::Exclusive),
            libc::F_UNLCK => None,
            _ => return Err(NamespaceError::Invalid("unknown type of a lock")),
        };
        if self.start > self.end {
            return Err(NamespaceError::Invalid("a range that ends before it begins"));
        }
        if control::owns(self.ino) {
            return Err(NamespaceError::Unsupported("locks of control files"));
        }
        let call = AdvisoryCall {
            ino: Ino(self.ino.0),
            handle: self.fh.0,
            owner: self.owner.0,
            family: family(request, self.owner.0),
            start: self.start,
            end: self.end,
            pid: self.pid,
        };
        Ok((call, mode))
    }
}

impl Adapter {
    /// F_GETLK.
    pub(super) fn test_lock(&self, request: &Request, call: &LockCall, reply: ReplyLock) {
        let found = call.read(request).and_then(|(asked, mode)| match mode {
            Some(mode) => self.namespace().test_advisory(&asked, mode),
            None => Err(NamespaceError::Invalid("F_GETLK of no type of lock")),
        });
        match found {
            Ok(None) => reply.locked(call.start, call.end, libc::F_UNLCK, 0),
            Ok(Some(AdvisoryLock { start, end, mode, pid, .. })) => {
                let typ = if mode == LockMode::Exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
                reply.locked(start, end, typ, pid);
            }
            Err(error) => reply.error(failed("getlk", call.ino)(error)),
        }
    }

    /// F_SETLK, F_SETLKW, flock(2).
    pub(super) fn set_lock(&self, request: &Request, call: &LockCall, wait: bool, reply: ReplyEmpty) {
        let ino = call.ino;
        let first = call.read(request).and_then(|(asked, mode)| match mode {
            None => self.namespace().unlock_advisory(&asked).map(|()| None),
            Some(mode) => match self.namespace().lock_advisory(&asked, mode, None) {
                Err(NamespaceError::Advisory(AdvisoryError::Held(_))) if wait => Ok(Some((asked, mode))),
                outcome => outcome.map(|()| None),
            },
        });
        let (asked, mode) = match first {
            Ok(Some(waits)) => waits,
            outcome => return self.granted(ino, outcome.map(drop), reply),
        };
        // Somebody has it. It waits elsewhere, and this thread serves others.
        let thread = request.pid();
        let adapter = self.clone();
        let reply = Arc::new(Mutex::new(Some(reply)));
        let later = Arc::clone(&reply);
        let accepted = self.0.lock_waits.run(move || {
            let give_up = || is_interrupted(thread, After::StartedOver);
            let outcome = adapter.0.namespace.lock_advisory(&asked, mode, Some(&give_up));
            if let Some(reply) = later.lock().take() {
                adapter.granted(ino, outcome, reply);
            }
        });
        if !accepted && let Some(reply) = reply.lock().take() {
            log::warn!("a lock of inode {ino}: too many requests wait for locks already");
            self.granted(ino, Err(AdvisoryError::TooManyWait.into()), reply);
        }
    }

    fn granted(&self, ino: INodeNo, outcome: Result<()>, reply: ReplyEmpty) {
        if outcome.is_ok() {
            // What another host has written under the lock is to be seen under it here.
            self.0.cache.ask_again(Ino(ino.0));
        }
        reply_empty(reply, outcome.map_err(failed("lock", ino)));
    }

    /// A process closes a file.
    pub(super) fn close_owner(&self, ino: INodeNo, owner: LockOwner) -> std::result::Result<(), Errno> {
        if control::owns(ino) {
            return Ok(());
        }
        self.given_up(ino, self.namespace().flush_advisory(Ino(ino.0), owner.0))
    }

    /// An open file is gone.
    pub(super) fn close_handle(&self, ino: INodeNo, fh: FileHandle) -> std::result::Result<(), Errno> {
        self.given_up(ino, self.0.namespace.release_advisory(Ino(ino.0), fh.0))
    }

    /// Sees to it that locks which could not be given up are so in the end: nobody else would do it while this mount lives.
    fn given_up(&self, ino: INodeNo, outcome: Result<()>) -> std::result::Result<(), Errno> {
        if outcome.is_err() {
            let shared = Arc::clone(&self.0);
            let accepted = self.0.lock_waits.run(move || {
                while shared.namespace.owes_advisory() && shared.namespace.settle_advisory().is_err() {}
            });
            if !accepted {
                log::warn!(
                    "locks of inode {ino} stay until some other lock of it is taken, or this mount ends"
                );
            }
        }
        outcome.map_err(failed("close", ino))
    }
}
