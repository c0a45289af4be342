//! Renames: what the kernel asks for, and waiting without holding up a thread that serves others, until the locks are free,
//! or their time is over, or the process is sent a signal ([`pending`](super::pending)).

use std::ffi::OsStr;
use std::sync::Arc;

use fuser::{Errno, INodeNo, RenameFlags, ReplyEmpty};

use super::adapter::{Adapter, failed, name, reply_empty};
use super::control;
use super::kernel_cache::KernelCache;
use super::pending::{After, is_interrupted};
use crate::document::Ino;
use crate::lock::{LockError, Wait};
use crate::namespace::ops::rename::{Manner, Patience, Rename};
use crate::namespace::{Caller, NamespaceError, Result};

fn prepare(
    cache: &KernelCache,
    from: (INodeNo, &OsStr),
    to: (INodeNo, &OsStr),
    flags: RenameFlags,
) -> Result<Rename> {
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
    let (parent, name, new_parent, new_name) = (Ino(from.0.0), name(from.1)?, Ino(to.0.0), name(to.1)?);
    let taken_for = cache.beliefs.taken_for([(parent, &name), (new_parent, &new_name)]);
    Ok(Rename { parent, name, new_parent, new_name, manner, taken_for })
}

/// What the kernel makes of its names from here on, since it is about to be told how a rename has ended.
fn tell(cache: &KernelCache, rename: &Rename, outcome: &Result<()>) {
    let names = [(rename.parent, &rename.name), (rename.new_parent, &rename.new_name)];
    match outcome {
        Ok(()) if cache.beliefs.renamed(names, rename.manner == Manner::Exchange) => {
            names.iter().for_each(|(directory, name)| cache.let_go(*directory, name));
        }
        Err(NamespaceError::Stale) => cache.beliefs.doubt(names),
        _ => {}
    }
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
        let rename = match prepare(&self.0.cache, from, to, flags) {
            Ok(rename) => rename,
            Err(error) => return reply.error(failed("rename", parent)(error)),
        };
        let deadline = self.0.namespace.lock_deadline();
        match self.namespace().rename(caller, &rename, Patience::Try) {
            Err(NamespaceError::Lock(LockError::WouldBlock(_) | LockError::NoMajority { .. })) => {}
            outcome => {
                tell(&self.0.cache, &rename, &outcome);
                return reply_empty(reply, outcome.map_err(failed("rename", parent)));
            }
        }
        // Somebody holds a lock that it needs. It waits elsewhere, and this thread serves others.
        let shared = Arc::clone(&self.0);
        let reply = Arc::new(parking_lot::Mutex::new(Some(reply)));
        let later = Arc::clone(&reply);
        let accepted = self.0.waiting.run(move || {
            let give_up = || is_interrupted(caller.pid, After::Failed);
            let wait = Wait { longest: deadline, give_up: Some(&give_up) };
            let outcome = shared.namespace.rename(caller, &rename, Patience::Wait(wait));
            tell(&shared.cache, &rename, &outcome);
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
