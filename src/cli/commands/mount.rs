//! `lockwood mount`.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::cli::args::Mount;
use crate::cli::options::Resolved;
use crate::cli::{Failure, daemon};
use crate::fuse::attach;
use crate::fuse::mount::{self, MountRequest};

pub(in crate::cli) fn run(arguments: &Mount) -> Result<ExitCode, Failure> {
    let mut options = arguments.options.clone();
    if arguments.read_only {
        options.push("ro".into());
    }
    let root = rustix::process::geteuid().is_root();
    let resolved = Resolved::from_texts(&options, root)?;
    if resolved.remount {
        // What mount(8) does for `mount -o remount,ro`: the daemon goes on, the kernel changes its flags.
        for mount_point in &arguments.mount_points {
            let mount_point = mount_point.canonicalize()?;
            attach::remount(&mount_point, &resolved.kernel_options)
                .map_err(|error| format!("{}: {error}", mount_point.display()))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if !arguments.foreground && !arguments.daemon {
        return daemon::start();
    }
    let store = PathBuf::from(&arguments.store);
    let log = arguments
        .daemon
        .then(|| daemon::log_path(&store, resolved.log))
        .map(std::path::absolute)
        .transpose()?;
    // Before anything is written to the store it must be one.
    crate::store::embedded::layout::Layout::existing(&store)?;
    if arguments.daemon {
        daemon::detach();
    }
    daemon::log_to(log.as_deref())?;
    daemon::abort_on_panic();
    let request = MountRequest {
        store: arguments.store.to_string_lossy().into_owned(),
        store_path: std::path::absolute(&store)?,
        mount_points: arguments.mount_points.clone(),
        kernel_options: resolved.kernel_options,
        acl: resolved.acl,
        locking: resolved.locking,
        settings: resolved.settings,
        tuning: resolved.tuning,
        threads: resolved.threads,
        log: log.map(|path| path.display().to_string()),
    };
    let mounted = mount::mount(&request).inspect_err(|error| log::error!("{error}"))?;
    for mount_point in &request.mount_points {
        log::info!("{} is mounted at {}", request.store, mount_point.display());
    }
    if arguments.daemon {
        daemon::ready()?;
    }
    let served = mounted.serve();
    match &served {
        Ok(()) => log::info!("{} is unmounted, and its store is closed", request.store),
        Err(error) => log::error!("{error}"),
    }
    served?;
    Ok(ExitCode::SUCCESS)
}
