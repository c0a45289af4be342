//! A Redis server of a test's own: on a free port of this host, in a temporary directory, gone with it when it is dropped.
//! Used by path from wherever a test needs one; names nothing of Lockwood.

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use tempfile::TempDir;

/// Which server, if not the one that Debian has: another release, or Valkey.
const PROGRAM_VARIABLE: &str = "LOCKWOOD_REDIS_SERVER";
const PROGRAM: &str = "redis-server";
const LOOK_EVERY: Duration = Duration::from_millis(20);
const LOOKS: u32 = 500;

/// A running server.
pub(crate) struct RedisServer {
    dir: TempDir,
    port: u16,
    options: Vec<String>,
    process: Option<Child>,
}

impl RedisServer {
    /// One that keeps what it is told. None, and a loud line, if there is no such program on this host.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(&["--appendonly", "yes"])
    }

    /// One with these options.
    pub(crate) fn start_with(options: &[&str]) -> Option<Self> {
        let there = Command::new(program()).arg("--version").stdout(Stdio::null()).status();
        if there.is_err() {
            eprintln!(
                "\n*** SKIPPED: {PROGRAM} is not installed (Debian: redis-server); nothing was tested ***\n"
            );
            assert!(
                std::env::var_os("LOCKWOOD_REQUIRE_ENGINES").is_none(),
                "{PROGRAM} is required and missing"
            );
            return None;
        }
        let dir =
            tempfile::Builder::new().prefix("lockwood-redis-").tempdir().expect("a temporary directory");
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut server = Self { dir, port: 0, options, process: None };
        // Somebody else may take the port between the look and the start.
        for _ in 0..5 {
            server.port = free_port();
            if server.run() {
                return Some(server);
            }
        }
        panic!("{PROGRAM} does not start: {}", server.log());
    }

    /// Starts it again after [`RedisServer::stop`] or [`RedisServer::kill`].
    pub(crate) fn restart(&mut self) {
        assert!(self.process.is_none() && self.run(), "{PROGRAM} does not start again: {}", self.log());
    }

    fn run(&mut self) -> bool {
        let mut command = Command::new(program());
        command
            .args(["--bind", "127.0.0.1", "--save", "", "--logfile", "log", "--daemonize", "no"])
            .args(["--port".to_owned(), self.port.to_string()])
            .args(["--dir".as_ref(), self.dir.path().as_os_str()])
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let _ = std::fs::remove_file(self.dir.path().join("log")); // It may be the first time.
        let mut process = command.spawn().expect("the server starts");
        for _ in 0..LOOKS {
            // To connect proves nothing: somebody else may be there.
            if self.log().contains("Ready to accept connections") {
                self.process = Some(process);
                return true;
            }
            if !matches!(process.try_wait(), Ok(None)) {
                return false;
            }
            sleep(LOOK_EVERY);
        }
        let _ = process.kill();
        let _ = process.wait();
        false
    }

    /// Ends it as a machine's end would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// What a power cut now would leave of its files, at least. To be put back by [`RedisServer::lose_power`].
    pub(crate) fn on_disk(&self) -> TempDir {
        let kept = tempfile::tempdir().expect("a temporary directory");
        copy(self.dir.path(), kept.path());
        kept
    }

    /// Ends it as a power cut would that leaves this on its disk, and starts it again.
    pub(crate) fn lose_power(&mut self, kept: &TempDir) {
        self.kill();
        for entry in std::fs::read_dir(kept.path()).expect("the copy") {
            let name = entry.expect("an entry").file_name();
            let place = self.dir.path().join(&name);
            if place.is_dir() {
                std::fs::remove_dir_all(&place).expect("the files of the server");
            }
        }
        copy(kept.path(), self.dir.path());
        self.restart();
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The URL of a volume on it.
    pub(crate) fn url(&self, prefix: &str) -> String {
        format!("redis://127.0.0.1:{}/0?prefix={prefix}", self.port)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

fn program() -> OsString {
    std::env::var_os(PROGRAM_VARIABLE).unwrap_or_else(|| PROGRAM.into())
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            std::fs::create_dir_all(&target).expect("a directory");
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("a file");
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}
