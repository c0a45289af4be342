//! Merges: changes of a node that are counted on top of each other.

use super::{conflict, directory, entry, name, node, put};
use crate::document::merge::Extent;
use crate::document::{Body, ContentPlace, Document, Ino, Key, Node, NodeDelta, Regular, Timestamp};
use crate::store::{Commit, CommitError, Store, StoreError};

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
}

fn regular_file() -> Document {
    let Document::Node(of_directory) = directory(0) else { unreachable!() };
    let body = Body::Regular(Regular { size: 0, blocks: 0, place: ContentPlace::Empty });
    Document::Node(Node { nlink: 1, body, ..of_directory })
}

/// What does not fit the node that it meets is refused, and changes nothing, nor does what stands beside it.
pub(super) fn misfits(store: &dyn Store) {
    put(store, node(1), directory(3));
    put(store, node(2), regular_file());
    let [of_directory, of_file] = [1, 2].map(|ino| store.node(Ino(ino)).unwrap().unwrap().0);
    let change = NodeDelta::default;
    let extent = Extent { size_at_least: 1, blocks: 1, place: ContentPlace::Inline };
    let misfits = [
        (1, NodeDelta { children: -4, ..change() }),
        (1, NodeDelta { nlink: -3, ..change() }),
        (1, NodeDelta { xattrs: -1, ..change() }),
        (1, NodeDelta { extent: Some(extent), ..change() }),
        (2, NodeDelta { nlink: -2, ..change() }),
        (2, NodeDelta { xattrs: -1, ..change() }),
        (2, NodeDelta { children: 1, ..change() }),
        (2, NodeDelta { children: -1, ..change() }),
        (2, NodeDelta { reparent: Some((Ino(1), name("d"))), ..change() }),
    ];
    for (ino, misfit) in misfits {
        let version = if ino == 1 { of_directory } else { of_file };
        let blind = Commit::new().merge(node(ino), misfit.clone());
        let checked = Commit::new().at(node(ino), version).merge(node(ino), misfit.clone());
        for commit in [blind, checked] {
            let refusal = store.commit(&commit.put(node(3), directory(0))).unwrap_err();
            let CommitError::Store(StoreError::Damaged { key, .. }) = &refusal else {
                panic!("{misfit:?}: {refusal}")
            };
            assert_eq!(*key, node(ino).to_string(), "{misfit:?}");
        }
    }
    assert_eq!(store.node(Ino(1)).unwrap().unwrap().0, of_directory);
    assert_eq!(store.node(Ino(2)).unwrap().unwrap().0, of_file);
    assert_eq!(store.get(&node(3)).unwrap(), None);
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
