//! The keeper of a mount: a small process beside its daemon that ends the mount's connection to the kernel when the daemon
//! has died.
//!
//! What is hard: a process that is killed ends with its last thread, and one that tells the kernel of a name may wait there,
//! where no signal reaches it, for the lock of a directory. A program may hold that while it waits for the daemon, which
//! answers no more; the thread keeps `/dev/fuse` open, and so the kernel sees no end. Nor would a pipe, or a pidfd(2): what
//! comes at once is the signal that the thread has ended which started the keeper (PR_SET_PDEATHSIG, see prctl(2)).

use std::ffi::{CStr, OsStr};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::args::Keep;
use super::{Failure, daemon};
use crate::ambient;
use crate::fuse::Mounted;
use crate::mounts::{self, Daemon};
use crate::shell::quoted;

/// What it is called in lists of processes: who kills all that are called `lockwood` means the daemons.
const NAME: &CStr = c"lw-keeper";

/// How long a mount waits for its keepers before it goes on without them.
const PATIENCE: Duration = Duration::from_secs(10);

/// Starts a keeper for each mount of this daemon, and waits until they keep. Without one a mount goes on all the same.
pub(super) fn start(mounted: &Mounted, log: Option<&Path>) {
    let (started, keeping) = channel();
    for (mount_point, abort) in mounted.aborts() {
        if let Err(error) = abort.and_then(|abort| start_one(mount_point, abort, log, started.clone())) {
            has_none(mount_point, &error);
        }
    }
    drop(started);
    // Nothing is ever sent: the last of them has let go of the channel.
    if keeping.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
        log::warn!("a keeper has not begun after {} s; nobody waits for it", PATIENCE.as_secs());
    }
}

fn has_none(mount_point: &Path, why: &io::Error) {
    log::warn!(
        "{} has no keeper ({why}): if this daemon is killed, programs may wait for it until root ends that with: \
         lockwood umount --force {}",
        mount_point.display(),
        quoted(mount_point)
    );
}

/// Starts one, by a thread that does nothing else and so ends with the daemon, whatever becomes of the others.
fn start_one(mount_point: &Path, abort: File, log: Option<&Path>, started: Sender<()>) -> io::Result<()> {
    let (mut armed, tells) = io::pipe()?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(OsStr::from_bytes(NAME.to_bytes()))
        .arg("keep")
        .arg(std::process::id().to_string())
        .arg(mount_point);
    command.args(log.map(|log| [Path::new("--log"), log]).into_iter().flatten());
    // It needs no password, keeps no directory in use, and is not meant by what is sent to the daemon's whole group.
    command.env_clear().current_dir("/").process_group(0);
    command.stdin(tells).stdout(abort);
    if log.is_some() {
        command.stderr(Stdio::null());
    }
    let of = mount_point.to_owned();
    ambient::spawn("lockwood-keeper", move || {
        let spawned = command.spawn();
        drop(command); // With its end of the pipe.
        let ended = spawned.and_then(|mut child| {
            armed.read_to_end(&mut Vec::new())?; // Until the keeper has closed its own.
            drop(started);
            child.wait()
        });
        match ended {
            Ok(status) => has_none(&of, &io::Error::other(format!("it has ended: {status}"))),
            Err(error) => has_none(&of, &error),
        }
    })?;
    Ok(())
}

/// Is a keeper: waits until the daemon has died, and then ends the connection that standard output is the abort file of.
pub(super) fn run(arguments: &Keep) -> Result<ExitCode, Failure> {
    // The log is opened when there is something to say: until then it could be in what the daemon serves, and after an
    // orderly end it would keep in use what has the store.
    let kept = keep(arguments);
    if let Err(error) = &kept {
        daemon::log_to(arguments.log.as_deref())?;
        log::error!("the keeper of {}: {error}", arguments.mount_point.display());
    }
    kept?;
    // At an orderly end nothing is mounted there any more, or what others have mounted since.
    let is_dead = mounts::is_ours(&arguments.mount_point)
        && matches!(mounts::daemon(&arguments.mount_point, mounts::ANSWER_WAIT), Ok(Daemon::HasDied));
    if is_dead {
        daemon::log_to(arguments.log.as_deref())?;
        log::error!(
            "process {}, the daemon of {}, has died; who uses the tree gets an error, until it is taken away with: \
             lockwood umount {}",
            arguments.daemon,
            arguments.mount_point.display(),
            quoted(&arguments.mount_point)
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn keep(arguments: &Keep) -> io::Result<()> {
    rustix::thread::set_name(NAME)?;
    // What an init system sends to all processes of a service is the daemon's to follow.
    let mut signals = Signals::new([SIGUSR1, SIGTERM, SIGINT, SIGHUP])?;
    set_parent_process_death_signal(Some(Signal::USR1))?;
    if getppid().is_some_and(|parent| parent.as_raw_pid() == arguments.daemon) {
        let null = OpenOptions::new().read(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(null)?; // Says that it keeps.
        signals.forever().find(|signal| *signal == SIGUSR1);
    }
    rustix::io::write(io::stdout(), b"1")?;
    Ok(())
}
