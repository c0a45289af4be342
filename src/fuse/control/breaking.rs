//! The control file `break`: ends operations that hold a lock, or a whole session, from outside.
//!
//! A request of one line of JSON is written to the open file; reading the file then says what was broken, or why nothing
//! was. Imports the namespace's fence and the lock table's.
//!
//! What is hard: whoever breaks a lock goes on to do what the lock forbade. So when the write returns, nothing of what was
//! broken takes effect any more: every operation, or session, is fenced before its locks are released, and the answer
//! says of each operation whether its change had taken effect before. The request is served by the thread that took it,
//! since the threads for those who wait may all be taken by the very queue that is to be broken up.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use fuser::{Errno, FileHandle, ReplyWrite};
use serde::{Deserialize, Serialize};

use super::super::adapter::Shared;
use super::super::errno::report;
use super::HandleKind;
use super::refusals::{self, BreakTarget};
use crate::document::{Document, Key, Session, SessionState};
use crate::lock::{Broken, LockId, OperationDocument, SessionId};
use crate::namespace::{Caller, Namespace, NamespaceError};

/// What is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BreakRequest {
    /// A path in the volume, the id of its lock, or the id of a session.
    pub target: String,
    /// Break what a live session holds, too.
    pub force: bool,
    /// Fence the sessions that hold the lock, not only the operations that they hold it for.
    pub session: bool,
}

/// What is read back.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BreakAnswer {
    /// It is broken.
    Broken(BreakReport),
    /// Nothing was broken, and why.
    Refused(String),
}

/// What was broken.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BreakReport {
    /// The operations that changed nothing more, or had done so before.
    pub operations: Vec<Broken>,
    /// The sessions that were fenced.
    pub sessions: Vec<FencedSession>,
}

/// A session that was fenced.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FencedSession {
    /// Which.
    pub session: SessionId,
    /// Where it is mounted.
    pub mount_point: String,
    /// It had been fenced before.
    pub before: bool,
    /// Nothing is left of it to be cleaned up.
    pub recovered: bool,
    /// On a volume that many hosts share: its operations, whose locks are released. What they had changed when the fence
    /// came stays; they change nothing more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub released: Vec<OperationDocument>,
}

/// Why nothing was broken.
enum Refusal {
    Failed(NamespaceError),
    NotThere(String),
    Live(String),
}

impl<E: Into<NamespaceError>> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Serves a write to the file.
pub(super) fn write(shared: &Shared, caller: Caller, fh: FileHandle, data: &[u8], reply: ReplyWrite) {
    let Ok(request) = serde_json::from_slice::<BreakRequest>(data) else { return reply.error(Errno::EINVAL) };
    let by = format!("by user {} (process {})", caller.uid, caller.pid).into();
    let (answer, errno) = match run(shared, &request, &by) {
        Ok(broken) => (BreakAnswer::Broken(broken), None),
        Err(Refusal::NotThere(why)) => (BreakAnswer::Refused(why), Some(Errno::ENOENT)),
        Err(Refusal::Live(why)) => (BreakAnswer::Refused(why), Some(Errno::EBUSY)),
        Err(Refusal::Failed(error)) => {
            let errno = report("break", &request.target, &error);
            (BreakAnswer::Refused(error.to_string()), Some(errno))
        }
    };
    let bytes = serde_json::to_vec(&answer).unwrap_or_default().into();
    match shared.control.handles.lock().get_mut(&fh.0) {
        Some(handle) if handle.kind == HandleKind::Break => handle.bytes = bytes,
        _ => return reply.error(Errno::EBADF),
    }
    match errno {
        None => reply.written(data.len() as u32),
        Some(errno) => reply.error(errno),
    }
}

fn run(shared: &Shared, request: &BreakRequest, by: &Arc<str>) -> Result<BreakReport, Refusal> {
    match BreakTarget::parse(&request.target)? {
        BreakTarget::Lock(id) => break_lock(shared, &id, request, by),
        BreakTarget::Session(id) => {
            let fenceable = shared.namespace.is_shared() || served(shared, id, |_| ()).is_some();
            let session = document(shared, id)?.filter(|_| fenceable);
            let session = session.ok_or_else(|| {
                Refusal::NotThere(refusals::no_session(id, &shared.control.facts().mount_point))
            })?;
            if !request.force && is_live(shared, id) {
                let operations = shared.namespace.locks().operations()?;
                return Err(Refusal::Live(refusals::session_is_live(&session, &operations)));
            }
            fence(shared, [id], by)
        }
    }
}

