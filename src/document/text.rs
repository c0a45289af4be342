//! Bytes as text: the URL encoding that lock ids, key names and JSON share.
//!
//! Every byte but the unreserved ones of RFC 3986 (letters, digits, `-`, `.`, `_`, `~`) becomes `%XX`. The encoding is
//! a bijection on what [`encode`] prints, so a name of any bytes survives a round trip through JSON.

use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Bytes as URL-encoded text.
pub fn encode(bytes: &[u8]) -> String {
    encoded(bytes).to_string()
}

/// The same, to be written into something else.
pub fn encoded(bytes: &[u8]) -> impl std::fmt::Display {
    percent_encode(bytes, RESERVED)
}

/// The bytes that `text` stands for. A `%` that begins no escape stands for itself.
pub fn decode(text: &str) -> Vec<u8> {
    percent_decode_str(text).collect()
}

/// Serde of byte strings: URL-encoded in formats for people, raw in binary ones.
pub mod bytes {
    use super::{Arc, decode, encode};
    use serde::{Deserialize, Deserializer, Serializer};

    /// See the module.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(bytes: &Arc<[u8]>, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str(&encode(bytes))
        } else {
            serializer.serialize_bytes(bytes)
        }
    }

    /// See the module.
    ///
    /// # Errors
    /// The deserializer's.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[u8]>, D::Error> {
        if deserializer.is_human_readable() {
            String::deserialize(deserializer).map(|text| decode(&text).into())
        } else {
            <&[u8]>::deserialize(deserializer).map(Into::into)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)), all);
        assert_eq!(encode(b"/clinton/projects"), "%2Fclinton%2Fprojects");
        assert_eq!(encode(b"a-b._~%"), "a-b._~%25");
    }
}
