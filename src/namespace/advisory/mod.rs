//! Advisory locks (flock(2), fcntl(2)) that exclude processes of other mounts and hosts.
//!
//! Owns who waits how long, and when a lock goes. What is granted is `lock::advisory`'s decision; where the locks are,
//! [`held`]. A mount that is alone on its store does not come here: its kernel keeps the locks itself.
//!
//! What is hard:
//! 1. Whoever waits must go on when the lock is free, wherever that happened, and must be able to give up: [`waits`], and a
//!    question that the caller answers every now and then.
//! 2. A close gives up locks, and most files that are closed never had any. So this process remembers who may have some
//!    ([`held::Held`]), under the turn of the inode: a lock that is being granted cannot slip past a close.
//! 3. A lock that cannot be given up, because the store is away, must not stay for ever. It is owed: given up with the next
//!    change of the inode's locks, or by whoever calls [`Namespace::settle_advisory`].
//! 4. The locks of a session go when it ends or is fenced, after its last change and before it is called recovered:
//!    [`held::drop_session`]. A lock is granted by a commit of the session, so a fenced one gets none.
//! 5. Who has just been granted a lock must see what was written under it before: what is remembered of the inode is
//!    forgotten.

pub(super) mod held;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Namespace, Result};
use crate::ambient;
use crate::document::{AdvisoryFamily, AdvisoryHolder, AdvisoryLock, Ino, Key, LockMode, SessionId};
use crate::lock::advisory::{self, AdvisoryError, AdvisoryTable, Outcome};
use crate::lock::{GiveUp, ask_after};
use crate::store::{Store, StoreError};

use held::Held;
pub use held::{AdvisoryLocks, advisory_of_all};
use waits::Waits;

/// Who waits looks again after this long though nothing rang, and after twice as long the next time, up to the second.
const LOOK_FIRST: Duration = Duration::from_millis(100);
const LOOK_MAX: Duration = Duration::from_secs(2);
/// How long nobody tries again to give up what could not be given up.
const SETTLE_PAUSE: Duration = Duration::from_secs(1);

/// The advisory locks that the mounts of this process share.
#[derive(Debug)]
pub(super) struct Advisory {
    /// The name of this host.
    host: Arc<str>,
    /// The locks, where no other process has any; else they are documents.
    table: Option<AdvisoryTable>,
    waits: Arc<Waits>,
    /// What could not be given up.
    owed: Mutex<Vec<(Ino, AdvisoryHolder)>>,
}

impl Advisory {
    /// Of a store that this process owns.
    pub(super) fn in_process(host: &str) -> Self {
        Self {
            host: host.into(),
            table: Some(AdvisoryTable::default()),
            waits: Arc::default(),
            owed: Mutex::default(),
        }
    }

    /// Of a store that other hosts use as well.
    ///
    /// # Errors
    /// The store's, when it cannot tell of changes.
    pub(super) fn among_hosts(host: &str, store: &dyn Store) -> std::result::Result<Self, StoreError> {
        let waits = Arc::<Waits>::default();
        store.listen(Arc::clone(&waits) as _)?;
        Ok(Self { host: host.into(), table: None, waits, owed: Mutex::default() })
    }

    /// Takes all locks of a session away, where they are in this process.
    pub(super) fn drop_session(&self, session: SessionId) {
        if let Some(table) = &self.table {
            table.drop_session(session);
        }
        self.waits.close(session);
    }
}

/// A range of a file, and who asks for it: what the kernel says of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvisoryCall {
    /// The file, which is open.
    pub ino: Ino,
    /// Through which open file, as the mount numbers them.
    pub handle: u64,
    /// The process or the open file, as the kernel calls it.
    pub owner: u64,
    /// The call that was made.
    pub family: AdvisoryFamily,
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub end: u64,
    /// The process.
    pub pid: u32,
}

impl Namespace {
    fn holder(&self, owner: u64, family: AdvisoryFamily) -> AdvisoryHolder {
        AdvisoryHolder { session: self.session, owner, family }
    }

    fn wanted(&self, call: &AdvisoryCall, mode: LockMode) -> AdvisoryLock {
        AdvisoryLock {
            family: call.family,
            mode,
            start: call.start,
            end: call.end,
            session: self.session,
            owner: call.owner,
            pid: call.pid,
            host: Arc::clone(&self.advisory.host),
            since: self.now(),
        }
    }

