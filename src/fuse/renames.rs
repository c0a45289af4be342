//! Renames: what the kernel asks for, and waiting without holding up a thread that serves others, until the locks are free,
//! or their time is over, or the process is sent a signal ([`pending`](super::pending)).

use std::ffi::OsStr;
use std::sync::Arc;

use fuser::{Errno, INodeNo, RenameFlags, ReplyEmpty};

use super::adapter::{Adapter, failed, name, reply_empty};
use super::control;
use super::pending::{After, is_interrupted};
use crate::document::Ino;
use crate::lock::{LockError, Wait};
use crate::namespace::ops::rename::{Manner, Patience, Rename};
use crate::namespace::{Caller, NamespaceError, Result};

fn prepare(from: (INodeNo, &OsStr), to: (INodeNo, &OsStr), flags: RenameFlags) -> Result<Rename> {
    control::refuse(from.0, from.1)?;
    control::refuse(to.0, to.1)?;
    const WHITEOUT_NOREPLACE: u32 = libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE;
    let manner = match flags.bits() {
        0 => Manner::Replace,
        WHITEOUT_NOREPLACE => Manner::WhiteoutNoReplace,
        libc::RENAME_NOREPLACE => Manner::NoReplace,
        libc::RENAME_EXCHANGE => Manner::Exchange,
        libc::RENAME_WHITEOUT => Manner::Whiteout,
        _ => return Err(NamespaceError::Invalid("unknown flags of a rename")),
    };
    Ok(Rename {
        parent: Ino(from.0.0),
        name: name(from.1)?,
        new_parent: Ino(to.0.0),
        new_name: name(to.1)?,
        manner,
    })
}

impl Adapter {
    /// Renames, and answers when that is done.
    pub(super) fn move_name(
        &self,
        caller: Caller,
        from: (INodeNo, &OsStr),
        to: (INodeNo, &OsStr),
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let parent = from.0;
        let rename = match prepare(from, to, flags) {
            Ok(rename) => rename,
            Err(error) => return reply.error(failed("rename", parent)(error)),
        };
        let deadline = self.0.namespace.lock_deadline();
        match self.namespace().rename(caller, &rename, Patience::Try) {
            Err(NamespaceError::Lock(LockError::WouldBlock(_) | LockError::NoMajority { .. })) => {}
            outcome => return reply_empty(reply, outcome.map_err(failed("rename", parent))),
        }
        // Somebody holds a lock that it needs. It waits elsewhere, and this thread serves others.
        let shared = Arc::clone(&self.0);
        let reply = Arc::new(parking_lot::Mutex::new(Some(reply)));
        let later = Arc::clone(&reply);
        let accepted = self.0.waiting.run(move || {
            let give_up = || is_interrupted(caller.pid, After::Failed);
            let wait = Wait { longest: deadline, give_up: Some(&give_up) };
            let outcome = shared.namespace.rename(caller, &rename, Patience::Wait(wait));
            if let Some(reply) = later.lock().take() {
                reply_empty(reply, outcome.map_err(failed("rename", parent)));
            }
        });
        if !accepted && let Some(reply) = reply.lock().take() {
            log::warn!("rename in inode {parent}: too many renames wait already");
            reply.error(Errno::EBUSY);
        }
    }
}
