//! Advisory locks as they are stored by shared engines: those that programs take with flock(2) and fcntl(2). Data only; the
//! rules are in `lock::advisory`.
//!
//! One document an inode has all of its locks, since whether one may be granted depends on all others. An inode without
//! locks has no document.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{LockMode, SessionId, Timestamp};

/// The greatest offset of a byte: a range that ends here goes to the end of the file, however far it grows.
pub const OFFSET_MAX: u64 = i64::MAX as u64;

/// The call that a lock was taken with. Locks of one family say nothing to those of the other, as on Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AdvisoryFamily {
    /// fcntl(2): ranges of bytes, of a process or (OFD locks) of an open file.
    Fcntl,
    /// flock(2): the whole file, of an open file.
    Flock,
}

/// Whose a lock is. Only its holder may change it, and it is never in its holder's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdvisoryHolder {
    /// The mount that it was taken through.
    pub session: SessionId,
    /// What the kernel of that mount calls the process or the open file; means nothing to anybody else.
    pub owner: u64,
    /// Its family.
    pub family: AdvisoryFamily,
}

/// One advisory lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AdvisoryLock {
    /// The call that it was taken with.
    pub family: AdvisoryFamily,
    /// Shared (a read lock) or exclusive (a write lock).
    pub mode: LockMode,
    /// The first byte.
    pub start: u64,
    /// The last byte; [`OFFSET_MAX`]: to the end.
    pub end: u64,
    /// The mount that it was taken through.
    pub session: SessionId,
    /// What the kernel of that mount calls the process or the open file.
    #[serde(with = "hexadecimal")]
    pub owner: u64,
    /// The process that asked for it, as its own host numbers it; for people and F_GETLK.
    pub pid: u32,
    /// The name of its host; for people.
    pub host: Arc<str>,
    /// When it was asked for, by the wall clock of its host; for people.
    pub since: Timestamp,
}

impl AdvisoryLock {
    /// Whose it is.
    pub fn holder(&self) -> AdvisoryHolder {
        AdvisoryHolder { session: self.session, owner: self.owner, family: self.family }
    }
}

/// The advisory locks of one inode; never none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AdvisoryRecord {
    /// All of them, ordered by family, first byte, session and owner.
    pub locks: Vec<AdvisoryLock>,
}

/// Sixteen digits for people, since a reader of JSON may keep only 53 bits of a number.
mod hexadecimal {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    use crate::document::SessionId;

    pub(super) fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(&format_args!("{number:016x}"))
        } else {
            serializer.serialize_u64(*number)
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        if !deserializer.is_human_readable() {
            return u64::deserialize(deserializer);
        }
        // The form is that of the ids of sessions.
        let text = String::deserialize(deserializer)?;
        text.parse()
            .map(|SessionId(number)| number)
            .map_err(|_| D::Error::custom("not sixteen hexadecimal digits"))
    }
}
