//! The beginning and the end of a mount.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use lockwood::ambient::monotonic;
use rustix::mount::mount_bind;
use rustix::process::Signal;

use crate::common::lines::Lines;
use crate::common::{
    BINARY, LIMIT, Mounted, is_alive, lockwood, mount_entry, run, signal, skipped, unmount_once_free, until,
    wait,
};

#[test]
fn what_was_written_is_there_at_the_next_mount() {
    let Some(mut mounted) = Mounted::new() else { return };
    fs::create_dir_all(mounted.path("a/b")).unwrap();
    let large: Vec<u8> = (0..3_000_000u32).map(|n| (n % 249) as u8).collect();
    fs::write(mounted.path("a/b/large"), &large).unwrap();
    fs::write(mounted.path("a/small"), b"small").unwrap();
    mounted.remount();
    assert_eq!(fs::read(mounted.path("a/b/large")).unwrap(), large);
    assert_eq!(fs::read(mounted.path("a/small")).unwrap(), b"small");
    mounted.finish();
}

#[test]
fn a_store_in_use_names_the_process_and_the_mount_point() {
    let Some(mounted) = Mounted::new() else { return };
    let other = mounted.dir.path().join("other");
    fs::create_dir(&other).unwrap();
    let words = lockwood([Path::new("mount"), &mounted.store, &other]).refused();
    assert!(words.contains(&mounted.pid().to_string()), "{words}");
    assert!(words.contains(mounted.mount_point.to_str().unwrap()), "{words}");
    assert!(mount_entry(&other).is_none());
    mounted.finish();
}

#[test]
fn a_mount_point_that_cannot_be_used_says_why() {
    let Some(mut mounted) = Mounted::new() else { return };
    let words = mounted.try_mount("rw").refused();
    assert!(words.contains("mounted there already"), "{words}");
    mounted.umount();
    let missing = mounted.dir.path().join("missing");
    let words = lockwood([Path::new("mount"), &mounted.store, &missing]).refused();
    assert!(words.contains("missing") && words.contains("does not exist"), "{words}");
    let file = mounted.dir.path().join("file");
    fs::write(&file, b"").unwrap();
    let words = lockwood([Path::new("mount"), &mounted.store, &file]).refused();
    assert!(words.contains("not a directory"), "{words}");
    let words = lockwood([Path::new("mount"), &missing, &mounted.mount_point]).refused();
    assert!(words.contains("missing") && words.contains("lockwood format"), "{words}");
    let words = lockwood([Path::new("umount"), &mounted.mount_point]).refused();
    assert!(words.contains("not a mount point"), "{words}");
    mounted.mount("rw");
    mounted.finish();
}

#[test]
fn umount_and_mount_at_once_works_every_time() {
    let Some(mut mounted) = Mounted::new() else { return };
    for round in 0..20 {
        fs::write(mounted.path(&round.to_string()), b"x").unwrap();
        unmount_once_free(&mounted.mount_point);
        mounted.mount("rw");
    }
    assert_eq!(fs::read_dir(&mounted.mount_point).unwrap().count(), 20);
    mounted.finish();
}

#[test]
fn after_a_kill_the_same_mount_point_can_be_mounted_and_nothing_acknowledged_is_lost() {
    let Some(mut mounted) = Mounted::new() else { return };
    for round in 0..3 {
        fs::create_dir(mounted.path(&format!("d{round}"))).unwrap();
        fs::write(mounted.path(&format!("d{round}/small")), round.to_string()).unwrap();
        fs::write(mounted.path(&format!("d{round}/large")), vec![round; 100_000]).unwrap();
        // Open and without a name: gone after the crash, with its bytes.
        let mut unlinked = File::create(mounted.path("unlinked")).unwrap();
        unlinked.write_all(&[1; 50_000]).unwrap();
        fs::remove_file(mounted.path("unlinked")).unwrap();
        let pid = mounted.pid();
        signal(pid, Signal::KILL);
        until("the daemon is dead", || !is_alive(pid));
        let error = fs::metadata(mounted.path("d0")).unwrap_err();
        let dead = [Some(libc::ENOTCONN), Some(libc::ECONNABORTED)];
        assert!(dead.contains(&error.raw_os_error()), "{error}");
        mounted.mount("rw");
        drop(unlinked);
        for before in 0..=round {
            let path = |name: &str| mounted.path(&format!("d{before}/{name}"));
            assert_eq!(fs::read_to_string(path("small")).unwrap(), before.to_string());
            assert_eq!(fs::read(path("large")).unwrap(), vec![before; 100_000]);
        }
        mounted.assert_clean();
    }
    mounted.finish();
}

