//! What the tests of real mounts share: the `lockwood` command with a time limit, and [`Mounted`], a mount that is gone
//! with its daemon and its files when it is dropped, also by a test that fails.

#![allow(dead_code, reason = "each test program uses its own part of this")]

pub(crate) mod excluded;
pub(crate) mod interrupted;
pub(crate) mod lines;
pub(crate) mod locker;
pub(crate) mod mapped;
pub(crate) mod rng;
pub(crate) mod stop;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockwood::ambient::monotonic;
use lockwood::mounts::{self, MountEntry};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use lines::Lines;

/// Nothing that a test does takes longer, unless it hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_lockwood");

/// What a command gave.
#[derive(Debug)]
pub(crate) struct Ran {
    /// The exit code; -1 if a signal ended it.
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Standard output, of a command that must succeed.
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }

    /// Standard error, of a command that must fail, and not by a signal or a panic.
    pub(crate) fn refused(self) -> String {
        assert!(self.code > 0 && self.code != 101, "{self:?}");
        assert!(!self.stderr.is_empty() && !self.stderr.contains("panicked"), "{self:?}");
        self.stderr
    }
}

/// Runs a command to its end. Its output goes through files: a daemon that it leaves behind must not hold up the reader.
///
/// # Panics
/// When it does not end in time; it is killed then.
pub(crate) fn run(command: &mut Command) -> Ran {
    let [stdout, stderr] = [(), ()].map(|()| tempfile::NamedTempFile::new().expect("a temporary file"));
    let open = |file: &tempfile::NamedTempFile| Stdio::from(file.reopen().expect("a temporary file"));
    command.stdin(Stdio::null()).stdout(open(&stdout)).stderr(open(&stderr));
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let status = wait(&mut child, LIMIT);
    let text = |file: &tempfile::NamedTempFile| {
        String::from_utf8_lossy(&fs::read(file.path()).expect("a temporary file")).into_owned()
    };
    let (stdout, stderr) = (text(&stdout), text(&stderr));
    let Some(status) = status else { panic!("{command:?} hangs; so far: {stdout}{stderr}") };
    Ran { code: status.code().unwrap_or(-1), stdout, stderr }
}

/// Waits for a child, and kills it when its time is over. Then it is not waited for: one that the kernel lets wait for a
/// stuck daemon does not end by that.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Option<std::process::ExitStatus> {
    let begun = monotonic();
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return Some(status);
        }
        if begun.elapsed() > limit {
            child.kill().expect("a child");
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs `lockwood` with these arguments.
pub(crate) fn lockwood<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Ran {
    run(Command::new(BINARY).args(arguments))
}

/// Runs any program.
pub(crate) fn program(name: &str, arguments: &[&OsStr]) -> Ran {
    run(Command::new(name).args(arguments))
}

/// Waits until `done`, and fails after [`LIMIT`].
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) -> Duration {
    let begun: Instant = monotonic();
    while !done() {
        assert!(begun.elapsed() < LIMIT, "still waiting: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    begun.elapsed()
}

/// Unmounts it, once it is free: what another test starts has, until it is another program, all files that were open here.
pub(crate) fn umount(point: &Path) {
    let mut ran = None;
    until("it is free", || {
        let last = ran.insert(lockwood([OsStr::new("umount"), point.as_os_str()]));
        last.code == 0 || !last.stderr.contains("is in use")
    });
    ran.expect("it was asked").ok();
}

/// Whether mounts can be made here. If not, says so where nothing captures it.
pub(crate) fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root()
        && File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !can {
        skipped("needs root and /dev/fuse");
    }
    can
}

/// Says that a test has tested nothing.
pub(crate) fn skipped(why: &str) {
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let _ = writeln!(io::stderr(), "\nskipped: {why} ({test})");
}

/// The line of the mount table for a mount point.
pub(crate) fn mount_entry(mount_point: &Path) -> Option<MountEntry> {
    let table = mounts::own().expect("/proc");
    table.into_iter().rev().find(|m| m.mount_point == mount_point)
}

fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid")
}

/// umount(2), which does not wait for the daemon as `lockwood umount` does. A process that another test is just starting
/// has the files open that this one had, until it runs its program.
pub(crate) fn unmount_once_free(point: &Path) {
    until("nobody has a file open", || match unmount(point, UnmountFlags::empty()) {
        Err(rustix::io::Errno::BUSY) => false,
        unmounted => {
            unmounted.expect("a mount");
            true
        }
    });
}

/// Sends a signal. When this has returned from a stop, the process answers nobody any more.
pub(crate) fn signal(pid: u32, signal: Signal) {
    kill_process(pid_of(pid), signal).expect("the daemon is there");
    if signal == Signal::STOP {
        until("all threads stand still", || !goes_on(pid));
    }
}

/// The same for a drop, to which a process that has gone by itself is no error.
pub(crate) fn signal_if_there(pid: u32, signal: Signal) {
    let _ = kill_process(pid_of(pid), signal);
}

/// Whether a thread of the process runs, or sleeps and can be woken.
fn goes_on(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("a process").flatten();
    let mut states = threads.map(|thread| fs::read_to_string(thread.path().join("stat")).unwrap_or_default());
    states.any(|state| state.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with(['R', 'S'])))
}

