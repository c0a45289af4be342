//! What can go wrong in the lock layer, named by what the caller does about it. No errno: that is the business of
//! the FUSE adapter alone.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::id::LockId;
use super::set::Mode;
use super::who::OpId;
use crate::store::StoreError;

/// Every error of the lock layer.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The operation would move a directory below itself. Nothing was locked; it can never succeed.
    #[error("{upper} cannot be moved below itself, to {lower}")]
    IntoItself {
        /// The path that is the ancestor.
        upper: LockId,
        /// The path below it.
        lower: LockId,
    },
    /// The root of the volume can be neither renamed nor locked.
    #[error("the root of the volume can be neither renamed nor locked")]
    Root,
    /// No absolute path inside the volume.
    #[error("\"{path}\" is not a path of the volume: {reason}")]
    InvalidPath {
        /// The path, printable.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Not the id of a lock document.
    #[error("\"{id}\" is not the id of a lock: {reason}")]
    InvalidId {
        /// The id, printable.
        id: String,
        /// What is wrong with it, or how it is written.
        reason: String,
    },
    /// Not a point in time as lock documents write it.
    #[error("\"{text}\" is not a time: it is written like 2026-03-01T12:00:00.000Z")]
    InvalidTime {
        /// The text, printable.
        text: String,
    },
    /// The volume's strategy is `version`, which has no locks, so none can be held.
    #[error("this volume has no locks that could be held: it was formatted with --locking version")]
    NoLocks,
    /// The locks are not free, and the caller did not want to wait. It holds nothing; it may try again.
    #[error("not free: {0}")]
    WouldBlock(Box<Blocked>),
    /// The locks did not become free in time. The caller holds nothing; it may try again.
    #[error("timed out: {0}")]
    TimedOut(Box<Blocked>),
    /// Whoever it was done for did not want to wait any longer. The caller holds nothing; it may try again.
    #[error("interrupted while it waited for a lock")]
    Interrupted,
    /// The table was closed: the volume is being unmounted. The caller holds nothing.
    #[error("the lock table is closed: the volume is being unmounted")]
    Closed,
    /// Somebody broke the operation's locks. It holds nothing and has changed nothing.
    #[error("its locks were broken {by}")]
    Revoked {
        /// Who did it, and why, for people: `by root (process 812)`.
        by: Arc<str>,
    },
    /// The session was dropped, perhaps while the operation waited: it is dead to the volume. The caller holds nothing.
    #[error("the session of this mount was declared dead; unmount it and mount it again")]
    SessionDropped,
    /// A lock document is not what lock documents are: its id does not belong to its path, or its path is none.
    #[error("the lock document \"{id}\" is damaged: {reason}")]
    Damaged {
        /// The document's id, printable.
        id: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Too few of the servers that keep the locks answer. The caller holds nothing; it may try again.
    #[error(
        "{answered} of {of} lock servers answer, and {needed} must: {causes}; without a majority nothing is locked: start \
         them, or mend the network"
    )]
    NoMajority {
        /// How many answered.
        answered: usize,
        /// How many must.
        needed: usize,
        /// How many there are.
        of: usize,
        /// The others, each with what is wrong.
        causes: String,
    },
    /// The locks ended before the change was made, and may be somebody else's by now. The caller has changed nothing; it may
    /// try again.
    #[error(
        "its locks ran out {since:.1?} ago, and others may have them: this host stood still, or too few lock servers \
         answered for too long; no change that needs them was made, so it can be done again"
    )]
    Lapsed {
        /// How long ago.
        since: Duration,
    },
    /// The store lost its last changes, and with them the locks: as after a power cut, or a failover. Others may have them.
    #[error(
        "the store has lost it with its last changes, as in a power cut or a failover, and others may have it"
    )]
    Forgotten,
    /// The store that has the lock documents failed. The caller holds nothing; what it could not take back is removed by
    /// others.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Which lock an operation could not get, and who had it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Blocked {
    /// The lock that was waited for.
    pub lock: LockId,
    /// The mode in which it was wanted.
    pub wanted: Mode,
    /// The mode in which it is held.
    pub held: Mode,
    /// Who holds it; never empty.
    pub holders: Vec<HeldBy>,
    /// How many operations stood in the queue before the one that gave up.
    pub waiting_before: usize,
}

/// One operation that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeldBy {
    /// The operation, and through it the session.
    pub op: OpId,
    /// What it does, for people.
    pub operation: Arc<str>,
    /// For how long it has held the lock.
    pub held_for: Duration,
}

/// As many holders as a line of a log bears.
const HOLDERS_SHOWN_MAX: usize = 3;

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} lock of {} ({}) wanted, held {}",
            self.wanted,
            self.lock,
            self.lock.encoded(),
            self.held
        )?;
        for (nth, holder) in self.holders.iter().take(HOLDERS_SHOWN_MAX).enumerate() {
            let joint = if nth == 0 { "by" } else { ", by" };
            let seconds = holder.held_for.as_secs_f64();
            write!(f, " {joint} session {} for {seconds:.1} s ({})", holder.op.session, holder.operation)?;
        }
        if self.holders.len() > HOLDERS_SHOWN_MAX {
            write!(f, " and {} more", self.holders.len() - HOLDERS_SHOWN_MAX)?;
        }
        match self.waiting_before {
            0 => Ok(()),
            before => write!(f, "; {before} waiting before"),
        }
    }
}
