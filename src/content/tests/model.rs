//! Any sequence of operations against a plain array of bytes: over backing files, on hosts with and without the calls that
//! have a fallback, over chunks, and over objects; at the beginning of a file and at the end of the largest one.

use proptest::prelude::*;

use super::*;
use std::sync::Arc;

use object_store::memory::InMemory;

use crate::content::{Chunks, ContentFile, Contents, MAX_SIZE, Objects, View};
use crate::document::{Ino, Key, Version};
use crate::store::memory::MemoryStore;
use crate::store::{Commit, Store as _};

const SMALL: u64 = 8 << 10;
const SPAN: usize = 6 * SMALL as usize;

#[derive(Clone, Debug)]
enum Step {
    Write { file: usize, at: usize, len: usize, byte: u8 },
    Truncate { file: usize, at: usize },
    Punch { file: usize, at: usize, len: usize },
    Zero { file: usize, at: usize, len: usize },
    Allocate { file: usize, at: usize, len: usize },
    Copy { from: usize, at: usize, to: usize, len: usize },
    Remove { file: usize },
    Reopen,
}

/// An offset, often at a border of segments or pages.
fn place() -> impl Strategy<Value = usize> {
    prop_oneof![0..SPAN, (0..6_usize).prop_map(|n| n * SMALL as usize), (0..12_usize).prop_map(|n| n * 4096)]
}

fn range() -> impl Strategy<Value = (usize, usize)> {
    (place(), place()).prop_map(|(one, two)| (one.min(two), one.abs_diff(two)))
}

fn step() -> impl Strategy<Value = Step> {
    let file = 0..2_usize;
    prop_oneof![
        4 => (file.clone(), range(), 1..=255_u8)
            .prop_map(|(file, (at, len), byte)| Step::Write { file, at, len, byte }),
        2 => (file.clone(), place()).prop_map(|(file, at)| Step::Truncate { file, at }),
        2 => (file.clone(), range()).prop_map(|(file, (at, len))| Step::Punch { file, at, len }),
        2 => (file.clone(), range()).prop_map(|(file, (at, len))| Step::Zero { file, at, len }),
        1 => (file.clone(), range()).prop_map(|(file, (at, len))| Step::Allocate { file, at, len }),
        3 => (file.clone(), place(), range())
            .prop_map(|(from, to, (at, len))| Step::Copy { from, at, to, len: len.min(SPAN - to) }),
        1 => file.prop_map(|file| Step::Remove { file }),
        1 => Just(Step::Reopen),
    ]
}

/// Where the bytes are.
enum Ground {
    Host {
        dir: tempfile::TempDir,
        able: bool,
    },
    /// With nodes for both files, of this version; and the objects that have the bytes, if the documents have not.
    Store(Arc<MemoryStore>, Version, Option<Arc<InMemory>>),
}

impl Ground {
    fn store(objects: Option<Arc<InMemory>>) -> Self {
        let store = Arc::<MemoryStore>::default();
        let commit = Commit::new().put(Key::Node(Ino(0)), some_node()).put(Key::Node(Ino(1)), some_node());
        let version = store.commit(&commit).unwrap();
        Self::Store(store, version, objects)
    }

    fn node(&self) -> Version {
        match self {
            Self::Host { .. } => Version(0),
            Self::Store(_, version, _) => *version,
        }
    }

    fn open(&self) -> Contents {
        match self {
            Self::Host { dir, able } => open(dir.path(), *able).into(),
            Self::Store(store, _, objects) => {
                let chunks = Chunks::with_chunk_bytes(store.clone(), NonZeroU64::new(SMALL).unwrap());
                match objects {
                    Some(objects) => chunks.in_objects(Objects::in_memory(objects)).into(),
                    None => chunks.into(),
                }
            }
        }
    }
}

fn open(dir: &Path, able: bool) -> BackingFiles {
    let files = BackingFiles::with_segments(dir, 3, NonZeroU64::new(SMALL).unwrap()).unwrap();
    if !able {
        lose_all_abilities(&files);
    }
    files
}

