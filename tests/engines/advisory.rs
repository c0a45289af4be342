//! Advisory locks over real servers: two mounts, each a daemon of its own as on two hosts, and processes that lock files of
//! both against each other.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use serde_json::Value;

use crate::common::excluded::exclude;
use crate::common::locker::Locker;
use crate::common::{LIMIT, lockwood, signal, until};
use crate::two::{Two, over_postgres, over_redis};

#[test]
fn locks_exclude_processes_of_two_hosts_over_postgresql() {
    over_postgres(|two, _| {
        exclude(&two.file(0), &two.file(1));
        two.finish();
    });
}

#[test]
fn locks_exclude_processes_of_two_hosts_over_redis() {
    over_redis(|two| {
        exclude(&two.file(0), &two.file(1));
        two.finish();
    });
}

/// The daemon dies with a lock held; whoever waits for it on the other mount goes on, and nothing is left.
fn a_dead_host_loses_its_locks(two: &mut Two) {
    let (mut one, mut other) = (Locker::at(&two.file(0)), Locker::at(&two.file(1)));
    assert_eq!(one.ask("flock a ex"), "ok");
    assert_eq!(one.ask("fcntl a wr 3 4"), "ok");
    other.say("flock a ex wait");
    assert_eq!(other.answer(Duration::from_millis(300)), None);
    signal(two.daemons[0], Signal::KILL);
    assert_eq!(other.answer(LIMIT).as_deref(), Some("ok"));
    assert_eq!(other.ask("fcntl a wr 0 0"), "ok");
    two.clean();
    drop((one, other));
    unmount(two.point(0), UnmountFlags::DETACH).unwrap();
    two.mount(0);
}

/// A session that is declared dead while its daemon runs loses its locks and gets none any more.
fn a_fenced_host_loses_its_locks(two: &mut Two) {
    let (mut one, mut other) = (Locker::at(&two.file(0)), Locker::at(&two.file(1)));
    assert_eq!(one.ask("fcntl a wr 0 0"), "ok");
    other.say("fcntl a wr 0 0 wait");
    let session = two.status(0)["session"].as_str().unwrap().to_owned();
    let point = two.point(1);
    lockwood([OsStr::new("break"), point.as_os_str(), OsStr::new(&session), OsStr::new("--force")]).ok();
    assert_eq!(other.answer(LIMIT).as_deref(), Some("ok"));
    assert_eq!(one.ask("flock a sh"), format!("errno {}", libc::EIO));
    two.clean();
    drop((one, other));
    until("the mount can go", || lockwood([OsStr::new("umount"), two.point(0).as_os_str()]).code == 0);
    two.mount(0);
}

fn ino(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

#[test]
fn hosts_that_die_lose_their_locks_over_redis() {
    over_redis(|mut two| {
        a_dead_host_loses_its_locks(&mut two);
        a_fenced_host_loses_its_locks(&mut two);
        two.finish();
    });
}

#[test]
fn hosts_that_die_lose_their_locks_and_anybody_can_read_who_has_which_over_postgresql() {
    over_postgres(|mut two, psql| {
        a_dead_host_loses_its_locks(&mut two);
        a_fenced_host_loses_its_locks(&mut two);
        let mut one = Locker::at(&two.file(0));
        assert_eq!(one.ask("fcntl a wr 3 4"), "ok");
        assert_eq!(one.ask("flock a sh"), "ok");
        let (ino, pid) = (ino(&two.file(0)), one.pid());
        let row = "SELECT family, mode, first_byte, last_byte, pid FROM volume.advisory_lock ORDER BY family";
        let to_the_end = i64::MAX;
        assert_eq!(psql(row), format!("fcntl|exclusive|3|6|{pid}\nflock|shared|0|{to_the_end}|{pid}"));
        let text: Value = serde_json::from_str(&two.get(&format!("advisory:{ino}")).ok()).unwrap();
        let locks = text["document"]["advisory"]["locks"].as_array().unwrap();
        assert_eq!((locks.len(), &locks[0]["session"]), (2, &two.status(0)["session"]));
        drop(one);
        two.finish();
    });
}
