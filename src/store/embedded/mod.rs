//! The embedded engine: documents in a `fjall` database in a directory of this machine.
//!
//! What is hard, and how it is solved:
//! 1. Checks and writes at one instant: commits take turns under one mutex, and one atomic batch carries the writes.
//! 2. An acknowledged commit outlives the process: the batch is in the operating system's hands before `commit` returns.
//! 3. Reads must not pay for the tables: documents are kept decoded in [`cache`], which only commits change, and so are
//!    directories that are known whole, in [`listings`].
//! 4. A full disk must not leave the database half written: [`space`] refuses growth while there is still room for the
//!    database's own work, and [`tables`] keeps that little.
//! 5. A power cut tears the journal; it must open all the same, with all that was synced: [`journal`].
//! 6. Versions never repeat, and the database must not be asked for tables too often: [`turn`].
//! 7. Nobody may see a part of a commit, or wait because the database holds one up: [`instants`].

pub mod cache;
mod instants;
pub mod journal;
pub mod layout;
mod listings;
pub mod open;
pub mod owner;
pub mod space;
mod tables;
mod turn;

use std::ops::Bound;
use std::path::{Path, PathBuf};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};
use parking_lot::{Mutex, MutexGuard};

use self::cache::{DocumentCache, Fetched};
use self::instants::Instants;
use self::listings::Listings;
use self::space::SpaceGuard;
use self::turn::{ERA_SPACE, Turn};
use super::commit::{Commit, CommitError};
use super::scan::{Pager, bounds};
use super::{Capabilities, Range, Reader, Scan, ScanItem, Start, Store, StoreCounters, StoreError, Write};
use crate::document::codec;
use crate::document::{Document, EntryPosition, Ino, Key, Kind, Stored, Version};
use crate::store::counts::Counts;
use crate::store::stopped::Stopped;

/// How much memory and journal the engine may use.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Decoded documents, in bytes; [`LISTINGS_SHARE`] of it for directories that are known whole.
    pub document_cache_bytes: u64,
    /// Blocks of the database's tables, in bytes.
    pub block_cache_bytes: u64,
    /// The journal is at most about this long; a crashed store replays it when it is opened.
    pub journal_bytes: u64,
    /// So many files with tables of the database are kept open.
    pub tables_open: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            document_cache_bytes: 64 << 20,
            block_cache_bytes: 64 << 20,
            journal_bytes: 256 << 20,
            tables_open: 256,
        }
    }
}

/// One part in so many of the memory for documents is for listings.
const LISTINGS_SHARE: u64 = 4;

/// Most keys, and most records of nodes and entries, are no longer.
const KEY_BYTES: usize = 64;
const RECORD_BYTES: usize = 256;

/// So often it is asked whether a commit has ended before a thread does something else: some tens of microseconds.
const TURN_TRIES: usize = 400;

/// The documents of an embedded store. The directory around it belongs to [`owner::Ownership`].
pub struct EmbeddedStore {
    dir: PathBuf,
    db: Database,
    spaces: [Keyspace; Kind::ALL.len()],
    eras: Keyspace,
    cache: DocumentCache,
    listings: Listings,
    instants: Instants,
    commits: Mutex<Turn>,
    space: SpaceGuard,
    stopped: Stopped,
    counts: Counts,
}

fn opening(error: fjall::Error) -> StoreError {
    engine_error("the database of the store does not open", error)
}

fn engine_error(what: impl Into<String>, error: fjall::Error) -> StoreError {
    match error {
        fjall::Error::Io(source) => StoreError::io(what, source),
        fjall::Error::Poisoned => StoreError::Stopped("its database refuses writes".to_owned()),
        other => StoreError::Engine { what: what.into(), source: Box::new(other) },
    }
}

