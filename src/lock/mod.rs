//! The lock engine: which locks a rename needs.
//!
//! Owns lock ids and lock sets. Imports [`ambient`](crate::ambient) and nothing else of Lockwood.

mod error;
mod id;
mod set;
mod who;

pub use error::{Blocked, HeldBy, LockError};
pub use id::LockId;
pub use set::{LockEntry, LockSet, Mode};
pub use who::{OpId, SessionId};
