//! Real mounts whose locks are on servers of their own: what people see, what they do not see, and holders that die or stand
//! still. Needs root and /dev/fuse, and says so where they are missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::volume::format;
use crate::common::{Held, can_mount, is_alive, lockwood, program, run, signal, umount, until};
use crate::redis_server::RedisServer;

const SECRET: &str = "s3cret-of-the-locks";
const LEASE_S: u64 = 2;
const LOCK_WAIT_S: u64 = 8;

/// Two mounts of one volume, and the servers of both kinds.
struct Mounts {
    points: [PathBuf; 2],
    dir: TempDir,
    url: String,
    list: String,
    servers: Vec<RedisServer>,
}

impl Mounts {
    fn new() -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let (store, url) = format()?;
        let options = ["--appendonly", "no", "--requirepass", SECRET];
        let mut servers: Vec<_> = (0..3).map_while(|_| RedisServer::start_with(&options)).collect();
        let hosts: Vec<_> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
        servers.push(store);
        let dir = tempfile::Builder::new().prefix("lockwood-redlock-").tempdir().unwrap();
        let points = ["one", "other"].map(|name| dir.path().join(name));
        points.iter().for_each(|point| fs::create_dir(point).unwrap());
        let mounts = Self { points, dir, url, list: hosts.join(","), servers };
        // One password in an argument, the other in the environment.
        mounts.mount(0, &["--locks", &format!("redis://:{SECRET}@{}", mounts.list)]).ok();
        let named: Vec<_> = hosts.iter().rev().map(|host| format!("locks=redis://{host}")).collect();
        mounts.mount(1, &["-o", &named.join(",")]).ok();
        Some(mounts)
    }

    fn log(&self, at: usize) -> PathBuf {
        self.dir.path().join(format!("log{at}"))
    }

    fn mount(&self, at: usize, locks: &[&str]) -> crate::common::Ran {
        let options =
            format!("allow-volatile,lease={LEASE_S},lock_wait={LOCK_WAIT_S},log={}", self.log(at).display());
        let mut command = command();
        command.args(["mount", &self.url]).arg(&self.points[at]).args(["-o", &options]).args(locks);
        run(&mut command)
    }

    fn at(&self, mount: usize, path: &str) -> PathBuf {
        self.points[mount].join(path)
    }

    fn pid(&self, mount: usize) -> u32 {
        let status: Value = serde_json::from_str(&status(&self.points[mount])).unwrap();
        status["pid"].as_u64().unwrap().try_into().unwrap()
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for point in &self.points {
            program("umount", &["-l".as_ref(), point.as_os_str()]);
        }
    }
}

/// The command, with the password where nobody else can read it.
fn command() -> std::process::Command {
    let mut command = std::process::Command::new(crate::common::BINARY);
    command.env("LOCKWOOD_LOCKS_PASSWORD", SECRET);
    command
}

fn status(point: &Path) -> String {
    lockwood(["status".as_ref(), point.as_os_str(), "--json".as_ref()]).ok()
}

fn locks(target: &Path) -> Vec<String> {
    let mut command = command();
    let text = run(command.arg("locks").arg(target).arg("--json")).ok();
    let documents: Value = serde_json::from_str(&text).unwrap();
    documents
        .as_array()
        .unwrap()
        .iter()
        .map(|lock| format!("{} {}", lock["lock_type"], lock["path"]))
        .collect()
}

/// Servers that were started just now do not count for two leases: the first rename waits for them.
fn settle(mounts: &Mounts) {
    fs::create_dir_all(mounts.at(0, "a/b")).unwrap();
    fs::create_dir(mounts.at(0, "c")).unwrap();
    fs::rename(mounts.at(0, "c"), mounts.at(0, "d")).unwrap();
    until("the other mount sees it", || mounts.at(1, "d").exists());
}

