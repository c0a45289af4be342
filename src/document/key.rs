//! Keys: which document, in which order, and how a key is written.
//!
//! The order of the encoded keys makes a directory one contiguous range. Within a directory the entries stand in the
//! order of a hash of their names, not of the names themselves: the place of an entry then depends on nothing but its
//! name, which makes it a cursor that stays valid whatever is created and removed around it (readdir returns an entry
//! that is present throughout exactly once), survives a remount, and fits the 63 bits that seekdir(3) and NFS have.
//! The idea is that of the hashed directories of ext3 (Daniel Phillips, "A Directory Index for Ext2", 2001).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64;

use super::{Ino, Name, SessionId, text};

/// The kinds of documents. Each has a key space of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The volume.
    Volume,
    /// Nodes.
    Node,
    /// Entries.
    Entry,
    /// Inline contents.
    Content,
    /// Extended attributes.
    Xattr,
    /// What is to be collected.
    Orphan,
    /// Sessions.
    Session,
    /// Pieces of contents.
    Chunk,
    /// Locks.
    Lock,
    /// Advisory locks.
    Advisory,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 10] = [
        Self::Volume,
        Self::Node,
        Self::Entry,
        Self::Content,
        Self::Xattr,
        Self::Orphan,
        Self::Session,
        Self::Chunk,
        Self::Lock,
        Self::Advisory,
    ];

    /// The name of the key space, also the first part of a key in text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Node => "node",
            Self::Entry => "entry",
            Self::Content => "content",
            Self::Xattr => "xattr",
            Self::Orphan => "orphan",
            Self::Session => "session",
            Self::Chunk => "chunk",
            Self::Lock => "lock",
            Self::Advisory => "advisory",
        }
    }
}

/// The place of an entry in its directory: a hash of the name, from [`EntryPosition::FIRST`] to 2^62 - 1.
///
/// Two names of one directory have the same place with a probability of about n^2 / 2^63 for n entries; listing is exact
/// even then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryPosition(pub u64);

impl EntryPosition {
    /// The lowest place an entry can have; what is below serves `.` and `..`.
    pub const FIRST: Self = Self(16);

    /// The place of `name`: the upper 62 bits of its XXH3-64 hash.
    pub fn of(name: &[u8]) -> Self {
        Self(xxh3_64(name) >> 2).max(Self::FIRST)
    }
}

/// The one key of the volume's key space; engines need not take empty keys.
const VOLUME: &[u8] = b"volume";

/// The key of a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// The volume.
    Volume,
    /// The node of an inode.
    Node(Ino),
    /// A name in a directory.
    Entry(Ino, Name),
    /// Inline content of an inode.
    Content(Ino),
    /// An extended attribute: inode and attribute name.
    Xattr(Ino, Arc<[u8]>),
    /// An inode to collect.
    Orphan(Ino),
    /// A session.
    Session(SessionId),
    /// A piece of the content of an inode: which one, counted from 0.
    Chunk(Ino, u64),
    /// A lock document, by its id: printable ASCII without a colon.
    Lock(Arc<str>),
    /// The advisory locks of an inode.
    Advisory(Ino),
}