    /// What keeps the caller from a lock; none if nothing does. The process of a lock of another host is 0: its number says
    /// nothing here.
    ///
    /// # Errors
    /// The store's.
    pub fn test_advisory(&self, call: &AdvisoryCall, mode: LockMode) -> Result<Option<AdvisoryLock>> {
        let locks = self.advisory_locks(call.ino)?;
        let found = advisory::blocker(&locks, &self.wanted(call, mode)).cloned();
        Ok(found.map(|lock| {
            let pid = if lock.host == self.advisory.host { lock.pid } else { 0 };
            AdvisoryLock { pid, ..lock }
        }))
    }

    /// Takes a lock, or changes what the caller has in that range. Where it is not free the caller waits as long as it is
    /// given a way to give up; there is no other bound.
    ///
    /// # Errors
    /// [`AdvisoryError`]; the store's.
    pub fn lock_advisory(&self, call: &AdvisoryCall, mode: LockMode, wait: Option<GiveUp<'_>>) -> Result<()> {
        self.settle(call.ino);
        let Some(give_up) = wait else {
            return self
                .try_advisory(call, mode, false)?
                .map_or(Ok(()), |by| Err(AdvisoryError::Held(by).into()));
        };
        let mut waiting = self.advisory.waits.join(call.ino);
        let begun = ambient::monotonic();
        let (mut look_after, mut look) = (LOOK_FIRST, false);
        while let Some(by) = self.try_advisory(call, mode, look)? {
            look = true;
            if look_after == LOOK_MAX {
                self.drop_what_is_left(by.session)?;
            }
            let next_look = ambient::monotonic() + look_after;
            look_after = (look_after * 2).min(LOOK_MAX);
            loop {
                if self.advisory.waits.is_closed(self.session) {
                    return Err(AdvisoryError::Closed.into());
                }
                if self.is_fenced() {
                    return Err(StoreError::Fenced.into());
                }
                if give_up() {
                    return Err(AdvisoryError::Interrupted.into());
                }
                let left = next_look.saturating_duration_since(ambient::monotonic());
                if left.is_zero() || waiting.sleep(left.min(ask_after(begun.elapsed()))) {
                    break;
                }
            }
            // Before the look, so that what changes from here on rings again.
            waiting.listen();
        }
        Ok(())
    }

    /// A lock whose session is gone is nobody's: a restored backup may have one. A session is there before its first lock
    /// and until after its last, so what was read before it was found missing is left over.
    fn drop_what_is_left(&self, session: SessionId) -> Result<()> {
        if self.is_shared() && self.store.get(&Key::Session(session))?.is_none() {
            log::warn!("advisory locks of session {session}, which does not exist, are removed");
            held::drop_session(&*self.store, session)?;
        }
        Ok(())
    }

    /// Asks for a lock once. Returns what is in the way.
    fn try_advisory(
        &self,
        call: &AdvisoryCall,
        mode: LockMode,
        look: bool,
    ) -> Result<Option<Box<AdvisoryLock>>> {
        if self.advisory.waits.is_closed(self.session) {
            return Err(AdvisoryError::Closed.into());
        }
        let wanted = self.wanted(call, mode);
        let pin = self.inodes.pin(call.ino);
        let mut held = pin.advisory.lock();
        let news = held.note(wanted.holder(), call.handle);
        let owed = self.owed(call.ino);
        let mut outcome = Outcome::AsIs;
        self.change_advisory(call.ino, &mut held, look, |locks| {
            let settled = advisory::without(locks, |lock| owed.contains(&lock.holder()));
            outcome = advisory::lock(settled.as_deref().unwrap_or(locks), &wanted);
            match &outcome {
                Outcome::Granted(after) => Some(after.clone()),
                Outcome::Blocked { left: Some(left), .. } => Some(left.clone()),
                Outcome::Blocked { left: None, .. } | Outcome::AsIs | Outcome::TooMany => settled,
            }
        })?;
        self.paid(call.ino, &owed);
        match outcome {
            Outcome::AsIs | Outcome::Granted(_) => {
                self.store.forget(&[Key::Node(call.ino), Key::Content(call.ino)]);
                Ok(None)
            }
            refused => {
                if news {
                    held.refused(wanted.holder(), call.handle);
                }
                match refused {
                    Outcome::Blocked { by, .. } => Ok(Some(by)),
                    _ => Err(AdvisoryError::TooMany.into()),
                }
            }
        }
    }