impl EmbeddedStore {
    /// Opens the database in `dir`, making it if there is none. The caller owns the store's directory.
    ///
    /// # Errors
    /// [`StoreError`] with what the database says.
    pub fn open(dir: &Path, tuning: Tuning) -> Result<Self, StoreError> {
        let db = Database::builder(dir)
            .cache_size(tuning.block_cache_bytes)
            .max_journaling_size(tuning.journal_bytes)
            .max_cached_files(Some(tuning.tables_open))
            .worker_threads(1)
            .open()
            .map_err(opening)?;
        let open = |kind: Kind| db.keyspace(kind.name(), KeyspaceCreateOptions::default).map_err(opening);
        let [a, b, c, d, e, f, g, h, i, j] = Kind::ALL;
        let spaces = [
            open(a)?,
            open(b)?,
            open(c)?,
            open(d)?,
            open(e)?,
            open(f)?,
            open(g)?,
            open(h)?,
            open(i)?,
            open(j)?,
        ];
        let eras = db.keyspace(ERA_SPACE, KeyspaceCreateOptions::default).map_err(opening)?;
        let turn = Turn::open(&eras, &spaces)?;
        let listings_bytes = tuning.document_cache_bytes / LISTINGS_SHARE;
        let store = Self {
            dir: dir.to_owned(),
            db,
            spaces,
            eras,
            cache: DocumentCache::new(tuning.document_cache_bytes - listings_bytes),
            listings: Listings::new(listings_bytes),
            instants: Instants::default(),
            commits: Mutex::new(turn),
            space: SpaceGuard::new(dir)?,
            stopped: Stopped::default(),
            counts: Counts::default(),
        };
        store.measure();
        Ok(store)
    }

    /// Closes the database. If all of it is in its tables then, the next opening has no journal to replay.
    ///
    /// # Errors
    /// The database's.
    pub fn close(self) -> Result<(), StoreError> {
        let is_all_in_tables = self.flush()?;
        let dir = self.dir.clone();
        drop(self);
        if is_all_in_tables { journal::clear(&dir) } else { Ok(()) }
    }

    fn keyspace(&self, kind: Kind) -> &Keyspace {
        &self.spaces[kind as usize]
    }

    /// After a failed write or sync nobody knows what is on disk: no further change is taken.
    fn failed(&self, error: StoreError) -> StoreError {
        self.stop(&error.to_string());
        StoreError::Stopped(error.to_string())
    }

    /// What the database has under `key`. While a commit is under way that is what was there before it, or what is there
    /// after it: the database alone would show one document after the other.
    fn fetch(&self, key: &Key) -> Result<Fetched, StoreError> {
        self.instants.rest();
        if let Key::Entry(directory, name) = key
            && let Some(found) = self.listings.get(*directory, name, || !self.instants.is_showing())
        {
            return Ok(Fetched { found, lasting: true });
        }
        self.counts.fetched(1);
        let (space, encoded) = (self.keyspace(key.kind()), key.encode());
        let now = self.instants.now();
        if now.is_settled() {
            let found = space.get(&encoded);
            if self.instants.is_still(now) {
                return Ok(Fetched { found: read(found, key)?, lasting: true });
            }
        }
        let (_, view) = self.instants.view(&self.db);
        Ok(Fetched { found: read(view.get(space, &encoded), key)?, lasting: false })
    }

