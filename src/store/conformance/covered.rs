//! Commits whose checks the locks of the tree cover, and commits of those locks.

use super::{conflict, directory, entry, name, node, put, session};
use crate::document::{Document, Ino, Key, LockRecord, SessionId, SessionState, Version};
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

fn lock(path: &str) -> Document {
    Document::Lock(LockRecord { path: path.into(), holders: Vec::new(), waiters: Vec::new() })
}

/// Many locks in one commit: all or none, whichever of them somebody else has changed.
pub(super) fn lock_sets(store: &dyn Store) {
    if !store.capabilities().one_version {
        return; // Over cells each lock is changed by itself.
    }
    let all: Vec<Key> = (0..70).map(|n| Key::Lock(format!("set{n:02}").into())).collect();
    for count in [1, 2, 3, 7, 70] {
        let keys = &all[..count];
        let there = || store.get_many(keys).unwrap().iter().filter(|found| found.is_some()).count();
        let document = |key: &Key| lock(&format!("/{key}"));
        let take = || {
            let each = |commit: Commit, key: &Key| commit.absent(key.clone()).put(key.clone(), document(key));
            keys.iter().fold(Commit::new(), each)
        };
        let release = |versions: &[Version]| {
            let each = |commit: Commit, (key, version): (&Key, &Version)| {
                commit.at(key.clone(), *version).delete(key.clone())
            };
            keys.iter().zip(versions).fold(Commit::new(), each)
        };
        let refused = |commit: &Commit| assert!(keys.contains(&conflict(store.commit(commit))));

        for another in [0, count - 1] {
            put(store, keys[another].clone(), lock("another's"));
            refused(&take());
            assert_eq!(there(), 1, "a part of a set of {count} was taken");
            store.commit(&Commit::new().delete(keys[another].clone())).unwrap();
        }
        let taken = store.commit(&take()).unwrap();
        for key in keys {
            let found = store.get(key).unwrap().unwrap();
            assert_eq!((found.version, &*found.document), (taken, &document(key)));
        }
        let mut versions = vec![taken; count];
        for changed in [0, count - 1] {
            let before = versions[changed];
            versions[changed] = put(store, keys[changed].clone(), lock("waited for"));
            for others in 0..count {
                let mut stale = versions.clone();
                stale[others] = if others == changed { before } else { versions[changed] };
                if stale != versions {
                    refused(&release(&stale));
                }
            }
            assert_eq!(there(), count, "a part of a set of {count} was released");
        }
        store.commit(&release(&versions)).unwrap();
        assert_eq!(there(), 0);

        let taken = store.commit(&take()).unwrap();
        store.commit(&Commit::new().delete(keys[0].clone())).unwrap();
        refused(&release(&vec![taken; count]));
        assert_eq!(there(), count - 1, "what is left of a set of {count} was released");
        put(store, keys[0].clone(), lock("another's"));
        refused(&release(&vec![taken; count]));
        let again =
            store.commit(&keys.iter().fold(Commit::new(), |all, key| all.put(key.clone(), document(key))));
        store.commit(&release(&vec![again.unwrap(); count])).unwrap();
        assert_eq!(there(), 0);
    }
}