    /// Gives up what the caller has in a range.
    ///
    /// # Errors
    /// The store's; then the caller still has it.
    pub fn unlock_advisory(&self, call: &AdvisoryCall) -> Result<()> {
        // Whoever has the lock next is to see what was written under it.
        self.settle(call.ino);
        let holder = self.holder(call.owner, call.family);
        let pin = self.inodes.pin(call.ino);
        let mut held = pin.advisory.lock();
        if held.holders(|taken, _| *taken == holder).is_empty() {
            return Ok(());
        }
        let mut keeps = false;
        self.change_advisory(call.ino, &mut held, false, |locks| {
            let left = advisory::unlock(locks, holder, call.start, call.end);
            keeps = left.as_deref().unwrap_or(locks).iter().any(|lock| lock.holder() == holder);
            left
        })?;
        if !keeps {
            held.forget(|taken, _| *taken == holder);
        }
        Ok(())
    }

    /// A process closes the file: the locks that it took with fcntl(2) go, through whichever open file it took them.
    ///
    /// # Errors
    /// The store's; then the locks are owed.
    pub fn flush_advisory(&self, ino: Ino, owner: u64) -> Result<()> {
        let closing = self.holder(owner, AdvisoryFamily::Fcntl);
        self.drop_advisory(ino, |holder, _| *holder == closing)
    }

    /// An open file is gone: so are the locks that were taken through it, those of flock(2) and OFD locks.
    ///
    /// # Errors
    /// The store's; then the locks are owed.
    pub fn release_advisory(&self, ino: Ino, handle: u64) -> Result<()> {
        let session = self.session;
        self.drop_advisory(ino, |holder, through| holder.session == session && through == handle)
    }

    fn drop_advisory(&self, ino: Ino, goes: impl Fn(&AdvisoryHolder, u64) -> bool) -> Result<()> {
        let pin = self.inodes.pin(ino);
        let mut held = pin.advisory.lock();
        let holders = held.holders(&goes);
        if holders.is_empty() {
            return Ok(());
        }
        held.forget(goes);
        self.give_up_advisory(ino, &mut held, &holders).inspect_err(|_| {
            self.advisory.owed.lock().extend(holders.iter().map(|holder| (ino, *holder)));
        })
    }

    fn give_up_advisory(&self, ino: Ino, held: &mut Held, holders: &[AdvisoryHolder]) -> Result<()> {
        self.change_advisory(ino, held, false, |locks| {
            advisory::without(locks, |lock| holders.contains(&lock.holder()))
        })
    }

    /// Tries once more to give up what could not be given up.
    ///
    /// # Errors
    /// The store's; then something is owed still.
    pub fn settle_advisory(&self) -> Result<()> {
        let inodes: Vec<Ino> = self.advisory.owed.lock().iter().map(|(ino, _)| *ino).collect();
        for ino in inodes {
            let pin = self.inodes.pin(ino);
            let mut held = pin.advisory.lock();
            let owed = self.owed(ino);
            if !owed.is_empty() {
                self.give_up_advisory(ino, &mut held, &owed)?;
                self.paid(ino, &owed);
            }
        }
        Ok(())
    }

    /// Whether something is owed that can still be given up; to be asked before each [`Namespace::settle_advisory`]. Waits
    /// a little first.
    pub fn owes_advisory(&self) -> bool {
        self.advisory.waits.sleep_until_closed(self.session, SETTLE_PAUSE);
        let over = self.is_fenced() || self.advisory.waits.is_closed(self.session);
        !over && self.advisory.owed.lock().iter().any(|(_, holder)| holder.session == self.session)
    }

    /// What this session owes of an inode.
    fn owed(&self, ino: Ino) -> Vec<AdvisoryHolder> {
        let owed = self.advisory.owed.lock();
        let own = owed.iter().filter(|(of, holder)| *of == ino && holder.session == self.session);
        own.map(|(_, holder)| *holder).collect()
    }

    fn paid(&self, ino: Ino, holders: &[AdvisoryHolder]) {
        if !holders.is_empty() {
            self.advisory.owed.lock().retain(|(of, holder)| *of != ino || !holders.contains(holder));
        }
    }

    /// Grants this session nothing any more, and ends its waits.
    pub fn close_advisory(&self) {
        self.advisory.waits.close(self.session);
    }
}
