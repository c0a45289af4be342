//! Chunks whose bytes are in objects: what is put, read and removed, by count; crashes, lost objects, other hosts.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::StreamExt as _;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _, PutPayload};

use super::some_node;
use crate::content::{ChunkFile, Chunks, ContentError, Location, ObjectCounters, Objects, View};
use crate::document::{
    Document, Ino, Key, Kind, ObjectRef, Session, SessionId, SessionState, Stored, Version,
};
use crate::store::memory::MemoryStore;
use crate::store::{
    Capabilities, Commit, CommitError, Listener, Range, Reader, Scan, ScanItem, Start, Store, StoreCounters,
    StoreError,
};

const CHUNK: u64 = 1024;
const SIZE: u64 = 1 << 20;
const NODE: Version = Version(1);
const HERE: SessionId = SessionId(7);
const THERE: SessionId = SessionId(8);

/// A store of documents and one of objects.
struct World {
    store: Arc<MemoryStore>,
    objects: Arc<InMemory>,
}

impl World {
    fn new() -> Self {
        let world = Self { store: Arc::default(), objects: Arc::new(InMemory::new()) };
        assert_eq!(world.store.commit(&Commit::new().put(Key::Node(Ino(1)), some_node())).unwrap(), NODE);
        [HERE, THERE].into_iter().for_each(|session| world.session(session, SessionState::Live));
        world
    }

    fn session(&self, id: SessionId, state: SessionState) {
        let session = Session {
            id,
            host: String::new(),
            boot_id: String::new(),
            pid: 1,
            mount_point: String::new(),
            started: crate::document::Timestamp::default(),
            lease_ms: 1,
            heartbeat: 0,
            epoch: 1,
            intents: 0,
            operations_below: 0,
            state,
            locks: None,
        };
        self.store.commit(&Commit::new().put(Key::Session(id), Document::Session(session))).unwrap();
    }

    /// The chunks as one host has them.
    fn host(&self, session: SessionId) -> Chunks {
        let chunks = Chunks::with_chunk_bytes(self.store.clone(), NonZeroU64::new(CHUNK).unwrap());
        chunks.in_objects(Objects::in_memory(&self.objects)).by(session)
    }

    fn names(&self) -> Vec<String> {
        names(&self.objects)
    }

