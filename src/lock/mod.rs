//! The lock engine: which locks a rename needs, who is granted them, who waits, and what people see of it.
//!
//! Owns lock ids, lock sets, the strategies, the decisions, lock documents, the three providers, and the sessions of shared
//! stores. Imports `ambient`, `rules`, `document` and `store`. Users and maintainers read docs/locking.md.
//!
//! What is hard, and where it is solved:
//! 1. No two renames may together cut a loop off the tree: the lock set of a rename, [`LockSet`].
//!    What the other strategies want instead: [`Plan`].
//! 2. No two operations may wait for each other: the global order of [`LockId`], and [`decide`].
//! 3. Nobody may be starved, and no wait may be lost: the queue of one lock, [`decide::one`].
//! 4. A wait must cost nothing to those who do not wait, and wake nobody but the one who is granted: [`LockTable`].
//! 5. The same rules must hold where the locks are documents that many hosts change: [`SharedLocks`];
//!    and where they are kept on servers of their own, and end by themselves: [`Redlock`].
//! 6. The dead must be told from the slow, and cleaned up after: [`session`].
//! 7. Locks that programs take with flock(2) and fcntl(2) exclude programs of other hosts: [`advisory`].
//! 8. Anybody must be able to see who holds what, for what, and since when: [`LockDocument`].

pub mod advisory;
mod change;
pub mod decide;
mod document;
mod error;
mod id;
mod provider;
pub mod redlock;
pub mod session;
mod set;
pub mod shared;
mod strategy;
mod sync;
mod table;
#[cfg(test)]
mod tests;
mod timestamp;
mod wait;
mod who;

pub use document::{ClaimEntry, HolderEntry, LockDocument, OperationDocument, OperationEntry, WaiterEntry};
pub use error::{Blocked, HeldBy, LockError};
pub use id::{LockId, printable};
pub use provider::{LockGuard, Locks, operations_of};
pub use redlock::{Redlock, RedlockGuard};
pub use set::{LockEntry, LockSet, Mode};
pub use shared::{SharedGuard, SharedLocks};
pub use strategy::Plan;
pub use table::{BreakOutcome, Broken, Counters, DEFAULT_WAIT, Guard, LockTable, Request};
pub use timestamp::Timestamp;
pub use wait::{GiveUp, Wait, ask_after};
pub use who::{OpId, SessionId};
