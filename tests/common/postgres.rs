//! A PostgreSQL server of a test's own: in a temporary directory, durable, stopped and removed when it is dropped.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const LOOK_EVERY: Duration = Duration::from_millis(20);
const START_MAX: Duration = Duration::from_secs(60);

/// A running server with a database and a superuser called `lockwood`, which needs no password from this machine.
pub(crate) struct PostgresServer {
    programs: PathBuf,
    user: Option<(u32, u32)>,
    directory: TempDir,
    port: u16,
    process: Option<Child>,
}

/// Where the newest PostgreSQL of this machine is, as Debian and as others install it.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    found.sort_by_key(|path| {
        let version = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        version.and_then(|version| version.parse::<u32>().ok())
    });
    found.reverse();
    found.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths));
    found
        .into_iter()
        .find(|path| ["initdb", "postgres", "psql", "pg_isready"].iter().all(|p| path.join(p).exists()))
}

/// The server refuses to run as root; then the user that the package made runs it.
fn server_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd.lines().find(|line| line.starts_with("postgres:")).expect("there is a user postgres");
    let fields: Vec<&str> = line.split(':').collect();
    Some((fields[2].parse().unwrap(), fields[3].parse().unwrap()))
}

impl PostgresServer {
    /// A new server; none, said loudly, if PostgreSQL is not installed.
    pub(crate) fn start() -> Option<Self> {
        let Some(programs) = programs() else {
            eprintln!(
                "SKIPPED: PostgreSQL is not installed; install it (Debian: postgresql) and run this again"
            );
            assert!(
                std::env::var_os("LOCKWOOD_REQUIRE_ENGINES").is_none(),
                "PostgreSQL is required and missing"
            );
            return None;
        };
        let mut server = Self::prepared(programs);
        let made = server
            .program("initdb")
            .args(["--auth=trust", "--username=lockwood", "--encoding=UTF8", "--locale=C", "--no-sync", "-D"])
            .arg(server.data())
            .output()
            .unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        server.run_somewhere();
        server.psql("postgres", "CREATE DATABASE lockwood");
        Some(server)
    }