pub(crate) fn is_alive(pid: u32) -> bool {
    // A zombie is as dead as can be seen from here: its parent is not this test.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// A store and where it is mounted, below one temporary directory.
pub(crate) struct Mounted {
    pub(crate) dir: TempDir,
    pub(crate) store: PathBuf,
    pub(crate) mount_point: PathBuf,
    /// Every daemon that was started and may still be there.
    daemons: Vec<u32>,
}

impl Mounted {
    /// A new store, mounted; `None`, loudly, where that is not possible.
    pub(crate) fn new() -> Option<Self> {
        Self::with_options("rw")
    }

    pub(crate) fn with_options(options: &str) -> Option<Self> {
        let mut mounted = Self::unmounted()?;
        mounted.mount(options);
        Some(mounted)
    }

    /// A new store, and a directory to mount it at.
    pub(crate) fn unmounted() -> Option<Self> {
        Self::unmounted_with("tree")
    }

    /// The same, with this lock strategy.
    pub(crate) fn unmounted_with(locking: &str) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let dir = tempfile::tempdir().expect("a temporary directory");
        open_to_all(dir.path());
        let mounted = Self {
            store: dir.path().join("store"),
            mount_point: dir.path().join("mnt"),
            dir,
            daemons: Vec::new(),
        };
        fs::create_dir(&mounted.mount_point).expect("a mount point");
        let locking = [OsStr::new("--locking"), OsStr::new(locking)];
        lockwood([&[OsStr::new("format"), mounted.store.as_os_str()][..], &locking].concat()).ok();
        Some(mounted)
    }

    pub(crate) fn try_mount(&mut self, options: &str) -> Ran {
        let ran = lockwood([
            OsStr::new("mount"),
            self.store.as_os_str(),
            self.mount_point.as_os_str(),
            OsStr::new("-o"),
            OsStr::new(options),
        ]);
        self.note_daemon();
        ran
    }

    pub(crate) fn mount(&mut self, options: &str) {
        self.try_mount(options).ok();
        assert!(!self.daemons.is_empty(), "no daemon");
    }

    /// Looks who has the store now, so that it can be ended. Asks the owner file: the tree may be too damaged to tell.
    pub(crate) fn note_daemon(&mut self) {
        for path in [self.store.join("owner"), self.mount_point.join(".lockwood/status")] {
            let Ok(text) = fs::read(path) else { continue };
            let Ok(owner) = serde_json::from_slice::<Value>(&text) else { continue };
            if let Some(pid) = owner["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()) {
                self.daemons.push(pid);
            }
        }
    }

    /// The daemon that was started last.
    pub(crate) fn pid(&self) -> u32 {
        *self.daemons.last().expect("a daemon")
    }

    pub(crate) fn umount(&self) {
        umount(&self.mount_point);
    }

    pub(crate) fn remount(&mut self) {
        self.umount();
        self.mount("rw");
    }

    /// A path in the tree.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.mount_point.join(path)
    }

    /// `lockwood check` of the mount, or of the store when nobody has it mounted.
    pub(crate) fn check(&self) -> Ran {
        let mounted = mount_entry(&self.mount_point).is_some();
        let target = if mounted { &self.mount_point } else { &self.store };
        lockwood([OsStr::new("check"), target.as_os_str()])
    }

    pub(crate) fn assert_clean(&self) {
        let words = self.check().ok();
        assert!(words.contains("clean"), "{words}");
    }

    pub(crate) fn status(&self) -> Value {
        let ran = lockwood([OsStr::new("status"), self.mount_point.as_os_str(), OsStr::new("--json")]);
        serde_json::from_str(&ran.ok()).expect("JSON")
    }

    /// The end of a test: unmounts, and judges the volume as nobody has it open.
    pub(crate) fn finish(self) {
        self.assert_clean();
        self.umount();
        self.assert_clean();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A mount may stand on another one; each is taken away, and its daemon ends by itself then.
        while mount_entry(&self.mount_point).is_some() {
            let plain = unmount(&self.mount_point, UnmountFlags::empty());
            if plain.is_err() && unmount(&self.mount_point, UnmountFlags::DETACH).is_err() {
                break;
            }
        }
        let begun = monotonic();
        while begun.elapsed() < Duration::from_secs(10) && self.daemons.iter().any(|pid| is_alive(*pid)) {
            std::thread::sleep(Duration::from_millis(2));
        }
        kill_daemons(&self.daemons);
    }
}

/// Ends what is left of these.
pub(crate) fn kill_daemons(daemons: &[u32]) {
    for daemon in daemons.iter().filter(|pid| is_lockwood(**pid)) {
        signal_if_there(*daemon, Signal::KILL);
    }
}

/// Whether the process is one of ours: a pid may have been given to somebody else meanwhile. By its arguments: the program
/// of a process that leaves no core is not shown to everybody.
fn is_lockwood(pid: u32) -> bool {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    is_alive(pid) && arguments.split(|&byte| byte == 0).next() == Some(BINARY.as_bytes())
}

/// Lets every user through a directory: what they are refused must be refused behind it.
pub(crate) fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a directory of ours");
}

/// A lock held by `lockwood lock` until this is dropped.
pub(crate) struct Held(Child);

impl Held {
    pub(crate) fn exclusive(path: &Path) -> Self {
        Self(hold(path, Stdio::inherit()))
    }
}

/// A lock held by `lockwood lock` until its standard input ends.
pub(crate) fn hold(path: &Path, stderr: Stdio) -> Child {
    let mut command = Command::new(BINARY);
    command.args(["lock", "--mode", "exclusive"]).arg(path).args(["--", "cat"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
    let mut child = command.spawn().expect("lockwood lock");
    child.stdin.as_mut().expect("a pipe").write_all(b"held\n").expect("a pipe");
    // By what `cat` answers.
    assert_eq!(Lines::of(child.stdout.take().expect("a pipe")).line(), "held");
    child
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        if wait(&mut self.0, Duration::from_secs(10)).is_none() {
            let _ = writeln!(io::stderr(), "`lockwood lock` did not end and was killed");
        }
    }
}
