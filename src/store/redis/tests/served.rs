//! What only this engine has: its keys, its indexes, what it costs, and what damage does to it.

use super::proxy::Proxy;
use super::*;
use crate::ambient::monotonic;
use crate::store::{Range, Start};

fn all(kind: crate::document::Kind) -> Scan {
    Scan { range: Range::All(kind), start: Start::First, limit: 100 }
}

#[test]
fn documents_can_be_read_by_people() {
    let Some(server) = RedisServer::start() else { return };
    let store = store(&server.url("lockwood"));
    let id = SessionId(0xab);
    let claim = crate::document::LockClaim {
        session: id,
        operation: 1,
        mode: crate::document::LockMode::Exclusive,
        purpose: "rename /a to /b".into(),
        since_ns: 5,
    };
    let lock =
        crate::document::LockRecord { path: b"/clinton".to_vec(), holders: vec![claim], waiters: Vec::new() };
    let commit = Commit::new()
        .put(node(17), directory(2))
        .put(Key::Entry(Ino(17), Name::new(b"README.txt").unwrap()), file())
        .put(Key::Session(id), session(id, SessionState::Live))
        .put(Key::Lock("%2Fclinton".into()), Document::Lock(lock));
    store.commit(&commit).unwrap();
    let connection = &mut admin(&server);
    let mut field = |key: &str, field: &str| -> String {
        redis::cmd("HGET")
            .arg(key)
            .arg(field)
            .query(connection)
            .unwrap_or_else(|e| panic!("{key} {field}: {e}"))
    };
    assert_eq!(field("{lockwood}:node:17", "mode"), "0755");
    assert_eq!(field("{lockwood}:node:17", "kind"), "directory");
    assert_eq!(field("{lockwood}:node:17", "mtime"), "1.000000000");
    let entry = field("{lockwood}:entry:17", "README.txt");
    assert_eq!(entry, r#"{"version":1,"ino":9,"kind":"regular"}"#);
    assert_eq!(field("{lockwood}:session:00000000000000ab", "state"), "live");
    assert_eq!(field("{lockwood}:lock:%2Fclinton", "lock_type"), "exclusive");
    assert_eq!(field("{lockwood}:lock:%2Fclinton", "lock_count"), "1");
    assert!(field("{lockwood}:lock:%2Fclinton", "holders").contains("\"purpose\":\"rename /a to /b\""));
}

#[test]
fn all_entries_are_scanned_in_order_over_directories() {
    let Some(server) = RedisServer::start() else { return };
    let store = store(&server.url("lockwood"));
    let mut expected = Vec::new();
    for parent in [2, 10, 1 << 61, 9, u64::MAX] {
        for i in 0..7 {
            let key = Key::Entry(Ino(parent), Name::new(format!("{i}\u{fc}").as_bytes()).unwrap());
            store.commit(&Commit::new().put(key.clone(), file())).unwrap();
            expected.push(key);
        }
    }
    expected.sort_by_key(Key::encode);
    for limit in [1, 3, 7, 8, 100] {
        let mut found = Vec::new();
        let mut start = Start::First;
        loop {
            let scan = Scan { range: Range::All(crate::document::Kind::Entry), start, limit };
            let page = store.scan(&scan).unwrap();
            found.extend(page.iter().map(|(key, _)| key.clone()));
            let Some((last, _)) = page.last().filter(|_| page.len() == limit) else { break };
            start = Start::After(last.clone());
        }
        assert_eq!(found, expected, "pages of {limit}");
    }
    let gone = expected.into_iter().fold(Commit::new(), Commit::delete);
    store.commit(&gone).unwrap();
    let left: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut admin(&server)).unwrap();
    let kept = [":outcomes:", ":version", ":server"];
    assert!(left.iter().all(|key| kept.iter().any(|kept| key.contains(kept))), "{left:?}");
}

