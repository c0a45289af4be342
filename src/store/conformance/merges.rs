//! Merges: changes of a node that are counted on top of each other.

use super::{conflict, directory, entry, name, node, put};
use crate::document::{Ino, Key, NodeDelta, Timestamp};
use crate::store::{Commit, Store};

pub(super) fn commute(store: &dyn Store) {
    let seen = put(store, node(1), directory(0));
    let later = Timestamp { sec: 9, nsec: 0 };
    let earlier = Timestamp { sec: 5, nsec: 0 };
    store.commit(&Commit::new().merge(node(1), NodeDelta::entries_changed(1, 1, later))).unwrap();
    store.commit(&Commit::new().merge(node(1), NodeDelta::entries_changed(2, 0, earlier))).unwrap();
    let (version, now) = store.node(Ino(1)).unwrap().unwrap();
    assert_eq!((now.directory().unwrap().children, now.nlink, now.mtime), (3, 3, earlier));
    assert!(version > seen);
    // Who saw it empty conflicts with every merge since.
    assert_eq!(conflict(store.commit(&Commit::new().at(node(1), seen).delete(node(1)))), node(1));
    // A merge that does not fit is refused, and changes nothing.
    let bad = Commit::new().merge(node(1), NodeDelta { children: -9, ..NodeDelta::default() });
    assert!(store.commit(&bad).is_err());
    assert_eq!(store.node(Ino(1)).unwrap().unwrap().0, version);
}

/// Two commits remove one entry, and each counts it off: the second is refused for the entry, not for the count.
pub(super) fn counted_off_twice(store: &dyn Store) {
    let gone = Key::Entry(Ino(1), name("a"));
    put(store, node(1), directory(1));
    let seen = put(store, gone.clone(), entry(2));
    let removal = Commit::new()
        .at(gone.clone(), seen)
        .delete(gone.clone())
        .merge(node(1), NodeDelta::entries_changed(-1, 0, Timestamp::default()));
    store.commit(&removal).unwrap();
    assert_eq!(conflict(store.commit(&removal)), gone);
}

pub(super) fn into_nothing(store: &dyn Store) {
    let commit = Commit::new()
        .put(node(2), directory(0))
        .merge(node(1), NodeDelta::entries_changed(1, 0, Timestamp::default()));
    assert_eq!(conflict(store.commit(&commit)), node(1));
    assert_eq!(store.get(&node(2)).unwrap(), None);
}
