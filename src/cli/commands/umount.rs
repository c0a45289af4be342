//! `lockwood umount`.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crate::ambient;
use crate::cli::Failure;
use crate::cli::args::Umount;
use crate::cli::output::spinner;
use crate::cli::target::{is_dead, read_control, resolved};
use crate::fuse::attach;
use crate::fuse::control::Status;
use crate::fuse::mount::FS_TYPE;
use crate::mounts::{self, Elsewhere, MountEntry};
use crate::shell::quoted;

/// How long to wait until the daemon has closed the store.
const CLOSE_WAIT: Duration = Duration::from_secs(180);
/// A store that takes longer to close may be in use elsewhere.
const LOOK_AFTER: Duration = Duration::from_secs(1);

pub(in crate::cli) fn run(arguments: &Umount) -> Result<ExitCode, Failure> {
    let ours = ours(&arguments.mount_point)?;
    let mount_point = &ours.mount_point;
    // Lazily or by force, nothing is asked of the daemon: it may be what stands still.
    let detached = arguments.lazy || arguments.force || is_dead(mount_point)?;
    let daemon = (!detached).then(|| daemon_of(mount_point));
    let taken = if arguments.force {
        attach::force(mount_point)
    } else if detached {
        attach::detach(mount_point)
    } else {
        attach::unmount(mount_point)
    };
    taken.map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => format!(
            "{} is in use; see who with: fuser -vm {1}; or take it away with: lockwood umount --lazy {1}",
            mount_point.display(),
            quoted(mount_point)
        ),
        _ => format!("{}: {error}", mount_point.display()),
    })?;
    // Nothing can be looked up in a mount whose store is away, once what its kernel remembers is too old.
    if let Some(Err(error)) = &daemon {
        eprintln!(
            "lockwood: unmounted; the mount did not say who serves it ({error}), so nobody waits for the end of \
             that. If its store is away, what its session held is let go by other mounts \
             after its lease, or by: lockwood recover URL"
        );
    }
    if let Some(Ok(Some(status))) = daemon {
        wait_for_end(&status, &ours)?;
        if let Some(away) = status.away {
            eprintln!(
                "lockwood: unmounted; the store does not answer since {} ({}). What session {} held is let go by \
                 other mounts after its lease, or by: lockwood recover {}",
                away.since,
                away.cause,
                status.session,
                quoted(&status.store)
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The mount as the mount table has it. Its daemon is not asked as long as the name itself, or what it is called in its
/// directory, is a mount point.
fn ours(path: &Path) -> Result<MountEntry, Failure> {
    let table = mounts::own()?;
    let at = |mount_point: &Path| table.iter().rev().find(|m| m.mount_point == mount_point);
    let absolute = std::path::absolute(path)?;
    let in_directory = || Some(absolute.parent()?.canonicalize().ok()?.join(absolute.file_name()?));
    let found = match at(&absolute).or_else(|| at(&in_directory()?)) {
        None => at(&resolved(path)?),
        found => found,
    };
    match found.cloned() {
        Some(m) if m.fs_type == FS_TYPE => Ok(m),
        Some(m) => {
            Err(format!("{}: a mount of {}, not of lockwood", path.display(), m.fs_type.display()).into())
        }
        None => Err(format!("{}: not a mount point", path.display()).into()),
    }
}

/// What the daemon says of itself; none if it is another version's and not understood.
///
/// # Errors
/// When it cannot be asked.
fn daemon_of(mount_point: &Path) -> Result<Option<Status>, Failure> {
    Ok(read_control(mount_point, "status")?.and_then(|text| serde_json::from_str(&text).ok()))
}

/// A process that has ended and whose parent has not asked for it yet runs no more.
fn is_running(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(state) => {
            state.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
        }
        Err(_) => mounts::is_there(pid), // Hidden (hidepid of proc(5)), or gone.
    }
}

/// Whether the session has ended while its daemon goes on with another mount, which says so.
fn has_left(status: &Status) -> bool {
    let session = format!("sessions/{}", status.session);
    let others = status.mount_points.iter().filter(|path| **path != status.mount_point).map(Path::new);
    let mut others = others.filter(|path| mounts::is_ours(path));
    others.any(|path| matches!(read_control(path, &session), Ok(None)))
}

/// Waits until the session has ended, or will not because the tree is seen elsewhere.
fn wait_for_end(status: &Status, ours: &MountEntry) -> Result<(), Failure> {
    let pid = status.pid;
    let begun = ambient::monotonic();
    let mut next_look = LOOK_AFTER;
    let waiting = spinner("closing the store".to_owned());
    while is_running(pid) && !has_left(status) {
        if begun.elapsed() > next_look {
            next_look += LOOK_AFTER;
            if let Some(elsewhere) = mounts::elsewhere(ours) {
                return Err(format!(
                    "unmounted, but the tree is still served, and session {} goes on: {}",
                    status.session,
                    match elsewhere {
                        Elsewhere::Here(path) =>
                            format!("it is mounted at {}, too (mount --bind)", path.display()),
                        Elsewhere::Apart(pid, path) => format!(
                            "process {pid} sees it at {}, in a mount namespace of its own (a container?)",
                            path.display()
                        ),
                    }
                )
                .into());
            }
        }
        if begun.elapsed() > CLOSE_WAIT {
            return Err(format!(
                "{} is unmounted, but process {pid} still closes the store {}: see its log; what was acknowledged is safe \
                 though it is killed",
                status.mount_point, status.store
            )
            .into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    waiting.finish_and_clear();
    Ok(())
}
