//! Lock documents as they are stored by shared engines. Data only; the rules are in `lock`.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::SessionId;

/// How a lock is held or asked for. The stronger mode is the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LockMode {
    /// Held by any number of operations at once; what an ancestor gets.
    Shared,
    /// Held by one operation alone; what the target gets.
    Exclusive,
}

impl fmt::Display for LockMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shared => "shared",
            Self::Exclusive => "exclusive",
        })
    }
}

/// One operation at a lock: it holds it or waits for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LockClaim {
    /// Whose operation.
    pub session: SessionId,
    /// Which of the session's operations; never used again.
    pub operation: u64,
    /// How it holds the lock, or wants it.
    pub mode: LockMode,
    /// What it does, for people.
    pub purpose: Arc<str>,
    /// Since when it has held or waited, in nanoseconds since 1970 by the wall clock of whoever let it: for people, never
    /// compared.
    pub since_ns: u64,
}

/// A lock document of a shared engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LockRecord {
    /// The path that is locked, exactly.
    pub path: Vec<u8>,
    /// Who holds it: one exclusive claim, or any number of shared ones.
    pub holders: Vec<LockClaim>,
    /// Who waits, first come first.
    pub waiters: Vec<LockClaim>,
}
