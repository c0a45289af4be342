//! Who asks: sessions and their operations. Imports nothing of Lockwood.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::error::LockError;

/// One mount, or one command, at work on a store. Written as sixteen hexadecimal digits, also in JSON, since a reader
/// of JSON may keep only 53 bits of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for SessionId {
    type Err = LockError;

    /// # Errors
    /// [`LockError::InvalidSession`] unless the text is sixteen hexadecimal digits.
    fn from_str(text: &str) -> Result<SessionId, LockError> {
        let invalid = || LockError::InvalidSession { text: text.escape_debug().to_string() };
        let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !digits {
            return Err(invalid());
        }
        u64::from_str_radix(text, 16).map(SessionId).map_err(|_| invalid())
    }
}

impl Serialize for SessionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SessionId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SessionId, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_sixteen_digits() {
        let session = SessionId(0xab);
        assert_eq!(session.to_string(), "00000000000000ab");
        assert_eq!(session.to_string().parse::<SessionId>().unwrap(), session);
        for text in ["", "ab", "+0000000000000ab", "00000000000000ag", "00000000000000abc"] {
            assert!(text.parse::<SessionId>().is_err(), "{text}");
        }
    }
}
