//! Volumes whose contents are in an object store: objects that are missing, and such as nothing will ever name.

use std::sync::Arc;

use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, PutPayload};

use super::fixture::*;
use crate::check::{Mode, Report, Rule};
use crate::content::{CHUNK_BYTES, Objects};
use crate::document::*;

const OTHER: SessionId = SessionId(8);
const GONE: SessionId = SessionId(9);
const FILE: u64 = 7;

/// A volume with a file in objects, mounted here and on another host.
struct World {
    volume: Sample,
    objects: Arc<InMemory>,
}

impl World {
    fn new() -> Self {
        let objects = Arc::new(InMemory::new());
        let mut volume = Sample::online();
        volume.mode = Mode::Shared { sessions: &[SESSION] };
        volume.objects = Some(Objects::in_memory(&objects));
        volume.put(Key::Session(OTHER), session(OTHER, SessionState::Live));
        volume.edit_regular(FILE, |file| (file.place, file.size) = (ContentPlace::Chunks, 3 * CHUNK_BYTES));
        let world = Self { volume, objects };
        world.name(0, &world.put(SESSION, 0, 1, 100));
        world.name(2, &world.put(OTHER, 2, 1, 50));
        world
    }

    fn put(&self, session: SessionId, index: u64, random: u64, len: usize) -> ObjectRef {
        let bytes = vec![1; len];
        let object = ObjectRef::to(ObjectName { session, ino: FILE, index }.with(random), &bytes);
        wait(self.objects.put(&path(&object), PutPayload::from(bytes))).unwrap();
        object
    }

    /// Lets a chunk name an object.
    fn name(&self, index: u64, object: &ObjectRef) {
        self.volume.put(Key::Chunk(Ino(FILE), index), Document::Chunk(Chunk { bytes: object.encode() }));
    }

    fn garbage(&self) -> Vec<(String, u64)> {
        let report = self.volume.check();
        assert!(report.is_clean(), "{:#?}", report.violations);
        let mut found: Vec<_> =
            report.garbage.into_iter().map(|found| (found.document, found.allocated_bytes)).collect();
        found.sort();
        found
    }

    fn violations(&self) -> Report {
        let report = self.volume.check();
        assert_eq!(report.garbage, []);
        report
    }
}

fn path(object: &ObjectRef) -> Path {
    Path::from(format!("volume/{}", object.object))
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn a_volume_with_an_object_for_each_chunk_is_clean() {
    let world = World::new();
    wait(world.objects.put(&Path::from("volume/volume.json"), PutPayload::from("x"))).unwrap();
    let report = world.volume.check();
    assert!(report.is_clean() && report.garbage.is_empty(), "{report:#?}");
    assert_eq!((report.counts.chunks, report.counts.objects, report.counts.object_bytes), (2, 2, 150));
}

#[test]
fn an_object_is_garbage_when_its_session_has_ended_without_naming_it() {
    let world = World::new();
    // About to be named, for all that anybody knows.
    let of_live = [world.put(SESSION, 1, 5, 10), world.put(OTHER, 0, 5, 20)];
    assert_eq!(world.garbage(), []);
    let of_gone = world.put(GONE, 0, 6, 30);
    let collected = |objects: &[&ObjectRef]| -> Vec<_> {
        objects.iter().map(|object| (format!("object:{}", object.object), object.bytes)).collect()
    };
    assert_eq!(world.garbage(), collected(&[&of_gone]));
    // Fenced: somebody is finishing what it left, and may name it yet.
    world.volume.put(Key::Session(GONE), session(GONE, SessionState::Recovered));
    world.volume.delete(Key::Session(OTHER));
    assert_eq!(world.garbage(), collected(&[&of_live[1], &of_gone]));
    // What a dead session has named stays.
    world.name(0, &of_gone);
    let replaced = world.volume.check();
    assert!(replaced.garbage.iter().all(|found| !found.document.contains(&of_gone.object)), "{replaced:#?}");
}

#[test]
fn an_object_that_is_missing_or_of_another_length_is_accused() {
    let world = World::new();
    let object = world.put(SESSION, 0, 7, 100);
    world.name(0, &object);
    wait(world.objects.delete(&path(&object))).unwrap();
    wait(
        world
            .objects
            .delete(&path(&ObjectRef::to(ObjectName { session: SESSION, ino: FILE, index: 0 }.with(1), b""))),
    )
    .unwrap();
    let report = world.violations();
    assert_eq!(report.by_rule.into_iter().collect::<Vec<_>>(), [(Rule::ObjectMissing, 1)]);
    assert_eq!(report.violations[0].document, "chunk:7:0");
    wait(world.objects.put(&path(&object), PutPayload::from("short"))).unwrap();
    let report = world.violations();
    assert!(report.violations[0].detail.contains("5 bytes instead of 100"), "{:?}", report.violations);
}

#[test]
fn a_chunk_that_names_no_object_is_damaged() {
    let world = World::new();
    world.volume.put(Key::Chunk(Ino(FILE), 1), chunk(100));
    let report = world.violations();
    assert_eq!(report.by_rule.into_iter().collect::<Vec<_>>(), [(Rule::Damaged, 1)]);
}