    /// Waits for the turn to commit. A commit takes some ten microseconds, and to be put to sleep and woken takes longer: so
    /// this asks for a while before it sleeps.
    fn turn(&self) -> MutexGuard<'_, Turn> {
        for _ in 0..TURN_TRIES {
            if let Some(turn) = self.commits.try_lock() {
                return turn;
            }
            std::hint::spin_loop();
        }
        self.commits.lock()
    }

    fn check(&self, commit: &Commit) -> Result<(), CommitError> {
        for check in &commit.checks {
            if !check.holds(self.get(check.key())?.as_ref()) {
                return Err(CommitError::Conflict(check.key().clone()));
            }
        }
        Ok(())
    }

    /// The directories among what a commit puts that have no entries: new ones, mostly. The keys of a new one are behind all
    /// others, so there is nothing to go over.
    fn empty_directories(&self, commit: &Commit) -> Result<Vec<Ino>, StoreError> {
        let mut empty = Vec::new();
        for write in &commit.writes {
            if let Write::Put(Key::Node(ino), Document::Node(node)) = write
                && node.directory().is_some_and(|directory| directory.children == 0)
                && !self.listings.knows(*ino)
                && self.has_no_entries(*ino)?
            {
                empty.push(*ino);
            }
        }
        Ok(empty)
    }

    /// Whether a directory has no entries, for whoever has the turn.
    fn has_no_entries(&self, directory: Ino) -> Result<bool, StoreError> {
        let scan = Scan { range: Range::Entries(directory), start: Start::First, limit: 1 };
        Ok(self.read_page(&scan, &self.db.snapshot())?.is_empty())
    }

    fn read_page(&self, scan: &Scan, view: &fjall::Snapshot) -> Result<Vec<ScanItem>, StoreError> {
        let (kind, from, prefix) = bounds(scan);
        let range = (from, Bound::Unbounded);
        read_page(scan, view.range::<Vec<u8>, _>(self.keyspace(kind), range), &prefix)
    }

    /// Returns the kinds of which all that is in memory is to go to tables.
    fn write(&self, turn: &mut Turn, commit: &Commit, version: Version) -> Result<Vec<Kind>, CommitError> {
        let mut batch = self.db.batch();
        let mut after = Vec::with_capacity(commit.writes.len());
        let (mut encoded, mut record) = (Vec::with_capacity(KEY_BYTES), Vec::with_capacity(RECORD_BYTES));
        for write in &commit.writes {
            let key = write.key();
            let current = match write {
                Write::Merge(..) => self.get(key)?,
                _ => None,
            };
            let now = write.apply(current.as_ref())?;
            let now = now.map(|document| Stored { version, document: document.into() });
            encoded.clear();
            key.encode_to(&mut encoded);
            let mut bytes = encoded.len();
            match &now {
                Some(stored) => {
                    codec::encode(&mut record, &encoded, version, &stored.document)
                        .map_err(|e| StoreError::damaged(key, &e))?;
                    bytes += record.len();
                    batch.insert(self.keyspace(key.kind()), &*encoded, &*record);
                }
                None => batch.remove(self.keyspace(key.kind()), &*encoded),
            }
            after.push((key, bytes, now));
        }
        let made = self.empty_directories(commit)?;
        let mut change = self.instants.begin(&self.db, version);
        // If this fails, it does so before the database shows any of the batch; what is in memory then stays right.
        let written = batch.durability(Some(PersistMode::Buffer)).commit();
        change.applied();
        let mut full = Vec::new();
        if written.is_ok() {
            made.into_iter().for_each(|directory| self.listings.made(directory));
            for (key, bytes, now) in after {
                if turn.count(key.kind(), bytes) {
                    full.push(key.kind());
                }
                match key {
                    Key::Entry(directory, name) => self.listings.changed(*directory, name, now.as_ref()),
                    Key::Node(ino) if now.is_none() => self.listings.removed(*ino),
                    _ => {}
                }
                self.cache.put(key, now);
            }
        }
        drop(change);
        written.map_err(|e| self.failed(engine_error("a commit could not be written", e)))?;
        Ok(full)
    }
}

/// A record as the database returned it, decoded.
fn read(found: fjall::Result<Option<fjall::Slice>>, key: &Key) -> Result<Option<Stored>, StoreError> {
    let found = found.map_err(|e| match e {
        fjall::Error::Io(source) => StoreError::io(format!("document {key} cannot be read"), source),
        other => StoreError::Damaged { key: key.to_string(), cause: other.to_string() },
    })?;
    found.map(|record| codec::decode(key, &record).map_err(|e| StoreError::damaged(key, &e))).transpose()
}