#[test]
fn one_round_trip_each() {
    let Some(server) = RedisServer::start() else { return };
    let proxy = Proxy::new(server.port());
    let store = store(&format!("redis://127.0.0.1:{}?prefix=a", proxy.port));
    let create = |i: u64| {
        Commit::new()
            .absent(entry(&format!("f{i}")))
            .put(entry(&format!("f{i}")), file())
            .put(node(100 + i), directory(0))
            .merge(node(1), NodeDelta::entries_changed(1, 0, Timestamp::default()))
    };
    let names = Scan { range: Range::Entries(Ino(1)), start: Start::First, limit: 50 };
    store.commit(&Commit::new().put(node(1), directory(0))).unwrap();
    store.commit(&create(0)).unwrap();
    store.scan(&names).unwrap(); // Now the server knows the scripts.
    let keys: Vec<Key> = (0..500).map(node).collect();
    let cost = |what: &dyn Fn()| {
        let before = proxy.round_trips();
        what();
        proxy.round_trips() - before
    };
    assert_eq!(cost(&|| assert!(store.commit(&create(1)).is_ok())), 1, "a commit");
    assert_eq!(cost(&|| drop(store.get(&node(1)).unwrap())), 1, "a document");
    assert_eq!(cost(&|| drop(store.get_many(&keys).unwrap())), 1, "many documents");
    assert_eq!(cost(&|| drop(store.scan(&names).unwrap())), 1, "a page");
}

#[test]
fn damage_is_named_and_stops_a_commit_before_it_writes() {
    let Some(server) = RedisServer::start() else { return };
    let store = store(&server.url("v"));
    let connection = &mut admin(&server);
    let damaged = |result: Result<_, CommitError>| matches!(result, Err(CommitError::Store(_)));
    store.commit(&Commit::new().put(node(1), directory(0)).put(entry("a"), file())).unwrap();
    say(connection, &["SET", "{v}:node:2", "x"]);
    say(connection, &["HSET", "{v}:node:3", "kind", "fifo"]);
    say(connection, &["ZADD", "{v}:index:node", "0", "00000000000000000003", "0", "00000000000000000002"]);
    say(connection, &["SET", "{v}:index:entry:5", "x"]);
    for ino in [2, 3] {
        let error = store.get(&node(ino)).unwrap_err();
        assert!(
            matches!(&error, StoreError::Damaged { key, .. } if *key == format!("node:{ino}")),
            "{error}"
        );
    }
    let nodes = store.scan(&all(crate::document::Kind::Node)).unwrap();
    assert_eq!(nodes.iter().map(|(_, node)| node.is_ok()).collect::<Vec<_>>(), [true, false, false]);
    let into_five = Key::Entry(Ino(5), Name::new(b"a").unwrap());
    for bad in [
        Commit::new().put(node(9), directory(0)).put(node(2), directory(0)),
        Commit::new().put(node(9), directory(0)).delete(node(2)),
        Commit::new().put(node(9), directory(0)).put(into_five, file()),
        Commit::new()
            .put(node(9), directory(0))
            .merge(node(3), NodeDelta { children: 1, ..NodeDelta::default() }),
        Commit::new()
            .put(node(9), directory(0))
            .merge(node(3), NodeDelta { nlink: 1, ..NodeDelta::default() }),
    ] {
        assert!(damaged(store.commit(&bad)), "{bad:?}");
        assert_eq!(store.get(&node(9)).unwrap(), None, "half of {bad:?} was made");
    }
    say(connection, &["DEL", "{v}:node:1"]);
    let nodes = store.scan(&all(crate::document::Kind::Node)).unwrap();
    assert!(nodes[0].1.is_err(), "the index lists what is gone");
}

