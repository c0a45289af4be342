//! `lockwood lock`: a tree lock while a command runs, as flock(1) does for files.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::ambient;
use crate::cli::Failure;
use crate::cli::args::{Lock, ModeArgument};
use crate::cli::target::{control_path, mount_of};
use crate::fuse::control::{HoldAnswer, HoldRequest, RELEASE};
use crate::lock::{LockId, Mode};

/// The lock was not free in time (EX_TEMPFAIL of sysexits.h).
const EXIT_NOT_FREE: u8 = 75;
/// The lock was lost while the command ran; the command's own code is not to be relied on then.
const EXIT_LOST: u8 = 76;
/// The lock could not be asked for (EX_UNAVAILABLE).
pub(in crate::cli) const EXIT_UNAVAILABLE: u8 = 69;
/// The command could not be started, as shells say it: it may not be, or is not there.
const EXIT_NOT_EXECUTABLE: u8 = 126;
const EXIT_NOT_FOUND: u8 = 127;
const EXIT_SIGNAL_BASE: i32 = 128;

/// So soon it is noticed that the mount knows a lock to be lost.
const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(in crate::cli) fn run(arguments: &Lock) -> Result<ExitCode, Failure> {
    let (program, rest) = arguments.command.split_first().ok_or("a command is needed, after --")?;
    let words: Vec<_> = arguments.command.iter().map(|word| word.to_string_lossy()).collect();
    let (mut control, request) = prepare(arguments, &words.join(" "))?;
    let text = serde_json::to_vec(&request)?;
    if let Err(error) = control.write_all(&text) {
        let mut answer = String::new();
        control.rewind()?;
        control.read_to_string(&mut answer)?;
        let cause = match serde_json::from_str(&answer) {
            Ok(HoldAnswer::Refused(cause)) => cause,
            _ => error.to_string(),
        };
        if !matches!(error.raw_os_error(), Some(libc::EBUSY | libc::ECANCELED)) {
            return Err(format!("{} cannot be locked: {cause}", arguments.path.display()).into());
        }
        eprintln!("lockwood: {}: {cause}", arguments.path.display());
        return Ok(ExitCode::from(EXIT_NOT_FREE));
    }
    // The command has the lock open too: it is held until the command ends even if this process is killed.
    rustix::io::fcntl_setfd(&control, rustix::io::FdFlags::empty())?;
    let vigil = Vigil::start(control, &arguments.path)?;
    let status = match Command::new(program).args(rest).spawn() {
        Ok(child) => attend(child)?,
        Err(error) => {
            eprintln!("lockwood: {}: {error}", program.display());
            vigil.end();
            return Ok(ExitCode::from(match error.kind() {
                ErrorKind::NotFound => EXIT_NOT_FOUND,
                _ => EXIT_NOT_EXECUTABLE,
            }));
        }
    };
    // The lock is held until here.
    if vigil.end() {
        return Ok(ExitCode::from(EXIT_LOST));
    }
    let code = status.code().unwrap_or_else(|| EXIT_SIGNAL_BASE + status.signal().unwrap_or_default());
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
}

/// Looks whether the lock is still held while the command runs, and warns once when it is not.
struct Vigil {
    stop: Sender<()>,
    thread: JoinHandle<bool>,
}

impl Vigil {
    fn start(control: File, path: &Path) -> Result<Self, Failure> {
        let (stop, stopped) = mpsc::channel();
        let path = path.display().to_string();
        let thread = ambient::spawn("lockwood-vigil", move || {
            let mut lost = false;
            loop {
                let ends = stopped.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout);
                if ends {
                    // Whoever waits for this command finds the lock free. Where it cannot be written, the mount is gone, and
                    // with it the lock. Whether it was held until now can be read afterwards.
                    let _ = control.write_at(RELEASE, 0);
                }
                match answer(&control) {
                    Some(HoldAnswer::Lost(why)) if !lost => {
                        let command = if ends { "ran" } else { "goes on" };
                        eprintln!(
                            "lockwood: {path}: the lock is lost: {why}; the command {command} without it"
                        );
                        lost = true;
                    }
                    Some(HoldAnswer::Unknown(why)) if ends && !lost => {
                        eprintln!(
                            "lockwood: {path}: whether the lock was held to the end is not known: {why}"
                        );
                    }
                    _ => {}
                }
                if ends {
                    return lost;
                }
            }
        })?;
        Ok(Self { stop, thread })
    }

    /// Looks a last time, and lets go of the lock. Whether it had been lost before.
    fn end(self) -> bool {
        drop(self.stop);
        self.thread.join().unwrap_or(true)
    }
}

