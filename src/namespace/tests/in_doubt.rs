//! Renames of which the store does not say whether they were made: what becomes of them, and of their locks; and names that
//! it refuses without a reason of theirs.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use super::advisory::Hosts;
use super::away::Engine;
use super::world::{PATIENCE, ROOT, name};
use crate::ambient;
use crate::document::{Ino, Key};
use crate::lock::LockError;
use crate::namespace::ops::make::{Make, What};
use crate::namespace::ops::rename::{Manner, Patience, Rename};
use crate::namespace::{Caller, Namespace, NamespaceError as E, Result};
use crate::store::{CommitError, Store as _, StoreError};

fn rename(host: &Namespace, from: &str, to: &str, manner: Manner) -> Result<()> {
    let (name, new_name) = (name(from), name(to));
    let rename = Rename { parent: ROOT, name, new_parent: ROOT, new_name, manner, taken_for: None };
    host.rename(Caller::ROOT, &rename, Patience::Try).map(drop)
}

/// Ada's rename of `f` to `g`, whose answer is lost, and whether it is made before that.
fn in_doubt(is_made: bool, manner: Manner) -> Hosts {
    let hosts = Hosts::over(Engine::default(), false);
    hosts.engine.names_stay.store(true, SeqCst);
    *hosts.engine.loses.lock() = Some(is_made);
    let outcome = rename(&hosts.ada, "f", "g", manner);
    assert!(matches!(outcome, Err(E::Store(StoreError::Unknown(_)))), "{outcome:?}");
    assert_eq!(hosts.ada.in_doubt(), 1);
    hosts
}

fn is_blocked(host: &Namespace, from: &str, to: &str) -> bool {
    matches!(rename(host, from, to, Manner::Replace), Err(E::Lock(LockError::WouldBlock(_))))
}

fn until_decided(host: &Namespace) {
    let begun: Instant = ambient::monotonic();
    while host.in_doubt() > 0 {
        assert!(begun.elapsed() < PATIENCE, "it stays in doubt");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// They were kept until the end of the mount, though the store was back long before.
#[test]
fn the_locks_of_a_rename_in_doubt_are_kept_until_it_is_decided_and_no_longer() {
    for is_made in [false, true] {
        let hosts = in_doubt(is_made, Manner::Replace);
        let [now, other] = if is_made { ["g", "f"] } else { ["f", "g"] };
        std::thread::sleep(std::time::Duration::from_millis(600));
        // The commit that makes it lets go of them as well.
        assert_eq!(is_blocked(&hosts.grace, now, "h"), !is_made);
        hosts.engine.names_stay.store(false, SeqCst);
        until_decided(&hosts.ada);
        assert_eq!(hosts.ada.locks().documents().unwrap(), []);
        rename(&hosts.grace, now, "h", Manner::Replace).unwrap();
        // What was under way until now comes too late.
        let lost = hosts.engine.lost.lock().take().unwrap();
        let late = hosts.engine.commit(&lost);
        assert!(matches!(late, Err(CommitError::Conflict(_))), "made: {is_made}: {late:?}");
        assert!(matches!(hosts.grace.lookup(ROOT, &name(other)), Err(E::NotFound)));
        hosts.finish();
    }
}

/// Also where nothing was changed since it was lost: that is what the names are written anew for.
#[test]
fn a_rename_that_was_not_made_never_is_once_its_locks_are_free() {
    for manner in [Manner::Replace, Manner::NoReplace, Manner::Whiteout] {
        let hosts = in_doubt(false, manner);
        hosts.engine.names_stay.store(false, SeqCst);
        until_decided(&hosts.ada);
        let lost = hosts.engine.lost.lock().take().unwrap();
        assert!(matches!(hosts.engine.commit(&lost), Err(CommitError::Conflict(_))), "{manner:?}");
        assert_eq!(hosts.ada.lookup(ROOT, &name("f")).unwrap().0, hosts.file);
        hosts.finish();
    }
}

#[test]
fn a_rename_in_doubt_is_decided_though_neither_name_is_left() {
    let hosts = in_doubt(true, Manner::Replace);
    hosts.engine.names_stay.store(false, SeqCst);
    hosts.grace.unlink(ROOT, &name("g")).unwrap();
    until_decided(&hosts.ada);
    assert_eq!(hosts.ada.locks().documents().unwrap(), []);
    hosts.finish();
}

#[test]
fn a_mount_ends_though_a_rename_is_in_doubt_and_its_locks_go_with_its_session() {
    let hosts = in_doubt(false, Manner::Replace);
    hosts.ada.end().unwrap();
    rename(&hosts.grace, "f", "h", Manner::Replace).unwrap_err();
    hosts.engine.names_stay.store(false, SeqCst);
    rename(&hosts.grace, "f", "h", Manner::Replace).unwrap();
    hosts.grace.end().unwrap();
}

/// Where many make names in a directory, an engine that changes one document at a time may give up for want of a turn: that
/// says nothing of what is there.
#[test]
fn a_name_that_is_refused_for_no_reason_is_made() {
    let hosts = Hosts::over(Engine::default(), false);
    let make = |text: &str| {
        let (name, what, caller) = (&name(text), What::Regular, Caller::ROOT);
        hosts.ada.make(&Make { parent: ROOT, name, what, mode: 0o644, umask: 0, caller }).map(|(ino, _)| ino)
    };
    let first = make("first").unwrap();
    let key = Key::Entry(ROOT, name("second"));
    for (refused, text) in [(Key::Node(ROOT), "a"), (Key::Node(Ino(first.0 + 2)), "b"), (key, "second")] {
        *hosts.engine.refuses.lock() = Some(refused);
        make(text).unwrap();
        assert!(hosts.engine.refuses.lock().is_none());
        assert!(matches!(make(text), Err(E::Exists)));
    }
}
