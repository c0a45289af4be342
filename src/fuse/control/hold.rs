//! The control file `hold`: a tree lock for as long as a file is open.
//!
//! A request of one line of JSON is written to the open file. The write returns when the lock is held, and fails with
//! EBUSY when it was not free in time, with EINTR when its process was sent a signal; reading the file then says what
//! is held, or what was in the way. The lock is tied to the open file, so it ends with the last process that has that,
//! however it ends. If somebody breaks it before, or the store loses it, reading the file says so. Linux does not wait for
//! the end of an open file: who wants to know that the lock is free writes [`RELEASE`] first, and may read a last time
//! whether it was held until then.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use fuser::{Errno, FileHandle, ReplyWrite};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::super::adapter::Shared;
use super::super::errno::report;
use super::super::pending::{After, is_interrupted};
use crate::ambient;
use crate::document::Name;
use crate::lock::{LockError, LockGuard, LockId, Mode, Wait};
use crate::namespace::ops::rename::Patience;
use crate::namespace::{Caller, NamespaceError, Result};

/// What is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldRequest {
    /// The path in the volume, as the id of its lock: `%2Fa%2Fb`.
    pub id: String,
    /// How the lock is held.
    pub mode: Mode,
    /// How long to wait for it, in milliseconds.
    pub wait_ms: u64,
    /// What for; shown to whoever asks who holds the lock.
    pub operation: String,
}

/// What is read back.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HoldAnswer {
    /// The lock with this id is held.
    Held(String),
    /// It is not, and why.
    Refused(String),
    /// It was held and is not any more, and why: somebody has broken it, or the store has lost it.
    Lost(String),
    /// It was given back, and whether it was held until then is not known, and why.
    Unknown(String),
}

/// Written to the file, it gives the lock back; the write returns when that is done, or when the store has not answered for
/// [`RELEASE_WAIT`]: it goes on then.
pub const RELEASE: &[u8] = b"\"release\"";

/// Nobody waits longer until a lock is given back.
const RELEASE_WAIT: Duration = Duration::from_secs(1);

/// So often, at most, reading the file has the store asked whether it has the lock still.
const ASKED_EVERY: Duration = Duration::from_secs(1);

const NO_ANSWER: &str = "the store does not answer";

/// A lock that is held through an open file.
pub(super) struct Held {
    guard: LockGuard,
    /// When the store was asked last whether it has the lock; `None` while it is being asked.
    asked: Option<Instant>,
    /// What the file shows since the store has said that it has not.
    gone: Option<Arc<[u8]>>,
}

impl Held {
    fn new(guard: LockGuard) -> Self {
        Self { guard, asked: Some(ambient::monotonic()), gone: None }
    }

    /// What the file shows if the lock is held no more.
    pub(super) fn lost(&self) -> Option<Arc<[u8]>> {
        self.guard.lost().map(lost).or_else(|| self.gone.clone())
    }

    /// What the file shows when the lock has been given back, after the store was asked a last time.
    fn at_the_end(&self, shared: &Shared) -> Arc<[u8]> {
        if let Some(lost) = self.lost() {
            return lost;
        }
        let Some(look) = self.guard.look() else { return Arc::default() };
        if is_away(shared) {
            return unknown(NO_ANSWER);
        }
        match look() {
            Ok(None) => Arc::default(),
            Ok(Some(why)) => lost(why),
            Err(error) => unknown(&error.to_string()),
        }
    }
}

fn lost(why: LockError) -> Arc<[u8]> {
    serde_json::to_vec(&HoldAnswer::Lost(why.to_string())).unwrap_or_default().into()
}

fn unknown(why: &str) -> Arc<[u8]> {
    serde_json::to_vec(&HoldAnswer::Unknown(why.to_owned())).unwrap_or_default().into()
}

fn is_away(shared: &Shared) -> bool {
    shared.namespace.store().outage().is_some()
}

/// To be called when the file is read: now and then it has the store asked whether the lock is still there. Nobody waits for
/// the answer, which the next reads show.
pub(super) fn look(shared: &Arc<Shared>, fh: FileHandle) {
    let now = ambient::monotonic();
    let (op, look) = {
        let mut handles = shared.control.handles.lock();
        let Some(held) = handles.get_mut(&fh.0).and_then(|handle| handle.held.as_mut()) else { return };
        let is_due = held.asked.is_some_and(|asked| now >= asked + ASKED_EVERY);
        if !is_due || held.lost().is_some() || is_away(shared) {
            return;
        }
        let Some(look) = held.guard.look() else { return };
        held.asked = None;
        (held.guard.op(), look)
    };
    let worker = Arc::clone(shared);
    let note = move |shared: &Shared, gone: Option<LockError>| {
        let mut handles = shared.control.handles.lock();
        let held = handles.get_mut(&fh.0).and_then(|handle| handle.held.as_mut());
        // Unless it was released meanwhile.
        let Some(held) = held.filter(|held| held.guard.op() == op) else { return };
        held.asked = Some(ambient::monotonic());
        if let Some(why) = gone {
            log::warn!("a lock that {op} holds is lost: {why}");
            held.gone = Some(lost(why));
        }
    };
    let accepted = shared.waiting.run(move || {
        let looked =
            look().inspect_err(|error| log::debug!("whether {op} holds its lock is not known: {error}"));
        note(&worker, looked.unwrap_or_default());
    });
    if !accepted {
        note(shared, None);
    }
}

