//! Names in directories: bytes, not text.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::text;

/// The longest name, in bytes.
pub const NAME_MAX: usize = 255;

/// A name that may stand in a directory: 1 to 255 bytes without `/` and NUL, and neither `.` nor `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Name(#[serde(with = "text::bytes")] Arc<[u8]>);

/// Why bytes are no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Longer than [`NAME_MAX`].
    #[error("the name is longer than 255 bytes")]
    TooLong,
    /// Empty, `.`, `..`, or with a `/` or NUL in it.
    #[error("the name is empty, `.` or `..`, or has a `/` or NUL in it")]
    Invalid,
}

impl Name {
    /// Checks `bytes`.
    ///
    /// # Errors
    /// [`NameError`] says which rule is broken.
    pub fn new(bytes: &[u8]) -> Result<Self, NameError> {
        if bytes.len() > NAME_MAX {
            return Err(NameError::TooLong);
        }
        let special = matches!(bytes, b"" | b"." | b"..");
        if special || bytes.iter().any(|&b| b == b'/' || b == 0) {
            return Err(NameError::Invalid);
        }
        Ok(Self(bytes.into()))
    }

    /// The bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::encoded(&self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_of_names() {
        assert!(Name::new(b"a b\xff\n").is_ok());
        assert!(Name::new(&[b'x'; 255]).is_ok());
        assert_eq!(Name::new(&[b'x'; 256]), Err(NameError::TooLong));
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
            assert_eq!(Name::new(bad), Err(NameError::Invalid), "{bad:?}");
        }
        assert!(Name::new(b"...").is_ok());
    }
}
