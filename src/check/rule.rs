//! The rules: what can be broken, one variant for each thing that a person would mend in a different way.
//!
//! Owns [`Rule`]; imports nothing of Lockwood. The table below is the only list of them: the enum, its texts and
//! [`Rule::ALL`] come from it, so that none can be forgotten.

use serde::{Serialize, Serializer};

const MOUNT_ONCE: &str = "mount the volume once to recover";
const RESTORE: &str = "restore the store from a backup";

macro_rules! rules {
    ($($(#[doc = $doc:literal])+ $variant:ident = $text:literal, $invariant:literal, $advice:expr;)+) => {
        /// Something that can be wrong with a volume. In text and JSON it is kebab-case.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Rule {
            /// Every rule.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Its name in text and JSON.
            pub fn text(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The number of the invariant that it belongs to; see the list at the head of the module.
            pub fn invariant(self) -> u8 {
                match self { $(Self::$variant => $invariant),+ }
            }

            /// What a person can do when it is broken, if that is known.
            pub fn advice(self) -> Option<&'static str> {
                match self { $(Self::$variant => $advice),+ }
            }
        }
    };
}

rules! {
    /// There is no volume document.
    VolumeMissing = "volume-missing", 1, Some(RESTORE);
    /// The volume has a format that this program does not know; nothing else was judged.
    FormatUnknown = "format-unknown", 1, Some("use a newer lockwood");
    /// An inode is in use that `next_ino` will hand out again.
    NextIno = "next-ino", 1, None;
    /// The root node is missing, no directory, has a parent other than itself, or has a name.
    Root = "root", 1, None;
    /// Entries stand under a node that is missing or no directory.
    EntryParent = "entry-parent", 2, None;
    /// An entry leads to a node that is missing.
    EntryNode = "entry-node", 2, None;
    /// An entry says another kind than its node.
    EntryKind = "entry-kind", 2, None;
    /// An entry leads to a directory whose node says that it is elsewhere: moved half, or a second name.
    DirectoryPlace = "directory-place", 3, None;
    /// No entry leads to a directory.
    DirectoryUnnamed = "directory-unnamed", 3, None;
    /// A directory says that it is in a node that is missing or no directory, and no entry leads to it.
    DirectoryParent = "directory-parent", 3, None;
    /// `children` is not the number of entries.
    DirectoryChildren = "directory-children", 3, None;
    /// `nlink` of a directory is not two and one for each subdirectory.
    DirectoryLinks = "directory-links", 3, None;
    /// Directories lie in each other, cut off from the root.
    DirectoryLoop = "directory-loop", 3, None;
    /// `nlink` of another node is not the number of its names.
    LinkCount = "link-count", 4, None;
    /// A node without a name that no orphan document holds.
    UnnamedNode = "unnamed-node", 4, None;
    /// A content document beside a node that keeps no bytes there, or beside none.
    ContentStray = "content-stray", 5, None;
    /// A node that keeps its bytes in a content document has none.
    ContentMissing = "content-missing", 5, Some(RESTORE);
    /// A content document is longer than the volume allows or than the file.
    ContentLength = "content-length", 5, None;
    /// A chunk is empty or longer than chunks are.
    ChunkLength = "chunk-length", 5, None;
    /// A file is larger than 2^63 - 1 bytes.
    FileSize = "file-size", 5, None;
    /// A node keeps its bytes in backing files, and there is none.
    BackingMissing = "backing-missing", 6, Some(RESTORE);
    /// A chunk names an object that is missing or has another length.
    ObjectMissing = "object-missing", 6, Some("restore the object from a backup, or remove the file");
    /// `xattrs` of a node is not the number of its attributes.
    XattrCount = "xattr-count", 7, None;
    /// An attribute of a node that is missing.
    XattrStray = "xattr-stray", 7, None;
    /// The name or the value of an attribute is too long, or the name is empty.
    XattrLength = "xattr-length", 7, None;
    /// An orphan document of a node that has names.
    OrphanNamed = "orphan-named", 8, None;
    /// An orphan document of a session that is not live, on a mounted volume.
    OrphanSession = "orphan-session", 8, Some("unmount the volume and mount it again to recover");
    /// An orphan document on a volume that nobody has mounted.
    OrphanLeft = "orphan-left", 8, Some(MOUNT_ONCE);
    /// The mount's own session is missing or not live.
    SessionOwn = "session-own", 9, Some("unmount the volume and mount it again");
    /// A session that did not end.
    SessionLeft = "session-left", 9, Some(MOUNT_ONCE);
    /// A session that was fenced and not recovered.
    SessionFenced = "session-fenced", 9, Some(MOUNT_ONCE);
    /// A session under another id than its own.
    SessionKey = "session-key", 9, None;
    /// An advisory lock of a session that does not exist or was recovered.
    AdvisorySession = "advisory-session", 9, Some("wait for the lock on a mount: who waits removes what was left");
    /// Advisory locks of an inode that cannot all be held, or none, or one without a byte.
    AdvisoryLocks = "advisory-locks", 9, Some("close the file on all hosts");
    /// A mode has bits above 0o7777.
    Mode = "mode", 10, Some("set the mode with chmod");
    /// A time has 10^9 nanoseconds or more.
    Nanoseconds = "nanoseconds", 10, Some("set the times with touch");
    /// The target of a symbolic link is empty or too long.
    SymlinkTarget = "symlink-target", 10, Some("remove the link and make it again");
    /// A document does not decode, or is of another kind than its key.
    Damaged = "damaged", 11, Some(RESTORE);
    /// A key does not decode; what stands behind it could not be read.
    KeySpaceDamaged = "key-space-damaged", 11, Some(RESTORE);
}

impl Rule {
    /// Whether a crash alone breaks it, so that the next mount mends it: nothing is wrong with the volume then.
    pub fn is_leftover(self) -> bool {
        matches!(self, Self::OrphanLeft | Self::SessionLeft | Self::SessionFenced)
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.text())
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text())
    }
}