    /// A standby of this server. When this returns, nothing is acknowledged that it has not.
    pub(crate) fn standby(&self) -> Self {
        let mut standby = Self::prepared(self.programs.clone());
        let copied = standby
            .program("pg_basebackup")
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "lockwood"])
            .args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "-D"])
            .arg(standby.data())
            .output()
            .unwrap();
        assert!(copied.status.success(), "pg_basebackup: {}", String::from_utf8_lossy(&copied.stderr));
        standby.run_somewhere();
        self.psql("lockwood", "ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.psql("lockwood", "SELECT pg_reload_conf()");
        let begun = Instant::now();
        while self.psql("lockwood", "SELECT sync_state FROM pg_stat_replication") != "sync" {
            assert!(begun.elapsed() < START_MAX, "it does not follow: {}", standby.said());
            std::thread::sleep(LOOK_EVERY);
        }
        standby
    }

    /// Makes a primary of a standby.
    pub(crate) fn promote(&self) {
        assert_eq!(self.psql("lockwood", "SELECT pg_promote()"), "t", "{}", self.said());
    }

    /// A place for a server, with nothing in it yet.
    fn prepared(programs: PathBuf) -> Self {
        let directory = tempfile::Builder::new().prefix("lockwood-postgres-").tempdir().unwrap();
        let user = server_user();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        if let Some((uid, gid)) = user {
            chown(directory.path(), Some(uid), Some(gid)).unwrap();
        }
        Self { programs, user, directory, port: 0, process: None }
    }

    /// Starts it for the first time, on a free port: somebody else may take that between the look and the start.
    fn run_somewhere(&mut self) {
        for _ in 0..5 {
            self.port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
            if self.try_run() {
                return;
            }
        }
        panic!("it does not start: {}", self.said());
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.current_dir(self.directory.path());
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Starts it again, and waits until it answers.
    pub(crate) fn run(&mut self) {
        assert!(self.try_run(), "it does not start: {}", self.said());
    }

    fn try_run(&mut self) -> bool {
        let log = fs::File::options().append(true).create(true).open(self.log()).unwrap();
        let process = self
            .program("postgres")
            .arg("-D")
            .arg(self.data())
            .args(["-p", &self.port.to_string(), "-h", "127.0.0.1", "-k"])
            .arg(self.directory.path())
            .args(["-c", "fsync=on", "-c", "full_page_writes=on", "-c", "synchronous_commit=on"])
            .args(["-c", "max_connections=200", "-c", "deadlock_timeout=200ms"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        // Asked by its own socket: on the port another server may answer.
        let mut ready = self.program("pg_isready");
        ready.arg("-q").arg("-h").arg(self.directory.path()).args(["-p", &self.port.to_string()]);
        let process = self.process.insert(process);
        let begun = Instant::now();
        while begun.elapsed() < START_MAX {
            if ready.status().unwrap().success() {
                return true;
            }
            if !matches!(process.try_wait(), Ok(None)) {
                self.process = None;
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        false
    }

    /// Ends it: at once with all that is under way, or as a crash does.
    pub(crate) fn stop(&mut self, crash: bool) {
        let Some(mut process) = self.process.take() else { return };
        let pid = rustix::process::Pid::from_child(&process);
        // Immediate shutdown ends all processes without a checkpoint, so that the next start recovers as after a crash.
        let signal = if crash { rustix::process::Signal::QUIT } else { rustix::process::Signal::INT };
        let _ = rustix::process::kill_process(pid, signal);
        let _ = process.wait();
    }

    fn said(&self) -> String {
        fs::read_to_string(self.log()).unwrap()
    }

    /// Where what the server says is kept.
    pub(crate) fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// Its port on 127.0.0.1.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The directory of its socket.
    pub(crate) fn socket_directory(&self) -> &Path {
        self.directory.path()
    }

    /// The URL of a volume in this schema.
    pub(crate) fn url(&self, schema: &str) -> String {
        self.url_through(self.port, schema)
    }

    /// The same through another port.
    pub(crate) fn url_through(&self, port: u16, schema: &str) -> String {
        format!("postgres://lockwood@127.0.0.1:{port}/lockwood?schema={schema}")
    }

    /// Lets people in by other rules, the first of which is this line of pg_hba.conf.
    pub(crate) fn allow_first(&self, rule: &str) {
        let file = self.data().join("pg_hba.conf");
        let rules = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{rule}\n{rules}")).unwrap();
        self.psql("lockwood", "SELECT pg_reload_conf()");
    }

    /// From now on it offers TLS, with copies of this certificate and its key.
    pub(crate) fn speak_tls(&self, certificate: &Path, key: &Path) {
        for (setting, from) in [("ssl_cert_file", certificate), ("ssl_key_file", key)] {
            let own = self.directory.path().join(setting);
            fs::copy(from, &own).unwrap();
            fs::set_permissions(&own, fs::Permissions::from_mode(0o600)).unwrap();
            if let Some((uid, gid)) = self.user {
                chown(&own, Some(uid), Some(gid)).unwrap();
            }
            self.psql("lockwood", &format!("ALTER SYSTEM SET {setting} = '{}'", own.display()));
        }
        self.psql("lockwood", "ALTER SYSTEM SET ssl = on");
        self.psql("lockwood", "SELECT pg_reload_conf()");
        // The server takes it over soon.
        let begun = Instant::now();
        while self.psql("lockwood", "SHOW ssl") != "on" {
            assert!(begun.elapsed() < START_MAX, "it does not offer TLS: {}", self.said());
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// What psql prints, without decoration.
    pub(crate) fn psql(&self, database: &str, sql: &str) -> String {
        let output = self
            .program("psql")
            .args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", "lockwood"])
            .args(["-p", &self.port.to_string(), "-d", database, "-c", sql])
            .output()
            .unwrap();
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.stop(true);
    }
}
