//! `lockwood mount`.

use std::process::ExitCode;

use fuser::MountOption;

use crate::cli::args::Mount;
use crate::cli::options::Resolved;
use crate::cli::place::Place;
use crate::cli::target::refuse_anothers;
use crate::cli::{Failure, daemon, keeper, lock_servers};
use crate::fuse::attach;
use crate::fuse::mount::{self, MountRequest, Source};
use crate::store::embedded::layout::Layout;
use crate::store::engine::EngineOptions;

pub(in crate::cli) fn run(arguments: &Mount) -> Result<ExitCode, Failure> {
    let mut options = arguments.options.clone();
    if arguments.read_only {
        options.push("ro".into());
    }
    let root = rustix::process::geteuid().is_root();
    let mut resolved = Resolved::from_texts(&options, root)?;
    if resolved.remount {
        // What mount(8) does for `mount -o remount,ro`: the daemon goes on, the kernel changes its flags. To the options
        // that are asked for it adds those of /etc/fstab, so one of the daemon's beside the kernel's may be there already.
        if !resolved.of_daemon.is_empty() {
            let unchanged = format!(
                "option {}: a remount changes only the kernel's options (ro, rw, nosuid, noexec, ...); for the daemon's \
                 unmount and mount again",
                resolved.of_daemon.join(",")
            );
            if !resolved.names_kernels {
                return Err(unchanged.into());
            }
            eprintln!("lockwood: {unchanged}");
        }
        for mount_point in &arguments.mount_points {
            let mount_point =
                mount_point.canonicalize().map_err(|error| format!("{}: {error}", mount_point.display()))?;
            attach::remount(&mount_point, &resolved.kernel_options)
                .map_err(|error| format!("{}: {error}", mount_point.display()))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let meaningless = resolved.of_shared().join(",");
    if !arguments.daemon
        && !meaningless.is_empty()
        && let Ok(Place::Directory(store)) = Place::parse(&arguments.store)
    {
        // Said and not refused: one line of options may serve stores of both kinds.
        eprintln!(
            "lockwood: option {meaningless}: {} is a store with one owner, where this means nothing",
            store.display()
        );
    }
    if !arguments.foreground && !arguments.daemon {
        let log =
            || daemon::log_path(&Place::parse(&arguments.store)?, &arguments.mount_points, resolved.log);
        // Without one the daemon says so itself.
        return daemon::start(log().ok());
    }
    let place = Place::parse(&arguments.store)?;
    let named = [arguments.locks.as_slice(), &resolved.locks].concat();
    let lock_servers = match named.as_slice() {
        [] => None,
        _ if matches!(place, Place::Directory(_)) => {
            return Err(format!(
                "--locks: {place} is a store with one owner, which keeps the locks itself; leave it out"
            )
            .into());
        }
        lists => Some(lock_servers::parse(&lists.join(","), resolved.settings.lease)?),
    };
    if resolved.kernel_options.contains(&MountOption::Sync) {
        // Linux does not say of each write that the mount wants it at once.
        resolved.settings.write_back_bytes = 0;
    }
    if resolved.settings.write_back_bytes > 0 {
        // The one has nothing to gain; of the other the other mount points would not see at once what is kept back.
        if let Place::Directory(_) = place {
            return Err(format!(
                "option write-back: {place} is a store with one owner, where a write costs no round trip; leave it out"
            )
            .into());
        }
        if arguments.mount_points.len() > 1 {
            return Err(
                "option write-back: with one mount point only; mount the others by commands of their own"
                    .into(),
            );
        }
    }
    let threads = resolved.threads(matches!(place, Place::Engine { .. }));
    let passing = resolved.passing();
    let chosen = resolved.log;
    let log =
        arguments.daemon.then(|| daemon::log_path(&place, &arguments.mount_points, chosen)).transpose()?;
    let source = match &place {
        Place::Directory(store) => {
            // Before anything is written to the store it must be one.
            refuse_anothers(&Layout::existing(store)?)?;
            Source::Directory(std::path::absolute(store)?)
        }
        Place::Engine { url, password } => Source::Engine {
            url: url.clone(),
            options: EngineOptions {
                password: password.clone(),
                allow_volatile: resolved.allow_volatile,
                patience: resolved.patience,
            },
            cache_ttl: resolved.cache_ttl,
            lock_servers,
        },
    };
    if arguments.daemon {
        daemon::detach();
    }
    log.as_deref().map(daemon::rotate).transpose()?;
    daemon::log_to(log.as_deref())?;
    daemon::abort_on_panic();
    daemon::lift_limits();
    daemon::dump_no_core();
    let request = MountRequest {
        store: place.to_string(),
        source,
        mount_points: arguments.mount_points.clone(),
        kernel_options: resolved.kernel_options,
        acl: resolved.acl,
        locking: resolved.locking,
        settings: resolved.settings,
        tuning: resolved.tuning,
        passing,
        attributes: resolved.attributes,
        threads,
        log: log.as_ref().map(|path| path.display().to_string()),
    };
    let mounted = mount::mount(&request).inspect_err(|error| log::error!("{error}"))?;
    keeper::start(&mounted, log.as_deref());
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
