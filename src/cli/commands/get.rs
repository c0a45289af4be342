//! `lockwood get`: any document, as JSON.

use std::path::Path;
use std::process::ExitCode;

use crate::cli::Failure;
use crate::cli::args::Get;
use crate::cli::output::{print, print_json};
use crate::cli::target::{Target, read_control};
use crate::document::Key;
use crate::fuse::control::{document_json, file_name};
use crate::lock::LockId;
use crate::store::Reader as _;
use crate::store::embedded::Tuning;
use crate::store::embedded::open::OpenVolume;

pub(in crate::cli) fn run(arguments: &Get) -> Result<ExitCode, Failure> {
    let name = &arguments.document;
    let missing =
        || -> Failure { format!("{}: there is no document {name}", arguments.target.display()).into() };
    let target = Target::find(&arguments.target)?;
    if let Some(id) = name.strip_prefix("lock:") {
        let id = LockId::parse(id)?;
        if let Target::Shared(volume) = &target {
            let found = volume.locks()?.into_iter().find(|document| document.id == id);
            print_json(&serde_json::to_value(found.ok_or_else(missing)?)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let Target::Mount(mount_point) = target else { return Err(missing()) };
        print(&read_control(&mount_point, &format!("locks/{}", file_name(&id)))?.ok_or_else(missing)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let key: Key = name.parse().map_err(|error| format!("{name}: {error}"))?;
    match target {
        Target::Mount(mount_point) => {
            let text = read_control(&mount_point, &format!("documents/{key}"))?;
            print(&text.ok_or_else(missing)?)?;
        }
        Target::Shared(volume) => {
            let found = volume.open()?.0.get(&key)?.ok_or_else(missing)?;
            print_json(&document_json(&key, &found))?;
        }
        Target::Store(store) => print_json(&from_store(&store, &key)?.ok_or_else(missing)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn from_store(store: &Path, key: &Key) -> Result<Option<serde_json::Value>, Failure> {
    let volume = OpenVolume::open(store, &[], Tuning::default())?;
    let found = volume.store.get(key).map(|stored| stored.map(|stored| document_json(key, &stored)));
    volume.close()?;
    Ok(found?)
}
