//! The embedded engine: conformance, and what only an engine on disk has.

use std::fs;
use std::time::Duration;

use super::tables::FLUSH_POLL;
use super::*;
use crate::ambient;
use crate::document::{Content, Document, Entry, FileKind, Ino, Name};
use crate::store::conformance::{self, directory};

struct Temporary {
    store: EmbeddedStore,
    _dir: tempfile::TempDir,
}

impl Reader for Temporary {
    fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        self.store.get(key)
    }
    fn scan(&self, scan: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        self.store.scan(scan)
    }
}

impl Store for Temporary {
    fn commit(&self, commit: &Commit) -> Result<Version, CommitError> {
        self.store.commit(commit)
    }
    fn sync(&self) -> Result<(), StoreError> {
        self.store.sync()
    }
    fn admit_content(&self, bytes: u64) -> Result<(), StoreError> {
        self.store.admit_content(bytes)
    }

    fn reserve_bytes(&self) -> u64 {
        self.store.reserve_bytes()
    }

    fn stop(&self, cause: &str) {
        self.store.stop(cause);
    }
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn snapshot(&self) -> Box<dyn Reader + '_> {
        self.store.snapshot()
    }
    fn counters(&self) -> StoreCounters {
        self.store.counters()
    }
}

#[test]
fn conforms() {
    conformance::run(&|| {
        let dir = tempfile::tempdir().unwrap();
        Box::new(Temporary { store: EmbeddedStore::open(dir.path(), Tuning::default()).unwrap(), _dir: dir })
    });
}

#[test]
fn conforms_without_a_cache() {
    conformance::run(&|| {
        let dir = tempfile::tempdir().unwrap();
        let tuning = Tuning { document_cache_bytes: 0, ..Tuning::default() };
        Box::new(Temporary { store: EmbeddedStore::open(dir.path(), tuning).unwrap(), _dir: dir })
    });
}

#[test]
fn documents_and_the_order_of_versions_outlive_a_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let key = Key::Node(Ino(1));
    let mut last = Version(0);
    for children in 0..3 {
        let store = EmbeddedStore::open(dir.path(), Tuning::default()).unwrap();
        if children > 0 {
            assert_eq!(store.get(&key).unwrap().unwrap().version, last);
        }
        let version = store.commit(&Commit::new().put(key.clone(), directory(children))).unwrap();
        assert!(version > last);
        last = version;
        if children == 1 {
            store.close().unwrap();
        }
    }
}

/// What is closed needs no journal, and what comes after is kept as before.
#[test]
fn a_store_that_was_closed_is_whole_without_its_journal() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = Version(0);
    for opening in 0..3_u64 {
        let store = EmbeddedStore::open(dir.path(), Tuning::default()).unwrap();
        for ino in 0..opening * 20 {
            let found = store.get(&Key::Content(Ino(ino))).unwrap();
            // Every tenth was removed.
            assert_eq!(found.is_none(), ino % 10 == 9, "{ino} after {opening} closings");
        }
        for ino in opening * 20..(opening + 1) * 20 {
            let version = store.commit(&Commit::new().put(Key::Content(Ino(ino)), content_of(ino))).unwrap();
            assert!(version > last);
            last = version;
            if ino % 10 == 9 {
                store.commit(&Commit::new().delete(Key::Content(Ino(ino)))).unwrap();
            }
        }
        // The second time the process dies instead.
        if opening != 1 {
            let journals = || {
                let files = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path());
                files.filter(|path| path.extension().is_some_and(|e| e == "jnl")).collect::<Vec<_>>()
            };
            let [older] = &journals()[..] else { panic!("more than one journal") };
            let copy = older.with_file_name("copy");
            fs::copy(older, &copy).unwrap();
            store.close().unwrap();
            // The database may keep older files: what is in them has come to the tables, or was removed since.
            let number: u64 = older.file_stem().unwrap().to_str().unwrap().parse().unwrap();
            let next = older.with_file_name(format!("{}.jnl", number + 1));
            fs::rename(older, &next).unwrap();
            fs::rename(copy, older).unwrap();
            journal::clear(dir.path()).unwrap();
            assert_eq!(journals(), std::slice::from_ref(&next));
            assert_eq!(fs::metadata(&next).unwrap().len(), 0);
        }
    }
}

