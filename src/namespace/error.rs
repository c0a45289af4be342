//! What can go wrong in the namespace, by what the caller is told. The errno of each is in `fuse::errno` alone.

use crate::content::ContentError;
use crate::document::{Ino, Key, NameError, SessionId};
use crate::lock::LockError;
use crate::lock::advisory::AdvisoryError;
use crate::store::{CommitError, StoreError};

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// There is no such name, or nothing under this inode number any more.
    #[error("no such file or directory")]
    NotFound,
    /// Another host has removed it, or made it, and the name by which it was found or missed is an old one: look it up anew.
    #[error("its name was changed on another host; look it up again")]
    Stale,
    /// The name is taken, or the attribute is there already.
    #[error("it exists already")]
    Exists,
    /// A directory is needed here.
    #[error("not a directory")]
    NotADirectory,
    /// A directory cannot be used like that.
    #[error("it is a directory")]
    IsADirectory,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// A directory would become its own ancestor.
    #[error("a directory cannot be moved below itself")]
    IntoItself,
    /// The name is no name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The request makes no sense.
    #[error("invalid request: {0}")]
    Invalid(&'static str),
    /// Not for this caller, or for nobody.
    #[error("not permitted: {0}")]
    NotPermitted(&'static str),
    /// The file would be larger than any file can be.
    #[error("the file would be too large")]
    TooLarge,
    /// No hard link can be added to this inode.
    #[error("too many links")]
    TooManyLinks,
    /// There is no such extended attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// The value of an extended attribute is larger than 64 KiB.
    #[error("the attribute is too large")]
    AttributeTooLarge,
    /// Nothing of what is sought is at or behind the offset.
    #[error("no such data behind the offset")]
    NoData,
    /// The operation is not offered.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// The locks of a rename were not granted.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// An advisory lock was not granted.
    #[error(transparent)]
    Advisory(#[from] AdvisoryError),
    /// Another session has the same volume mounted and keeps its locks elsewhere: the two would not exclude each other.
    #[error(
        "session {session} (process {pid} on {host}, mounted at {mount_point}) keeps its locks {theirs}, and this mount is \
         to keep them {ours}: all mounts of a volume must name the same lock servers, in the same words, and the same \
         lease there; mount with those, or unmount the others first (if that one is dead, it is out of the way when its \
         lease has run out)"
    )]
    OtherLocks {
        /// The other session.
        session: SessionId,
        /// Its process.
        pid: u32,
        /// Its host.
        host: String,
        /// Where it has the volume mounted.
        mount_point: String,
        /// Where its locks are, for people.
        theirs: String,
        /// Where the locks of this mount shall be.
        ours: String,
    },
    /// Other changes of the same documents won every time, for as long as an operation tries.
    #[error("gave up after {attempts} attempts: document {key} changes too often")]
    Contended {
        /// How often it was tried.
        attempts: u32,
        /// The document that changed the last time.
        key: Key,
    },
    /// Bytes that were kept back after they were acknowledged did not reach the store. Logged, with the inode, when it
    /// happened.
    #[error(
        "what was written before is lost, as it did not reach the store, or its disk; the log of the mount says more"
    )]
    BytesLost {
        /// Because the store has no room.
        no_space: bool,
    },
    /// What was read has changed meanwhile. Retried inside the namespace; nobody outside sees it.
    #[error("document {0} has changed meanwhile")]
    Conflict(Key),
    /// The tree itself is damaged: following parents does not lead to the root. Run `lockwood check`.
    #[error("the tree is damaged at inode {0}; run lockwood check")]
    Broken(Ino),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The contents of large files failed, otherwise than by the store or a conflict.
    #[error(transparent)]
    Content(ContentError),
}

impl From<ContentError> for NamespaceError {
    fn from(error: ContentError) -> Self {
        match error {
            ContentError::Conflict(key) => Self::Conflict(key),
            ContentError::Store(error) => Self::Store(error),
            other => Self::Content(other),
        }
    }
}

impl From<CommitError> for NamespaceError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Conflict(key) => Self::Conflict(key),
            CommitError::Store(error) => Self::Store(error),
        }
    }
}

/// The result of an operation of the namespace.
pub type Result<T> = std::result::Result<T, NamespaceError>;
