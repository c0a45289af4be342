//! `lockwood break`: breaks a lock or fences a session, and says what became of what was under way. Through a mount, whose
//! daemon does it; or by the URL of a volume that many hosts share, with no mount there.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use crate::cli::Failure;
use crate::cli::args::Break;
use crate::cli::output::{age, print, print_json};
use crate::cli::target::{SharedVolume, Target, control_path, readable};
use crate::document::{Session, SessionId, SessionState};
use crate::fuse::control::refusals::{self, BreakTarget};
use crate::fuse::control::{BreakAnswer, BreakReport, BreakRequest, FencedSession};
use crate::lock::{LockId, OperationDocument, operations_of, printable};
use crate::namespace::{Outsider, Recovered};
use crate::store::StoreError;

pub(in crate::cli) fn run(arguments: &Break) -> Result<ExitCode, Failure> {
    let target = break_target(&arguments.what)?;
    let request = BreakRequest { target, force: arguments.force, session: arguments.session };
    let report = match Target::find(&arguments.target)? {
        Target::Mount(mount_point) => ask(&mount_point, &request)?,
        Target::Shared(volume) => fence(&volume, &request)?,
        Target::Store(store) => {
            let store = store.display();
            return Err(format!(
                "{store}: nobody has it mounted, so no lock is held and there is nothing to break"
            )
            .into());
        }
    };
    if arguments.json {
        print_json(&serde_json::to_value(&report)?)?;
    } else {
        print(&words(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is to be broken, as the daemon takes it. A path need not be UTF-8; its id is.
fn break_target(what: &OsStr) -> Result<String, Failure> {
    let bytes = what.as_encoded_bytes();
    if bytes.starts_with(b"/") {
        return Ok(LockId::from_path(bytes)?.encoded());
    }
    let text = what.to_str().ok_or("neither a path in the volume, nor the id of a lock or a session")?;
    if text.parse::<crate::lock::SessionId>().is_err() {
        LockId::parse(text).map_err(|error| {
            format!("{error}; a path in the volume (/a/b), the id of its lock (%2Fa%2Fb) or the id of a session is needed")
        })?;
    }
    Ok(text.to_owned())
}

fn ask(mount_point: &Path, request: &BreakRequest) -> Result<BreakReport, Failure> {
    let path = control_path(mount_point, "break");
    let explain = |error: std::io::Error| {
        let hint = match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => "; only root and the user who mounted may break locks",
            _ => "",
        };
        format!("{}: {error}{hint}", path.display())
    };
    let mut control = OpenOptions::new().read(true).write(true).open(&path).map_err(explain)?;
    let written = control.write_all(&serde_json::to_vec(request)?);
    let mut answer = String::new();
    control.rewind()?;
    control.read_to_string(&mut answer)?;
    match (serde_json::from_str(&answer), written) {
        (Ok(BreakAnswer::Broken(report)), Ok(())) => Ok(report),
        (Ok(BreakAnswer::Refused(why)), _) => Err(why.into()),
        (_, Err(error)) => Err(explain(error).into()),
        (answer, Ok(())) => Err(format!("{}: no answer is understood: {answer:?}", path.display()).into()),
    }
}

/// What a mount would do, by somebody who has none.
fn fence(volume: &SharedVolume, request: &BreakRequest) -> Result<BreakReport, Failure> {
    let outsider = volume.outsider()?;
    let sessions = outsider.sessions()?;
    let find = |id: SessionId| sessions.iter().find(|session| session.id == id).cloned();
    let is_live = |session: &Session| session.state == SessionState::Live;
    let condemned = match BreakTarget::parse(&request.target)? {
        BreakTarget::Session(id) => {
            if let (None, Some(damage)) = (find(id), outsider.damage(id)?) {
                return discard(&outsider, id, damage, request.force);
            }
            let session = find(id).ok_or_else(|| refusals::no_session(id, &volume.to_string()))?;
            if !request.force && is_live(&session) {
                let operations = operations_of(&readable(outsider.locks()?));
                return Err(refusals::session_is_live(&session, &operations).into());
            }
            vec![session]
        }
        BreakTarget::Lock(id) => {
            let locks = readable(outsider.locks()?);
            let lock = locks.into_iter().find(|lock| lock.id == id);
            let lock = lock.ok_or_else(|| refusals::no_lock(&id, &volume.to_string()))?;
            let holders: BTreeSet<SessionId> = lock.holders.iter().map(|holder| holder.session).collect();
            let holders: Vec<Session> = holders.into_iter().filter_map(find).collect();
            if !request.force && holders.iter().any(is_live) {
                return Err(refusals::lock_is_live(&lock, true, |session| Ok(find(session)))?.into());
            }
            if !request.session {
                return Err(refusals::not_one_by_one(&id).into());
            }
            holders
        }
    };
    let fenced = condemned.iter().map(|session| outsider.fence(session).map(fenced_session));
    Ok(BreakReport { operations: Vec::new(), sessions: fenced.collect::<Result<_, _>>()? })
}

/// A session that cannot be read can be neither asked nor recovered. Its document goes.
fn discard(
    outsider: &Outsider,
    session: SessionId,
    damage: StoreError,
    force: bool,
) -> Result<BreakReport, Failure> {
    if !force {
        return Err(format!(
            "{damage}; whether the session is at work cannot be told. --force deletes the document: if the session \
             lives, it ends, and what it holds is let go"
        )
        .into());
    }
    outsider.discard(session)?;
    let gone = FencedSession {
        session,
        mount_point: "a mount point that is not known".to_owned(),
        before: false,
        recovered: false,
        released: Vec::new(),
    };
    Ok(BreakReport { operations: Vec::new(), sessions: vec![gone] })
}

fn fenced_session(done: Recovered) -> FencedSession {
    FencedSession {
        session: done.session.id,
        mount_point: done.session.mount_point,
        before: done.before,
        recovered: true,
        released: done.operations.unwrap_or_default(),
    }
}

/// What became of an operation whose session was fenced.
pub(super) fn released_words(operation: &OperationDocument) -> String {
    let mut text =
        format!("  {}, begun {} ago\n", printable(operation.operation.as_bytes()), age(operation.since));
    let locks: Vec<String> =
        operation.holds.iter().map(|held| format!("{} ({})", held.id, held.lock_type)).collect();
    if !locks.is_empty() {
        text.push_str(&format!("    released {}\n", locks.join(", ")));
    }
    if let Some(wanted) = &operation.waits_for {
        text.push_str(&format!("    no longer waits for {} ({})\n", wanted.id, wanted.lock_type));
    }
    text
}

fn words(report: &BreakReport) -> String {
    let mut text = String::new();
    for fenced in &report.sessions {
        let (id, at) = (fenced.session, &fenced.mount_point);
        text.push_str(&match fenced.before {
            true => format!("session {id} had been fenced before; unmount {at} and mount it again\n"),
            false => format!(
                "session {id} is fenced: {at} can be read and changes nothing any more; unmount it and mount it again\n"
            ),
        });
        if !fenced.before && !fenced.recovered {
            text.push_str("files without a name are open there; the next mount collects them\n");
        }
        fenced.released.iter().for_each(|operation| text.push_str(&released_words(operation)));
    }
    for broken in &report.operations {
        let operation = &broken.operation;
        let locks: Vec<String> =
            operation.holds.iter().map(|held| format!("{} ({})", held.id, held.lock_type)).collect();
        text.push_str(&format!(
            "{}, begun {} ago\n",
            printable(operation.operation.as_bytes()),
            age(operation.since)
        ));
        text.push_str(&format!("  {}\n", broken.outcome));
        text.push_str(&format!("  released {}\n", locks.join(", ")));
        if let Some(wanted) = &operation.waits_for {
            text.push_str(&format!("  no longer waits for {} ({})\n", wanted.id, wanted.lock_type));
        }
    }
    let nothing = |session: &FencedSession| !session.before && session.released.is_empty();
    if report.operations.is_empty() && report.sessions.iter().all(nothing) {
        text.push_str("no operation held or waited for a lock\n");
    }
    text
}
