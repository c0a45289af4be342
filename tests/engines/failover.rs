//! A primary of PostgreSQL that dies for good, and a synchronous standby that takes over: the mounts go on, and have lost
//! nothing.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::common::{lockwood, umount, until};
use crate::postgres::server::PostgresServer;
use crate::redis_server::RedisServer;
use crate::two::Two;

/// Longer than a standby needs until it serves, and shorter than what `soft` waits: the mounts see out the failover.
const OPTIONS: &str = "lease=20,soft=30";

/// Makes files and moves each, until it is told to stop; returns how many were acknowledged.
fn change(point: &Path, stop: &AtomicBool, done: &AtomicUsize) {
    fs::create_dir_all(point.join("to")).unwrap();
    while !stop.load(Ordering::Relaxed) {
        let name = done.load(Ordering::Relaxed).to_string();
        let made = point.join(&name);
        fs::write(&made, &name).unwrap();
        fs::rename(&made, point.join("to").join(&name)).unwrap();
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends the work, however the test ends.
struct Working<'a>(&'a AtomicBool);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn sessions(two: &Two) -> [Value; 2] {
    [0, 1].map(|at| two.status(at)["session"].clone())
}

/// Who asks at night is often the first who looks.
#[test]
fn a_mount_that_nobody_has_looked_at_says_that_its_store_is_away() {
    let Some(mut server) = RedisServer::start() else { return };
    let Some(mut two) = Two::mounted_with(server.url("volume"), ["lease=5,soft=2"; 2]) else { return };
    umount(&two.point(1));
    lockwood([OsStr::new("mount"), OsStr::new(&two.url), two.point(1).as_os_str(), OsStr::new("-ohard")])
        .ok();
    server.kill();
    // Long after anything that the kernel or the daemon remembers.
    std::thread::sleep(Duration::from_secs(3));
    // It waits for no daemon that does not answer.
    let words = lockwood([OsStr::new("status"), two.point(1).as_os_str(), OsStr::new("--json")]).ok();
    let status: Value = serde_json::from_str(&words).unwrap();
    assert!(!status["away"].is_null(), "{status}");
    two.daemons.push(status["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap());
    server.restart();
    until("it is back", || two.status(1)["away"].is_null());
    two.finish();
}

#[test]
fn mounts_go_on_when_a_standby_takes_over() {
    let Some(mut primary) = PostgresServer::start() else { return };
    let standby = primary.standby();
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", primary.port(), standby.port());
    let url = format!("postgres://lockwood@{hosts}/lockwood?schema=volume&target_session_attrs=read-write");
    let Some(two) = Two::mounted_with(url, [OPTIONS; 2]) else { return };
    let before = sessions(&two);
    let (stop, done) = (AtomicBool::new(false), [(); 2].map(|()| AtomicUsize::new(0)));
    let tops = [0, 1].map(|at| two.point(at).join(at.to_string()));
    let grown_by = |more: usize, from: [usize; 2]| {
        done.iter().zip(from).all(|(done, from)| done.load(Ordering::Relaxed) >= from + more)
    };
    std::thread::scope(|scope| {
        let _working = Working(&stop);
        let workers: Vec<_> = tops
            .iter()
            .zip(&done)
            .map(|(top, done)| {
                fs::create_dir(top).unwrap();
                scope.spawn(|| change(top, &stop, done))
            })
            .collect();
        until("both change the tree", || grown_by(20, [0, 0]));
        primary.stop(true);
        until("both say that it is away", || [0, 1].iter().all(|at| !two.status(*at)["away"].is_null()));
        let stood = [&done[0], &done[1]].map(|done| done.load(Ordering::Relaxed));
        standby.promote();
        until("both go on", || workers.iter().any(|worker| worker.is_finished()) || grown_by(20, stood));
    });
    assert_eq!(sessions(&two), before, "nobody was declared dead");
    for at in [0, 1] {
        // What one host did, seen on the other.
        let to = two.point(1 - at).join(at.to_string()).join("to");
        let all = done[at].load(Ordering::Relaxed);
        until("all of it is seen", || fs::read_dir(&to).unwrap().count() == all);
        for entry in fs::read_dir(&to).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(fs::read(entry.path()).unwrap(), entry.file_name().as_encoded_bytes());
        }
        assert_eq!(two.status(at)["away"], Value::Null);
        File::create_new(two.point(at).join(format!("after-{at}"))).unwrap().sync_all().unwrap();
    }
    two.finish();
}
