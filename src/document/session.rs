//! Sessions: one mount (or one command) at work on a store.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Timestamp;

/// The id of a session, unique in its store for ever. As text sixteen hexadecimal digits, also in JSON, since a reader of
/// JSON may keep only 53 bits of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for SessionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            serializer.serialize_u64(self.0)
        }
    }
}

impl<'de> Deserialize<'de> for SessionId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
        } else {
            u64::deserialize(deserializer).map(Self)
        }
    }
}

/// Text that is no id of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the id of a session: sixteen hexadecimal digits are")]
pub struct SessionIdError;

impl FromStr for SessionId {
    type Err = SessionIdError;

    fn from_str(text: &str) -> Result<Self, SessionIdError> {
        if text.len() != 16 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(SessionIdError);
        }
        u64::from_str_radix(text, 16).map(Self).map_err(|_| SessionIdError)
    }
}

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionState {
    /// Making its intents; it can change nothing yet.
    Joining,
    /// At work.
    Live,
    /// Declared dead: it can commit nothing any more.
    Fenced,
    /// What it left behind has been cleaned up.
    Recovered,
}

/// The document of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Session {
    /// Its id, also its key.
    pub id: SessionId,
    /// The name of the host that it runs on.
    pub host: String,
    /// The boot of that host, from the kernel: a pid means something within one boot only.
    pub boot_id: String,
    /// The process.
    pub pid: u32,
    /// Where the volume is mounted.
    pub mount_point: String,
    /// When it began, by its own wall clock; for people.
    pub started: Timestamp,
    /// How long others wait for a heartbeat before they may fence it, in milliseconds.
    pub lease_ms: u64,
    /// Grows while the session lives.
    pub heartbeat: u64,
    /// Which mount of the volume this is, counted from its format.
    pub epoch: u64,
    /// How many intents it has; none on engines that change several documents at once.
    pub intents: u16,
    /// Its operations below this number are over, whatever a lock document says.
    pub operations_below: u64,
    /// Where it stands.
    pub state: SessionState,
    /// The servers that keep its locks, without users and passwords; none if the locks are with the tree. All sessions of a
    /// volume name the same. A store with one owner keeps its locks in the owner, so there its record has no such field.
    #[serde(default, with = "where_shared")]
    pub locks: Option<String>,
}

/// A field of sessions on shared stores alone: in JSON, and not in the records of an embedded store.
mod where_shared {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(text: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
        // The unit takes no bytes in a record.
        if serializer.is_human_readable() { text.serialize(serializer) } else { serializer.serialize_unit() }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<String>, D::Error> {
        if deserializer.is_human_readable() { Option::deserialize(deserializer) } else { Ok(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_sixteen_digits() {
        let session = SessionId(0xab);
        assert_eq!(session.to_string(), "00000000000000ab");
        assert_eq!(session.to_string().parse(), Ok(session));
        for text in ["", "ab", "+0000000000000ab", "00000000000000ag", "00000000000000abc"] {
            assert_eq!(text.parse::<SessionId>(), Err(SessionIdError), "{text}");
        }
    }
}
