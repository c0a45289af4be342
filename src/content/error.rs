//! What can go wrong with content, by what the caller can do about it. Owns `ContentError` and the one place where the
//! host's errors are sorted into its kinds. Imports the store's errors.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::document::Key;
use crate::store::{CommitError, StoreError};

/// Why an operation on content failed.
#[derive(Debug, Error)]
pub enum ContentError {
    /// The host's disk or quota is full. Nothing is wrong with the store: free space and try again.
    #[error("no space left on the host while {doing} {}", path.display())]
    NoSpace {
        /// What was being done.
        doing: &'static str,
        /// The file it was done to.
        path: PathBuf,
    },
    /// The range ends beyond the largest file, or a limit of the host on one file was met.
    #[error("the range of {len} bytes at {offset} does not fit in a file")]
    TooLarge {
        /// Where the range begins, in bytes.
        offset: u64,
        /// The length of the range, in bytes.
        len: u64,
    },
    /// The host's filesystem has no such operation, and nothing else does the same.
    #[error("the host's filesystem does not support {doing} {}", path.display())]
    Unsupported {
        /// What was being done.
        doing: &'static str,
        /// The file it was done to.
        path: PathBuf,
    },
    /// A symbolic link, a device or the like stands where a backing file or a directory of them should be.
    #[error("{} is not a {expected}; it was not touched", path.display())]
    WrongKind {
        /// What stands in the way.
        path: PathBuf,
        /// What should be there.
        expected: &'static str,
    },
    /// A name in the content directory that no backing file has.
    #[error("{} is not the name of a backing file", path.display())]
    Foreign {
        /// The file with that name.
        path: PathBuf,
    },
    /// Another host changes the same part of the file all the time; what was asked for may be done in part. Try again.
    #[error("{0} has changed meanwhile")]
    Conflict(Key),
    /// The store that holds the content failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A text that names no place for objects, or one that cannot be used.
    #[error("{0}")]
    Location(String),
    /// The object store is not the one that has the bytes of this volume.
    #[error(
        "{location}: these are not the contents of the volume: {cause}; is this the right bucket or directory, and the \
         right endpoint (AWS_ENDPOINT_URL)? A directory must be the same one on all hosts"
    )]
    OtherObjects {
        /// The place.
        location: String,
        /// What is missing there.
        cause: String,
    },
    /// The object store does not answer, or refuses.
    #[error("{doing} object {object} in {location}: {cause}")]
    Object {
        /// What was being done.
        doing: &'static str,
        /// The object it was done to.
        object: String,
        /// Where it is.
        location: String,
        /// What the object store or its client says.
        cause: String,
    },
    /// An object is missing, or has other bytes than were put there.
    #[error(
        "the bytes of {key} are lost: object {object} in {location}: {cause}; restore the object, or remove the file"
    )]
    ObjectDamaged {
        /// The chunk that names it.
        key: Key,
        /// The object.
        object: String,
        /// Where it should be.
        location: String,
        /// What is wrong with it.
        cause: String,
    },
    /// The host failed otherwise.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The file it was done to.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
}

impl From<CommitError> for ContentError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Conflict(key) => Self::Conflict(key),
            CommitError::Store(error) => Self::Store(error),
        }
    }
}

impl ContentError {
    /// Whether a file could not be opened for want of descriptors, so that the disk has refused nothing.
    pub fn is_of_descriptors(&self) -> bool {
        matches!(self, Self::Io { source, .. } if matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)))
    }

    /// Sorts an error of the host into its kind.
    pub(super) fn from_io(doing: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => Self::NoSpace { doing, path },
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => Self::Unsupported { doing, path },
            _ => Self::Io { doing, path, source },
        }
    }
}
