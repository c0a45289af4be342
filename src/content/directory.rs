//! The directory of backing files: which segments exist, the open descriptors, and the durability of names. Owns every
//! open, create and unlink in it; [`super::backing`] does the I/O inside the files. Imports only this layer.
//!
//! What is hard:
//! 1. *Descriptors are bounded however many files are held.* A [`BackingFile`] owns no descriptor; it borrows one for
//!    each operation from a cache of all segments (`descriptors`). A descriptor that is evicted while in use is closed
//!    by its last user, so the true bound is the cache and one for each operation under way.
//!    Closing loses nothing: a sync through another descriptor covers the same pages, and Linux reports a failed
//!    write-back that nobody has seen to whoever opens the file next.
//! 2. *Which segments exist* must be known without asking the host about millions of absent ones. Segments other than
//!    the first are rare, so a shard is listed once, at its first use, and they are kept in memory
//!    ([`Shard::further`]). This is sound because one process owns the directory: the store's lock sees to that. A
//!    segment is created with O_EXCL, so a second process would be noticed.
//! 3. *One handle per inode.* The handle's lock orders creation and unlinking of its segments against its I/O, so two
//!    handles of one inode must never live at once. `Shard::handles` holds weak references, and what is not held by
//!    anyone costs nothing but, for a while, its descriptors.
//! 4. *Names are durable only after their directory is synced.* A name found at the start may have been made by a
//!    process that died before it could sync, so every shard counts as changed when it is first used.
//!
//! Locks are taken in the order: a file's segments, then its shard's state. `turn` and `root_changed` are held while a
//! directory is synced, and nothing but the state is taken inside them.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use quick_cache::sync::Cache;

use super::backing::BackingFile;
use super::error::ContentError;
use super::host::{self, Abilities, Space};
use super::names::{Cut, SHARDS, parse_name, segment_path, shard_of, shard_path};

/// The directory, shared by the handles of its files.
#[derive(Debug)]
pub(super) struct Directory {
    root: PathBuf,
    pub(super) cut: Cut,
    pub(super) abilities: Abilities,
    /// Open segments, by inode and index; the least used are closed.
    descriptors: Cache<(u64, u64), Arc<File>>,
    shards: Vec<Shard>,
    /// Whether a shard's directory may have been made since the root was synced.
    root_changed: Mutex<bool>,
}

#[derive(Debug, Default)]
struct Shard {
    state: Mutex<ShardState>,
    /// Held while the shard's directory is synced, so that nobody takes another's unfinished sync for done.
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct ShardState {
    /// Whether the directory exists and has been listed into `further`.
    ready: bool,
    /// Whether a name may have come or gone since the directory was synced.
    changed: bool,
    /// The segments other than the first, of the few inodes that have any.
    further: HashMap<u64, BTreeSet<u64>>,
    /// The handles that someone holds.
    handles: HashMap<u64, Weak<BackingFile>>,
}

impl Directory {
    pub(super) fn new(root: &Path, max_open: usize, segment_bytes: NonZeroU64) -> Result<Self, ContentError> {
        require_directory(root)?;
        Ok(Self {
            root: root.to_owned(),
            cut: Cut::new(segment_bytes),
            abilities: Abilities::untried(),
            descriptors: Cache::new(max_open.max(1)),
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            root_changed: Mutex::new(true),
        })
    }