    /// The object of a chunk of inode 1.
    fn object(&self, index: u64) -> Path {
        let stored = self.store.get(&Key::Chunk(Ino(1), index)).unwrap().unwrap();
        let Document::Chunk(chunk) = &*stored.document else { panic!("no chunk") };
        Path::from(format!("volume/{}", ObjectRef::decode(&chunk.bytes).unwrap().object))
    }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn names(objects: &InMemory) -> Vec<String> {
    let listed = wait(objects.list(None).collect::<Vec<_>>());
    listed.into_iter().map(|meta| meta.unwrap().location.to_string()).collect()
}

/// An object is there for each chunk, and no other; removals are under way for a moment.
pub(super) fn assert_no_garbage(store: &MemoryStore, objects: &InMemory) {
    let scan = Scan { range: Range::All(Kind::Chunk), start: Start::First, limit: usize::MAX };
    let named: Vec<String> = store
        .scan(&scan)
        .unwrap()
        .into_iter()
        .map(|(_, stored)| match &*stored.unwrap().document {
            Document::Chunk(chunk) => format!("volume/{}", ObjectRef::decode(&chunk.bytes).unwrap().object),
            other => panic!("{other:?}"),
        })
        .collect();
    let mut there = names(objects);
    for _ in 0..1000 {
        if there.len() == named.len() {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
        there = names(objects);
    }
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    assert_eq!(sorted(there), sorted(named));
}

fn read(file: &ChunkFile, offset: u64, len: usize, version: u64) -> Result<Vec<u8>, ContentError> {
    let mut bytes = vec![0xee; len];
    file.read_at(&mut bytes, offset, View { version: Version(version), size: SIZE })?;
    Ok(bytes)
}

#[test]
fn each_chunk_costs_one_request_and_what_is_replaced_goes() {
    let world = World::new();
    let (writer, reader) = (world.host(HERE), world.host(THERE));
    let file = writer.file(1);
    let data: Vec<u8> = (0..64 * CHUNK).map(|at| (at / 7) as u8).collect();
    file.begin(0);
    for (at, part) in (0..).step_by(8 * CHUNK as usize).zip(data.chunks(8 * CHUNK as usize)) {
        file.write_at(part, at, Some(NODE)).unwrap();
    }
    let count = |chunks: &Chunks| chunks.objects().unwrap().counters();
    assert_eq!(count(&writer), ObjectCounters { puts: 64, ..ObjectCounters::default() });
    // In small pieces, and each object is read once: some ahead of who reads on.
    for (at, part) in (0..).step_by(512).zip(data.chunks(512)) {
        assert_eq!(read(&reader.file(1), at, part.len(), 1).unwrap(), part);
    }
    assert_eq!(count(&reader), ObjectCounters { gets: 64, ..ObjectCounters::default() });
    // Something else of the file has changed, and objects have not.
    assert_eq!(read(&reader.file(1), 0, data.len(), 2).unwrap(), data);
    assert_eq!(count(&reader).gets, 64);
    // A small change writes one object anew, reads none, and removes one.
    file.write_at(b"x", 5 * CHUNK + 3, Some(NODE)).unwrap();
    assert_no_garbage(&world.store, &world.objects);
    assert_eq!(count(&writer), ObjectCounters { puts: 65, deletes: 1, ..ObjectCounters::default() });
    // Holes, cuts and the end of it.
    file.punch_hole(CHUNK, 3 * CHUNK + 10, Some(NODE)).unwrap();
    file.truncate(10 * CHUNK + 1, Some(NODE)).unwrap();
    assert_no_garbage(&world.store, &world.objects);
    assert_eq!(world.names().len(), 8);
    let gets = count(&writer).gets;
    assert_eq!(
        (file.seek_data(CHUNK, SIZE).unwrap(), file.seek_hole(0, SIZE).unwrap()),
        (Some(4 * CHUNK), CHUNK)
    );
    assert_eq!(count(&writer).gets, gets, "finding holes reads no object");
    world.store.commit(&Commit::new().delete(Key::Node(Ino(1)))).unwrap();
    writer.remove(1).unwrap();
    assert_no_garbage(&world.store, &world.objects);
    assert_eq!(world.names(), [""; 0]);
}

/// A store that can be kept from writing to its disk.
#[derive(Default)]
struct Lagging {
    memory: MemoryStore,
    lags: AtomicBool,
}

impl Reader for Lagging {
    fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        self.memory.get(key)
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        self.memory.scan(scan)
    }
}

impl Store for Lagging {
    fn commit(&self, commit: &Commit) -> Result<Version, CommitError> {
        self.memory.commit(commit)
    }

    fn listen(&self, listener: Arc<dyn Listener>) -> Result<(), StoreError> {
        self.memory.listen(listener)
    }

    fn sync(&self) -> Result<(), StoreError> {
        if self.lags.load(Relaxed) {
            return Err(StoreError::Engine { what: "a test".to_owned(), source: "the disk is busy".into() });
        }
        self.memory.sync()
    }

    fn stop(&self, cause: &str) {
        self.memory.stop(cause);
    }

    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn snapshot(&self) -> Box<dyn Reader + '_> {
        self.memory.snapshot()
    }

    fn counters(&self) -> StoreCounters {
        self.memory.counters()
    }
}

