//! What every engine must do, whatever it is made of. Each test gets a new, empty store.

#![allow(clippy::unwrap_used)] // A test: an engine that fails has failed it.
#![allow(clippy::panic)]

mod covered;
mod granted;
mod merges;
mod threads;

use std::sync::Arc;

use super::intents::settle;
use super::{Check, Commit, CommitError, Range, Scan, ScanItem, Start, Store, StoreError, for_each};
use crate::ambient::{Clock, SystemClock};
use crate::document::{
    AdvisoryFamily, AdvisoryLock, AdvisoryRecord, Body, Chunk, Content, ContentPlace, Directory, Document,
    Entry, EntryPosition, FileKind, Ino, Key, Kind, LockClaim, LockMode, LockRecord, Locking, Name, Node,
    NodeDelta, OFFSET_MAX, Orphan, Regular, Session, SessionId, SessionState, Timestamp, Version, Volume,
    Xattr,
};

/// Makes an empty store.
pub type Factory<'a> = &'a dyn Fn() -> Box<dyn Store>;

type Test = fn(&dyn Store);

const IN_ONE_THREAD: [(&str, Test); 22] = [
    ("what was put is got", put_and_get),
    ("versions change at every write and never go back", versions_grow),
    ("all that a commit writes has the version that it returns", one_version_a_commit),
    ("a failed check changes nothing", all_or_nothing),
    ("each kind of check", checks),
    ("a commit of checks alone, and one that locks cover", checks_alone),
    ("entries that locks cover are checked", covered::entries),
    ("the locks of a set are taken and released together", covered::lock_sets),
    ("a commit that is asked for is made if it is granted", granted::once),
    ("what fails is not made for being granted", granted::checked),
    ("merges commute and count", merges::commute),
    ("a merge into nothing conflicts", merges::into_nothing),
    ("a merge that does not fit its node changes nothing", merges::misfits),
    ("of two commits that count off one entry the second conflicts", merges::counted_off_twice),
    ("a directory is scanned in the order of positions, in pages", scan_directory),
    ("ranges end where they should", ranges_are_separate),
    ("several documents are got at once", get_many),
    ("every kind of document survives", every_kind),
    ("a session that is not live changes nothing", only_the_live_change),
    ("a snapshot stays", snapshot_stays),
    ("a stopped store takes no change", stopped),
    ("many documents change at once", many_documents),
];