fn break_lock(
    shared: &Shared,
    id: &LockId,
    request: &BreakRequest,
    by: &Arc<str>,
) -> Result<BreakReport, Refusal> {
    let locks = shared.namespace.locks();
    let not_there = || Refusal::NotThere(refusals::no_lock(id, &shared.control.facts().mount_point));
    let lock = locks.document(id)?.ok_or_else(not_there)?;
    if !request.force && lock.holders.iter().any(|holder| is_live(shared, holder.session)) {
        let fences = request.session || shared.namespace.is_shared();
        return Err(Refusal::Live(refusals::lock_is_live(&lock, fences, |session| {
            document(shared, session)
        })?));
    }
    if request.session {
        let sessions: BTreeSet<SessionId> = lock.holders.iter().map(|holder| holder.session).collect();
        return fence(shared, sessions, by);
    }
    if shared.namespace.is_shared() {
        return Err(Refusal::Live(refusals::not_one_by_one(id)));
    }
    let holders = locks.operations()?.into_iter().filter(|o| o.holds.iter().any(|held| held.id == *id));
    let operations: Vec<Broken> = holders.filter_map(|holder| locks.revoke(holder.id(), by)).collect();
    if operations.is_empty() {
        // They ended while they were looked at.
        return Err(not_there());
    }
    for broken in &operations {
        let (what, outcome) = (&broken.operation.operation, broken.outcome);
        log::warn!("lock {id} was broken {by}; it was held for: {what}; {outcome}");
    }
    Ok(BreakReport { operations, sessions: Vec::new() })
}

fn fence(
    shared: &Shared,
    sessions: impl IntoIterator<Item = SessionId>,
    by: &Arc<str>,
) -> Result<BreakReport, Refusal> {
    let mut done = BreakReport { operations: Vec::new(), sessions: Vec::new() };
    for id in sessions {
        let Some(session) = document(shared, id)? else { continue };
        let released = released_with(shared, id);
        let fenced = match served(shared, id, |namespace| namespace.fence(by)) {
            Some(fenced) => fenced?,
            None if shared.namespace.is_shared() => shared.namespace.fence_other(id, by)?,
            None => continue,
        };
        done.operations.extend(fenced.broken);
        done.sessions.push(FencedSession {
            session: id,
            mount_point: session.mount_point,
            before: fenced.before,
            recovered: fenced.recovered,
            released,
        });
    }
    Ok(done)
}

/// What a session that is about to be fenced holds and waits for, where that is not told of each operation; none if nobody
/// can say at the moment.
fn released_with(shared: &Shared, id: SessionId) -> Vec<OperationDocument> {
    let all = match shared.namespace.is_shared() {
        true => shared.namespace.locks().operations().unwrap_or_default(),
        false => Vec::new(),
    };
    all.into_iter().filter(|operation| operation.session == id).collect()
}

/// Asks the tree that a session serves in this process, at whichever of its mount points.
fn served<T>(shared: &Shared, id: SessionId, ask: impl FnOnce(&Namespace) -> T) -> Option<T> {
    let mut all = shared.mounts.get()?.iter().filter_map(Weak::upgrade);
    all.find(|mount| mount.namespace.session() == id).map(|mount| ask(&mount.namespace))
}

/// Whether a session is at work: its mount is served, and nobody has fenced it.
pub(super) fn is_live(shared: &Shared, id: SessionId) -> bool {
    served(shared, id, |namespace| !namespace.is_fenced()).unwrap_or_else(|| {
        let state = document(shared, id).ok().flatten().map(|session| session.state);
        shared.namespace.is_shared() && state == Some(SessionState::Live)
    })
}

fn document(shared: &Shared, id: SessionId) -> Result<Option<Session>, NamespaceError> {
    let stored = shared.namespace.store().get(&Key::Session(id))?;
    Ok(stored.and_then(|stored| match &*stored.document {
        Document::Session(session) => Some(session.clone()),
        _ => None,
    }))
}