impl Key {
    /// Which kind of document stands under this key.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Volume => Kind::Volume,
            Self::Node(_) => Kind::Node,
            Self::Entry(..) => Kind::Entry,
            Self::Content(_) => Kind::Content,
            Self::Xattr(..) => Kind::Xattr,
            Self::Orphan(_) => Kind::Orphan,
            Self::Session(_) => Kind::Session,
            Self::Chunk(..) => Kind::Chunk,
            Self::Lock(_) => Kind::Lock,
            Self::Advisory(_) => Kind::Advisory,
        }
    }

    /// The key within its key space, as bytes whose order is the order of documents. Integers are big-endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(16 + 32);
        self.encode_to(&mut bytes);
        bytes
    }

    /// The same, behind what is there.
    pub fn encode_to(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Volume => bytes.extend_from_slice(VOLUME),
            Self::Node(ino) | Self::Content(ino) | Self::Orphan(ino) | Self::Advisory(ino) => {
                bytes.extend_from_slice(&ino.0.to_be_bytes());
            }
            Self::Session(id) => bytes.extend_from_slice(&id.0.to_be_bytes()),
            Self::Entry(parent, name) => {
                bytes.extend_from_slice(&entries_from(*parent, EntryPosition::of(name.as_bytes())));
                bytes.extend_from_slice(name.as_bytes());
            }
            Self::Xattr(ino, name) => {
                bytes.extend_from_slice(&ino.0.to_be_bytes());
                bytes.extend_from_slice(name);
            }
            Self::Chunk(ino, index) => {
                bytes.extend_from_slice(&ino.0.to_be_bytes());
                bytes.extend_from_slice(&index.to_be_bytes());
            }
            Self::Lock(id) => bytes.extend_from_slice(id.as_bytes()),
        }
    }

    /// The key that [`Key::encode`] wrote in the key space of `kind`.
    pub fn decode(kind: Kind, bytes: &[u8]) -> Option<Self> {
        if kind == Kind::Volume {
            return (bytes == VOLUME).then_some(Self::Volume);
        }
        if kind == Kind::Lock {
            return lock(std::str::from_utf8(bytes).ok()?);
        }
        let (head, rest) = bytes.split_first_chunk::<8>()?;
        let ino = Ino(u64::from_be_bytes(*head));
        let that_is_all = |key| rest.is_empty().then_some(key);
        match kind {
            Kind::Volume | Kind::Lock => None,
            Kind::Entry => {
                let (position, name) = rest.split_first_chunk()?;
                let name = Name::new(name).ok()?;
                // It must stand where its name belongs.
                let belongs = EntryPosition::of(name.as_bytes()).0 == u64::from_be_bytes(*position);
                belongs.then_some(Self::Entry(ino, name))
            }
            Kind::Xattr => Some(Self::Xattr(ino, rest.into())),
            Kind::Node => that_is_all(Self::Node(ino)),
            Kind::Content => that_is_all(Self::Content(ino)),
            Kind::Orphan => that_is_all(Self::Orphan(ino)),
            Kind::Advisory => that_is_all(Self::Advisory(ino)),
            Kind::Session => that_is_all(Self::Session(SessionId(ino.0))),
            Kind::Chunk => Some(Self::Chunk(ino, u64::from_be_bytes(rest.try_into().ok()?))),
        }
    }
}

/// The key of the lock document with this id, if it is one.
fn lock(id: &str) -> Option<Key> {
    let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
    is_id.then(|| Key::Lock(id.into()))
}

/// The lowest encoded key that an entry of `parent` at or after `position` can have.
pub fn entries_from(parent: Ino, position: EntryPosition) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&parent.0.to_be_bytes());
    bytes[8..].copy_from_slice(&position.0.to_be_bytes());
    bytes
}

impl fmt::Display for Key {
    /// The form that `lockwood get` takes: the kind, then the parts, with colons between; names URL-encoded.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind().name();
        match self {
            Self::Volume => f.write_str(kind),
            Self::Node(ino) | Self::Content(ino) | Self::Orphan(ino) | Self::Advisory(ino) => {
                write!(f, "{kind}:{ino}")
            }
            Self::Entry(parent, name) => write!(f, "{kind}:{parent}:{name}"),
            Self::Xattr(ino, name) => write!(f, "{kind}:{ino}:{}", text::encoded(name)),
            Self::Session(id) => write!(f, "{kind}:{id}"),
            Self::Chunk(ino, index) => write!(f, "{kind}:{ino}:{index}"),
            Self::Lock(id) => write!(f, "{kind}:{id}"),
        }
    }
}