/// Nobody waits longer, whatever is asked for.
const WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Serves a write to the file.
pub(super) fn write(shared: &Arc<Shared>, caller: Caller, fh: FileHandle, data: &[u8], reply: ReplyWrite) {
    if data == RELEASE {
        return release(shared, fh, reply);
    }
    let request: HoldRequest = match serde_json::from_slice(data) {
        Ok(request) => request,
        Err(_) => return reply.error(Errno::EINVAL),
    };
    match shared.control.handles.lock().get(&fh.0) {
        None => return reply.error(Errno::EBADF),
        Some(handle) if handle.held.is_some() => return reply.error(Errno::EBUSY),
        Some(_) => {}
    }
    let len = data.len() as u32;
    let deadline = ambient::monotonic() + Duration::from_millis(request.wait_ms).min(WAIT_MAX);
    let outcome = hold(shared, caller, &request, Patience::Try);
    let may_pass =
        matches!(outcome, Err(NamespaceError::Lock(LockError::WouldBlock(_) | LockError::NoMajority { .. })));
    if !may_pass || request.wait_ms == 0 {
        return finish(shared, fh, &request, outcome, len, reply);
    }
    let reply = Arc::new(Mutex::new(Some(reply)));
    let (worker, later) = (Arc::clone(shared), Arc::clone(&reply));
    let accepted = shared.waiting.run(move || {
        let give_up = || is_interrupted(caller.pid, After::Failed);
        let wait = Wait { longest: deadline, give_up: Some(&give_up) };
        let outcome = hold(&worker, caller, &request, Patience::Wait(wait));
        if let Some(reply) = later.lock().take() {
            finish(&worker, fh, &request, outcome, len, reply);
        }
    });
    if !accepted && let Some(reply) = reply.lock().take() {
        reply.error(Errno::EBUSY);
    }
}

fn release(shared: &Arc<Shared>, fh: FileHandle, reply: ReplyWrite) {
    let held = match shared.control.handles.lock().get_mut(&fh.0) {
        None => return reply.error(Errno::EBADF),
        Some(handle) => {
            let held = handle.held.take();
            if let Some(held) = &held {
                handle.bytes = held.lost().unwrap_or_else(|| unknown(NO_ANSWER));
            }
            held
        }
    };
    let (done, wait) = mpsc::channel();
    let worker = Arc::clone(shared);
    shared.waiting.run_somewhere(move || {
        let Some(held) = held else { return };
        let answer = held.at_the_end(&worker);
        drop(held);
        // Unless another lock is held through the file by now.
        let mut handles = worker.control.handles.lock();
        if let Some(handle) = handles.get_mut(&fh.0).filter(|handle| handle.held.is_none()) {
            handle.bytes = answer;
        }
        let _ = done.send(()); // Who has given up waiting need not know.
    });
    if wait.recv_timeout(RELEASE_WAIT) == Err(RecvTimeoutError::Timeout) {
        log::debug!("a lock is not given back yet");
    }
    reply.written(RELEASE.len() as u32);
}

fn hold(shared: &Shared, caller: Caller, request: &HoldRequest, patience: Patience<'_>) -> Result<LockGuard> {
    let id = LockId::parse(&request.id)?;
    let components = id.as_bytes().split(|&b| b == b'/').filter(|c| !c.is_empty());
    let names: Vec<Name> = components.map(|c| Ok(Name::new(c)?)).collect::<Result<_>>()?;
    let operation = format!("{} (process {})", request.operation, caller.pid);
    shared.namespace.hold(&names, request.mode, &operation, patience)
}

fn finish(
    shared: &Shared,
    fh: FileHandle,
    request: &HoldRequest,
    outcome: Result<LockGuard>,
    len: u32,
    reply: ReplyWrite,
) {
    let (answer, guard, errno) = match outcome {
        Ok(guard) => (HoldAnswer::Held(request.id.clone()), Some(guard), None),
        Err(error) => {
            let errno = report("hold", &request.id, &error);
            (HoldAnswer::Refused(error.to_string()), None, Some(errno))
        }
    };
    let bytes = serde_json::to_vec(&answer).unwrap_or_default().into();
    match shared.control.handles.lock().get_mut(&fh.0) {
        // Two requests through one open file: the first to be granted keeps it.
        Some(handle) if handle.held.is_some() => return reply.error(Errno::EBUSY),
        Some(handle) => {
            handle.bytes = bytes;
            handle.held = guard.map(Held::new);
        }
        // Closed meanwhile; the guard, if there is one, is dropped here.
        None => return reply.error(Errno::EBADF),
    }
    match errno {
        None => reply.written(len),
        Some(errno) => reply.error(errno),
    }
}
