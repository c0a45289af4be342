//! Recovery and fencing by the URL of a volume, with no mount that could do it: over real servers and real daemons that die,
//! stand still or live on.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::lines::Lines;
use crate::common::locker::Locker;
use crate::common::{
    BINARY, Held, Mounted, Ran, can_mount, is_alive, kill_daemons, lockwood, mount_entry, run, signal,
    signal_if_there, until, wait,
};
use crate::postgres::server::PostgresServer;
use crate::redis_server::RedisServer;
use crate::two::Two;

/// A volume that one daemon has mounted, so that nobody recovers what it leaves.
pub(crate) struct Lonely {
    url: String,
    /// With which it is mounted.
    lease: Duration,
    soft: Duration,
    more: &'static str,
    dir: TempDir,
    daemons: Vec<u32>,
}

impl Lonely {
    pub(crate) fn mounted(url: String) -> Option<Self> {
        Self::mounted_with(url, Duration::from_secs(2), Duration::from_secs(1))
    }

    pub(crate) fn mounted_with(url: String, lease: Duration, soft: Duration) -> Option<Self> {
        Self::mounted_as(url, lease, soft, "rw")
    }

    pub(crate) fn mounted_as(
        url: String,
        lease: Duration,
        soft: Duration,
        more: &'static str,
    ) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        lockwood(["format", &url]).ok();
        let mut lonely =
            Self { url, lease, soft, more, dir: tempfile::tempdir().unwrap(), daemons: Vec::new() };
        fs::create_dir(lonely.point()).unwrap();
        lonely.mount();
        fs::create_dir_all(lonely.at("a/b")).unwrap();
        fs::write(lonely.at("f"), b"x").unwrap();
        Some(lonely)
    }

    pub(crate) fn point(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.point().join(path)
    }

    /// Mounts it; returns the session.
    pub(crate) fn mount(&mut self) -> String {
        let point = self.point();
        let log = self.dir.path().join("log");
        let options = format!(
            "lease={},soft={},log={},{}",
            self.lease.as_secs(),
            self.soft.as_secs(),
            log.display(),
            self.more
        );
        let words = ["mount", &self.url].map(OsStr::new);
        lockwood([&words[..], &[point.as_os_str(), OsStr::new("-o"), OsStr::new(&options)]].concat()).ok();
        let status = self.status();
        self.daemons.push(status["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap());
        status["session"].as_str().unwrap().to_owned()
    }

    pub(crate) fn status(&self) -> Value {
        json(&fs::read_to_string(self.at(".lockwood/status")).unwrap())
    }

    pub(crate) fn session(&self) -> String {
        let all = json(&lockwood(["sessions", &self.url, "--json"]).ok());
        assert_eq!(all.as_array().unwrap().len(), 1, "{all}");
        all[0]["id"].as_str().unwrap().to_owned()
    }

    pub(crate) fn daemon(&self) -> u32 {
        *self.daemons.last().unwrap()
    }

    pub(crate) fn recover(&self, words: &[&str]) -> Ran {
        lockwood([&["recover", &self.url], words].concat())
    }

    fn break_by_url(&self, words: &[&str]) -> Ran {
        lockwood([&["break", &self.url], words].concat())
    }

    pub(crate) fn nothing_is_left(&self) {
        assert_eq!(json(&lockwood(["sessions", &self.url, "--json"]).ok()), Value::Array(Vec::new()));
        assert_eq!(json(&self.locks()), Value::Array(Vec::new()));
        let words = lockwood(["check", &self.url]).ok();
        assert!(words.contains("clean"), "{words}");
    }

    fn locks(&self) -> String {
        lockwood(["locks", &self.url, "--advisory", "--json"]).ok()
    }

    /// What its daemons have logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    fn unmount_what_is_dead(&self) {
        while mount_entry(&self.point()).is_some() {
            unmount(self.point(), UnmountFlags::DETACH).unwrap();
        }
    }
}