#[test]
fn a_dead_mount_goes_away_with_umount() {
    let Some(mut mounted) = Mounted::new() else { return };
    let pid = mounted.pid();
    signal(pid, Signal::KILL);
    until("the daemon is dead", || !is_alive(pid));
    mounted.umount();
    assert!(mount_entry(&mounted.mount_point).is_none());
    let left = mounted.check();
    assert!(left.code == 1 && left.stdout.contains("mount the volume once to recover"), "{left:?}");
    mounted.mount("rw");
    mounted.finish();
}

#[test]
fn every_verb_says_so_when_the_daemon_has_died() {
    let Some(mounted) = Mounted::new() else { return };
    let pid = mounted.pid();
    signal(pid, Signal::KILL);
    until("the daemon is dead", || !is_alive(pid));
    for verb in ["check", "status", "locks"] {
        let words = lockwood([Path::new(verb), &mounted.mount_point]).refused();
        assert!(words.contains("has died") && words.contains("lockwood umount"), "{verb}: {words}");
    }
}

#[test]
fn a_signal_ends_a_mount_at_once_when_nobody_uses_it() {
    let Some(mut mounted) = Mounted::new() else { return };
    for sent in [Signal::TERM, Signal::INT, Signal::HUP] {
        fs::write(mounted.path("f"), format!("{sent:?}")).unwrap();
        let pid = mounted.pid();
        signal(pid, sent);
        let took = until("the daemon ends", || !is_alive(pid));
        assert!(took < Duration::from_secs(8), "{sent:?} took {took:?}");
        assert!(mount_entry(&mounted.mount_point).is_none());
        mounted.assert_clean();
        mounted.mount("rw");
        assert_eq!(fs::read_to_string(mounted.path("f")).unwrap(), format!("{sent:?}"));
    }
    mounted.finish();
}

#[test]
fn a_signal_ends_a_mount_within_bounds_when_a_file_is_open() {
    let Some(mounted) = Mounted::new() else { return };
    fs::write(mounted.path("f"), vec![b'x'; 10_000]).unwrap();
    let mut open = File::options().read(true).write(true).open(mounted.path("f")).unwrap();
    let pid = mounted.pid();
    signal(pid, Signal::TERM);
    until("the tree is taken away", || mount_entry(&mounted.mount_point).is_none());
    // Ten seconds are given to programs with open files.
    let begun = monotonic();
    while is_alive(pid) && begun.elapsed() < Duration::from_secs(25) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!is_alive(pid), "the daemon serves the open file still");
    let outcome = open.write_all(b"too late").and_then(|()| open.sync_all());
    assert!(outcome.is_err());
    drop(open);
    mounted.assert_clean();
}

#[test]
fn an_open_file_goes_on_after_a_lazy_umount() {
    let Some(mounted) = Mounted::new() else { return };
    let mut open = File::options().create_new(true).read(true).write(true).open(mounted.path("f")).unwrap();
    open.write_all(b"before").unwrap();
    lockwood([Path::new("umount"), Path::new("--lazy"), &mounted.mount_point]).ok();
    assert!(mount_entry(&mounted.mount_point).is_none());
    open.write_all(b" and after").unwrap();
    let mut text = String::new();
    std::io::Seek::rewind(&mut open).unwrap();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before and after");
    drop(open);
    until("the daemon ends", || !is_alive(mounted.pid()));
    mounted.assert_clean();
}