/// Does a step to the files, whose bytes of interest begin at `base`, and to the model.
fn apply(files: &Contents, model: &mut [Vec<u8>; 2], base: u64, step: &Step, view: View, node: Version) {
    let ino = |file: usize| file as u64;
    let offset = |at: usize| base + at as u64;
    match *step {
        Step::Write { file, at, len, byte } => {
            files.file(ino(file)).unwrap().write_at(&vec![byte; len], offset(at), node).unwrap();
            model[file][at..at + len].fill(byte);
        }
        Step::Truncate { file, at } => {
            files.file(ino(file)).unwrap().truncate(offset(at), node).unwrap();
            model[file][at..].fill(0);
        }
        Step::Punch { file, at, len } => {
            files.file(ino(file)).unwrap().punch_hole(offset(at), len as u64, node).unwrap();
            model[file][at..at + len].fill(0);
        }
        Step::Zero { file, at, len } => {
            files.file(ino(file)).unwrap().zero_range(offset(at), len as u64, node).unwrap();
            model[file][at..at + len].fill(0);
        }
        Step::Allocate { file, at, len } => {
            files.file(ino(file)).unwrap().allocate(offset(at), len as u64, false).unwrap();
        }
        Step::Copy { from, at, to, len } => {
            let (source, target) = (files.file(ino(from)).unwrap(), files.file(ino(1 - from)).unwrap());
            let copied = source.copy_to((offset(at), view), (&target, offset(to), node), len as u64);
            assert_eq!(copied.unwrap(), len as u64);
            let bytes = model[from][at..at + len].to_vec();
            model[1 - from][to..to + len].copy_from_slice(&bytes);
        }
        Step::Remove { file } => {
            files.undo(ino(file), node).unwrap();
            model[file].fill(0);
        }
        Step::Reopen => {}
    }
}

/// That reads give the model's bytes, and that no byte other than zero lies where a seek says there is none.
fn compare(file: &ContentFile, model: &[u8], base: u64, view: View) {
    let mut found = vec![0xee; SPAN];
    file.read_at(&mut found, base, view).unwrap();
    assert!(found == model, "the bytes differ");
    // Once more, now that much is kept.
    file.read_at(&mut found[..SPAN / 3], base + 777, view).unwrap();
    assert!(found[..SPAN / 3] == model[777..777 + SPAN / 3], "the bytes that are kept differ");
    let end = base + SPAN as u64;
    let mut at = base;
    let zero = |from: u64, to: u64| {
        model[usize::try_from(from - base).unwrap()..usize::try_from(to - base).unwrap()]
            .iter()
            .all(|&b| b == 0)
    };
    while at < end {
        let data = file.seek_data(at, end).unwrap().unwrap_or(end);
        assert!(at <= data && data <= end && zero(at, data), "data in a hole before {data}");
        let hole = file.seek_hole(data, end).unwrap();
        assert!(hole > data || data == end, "no progress at {data}");
        assert!(hole == end || file.seek_data(hole, end).unwrap() != Some(hole), "{hole} is no hole");
        at = hole;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn files_behave_like_arrays(steps in prop::collection::vec(step(), 1..24), able: bool, far: bool) {
        behave(&Ground::Host { dir: tempfile::tempdir().unwrap(), able }, &steps, far);
    }

    #[test]
    fn chunks_behave_like_arrays(steps in prop::collection::vec(step(), 1..24), far: bool) {
        behave(&Ground::store(None), &steps, far);
    }

    #[test]
    fn objects_behave_like_arrays(steps in prop::collection::vec(step(), 1..24), far: bool) {
        let objects = Arc::new(InMemory::new());
        let ground = Ground::store(Some(Arc::clone(&objects)));
        behave(&ground, &steps, far);
        // Whatever was done, an object is there for each chunk, and no other.
        let Ground::Store(store, ..) = ground else { unreachable!("it was made as one") };
        super::objects::assert_no_garbage(&store, &objects);
    }
}

fn behave(ground: &Ground, steps: &[Step], far: bool) {
    let base = if far { MAX_SIZE - SPAN as u64 } else { 0 };
    let mut files = ground.open();
    let mut model = [vec![0; SPAN], vec![0; SPAN]];
    for (version, step) in (0..).map(Version).zip(steps) {
        // As if each step were followed by a commit of the node.
        let view = |version| View { version, size: base + SPAN as u64 };
        if matches!(step, Step::Reopen) {
            files = ground.open();
        }
        apply(&files, &mut model, base, step, view(version), ground.node());
        for (ino, model) in model.iter().enumerate() {
            compare(&files.file(ino as u64).unwrap(), model, base, view(Version(version.0 + 1)));
        }
    }
}
