//! A holder that stands still past the end of its locks, and what the commit's checks are for. This is the case against
//! Redlock (M. Kleppmann, "How to do distributed locking"): the locks are given to another, both go on, and a lock server
//! can refuse neither. Here the commit refuses the one that was late.
//!
//! The two renames are those that make a loop: each is legal alone.

use std::process::Command;
use std::time::Duration;

use lockwood::document::{Ino, Key, Name};
use lockwood::lock::{LockError, Locks};
use lockwood::namespace::NamespaceError;
use lockwood::rules;

use super::volume::{At, Host, format};
use super::{Fleet, servers};

const LEASE: Duration = Duration::from_secs(3);
/// Of the process that runs a test without the checks.
const OFF: &str = "LOCKWOOD_RULES_OFF";

/// One host stands still in `mv /a /b/d/e` while another does `mv /b/d /a/c`. Returns what came of the first, and which
/// rules the volume breaks.
fn stand_still(at: At) -> Option<(Result<(), NamespaceError>, Vec<String>)> {
    let fleet = Fleet::start(3)?;
    let (_server, url) = format()?;
    let join = |name| Host::join(&url, name, LEASE, Some(servers(&fleet.list(), Duration::ZERO))).unwrap();
    let (late, other) = (join("late"), join("other"));
    let a = late.directory(Ino::ROOT, "a");
    let b = late.directory(Ino::ROOT, "b");
    let d = late.directory(b, "d");
    let commits = u32::from(at == At::Commit);
    late.store.halt(at);
    let before = late.store.sent();
    let outcome = std::thread::scope(|scope| {
        let renaming = scope.spawn(|| late.rename((Ino::ROOT, "a"), (d, "e")));
        late.store.wait_until_halted();
        let held = other.namespace.locks().documents().unwrap();
        assert_eq!(held.len(), 4, "it stands still with its locks: {held:?}");
        let Locks::Redlock(locks) = late.namespace.locks() else { panic!("{:?}", late.namespace.locks()) };
        locks.stand_still();
        // Waits until the locks have ended, and gets them.
        other.rename((b, "d"), (a, "c")).unwrap();
        late.store.go_on();
        renaming.join().unwrap()
    });
    assert_eq!(late.store.sent() - before, commits, "who knows that its locks are lost sends no commit");
    let violations = other.violations();
    // What the other did is there.
    let c = other.namespace.lookup(a, &Name::new(b"c").unwrap());
    assert_eq!(c.map(|(ino, _)| ino).ok(), Some(d));
    if outcome.is_err() {
        // It goes on, with locks of its own, once it is told: this time it sees that it cannot be done.
        let again = late.rename((Ino::ROOT, "a"), (d, "e"));
        assert!(matches!(again, Err(NamespaceError::IntoItself)), "{again:?}");
        late.rename((Ino::ROOT, "b"), (d, "e")).unwrap();
        late.namespace.end().unwrap();
        assert_eq!(other.violations(), Vec::<String>::new());
        other.namespace.end().unwrap();
    }
    Some((outcome, violations))
}

#[test]
fn a_holder_that_looks_at_its_locks_too_late_changes_nothing() {
    let source = Key::Entry(Ino::ROOT, Name::new(b"a").unwrap());
    let Some((outcome, violations)) = stand_still(At::SecondRead(source)) else { return };
    assert!(matches!(outcome, Err(NamespaceError::Lock(LockError::Lapsed { .. }))), "{outcome:?}");
    assert_eq!(violations, Vec::<String>::new());
}

/// Between the last look at the locks and the commit nothing protects but the commit itself.
#[test]
fn a_holder_that_stands_still_before_its_commit_is_refused_by_the_commit() {
    let Some((outcome, violations)) = stand_still(At::Commit) else { return };
    assert!(matches!(outcome, Err(NamespaceError::Lock(LockError::Lapsed { .. }))), "{outcome:?}");
    assert_eq!(violations, Vec::<String>::new());
}

/// What would be without: the same in a process whose commits do not check what their locks were to keep in place.
#[test]
fn without_the_checks_of_the_commit_the_tree_is_cut_in_two() {
    let name = "redlock::paused::without_the_checks_of_the_commit_the_tree_is_cut_in_two";
    if std::env::var_os(OFF).is_none() {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(OFF, "source-ancestors-checked,destination-ancestors-checked")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success(), "{text}\n{}", String::from_utf8_lossy(&child.stderr));
        assert!(text.contains("1 passed"), "{text}");
        return;
    }
    rules::read_environment().unwrap();
    let Some((outcome, violations)) = stand_still(At::Commit) else { return };
    outcome.unwrap();
    println!("{violations:#?}");
    assert!(!violations.is_empty(), "both renames were done, and no loop came of it");
}
