//! Commits that are one statement each.

use std::sync::atomic::{AtomicU64, Ordering};

use lockwood::document::{Document, Ino, Key, LockRecord, NodeDelta, Orphan, SessionId, Version};
use lockwood::store::conformance::directory;
use lockwood::store::{Commit, CommitError, Reader, Store};

use super::server::PostgresServer;
use super::{empty, format};

fn orphan() -> Document {
    Document::Orphan(Orphan { session: SessionId(1) })
}

/// The server runs the parts of a statement in the order in which they are asked for; in any other order some of these would
/// wait for each other in a circle, and the server would find that out and count it.
#[test]
fn who_changes_the_same_documents_takes_them_in_one_order() {
    let Some(server) = PostgresServer::start() else { return };
    let store = empty(&server.url("ordered"));
    let nodes = 1..=6;
    let make = nodes.clone().fold(Commit::new(), |made, n| made.put(Key::Node(Ino(n)), directory(0)));
    store.commit(&make).unwrap();
    let rounds = 300;
    std::thread::scope(|scope| {
        for turned in [false, true, false, true] {
            let (store, mut order) = (&store, nodes.clone().collect::<Vec<_>>());
            if turned {
                order.reverse();
            }
            scope.spawn(move || {
                let one_more = NodeDelta { children: 1, ..NodeDelta::default() };
                for _ in 0..rounds {
                    let merge = |all: Commit, n: &u64| all.merge(Key::Node(Ino(*n)), one_more.clone());
                    store.commit(&order.iter().fold(Commit::new(), merge)).unwrap();
                }
            });
        }
    });
    for n in nodes {
        let (_, node) = store.node(Ino(n)).unwrap().unwrap();
        assert_eq!(node.directory().unwrap().children, 4 * rounds);
    }
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'lockwood'";
    assert_eq!(server.psql("lockwood", deadlocks), "0");
}

/// The locks of a set are taken by one part of a statement, and released so.
#[test]
fn who_takes_locks_of_the_same_sets_takes_them_in_one_order() {
    let Some(server) = PostgresServer::start() else { return };
    let store = empty(&server.url("sets"));
    let ids = ["b", "A", "%2Fz", "ä", "a", "B%"];
    let taken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (store, taken) = (&store, &taken);
            scope.spawn(move || {
                for round in 0..300 {
                    let set = (0..4).map(|n| Key::Lock(ids[(thread + round + n) % ids.len()].into()));
                    let take = |all: Commit, key: Key| {
                        let record =
                            LockRecord { path: Vec::new(), holders: Vec::new(), waiters: Vec::new() };
                        all.absent(key.clone()).put(key, Document::Lock(record))
                    };
                    match store.commit(&set.clone().fold(Commit::new(), take)) {
                        Ok(at) => {
                            let release = |all: Commit, key: Key| all.at(key.clone(), at).delete(key);
                            store.commit(&set.fold(Commit::new(), release)).unwrap();
                            taken.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(CommitError::Conflict(_)) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    });
    assert!(taken.into_inner() > 100, "hardly anything was free");
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'lockwood'";
    assert_eq!(server.psql("lockwood", deadlocks), "0");
    assert_eq!(server.psql("lockwood", "SELECT count(*) FROM sets.lock"), "0");
}

#[test]
fn a_refusal_names_the_document_wherever_it_stands() {
    let Some(server) = PostgresServer::start() else { return };
    let store = empty(&server.url("refused"));
    let keys: Vec<Key> = (1..=14).map(|n| Key::Orphan(Ino(n))).collect();
    let make = keys.iter().fold(Commit::new(), |made, key| made.put(key.clone(), orphan()));
    let at = store.commit(&make).unwrap();
    for wrong in &keys {
        let seen = |key: &Key| if key == wrong { Version(at.0 + 1000) } else { at };
        let put = |all: Commit, key: &Key| all.at(key.clone(), seen(key)).put(key.clone(), orphan());
        let refused = store.commit(&keys.iter().fold(Commit::new(), put));
        assert!(matches!(&refused, Err(CommitError::Conflict(key)) if key == wrong), "{refused:?}");
    }
}

/// A connection keeps 64 of these statements, and the server one plan for each.
#[test]
fn commits_may_have_more_shapes_than_a_connection_keeps_statements() {
    let Some(server) = PostgresServer::start() else { return };
    let store = format(&server.url("shapes"));
    let keys = |count| (1..=count).map(|n| Key::Orphan(Ino(n)));
    for _ in 0..2 {
        for count in 1..=23 {
            let made = keys(count).fold(Commit::new(), |all, key| all.absent(key.clone()).put(key, orphan()));
            store.commit(&made).unwrap();
            let replaced = keys(count).fold(Commit::new(), |all, key| all.put(key, orphan()));
            let at = store.commit(&replaced).unwrap();
            let deleted = keys(count).fold(Commit::new(), |all, key| all.at(key.clone(), at).delete(key));
            store.commit(&deleted).unwrap();
            assert!(keys(count).all(|key| store.get(&key).unwrap().is_none()));
        }
    }
}
