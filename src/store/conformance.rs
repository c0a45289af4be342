//! What every engine must do, whatever it is made of. Each test gets a new, empty store.

#![allow(clippy::unwrap_used)] // A test: an engine that fails has failed it.
#![allow(clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Check, Commit, CommitError, Range, Scan, ScanItem, Start, Store, StoreError, for_each};
use crate::document::{
    Body, Content, Directory, Document, Entry, EntryPosition, FileKind, Ino, Key, Kind, Locking, Name, Node,
    NodeDelta, Orphan, SessionId, Timestamp, Version, Volume, Xattr,
};

/// Makes an empty store.
pub type Factory<'a> = &'a dyn Fn() -> Box<dyn Store>;

type Test = fn(&dyn Store);

const IN_ONE_THREAD: [(&str, Test); 12] = [
    ("what was put is got", put_and_get),
    ("versions change at every write and never go back", versions_grow),
    ("a failed check changes nothing", all_or_nothing),
    ("each kind of check", checks),
    ("a commit of checks alone, and one that locks cover", checks_alone),
    ("merges commute and count", merges),
    ("a merge into nothing conflicts", merge_into_nothing),
    ("a directory is scanned in the order of positions, in pages", scan_directory),
    ("ranges end where they should", ranges_are_separate),
    ("a snapshot stays", snapshot_stays),
    ("a stopped store takes no change", stopped),
    ("many documents change at once", many_documents),
];

const IN_MANY_THREADS: [(&str, Test); 2] = [
    ("concurrent commits of one counter lose nothing", no_lost_update),
    ("concurrent merges conflict with nobody", merges_at_once),
];

/// Runs the whole suite.
///
/// # Panics
/// If the engine fails it.
pub fn run(factory: Factory<'_>) {
    run_in_one_thread(factory);
    run_all(factory, &IN_MANY_THREADS);
}

/// Runs what needs no threads: for a simulation.
///
/// # Panics
/// If the engine fails it.
pub fn run_in_one_thread(factory: Factory<'_>) {
    run_all(factory, &IN_ONE_THREAD);
}

fn run_all(factory: Factory<'_>, tests: &[(&str, Test)]) {
    for (name, test) in tests {
        eprintln!("conformance: {name}");
        test(&*factory());
    }
}

pub(crate) fn directory(children: u64) -> Document {
    let t = Timestamp { sec: 1, nsec: 0 };
    Document::Node(Node {
        mode: 0o755,
        uid: 0,
        gid: 0,
        nlink: 2,
        atime: t,
        mtime: t,
        ctime: t,
        btime: t,
        xattrs: 0,
        body: Body::Directory(Directory { parent: Ino::ROOT, name: None, children }),
    })
}

