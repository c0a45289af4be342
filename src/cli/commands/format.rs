//! `lockwood format`.

use std::process::ExitCode;

use crate::ambient;
use crate::cli::Failure;
use crate::cli::args::Format;
use crate::cli::output::print;
use crate::cli::place::{PATIENCE, Place};
use crate::document::Volume;
use crate::store::Commit;
use crate::store::embedded::layout::Layout;
use crate::store::engine::{self, EngineOptions};

/// Contents up to this stay in documents: a small file is then written and read without a file of its own on the host. A
/// page holds most links, settings and sources; more would be written again at every small append.
const INLINE_MAX: u32 = 4096;

pub(in crate::cli) fn run(format: &Format) -> Result<ExitCode, Failure> {
    let id = format!("{:016x}{:016x}", ambient::random_u64(), ambient::random_u64());
    let volume = Volume::empty(id, format.locking.into(), INLINE_MAX, ambient::wall_clock().into());
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let commit = Commit::format(volume, uid, gid);
    let place = Place::parse(&format.store)?;
    match &place {
        Place::Directory(store) => drop(Layout::format(store, &commit)?),
        Place::Engine { url, password } => {
            let options = EngineOptions {
                password: password.clone(),
                allow_volatile: format.allow_volatile,
                patience: PATIENCE,
            };
            engine::format(url, options, &commit)?;
        }
    }
    print(&format!("{place} is formatted; mount it with: lockwood mount '{place}' MOUNTPOINT\n"))?;
    Ok(ExitCode::SUCCESS)
}
