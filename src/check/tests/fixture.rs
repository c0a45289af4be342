//! A small good volume in memory, with every kind of document in it, and ways to break it.
//!
//! ```text
//! /            1    a/ 2   pipe 8   empty 7 (two attributes)   big 6 (backing file)   spare/ 11
//! /a           2    f 3 (inline)   b/ 4   link 5
//! /a/b         4    g -> 3         c/ 10
//! ```
//! Online there is a session, and under it: a file (9) and a directory (12) that were removed while they were open, and
//! an inode (13) whose backing file waits to be removed.

use std::collections::{BTreeMap, HashSet};

use super::super::{BackingFile, BackingList, Inputs, Mode, Report, run};
use crate::content::Objects;
use crate::document::*;
use crate::store::memory::MemoryStore;
use crate::store::{Commit, Range, Reader, Scan, ScanItem, Store, StoreError, Write, for_each};

pub(super) const SESSION: SessionId = SessionId(7);

/// Every document of a store at one instant, and still a reader.
pub(super) struct Frozen(MemoryStore);

pub(super) trait Freeze {
    fn snapshot_of_all(&self) -> Frozen;
}

impl Freeze for MemoryStore {
    fn snapshot_of_all(&self) -> Frozen {
        let copy = MemoryStore::new();
        for kind in Kind::ALL {
            for_each::<_, StoreError>(self, Range::All(kind), |key, item| {
                let document = (*item?.document).clone();
                copy.commit(&Commit { writes: vec![Write::Put(key, document)], ..Commit::new() }).unwrap();
                Ok(())
            })
            .unwrap();
        }
        Frozen(copy)
    }
}

impl Reader for Frozen {
    fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        self.0.get(key)
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        self.0.scan(scan)
    }
}

/// A volume, and what is wrong with it.
pub(super) struct Sample {
    pub(super) store: MemoryStore,
    /// Documents that do not decode.
    pub(super) damaged: HashSet<Key>,
    /// A key space with a key that does not decode at its end.
    pub(super) torn: Option<Kind>,
    pub(super) backing: BTreeMap<u64, BackingFile>,
    pub(super) mode: Mode<'static>,
    /// The objects that have the bytes of chunks, if an object store has.
    pub(super) objects: Option<Objects>,
}

pub(super) fn ino(number: u64) -> Ino {
    Ino(number)
}

pub(super) fn node_key(number: u64) -> Key {
    Key::Node(Ino(number))
}

pub(super) fn entry_key(parent: u64, name: &str) -> Key {
    Key::Entry(Ino(parent), Name::new(name.as_bytes()).unwrap())
}

pub(super) fn xattr_key(number: u64, name: &str) -> Key {
    Key::Xattr(Ino(number), name.as_bytes().into())
}

pub(super) fn node(nlink: u32, body: Body) -> Node {
    let t = Timestamp { sec: 5, nsec: 999_999_999 };
    Node { mode: 0o7755, uid: 1, gid: 1, nlink, atime: t, mtime: t, ctime: t, btime: t, xattrs: 0, body }
}

pub(super) fn regular(place: ContentPlace, size: u64, blocks: u64) -> Node {
    node(1, Body::Regular(Regular { size, blocks, place }))
}

fn directory(parent: u64, name: &str, children: u64, subdirectories: u32) -> Node {
    let name = Name::new(name.as_bytes()).ok();
    node(2 + subdirectories, Body::Directory(Directory { parent: Ino(parent), name, children }))
}

pub(super) fn session(id: SessionId, state: SessionState) -> Document {
    Document::Session(Session {
        id,
        host: "ada".to_owned(),
        boot_id: "b".to_owned(),
        pid: 4711,
        mount_point: "/mnt".to_owned(),
        started: Timestamp::default(),
        lease_ms: 10_000,
        heartbeat: 3,
        intents: 0,
        operations_below: 0,
        epoch: 1,
        state,
        locks: None,
    })
}

