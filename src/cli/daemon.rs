//! The background process of a mount: starting it, waiting until it is ready, and where its log goes.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use signal_hook::consts::SIGXFSZ;

use super::Failure;
use super::place::Place;

/// What is logged unless RUST_LOG says otherwise: our own news, and of the crates below only what goes wrong. That the
/// kernel wants an answer no more, since the program was killed, is nothing wrong.
const LOG_FILTER: &str = "warn,lockwood=info,fuser::reply=off";

const READY: &str = "ready";

/// A log that has grown beyond this is set aside when the next daemon begins.
const LOG_BYTES_MAX: u64 = 8 << 20;

/// Starts this program again in the background with `--daemon`, and waits until it says that it is ready. What goes wrong
/// before, it prints itself: it shares standard error until then. If it dies before it could, what it has logged is shown.
pub(super) fn start(log: Option<PathBuf>) -> Result<ExitCode, Failure> {
    let program = std::env::current_exe()?;
    let logged_before = log.as_ref().map_or(0, |log| logged(log, 0).len());
    let mut child = Command::new(program)
        .args(["mount", "--daemon"])
        // Behind the verb: there may be a `--` later on.
        .args(super::args::with_verb(std::env::args_os()).into_iter().skip(2))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    if line.trim() == READY {
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait()?;
    if let Some(signal) = status.signal() {
        let mut words = format!("the mount's process died of signal {signal} before the tree was there");
        if let Some(log) = log {
            words.push_str(&format!("; see its log {}", log.display()));
            if let Some(error) = last_error(&logged(&log, logged_before)) {
                words.push_str(&format!(", where it says at last:\n{error}"));
            }
        }
        return Err(words.into());
    }
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// What a log says behind its first so many bytes, or from its beginning if it was begun anew; nothing if it is no file.
fn logged(log: &Path, before: usize) -> Vec<u8> {
    if !fs::metadata(log).is_ok_and(|log| log.is_file()) {
        return Vec::new(); // A pipe or a terminal would be waited for.
    }
    let mut text = fs::read(log).unwrap_or_default();
    if text.len() >= before {
        text.drain(..before);
    }
    text
}

/// The last error in a log, to its last line.
fn last_error(log: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(log);
    let lines: Vec<&str> = text.lines().collect();
    let at =
        lines.iter().rposition(|line| line.starts_with('[') && line.split(' ').nth(1) == Some("ERROR"))?;
    Some(lines[at..].join("\n"))
}

/// Leaves the terminal, in the background process.
pub(super) fn detach() {
    if let Err(error) = rustix::process::setsid() {
        log::debug!("no session of its own: {error}");
    }
}

/// Lifts the limits of a shell that are not meant for a file system: on open files and on the size of files. A file that is
/// too large all the same is an error, and not the end of the process.
pub(super) fn lift_limits() {
    for resource in [Resource::Nofile, Resource::Fsize] {
        let maximum = getrlimit(resource).maximum;
        if let Err(error) = setrlimit(resource, Rlimit { current: maximum, maximum }) {
            log::warn!("the limit {resource:?} of this process stays as it was: {error}");
        }
    }
    if let Err(error) = signal_hook::flag::register(SIGXFSZ, Arc::default()) {
        log::warn!("files that are too large end this process: {error}");
    }
}

/// Leaves no core when this process dies. A core is written when all threads have stopped, and one may wait in the kernel
/// until the keeper hears of the death (see [`super::keeper`]); nor should passwords and files lie about in one.
pub(super) fn dump_no_core() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        log::warn!("this process may leave a core when it dies: {error}");
    }
}

/// Tells whoever waits in [`start`] that the tree is there, and lets go of what it was started with.
pub(super) fn ready() -> io::Result<()> {
    let mut stdout = io::stdout();
    let told = writeln!(stdout, "{READY}").and_then(|()| stdout.flush());
    if let Err(error) = told {
        log::warn!("who started this mount does not wait for it any more ({error}); it goes on");
    }
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::env::set_current_dir("/")
}

/// The log file of a daemon: the one that was chosen, or else one in the store; for a shared store, which has no place of
/// its own here, in the system's or the user's directory for logs, by its first mount point.
pub(super) fn log_path(
    place: &Place,
    mount_points: &[PathBuf],
    chosen: Option<PathBuf>,
) -> Result<PathBuf, Failure> {
    if let Some(chosen) = chosen {
        return Ok(std::path::absolute(chosen)?);
    }
    if let Place::Directory(store) = place {
        return Ok(std::path::absolute(store.join("log"))?);
    }
    let directory = if rustix::process::geteuid().is_root() {
        PathBuf::from("/var/log/lockwood")
    } else {
        let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/state"));
        let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).or_else(home);
        state.ok_or("there is neither XDG_STATE_HOME nor HOME: name a log with -o log=FILE")?.join("lockwood")
    };
    fs::create_dir_all(&directory).map_err(|e| format!("the directory {}: {e}", directory.display()))?;
    let first = mount_points.first().map(std::path::absolute).transpose()?.unwrap_or_default();
    Ok(directory.join(log_name(&first)))
}

/// The name of a mount point's log. No two have the same: `-` stands for `/`, and for itself behind a `%`.
fn log_name(mount_point: &Path) -> OsString {
    let mut name = Vec::new();
    let plain: PathBuf = mount_point.components().collect();
    for byte in plain.as_os_str().as_bytes().iter().skip(1) {
        match byte {
            b'/' => name.push(b'-'),
            b'-' | b'%' => name.extend([b'%', *byte]),
            byte => name.push(*byte),
        }
    }
    name.extend(b".log");
    OsString::from_vec(name)
}

/// Sets a log aside that has grown too large, before a daemon begins to write to it.
pub(super) fn rotate(log: &Path) -> io::Result<()> {
    match fs::metadata(log) {
        Ok(found) if found.len() > LOG_BYTES_MAX => fs::rename(log, log.with_extension("old")),
        _ => Ok(()), // What is wrong with it is found when it is opened.
    }
}

/// Logs to `path` from here on, or to standard error.
pub(super) fn log_to(path: Option<&Path>) -> Result<(), Failure> {
    let mut builder = env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(LOG_FILTER));
    builder.format_timestamp_millis();
    if let Some(path) = path {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|e| format!("the log {}: {e}", path.display()))?;
        builder.target(env_logger::Target::Pipe(Box::new(file)));
    }
    builder.init();
    Ok(())
}

/// A panic anywhere ends the process: a mount that has lost a thread must not go on in silence. It is like a kill, after
/// which nothing acknowledged is lost.
pub(super) fn abort_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        log::error!("a defect, please report it: {info}");
        log::logger().flush();
        std::process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_mount_points_share_a_log() {
        let name = |text: &str| log_name(Path::new(text));
        assert_eq!(name("/mnt/a/b"), "mnt-a-b.log");
        assert_eq!(name("/mnt//a/b/"), "mnt-a-b.log");
        assert_eq!(name("/mnt/a-b%"), "mnt-a%-b%%.log");
    }

    #[test]
    fn the_last_error_of_a_log_is_shown_to_its_end() {
        let log =
            b"[now ERROR lockwood] one\n[now INFO  lockwood] two\n[now ERROR lockwood] three\nand four\n";
        assert_eq!(last_error(log).unwrap(), "[now ERROR lockwood] three\nand four");
        assert_eq!(last_error(b"[now INFO  lockwood] no ERROR here"), None);
        assert_eq!(last_error(b""), None);
    }
}