fn content_of(ino: u64) -> Document {
    Document::Content(Content { bytes: vec![ino as u8; 3000].into() })
}

/// A power cut keeps what was synced, and of the rest of the journal any pages or sectors.
#[test]
fn a_torn_journal_opens_with_a_prefix_that_holds_all_that_was_synced() {
    for seed in 0..24_u64 {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(dir.path(), Tuning::default()).unwrap();
        let put = |ino| store.commit(&Commit::new().put(Key::Content(Ino(ino)), content_of(ino))).unwrap();
        (0..20).for_each(|ino| {
            put(ino);
        });
        store.sync().unwrap();
        let journal = fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().path())
            .find(|p| p.extension().is_some_and(|e| e == "jnl"))
            .unwrap();
        let synced = used_length(&journal);
        (20..60).for_each(|ino| {
            put(ino);
        });
        let torn = tempfile::tempdir().unwrap();
        copy_tree(dir.path(), torn.path());
        let unit = if seed % 2 == 0 { 4096 } else { 512 };
        let written = used_length(&journal);
        tear(&torn.path().join(journal.file_name().unwrap()), synced, written, unit, seed);
        drop(store);

        journal::trim(torn.path(), true).unwrap();
        let store = EmbeddedStore::open(torn.path(), Tuning::default())
            .unwrap_or_else(|e| panic!("seed {seed}: does not open: {e}"));
        let there: Vec<bool> =
            (0..60).map(|ino| store.get(&Key::Content(Ino(ino))).unwrap().is_some()).collect();
        assert!(there[..20].iter().all(|t| *t), "seed {seed}: a synced document is gone: {there:?}");
        assert!(there.is_sorted_by(|a, b| a >= b), "seed {seed}: not a prefix: {there:?}");
        for ino in (0..60).filter(|ino| there[*ino as usize]) {
            assert_eq!(*store.get(&Key::Content(Ino(ino))).unwrap().unwrap().document, content_of(ino));
        }
        store.commit(&Commit::new().put(Key::Content(Ino(99)), content_of(99))).unwrap();
    }
}

#[test]
fn damage_without_a_power_cut_is_reported_and_not_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(dir.path(), Tuning::default()).unwrap();
    for ino in 0..9 {
        store.commit(&Commit::new().put(Key::Content(Ino(ino)), content_of(ino))).unwrap();
    }
    let copy = tempfile::tempdir().unwrap();
    copy_tree(dir.path(), copy.path());
    drop(store);
    journal::trim(copy.path(), false).unwrap();
    let path = copy.path().join("0.jnl");
    let written = used_length(&path);
    let mut bytes = fs::read(&path).unwrap();
    bytes[written as usize / 2] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(journal::trim(copy.path(), false), Err(StoreError::Damaged { .. })));
    assert_eq!(used_length(&path), written, "a damaged journal was changed");
    // A batch that the process did not come to finish is dropped.
    bytes[written as usize / 2] ^= 1;
    bytes.truncate(written as usize - 1000);
    fs::write(&path, &bytes).unwrap();
    journal::trim(copy.path(), false).unwrap();
    let store = EmbeddedStore::open(copy.path(), Tuning::default()).unwrap();
    let there = |ino| store.get(&Key::Content(Ino(ino))).unwrap().is_some();
    assert!(there(7) && !there(8));
}

/// The tests write less than this; the rest of a journal is a hole.
const JOURNAL_PART: u64 = 1 << 20;

fn read_journal(journal: &Path) -> Vec<u8> {
    use std::io::Read;
    let mut bytes = Vec::new();
    fs::File::open(journal).unwrap().take(JOURNAL_PART).read_to_end(&mut bytes).unwrap();
    bytes
}

fn used_length(journal: &Path) -> u64 {
    read_journal(journal).iter().rposition(|b| *b != 0).map_or(0, |at| at as u64 + 1)
}

