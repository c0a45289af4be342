//! What may be broken, and the words in which it is refused: the same through a mount and by the URL of a volume. Pure.

use std::ffi::OsStr;
use std::fmt::Write as _;

use crate::document::Session;
use crate::lock::{LockDocument, LockId, OperationDocument, SessionId, printable};
use crate::namespace::NamespaceError;
use crate::shell::quoted;

/// What is to be broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BreakTarget {
    /// A lock.
    Lock(LockId),
    /// A session.
    Session(SessionId),
}

impl BreakTarget {
    /// A path in the volume, the id of its lock, or the id of a session.
    ///
    /// # Errors
    /// When it is none of them.
    pub fn parse(text: &str) -> Result<Self, NamespaceError> {
        Ok(match text.parse() {
            Ok(session) => Self::Session(session),
            Err(_) if text.starts_with('/') => Self::Lock(LockId::from_path(text.as_bytes())?),
            Err(_) => Self::Lock(LockId::parse(text)?),
        })
    }
}

/// There is no such session. `target`: where somebody looked.
pub fn no_session(id: SessionId, target: &(impl AsRef<OsStr> + ?Sized)) -> String {
    format!("no session {id}; `lockwood sessions {}` lists them", quoted(target))
}

/// Nobody holds the lock.
pub fn no_lock(id: &LockId, target: &(impl AsRef<OsStr> + ?Sized)) -> String {
    format!("no lock {} ({id}); `lockwood locks {}` lists them", id.encoded(), quoted(target))
}

/// A lock is held on a volume that many hosts share.
pub fn not_one_by_one(id: &LockId) -> String {
    format!(
        "lock {} ({id}) is a document that other hosts rely on as well: their operations cannot be stopped one by one\n\
         --session fences the sessions that hold it, whose mounts then change nothing any more",
        id.encoded()
    )
}

/// Who holds a lock, and what breaking it would do. `fences`: their whole sessions, as where many hosts share the volume.
///
/// # Errors
/// Those of `whose`, which finds the documents of sessions.
pub fn lock_is_live(
    lock: &LockDocument,
    fences: bool,
    whose: impl Fn(SessionId) -> Result<Option<Session>, NamespaceError>,
) -> Result<String, NamespaceError> {
    let mut mount_points = Vec::new();
    let mut text = format!("lock {} ({}) is held by a session that is at work:", lock.id, lock.id.encoded());
    for holder in &lock.holders {
        let whose = match whose(holder.session)? {
            Some(Session { pid, host, mount_point, .. }) => {
                mount_points.push(format!("{} on {host}", printable(mount_point.as_bytes())));
                format!("process {pid} on {host}")
            }
            None => "unknown process".to_owned(),
        };
        for operation in &holder.operations {
            let (what, since, id) =
                (printable(operation.operation.as_bytes()), operation.since, holder.session);
            // Writing to a string does not fail.
            let _ = write!(text, "\n  {} since {since} by session {id} ({whose}): {what}", lock.lock_type);
        }
    }
    if fences {
        let _ = write!(
            text,
            "\n--session --force fences the sessions that hold it: {} can be read but changes nothing any more, until it \
             is unmounted and mounted again",
            mount_points.join(", ")
        );
    } else {
        text.push_str(
            "\n--force breaks it: what holds it changes nothing any more, and who waits for it goes on",
        );
    }
    Ok(text)
}

/// A session that is at work, and what fencing it would do. `operations`: all that hold locks or wait for them.
pub fn session_is_live(session: &Session, operations: &[OperationDocument]) -> String {
    let Session { id, pid, host, mount_point, .. } = session;
    let mount_point = printable(mount_point.as_bytes());
    format!(
        "session {id} is at work: process {pid} on {host} serves {mount_point}, and {} of its operations hold or \
         wait for locks\n--force fences it: {mount_point} can be read but changes nothing any more, until it is \
         unmounted and mounted again",
        operations.iter().filter(|operation| operation.session == *id).count()
    )
}