/// What the mount says of the lock.
fn answer(control: &File) -> Option<HoldAnswer> {
    const ANSWER_MAX: usize = 4096;
    let mut answer = [0; ANSWER_MAX];
    loop {
        return match control.read_at(&mut answer, 0) {
            Ok(len) => serde_json::from_slice(answer.get(..len)?).ok(),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => Some(HoldAnswer::Lost(format!("the mount does not answer ({error})"))),
        };
    }
}

/// Waits for the command. Signals are for the command: the lock must not end before it does. Those of the terminal reach
/// it by themselves, the others are passed on.
fn attend(mut child: Child) -> Result<ExitStatus, Failure> {
    let mut signals = Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP])?;
    let handle = signals.handle();
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let passing = ambient::spawn("lockwood-signals", move || {
        for signal in signals.forever() {
            let passed = match signal {
                SIGTERM => Some(Signal::TERM),
                SIGHUP => Some(Signal::HUP),
                _ => None,
            };
            if let Some((pid, signal)) = pid.zip(passed) {
                let _ = kill_process(pid, signal); // A command that has ended needs no signal.
            }
        }
    })?;
    let status = child.wait();
    handle.close();
    let _ = passing.join(); // It only passes signals on.
    Ok(status?)
}

fn prepare(arguments: &Lock, operation: &str) -> Result<(File, HoldRequest), Failure> {
    let path = &arguments.path;
    let (mount_point, id) = volume_path(path)?;
    let mode = match arguments.mode {
        ModeArgument::Shared => Mode::Shared,
        ModeArgument::Exclusive => Mode::Exclusive,
    };
    if id.is_root() {
        return Err("the root of the volume cannot be locked; lock the directories in it".into());
    }
    let control = control_path(&mount_point, "hold");
    let control = OpenOptions::new().read(true).write(true).open(&control).map_err(|e| {
        let hint = match e.kind() {
            std::io::ErrorKind::PermissionDenied => "; only root and the user who mounted may hold locks",
            _ => "",
        };
        format!("{}: {e}{hint}", control.display())
    })?;
    let wait_ms = u64::try_from(arguments.wait.as_millis()).unwrap_or(u64::MAX);
    Ok((control, HoldRequest { id: id.encoded(), mode, wait_ms, operation: format!("lock: {operation}") }))
}

/// The mount that `path` is on, and its path within the volume. The last name is taken as it is: a symbolic link is
/// locked itself.
fn volume_path(path: &Path) -> Result<(std::path::PathBuf, LockId), Failure> {
    let absolute = std::path::absolute(path)?;
    if let Some(mount_point) = mount_of(path).ok().flatten()
        && path.canonicalize()? == mount_point
    {
        return Ok((mount_point, LockId::root()));
    }
    let (parent, name) = absolute.parent().zip(absolute.file_name()).ok_or("a path in a mount is needed")?;
    let parent = parent.canonicalize().map_err(|e| format!("{}: {e}", parent.display()))?;
    let mount_point =
        mount_of(&parent)?.ok_or_else(|| format!("{}: not in a mount of lockwood", path.display()))?;
    let inside = parent.strip_prefix(&mount_point)?;
    let names = inside.components().map(|c| c.as_os_str().as_encoded_bytes());
    let id = LockId::from_components(names.chain([name.as_encoded_bytes()]))?;
    Ok((mount_point, id))
}
