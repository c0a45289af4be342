//! The errno of each error, and the one place where errors that are nobody's fault but the system's are logged.

use fuser::Errno;

use crate::content::ContentError;
use crate::document::NameError;
use crate::lock::LockError;
use crate::lock::advisory::AdvisoryError;
use crate::namespace::NamespaceError;
use crate::store::StoreError;

/// What a program is told.
pub(super) fn errno(error: &NamespaceError) -> Errno {
    use NamespaceError as E;
    match error {
        E::NotFound => Errno::ENOENT,
        // Linux then walks the path once more, and asks for every name on it.
        E::Stale => Errno::ESTALE,
        E::Exists => Errno::EEXIST,
        E::NotADirectory => Errno::ENOTDIR,
        E::IsADirectory => Errno::EISDIR,
        E::NotEmpty => Errno::ENOTEMPTY,
        E::IntoItself | E::Invalid(_) | E::Name(NameError::Invalid) => Errno::EINVAL,
        E::Name(NameError::TooLong) => Errno::ENAMETOOLONG,
        E::NotPermitted(_) => Errno::EPERM,
        E::TooLarge => Errno::EFBIG,
        E::TooManyLinks => Errno::EMLINK,
        E::NoAttribute => Errno::NO_XATTR,
        E::AttributeTooLarge => Errno::E2BIG,
        E::NoData => Errno::ENXIO,
        E::Unsupported(_) => Errno::EOPNOTSUPP,
        E::Lock(error) => lock_errno(error),
        E::Advisory(error) => advisory_errno(error),
        E::Contended { .. } | E::Conflict(_) => Errno::EBUSY,
        E::Broken(_) | E::OtherLocks { .. } => Errno::EIO,
        E::BytesLost { no_space: true } | E::Store(StoreError::NoSpace) => Errno::ENOSPC,
        E::BytesLost { no_space: false } | E::Store(_) => Errno::EIO,
        E::Content(error) => content_errno(error),
    }
}

fn lock_errno(error: &LockError) -> Errno {
    match error {
        LockError::IntoItself { .. } | LockError::Root => Errno::EINVAL,
        LockError::InvalidPath { .. } | LockError::InvalidId { .. } | LockError::InvalidTime { .. } => {
            Errno::EINVAL
        }
        LockError::NoLocks => Errno::EOPNOTSUPP,
        LockError::WouldBlock(_) | LockError::TimedOut(_) => Errno::EBUSY,
        LockError::Interrupted => Errno::EINTR,
        LockError::Revoked { .. } | LockError::Lapsed { .. } | LockError::Forgotten => Errno::ECANCELED,
        LockError::Store(StoreError::NoSpace) => Errno::ENOSPC,
        LockError::Closed
        | LockError::SessionDropped
        | LockError::Damaged { .. }
        | LockError::NoMajority { .. }
        | LockError::Store(_) => Errno::EIO,
    }
}

fn advisory_errno(error: &AdvisoryError) -> Errno {
    match error {
        AdvisoryError::Held(_) => Errno::EAGAIN,
        AdvisoryError::Interrupted => Errno::EINTR,
        AdvisoryError::TooMany | AdvisoryError::TooManyWait => Errno::ENOLCK,
        AdvisoryError::Closed => Errno::EIO,
    }
}

fn content_errno(error: &ContentError) -> Errno {
    match error {
        ContentError::NoSpace { .. } => Errno::ENOSPC,
        ContentError::TooLarge { .. } => Errno::EFBIG,
        ContentError::Unsupported { .. } => Errno::EOPNOTSUPP,
        ContentError::Conflict(_) => Errno::EBUSY,
        _ if error.is_of_descriptors() => Errno::ENFILE,
        ContentError::Store(StoreError::NoSpace) => Errno::ENOSPC,
        ContentError::WrongKind { .. }
        | ContentError::Location(_)
        | ContentError::OtherObjects { .. }
        | ContentError::Object { .. }
        | ContentError::ObjectDamaged { .. }
        | ContentError::Foreign { .. }
        | ContentError::Io { .. }
        | ContentError::Store(_) => Errno::EIO,
    }
}

/// The errno of `error`, which is logged if somebody should know of it: what went wrong below, and waits in vain. What
/// programs run into every day (no such file) is not.
pub(super) fn report(operation: &str, object: &dyn std::fmt::Display, error: &NamespaceError) -> Errno {
    let errno = errno(error);
    match error {
        // Said once, when the session was fenced, and when it happened.
        NamespaceError::Store(StoreError::Fenced) | NamespaceError::BytesLost { .. } => {}
        NamespaceError::Lock(
            LockError::TimedOut(_) | LockError::Revoked { .. } | LockError::Lapsed { .. },
        )
        | NamespaceError::Contended { .. } => {
            log::warn!("{operation} {object}: {error}");
        }
        _ if matches!(errno.code(), libc::EIO | libc::ENFILE) => log::error!("{operation} {object}: {error}"),
        _ => {}
    }
    errno
}
