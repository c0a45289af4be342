//! References to objects: what a chunk holds on volumes whose contents are in an object store.
//!
//! They are JSON texts, so that whoever reads the chunk with the tools of the engine sees which object it means. An object
//! is never changed: other bytes are another object under another name.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::SessionId;

/// Which object has the bytes of a chunk, and how to tell that they are the right ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectRef {
    /// The name of the object, below the place of the volume's objects.
    pub object: String,
    /// Its length, in bytes.
    pub bytes: u64,
    /// The XXH3-64 of its bytes, as 16 hexadecimal digits.
    pub xxh3: String,
}

/// What the name of an object says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectName {
    /// Who made it.
    pub session: SessionId,
    /// The inode whose bytes these are.
    pub ino: u64,
    /// Which chunk of it.
    pub index: u64,
}

impl ObjectName {
    /// The name of a new object; `random` makes it differ from all others of the same chunk.
    pub fn with(self, random: u64) -> String {
        format!("{}/{}-{}-{random:016x}", self.session, self.ino, self.index)
    }

    /// What the name of an object says, if it is one.
    pub fn parse(name: &str) -> Option<Self> {
        let (session, rest) = name.split_once('/')?;
        let mut parts = rest.split('-');
        let (ino, index, random) = (parts.next()?, parts.next()?, parts.next()?);
        let parsed =
            Self { session: session.parse().ok()?, ino: ino.parse().ok()?, index: index.parse().ok()? };
        let random = u64::from_str_radix(random, 16).ok()?;
        (parsed.with(random) == name).then_some(parsed)
    }
}

impl ObjectRef {
    /// The reference to an object of this name that holds these bytes.
    pub fn to(object: String, bytes: &[u8]) -> Self {
        Self { object, bytes: bytes.len() as u64, xxh3: format!("{:016x}", xxh3_64(bytes)) }
    }

    /// What a chunk holds.
    pub fn encode(&self) -> Arc<[u8]> {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    /// The reference that a chunk holds.
    ///
    /// # Errors
    /// Why it is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|error| format!("it holds no reference to an object: {error}"))
    }

    /// What is wrong with bytes that should be those of the object; none if they are.
    pub fn mismatch(&self, bytes: &[u8]) -> Option<String> {
        let found = Self::to(String::new(), bytes);
        if found.bytes != self.bytes {
            return Some(format!("it has {} bytes instead of {}", found.bytes, self.bytes));
        }
        (found.xxh3 != self.xxh3).then(|| format!("its XXH3-64 is {} instead of {}", found.xxh3, self.xxh3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_say_what_they_were_made_of(session: u64, ino: u64, index: u64, random: u64) {
            let name = ObjectName { session: SessionId(session), ino, index };
            prop_assert_eq!(ObjectName::parse(&name.with(random)), Some(name));
        }

        #[test]
        fn no_text_makes_parse_or_decode_panic(text in "[0-9a-f/-]{0,60}|\\PC{0,40}") {
            let _ = ObjectName::parse(&text);
            let _ = ObjectRef::decode(text.as_bytes());
        }
    }

    #[test]
    fn a_reference_survives_and_knows_its_bytes() {
        let reference = ObjectRef::to("a/1-2-3".to_owned(), b"bytes");
        assert_eq!(ObjectRef::decode(&reference.encode()), Ok(reference.clone()));
        assert_eq!(reference.mismatch(b"bytes"), None);
        assert!(reference.mismatch(b"byte").unwrap().contains("4 bytes instead of 5"));
        assert!(reference.mismatch(b"Bytes").unwrap().contains("XXH3"));
        assert!(ObjectRef::decode(b"bytes").is_err());
    }

    #[test]
    fn strange_names_are_nobody_s() {
        for name in [
            "volume.json",
            "00000000000000ab/1-2",
            "ab/1-2-0000000000000003",
            "00000000000000ab/01-2-0000000000000003",
        ] {
            assert_eq!(ObjectName::parse(name), None, "{name}");
        }
    }
}
