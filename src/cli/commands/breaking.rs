//! `lockwood break`: breaks a lock or fences a session, and says what became of what was under way.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use crate::cli::Failure;
use crate::cli::args::Break;
use crate::cli::output::{age, print, print_json};
use crate::cli::target::{Target, control_path};
use crate::fuse::control::{BreakAnswer, BreakReport, BreakRequest};
use crate::lock::LockId;

pub(in crate::cli) fn run(arguments: &Break) -> Result<ExitCode, Failure> {
    let target = break_target(&arguments.what)?;
    let mount_point = match Target::find(&arguments.target)? {
        Target::Mount(mount_point) => mount_point,
        Target::Shared(volume) => {
            return Err(format!(
                "{volume}: sessions are fenced through a mount: lockwood break MOUNT_POINT SESSION --force"
            )
            .into());
        }
        Target::Store(store) => {
            let store = store.display();
            return Err(format!(
                "{store}: nobody has it mounted, so no lock is held and there is nothing to break"
            )
            .into());
        }
    };
    let request = BreakRequest { target, force: arguments.force, session: arguments.session };
    let report = ask(&mount_point, &request)?;
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
    }
    for broken in &report.operations {
        let operation = &broken.operation;
        let locks: Vec<String> =
            operation.holds.iter().map(|held| format!("{} ({})", held.id, held.lock_type)).collect();
        text.push_str(&format!("{}, begun {} ago\n", operation.operation, age(operation.since)));
        text.push_str(&format!("  {}\n", broken.outcome));
        text.push_str(&format!("  released {}\n", locks.join(", ")));
        if let Some(wanted) = &operation.waits_for {
            text.push_str(&format!("  no longer waits for {} ({})\n", wanted.id, wanted.lock_type));
        }
    }
    if report.operations.is_empty() && report.sessions.iter().all(|session| !session.before) {
        text.push_str("no operation held or waited for a lock\n");
    }
    text
}
