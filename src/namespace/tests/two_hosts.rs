//! Two hosts at one file, each with a namespace of its own over the same store.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use super::world::{ROOT, World, another_host, name};
use crate::document::{Document, Ino, Key, Name};
use crate::namespace::ops::attributes::Change;
use crate::namespace::ops::make::{Make, What};
use crate::namespace::{Caller, Namespace, NamespaceError, Settings, Watcher};
use crate::store::{Commit, Reader as _, Store as _, Write};

/// Another host, which begins without taking this one for dead.
pub(super) fn other_host(world: &World, settings: Settings) -> Namespace {
    let key = Key::Session(world.session());
    let session = world.store.get(&key).unwrap().unwrap();
    let other = Namespace::begin(world.store.clone(), world.files(), settings, another_host()).unwrap();
    world.store.commit(&Commit::new().put(key, (*session.document).clone())).unwrap();
    other
}

/// Another host that removes whatever this one has changed, before this one can answer.
struct Remover(Namespace);

impl Watcher for Remover {
    fn changed(&self, writes: &[Write]) {
        let remove = |directory: Ino, name: &Name| {
            self.0.unlink(directory, name).or_else(|_| self.0.rmdir(directory, name)).unwrap();
        };
        for write in writes {
            match write {
                Write::Put(Key::Entry(directory, name), _) => remove(*directory, name),
                Write::Put(Key::Node(_), Document::Node(node)) if node.mode == 0o640 => {
                    remove(ROOT, &name("f"));
                }
                _ => {}
            }
        }
    }

    fn bytes_changed(&self, _: Ino) {}

    fn settle(&self) {}

    fn knows(&self, _: Ino) -> bool {
        false
    }
}

/// A mkdir(2) that said ENOENT had made the directory: it looked for its inode after another host had moved it on.
#[test]
fn what_was_done_is_answered_so_though_another_host_has_removed_it() {
    let world = World::new();
    let (f, g) = (world.file(ROOT, "f"), world.file(ROOT, "g"));
    let other = other_host(&world, Settings::default());
    let remover = Arc::new(Remover(other));
    world.watch(vec![(remover.0.session(), remover.clone())]);
    let is_gone = |name| matches!(world.find(ROOT, name), Err(NamespaceError::NotFound));
    world.dir(ROOT, "d");
    assert!(is_gone("d"));
    world.file(ROOT, "h");
    assert!(is_gone("h"));
    let (_, linked) = world.link(g, ROOT, &name("i")).unwrap();
    assert!(is_gone("i") && linked.mode == 0o644);
    let mode = Change { mode: Some(0o640), ..Change::default() };
    assert_eq!(world.change(Caller::ROOT, f, &mode).unwrap().mode, 0o640);
    assert!(is_gone("f"));
    remover.0.end().unwrap();
    world.finish();
}

/// Another host that appends a record when this one has cut the file to some size, before it has cut the bytes.
struct Appender {
    host: Namespace,
    file: Ino,
    size: AtomicU64,
    /// So often at most.
    left: AtomicI64,
}

const RECORD: &[u8] = b"acknowledged";

impl Watcher for Appender {
    fn changed(&self, writes: &[Write]) {
        let is_cut = writes.iter().any(|write| match write {
            Write::Put(Key::Node(ino), Document::Node(node)) => {
                *ino == self.file && node.size() == self.size.load(Relaxed)
            }
            _ => false,
        });
        if is_cut && self.left.fetch_sub(1, Relaxed) > 0 {
            self.host.append(self.file, RECORD, false).unwrap();
        }
    }

    fn bytes_changed(&self, _: Ino) {}

    fn settle(&self) {}

    fn knows(&self, _: Ino) -> bool {
        false
    }
}

/// Whoever cut the file found it changed when he went for the bytes, and cut it again, to the same size.
#[test]
fn what_another_host_appends_to_a_file_that_was_just_cut_stays() {
    let world = World::new();
    let f = world.file(ROOT, "f");
    let host = other_host(&world, Settings::default());
    let appender = Arc::new(Appender { host, file: f, size: AtomicU64::new(0), left: AtomicI64::new(0) });
    world.watch(vec![(appender.host.session(), appender.clone())]);
    for size in [0, 5000] {
        world.write(f, 0, &[b'a'; 40_000], false).unwrap();
        appender.size.store(size, Relaxed);
        appender.left.store(3, Relaxed);
        let cut = Change { size: Some(size), ..Change::default() };
        world.change(Caller::ROOT, f, &cut).unwrap();
        assert_eq!(appender.left.swap(0, Relaxed), 2, "the file was cut once");
        let bytes = [&vec![b'a'; size as usize], RECORD].concat();
        assert_eq!(whole(&world, f), bytes);
        assert_eq!(whole(&appender.host, f), bytes);
        assert_eq!(world.node(f).regular().unwrap().blocks, bytes.len().div_ceil(512) as u64);
    }
    appender.host.end().unwrap();
    world.finish();
}

