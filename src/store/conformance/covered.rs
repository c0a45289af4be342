//! Commits whose checks the locks of the tree cover.

use super::{conflict, directory, entry, name, node, put, session};
use crate::document::{Ino, Key, SessionId, SessionState, Version};
use crate::store::{Check, Commit, Store};

/// A session that renames checks the entries above, which its locks cover, beside what it writes: many of them together.
pub(super) fn entries(store: &dyn Store) {
    let id = SessionId(u64::MAX - 5);
    put(store, Key::Session(id), session(SessionState::Live));
    if let Some(intents) = store.intents() {
        intents.begin(id).unwrap();
    }
    let all: Vec<Key> = (0..33).map(|n| Key::Entry(Ino(1), name(&format!("{n}")))).collect();
    let mut versions: Vec<Version> = all.iter().map(|key| put(store, key.clone(), entry(2))).collect();
    for count in [1, 2, 4, 5, 16, 17, 33] {
        let keys = &all[..count];
        let commit = |versions: &[Version]| {
            let checks =
                keys.iter().cloned().zip(versions).map(|(key, version)| Check::Version(key, *version));
            Commit { checks: checks.collect(), covered: true, ..Commit::new() }
                .put(node(1), directory(0))
                .by(id)
        };
        let made = store.commit(&commit(&versions)).unwrap();
        for n in 0..count {
            let mut stale = versions.clone();
            stale[n].0 += 1000;
            assert!(keys.contains(&conflict(store.commit(&commit(&stale)))), "{n} of {count}");
        }
        assert_eq!(store.node(Ino(1)).unwrap().unwrap().0, made, "a refused commit changed something");
        let last = &keys[count - 1];
        store.commit(&Commit::new().delete(last.clone())).unwrap();
        assert!(keys.contains(&conflict(store.commit(&commit(&versions)))), "the last of {count} is gone");
        versions[count - 1] = put(store, last.clone(), entry(2));
    }
}