impl std::str::FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let mut parts = text.splitn(3, ':');
        let kind = parts.next().unwrap_or_default();
        let (first, second) = (parts.next(), parts.next());
        let ino = || first.and_then(|t| t.parse().ok()).map(Ino).ok_or(KeyError);
        let name = || second.map(text::decode).ok_or(KeyError);
        match (kind, second) {
            ("volume", None) if first.is_none() => Ok(Self::Volume),
            ("node", None) => ino().map(Self::Node),
            ("content", None) => ino().map(Self::Content),
            ("orphan", None) => ino().map(Self::Orphan),
            ("advisory", None) => ino().map(Self::Advisory),
            ("session", None) => first.and_then(|t| t.parse().ok()).map(Self::Session).ok_or(KeyError),
            ("entry", Some(_)) => Ok(Self::Entry(ino()?, Name::new(&name()?).map_err(|_| KeyError)?)),
            ("chunk", Some(index)) => Ok(Self::Chunk(ino()?, index.parse().map_err(|_| KeyError)?)),
            ("lock", None) => first.and_then(lock).ok_or(KeyError),
            ("xattr", Some(_)) => Ok(Self::Xattr(ino()?, name()?.into())),
            _ => Err(KeyError),
        }
    }
}

/// As text, also in binary encodings: a key within a document is rare, and read by people.
impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Text that names no document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no such form of a document's name; the forms are volume, node:INODE, entry:PARENT:NAME, content:INODE, \
     xattr:INODE:NAME, chunk:INODE:INDEX, orphan:INODE, session:ID, lock:ID and advisory:INODE, with names URL-encoded"
)]
pub struct KeyError;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys() -> impl Strategy<Value = Key> {
        let name =
            proptest::collection::vec(any::<u8>(), 1..40).prop_filter_map("a name", |b| Name::new(&b).ok());
        prop_oneof![
            Just(Key::Volume),
            any::<u64>().prop_map(|i| Key::Node(Ino(i))),
            any::<u64>().prop_map(|i| Key::Content(Ino(i))),
            any::<u64>().prop_map(|i| Key::Orphan(Ino(i))),
            any::<u64>().prop_map(|i| Key::Advisory(Ino(i))),
            any::<u64>().prop_map(|i| Key::Session(SessionId(i))),
            any::<(u64, u64)>().prop_map(|(i, n)| Key::Chunk(Ino(i), n)),
            "[%A-Za-z0-9._~=-]{1,40}".prop_map(|id| Key::Lock(id.into())),
            (any::<u64>(), name).prop_map(|(i, n)| Key::Entry(Ino(i), n)),
            (any::<u64>(), proptest::collection::vec(any::<u8>(), 1..40))
                .prop_map(|(i, n)| Key::Xattr(Ino(i), n.into())),
        ]
    }

    proptest! {
        #[test]
        fn keys_survive_bytes_and_text(key in keys()) {
            prop_assert_eq!(Key::decode(key.kind(), &key.encode()), Some(key.clone()));
            prop_assert_eq!(key.to_string().parse::<Key>(), Ok(key));
        }

        #[test]
        fn no_bytes_make_decode_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            for kind in Kind::ALL {
                let _ = Key::decode(kind, &bytes);
            }
        }
    }

    #[test]
    fn text_that_is_no_key() {
        for bad in [
            "",
            "node",
            "node:x",
            "node:1:2",
            "entry:1",
            "entry:1:",
            "entry:1:%2F",
            "lock:",
            "lock:a:b",
            "chunk:1",
            "volume:1",
        ] {
            assert_eq!(bad.parse::<Key>(), Err(KeyError), "{bad}");
        }
    }

    #[test]
    fn a_directory_is_one_range_in_the_order_of_positions() {
        let name = |n: &str| Name::new(n.as_bytes()).unwrap();
        let mut keys: Vec<_> =
            (0..1000).map(|i| Key::Entry(Ino(7), name(&format!("f{i}"))).encode()).collect();
        keys.sort();
        let positions: Vec<_> =
            keys.iter().map(|k| u64::from_be_bytes(k[8..16].try_into().unwrap())).collect();
        assert!(positions.is_sorted());
        assert!(Key::Entry(Ino(6), name("z")).encode() < keys[0]);
        assert!(Key::Entry(Ino(8), name("a")).encode() > keys[999]);
    }
}