    /// The one handle of an inode, whether or not anything is stored for it.
    pub(super) fn handle(self: &Arc<Self>, ino: u64) -> Result<Arc<BackingFile>, ContentError> {
        let mut state = self.shard(ino).state.lock();
        if let Some(held) = state.handles.get(&ino).and_then(Weak::upgrade) {
            return Ok(held);
        }
        self.ready(shard_of(ino), &mut state)?;
        let mut segments = state.further.get(&ino).cloned().unwrap_or_default();
        let first = self.segment_path(ino, 0);
        let mut whole = false;
        match fs::symlink_metadata(&first) {
            Ok(found) if found.is_file() => {
                segments.insert(0);
                whole = self.cut.locate(found.len()) > (1, 0);
            }
            Ok(_) => return Err(not_regular(first)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(ContentError::from_io("looking at", &first, error)),
        }
        let handle = Arc::new(BackingFile::new(Arc::clone(self), ino, segments, whole));
        state.handles.insert(ino, Arc::downgrade(&handle));
        Ok(handle)
    }

    /// Notes that the last holder of an inode's handle has let it go.
    pub(super) fn forget(&self, ino: u64) {
        let mut state = self.shard(ino).state.lock();
        // Someone may have asked for the inode again meanwhile: then a new handle stands here.
        if state.handles.get(&ino).is_some_and(|handle| handle.strong_count() == 0) {
            state.handles.remove(&ino);
        }
    }

    /// An open descriptor of a segment that exists. The caller holds the file's segments, shared or exclusive.
    pub(super) fn descriptor(&self, ino: u64, index: u64) -> Result<Arc<File>, ContentError> {
        if let Some(file) = self.descriptors.get(&(ino, index)) {
            return Ok(file);
        }
        let path = self.segment_path(ino, index);
        // Without O_NONBLOCK, something else than a regular file in its place could make us wait for ever.
        let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
        let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path);
        let file = match opened {
            Ok(file) => file,
            Err(error) if matches!(error.raw_os_error(), Some(libc::ELOOP | libc::EISDIR | libc::ENXIO)) => {
                return Err(not_regular(path));
            }
            Err(error) => return Err(ContentError::from_io("opening", &path, error)),
        };
        let found = file.metadata().map_err(|error| ContentError::from_io("looking at", &path, error))?;
        if !found.is_file() {
            return Err(not_regular(path));
        }
        let file = Arc::new(file);
        self.descriptors.insert((ino, index), Arc::clone(&file));
        Ok(file)
    }

    /// Makes a segment that does not exist. The caller holds the file's segments exclusively.
    pub(super) fn create(&self, ino: u64, index: u64) -> Result<Arc<File>, ContentError> {
        let shard = shard_of(ino);
        self.make_shard(shard)?;
        let path = self.segment_path(ino, index);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&path)
            .map_err(|error| ContentError::from_io("making", &path, error))?;
        let mut state = self.shard(ino).state.lock();
        state.changed = true;
        if index > 0 {
            state.further.entry(ino).or_default().insert(index);
        }
        drop(state);
        let file = Arc::new(file);
        self.descriptors.insert((ino, index), Arc::clone(&file));
        Ok(file)
    }