/// As a daemon that is stopped does. Nobody waits for it for ever, and it cannot keep its mount from being taken away.
#[test]
fn a_mount_whose_daemon_stands_still_says_so_and_goes_away_lazily() {
    let Some(mounted) = Mounted::new() else { return };
    fs::create_dir(mounted.path("d")).unwrap();
    let link = mounted.dir.path().join("link");
    std::os::unix::fs::symlink(&mounted.mount_point, &link).unwrap();
    signal(mounted.pid(), Signal::STOP);
    let asked =
        [("status", &mounted.mount_point), ("status", &mounted.store), ("umount", &mounted.mount_point)];
    let below = mounted.path("d");
    std::thread::scope(|scope| {
        for (verb, path) in asked.into_iter().chain([("check", &below), ("status", &link)]) {
            scope.spawn(move || {
                let words = lockwood([Path::new(verb), path]).refused();
                assert!(words.contains("not answered") && words.contains("umount --lazy"), "{verb}: {words}");
            });
        }
    });
    let begun = monotonic();
    lockwood([Path::new("umount"), Path::new("--lazy"), &link]).ok();
    assert!(mount_entry(&mounted.mount_point).is_none());
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    signal(mounted.pid(), Signal::CONT);
    until("the daemon ends", || !is_alive(mounted.pid()));
    mounted.assert_clean();
}

#[test]
fn a_mount_whose_daemon_stands_still_goes_away_by_force_and_nobody_waits_for_it() {
    let Some(mounted) = Mounted::new() else { return };
    signal(mounted.pid(), Signal::STOP);
    let mut asks = Command::new("touch").arg(mounted.path("f")).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert!(asks.try_wait().unwrap().is_none(), "the daemon answers");
    lockwood([Path::new("umount"), Path::new("--force"), &mounted.mount_point]).ok();
    assert!(mount_entry(&mounted.mount_point).is_none());
    let ended = wait(&mut asks, Duration::from_secs(10)).expect("it waits for a mount that is gone");
    assert!(!ended.success());
    signal(mounted.pid(), Signal::CONT);
    until("the daemon ends", || !is_alive(mounted.pid()));
    mounted.assert_clean();
}

/// From the moment on when it can be seen, whatever else begins beside it.
#[test]
fn a_signal_right_after_the_mount_is_there_ends_it_in_order() {
    let Some(mounted) = Mounted::unmounted() else { return };
    for _ in 0..10 {
        let mut daemon = Command::new(BINARY);
        daemon.args(["mount", "--foreground"]).args([&mounted.store, &mounted.mount_point]);
        let mut daemon = daemon.stderr(Stdio::null()).spawn().unwrap();
        let begun = monotonic();
        while mount_entry(&mounted.mount_point).is_none() {
            assert!(begun.elapsed() < LIMIT, "it is not mounted");
            std::thread::yield_now();
        }
        signal(daemon.id(), Signal::TERM);
        let ended = wait(&mut daemon, LIMIT).expect("it does not end");
        assert_eq!(ended.code(), Some(0), "{ended}");
        assert!(mount_entry(&mounted.mount_point).is_none());
    }
    mounted.assert_clean();
}

/// Where only the daemon, which has it open, can still reach it.
#[test]
fn a_log_below_the_mount_point_holds_nothing_up_and_keeps_nothing_in_use() {
    let Some(mut mounted) = Mounted::unmounted() else { return };
    let log = mounted.path("log");
    let begun = monotonic();
    mounted.mount(&format!("log={}", log.display()));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(!log.exists(), "somebody has made a log in the tree");
    mounted.umount();
    let words = fs::read_to_string(&log).unwrap();
    assert!(words.contains("is mounted at") && words.contains("is unmounted"), "{words}");
    mounted.assert_clean();
}

