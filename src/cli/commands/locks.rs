//! `lockwood locks`: the lock table, for people and for programs, once or live.

mod tree;
mod watch;

use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

use super::sessions;
use crate::cli::Failure;
use crate::cli::args::Locks;
use crate::cli::output::{age, print, table};
use crate::cli::target::{Target, read_control};
use crate::fuse::control::Status;
use crate::lock::LockDocument;

pub(in crate::cli) fn run(arguments: &Locks) -> Result<ExitCode, Failure> {
    let target = Target::find(&arguments.target)?;
    match (arguments.watch, &target) {
        (Some(interval), Target::Mount(_) | Target::Shared(_)) => watch::run(arguments, &target, interval),
        (Some(_), Target::Store(store)) => {
            Err(format!("{}: nobody has this store mounted, so there is nothing to watch", store.display())
                .into())
        }
        (None, _) => {
            print(&look(arguments, &target)?)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What there is to be seen at this moment.
fn look(arguments: &Locks, target: &Target) -> Result<String, Failure> {
    let text = match target {
        Target::Mount(mount_point) => held(mount_point)?,
        Target::Shared(volume) => serde_json::to_string(&volume.locks()?)?,
        // The locks of an embedded store live and die with its daemon.
        Target::Store(_) => "[]".to_owned(),
    };
    if arguments.json {
        let documents: Value = serde_json::from_str(&text)?;
        return Ok(match arguments.watch {
            Some(_) => format!("{documents}\n"),
            None => format!("{documents:#}\n"),
        });
    }
    let documents: Vec<LockDocument> = serde_json::from_str(&text)?;
    if documents.is_empty() {
        return Ok(match strategy(target)?.as_deref() {
            Some("version") => {
                "no lock is held: the volume was formatted with --locking version and has none\n"
            }
            _ => "no lock is held\n",
        }
        .to_owned());
    }
    if arguments.tree {
        return Ok(tree::draw(&documents, &sessions::all(target)?));
    }
    let mut rows = Vec::new();
    for document in &documents {
        add_rows(document, &mut rows);
    }
    Ok(table(&["LOCK", "MODE", "STATE", "SESSION", "FOR", "OPERATION"], &rows))
}

/// The lock strategy of a mounted volume; a store that is not mounted is not opened to find out.
fn strategy(target: &Target) -> Result<Option<String>, Failure> {
    let mount_point = match target {
        Target::Mount(mount_point) => mount_point,
        Target::Shared(volume) => return Ok(Some(volume.open()?.1.locking.to_string())),
        Target::Store(_) => return Ok(None),
    };
    let Some(status) = read_control(mount_point, "status")? else { return Ok(None) };
    let status: Status = serde_json::from_str(&status)?;
    Ok(Some(status.locking))
}

/// All lock documents of one moment.
fn held(mount_point: &Path) -> Result<String, Failure> {
    let gone = || format!("{}: it is not mounted any more", mount_point.display());
    Ok(read_control(mount_point, "locks.json")?.ok_or_else(gone)?)
}

fn add_rows(document: &LockDocument, rows: &mut Vec<Vec<String>>) {
    let id = document.id.to_string();
    for holder in &document.holders {
        for operation in &holder.operations {
            rows.push(vec![
                id.clone(),
                document.lock_type.to_string(),
                "held".to_owned(),
                holder.session.to_string(),
                age(operation.since),
                operation.operation.to_string(),
            ]);
        }
    }
    for waiter in &document.waiters {
        rows.push(vec![
            id.clone(),
            waiter.lock_type.to_string(),
            "waits".to_owned(),
            waiter.session.to_string(),
            age(waiter.since),
            waiter.operation.to_string(),
        ]);
    }
}