fn read_page(
    scan: &Scan,
    items: impl Iterator<Item = fjall::Guard>,
    prefix: &[u8],
) -> Result<Vec<ScanItem>, StoreError> {
    let kind = bounds(scan).0;
    let damaged = |cause: String| StoreError::Damaged { key: kind.name().to_owned(), cause };
    let mut page = Vec::new();
    let mut pager = Pager::new(scan);
    for item in items {
        let (bytes, record) = item.into_inner().map_err(|e| damaged(e.to_string()))?;
        if !bytes.starts_with(prefix) {
            break;
        }
        let Some(key) = Key::decode(kind, &bytes) else {
            return Err(damaged(format!("a key of {} bytes is none of this kind", bytes.len())));
        };
        if !pager.admits(page.len(), &key) {
            break;
        }
        let stored = codec::decode(&key, &record).map_err(|e| StoreError::damaged(&key, &e));
        page.push((key, stored));
    }
    Ok(page)
}

impl Reader for EmbeddedStore {
    fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        self.counts.got(1);
        let found = self.cache.get_or_fetch(key, self.instants.is_settled(), || self.fetch(key))?;
        self.instants.all_shown(found.as_ref());
        Ok(found)
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        self.counts.scanned();
        self.instants.rest();
        if let Some(page) = self.listings.page(scan, || !self.instants.is_showing()) {
            return Ok(page);
        }
        let (seen, view) = self.instants.view(&self.db);
        let page = self.read_page(scan, &view)?;
        let is_first = match &scan.start {
            Start::First => true,
            Start::At(position) => *position <= EntryPosition::FIRST,
            Start::After(_) => false,
        };
        if let Range::Entries(directory) = scan.range
            && is_first
            && page.len() < scan.limit
        {
            self.listings.learn(directory, &page, || self.instants.is_still(seen));
            self.listings.sweep();
        }
        Ok(page)
    }
}

impl Store for EmbeddedStore {
    fn commit(&self, commit: &Commit) -> Result<Version, CommitError> {
        let mut turn = self.turn();
        self.stopped.refuse()?;
        self.admit(&mut turn, commit)?;
        let version = Version(turn.last + 1);
        let outcome = self.check(commit).and_then(|()| self.write(&mut turn, commit, version));
        if outcome.is_ok() {
            turn.last = version.0;
        }
        drop(turn);
        self.listings.sweep();
        self.counts.committed(commit, &outcome);
        let full = outcome?;
        if !full.is_empty() {
            self.measure();
        }
        for kind in full {
            if let Err(error) = Self::send_to_table(self.keyspace(kind)) {
                // The commit was made; the store says at the next one that it has stopped.
                self.failed(error);
            }
        }
        Ok(version)
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.stopped.refuse()?;
        self.counts.synced();
        self.db
            .persist(PersistMode::SyncData)
            .map_err(|e| self.failed(engine_error("the journal could not be synced", e)))
    }

    fn admit_content(&self, bytes: u64) -> Result<(), StoreError> {
        self.space.admit_content(bytes)
    }

    fn forget_room(&self) {
        self.space.forget();
    }

    fn reserve_bytes(&self) -> u64 {
        self.space.reserve_bytes()
    }

    fn stop(&self, cause: &str) {
        if self.stopped.stop(cause) {
            log::error!(
                "the store stops: {cause}; unmount, see that the disk has room and is sound, and mount again"
            );
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { snapshots: true, one_version: true, shared: false, notices: false }
    }

    fn snapshot(&self) -> Box<dyn Reader + '_> {
        Box::new(Snapshot { store: self, view: self.instants.view(&self.db).1 })
    }

    fn counters(&self) -> StoreCounters {
        self.counts.now()
    }
}

struct Snapshot<'a> {
    store: &'a EmbeddedStore,
    view: fjall::Snapshot,
}

impl Reader for Snapshot<'_> {
    fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        read(self.view.get(self.store.keyspace(key.kind()), key.encode()), key)
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        self.store.read_page(scan, &self.view)
    }
}

#[cfg(test)]
mod tests;
