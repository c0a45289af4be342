//! Advisory locks through the mount points of one process: they exclude through all of them.

use std::ffi::OsStr;
use std::fs::{self, File};

use crate::common::excluded::exclude;
use crate::common::locker::Locker;
use crate::common::{lockwood, until};
use crate::many::Many;

#[test]
fn locks_exclude_processes_at_all_mount_points_of_a_process() {
    let Some(many) = Many::new(2) else { return };
    File::create_new(many.at(0, "f")).unwrap();
    exclude(&many.at(0, "f"), &many.at(1, "f"));
    many.finish();
}

#[test]
fn a_fenced_mount_point_loses_its_locks_to_the_others() {
    let Some(many) = Many::new(2) else { return };
    File::create_new(many.at(0, "f")).unwrap();
    let (mut one, mut other) = (Locker::at(&many.at(0, "f")), Locker::at(&many.at(1, "f")));
    assert_eq!(one.ask("flock a ex"), "ok");
    other.say("flock a ex wait");
    let session = fs::read_to_string(many.at(0, ".lockwood/status")).unwrap();
    let session: serde_json::Value = serde_json::from_str(&session).unwrap();
    let session = session["session"].as_str().unwrap();
    lockwood([OsStr::new("break"), many.points[1].as_os_str(), OsStr::new(session), OsStr::new("--force")])
        .ok();
    assert_eq!(other.answer(crate::common::LIMIT).as_deref(), Some("ok"));
    assert_ne!(one.ask("fcntl a wr 0 0"), "ok");
    drop((one, other));
    until("the mount point is free", || {
        lockwood([OsStr::new("umount"), many.points[0].as_os_str()]).code == 0
    });
    many.finish();
}