/// The server takes some thousand arguments a call, and is asked for all of them at once.
#[test]
fn one_among_thousands_that_shall_be_absent_is_found() {
    const MANY: u64 = 2500;
    let Some(server) = RedisServer::start() else { return };
    let store = store(&server.url("v"));
    let all = || (0..MANY).fold(Commit::new(), |commit, ino| commit.absent(node(ino)));
    for there in [0, 999, 1000, MANY - 1] {
        store.commit(&all().put(node(there), directory(0))).unwrap();
        let refused = store.commit(&all().put(node(MANY), directory(0)));
        assert!(matches!(refused, Err(CommitError::Conflict(key)) if key == node(there)), "node {there}");
        assert!(store.node(Ino(MANY)).unwrap().is_none(), "a refused commit changed something");
        store.commit(&Commit::new().delete(node(there))).unwrap();
    }
}

#[test]
fn merges_check_what_they_meet() {
    let Some(server) = RedisServer::start() else { return };
    let store = store(&server.url("v"));
    let Document::Node(mut plain) = directory(0) else { panic!() };
    plain.body = crate::document::Body::Fifo;
    plain.nlink = u32::MAX;
    store.commit(&Commit::new().put(node(1), directory(3)).put(node(2), Document::Node(plain))).unwrap();
    let merge = |ino, delta| store.commit(&Commit::new().merge(node(ino), delta));
    let some = NodeDelta::default;
    let extent = Some(crate::document::merge::Extent {
        size_at_least: 1,
        blocks: 1,
        place: crate::document::ContentPlace::Inline,
    });
    for (ino, delta) in [
        (1, NodeDelta { children: -4, ..some() }),
        (1, NodeDelta { children: i64::MIN, ..some() }),
        (1, NodeDelta { nlink: -3, ..some() }),
        (1, NodeDelta { xattrs: -1, ..some() }),
        (1, NodeDelta { extent, ..some() }),
        (2, NodeDelta { children: 1, ..some() }),
        (2, NodeDelta { nlink: 1, ..some() }),
    ] {
        let key = node(ino).to_string();
        match merge(ino, delta.clone()) {
            Err(CommitError::Store(StoreError::Damaged { key: damaged, .. })) => assert_eq!(damaged, key),
            other => panic!("{delta:?}: {other:?}"),
        }
    }
    let (_, before) = store.node(Ino(1)).unwrap().unwrap();
    let delta =
        NodeDelta { mode_clear: 0o055, reparent: Some((Ino(7), Name::new(b"\xff").unwrap())), ..some() };
    let mut expected = crate::document::Node::clone(&before);
    delta.apply(&mut expected).unwrap();
    merge(1, delta).unwrap();
    assert_eq!(*store.node(Ino(1)).unwrap().unwrap().1, expected);
}

/// How long a commit takes beside the cheapest write: for people, who run it with --ignored --nocapture.
#[test]
#[ignore = "measures"]
fn latency() {
    let Some(server) = RedisServer::start() else { return };
    let store = store(&server.url("v"));
    store.commit(&Commit::new().put(node(1), directory(0))).unwrap();
    let median = |name: &str, work: &mut dyn FnMut(u64)| {
        let mut took: Vec<_> = (0..3000)
            .map(|i| {
                let begun = monotonic();
                work(i);
                begun.elapsed()
            })
            .collect();
        took.sort();
        println!("{name:40} {:?}", took[took.len() / 2]);
    };
    let mut link = store.pool.link();
    median("SET", &mut |i| drop(link.ask(&ask_for(&["SET", "k", &i.to_string()])).unwrap()));
    median("get", &mut |_| drop(store.get(&node(1)).unwrap()));
    median("commit of one put", &mut |i| {
        store.commit(&Commit::new().put(node(2), directory(i))).unwrap();
    });
    median("create: 1 check, 2 puts, 1 merge", &mut |i| {
        let create = Commit::new()
            .absent(entry(&format!("f{i}")))
            .put(entry(&format!("f{i}")), file())
            .put(node(100 + i), directory(0))
            .merge(node(1), NodeDelta::entries_changed(1, 0, Timestamp::default()));
        store.commit(&create).unwrap();
    });
    median("page of 1000 entries", &mut |_| {
        let scan = Scan { range: Range::Entries(Ino(1)), start: Start::First, limit: 1000 };
        drop(store.scan(&scan).unwrap());
    });
}