fn entry(ino: u64) -> Document {
    Document::Entry(Entry { ino: Ino(ino), kind: FileKind::Regular })
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn node(ino: u64) -> Key {
    Key::Node(Ino(ino))
}

fn content(byte: u8) -> Document {
    Document::Content(Content { bytes: vec![byte; 10].into() })
}

fn put(store: &dyn Store, key: Key, document: Document) -> Version {
    store.commit(&Commit::new().put(key, document)).unwrap()
}

fn conflict(result: Result<Version, CommitError>) -> Key {
    match result {
        Err(CommitError::Conflict(key)) => key,
        other => panic!("expected a conflict, got {other:?}"),
    }
}

fn put_and_get(store: &dyn Store) {
    for key in [Key::Volume, Key::Orphan(Ino(3))] {
        let document = match key.kind() {
            Kind::Volume => Document::Volume(Volume {
                format: 1,
                id: "0".repeat(32),
                locking: Locking::Tree,
                created: Timestamp::default(),
                next_ino: 2,
                epoch: 0,
                inline_max: 0,
            }),
            _ => Document::Orphan(Orphan { session: SessionId(4) }),
        };
        put(store, key.clone(), document.clone());
        assert_eq!(*store.get(&key).unwrap().unwrap().document, document);
    }
    let key = Key::Entry(Ino(1), name("a"));
    assert_eq!(store.get(&key).unwrap(), None);
    let version = put(store, key.clone(), entry(5));
    let stored = store.get(&key).unwrap().unwrap();
    assert_eq!((stored.version, &*stored.document), (version, &entry(5)));
    store.commit(&Commit::new().delete(key.clone())).unwrap();
    assert_eq!(store.get(&key).unwrap(), None);
    store.commit(&Commit::new().delete(key)).unwrap();
}

fn versions_grow(store: &dyn Store) {
    let mut last = Version(0);
    for i in 0..5 {
        let version = put(store, node(7), directory(i));
        assert!(version > last);
        last = version;
    }
    store.commit(&Commit::new().delete(node(7))).unwrap();
    assert!(put(store, node(7), directory(0)) > last, "a version was handed out twice");
}

fn all_or_nothing(store: &dyn Store) {
    let old = put(store, node(1), directory(0));
    put(store, node(1), directory(1));
    let commit = Commit::new()
        .at(node(1), old)
        .put(node(2), directory(0))
        .delete(node(1))
        .put(Key::Content(Ino(1)), content(1));
    assert_eq!(conflict(store.commit(&commit)), node(1));
    assert_eq!(store.get(&node(2)).unwrap(), None);
    assert!(store.get(&node(1)).unwrap().is_some());
    assert_eq!(store.get(&Key::Content(Ino(1))).unwrap(), None);
}

fn checks(store: &dyn Store) {
    let version = put(store, node(1), directory(0));
    let outcome = |check| store.commit(&Commit::new().check(check).put(Key::Content(Ino(9)), content(0)));
    assert!(outcome(Check::Exists(node(1))).is_ok());
    assert!(outcome(Check::Absent(node(2))).is_ok());
    assert!(outcome(Check::Version(node(1), version)).is_ok());
    assert_eq!(conflict(outcome(Check::Exists(node(2)))), node(2));
    assert_eq!(conflict(outcome(Check::Absent(node(1)))), node(1));
    assert_eq!(conflict(outcome(Check::Version(node(1), Version(version.0 + 1)))), node(1));
    assert_eq!(conflict(outcome(Check::Version(node(3), version))), node(3));
}

fn checks_alone(store: &dyn Store) {
    let old = put(store, node(1), directory(0));
    let new = put(store, node(1), directory(1));
    for covered in [false, true] {
        let commit = |version| Commit { covered, ..Commit::new().at(node(1), version).absent(node(2)) };
        store.commit(&commit(new)).unwrap();
        assert_eq!(conflict(store.commit(&commit(old))), node(1));
        let (version, now) = store.node(Ino(1)).unwrap().unwrap();
        assert_eq!((version, now.directory().unwrap().children), (new, 1), "a check changed something");
        assert_eq!(store.get(&node(2)).unwrap(), None);
        let beside = |version| commit(version).put(Key::Content(Ino(9)), content(u8::from(covered)));
        store.commit(&beside(new)).unwrap();
        assert_eq!(conflict(store.commit(&beside(old))), node(1));
        assert_eq!(store.node(Ino(1)).unwrap().unwrap().0, new);
    }
}

fn many_documents(store: &dyn Store) {
    const MANY: u64 = 100;
    put(store, node(MANY), directory(7));
    let all = (0..=MANY).fold(Commit::new(), |commit, ino| match ino {
        MANY => commit.delete(node(ino)),
        _ => commit.absent(node(ino)).put(node(ino), directory(ino)),
    });
    store.commit(&all).unwrap();
    let page = store.scan(&Scan { range: Range::All(Kind::Node), start: Start::First, limit: 1000 }).unwrap();
    assert_eq!(keys(&page), (0..MANY).map(node).collect::<Vec<_>>());
    assert_eq!(conflict(store.commit(&all)), node(0));
}

fn merges(store: &dyn Store) {
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

fn merge_into_nothing(store: &dyn Store) {
    let commit = Commit::new()
        .put(node(2), directory(0))
        .merge(node(1), NodeDelta::entries_changed(1, 0, Timestamp::default()));
    assert_eq!(conflict(store.commit(&commit)), node(1));
    assert_eq!(store.get(&node(2)).unwrap(), None);
}

fn keys(page: &[ScanItem]) -> Vec<Key> {
    page.iter().map(|(key, _)| key.clone()).collect()
}

fn scan_directory(store: &dyn Store) {
    for i in 0..100 {
        put(store, Key::Entry(Ino(4), name(&format!("file {i}"))), entry(100 + i));
    }
    let range = Range::Entries(Ino(4));
    let all = keys(&store.scan(&Scan { range, start: Start::First, limit: 1000 }).unwrap());
    assert_eq!(all.len(), 100);
    let position = |key: &Key| match key {
        Key::Entry(_, name) => EntryPosition::of(name.as_bytes()),
        other => panic!("{other}"),
    };
    assert!(all.is_sorted_by_key(position));
    let mut paged = Vec::new();
    let mut start = Start::First;
    loop {
        let page = keys(&store.scan(&Scan { range, start: start.clone(), limit: 7 }).unwrap());
        let Some(last) = page.last() else { break };
        // Both forms of a cursor go on at the same place.
        start = match start {
            Start::After(_) => Start::At(EntryPosition(position(last).0 + 1)),
            _ => Start::After(last.clone()),
        };
        paged.extend(page);
    }
    assert_eq!(paged, all);
}

fn ranges_are_separate(store: &dyn Store) {
    for parent in [3_u64, 4, 5] {
        put(store, node(parent), directory(1));
        put(store, Key::Entry(Ino(parent), name("only")), entry(parent));
        put(
            store,
            Key::Xattr(Ino(parent), b"user.a"[..].into()),
            Document::Xattr(Xattr { value: [1][..].into() }),
        );
    }
    let scan = |range| store.scan(&Scan { range, start: Start::First, limit: 10 }).unwrap();
    assert_eq!(keys(&scan(Range::Entries(Ino(4)))), [Key::Entry(Ino(4), name("only"))]);
    assert_eq!(keys(&scan(Range::Xattrs(Ino(5)))), [Key::Xattr(Ino(5), b"user.a"[..].into())]);
    assert_eq!(keys(&scan(Range::All(Kind::Node))), [node(3), node(4), node(5)]);
    assert!(scan(Range::Entries(Ino(6))).is_empty());
    let mut seen = 0;
    for_each::<_, StoreError>(store, Range::All(Kind::Entry), |_, stored| stored.map(|_| seen += 1)).unwrap();
    assert_eq!(seen, 3);
}

fn snapshot_stays(store: &dyn Store) {
    put(store, node(1), directory(1));
    let snapshot = store.snapshot();
    put(store, node(1), directory(2));
    put(store, node(2), directory(0));
    let children = |n: &Node| n.directory().unwrap().children;
    // An engine that cannot look back shows the present, and says so.
    let (before, nodes) = if store.capabilities().snapshots { (1, 1) } else { (2, 2) };
    assert_eq!(children(&snapshot.node(Ino(1)).unwrap().unwrap().1), before);
    let all = Scan { range: Range::All(Kind::Node), start: Start::First, limit: 10 };
    assert_eq!(snapshot.scan(&all).unwrap().len(), nodes);
    assert_eq!(store.scan(&all).unwrap().len(), 2);
}

fn stopped(store: &dyn Store) {
    put(store, node(1), directory(1));
    store.stop("the disk is on fire");
    let refused = store.commit(&Commit::new().put(node(2), directory(0)));
    assert!(matches!(refused, Err(CommitError::Store(StoreError::Stopped(cause))) if cause.contains("fire")));
    assert!(matches!(store.sync(), Err(StoreError::Stopped(_))));
    assert!(store.node(Ino(1)).unwrap().is_some() && store.node(Ino(2)).unwrap().is_none());
}

fn merges_at_once(store: &dyn Store) {
    const THREADS: u64 = 4;
    const EACH: u64 = 50;
    put(store, node(1), directory(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for i in 0..EACH {
                    let ino = 100 + thread * EACH + i;
                    let create = Commit::new()
                        .absent(node(ino))
                        .put(node(ino), directory(0))
                        .merge(node(1), NodeDelta::entries_changed(1, 1, Timestamp::default()));
                    store.commit(&create).unwrap();
                }
            });
        }
    });
    let (_, now) = store.node(Ino(1)).unwrap().unwrap();
    assert_eq!(now.directory().unwrap().children, THREADS * EACH);
    assert_eq!(store.counters().conflicts, 0);
}

fn no_lost_update(store: &dyn Store) {
    const THREADS: u64 = 4;
    const EACH: u64 = 200;
    put(store, node(1), directory(0));
    let retries = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    // One thread's read-check-write against the others', beside a merge that conflicts with nobody.
                    loop {
                        let (version, now) = store.node(Ino(1)).unwrap().unwrap();
                        let next = directory(now.directory().unwrap().children + 1);
                        match store.commit(&Commit::new().at(node(1), version).put(node(1), next)) {
                            Ok(_) => break,
                            Err(CommitError::Conflict(_)) => retries.fetch_add(1, Ordering::Relaxed),
                            Err(other) => panic!("{other}"),
                        };
                    }
                }
            });
        }
    });
    let (_, now) = store.node(Ino(1)).unwrap().unwrap();
    assert_eq!(now.directory().unwrap().children, THREADS * EACH);
    assert_eq!(store.counters().conflicts, retries.load(Ordering::Relaxed));
}
