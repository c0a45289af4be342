//! The lock engine: which locks a rename needs, who is granted them, and who waits.
//!
//! Owns lock ids, lock sets and the decisions. Imports [`ambient`](crate::ambient) and nothing else of Lockwood.

pub mod decide;
mod error;
mod id;
mod set;
mod who;

pub use error::{Blocked, HeldBy, LockError};
pub use id::LockId;
pub use set::{LockEntry, LockSet, Mode};
pub use who::{OpId, SessionId};
