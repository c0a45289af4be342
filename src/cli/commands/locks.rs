//! `lockwood locks`: the lock table, for people and for programs.

use std::path::Path;
use std::process::ExitCode;
use std::time::UNIX_EPOCH;

use serde_json::Value;

use crate::ambient;
use crate::cli::Failure;
use crate::cli::args::Locks;
use crate::cli::output::{print, print_json, print_table};
use crate::cli::target::{Target, control_path, read_control};
use crate::fuse::control::Status;
use crate::lock::{LockDocument, Timestamp};

pub(in crate::cli) fn run(arguments: &Locks) -> Result<ExitCode, Failure> {
    let documents = match Target::find(&arguments.target)? {
        Target::Mount(mount_point) => held(&mount_point)?,
        // The locks of an embedded store live and die with its daemon.
        Target::Store(_) => Vec::new(),
    };
    if arguments.json {
        print_json(&Value::Array(documents))?;
        return Ok(ExitCode::SUCCESS);
    }
    if documents.is_empty() {
        let locking = strategy(&arguments.target)?;
        print(match locking.as_deref() {
            Some("version") => {
                "no lock is held: the volume was formatted with --locking version and has none\n"
            }
            _ => "no lock is held\n",
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = Vec::new();
    for document in documents {
        add_rows(&serde_json::from_value(document)?, &mut rows);
    }
    print_table(&["LOCK", "MODE", "STATE", "SESSION", "FOR", "OPERATION"], &rows)?;
    Ok(ExitCode::SUCCESS)
}

/// The lock strategy of a mounted volume; a store that is not mounted is not opened to find out.
fn strategy(target: &Path) -> Result<Option<String>, Failure> {
    let Target::Mount(mount_point) = Target::find(target)? else { return Ok(None) };
    let Some(status) = read_control(&mount_point, "status")? else { return Ok(None) };
    let status: Status = serde_json::from_str(&status)?;
    Ok(Some(status.locking))
}

fn held(mount_point: &Path) -> Result<Vec<Value>, Failure> {
    let directory = control_path(mount_point, "locks");
    let names = std::fs::read_dir(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let mut documents = Vec::new();
    for name in names {
        let name = format!("locks/{}", name?.file_name().to_string_lossy());
        // A lock that was released since the directory was read is not held.
        if let Some(text) = read_control(mount_point, &name)? {
            documents.push(serde_json::from_str(&text)?);
        }
    }
    Ok(documents)
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

fn age(since: Timestamp) -> String {
    let now = ambient::wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let milliseconds = now.saturating_sub(u128::from(since.unix_ms));
    format!("{}.{:03} s", milliseconds / 1000, milliseconds % 1000)
}