#[test]
fn locks_are_seen_by_all_and_passwords_by_nobody() {
    let Some(mounts) = Mounts::new() else { return };
    settle(&mounts);
    let held = Held::exclusive(&mounts.at(0, "a/b"));
    let expected = [r#""shared" "/a""#, r#""exclusive" "/a/b""#];
    for target in [&mounts.points[0], &mounts.points[1], Path::new(&mounts.url)] {
        assert_eq!(locks(target), expected, "{}", target.display());
    }
    drop(held);
    assert_eq!(locks(&mounts.points[1]), [""; 0]);
    let status = status(&mounts.points[0]);
    assert!(mounts.list.split(',').all(|host| status.contains(host)), "{status}");
    // Another place for the locks, or none.
    fs::create_dir(mounts.dir.path().join("third")).unwrap();
    let third = mounts.dir.path().join("third");
    for locks in [&[][..], &["--locks", "redis://127.0.0.1:1"]] {
        let mut command = command();
        command.args(["mount", &mounts.url]).arg(&third).args(["-o", "allow-volatile"]).args(locks);
        let refused = run(&mut command).refused();
        assert!(refused.contains("must name the same lock servers"), "{refused}");
    }
    let store = mounts.dir.path().join("store");
    lockwood(["format".as_ref(), store.as_os_str()]).ok();
    let mut own = command();
    own.arg("mount").arg(&store).arg(&third).args(["--locks", &format!("redis://:{SECRET}@127.0.0.1")]);
    let refused = run(&mut own).refused();
    assert!(refused.contains("one owner") && !refused.contains(SECRET), "{refused}");
    // What other users can read, and what is written down.
    let mut seen = fs::read_to_string("/proc/self/mounts").unwrap() + &status;
    for at in [0, 1] {
        seen += &String::from_utf8_lossy(&fs::read(format!("/proc/{}/cmdline", mounts.pid(at))).unwrap());
        seen += &fs::read_to_string(mounts.log(at)).unwrap();
    }
    assert!(seen.contains("--locks") && !seen.contains(SECRET), "{seen}");
    for point in &mounts.points {
        umount(point);
    }
}

#[test]
fn what_a_killed_mount_held_is_free_at_once_on_its_own_host() {
    let Some(mounts) = Mounts::new() else { return };
    settle(&mounts);
    let pid = mounts.pid(0);
    let held = Held::exclusive(&mounts.at(0, "a"));
    signal(pid, Signal::KILL);
    let begun = Instant::now();
    fs::rename(mounts.at(1, "a"), mounts.at(1, "moved")).unwrap();
    let waited = begun.elapsed();
    assert!(waited < Duration::from_secs(LEASE_S), "{waited:?}");
    assert!(!is_alive(pid));
    drop(held);
    lockwood(["check".as_ref(), mounts.points[1].as_os_str()]).ok();
    umount(&mounts.points[1]);
}

#[test]
fn without_a_majority_renames_fail_and_say_why_and_all_else_goes_on() {
    let Some(mut mounts) = Mounts::new() else { return };
    settle(&mounts);
    for at in [0, 2] {
        mounts.servers[at].kill();
    }
    let (from, to) = (mounts.at(1, "d"), mounts.at(1, "e"));
    let begun = Instant::now();
    let error = fs::rename(&from, &to).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    assert!(begun.elapsed() >= Duration::from_secs(LOCK_WAIT_S), "{:?}", begun.elapsed());
    let log = fs::read_to_string(mounts.log(1)).unwrap();
    assert!(log.contains("1 of 3 lock servers answer, and 2 must"), "{log}");
    fs::write(mounts.at(1, "d/file"), b"x").unwrap();
    let sessions = lockwood(["sessions".as_ref(), mounts.points[1].as_os_str(), "--json".as_ref()]).ok();
    assert_eq!(sessions.matches("\"mount_point\"").count(), 2, "{sessions}");
    mounts.servers[0].restart();
    fs::rename(&from, &to).unwrap();
    for point in &mounts.points {
        umount(point);
    }
}

/// The real thing: a process that stands still for longer than its locks last, and wakes up.
#[test]
fn a_mount_that_stood_still_for_too_long_changes_nothing() {
    let Some(mounts) = Mounts::new() else { return };
    settle(&mounts);
    let pid = mounts.pid(0);
    let held = Held::exclusive(&mounts.at(0, "a"));
    signal(pid, Signal::STOP);
    let begun = Instant::now();
    fs::rename(mounts.at(1, "a"), mounts.at(1, "moved")).unwrap();
    let waited = begun.elapsed();
    // It was declared dead before anybody else got its locks.
    signal(pid, Signal::CONT);
    assert!(waited >= Duration::from_secs(1) && waited < Duration::from_secs(LEASE_S + 8), "{waited:?}");
    let error = fs::create_dir(mounts.at(0, "zombie")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    drop(held);
    lockwood(["check".as_ref(), mounts.points[1].as_os_str()]).ok();
    umount(&mounts.points[0]);
    umount(&mounts.points[1]);
}