    /// Removes a segment; that it is gone already is fine. The caller holds the file's segments exclusively.
    pub(super) fn unlink(&self, ino: u64, index: u64) -> Result<(), ContentError> {
        let path = self.segment_path(ino, index);
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(ContentError::from_io("removing", &path, error)),
        }
        self.descriptors.remove(&(ino, index));
        let mut state = self.shard(ino).state.lock();
        state.changed = true;
        if let Some(further) = state.further.get_mut(&ino) {
            further.remove(&index);
            if further.is_empty() {
                state.further.remove(&ino);
            }
        }
        Ok(())
    }

    /// The host's metadata of a segment that exists, without opening it.
    pub(super) fn metadata(&self, ino: u64, index: u64) -> Result<Metadata, ContentError> {
        let path = self.segment_path(ino, index);
        let found = match self.descriptors.peek(&(ino, index)) {
            Some(file) => file.metadata(),
            None => fs::symlink_metadata(&path),
        };
        found.map_err(|error| ContentError::from_io("looking at", &path, error))
    }

    /// Makes every change of names in the shard of `ino` durable.
    pub(super) fn sync_names(&self, ino: u64) -> Result<(), ContentError> {
        self.sync_shard(shard_of(ino))
    }

    /// Makes every change of names durable.
    pub(super) fn sync_all_names(&self) -> Result<(), ContentError> {
        (0..SHARDS).try_for_each(|shard| self.sync_shard(shard))
    }

    /// The inodes that have a segment in one shard, in order, and what else is found there.
    pub(super) fn list(&self, shard: usize) -> Vec<Result<u64, ContentError>> {
        let mut inodes = BTreeSet::new();
        let mut errors = Vec::new();
        let path = shard_path(&self.root, shard);
        match self.read_names(shard, |name| match parse_name(shard, &name) {
            Some((ino, index)) if index <= self.cut.last_index() => {
                inodes.insert(ino);
            }
            _ => errors.push(ContentError::Foreign { path: path.join(name) }),
        }) {
            Ok(_) => {}
            Err(error) => errors.push(error),
        }
        inodes.into_iter().map(Ok).chain(errors.into_iter().map(Err)).collect()
    }

    pub(super) fn space(&self) -> Result<Space, ContentError> {
        host::space(&self.root)
            .map_err(|error| ContentError::from_io("asking for the room at", &self.root, error))
    }

    pub(super) fn segment_path(&self, ino: u64, index: u64) -> PathBuf {
        segment_path(&self.root, ino, index)
    }

    fn shard(&self, ino: u64) -> &Shard {
        &self.shards[shard_of(ino)]
    }

    /// Lists a shard at its first use.
    fn ready(&self, shard: usize, state: &mut ShardState) -> Result<(), ContentError> {
        if state.ready {
            return Ok(());
        }
        let mut further: HashMap<u64, BTreeSet<u64>> = HashMap::new();
        state.ready = self.read_names(shard, |name| match parse_name(shard, &name) {
            Some((ino, index)) if (1..=self.cut.last_index()).contains(&index) => {
                further.entry(ino).or_default().insert(index);
            }
            _ => {}
        })?;
        state.changed = state.ready;
        state.further = further;
        Ok(())
    }

    /// Makes the directory of a shard if it is absent.
    fn make_shard(&self, shard: usize) -> Result<(), ContentError> {
        let mut state = self.shards[shard].state.lock();
        if state.ready {
            return Ok(());
        }
        make_directory(&shard_path(&self.root, shard))?;
        *self.root_changed.lock() = true;
        self.ready(shard, &mut state)
    }

    /// Calls `each` with every name in a shard. Returns whether the shard's directory exists.
    fn read_names(&self, shard: usize, mut each: impl FnMut(OsString)) -> Result<bool, ContentError> {
        let path = shard_path(&self.root, shard);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(ContentError::WrongKind { path, expected: "directory" }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(ContentError::from_io("looking at", &path, error)),
        }
        let failed = |error| ContentError::from_io("listing", &path, error);
        for entry in fs::read_dir(&path).map_err(failed)? {
            each(entry.map_err(failed)?.file_name());
        }
        Ok(true)
    }

    fn sync_shard(&self, index: usize) -> Result<(), ContentError> {
        let shard = &self.shards[index];
        let _turn = shard.turn.lock();
        // A change made from here on sets it again: it may or may not be part of this sync.
        if !std::mem::take(&mut shard.state.lock().changed) {
            return Ok(());
        }
        let synced = sync_directory(&shard_path(&self.root, index)).and_then(|()| self.sync_root());
        if synced.is_err() {
            shard.state.lock().changed = true;
        }
        synced
    }

    fn sync_root(&self) -> Result<(), ContentError> {
        let mut changed = self.root_changed.lock();
        if *changed {
            sync_directory(&self.root)?;
            *changed = false;
        }
        Ok(())
    }
}

/// Makes a directory that only its owner may enter; that it exists is fine.
pub(super) fn make_directory(path: &Path) -> Result<(), ContentError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(ContentError::from_io("making the directory", path, error))
        }
        _ => Ok(()),
    }
}

/// Makes the names in a directory durable.
fn sync_directory(path: &Path) -> Result<(), ContentError> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| ContentError::from_io("syncing the directory", path, error))
}

fn require_directory(path: &Path) -> Result<(), ContentError> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(ContentError::WrongKind { path: path.to_owned(), expected: "directory" }),
        Err(error) => Err(ContentError::from_io("opening the directory", path, error)),
    }
}

fn not_regular(path: PathBuf) -> ContentError {
    ContentError::WrongKind { path, expected: "regular file" }
}