fn copy_tree(from: &Path, to: &Path) {
    for item in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(item.file_name());
        if item.file_type().unwrap().is_dir() {
            fs::create_dir_all(&target).unwrap();
            copy_tree(&item.path(), &target);
        } else {
            fs::write(&target, read_journal(&item.path())).unwrap();
        }
    }
}

/// Zeroes a third of the units that lie wholly behind what was synced.
fn tear(journal: &Path, synced: u64, written: u64, unit: u64, seed: u64) {
    let mut bytes = read_journal(journal);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for at in (synced.next_multiple_of(unit)..written).step_by(unit as usize) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if state.is_multiple_of(3) {
            let end = (at + unit).min(bytes.len() as u64) as usize;
            bytes[at as usize..end].fill(0);
        }
    }
    fs::write(journal, bytes).unwrap();
}

/// The database is told that its memory is full by a queue that only its own thread empties. Should commits fill that, the
/// thread waits for itself for ever, memory grows and closing hangs.
#[test]
fn commits_that_are_quicker_than_the_database_writes_tables_do_not_stop_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(dir.path(), Tuning::default()).unwrap();
    let entry = |parent: u64, n: u64| {
        let name = crate::document::Name::new(format!("{n:0200}").as_bytes()).unwrap();
        Key::Entry(Ino(parent), name)
    };
    let kind = crate::document::FileKind::Regular;
    for parent in 1..=20 {
        for n in 0..10_000 {
            let document = Document::Entry(crate::document::Entry { ino: Ino(n + 2), kind });
            store.commit(&Commit::new().put(entry(parent, n), document)).unwrap();
        }
    }
    let begun = ambient::monotonic();
    while store.spaces.iter().any(|space| space.sealed_memtable_count() > 0) {
        assert!(begun.elapsed() < Duration::from_secs(30), "the database writes no tables any more");
        std::thread::sleep(FLUSH_POLL);
    }
    store.close().unwrap();
}

/// What is known of directories in memory is what the tables have, whatever commits do and however little room there is.
#[test]
fn listings_from_memory_are_those_of_the_tables() {
    const DIRECTORIES: u64 = 6;
    const NAMES: u64 = 40;
    for seed in 1..9u64 {
        let dir = tempfile::tempdir().unwrap();
        let tuning = Tuning { document_cache_bytes: seed * 12_000 * LISTINGS_SHARE, ..Tuning::default() };
        let store = EmbeddedStore::open(dir.path(), tuning).unwrap();
        let mut random = seed;
        let mut below = move |limit: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % limit
        };
        let mut answered = 0;
        for step in 0..2000 {
            let ino = Ino(1 + below(DIRECTORIES));
            let name = |number: u64| Key::Entry(ino, Name::new(format!("n{number}").as_bytes()).unwrap());
            let there = Document::Entry(Entry { ino: Ino(100 + below(9)), kind: FileKind::Regular });
            let commit = match below(10) {
                0 => Commit::new().put(Key::Node(ino), directory(0)),
                1 => {
                    (0..NAMES).fold(Commit::new().delete(Key::Node(ino)), |commit, n| commit.delete(name(n)))
                }
                2..=6 => Commit::new().put(name(below(NAMES)), there),
                _ => Commit::new().delete(name(below(NAMES))),
            };
            store.commit(&commit).unwrap();
            let start = match below(3) {
                0 => Start::First,
                1 => Start::After(name(below(NAMES))),
                _ => Start::At(EntryPosition(below(1 << 31) << 31)),
            };
            let scan = Scan { range: Range::Entries(ino), start, limit: 1 + below(2 * NAMES) as usize };
            let whole = |page: Vec<ScanItem>| {
                page.into_iter().map(|(key, stored)| (key, stored.unwrap())).collect::<Vec<_>>()
            };
            answered += u64::from(store.listings.page(&scan, || true).is_some());
            let truth = whole(store.snapshot().scan(&scan).unwrap());
            assert_eq!(whole(store.scan(&scan).unwrap()), truth, "seed {seed}, step {step}: {scan:?}");
            let key = name(below(NAMES));
            assert_eq!(
                store.get(&key).unwrap(),
                store.snapshot().get(&key).unwrap(),
                "seed {seed}, step {step}"
            );
        }
        assert!(answered > 100, "seed {seed}: {answered} pages from memory");
    }
}