impl Drop for Lonely {
    fn drop(&mut self) {
        let point = self.point();
        while mount_entry(&point).is_some() && unmount(&point, UnmountFlags::DETACH).is_ok() {}
        kill_daemons(&self.daemons);
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// A process that has a file open which has no name. Not this one: every program that it started would close the file first,
/// and wait for a daemon that stands still.
struct Open(Child);

impl Open {
    fn unlinked(path: &Path) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", r#"exec 3>"$0" && rm "$0" && echo open && read end"#]).arg(path);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        assert_eq!(Lines::of(child.stdout.take().unwrap()).line(), "open");
        Self(child)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ended = wait(&mut self.0, Duration::from_secs(10));
    }
}

/// A process that stands still until this is dropped.
struct Still(u32);

impl Still {
    fn stands(pid: u32) -> Self {
        signal(pid, Signal::STOP);
        Self(pid)
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        signal_if_there(self.0, Signal::CONT);
    }
}

/// What a session leaves that ends badly: a tree lock, advisory locks, and a file that is open and has no name.
fn hold_everything(lonely: &Lonely) -> (Held, Locker, Open) {
    let held = Held::exclusive(&lonely.at("a/b"));
    let mut locker = Locker::at(&lonely.at("f"));
    assert_eq!(locker.ask("flock a ex"), "ok");
    assert_eq!(locker.ask("fcntl a wr 3 4"), "ok");
    let open = Open::unlinked(&lonely.at("gone"));
    // Both kinds of locks are to be seen, by the mount and by the URL alike.
    for target in [lonely.url.clone(), lonely.point().to_str().unwrap().to_owned()] {
        let all = json(&lockwood(["locks", &target, "--advisory", "--json"]).ok());
        let types: Vec<_> =
            all.as_array().unwrap().iter().map(|lock| lock["type"].as_str().unwrap()).collect();
        assert_eq!(types, ["tree", "tree", "advisory"], "{all}");
        assert_eq!(all[2]["locks"].as_array().unwrap().len(), 2, "{all}");
        let words = lockwood(["locks", &target, "--advisory"]).ok();
        assert!(words.contains("flock") && words.contains("3-6") && words.contains("/a/b"), "{words}");
        assert_eq!(json(&lockwood(["locks", &target, "--json"]).ok()).as_array().unwrap().len(), 2);
    }
    (held, locker, open)
}

/// What was reported of a session that had all that.
fn assert_everything_was_let_go(report: &Value, session: &str) {
    let done = &report["recovered"][0];
    assert_eq!((&done["session"]["id"], report["recovered"].as_array().unwrap().len()), (&session.into(), 1));
    assert_eq!((&done["advisory_locks"], &done["files"]), (&2.into(), &1.into()), "{report}");
    let held: Vec<_> = done["operations"][0]["holds"].as_array().unwrap().iter().collect();
    assert_eq!(held.len(), 2, "{report}");
}

/// A host that dies, one that stands still and one that lives.
pub(crate) fn recover_by_url(mut lonely: Lonely) {
    // It lives: left alone, and said so.
    let session = lonely.session();
    let words = lonely.recover(&[]).ok();
    assert!(words.contains("nothing to recover") && words.contains(&format!("{session} (")), "{words}");
    let refused = lonely.recover(&[&session]);
    assert!(refused.stderr.contains("lives and was left alone"), "{}", refused.stderr);
    assert_eq!(refused.code, 1);
    assert!(lonely.recover(&["00000000000000ab"]).refused().contains("no session 00000000000000ab"));
    fs::write(lonely.at("f"), b"y").unwrap();
    let at_the_mount = run(Command::new(BINARY).arg("recover").arg(lonely.point())).ok();
    assert!(at_the_mount.contains("lives and is left alone"), "{at_the_mount}");

    // Its process is gone, and was of this host: nothing is waited for.
    let left = hold_everything(&lonely);
    signal(lonely.daemon(), Signal::KILL);
    until("it is dead", || !is_alive(lonely.daemon()));
    let told = lonely.recover(&["--json"]);
    assert!(!told.stderr.contains("watching for a heartbeat"), "{}", told.stderr);
    assert_everything_was_let_go(&json(&told.ok()), &session);
    lonely.nothing_is_left();
    lonely.unmount_what_is_dead();
    drop(left);
    assert_eq!(lonely.recover(&[]).ok(), "nothing to recover\n");

    // It stands still: it is waited for, for a lease, and comes too late.
    let session = lonely.mount();
    let left = hold_everything(&lonely);
    let still = Still::stands(lonely.daemon());
    let begun = Instant::now();
    let told = lonely.recover(&["--json"]);
    assert!(begun.elapsed() >= lonely.lease, "{:?}", begun.elapsed());
    assert!(told.stderr.contains("watching for a heartbeat"), "{}", told.stderr);
    assert_everything_was_let_go(&json(&told.ok()), &session);
    lonely.nothing_is_left();
    drop(still);
    assert_eq!(fs::create_dir(lonely.at("late")).unwrap_err().raw_os_error(), Some(libc::EIO));
    drop(left);
    until("the mount can go", || lockwood([OsStr::new("umount"), lonely.point().as_os_str()]).code == 0);
    lonely.nothing_is_left();
}

/// Sessions that live are fenced, by their id and by what they hold.
pub(crate) fn break_by_url(mut lonely: Lonely) {
    let session = lonely.session();
    let left = hold_everything(&lonely);
    // Nothing is done unless it is said clearly.
    let refused = lonely.break_by_url(&[&session]).refused();
    assert!(refused.contains("is at work") && refused.contains("--force fences it"), "{refused}");
    let refused = lonely.break_by_url(&["/a/b"]).refused();
    assert!(refused.contains("lock /a/b") && refused.contains(&session), "{refused}");
    assert!(refused.contains("--session --force fences the sessions that hold it"), "{refused}");
    let refused = lonely.break_by_url(&["/a/b", "--force"]).refused();
    assert!(refused.contains("--session fences the sessions that hold it"), "{refused}");
    assert!(lonely.break_by_url(&["/nobody", "--force"]).refused().contains("no lock"));
    assert!(lonely.break_by_url(&["00000000000000ab", "--force"]).refused().contains("no session"));
    assert_eq!(lonely.session(), session);
    fs::write(lonely.at("f"), b"y").unwrap();

    let told = lonely.break_by_url(&[&session, "--force"]).ok();
    assert!(told.contains("is fenced") && told.contains("released /a (shared), /a/b (exclusive)"), "{told}");
    assert_eq!(fs::write(lonely.at("f"), b"z").unwrap_err().raw_os_error(), Some(libc::EIO));
    lonely.nothing_is_left();
    drop(left);
    until("the mount can go", || lockwood([OsStr::new("umount"), lonely.point().as_os_str()]).code == 0);

    let session = lonely.mount();
    let held = Held::exclusive(&lonely.at("a/b"));
    let report = json(&lonely.break_by_url(&["/a/b", "--session", "--force", "--json"]).ok());
    let fenced = &report["sessions"][0];
    assert_eq!((&fenced["session"], &fenced["before"]), (&session.as_str().into(), &false.into()));
    lonely.nothing_is_left();
    drop(held);
    until("the mount can go", || lockwood([OsStr::new("umount"), lonely.point().as_os_str()]).code == 0);
}

fn over_postgres(test: impl FnOnce(Lonely)) {
    let Some(server) = PostgresServer::start() else { return };
    if let Some(lonely) = Lonely::mounted(server.url("volume")) {
        test(lonely);
    }
}

fn over_redis(test: impl FnOnce(Lonely)) {
    let Some(server) = RedisServer::start() else { return };
    if let Some(lonely) = Lonely::mounted(server.url("volume")) {
        test(lonely);
    }
}

#[test]
fn what_the_dead_left_is_recovered_by_url_and_the_living_are_left_alone_over_redis() {
    over_redis(recover_by_url);
}

#[test]
fn what_the_dead_left_is_recovered_by_url_and_the_living_are_left_alone_over_postgresql() {
    over_postgres(recover_by_url);
}

#[test]
fn the_living_are_fenced_by_url_over_redis() {
    over_redis(break_by_url);
}

#[test]
fn the_living_are_fenced_by_url_over_postgresql() {
    over_postgres(break_by_url);
}

#[test]
fn a_store_in_a_directory_is_recovered_as_the_next_mount_would() {
    let Some(mounted) = Mounted::new() else { return };
    let store = mounted.store.clone();
    let recover = |target: &OsStr| run(Command::new(BINARY).arg("recover").arg(target));
    let words = recover(mounted.mount_point.as_os_str()).ok();
    assert!(words.contains("nothing to recover") && words.contains("lives and is left alone"), "{words}");
    let open = File::create_new(mounted.path("gone")).unwrap();
    fs::remove_file(mounted.path("gone")).unwrap();
    signal(mounted.pid(), Signal::KILL);
    until("it is dead", || !is_alive(mounted.pid()));
    unmount(&mounted.mount_point, UnmountFlags::DETACH).unwrap();
    drop(open);
    let named = run(Command::new(BINARY).arg("recover").arg(&store).arg("00000000000000ab")).refused();
    assert!(named.contains("as a whole"), "{named}");
    let words = recover(store.as_os_str()).ok();
    assert!(words.contains("was dead") && words.contains("1 files removed"), "{words}");
    assert_eq!(recover(store.as_os_str()).ok(), "nothing to recover\n");
    let words = lockwood([OsStr::new("check"), store.as_os_str()]).ok();
    assert!(words.contains("clean") && !words.contains("leftovers"), "{words}");
}

/// Somebody has written into two documents by hand: a lock, and a session. Nobody else has to suffer for it.
#[test]
fn what_is_damaged_keeps_nobody_from_recovering_the_others() {
    let Some(server) = RedisServer::start() else { return };
    let Some(mut lonely) = Lonely::mounted(server.url("v")) else { return };
    let written = |words: &[&str]| {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &server.port().to_string()]).args(words);
        let answer = run(&mut command).ok();
        assert!(!answer.contains("ERR"), "{answer}");
    };
    let dead = lonely.session();
    let held = Held::exclusive(&lonely.at("a/b"));
    let damaged = "00000000000000ab";
    written(&["HSET", "{v}:lock:%2Fdamaged", "version", "1", "holders", "nonsense"]);
    written(&["HSET", &format!("{{v}}:session:{damaged}"), "version", "1", "host", "nobody"]);
    written(&["ZADD", "{v}:index:session", "0", damaged]);
    written(&["ZADD", "{v}:index:lock", "0", "%2Fdamaged"]);
    signal(lonely.daemon(), Signal::KILL);
    drop(held);
    lonely.unmount_what_is_dead();
    // The next mount cleans up after the dead one.
    lonely.mount();
    until("the dead session is gone", || !lockwood(["sessions", &lonely.url]).ok().contains(&dead));
    fs::rename(lonely.at("a/b"), lonely.at("a/c")).unwrap();
    let shown = lockwood(["locks", &lonely.url]);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert!(shown.stderr.contains("%2Fdamaged"), "{}", shown.stderr);
    let refused = lonely.break_by_url(&[damaged]).refused();
    assert!(refused.contains("damaged") && refused.contains("--force"), "{refused}");
    lonely.break_by_url(&[damaged, "--force"]).ok();
    let shown = lockwood(["sessions", &lonely.url]);
    assert!(!shown.stderr.contains(damaged) && !shown.stdout.contains(damaged), "{}", shown.stderr);
}

/// It stayed until the mount ended: nobody closes it once more.
#[test]
fn a_file_without_a_name_goes_though_the_server_is_away_at_its_last_close() {
    const AWAY: Duration = Duration::from_secs(5);
    let Some(server) = RedisServer::start() else { return };
    let Some(two) = Two::mounted_with(server.url("volume"), ["soft=1", "rw"]) else { return };
    let path = two.point(0).join("g");
    let mut file = File::create_new(&path).unwrap();
    file.write_all(&vec![b'x'; 1 << 20]).unwrap();
    let ino = file.metadata().unwrap().ino();
    fs::remove_file(&path).unwrap();
    let documents = [format!("orphan:{ino}"), format!("node:{ino}"), format!("chunk:{ino}:7")];
    let there = || documents.iter().filter(|document| two.get(document).code == 0).count();
    assert_eq!(there(), 3);
    let (port, away) = (server.port().to_string(), AWAY.as_millis().to_string());
    run(Command::new("redis-cli").args(["-p", &port, "CLIENT", "PAUSE", &away, "ALL"])).ok();
    drop(file);
    std::thread::sleep(AWAY);
    until("nothing of it is left", || there() == 0);
    two.finish();
}
