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
use crate::document::{AdvisoryFamily, AdvisoryLock, Ino, OFFSET_MAX};
use crate::fuse::control::Status;
use crate::lock::{LockDocument, Timestamp};
use crate::namespace::AdvisoryLocks;

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
    let advisory = if arguments.advisory { advisory(target)? } else { Vec::new() };
    if arguments.json {
        let mut documents: Value = serde_json::from_str(&text)?;
        if arguments.advisory {
            documents = typed(documents, &advisory)?;
        }
        return Ok(match arguments.watch {
            Some(_) => format!("{documents}\n"),
            None => format!("{documents:#}\n"),
        });
    }
    let documents: Vec<LockDocument> = serde_json::from_str(&text)?;
    let tree = of_the_tree(arguments, target, &documents)?;
    Ok(match (arguments.advisory, advisory.is_empty()) {
        (false, _) => tree,
        (true, true) => format!("{tree}no advisory lock is held\n"),
        (true, false) => format!("{tree}\n{}", advisory_table(&advisory)),
    })
}

fn of_the_tree(arguments: &Locks, target: &Target, documents: &[LockDocument]) -> Result<String, Failure> {
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
        return Ok(tree::draw(documents, &sessions::all(target)?));
    }
    let mut rows = Vec::new();
    for document in documents {
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

/// The advisory locks of one moment.
fn advisory(target: &Target) -> Result<Vec<AdvisoryLocks>, Failure> {
    Ok(match target {
        Target::Mount(mount_point) => {
            let text = read_control(mount_point, "advisory.json")?;
            let old =
                "the daemon of this mount is older than this command and does not tell of advisory locks";
            serde_json::from_str(&text.ok_or(old)?)?
        }
        Target::Shared(volume) => volume.advisory()?,
        Target::Store(_) => Vec::new(),
    })
}

/// Both kinds of locks in one array, each with its type.
fn typed(documents: Value, advisory: &[AdvisoryLocks]) -> Result<Value, Failure> {
    let of_type = |of: &str, value: Value| {
        let mut fields = serde_json::Map::from_iter([("type".to_owned(), of.into())]);
        if let Value::Object(own) = value {
            fields.extend(own);
        }
        Value::Object(fields)
    };
    let Value::Array(documents) = documents else { return Err("the lock documents are no array".into()) };
    let mut all: Vec<Value> = documents.into_iter().map(|document| of_type("tree", document)).collect();
    for file in advisory {
        all.push(of_type("advisory", serde_json::to_value(file)?));
    }
    Ok(all.into())
}

fn advisory_table(files: &[AdvisoryLocks]) -> String {
    let row = |inode: Ino, lock: &AdvisoryLock| {
        let bytes = match lock.end {
            OFFSET_MAX if lock.start == 0 => "all".to_owned(),
            OFFSET_MAX => format!("{}-", lock.start),
            end => format!("{}-{end}", lock.start),
        };
        let family = match lock.family {
            AdvisoryFamily::Fcntl => "fcntl",
            AdvisoryFamily::Flock => "flock",
        };
        let since = u64::try_from(lock.since.sec).unwrap_or_default();
        let since = Timestamp { unix_ms: since * 1000 + u64::from(lock.since.nsec) / 1_000_000 };
        vec![
            inode.0.to_string(),
            family.to_owned(),
            lock.mode.to_string(),
            bytes,
            lock.session.to_string(),
            format!("{} {}", lock.host, lock.pid),
            age(since),
        ]
    };
    let rows: Vec<_> =
        files.iter().flat_map(|file| file.locks.iter().map(|lock| row(file.inode, lock))).collect();
    table(&["INODE", "CALL", "MODE", "BYTES", "SESSION", "PROCESS", "FOR"], &rows)
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