pub(super) fn content(len: usize) -> Document {
    Document::Content(Content { bytes: vec![b'x'; len].into() })
}

pub(super) fn chunk(len: usize) -> Document {
    Document::Chunk(Chunk { bytes: vec![b'x'; len].into() })
}

pub(super) fn advisory(locks: &[(SessionId, LockMode, u64, u64)]) -> Document {
    let lock = |&(session, mode, start, end): &(SessionId, LockMode, u64, u64)| AdvisoryLock {
        family: AdvisoryFamily::Fcntl,
        mode,
        start,
        end,
        session,
        owner: 1,
        pid: 4711,
        host: "ada".into(),
        since: Timestamp::default(),
    };
    Document::Advisory(AdvisoryRecord { locks: locks.iter().map(lock).collect() })
}

pub(super) fn xattr(len: usize) -> Document {
    Document::Xattr(Xattr { value: vec![b'x'; len].into() })
}

impl Sample {
    /// As it is when nobody has it mounted.
    pub(super) fn offline() -> Self {
        let volume = Self {
            store: MemoryStore::new(),
            damaged: HashSet::new(),
            torn: None,
            backing: BTreeMap::from([(6, BackingFile { allocated: 8192 })]),
            mode: Mode::Offline,
            objects: None,
        };
        volume.put(
            Key::Volume,
            Document::Volume(Volume {
                format: FORMAT_VERSION,
                id: "0".repeat(32),
                locking: Locking::Tree,
                created: Timestamp::default(),
                next_ino: 100_000,
                epoch: 1,
                inline_max: 4096,
                content: None,
            }),
        );
        let symlink = Body::Symlink { target: b"../big"[..].into() };
        let mut nodes = vec![
            (1, directory(1, "", 5, 2)),
            (2, directory(1, "a", 3, 1)),
            (3, Node { nlink: 2, ..regular(ContentPlace::Inline, 100, 1) }),
            (4, directory(2, "b", 2, 1)),
            (5, node(1, symlink)),
            (6, regular(ContentPlace::Backing, 1 << 20, 16)),
            (7, Node { xattrs: 2, ..regular(ContentPlace::Empty, 1 << 40, 0) }),
            (8, node(1, Body::Fifo)),
            (10, directory(4, "c", 0, 0)),
            (11, directory(1, "spare", 0, 0)),
        ];
        for (number, node) in nodes.drain(..) {
            volume.put(node_key(number), Document::Node(node));
        }
        let names = [
            (1, "a", 2),
            (1, "pipe", 8),
            (1, "empty", 7),
            (1, "big", 6),
            (1, "spare", 11),
            (2, "f", 3),
            (2, "b", 4),
            (2, "link", 5),
            (4, "g", 3),
            (4, "c", 10),
        ];
        for (parent, name, number) in names {
            volume.link(parent, name, number);
        }
        volume.put(Key::Content(Ino(3)), content(90));
        volume.put(xattr_key(7, "user.a"), xattr(0));
        volume.put(xattr_key(7, &"n".repeat(255)), xattr(65_536));
        volume
    }

    /// As it is under a mount.
    pub(super) fn online() -> Self {
        let mut volume = Self::offline();
        volume.mode = Mode::Online { sessions: &[SESSION] };
        volume.put(Key::Session(SESSION), session(SESSION, SessionState::Live));
        let open_file = Node { nlink: 0, ..regular(ContentPlace::Empty, 0, 0) };
        let open_directory = Node { nlink: 0, ..directory(40, "gone", 0, 0) };
        volume.put(node_key(9), Document::Node(open_file));
        volume.put(node_key(12), Document::Node(open_directory));
        for number in [9, 12, 13] {
            volume.put(Key::Orphan(Ino(number)), Document::Orphan(Orphan { session: SESSION }));
        }
        volume.backing.insert(13, BackingFile { allocated: 8192 });
        volume
    }