/// A power cut brought back a chunk that named what was gone.
#[test]
fn an_object_goes_once_it_is_durable_that_nothing_names_it() {
    let (store, objects) = (Arc::new(Lagging::default()), Arc::new(InMemory::new()));
    let chunks = Chunks::with_chunk_bytes(store.clone(), NonZeroU64::new(CHUNK).unwrap());
    let chunks = chunks.in_objects(Objects::in_memory(&objects));
    let file = chunks.file(1);
    file.write_at(&[1; 3 * CHUNK as usize], 0, None).unwrap();
    let synced = names(&objects);
    store.lags.store(true, Relaxed);
    file.write_at(b"x", 3, None).unwrap();
    file.punch_hole(CHUNK + 5, 5, None).unwrap();
    file.truncate(2 * CHUNK, None).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let now = names(&objects);
    assert!(synced.iter().all(|name| now.contains(name)), "{synced:?} were synced, and there are {now:?}");
    assert_eq!(now.len(), 5);
    store.lags.store(false, Relaxed);
    assert_no_garbage(&store.memory, &objects);
    assert_eq!(names(&objects).len(), 2);
    // What is replaced last goes before the process does.
    file.write_at(b"y", 3, None).unwrap();
    drop((file, chunks));
    assert_eq!(names(&objects).len(), 2);
}

/// The power cut came before the sync that was waited for, and the sync succeeded after it.
#[test]
fn an_object_stays_whose_chunk_a_power_cut_has_brought_back() {
    let (store, objects) = (Arc::new(Lagging::default()), Arc::new(InMemory::new()));
    let chunks = Chunks::with_chunk_bytes(store.clone(), NonZeroU64::new(CHUNK).unwrap());
    let chunks = chunks.in_objects(Objects::in_memory(&objects));
    let file = chunks.file(1);
    file.write_at(b"old", 0, None).unwrap();
    let before = (names(&objects), store.get(&Key::Chunk(Ino(1), 0)).unwrap().unwrap());
    store.lags.store(true, Relaxed);
    file.write_at(b"new", 0, None).unwrap();
    let back = Commit::new().put(Key::Chunk(Ino(1), 0), Document::clone(&before.1.document));
    store.memory.commit(&back).unwrap();
    store.lags.store(false, Relaxed);
    drop((file, chunks));
    assert!(names(&objects).contains(&before.0[0]), "{:?}", names(&objects));
}