#[test]
fn a_keeper_says_what_has_died_and_nothing_else() {
    let Some(mut mounted) = Mounted::new() else { return };
    let log = |mounted: &Mounted| fs::read_to_string(mounted.store.join("log")).unwrap();
    mounted.remount();
    // An orderly end behind the back of the next mount at the same place.
    let open = File::create(mounted.path("f")).unwrap();
    lockwood([Path::new("umount"), Path::new("--lazy"), &mounted.mount_point]).ok();
    let mut other = Mounted::unmounted().unwrap();
    std::mem::swap(&mut other.mount_point, &mut mounted.mount_point);
    other.mount("rw");
    drop(open);
    until("the daemon ends", || !is_alive(mounted.pid()));
    std::thread::sleep(Duration::from_millis(300));
    assert!(!log(&mounted).contains("has died"), "{}", log(&mounted));
    // It outlives signals that are for the daemon.
    let keepers = rustix::process::Pid::from_raw(i32::try_from(other.pid()).unwrap()).unwrap();
    rustix::process::kill_process_group(keepers, Signal::KILL).unwrap();
    until("the keeper has told", || log(&other).contains(&format!("process {}, the daemon of", other.pid())));
    assert_eq!(fs::read_dir(&other.mount_point).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    std::mem::swap(&mut other.mount_point, &mut mounted.mount_point);
}

/// Once a daemon has read a question, the kernel lets nobody who waits for the answer end. Here its store is in a tree whose
/// own daemon is stopped.
#[test]
fn a_command_ends_though_the_daemon_that_it_has_asked_is_stuck() {
    let (Some(below), Some(mut stuck)) = (Mounted::new(), Mounted::unmounted()) else { return };
    stuck.store = below.path("store");
    lockwood([Path::new("format"), &stuck.store]).ok();
    stuck.mount("rw");
    signal(below.pid(), Signal::STOP);
    let (status, mount) = std::thread::scope(|scope| {
        let status = scope.spawn(|| lockwood([Path::new("status"), &stuck.mount_point]));
        let mount = scope.spawn(|| lockwood([Path::new("mount"), &below.store, &stuck.mount_point]));
        (status.join().unwrap(), mount.join().unwrap())
    });
    signal(below.pid(), Signal::CONT);
    let words = status.refused();
    assert!(words.contains("not answered") && words.contains("umount --lazy"), "{words}");
    let words = mount.refused();
    assert!(words.contains("what is mounted there has not answered"), "{words}");
    stuck.finish();
    below.finish();
}

/// It dies, here while it waits for the store, without a word to who started it.
#[test]
fn a_daemon_that_dies_before_it_has_mounted_is_told_of_with_its_log() {
    let Some(mounted) = Mounted::unmounted() else { return };
    let (log, owner) = (mounted.store.join("log"), File::create(mounted.store.join("owner")).unwrap());
    rustix::fs::flock(&owner, rustix::fs::FlockOperation::LockExclusive).unwrap();
    fs::write(&log, "[then ERROR lockwood] of another run\n").unwrap();
    let mut command = Command::new(BINARY);
    command.arg("mount").arg(&mounted.store).arg(&mounted.mount_point);
    let mut mounting = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut daemon = None;
    until("the daemon is there", || {
        let children = format!("/proc/{0}/task/{0}/children", mounting.id());
        daemon = fs::read_to_string(children).unwrap().trim().parse().ok();
        daemon.is_some()
    });
    // Both have looked at the log by the time that it has let go of who started it.
    // The sixth field of its stat is its session, zero while that is one of a process that cannot be seen from here.
    let stat = format!("/proc/{}/stat", daemon.unwrap());
    let session = || fs::read_to_string(&stat).unwrap().rsplit(") ").next()?.split(' ').nth(3)?.parse().ok();
    until("it is a daemon", || session() == daemon);
    let mut appended = File::options().append(true).open(&log).unwrap();
    appended.write_all(b"[now ERROR lockwood] a defect\nand where\n").unwrap();
    signal(daemon.unwrap(), Signal::KILL);
    let words = Lines::of(mounting.stderr.take().unwrap()).rest();
    assert_eq!(wait(&mut mounting, LIMIT).expect("it ends").code(), Some(1));
    assert!(words.contains("signal 9") && words.contains(log.to_str().unwrap()), "{words}");
    assert!(words.ends_with("a defect\nand where\n") && !words.contains("another run"), "{words}");
}

#[test]
fn the_mount_table_shows_the_store_exactly_as_it_was_given() {
    let Some(mut mounted) = Mounted::unmounted() else { return };
    for given in ["store", "./store", "with space/store, \\and comma", "st\u{f6}re"] {
        let store = mounted.dir.path().join(given);
        fs::create_dir_all(store.parent().unwrap()).unwrap();
        if !store.exists() {
            lockwood([Path::new("format"), &store]).ok();
        }
        let mut command = Command::new(BINARY);
        command.current_dir(mounted.dir.path()).arg("mount").arg(given).arg("mnt");
        run(&mut command).ok();
        mounted.note_daemon();
        let entry = mount_entry(&mounted.mount_point).unwrap();
        assert_eq!((entry.source.to_str(), entry.fs_type.to_str()), (Some(given), Some("fuse.lockwood")));
        assert_eq!(mounted.status()["store"], given);
        fs::write(mounted.path("f"), b"x").unwrap();
        // A relative path still means the same store when that daemon has gone elsewhere.
        mounted.assert_clean();
        mounted.umount();
    }
}

#[test]
fn a_mount_in_the_foreground_ends_with_its_signal() {
    let Some(mut mounted) = Mounted::unmounted() else { return };
    let mut command = Command::new(BINARY);
    command.arg("mount").arg(&mounted.store).arg(&mounted.mount_point).arg("--foreground");
    let mut child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
    until("it is mounted", || mount_entry(&mounted.mount_point).is_some());
    mounted.note_daemon();
    fs::write(mounted.path("f"), b"x").unwrap();
    assert_eq!(mounted.pid(), child.id());
    let begun = monotonic();
    signal(child.id(), Signal::INT);
    let status = wait(&mut child, Duration::from_secs(20)).expect("it ends");
    assert!(status.success() && begun.elapsed() < Duration::from_secs(8), "{status}");
    mounted.assert_clean();
}

/// Where nobody collects ended processes soon, as in a container without an init, a daemon that has ended is still to be
/// seen. Nothing is to be waited for then.
#[test]
fn umount_does_not_wait_for_a_daemon_that_has_ended_and_was_not_collected() {
    let Some(mut mounted) = Mounted::unmounted() else { return };
    let mut command = Command::new(BINARY);
    command.arg("mount").arg(&mounted.store).arg(&mounted.mount_point).arg("--foreground");
    let mut daemon = command.stderr(std::process::Stdio::null()).spawn().unwrap();
    until("it is mounted", || mount_entry(&mounted.mount_point).is_some());
    mounted.note_daemon();
    let mut umount = Command::new(BINARY).arg("umount").arg(&mounted.mount_point).spawn().unwrap();
    let status = wait(&mut umount, Duration::from_secs(10));
    // Only now is the daemon collected.
    assert!(wait(&mut daemon, Duration::from_secs(10)).is_some());
    assert!(status.is_some_and(|s| s.success()), "umount waits for a process that has ended");
    mounted.assert_clean();
}

#[test]
fn umount_says_where_else_the_tree_is_mounted() {
    let Some(mounted) = Mounted::new() else { return };
    let bound = mounted.dir.path().join("bound");
    fs::create_dir(&bound).unwrap();
    if mount_bind(&mounted.mount_point, &bound).is_err() {
        return skipped("needs root, for a bind mount");
    }
    let words = lockwood([Path::new("umount"), &mounted.mount_point]).refused();
    assert!(mount_entry(&mounted.mount_point).is_none());
    assert!(words.contains(bound.to_str().unwrap()), "{words}");
    unmount_once_free(&bound);
    until("the daemon ends", || !is_alive(mounted.pid()));
    mounted.assert_clean();
}

/// It would be reached through itself, and whoever touches it would wait for ever.
#[test]
fn a_store_is_not_mounted_within_itself() {
    let Some(mounted) = Mounted::new() else { return };
    mounted.umount();
    let words = lockwood([Path::new("mount"), &mounted.store, &mounted.store.join("content")]).refused();
    assert!(words.contains("it is in the store"), "{words}");
}