/// A name that is moved about in a directory is listed once and found once, from memory and from tables that are written all
/// the time: what the database calls a snapshot may show a part of a commit. And whoever has seen one document of a commit
/// sees the other.
#[test]
fn nobody_sees_a_part_of_a_commit() {
    const MOVES: u64 = 200;
    const CROWD: u64 = 200;
    const LOOKS: usize = 50;
    let entry = || Document::Entry(Entry { ino: Ino(100), kind: FileKind::Regular });
    let name = |number: u64| Key::Entry(Ino(1), Name::new(format!("n{}", number % 7).as_bytes()).unwrap());
    let [first, coming, last] = [1, 2, 3].map(|number| Key::Content(Ino(number)));
    // With room for some of the directories, and for none.
    for document_cache_bytes in [4 * CROWD * 256 * LISTINGS_SHARE, 0] {
        let dir = tempfile::tempdir().unwrap();
        let store =
            EmbeddedStore::open(dir.path(), Tuning { document_cache_bytes, ..Tuning::default() }).unwrap();
        // At either end of all that a commit writes, so that what is between takes its time. One that comes and goes is at
        // the beginning as well: there is one with every other commit.
        let both = |comes: bool, between: Commit| {
            let begin = Commit::new().put(first.clone(), content_of(1));
            let begin =
                if comes { begin.put(coming.clone(), content_of(3)) } else { begin.delete(coming.clone()) };
            begin.and(between).put(last.clone(), content_of(2))
        };
        let begin = Commit::new().put(Key::Node(Ino(1)), directory(0)).put(name(0), entry());
        let begun = store.commit(&both(true, begin)).unwrap();
        let (looks, torn) = std::thread::scope(|scope| {
            let moves = scope.spawn(|| {
                for step in 0..MOVES {
                    // Others come and go, so that the first is known, and is not, and has to be learned.
                    let other = Ino(2 + step % 5);
                    let crowd = (0..CROWD).map(|n| Name::new(format!("{n}").as_bytes()).unwrap());
                    let commit = Commit::new().delete(name(step)).put(Key::Node(other), directory(0));
                    let commit = crowd.fold(commit, |commit, n| commit.put(Key::Entry(other, n), entry()));
                    let comes = step % 2 == 1;
                    store.commit(&both(comes, commit.put(name(step + 1), entry()))).unwrap();
                    store.start_flush().unwrap();
                }
            });
            let scan = Scan { range: Range::Entries(Ino(1)), start: Start::First, limit: 100 };
            let version = |key: &Key| store.get(key).unwrap().unwrap().version;
            let comes_early = || {
                let before = version(&last);
                let is_there = store.get(&coming).unwrap().is_some();
                let was_there = (before.0 - begun.0).is_multiple_of(2);
                version(&last) == before && is_there != was_there
            };
            let is_torn = |turned: bool| {
                // By itself, for whoever has found something new, or listed something, has waited.
                if (0..LOOKS).any(|_| comes_early()) {
                    return true;
                }
                let (one, other) = if turned { (&last, &first) } else { (&first, &last) };
                let seen = version(one);
                if version(other) < seen {
                    return true;
                }
                let view = store.snapshot();
                let found = (0..7).filter(|n| view.get(&name(*n)).unwrap().is_some()).count();
                found != 1 || view.scan(&scan).unwrap().len() != 1 || store.scan(&scan).unwrap().len() != 1
            };
            let (mut looks, mut torn) = (0, 0);
            while !moves.is_finished() || looks < MOVES {
                looks += 1;
                torn += u64::from(is_torn(looks % 2 == 0));
            }
            (looks, torn)
        });
        assert_eq!(torn, 0, "of {looks} looks, with {document_cache_bytes} bytes");
    }
}