const IN_MANY_THREADS: [(&str, Test); 5] = [
    ("concurrent commits of one counter lose nothing", threads::no_lost_update),
    ("concurrent merges conflict with nobody", threads::merges_at_once),
    ("of two commits that each check what the other writes one fails", threads::no_write_skew),
    ("so it does where locks cover what they check", threads::no_write_skew_below_locks),
    ("changes are told to who listens", threads::changes_are_told),
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

/// The node of a directory with so many entries.
pub fn directory(children: u64) -> Document {
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
                content: Some("s3://bucket/prefix".to_owned()),
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

fn one_version_a_commit(store: &dyn Store) {
    if !store.capabilities().one_version {
        return; // Over cells each document has a version of its own.
    }
    put(store, node(1), directory(0));
    put(store, node(9), directory(0));
    let (merged, key) = (Ino(9), |index| Key::Chunk(Ino(7), index));
    let commit = Commit::new().put(node(1), directory(1)).put(node(3), directory(2));
    let commit = commit.merge(Key::Node(merged), NodeDelta { children: 1, ..NodeDelta::default() });
    let chunk = || Document::Chunk(Chunk { bytes: Arc::from(&b"bytes"[..]) });
    let version = store.commit(&commit.absent(key(0)).put(key(0), chunk()).put(key(1), chunk())).unwrap();
    for key in [node(1), node(3), node(9), key(0), key(1)] {
        assert_eq!(store.get(&key).unwrap().unwrap().version, version, "{key}");
    }
    // Whoever writes them checks them all under that version.
    let check =
        Commit::new().at(key(0), version).at(key(1), version).at(node(1), version).put(key(0), chunk());
    store.commit(&check).unwrap();
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

fn get_many(store: &dyn Store) {
    let version = put(store, node(2), directory(2));
    put(store, Key::Content(Ino(2)), content(7));
    let found = store.get_many(&[node(1), Key::Content(Ino(2)), node(2), node(2)]).unwrap();
    assert!(found[0].is_none() && found[1].as_ref().is_some_and(|c| *c.document == content(7)));
    assert!(found[2..].iter().all(|n| n.as_ref().is_some_and(|n| n.version == version)));
    assert!(store.get_many(&[]).unwrap().is_empty());
}

fn session(state: SessionState) -> Document {
    Document::Session(Session {
        id: SessionId(u64::MAX - 5),
        host: "a host".to_owned(),
        boot_id: "a boot".to_owned(),
        pid: u32::MAX,
        mount_point: "/mnt/\u{fc}\u{2028} %".to_owned(),
        started: Timestamp { sec: -1, nsec: 999_999_999 },
        lease_ms: 10_000,
        heartbeat: u64::MAX,
        epoch: 3,
        intents: u16::MAX,
        operations_below: u64::MAX,
        state,
        locks: None,
    })
}

/// One document of each kind, and of each body and place, at the ends of what its fields can hold.
fn documents() -> Vec<(Key, Document)> {
    let bytes: Arc<[u8]> = (0..=255).collect();
    let Document::Node(plain) = directory(0) else { unreachable!("a directory is a node") };
    let far = Timestamp { sec: i64::MAX, nsec: 999_999_999 };
    let long_ago = Timestamp { sec: i64::MIN, nsec: 1 };
    let regular = |place| Body::Regular(Regular { size: i64::MAX as u64, blocks: u64::MAX >> 1, place });
    let any_name = Name::new(&(1..=255).filter(|b| *b != b'/').collect::<Vec<u8>>()).unwrap();
    let mut bodies = [ContentPlace::Empty, ContentPlace::Inline, ContentPlace::Backing, ContentPlace::Chunks]
        .map(regular)
        .to_vec();
    bodies.extend([
        Body::Directory(Directory { parent: Ino(9), name: Some(any_name.clone()), children: 1 << 40 }),
        Body::Symlink { target: bytes.clone() },
        Body::Fifo,
        Body::Socket,
        Body::CharDevice { rdev: u32::MAX },
        Body::BlockDevice { rdev: 0 },
    ]);
    let id = SessionId(u64::MAX - 5);
    let claim = |operation, mode| LockClaim {
        session: id,
        operation,
        mode,
        purpose: "rename /a to /\u{fc}".into(),
        since_ns: u64::MAX >> 1,
    };
    let lock = LockRecord {
        path: b"/a/\xff".to_vec(),
        holders: vec![claim(1, LockMode::Shared), claim(u64::MAX, LockMode::Shared)],
        waiters: vec![claim(3, LockMode::Exclusive)],
    };
    let mut all = vec![
        (Key::Entry(Ino(1 << 61), any_name), entry(u64::MAX >> 1)),
        (Key::Content(Ino(9)), Document::Content(Content { bytes: Arc::clone(&bytes) })),
        (Key::Content(Ino(10)), Document::Content(Content { bytes: [][..].into() })),
        (Key::Chunk(Ino(9), u64::MAX >> 17), Document::Chunk(Chunk { bytes: Arc::clone(&bytes) })),
        (Key::Xattr(Ino(9), bytes[1..].into()), Document::Xattr(Xattr { value: Arc::clone(&bytes) })),
        (Key::Orphan(Ino(9)), Document::Orphan(Orphan { session: id })),
        (Key::Session(id), session(SessionState::Joining)),
        (Key::Lock("%2Fa%2F%FF".into()), Document::Lock(lock)),
        (Key::Advisory(Ino(9)), Document::Advisory(advisory(id))),
    ];
    for (ino, body) in (20..).zip(bodies) {
        let node = Node {
            mode: 0o7777,
            uid: u32::MAX,
            gid: u32::MAX - 1,
            nlink: u32::MAX,
            atime: far,
            mtime: long_ago,
            xattrs: 1000,
            body,
            ..plain.clone()
        };
        all.push((Key::Node(Ino(ino)), Document::Node(node)));
    }
    all
}

fn advisory(session: SessionId) -> AdvisoryRecord {
    let lock = |family, mode, start, end| AdvisoryLock {
        family,
        mode,
        start,
        end,
        session,
        owner: u64::MAX,
        pid: u32::MAX,
        host: "\u{fc}.example".into(),
        since: Timestamp { sec: i64::MAX, nsec: 999_999_999 },
    };
    let range = lock(AdvisoryFamily::Fcntl, LockMode::Shared, 1, 1);
    AdvisoryRecord { locks: vec![range, lock(AdvisoryFamily::Flock, LockMode::Exclusive, 0, OFFSET_MAX)] }
}

fn every_kind(store: &dyn Store) {
    let all = documents();
    let commit = all.iter().fold(Commit::new(), |commit, (key, document)| {
        commit.absent(key.clone()).put(key.clone(), document.clone())
    });
    let version = store.commit(&commit).unwrap();
    for (key, document) in &all {
        let stored = store.get(key).unwrap().unwrap();
        let expected = if store.capabilities().one_version { version } else { stored.version };
        assert_eq!((stored.version, &*stored.document), (expected, document), "{key}");
        let scan = Scan { range: Range::All(key.kind()), start: Start::First, limit: 100 };
        let found = store.scan(&scan).unwrap().into_iter().find(|(k, _)| k == key);
        assert_eq!(found.unwrap().1.unwrap(), stored, "{key}");
    }
    let chunks: Vec<u64> = [3, 0, 256, 2, 1 << 33].into();
    for index in &chunks {
        put(store, Key::Chunk(Ino(7), *index), Document::Chunk(Chunk { bytes: [1][..].into() }));
    }
    let start = Start::After(Key::Chunk(Ino(7), 0));
    let scan = Scan { range: Range::Chunks(Ino(7)), start, limit: 3 };
    let page = store.scan(&scan).unwrap();
    assert_eq!(store.scan_keys(&scan).unwrap(), keys(&page));
    assert_eq!(keys(&page), [2, 3, 256].map(|index| Key::Chunk(Ino(7), index)));
    let gone = all.iter().fold(Commit::new(), |commit, (key, _)| commit.delete(key.clone()));
    store.commit(&gone).unwrap();
    let left: Vec<Key> = all.into_iter().map(|(key, _)| key).collect();
    assert!(store.get_many(&left).unwrap().iter().all(Option::is_none));
}

fn only_the_live_change(store: &dyn Store) {
    if !store.capabilities().shared {
        return; // Its sessions are those of one process, which knows which of them live.
    }
    let id = SessionId(u64::MAX - 5);
    let change = || store.commit(&Commit::new().put(node(1), directory(1)).by(id));
    let refused = || matches!(change(), Err(CommitError::Store(StoreError::Fenced)));
    assert!(refused(), "a session that does not exist");
    if let Some(intents) = store.intents() {
        // There a session can change something as long as its intents are not sealed.
        intents.begin(id).unwrap();
        change().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        settle(&intents.cells(), &clock, id, intents.per_session()).unwrap();
        assert!(refused(), "sealed");
        return;
    }
    for state in [SessionState::Joining, SessionState::Fenced, SessionState::Recovered] {
        put(store, Key::Session(id), session(state));
        assert!(refused(), "{state:?}");
    }
    assert!(store.get(&node(1)).unwrap().is_none());
    put(store, Key::Session(id), session(SessionState::Live));
    change().unwrap();
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
