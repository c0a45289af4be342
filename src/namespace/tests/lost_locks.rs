//! Locks that the servers of a store lose when they crash, while a rename is under way.

use std::sync::Arc;

use parking_lot::Mutex;

use super::advisory::Hosts;
use super::away::Engine;
use super::world::{ROOT, name};
use crate::document::{Ino, Key, Kind};
use crate::lock::{LockError, LockGuard, Mode};
use crate::namespace::ops::make::{Make, What};
use crate::namespace::ops::rename::{Manner, Patience, Rename};
use crate::namespace::{Caller, Namespace, NamespaceError as E, Result};
use crate::store::memory::MemoryStore;
use crate::store::{Commit, Durability, Range, Store as _, StoreError, for_each};

fn rename(host: &Namespace) -> Result<()> {
    rename_in(host, ROOT, "f", "g")
}

fn rename_in(host: &Namespace, parent: Ino, from: &str, to: &str) -> Result<()> {
    let (name, new_name, manner) = (name(from), name(to), Manner::Replace);
    let rename = Rename { parent, name, new_parent: parent, new_name, manner, taken_for: None };
    host.rename(Caller::ROOT, &rename, Patience::Try).map(drop)
}

/// Returns how many there were.
fn lose_locks(store: &MemoryStore) -> usize {
    let mut lost = Vec::new();
    let note = |key: Key, _| -> std::result::Result<(), StoreError> {
        lost.push(key);
        Ok(())
    };
    for_each(store, Range::All(Kind::Lock), note).unwrap();
    let count = lost.len();
    store.commit(&lost.into_iter().fold(Commit::new(), Commit::delete)).unwrap();
    count
}

#[test]
fn a_rename_that_has_lost_its_locks_takes_them_again() {
    let hosts = Hosts::over(Engine::default(), false);
    *hosts.engine.before_rename.lock() = Some(Box::new(|store| assert_eq!(lose_locks(store), 2)));
    rename(&hosts.ada).unwrap();
    assert_eq!(hosts.grace.lookup(ROOT, &name("g")).unwrap().0, hosts.file);
    assert_eq!(hosts.ada.locks().documents().unwrap(), []);
    hosts.finish();
}

/// All that the commit rests on in the tree is as it was, so only the locks can tell.
#[test]
fn a_rename_that_has_lost_its_locks_changes_nothing_under_those_of_others() {
    let hosts = Hosts::over(Engine::default(), false);
    let held: Arc<Mutex<Option<LockGuard>>> = Arc::default();
    let (grace, holds) = (Arc::clone(&hosts.grace), Arc::clone(&held));
    *hosts.engine.before_rename.lock() = Some(Box::new(move |store| {
        assert_eq!(lose_locks(store), 2);
        *holds.lock() = Some(grace.hold(&[name("f")], Mode::Exclusive, "a test", Patience::Try).unwrap());
    }));
    let outcome = rename(&hosts.ada);
    assert!(matches!(outcome, Err(E::Lock(LockError::WouldBlock(_)))), "{outcome:?}");
    assert_eq!(hosts.grace.lookup(ROOT, &name("f")).unwrap().0, hosts.file);
    drop(held.lock().take());
    rename(&hosts.ada).unwrap();
    hosts.finish();
}

/// Who holds a lock for somebody outside makes no commit that would find out.
#[test]
fn a_hold_that_was_lost_is_found_out_by_asking() {
    let hosts = Hosts::over(Engine::default(), false);
    let hold = |host: &Namespace| host.hold(&[name("f")], Mode::Exclusive, "a test", Patience::Try).unwrap();
    let held = hold(&hosts.ada);
    let looked = |guard: &LockGuard| guard.look().unwrap()().unwrap();
    assert!(looked(&held).is_none());
    assert_eq!(lose_locks(&hosts.engine.memory), 1);
    assert!(matches!(looked(&held), Some(LockError::Forgotten)));
    let second = hold(&hosts.grace);
    assert!(matches!(looked(&held), Some(LockError::Forgotten)), "another has it");
    drop(held);
    assert!(looked(&second).is_none());
    // Nothing is lost that is taken from who was fenced.
    hosts.ada.fence_other(hosts.grace.session(), &"by the test".into()).unwrap();
    assert!(matches!(looked(&second), Some(LockError::SessionDropped)));
    drop(second);
    hosts.finish();
}

/// The third rename in one directory keeps the share of it, which later ones use without asking for it.
#[test]
fn a_share_that_is_to_be_kept_is_waited_for() {
    let hosts = Hosts::over(Engine::default(), false);
    let make = Make {
        parent: ROOT,
        name: &name("d"),
        what: What::Directory,
        mode: 0o755,
        umask: 0,
        caller: Caller::ROOT,
    };
    let (dir, _) = hosts.ada.make(&make).unwrap();
    let file = Make { parent: dir, name: &name("a"), what: What::Regular, ..make };
    hosts.ada.make(&file).unwrap();
    let durability = || hosts.engine.locks_taken.lock().drain(..).collect::<Vec<_>>();
    for (from, to, expected) in [
        ("a", "b", [Durability::Delayed]),
        ("b", "c", [Durability::Delayed]),
        ("c", "d", [Durability::Full]),
        ("d", "e", [Durability::Delayed]),
    ] {
        rename_in(&hosts.ada, dir, from, to).unwrap();
        assert_eq!(durability(), expected, "{from}");
    }
    hosts.finish();
}
