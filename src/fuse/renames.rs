//! Renames: what the kernel asks for, and waiting without holding up a thread that serves others, until the locks are free,
//! or their time is over, or the process is sent a signal ([`pending`](super::pending)).

use std::ffi::OsStr;
use std::sync::Arc;

use fuser::{Errno, INodeNo, RenameFlags, ReplyEmpty};

use super::adapter::{Adapter, failed, name, reply_empty};
use super::beliefs::{Belief, Beliefs};
use super::control;
use super::kernel_cache::KernelCache;
use super::pending::{After, is_interrupted};
use crate::document::Ino;
use crate::lock::{LockError, Wait};
use crate::namespace::ops::rename::{Manner, Moved, Patience, Rename};
use crate::namespace::{Caller, NamespaceError, Result};

/// A rename, and what the kernel takes its two names for.
struct Asked {
    rename: Rename,
    taken_for: [Belief; 2],
}

fn prepare(
    beliefs: &Beliefs,
    from: (INodeNo, &OsStr),
    to: (INodeNo, &OsStr),
    flags: RenameFlags,
) -> Result<Asked> {
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
    let taken_for = [beliefs.of(parent, &name), beliefs.of(new_parent, &new_name)];
    let rename = Rename { parent, name, new_parent, new_name, manner, taken_for: taken_for[1].directory() };
    Ok(Asked { rename, taken_for })
}

impl Asked {
    /// Called before the reply: sees to it that the kernel, which moves what it takes the names for, is not misled by that.
    fn done(&self, cache: &KernelCache, moved: Moved) {
        if !cache.beliefs.matter() {
            return;
        }
        let Self { rename, taken_for: [source, target] } = self;
        let names = [(rename.parent, &rename.name), (rename.new_parent, &rename.new_name)];
        if source.is_surely(moved.there) && moved.back.is_none_or(|back| target.is_surely(back)) {
            cache.renamed(names, [moved.back.map(|_| *target), Some(*source)]);
        } else {
            cache.renamed(names, [None; 2]);
            cache.distrust(names);
        }
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
        let asked = match prepare(&self.0.cache.beliefs, from, to, flags) {
            Ok(asked) => asked,
            Err(error) => return reply.error(failed("rename", parent)(error)),
        };
        let deadline = self.0.namespace.lock_deadline();
        match self.namespace().rename(caller, &asked.rename, Patience::Try) {
            Err(NamespaceError::Lock(LockError::WouldBlock(_) | LockError::NoMajority { .. })) => {}
            outcome => {
                let outcome = outcome.map(|moved| asked.done(&self.0.cache, moved));
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
            let outcome = shared.namespace.rename(caller, &asked.rename, Patience::Wait(wait));
            let outcome = outcome.map(|moved| asked.done(&shared.cache, moved));
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
