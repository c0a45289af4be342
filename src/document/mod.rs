//! The document model: what is stored, under which keys, and how it is encoded. No I/O, no clock.
//!
//! Owns the types of section "Documents" of docs/format.md. Imports nothing of Lockwood.
//!
//! What is hard, and where it is solved:
//! 1. One directory is one contiguous, stably ordered range of keys, whatever happens to its entries: [`key`].
//! 2. A record that was cut short or altered is told from a good one, and from one of a newer format: [`codec`].
//! 3. Changes that commute (counters, times) need no version: [`merge`].
//! 4. Names are bytes, and still every document can be printed as JSON: [`text`].

pub mod advisory;
pub mod codec;
pub mod intent;
pub mod key;
pub mod lock;
pub mod merge;
pub mod name;
pub mod node;
pub mod object;
pub mod session;
pub mod text;
pub mod time;
pub mod volume;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use advisory::{AdvisoryFamily, AdvisoryHolder, AdvisoryLock, AdvisoryRecord, OFFSET_MAX};
pub use intent::{IntentId, Mark, MarkChange, Marked, Slot, SlotState};
pub use key::{EntryPosition, Key, Kind};
pub use lock::{LockClaim, LockMode, LockRecord};
pub use merge::NodeDelta;
pub use name::{Name, NameError};
pub use node::{Body, ContentPlace, Directory, FileKind, Node, Regular};
pub use object::{ObjectName, ObjectRef};
pub use session::{Session, SessionId, SessionState};
pub use time::Timestamp;
pub use volume::{Locking, Volume};

/// The format version of the documents and of the store's layout. A store of a newer one is refused.
pub const FORMAT_VERSION: u32 = 1;

/// An inode number. Never reused within a volume, so that it also serves as file handle and NFS file id; the generation
/// number that other filesystems need beside it is always zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory of a volume.
    pub const ROOT: Self = Self(1);
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The version of a document. It changes at every write of the document and is never handed out twice in one store; it
/// grows from one write to another that began after the first had returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version(pub u64);

/// A name in a directory: (parent inode, name) -> inode and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// What the name stands for.
    pub ino: Ino,
    /// The kind of the node, so that a listing needs no second look-up.
    pub kind: FileKind,
}

/// Inline bytes of a regular file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Content {
    /// The first bytes of the file; what the file has beyond them, up to its size, reads as zeros.
    #[serde(with = "text::bytes")]
    pub bytes: Arc<[u8]>,
}

/// The value of one extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Xattr {
    /// The value, at most 64 KiB.
    #[serde(with = "text::bytes")]
    pub value: Arc<[u8]>,
}

/// A piece of the content of a regular file, on stores that keep contents in pieces of one size.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Chunk {
    /// The bytes from the piece's beginning on; what the file has beyond them, up to its end, reads as zeros. On volumes
    /// whose contents are in an object store, which object has them: [`ObjectRef::encode`].
    #[serde(with = "text::bytes")]
    pub bytes: Arc<[u8]>,
}

/// Something to collect: an inode that lost its last name while it was open, or whose backing files are still to be
/// removed. What stands here after a crash is collected at the next mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Orphan {
    /// The session that had the inode open.
    pub session: SessionId,
}

/// Any document that is stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Document {
    /// One a volume.
    Volume(Volume),
    /// The attributes of one inode.
    Node(Node),
    /// A name in a directory.
    Entry(Entry),
    /// Inline bytes of a file.
    Content(Content),
    /// One extended attribute.
    Xattr(Xattr),
    /// An inode to collect.
    Orphan(Orphan),
    /// One mount (or one command) at work on the store.
    Session(Session),
    /// A piece of the content of a file.
    Chunk(Chunk),
    /// A lock, on stores that many hosts share; the locks of an embedded store live in its daemon.
    Lock(LockRecord),
    /// The advisory locks of an inode, on stores that many hosts share.
    Advisory(AdvisoryRecord),
}

impl Document {
    /// The kind of key that this document stands under.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Volume(_) => Kind::Volume,
            Self::Node(_) => Kind::Node,
            Self::Entry(_) => Kind::Entry,
            Self::Content(_) => Kind::Content,
            Self::Xattr(_) => Kind::Xattr,
            Self::Orphan(_) => Kind::Orphan,
            Self::Session(_) => Kind::Session,
            Self::Chunk(_) => Kind::Chunk,
            Self::Lock(_) => Kind::Lock,
            Self::Advisory(_) => Kind::Advisory,
        }
    }
}

/// A document together with its version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stored {
    /// Changes at every write.
    pub version: Version,
    /// What was written.
    pub document: Arc<Document>,
}
