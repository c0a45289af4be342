//! Commits that are made only if somebody says so.

use super::{conflict, content, put};
use crate::document::{Ino, Key};
use crate::store::cells::Along;
use crate::store::{Commit, Store};

pub(super) fn once(store: &dyn Store) {
    let (one, other) = (Key::Content(Ino(3)), Key::Content(Ino(4)));
    put(store, one.clone(), content(1));
    let commit = Commit::new().put(one.clone(), content(2)).put(other.clone(), content(5));
    let mut asked = 0;
    let refusing = Box::new(|_: Option<Along<'_>>| {
        asked += 1;
        false
    });
    assert_eq!(store.commit_once(&commit, refusing).unwrap(), None);
    assert_eq!(asked, 1);
    assert_eq!(*store.get(&one).unwrap().unwrap().document, content(1));
    assert_eq!(store.get(&other).unwrap(), None);
    let granting = Box::new(|_: Option<Along<'_>>| {
        asked += 1;
        true
    });
    assert!(store.commit_once(&commit, granting).unwrap().is_some());
    assert_eq!(asked, 2);
    assert_eq!(*store.get(&one).unwrap().unwrap().document, content(2));
    assert_eq!(*store.get(&other).unwrap().unwrap().document, content(5));
}

/// What fails is no more made for being granted.
pub(super) fn checked(store: &dyn Store) {
    let key = Key::Content(Ino(3));
    put(store, key.clone(), content(1));
    let commit = Commit::new().absent(key.clone()).put(key.clone(), content(2));
    let granted = store.commit_once(&commit, Box::new(|_| true));
    assert_eq!(conflict(granted.map(Option::unwrap_or_default)), key);
    let nothing = Commit::new().absent(Key::Content(Ino(9)));
    assert_eq!(store.commit_once(&nothing, Box::new(|_| false)).unwrap(), None);
    assert_eq!(*store.get(&key).unwrap().unwrap().document, content(1));
}
