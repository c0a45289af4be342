//! The volume: the one document that says what the store holds.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

use super::{Body, Directory, FORMAT_VERSION, Ino, Node, Timestamp};

/// How renames lock; chosen when the volume is formatted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Locking {
    /// Shared locks on the ancestors of both paths, exclusive locks on both targets.
    #[default]
    Tree,
    /// An exclusive lock on every path of the moved subtree, on both targets, and on the destination's directory.
    Document,
    /// One exclusive lock for the whole volume.
    Global,
    /// No locks: the checks of the commit alone, and retries.
    Version,
}

impl Locking {
    /// Every strategy, the default first.
    pub const ALL: [Self; 4] = [Self::Tree, Self::Document, Self::Global, Self::Version];
}

/// As it is written: `tree`, `document`, `global`, `version`.
impl fmt::Display for Locking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tree => "tree",
            Self::Document => "document",
            Self::Global => "global",
            Self::Version => "version",
        })
    }
}

/// The document of the volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Volume {
    /// The format version of every document in the store.
    pub format: u32,
    /// A random id, 32 hexadecimal digits.
    pub id: String,
    /// How renames lock.
    pub locking: Locking,
    /// When the volume was formatted.
    pub created: Timestamp,
    /// The first inode number that no session has been given yet.
    pub next_ino: u64,
    /// How many sessions there have been.
    pub epoch: u64,
    /// The largest content that is kept in a document, in bytes.
    pub inline_max: u32,
    /// The URL of the object store that has the bytes of large files, without credentials; none if the store of the
    /// documents has them. The last field, and not written where there is none: records that were made before there was
    /// one end here.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "content_if_any")]
    pub content: Option<String>,
}

/// A binary record may end before the field. Its checksum has been judged by then, so it was not cut off.
fn content_if_any<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let in_words = deserializer.is_human_readable();
    match Option::deserialize(deserializer) {
        Err(error) if in_words => Err(error),
        found => Ok(found.unwrap_or(None)),
    }
}

impl Volume {
    /// A volume in which nothing has happened yet.
    pub fn empty(id: String, locking: Locking, inline_max: u32, created: Timestamp) -> Self {
        let next_ino = Ino::ROOT.0 + 1;
        Self { format: FORMAT_VERSION, id, locking, created, next_ino, epoch: 0, inline_max, content: None }
    }

    /// The root directory of an empty volume.
    pub fn empty_root(&self, uid: u32, gid: u32) -> Node {
        Node {
            mode: 0o755,
            uid,
            gid,
            nlink: 2,
            atime: self.created,
            mtime: self.created,
            ctime: self.created,
            btime: self.created,
            xattrs: 0,
            body: Body::Directory(Directory { parent: Ino::ROOT, name: None, children: 0 }),
        }
    }
}
