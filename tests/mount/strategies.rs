//! Lock strategies as users meet them: chosen by `format`, named by `mount`, shown by `status`, `get` and `locks`.

use std::fs;
use std::process::Command;

use crate::common::{BINARY, Mounted, Ran, lockwood, mount_entry, run};

/// `lockwood VERB MOUNTPOINT`, and what else the verb takes.
fn ask(mounted: &Mounted, verb: &str, rest: &[&str]) -> Ran {
    run(Command::new(BINARY).arg(verb).arg(&mounted.mount_point).args(rest))
}

#[test]
fn a_volume_is_mounted_with_its_own_strategy_or_not_at_all() {
    for (locking, other) in
        [("tree", "document"), ("document", "tree"), ("global", "version"), ("version", "global")]
    {
        let Some(mut mounted) = Mounted::unmounted_with(locking) else { return };
        let words = mounted.try_mount(&format!("locking={other}")).refused();
        assert!(words.contains(&format!("--locking {locking}")) && words.contains(other), "{words}");
        assert!(mount_entry(&mounted.mount_point).is_none());
        mounted.mount(&format!("locking={locking}"));
        let status = ask(&mounted, "status", &[]).ok();
        assert!(status.contains(&format!("locking: {locking}")), "{status}");
        let volume = ask(&mounted, "get", &["volume"]).ok();
        assert!(volume.contains(&format!("\"locking\": \"{locking}\"")), "{volume}");
        mounted.finish();
    }
}

#[test]
fn an_unknown_strategy_is_refused_and_the_known_ones_are_named() {
    let Some(mut mounted) = Mounted::unmounted() else { return };
    let words = mounted.try_mount("locking=book").refused();
    assert!(words.contains("tree, document, global and version"), "{words}");
    let other = mounted.dir.path().join("other");
    let words =
        lockwood(["format".as_ref(), other.as_os_str(), "--locking".as_ref(), "book".as_ref()]).refused();
    assert!(words.contains("document") && words.contains("version"), "{words}");
    assert!(!other.exists());
    mounted.mount("rw");
    mounted.finish();
}

#[test]
fn the_locks_of_a_hold_are_those_of_the_strategy() {
    let all = [
        ("tree", "/d shared\n/d/e exclusive\n"),
        ("document", "/d/e exclusive\n/d/e/f exclusive\n"),
        ("global", "/ exclusive\n"),
    ];
    for (locking, expected) in all {
        let Some(mut mounted) = Mounted::unmounted_with(locking) else { return };
        mounted.mount("rw");
        fs::create_dir_all(mounted.path("d/e/f")).unwrap();
        let show = "\"$0\" locks \"$1\" | awk 'NR > 1 { print $1, $2 }'";
        let mut lock = Command::new(BINARY);
        lock.arg("lock").arg(mounted.path("d/e")).args(["--", "sh", "-c", show, BINARY]);
        assert_eq!(run(lock.arg(&mounted.mount_point)).ok(), expected);
        mounted.finish();
    }
}

#[test]
fn where_there_are_no_locks_whoever_asks_is_told_so() {
    let Some(mut mounted) = Mounted::unmounted_with("version") else { return };
    mounted.mount("rw");
    fs::create_dir(mounted.path("d")).unwrap();
    let ran = run(Command::new(BINARY).arg("lock").arg(mounted.path("d")).args(["--", "true"]));
    assert_eq!(ran.code, 69, "{ran:?}");
    assert!(ran.stderr.contains("no locks") && ran.stderr.contains("--locking version"), "{ran:?}");
    fs::rename(mounted.path("d"), mounted.path("e")).unwrap();
    let locks = ask(&mounted, "locks", &[]).ok();
    assert!(locks.contains("--locking version"), "{locks}");
    assert_eq!(ask(&mounted, "locks", &["--json"]).ok().trim(), "[]");
    mounted.finish();
}
