//! `.lockwood`: for root and the mount's owner, never in the way of the tree.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::lines::Lines;
use crate::common::{BINARY, Held, LIMIT, Mounted, Ran, is_alive, run, until, wait};

/// The user who may nothing, by number: nobody of Debian.
pub(crate) const NOBODY: &str = "65534";

pub(crate) fn as_nobody(arguments: &[&str]) -> Ran {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).args(arguments);
    run(&mut command)
}

#[test]
fn other_users_see_the_tree_and_not_the_control_files() {
    let Some(mounted) = Mounted::new() else { return };
    fs::write(mounted.path("public"), b"for all").unwrap();
    let path = |name: &str| mounted.path(name).to_str().unwrap().to_owned();
    assert_eq!(as_nobody(&["cat", &path("public")]).ok(), "for all");
    for name in ["status", "locks", "sessions", "documents/node:1", "check", "hold"] {
        let path = path(&format!(".lockwood/{name}"));
        let words = as_nobody(&["cat", &path]).refused();
        assert!(words.contains("Permission denied"), "{words}");
        as_nobody(&["sh", "-c", &format!("echo x > {path}")]).refused();
    }
    as_nobody(&["ls", &path(".lockwood")]).refused();
    as_nobody(&["touch", &path("own")]).refused();
    fs::create_dir(mounted.path("d")).unwrap();
    as_nobody(&[BINARY, "lock", &path("d"), "--", "true"]).refused();
    as_nobody(&[BINARY, "status", &path("")]).refused();
    mounted.finish();
}

#[test]
fn the_control_directory_is_found_by_name_only_and_stays_what_it_is() {
    let Some(mounted) = Mounted::new() else { return };
    fs::write(mounted.path("f"), b"x").unwrap();
    fs::create_dir(mounted.path("d")).unwrap();
    let listed: Vec<_> =
        fs::read_dir(&mounted.mount_point).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(listed.len(), 2, "{listed:?}");
    let control = mounted.path(".lockwood");
    assert!(fs::metadata(&control).unwrap().is_dir());
    let refused = [
        fs::remove_dir(&control),
        fs::remove_file(&control),
        fs::create_dir(&control),
        fs::write(&control, b"x"),
        fs::rename(&control, mounted.path("elsewhere")),
        fs::rename(mounted.path("f"), &control),
        fs::rename(mounted.path("d"), &control),
        fs::hard_link(mounted.path("f"), &control),
        std::os::unix::fs::symlink("f", &control),
        fs::write(control.join("new"), b"x"),
        fs::create_dir(control.join("new")),
        fs::remove_file(control.join("status")),
        fs::rename(control.join("status"), mounted.path("status")),
        fs::rename(mounted.path("f"), control.join("f")),
        fs::hard_link(control.join("status"), mounted.path("status")),
        fs::write(control.join("status"), b"{}"),
    ];
    for (at, outcome) in refused.into_iter().enumerate() {
        assert!(outcome.is_err(), "number {at} was done");
    }
    let status: Value = serde_json::from_slice(&fs::read(control.join("status")).unwrap()).unwrap();
    assert_eq!(status["pid"], mounted.pid());
    // Elsewhere it is a name like any other.
    fs::create_dir(mounted.path("d/.lockwood")).unwrap();
    fs::rename(mounted.path("d/.lockwood"), mounted.path("d/other")).unwrap();
    mounted.finish();
}

#[test]
fn a_held_lock_can_be_read_as_a_file_and_is_gone_with_its_holder() {
    let Some(mounted) = Mounted::new() else { return };
    fs::create_dir_all(mounted.path("a/b c")).unwrap();
    let held = Held::exclusive(&mounted.path("a/b c"));
    let mut names: Vec<_> = fs::read_dir(mounted.path(".lockwood/locks"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["%2Fa", "%2Fa%2Fb%20c"]);
    let read = |name: &str| -> Value {
        serde_json::from_slice(&fs::read(mounted.path(&format!(".lockwood/locks/{name}"))).unwrap()).unwrap()
    };
    assert_eq!((&read("%2Fa")["lock_type"], &read("%2Fa")["lock_count"]), (&"shared".into(), &1.into()));
    assert_eq!(read("%2Fa%2Fb%20c")["lock_type"], "exclusive");
    let listed = run(Command::new(BINARY).args(["locks", "--json"]).arg(&mounted.mount_point)).ok();
    assert!(listed.contains("%2Fa%2Fb%20c"), "{listed}");
    drop(held);
    assert_eq!(fs::read_dir(mounted.path(".lockwood/locks")).unwrap().count(), 0);
    mounted.finish();
}

#[test]
fn the_exit_code_of_lock_is_that_of_its_command_or_says_why_there_was_none() {
    let Some(mounted) = Mounted::new() else { return };
    fs::create_dir(mounted.path("d")).unwrap();
    let lock = |arguments: &[&str]| {
        run(Command::new(BINARY)
            .arg("lock")
            .args(&arguments[..1])
            .arg(mounted.path("d"))
            .args(&arguments[1..]))
    };
    assert_eq!(lock(&["--mode=shared", "--", "sh", "-c", "exit 7"]).code, 7);
    assert_eq!(lock(&["--mode=shared", "--", "/no/such/command"]).code, 127);
    let held = Held::exclusive(&mounted.path("d"));
    let ran = lock(&["--wait=0.1", "--", "true"]);
    assert_eq!(ran.code, 75);
    assert!(ran.stderr.contains("%2Fd"), "{ran:?}");
    drop(held);
    assert_eq!(lock(&["--wait=0.1", "--", "true"]).code, 0);
    let ran = run(Command::new(BINARY).arg("lock").arg(mounted.path("absent")).args(["--", "true"]));
    assert_eq!(ran.code, 69, "{ran:?}");
    mounted.finish();
}

#[test]
fn a_lock_is_held_until_its_command_ends_though_who_took_it_is_killed() {
    let Some(mounted) = Mounted::new() else { return };
    fs::create_dir(mounted.path("d")).unwrap();
    let mut lock = Command::new(BINARY);
    lock.arg("lock").arg(mounted.path("d")).args(["--", "sh", "-c", "echo $$; read end"]);
    let mut lock = lock.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let pid = Lines::of(lock.stdout.take().unwrap()).line().parse().unwrap();
    let end = lock.stdin.take();
    lock.kill().unwrap();
    wait(&mut lock, LIMIT).expect("it is killed");
    let held = || fs::read_dir(mounted.path(".lockwood/locks")).unwrap().count() > 0;
    assert!(held());
    drop(end);
    until("the command ends", || !is_alive(pid));
    until("the lock is free", || !held());
    mounted.finish();
}
