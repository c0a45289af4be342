//! Taking a mount away while its server is: whatever its programs have left, nobody waits for long.

use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Held, hold, is_alive, lockwood, mount_entry, until, wait};
use crate::postgres::server::PostgresServer;
use crate::recovery::Lonely;
use crate::redis_server::RedisServer;

/// Much less than requests wait for a server that is away, where they do.
const SOON: Duration = Duration::from_secs(15);
/// As `-o hard`.
const PATIENT: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(2);

/// A server that can be taken away.
trait Server {
    fn die(&mut self);
    fn rise(&mut self);
}

impl Server for RedisServer {
    fn die(&mut self) {
        self.kill();
    }

    fn rise(&mut self) {
        self.restart();
    }
}

impl Server for PostgresServer {
    fn die(&mut self) {
        self.stop(true);
    }

    fn rise(&mut self) {
        self.run();
    }
}

/// By the log: who asks the mount before it knows waits for the server.
fn is_known_to_be_away(lonely: &Lonely) {
    until("it is known to be away", || lonely.log().contains("the store does not answer"));
}

/// The mount can be taken away soon, says what it leaves, and that is recovered.
fn unmount(lonely: &Lonely, session: &str, server: &mut dyn Server) {
    let begun = Instant::now();
    let once = || lockwood(["umount".as_ref(), lonely.point().as_os_str()]);
    let mut unmounted = once();
    // Who was there a moment ago may not have gone yet.
    while unmounted.stderr.contains("is in use") && begun.elapsed() < SOON {
        unmounted = once();
    }
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(unmounted.code, 0, "{}", unmounted.stderr);
    assert!(
        unmounted.stderr.contains("does not answer") && unmounted.stderr.contains(session),
        "{}",
        unmounted.stderr
    );
    assert!(mount_entry(&lonely.point()).is_none() && !is_alive(lonely.daemon()));
    server.rise();
    assert!(lonely.recover(&[]).ok().contains(&format!("session {session} (")));
    lonely.nothing_is_left();
}

fn over_redis(test: fn(String, &mut dyn Server)) {
    if let Some(mut server) = RedisServer::start() {
        test(server.url("volume"), &mut server);
    }
}

fn over_postgres(test: fn(String, &mut dyn Server)) {
    if let Some(mut server) = PostgresServer::start() {
        test(server.url("volume"), &mut server);
    }
}

fn without_its_server(url: String, server: &mut dyn Server) {
    let Some(lonely) = Lonely::mounted(url) else { return };
    let session = lonely.session();
    server.die();
    is_known_to_be_away(&lonely);
    unmount(&lonely, &session, server);
}

#[test]
fn a_mount_is_taken_away_without_its_server_over_redis() {
    over_redis(without_its_server);
}

#[test]
fn a_mount_is_taken_away_without_its_server_over_postgresql() {
    over_postgres(without_its_server);
}

/// Who holds a lock gives it back while the server is away, and that is tried for as long as requests wait.
fn after_a_hold(url: String, server: &mut dyn Server) {
    let Some(lonely) = Lonely::mounted_with(url, LEASE, PATIENT) else { return };
    let session = lonely.session();
    let held = Held::exclusive(&lonely.at("a/b"));
    server.die();
    is_known_to_be_away(&lonely);
    drop(held);
    unmount(&lonely, &session, server);
}

#[test]
fn a_lock_given_back_without_a_server_keeps_no_unmount_over_redis() {
    over_redis(after_a_hold);
}

#[test]
fn a_lock_given_back_without_a_server_keeps_no_unmount_over_postgresql() {
    over_postgres(after_a_hold);
}

/// The same, where who holds the lock is killed.
fn after_a_kill(url: String, server: &mut dyn Server) {
    let Some(lonely) = Lonely::mounted_with(url, LEASE, PATIENT) else { return };
    let session = lonely.session();
    let mut holder = hold(&lonely.at("a/b"), Stdio::null());
    server.die();
    is_known_to_be_away(&lonely);
    holder.kill().unwrap();
    // With it goes its command, which has the lock as well.
    drop(holder.stdin.take());
    wait(&mut holder, SOON).expect("who holds a lock can be killed");
    unmount(&lonely, &session, server);
}

#[test]
fn who_holds_a_lock_and_is_killed_without_a_server_keeps_no_unmount_over_redis() {
    over_redis(after_a_kill);
}

#[test]
fn who_holds_a_lock_and_is_killed_without_a_server_keeps_no_unmount_over_postgresql() {
    over_postgres(after_a_kill);
}

/// A rename asks for its locks several times, and lets go of what it may have got; together that is not waited for longer
/// than one request when the mount is gone.
#[test]
fn a_rename_that_waits_for_a_server_does_not_keep_a_mount_that_is_gone() {
    const PATIENCE: Duration = Duration::from_secs(5);
    let Some(mut server) = RedisServer::start() else { return };
    let Some(lonely) = Lonely::mounted_with(server.url("volume"), LEASE, PATIENCE) else { return };
    // The kernel knows the names for a moment, and asks for nothing else first.
    assert!(lonely.at("a/b").exists() && !lonely.at("a/c").exists());
    server.kill();
    let (from, to) = (lonely.at("a/b"), lonely.at("a/c"));
    let rename = std::thread::spawn(move || fs::rename(from, to));
    is_known_to_be_away(&lonely);
    let begun = Instant::now();
    lockwood(["umount".as_ref(), "--force".as_ref(), lonely.point().as_os_str()]).ok();
    rename.join().unwrap().unwrap_err();
    until("the daemon has ended", || !is_alive(lonely.daemon()));
    assert!(begun.elapsed() < PATIENCE * 4, "{:?}", begun.elapsed());
}

/// What a program has written and the store has not got is not given up with the mount.
#[test]
fn written_bytes_outlive_an_outage_at_an_unmount() {
    let Some(mut server) = RedisServer::start() else { return };
    let url = server.url("volume");
    let Some(mut lonely) = Lonely::mounted_as(url, LEASE, PATIENT, "write-back=1M") else { return };
    let mut file = File::options().write(true).open(lonely.at("f")).unwrap();
    file.seek(SeekFrom::Start(1)).unwrap();
    // Not this process: each that it starts would close the file, and wait until the bytes are sent.
    let mut writer = {
        let mut command = Command::new("sh");
        command.args(["-c", "read go; printf ' and more'; read end"]).stdin(Stdio::piped()).stdout(file);
        command.spawn().unwrap()
    };
    writer.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    until("the bytes are kept back", || lonely.status()["write_back"]["dirty_bytes"] == 9);
    server.kill();
    is_known_to_be_away(&lonely);
    lockwood(["umount".as_ref(), "--force".as_ref(), lonely.point().as_os_str()]).ok();
    // Longer than anybody waits who has nothing to send.
    std::thread::sleep(Duration::from_secs(8));
    assert!(is_alive(lonely.daemon()), "it waits until the server is back");
    server.restart();
    until("the daemon has ended", || !is_alive(lonely.daemon()));
    drop(writer.stdin.take());
    wait(&mut writer, SOON).expect("what it has open is of no use");
    lonely.mount();
    assert_eq!(fs::read_to_string(lonely.at("f")).unwrap(), "x and more");
}