#[test]
fn a_file_that_one_host_lets_grow_and_another_removes_leaves_nothing() {
    let world = World::new();
    let other = other_host(&world, Settings::default());
    for _ in 0..100 {
        let f = world.file(ROOT, "f");
        world.write(f, 0, b"inline", false).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| other.unlink(ROOT, &name("f")).unwrap());
            // Done before it, or refused.
            let _ = world.write(f, 6, &[b'a'; 9000], false);
        });
    }
    other.end().unwrap();
    drop(other); // Which waits until the objects that it has replaced are gone.
    world.finish();
}

/// Lets both append records to an empty file, which grows out of its document meanwhile; then every record must be there.
fn append_from_both(record: usize, times: usize) {
    let world = World::new();
    let f = world.file(ROOT, "f");
    let other = Arc::new(other_host(&world, Settings::default()));
    let append = |namespace: &Namespace, byte: u8| {
        for _ in 0..times {
            namespace.append(f, &vec![byte; record], false).unwrap();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| append(&world, b'a'));
        scope.spawn(|| append(&other, b'b'));
    });
    let bytes = whole(&other, f);
    assert_eq!(bytes.len(), 2 * times * record);
    for (byte, host) in [(b'a', "this"), (b'b', "the other")] {
        let there = bytes.chunks(record).filter(|found| found.iter().all(|b| *b == byte)).count();
        assert_eq!(there, times, "records of {host} host are lost or torn");
    }
    assert_eq!(whole(&world, f), bytes);
    other.end().unwrap();
    drop(other); // Which waits until the objects that it has replaced are gone.
    world.finish();
}

fn whole(namespace: &Namespace, ino: Ino) -> Vec<u8> {
    let size = namespace.attributes(ino).unwrap().size();
    namespace.read(ino, 0, u32::try_from(size).unwrap()).unwrap()
}

#[test]
fn hosts_that_append_to_one_file_lose_nothing() {
    for _ in 0..4 {
        append_from_both(16, 100);
    }
    append_from_both(3000, 50);
}

#[test]
fn what_one_host_has_written_the_other_may_overwrite_cut_and_extend() {
    let world = World::new();
    let f = world.file(ROOT, "f");
    let other = other_host(&world, Settings::default());
    world.write(f, 0, &[b'a'; 9000], false).unwrap();
    other.write(f, 10, &[b'b'; 100], false).unwrap();
    world.write(f, 20, b"again", false).unwrap();
    for (namespace, size) in [(&*world, 5000), (&other, 4500), (&world, 60), (&other, 200), (&world, 40)] {
        namespace.change(Caller::ROOT, f, &Change { size: Some(size), ..Change::default() }).unwrap();
    }
    other.write(f, 300, b"!", false).unwrap();
    let bytes = [&[b'a'; 10][..], &[b'b'; 10], b"again", &[b'b'; 15], &[0; 260], b"!"].concat();
    assert_eq!(whole(&world, f), bytes);
    assert_eq!(whole(&other, f), bytes);
    other.end().unwrap();
    drop(other); // Which waits until the objects that it has replaced are gone.
    world.finish();
}

/// A server that took over has lost that one host had reserved numbers, and given them to the other.
#[test]
fn a_number_that_was_given_out_twice_makes_no_file_of_two() {
    let world = World::new();
    let other = other_host(&world, Settings::default());
    let before = world.store.get(&Key::Volume).unwrap().unwrap();
    let mine = world.file(ROOT, "mine");
    world.store.commit(&Commit::new().put(Key::Volume, (*before.document).clone())).unwrap();
    let make = |namespace: &Namespace, name: &Name| {
        let what = What::Regular;
        let caller = Caller::ROOT;
        namespace.make(&Make { parent: ROOT, name, what, mode: 0o600, umask: 0, caller }).unwrap().0
    };
    let theirs = make(&other, &name("theirs"));
    let more = make(&other, &name("more"));
    let all: std::collections::BTreeSet<Ino> = [mine, theirs, more].into();
    assert_eq!(all.len(), 3, "{mine} {theirs} {more}");
}
