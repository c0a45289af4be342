//! `lockwood format`.

use std::process::ExitCode;

use crate::ambient;
use crate::cli::Failure;
use crate::cli::args::Format;
use crate::cli::output::print;
use crate::cli::place::{PATIENCE, Place};
use crate::content::{Location, Objects};
use crate::document::Volume;
use crate::shell::quoted;
use crate::store::Commit;
use crate::store::embedded::layout::Layout;
use crate::store::engine::{self, EngineOptions};

/// Contents up to this stay in documents: a small file is then written and read without a file of its own on the host. A
/// page holds most links, settings and sources; more would be written again at every small append.
const INLINE_MAX: u32 = 4096;

pub(in crate::cli) fn run(format: &Format) -> Result<ExitCode, Failure> {
    let id = format!("{:016x}{:016x}", ambient::random_u64(), ambient::random_u64());
    let place = Place::parse(&format.store)?;
    let location: Option<Location> = format.content.as_deref().map(str::parse).transpose()?;
    if location.is_some() && matches!(place, Place::Directory(_)) {
        return Err(format!(
            "--content: {place} is a store in a directory, which keeps its contents beside it; leave the option out"
        )
        .into());
    }
    let mut volume = Volume::empty(id, format.locking.into(), INLINE_MAX, ambient::wall_clock().into());
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    volume.content = location.as_ref().map(ToString::to_string);
    let objects = location.map(|location| Objects::create(&location, &volume.id, PATIENCE)).transpose()?;
    let commit = Commit::format(volume, uid, gid);
    match &place {
        Place::Directory(store) => drop(Layout::format(store, &commit)?),
        Place::Engine { url, password } => {
            let options = EngineOptions {
                password: password.clone(),
                allow_volatile: format.allow_volatile,
                patience: PATIENCE,
            };
            if let Err(error) = engine::format(url, options, &commit) {
                objects.into_iter().for_each(Objects::abandon);
                return Err(error.into());
            }
        }
    }
    print(&format!(
        "{place} is formatted; mount it with: lockwood mount {} MOUNTPOINT\n",
        quoted(&place.to_string())
    ))?;
    Ok(ExitCode::SUCCESS)
}
