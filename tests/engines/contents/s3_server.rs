//! An S3 server of a test's own: on a free port of this host, with its data in a temporary directory, gone when it is
//! dropped. It is `s3s-fs` from crates.io, which `scripts/test --long` installs.

use std::ffi::OsString;
use std::fs;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use tempfile::TempDir;

use crate::redis_server::free_port;

/// Names the program where it is not in the `PATH`; then it must be there.
const PROGRAM: &str = "LOCKWOOD_S3_SERVER";

pub(super) const KEY: &str = "ada";
pub(super) const SECRET: &str = "s3cret-of-the-objects";
pub(super) const BUCKET: &str = "trees";

/// A running server with a bucket.
pub(super) struct S3Server {
    dir: TempDir,
    program: OsString,
    pub(super) port: u16,
    process: Option<Child>,
}

impl S3Server {
    /// None, and a loud line, if there is no such program on this host.
    pub(super) fn start() -> Option<Self> {
        let named = std::env::var_os(PROGRAM);
        let program = named.clone().unwrap_or_else(|| "s3s-fs".into());
        if Command::new(&program).arg("--version").stdout(Stdio::null()).status().is_err() {
            assert!(named.is_none(), "{PROGRAM} names {}, which does not run", program.display());
            eprintln!(
                "\n*** SKIPPED: s3s-fs is not installed (scripts/test --long does it); nothing was tested ***\n"
            );
            return None;
        }
        let dir = tempfile::Builder::new().prefix("lockwood-s3-").tempdir().unwrap();
        fs::create_dir(dir.path().join(BUCKET)).unwrap();
        let mut server = Self { dir, program, port: free_port(), process: None };
        server.run();
        Some(server)
    }

    /// Starts it again, where it was, after [`S3Server::kill`].
    pub(super) fn run(&mut self) {
        let mut command = Command::new(&self.program);
        command.args(["--host", "127.0.0.1", "--access-key", KEY, "--secret-key", SECRET]);
        command.args(["--port", &self.port.to_string()]).arg(self.dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(command.spawn().unwrap());
        for _ in 0..500 {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return;
            }
            sleep(Duration::from_millis(20));
        }
        panic!("s3s-fs does not start");
    }

    pub(super) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.kill();
    }
}
