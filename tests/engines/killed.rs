//! A daemon that is killed while one of its threads waits in the kernel: its programs are told so, and it ends.
//!
//! What is hard: no signal reaches that thread. It is to tell the kernel of a name in a directory whose lock a program holds
//! that waits for the daemon's answer, so each waits for the other until somebody ends the connection.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Held, is_alive, lockwood, mount_entry, signal, until, wait};
use crate::two::{Two, over_redis};

/// A daemon with such a thread.
struct Stuck {
    /// A rename in its mount, which waits for [`Stuck::held`].
    rename: Child,
    held: Held,
    daemon: u32,
}

impl Stuck {
    fn at_first(two: &Two) -> Self {
        let (here, there) = (two.point(0), two.point(1));
        for directory in ["from", "held"] {
            fs::create_dir(here.join(directory)).unwrap();
        }
        for file in ["from/moved", "from/removed"] {
            File::create_new(here.join(file)).unwrap();
        }
        until("the other host sees it", || there.join("from/removed").exists());
        let held = Held::exclusive(&there.join("held"));
        let mut rename = Command::new("mv");
        rename.args([here.join("from/moved"), here.join("held/moved")]).stderr(Stdio::null());
        let rename = rename.spawn().unwrap();
        until("the rename waits", || {
            let listed = lockwood(["locks", "--json", &two.url]).ok();
            let locks = serde_json::from_str::<Vec<Value>>(&listed).unwrap();
            locks.iter().any(|lock| lock["id"] == "%2Fheld" && lock["waiters"] != Value::Array(Vec::new()))
        });
        fs::remove_file(there.join("from/removed")).unwrap();
        let daemon = two.daemons[0];
        until("a thread waits in the kernel", || has_stuck_thread(daemon));
        Self { rename, held, daemon }
    }

    /// Whether the rename ended because the connection has.
    fn hears_of_it(mut self) {
        let status =
            wait(&mut self.rename, Duration::from_secs(10)).expect("the rename waits for a dead daemon");
        assert_eq!(status.code(), Some(1), "{:?}", status.signal());
        until("all threads of the daemon have ended", || {
            !is_alive(self.daemon) && threads(self.daemon).all(|thread| thread == self.daemon)
        });
        drop(self.held);
    }
}

fn threads(pid: u32) -> impl Iterator<Item = u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok())
}

/// Whether a thread waits where no signal reaches it.
fn has_stuck_thread(pid: u32) -> bool {
    let mut stats =
        threads(pid).filter_map(|thread| fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).ok());
    stats.any(|stat| stat.contains("(lockwood-names) D"))
}

fn keeper_of(daemon: u32) -> Option<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = processes.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| stat.contains(&format!("(lw-keeper) S {daemon} ")))
    })
}

fn leaves_no_program_waiting(mut two: Two, death: Signal) {
    let stuck = Stuck::at_first(&two);
    signal(stuck.daemon, death);
    stuck.hears_of_it();
    let point = two.point(0);
    assert_eq!(fs::read_dir(&point).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    two.mount(0); // Takes away what is dead.
    assert!(point.join("from/moved").exists());
    two.finish();
}

#[test]
fn a_killed_daemon_leaves_no_program_waiting() {
    over_redis(|two| leaves_no_program_waiting(two, Signal::KILL));
}

/// As one that has met a defect of its own does.
#[test]
fn a_daemon_that_aborts_leaves_no_program_waiting() {
    over_redis(|two| leaves_no_program_waiting(two, Signal::ABORT));
}

#[test]
fn what_has_lost_its_keeper_too_goes_away_by_force() {
    over_redis(|mut two| {
        let mut stuck = Stuck::at_first(&two);
        signal(keeper_of(stuck.daemon).expect("a keeper"), Signal::KILL);
        signal(stuck.daemon, Signal::KILL);
        std::thread::sleep(Duration::from_millis(500));
        assert!(stuck.rename.try_wait().unwrap().is_none(), "then there is nothing to do for a keeper");
        let point = two.point(0);
        let refused = lockwood([OsStr::new("umount"), point.as_os_str()]).refused();
        assert!(refused.contains("umount --force"), "{refused}");
        lockwood([OsStr::new("umount"), OsStr::new("--force"), point.as_os_str()]).ok();
        assert!(mount_entry(&point).is_none());
        stuck.hears_of_it();
        two.mount(0);
        two.finish();
    });
}
