//! The beginning and the end of several mounts of one store.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use rustix::process::Signal;

use crate::common::{Mounted, is_alive, lockwood, mount_entry, signal, until};
use crate::many::Many;

fn json(verb: &str, target: &Path) -> serde_json::Value {
    let ran = lockwood([OsStr::new(verb), target.as_os_str(), OsStr::new("--json")]);
    serde_json::from_str(&ran.ok()).unwrap()
}

#[test]
fn each_mount_has_a_session_and_any_of_them_tells_of_all() {
    let Some(many) = Many::new(3) else { return };
    let sessions = |mount: usize| fs::read_dir(many.at(mount, ".lockwood/sessions")).unwrap().count();
    let mut seen = Vec::new();
    for (mount, point) in many.points.iter().enumerate() {
        assert_eq!(sessions(mount), 3);
        let status = json("status", point);
        assert_eq!(status["mount_points"].as_array().unwrap().len(), 3);
        assert_eq!(status["mount_point"], point.to_str().unwrap());
        seen.push(status["session"].as_str().unwrap().to_owned());
    }
    seen.dedup();
    assert_eq!(seen.len(), 3);
    fs::create_dir(many.at(0, "d")).unwrap();
    let held = crate::common::Held::exclusive(&many.at(1, "d"));
    for point in &many.points {
        let locks = json("locks", point);
        assert_eq!(
            (&locks[0]["id"], &locks[0]["holders"][0]["session"]),
            (&"%2Fd".into(), &seen[1].as_str().into())
        );
    }
    // A lock that one mount holds keeps renames through the others waiting, like any.
    drop(held);
    fs::rename(many.at(2, "d"), many.at(2, "e")).unwrap();
    // The store, and not only a mount point, leads to a mount.
    assert_eq!(json("status", &many.mounted.store)["pid"], many.mounted.pid());
    many.finish();
}

#[test]
fn one_mount_goes_and_the_others_go_on() {
    let Some(mut many) = Many::new(3) else { return };
    fs::write(many.at(0, "f"), b"x").unwrap();
    let pid = many.mounted.pid();
    let mut open = File::options().append(true).open(many.at(1, "f")).unwrap();
    let busy = lockwood([OsStr::new("umount"), many.points[1].as_os_str()]).refused();
    assert!(busy.contains("in use"), "{busy}");
    many.umount(0);
    assert!(is_alive(pid) && mount_entry(&many.points[0]).is_none());
    assert_eq!(
        fs::read_dir(many.at(1, ".lockwood/sessions")).unwrap().count(),
        2,
        "ended when umount returned"
    );
    assert_eq!(json("status", &many.mounted.store)["mount_points"].as_array().unwrap().len(), 2);
    open.write_all(b"y").unwrap();
    assert_eq!(fs::read(many.at(2, "f")).unwrap(), b"xy");
    // The store is in use until the last mount is gone.
    let words = many.mounted.try_mount("rw").refused();
    assert!(words.contains(many.points[1].to_str().unwrap()), "{words}");
    assert!(!words.contains(&format!("{},", many.points[0].display())), "{words}");
    drop(open);
    many.umount(1);
    many.umount(2);
    until("the daemon ends", || !is_alive(pid));
    many.mounted.assert_clean();
    many.mount().ok();
    many.finish();
}

#[test]
fn a_signal_takes_all_mounts_away() {
    let Some(many) = Many::new(3) else { return };
    fs::write(many.at(2, "f"), b"x").unwrap();
    let pid = many.mounted.pid();
    signal(pid, Signal::TERM);
    until("the daemon ends", || !is_alive(pid));
    assert!(many.points.iter().all(|point| mount_entry(point).is_none()));
    many.finish();
}

#[test]
fn after_a_kill_all_can_be_mounted_again_and_nothing_is_lost() {
    let Some(mut many) = Many::new(2) else { return };
    for round in 0..2 {
        fs::write(many.at(0, &format!("zero{round}")), vec![0; 100_000]).unwrap();
        fs::create_dir(many.at(1, &format!("one{round}"))).unwrap();
        fs::rename(many.at(0, &format!("zero{round}")), many.at(0, &format!("one{round}/f"))).unwrap();
        let open = File::open(many.at(1, &format!("one{round}/f"))).unwrap();
        fs::write(many.at(0, "gone"), vec![1; 100_000]).unwrap();
        let without_name = File::open(many.at(1, "gone")).unwrap();
        fs::remove_file(many.at(0, "gone")).unwrap();
        signal(many.mounted.pid(), Signal::KILL);
        drop((open, without_name));
        until("the daemon is dead", || !is_alive(many.mounted.pid()));
        many.mount().ok();
        for mount in 0..2 {
            assert_eq!(fs::read(many.at(mount, &format!("one{round}/f"))).unwrap(), vec![0; 100_000]);
        }
        assert_eq!(fs::read_dir(many.at(0, ".lockwood/sessions")).unwrap().count(), 2);
    }
    many.finish();
}

#[test]
fn mount_points_that_cannot_be_used_together_are_named_and_nothing_is_left_mounted() {
    let Some(mut many) = Many::unmounted(3) else { return };
    let store = many.mounted.store.clone();
    let refused = |words: &[&OsStr]| {
        let words = lockwood([OsStr::new("mount"), store.as_os_str()].iter().chain(words)).refused();
        assert!(many.points.iter().all(|point| mount_entry(point).is_none()), "{words}");
        words
    };
    let [first, second, third] = [0, 1, 2].map(|n: usize| many.points[n].as_os_str());
    assert!(refused(&[first, second, first]).contains("given twice"));
    let within = many.points[0].join("within");
    fs::create_dir(&within).unwrap();
    let words = refused(&[first, within.as_os_str()]);
    assert!(words.contains("within the mount point"), "{words}");
    let words = refused(&[within.as_os_str(), first]);
    assert!(words.contains("is within it"), "{words}");
    fs::remove_dir(&within).unwrap();
    let missing = many.points[0].join("missing");
    let words = refused(&[second, third, missing.as_os_str()]);
    assert!(words.contains("missing") && words.contains("does not exist"), "{words}");
    let Some(other) = Mounted::new() else { return };
    let words = refused(&[first, other.mount_point.as_os_str()]);
    assert!(words.contains("mounted there already"), "{words}");
    other.finish();
    many.mount().ok();
    many.finish();
}
