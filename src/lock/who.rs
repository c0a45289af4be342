//! Who asks: sessions and their operations.

use std::fmt;

pub use crate::document::SessionId;

/// One operation of a session: what acquires a lock set once and releases it once. The number is never used again
/// within the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId {
    /// Whose operation it is.
    pub session: SessionId,
    /// Which of the session's.
    pub number: u64,
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.session, self.number)
    }
}