#[test]
fn hosts_that_write_different_bytes_of_one_chunk_lose_none_and_leave_nothing() {
    let world = World::new();
    std::thread::scope(|scope| {
        for (session, first) in [(HERE, 0), (THERE, 1)] {
            let file = world.host(session).file(1);
            scope.spawn(move || {
                for at in (first..CHUNK / 4).step_by(2) {
                    let write = || {
                        file.begin(CHUNK);
                        file.write_at(&[first as u8 + 1], at, Some(NODE))
                    };
                    while let Err(error) = write() {
                        assert!(matches!(error, ContentError::Conflict(_)), "{error}");
                    }
                }
            });
        }
        // Who reads meanwhile meets objects that have just gone, and never takes one for lost.
        let reader = world.host(THERE).file(1);
        for version in 1..300 {
            match read(&reader, 0, CHUNK as usize, version) {
                Ok(_) | Err(ContentError::Conflict(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
    let expected: Vec<u8> = (0..CHUNK / 4).map(|at| (at % 2) as u8 + 1).collect();
    assert_eq!(read(&world.host(HERE).file(1), 0, expected.len(), 1).unwrap(), expected);
    assert_no_garbage(&world.store, &world.objects);
}

#[test]
fn what_is_before_a_lost_object_can_be_read_in_a_row() {
    let world = World::new();
    let file = world.host(HERE).file(1);
    file.write_at(&[1; 6 * CHUNK as usize], 0, Some(NODE)).unwrap();
    wait(world.objects.delete(&world.object(4))).unwrap();
    let next = world.host(THERE).file(1);
    for index in [0, 1, 2, 3, 5] {
        assert_eq!(read(&next, index * CHUNK, CHUNK as usize, 1).unwrap(), [1; CHUNK as usize]);
    }
    read(&next, 4 * CHUNK, 1, 1).unwrap_err();
}

#[test]
fn a_lost_or_altered_object_is_an_error_that_names_it_and_never_zeros() {
    let world = World::new();
    let file = world.host(HERE).file(1);
    file.write_at(&[1; 3 * CHUNK as usize], 0, Some(NODE)).unwrap();
    let [lost, altered, short] = [0, 1, 2].map(|index| world.object(index));
    wait(world.objects.delete(&lost)).unwrap();
    wait(world.objects.put(&altered, PutPayload::from(vec![2; CHUNK as usize]))).unwrap();
    wait(world.objects.put(&short, PutPayload::from(vec![1; 10]))).unwrap();
    let next = world.host(THERE).file(1);
    for (index, object, cause) in
        [(0, &lost, "no such object"), (1, &altered, "XXH3"), (2, &short, "10 bytes")]
    {
        let error = read(&next, index * CHUNK, 5, 1).unwrap_err();
        assert!(matches!(&error, ContentError::ObjectDamaged { .. }), "{error}");
        let text = error.to_string();
        for part in [&format!("chunk:1:{index}"), object.as_ref(), cause] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // Nor does a write make something up that it would have to keep.
        assert!(next.write_at(b"x", index * CHUNK + 1, Some(NODE)).is_err());
    }
    // Whoever writes a chunk as a whole, or removes it, needs no bytes of it. (Known chunks are not asked for.)
    world.host(THERE).file(1).truncate(0, Some(NODE)).unwrap();
    assert_no_garbage(&world.store, &world.objects);
}

#[test]
fn what_a_session_did_not_live_to_name_is_collected_after_it_and_nothing_else() {
    let world = World::new();
    let (here, there) = (world.host(HERE), world.host(THERE));
    here.file(1).write_at(&[1; 2 * CHUNK as usize], 0, Some(NODE)).unwrap();
    there.file(1).write_at(&[2; CHUNK as usize], 2 * CHUNK, Some(NODE)).unwrap();
    // As if it died between the object and the commit; once for a chunk that there is, once for none.
    let objects = here.objects().unwrap();
    for index in [0, 9] {
        objects.put(Some(HERE), Ino(1), vec![(index, vec![3; 10].into())]).unwrap();
    }
    let theirs = there.objects().unwrap().put(Some(THERE), Ino(1), vec![(2, vec![3; 10].into())]).unwrap();
    world.session(HERE, SessionState::Recovered);
    assert_eq!(there.collect_of(HERE).unwrap(), 2);
    assert_eq!(there.collect_of(HERE).unwrap(), 0);
    let expected = [[1; 2 * CHUNK as usize].as_slice(), &[2; CHUNK as usize]].concat();
    assert_eq!(read(&world.host(THERE).file(1), 0, expected.len(), 1).unwrap(), expected);
    assert!(world.names().iter().any(|name| name.ends_with(&theirs[0].object)));
    assert_eq!(world.names().len(), 4);
}

#[test]
fn a_session_that_is_not_live_leaves_nothing_behind() {
    let world = World::new();
    let file = world.host(HERE).file(1);
    file.write_at(&[1; 100], 0, Some(NODE)).unwrap();
    world.session(HERE, SessionState::Fenced);
    let refused = file.write_at(&[2; 100], 0, Some(NODE));
    assert!(matches!(refused, Err(ContentError::Store(StoreError::Fenced))), "{refused:?}");
    assert_no_garbage(&world.store, &world.objects);
    assert_eq!(read(&file, 0, 100, 1).unwrap(), [1; 100]);
}

#[test]
fn another_place_and_another_volume_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let place: Location = format!("file://{}/objects", dir.path().display()).parse().unwrap();
    let patience = Duration::from_secs(1);
    let absent = Objects::open(&place, "a", patience).unwrap_err();
    assert!(matches!(absent, ContentError::Location(_)), "{absent}");
    drop(Objects::create(&place, "a", patience).unwrap());
    drop(Objects::open(&place, "a", patience).unwrap());
    let other = Objects::open(&place, "b", patience).unwrap_err();
    assert!(
        matches!(&other, ContentError::OtherObjects { .. }) && other.to_string().contains("b/volume.json"),
        "{other}"
    );
    // Nobody listens there.
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let place = format!("s3://bucket?region=x&endpoint=http://127.0.0.1:{port}");
    let away = Objects::open(&place.parse().unwrap(), "a", Duration::from_millis(300)).unwrap_err();
    assert!(
        matches!(&away, ContentError::Object { .. }) && away.to_string().contains("volume.json"),
        "{away}"
    );
}
