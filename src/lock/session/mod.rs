//! Sessions over a store that changes one cell at a time: how they begin, show that they live, die and are cleaned up after.
//!
//! Owns the life of session documents. Imports `ambient`, `rules`, `document`, `store`, and what the layer knows of claims.
//! docs/locking.md has the protocol with its reasons.
//!
//! What is hard, and where it is solved:
//! 1. Who may go from where to where, whoever it is that tries: [`state`], pure.
//! 2. To tell the dead from the slow without a common clock: [`observe`], pure. A wrong verdict costs a live session its
//!    mount, and nothing else.
//! 3. To clean up after the dead, by any number of recoverers that may die themselves: [`plan`], pure, and [`recover`].
//! 4. Requests that arrive late, twice or never: every change is a compare-and-set on a version that was read.

mod documents;
mod heart;
mod member;
pub mod observe;
pub mod plan;
mod recover;
mod standing;
pub mod state;

use std::time::Duration;

pub(super) use documents::{in_cell, key};
pub use heart::Heart;
pub use member::{Member, Observed};
pub use observe::{Observer, Verdict};
pub use recover::{Census, Collect, Recoverer, Swept, Which};
pub use standing::{Operation, Standing};

/// How long others wait for a heartbeat, unless a session says otherwise.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(10);