    pub(super) fn put(&self, key: Key, document: Document) {
        self.store.commit(&Commit { writes: vec![Write::Put(key, document)], ..Commit::new() }).unwrap();
    }

    pub(super) fn delete(&self, key: Key) {
        self.store.commit(&Commit::new().delete(key)).unwrap();
    }

    pub(super) fn document(&self, key: &Key) -> Document {
        (*self.store.get(key).unwrap().unwrap().document).clone()
    }

    /// Changes a node and nothing that refers to it.
    pub(super) fn edit(&self, number: u64, change: impl FnOnce(&mut Node)) {
        let Document::Node(mut node) = self.document(&node_key(number)) else { panic!("no node") };
        change(&mut node);
        self.put(node_key(number), Document::Node(node));
    }

    pub(super) fn edit_directory(&self, number: u64, change: impl FnOnce(&mut Directory)) {
        self.edit(number, |node| match &mut node.body {
            Body::Directory(directory) => change(directory),
            other => panic!("{other:?}"),
        });
    }

    pub(super) fn edit_regular(&self, number: u64, change: impl FnOnce(&mut Regular)) {
        self.edit(number, |node| match &mut node.body {
            Body::Regular(regular) => change(regular),
            other => panic!("{other:?}"),
        });
    }

    pub(super) fn edit_volume(&self, change: impl FnOnce(&mut Volume)) {
        let Document::Volume(mut volume) = self.document(&Key::Volume) else { panic!("no volume") };
        change(&mut volume);
        self.put(Key::Volume, Document::Volume(volume));
    }

    /// Puts an entry and changes nothing else. What is not there is taken for a file.
    pub(super) fn link(&self, parent: u64, name: &str, number: u64) {
        let kind = self.store.node(Ino(number)).unwrap().map_or(FileKind::Regular, |(_, node)| node.kind());
        self.put(entry_key(parent, name), Document::Entry(Entry { ino: Ino(number), kind }));
    }

    pub(super) fn copy_node(&self, from: u64, to: u64) {
        self.put(node_key(to), self.document(&node_key(from)));
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        for kind in Kind::ALL {
            for_each::<_, StoreError>(&self.store, Range::All(kind), |key, _| {
                keys.push(key);
                Ok(())
            })
            .unwrap();
        }
        keys
    }

    pub(super) fn inputs<'a>(&'a self, documents: &'a dyn Reader) -> Inputs<'a> {
        let live = (self.mode != Mode::Offline).then_some(self as &dyn Reader);
        Inputs { documents, live, backing: Some(self), mode: self.mode }
    }

    pub(super) fn check_with(&self, documents: &dyn Reader) -> Report {
        run(&self.inputs(documents), &mut |_| {}).unwrap()
    }

    pub(super) fn check(&self) -> Report {
        self.check_with(self)
    }
}

fn damage(key: &str) -> StoreError {
    StoreError::Damaged { key: key.to_owned(), cause: "the checksum does not match".to_owned() }
}

impl Reader for Sample {
    fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        if self.damaged.contains(key) {
            return Err(damage(&key.to_string()));
        }
        self.store.get(key)
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        let mut page = self.store.scan(scan)?;
        let end = page.len() < scan.limit;
        match (scan.range, self.torn) {
            (Range::All(kind), Some(torn)) if kind == torn && end => return Err(damage(torn.name())),
            _ => {}
        }
        for (key, item) in &mut page {
            if self.damaged.contains(key) {
                *item = Err(damage(&key.to_string()));
            }
        }
        Ok(page)
    }
}

impl BackingList for Sample {
    fn objects(&self) -> Option<&Objects> {
        self.objects.as_ref()
    }

    fn inodes(&self, visit: &mut dyn FnMut(Ino)) -> std::io::Result<()> {
        self.backing.keys().rev().for_each(|&number| visit(Ino(number)));
        Ok(())
    }

    fn file(&self, ino: Ino) -> std::io::Result<Option<BackingFile>> {
        Ok(self.backing.get(&ino.0).copied())
    }
}
