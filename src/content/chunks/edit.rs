//! Changing chunks: what is there is read, changed, and put back in one commit that checks what was read.
//!
//! What is hard: reading before every write would double its price. What this process has read or written last, or
//! knows to be absent, is taken for what is there; the commit checks it, and after a conflict the store is asked.
//!
//! Where objects have the bytes, those of a commit are put, all at once, before it. What it stops naming is removed once it
//! is durable; what it would have named is, if it was refused. If nobody knows what became of it, both are left.

use std::sync::Arc;

use super::held::Held;
use super::{ChunkFile, sectors};
use crate::content::error::ContentError;
use crate::content::names::{Piece, range_end};
use crate::document::{Key, ObjectRef, Version};
use crate::store::{Commit, CommitError, StoreError};

/// As many chunks one commit writes.
pub const CHUNKS_WRITTEN: usize = 16;

/// How often a change is tried at once; then the caller tries all of it again, with pauses. A conflict means that another
/// host has changed the same chunk, so all together make progress.
const ATTEMPTS: usize = 8;

/// What becomes of a chunk.
pub(super) enum Edit {
    Keep,
    Put(Arc<[u8]>),
    Delete,
}

/// An edit of chunks that was planned on what stood there.
#[derive(Debug)]
pub(super) struct Planned {
    /// What it checks and writes.
    commit: Commit,
    /// The chunks that it writes, or removes.
    written: Vec<Written>,
    /// By how many sectors they grow.
    pub(super) change: i64,
}

/// A chunk that a commit writes, or removes.
#[derive(Debug)]
struct Written {
    index: u64,
    bytes: Option<Arc<[u8]>>,
    /// The object that has the bytes, and the one that had those before.
    object: Option<ObjectRef>,
    before: Option<ObjectRef>,
}

/// Whether a commit that failed like this has certainly changed nothing.
fn is_refused(error: &CommitError) -> bool {
    matches!(error, CommitError::Conflict(_) | CommitError::Store(StoreError::Fenced | StoreError::NoSpace))
}

impl ChunkFile {
    /// Writes all of `data` at `offset`: in one commit, unless it is many chunks long. With `under`, only while the node has
    /// that version: where the file ended then, another host may have written since.
    ///
    /// # Errors
    /// `TooLarge`; `Conflict` if the node has another version; the store's. Part of the data may then have been written.
    pub fn write_at(&self, data: &[u8], offset: u64, under: Option<Version>) -> Result<(), ContentError> {
        self.write_batches(data, offset, |pieces, put| self.edit(pieces, true, under, put))
    }

    /// As [`write_at`](Self::write_at), but what fits is left to be written by the commit of the node: see
    /// [`join`](Self::join).
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn stage_at(&self, data: &[u8], offset: u64, under: Version) -> Result<(), ContentError> {
        let end = range_end(offset, data.len() as u64)?;
        self.write_batches(data, offset, |pieces, put| {
            let is_last =
                pieces.last().is_none_or(|last| self.cut().offset(last.index, last.start) + last.len == end);
            if !is_last {
                return self.edit(pieces, true, Some(under), put);
            }
            let old = self.old(pieces, true)?;
            self.require_as_written(pieces, &old)?;
            let planned = self.plan(pieces, &old, put)?;
            self.state.lock().staged = Some(planned);
            Ok(())
        })
    }

    /// Adds what is still to be written to the commit that names it.
    pub fn join(&self, mut commit: Commit) -> Commit {
        if let Some(staged) = &self.state.lock().staged {
            let Commit { checks, writes, .. } = staged.commit.clone();
            commit.checks.retain(|check| !checks.iter().any(|other| other.key() == check.key()));
            commit.checks.extend(checks);
            commit.writes.extend(writes);
        }
        commit
    }

    /// Hands the data to `write` a batch of pieces at a time, with what each of them becomes.
    fn write_batches(
        &self,
        data: &[u8],
        offset: u64,
        mut write: impl FnMut(&[Piece], &dyn Fn(Piece, Option<&Arc<[u8]>>) -> Edit) -> Result<(), ContentError>,
    ) -> Result<(), ContentError> {
        let end = range_end(offset, data.len() as u64)?;
        let pieces: Vec<Piece> = self.cut().pieces(offset, end).collect();
        let mut rest = data;
        for batch in pieces.chunks(CHUNKS_WRITTEN) {
            let len = batch.iter().map(|piece| piece.len).sum::<u64>();
            let (here, after) = rest.split_at(usize::try_from(len).unwrap_or(usize::MAX));
            rest = after;
            write(batch, &|piece, old| {
                let from = self.cut().offset(piece.index, piece.start)
                    - self.cut().offset(batch[0].index, batch[0].start);
                let from = usize::try_from(from).unwrap_or(usize::MAX);
                let data = &here[from..from + usize::try_from(piece.len).unwrap_or(usize::MAX)];
                Edit::Put(overwrite(old, data, usize::try_from(piece.start).unwrap_or(usize::MAX)))
            })?;
        }
        Ok(())
    }

    /// Changes the chunks of `pieces` as `edit` says: in one commit, or in one each where only the version of a commit of
    /// one document is told. With `guess`, what is probably there is not read first; then `edit` must not keep anything.
    /// With `under`, only if the node has that version.
    pub(super) fn edit(
        &self,
        pieces: &[Piece],
        guess: bool,
        under: Option<Version>,
        edit: impl Fn(Piece, Option<&Arc<[u8]>>) -> Edit,
    ) -> Result<(), ContentError> {
        let at_once = if self.tells_all_versions() { pieces.len().max(1) } else { 1 };
        pieces.chunks(at_once).try_for_each(|some| self.edit_at_once(some, guess, under, &edit))
    }

    /// Whether all documents of a commit have the version that it returns.
    pub(super) fn tells_all_versions(&self) -> bool {
        self.store().capabilities().one_version
    }

    fn edit_at_once(
        &self,
        pieces: &[Piece],
        guess: bool,
        under: Option<Version>,
        edit: impl Fn(Piece, Option<&Arc<[u8]>>) -> Edit,
    ) -> Result<(), ContentError> {
        let mut attempts = 0;
        loop {
            let old = self.old(pieces, guess && attempts == 0)?;
            self.require_as_written(pieces, &old)?;
            attempts += 1;
            match self.make(self.plan(pieces, &old, &edit)?, under) {
                Err(CommitError::Conflict(Key::Chunk(..))) if attempts < ATTEMPTS => {
                    self.state.lock().absent_from = u64::MAX;
                }
                done => return Ok(done?),
            }
        }
    }

    /// What `edit` makes of the chunks, of which `old` was read.
    fn plan(
        &self,
        pieces: &[Piece],
        old: &[Option<Held>],
        edit: impl Fn(Piece, Option<&Arc<[u8]>>) -> Edit,
    ) -> Result<Planned, ContentError> {
        let mut planned = Planned { commit: Commit::new(), written: Vec::new(), change: 0 };
        let mut puts = Vec::new();
        for (piece, old) in pieces.iter().zip(old) {
            let (index, key) = (piece.index, self.key(piece.index));
            let before = old.as_ref().map(|old| &old.bytes);
            let bytes = match edit(*piece, before) {
                Edit::Keep => continue,
                Edit::Delete => None,
                Edit::Put(bytes) => Some(bytes),
            };
            planned.change +=
                bytes.as_ref().map_or(0, |b| sectors(b.len())) - before.map_or(0, |b| sectors(b.len()));
            let commit = match old {
                Some(held) => planned.commit.at(key.clone(), held.version),
                None => planned.commit.absent(key.clone()),
            };
            planned.commit = if bytes.is_none() { commit.delete(key) } else { commit };
            puts.extend(bytes.clone().map(|bytes| (index, bytes)));
            let before = old.as_ref().and_then(|old| old.object.clone());
            planned.written.push(Written { index, bytes, object: None, before });
        }
        let mut put = self.put_bytes(puts)?.into_iter();
        for written in planned.written.iter_mut().filter(|written| written.bytes.is_some()) {
            let Some((document, object)) = put.next() else { break };
            planned.commit = planned.commit.put(self.key(written.index), document);
            written.object = object;
        }
        Ok(planned)
    }

    fn make(&self, planned: Planned, under: Option<Version>) -> Result<(), CommitError> {
        if planned.written.is_empty() {
            return Ok(());
        }
        let mut commit = self.commit(under);
        commit.checks.extend(planned.commit.checks.iter().cloned());
        commit.writes.extend(planned.commit.writes.iter().cloned());
        let version = match self.store().commit(&commit) {
            Ok(version) => version,
            Err(error) => {
                if is_refused(&error) {
                    self.take_back(planned);
                }
                return Err(error);
            }
        };
        let told = self.store().capabilities().tells_versions_of(&commit).then_some(version);
        let written = self.made(planned, told);
        self.state.lock().written.extend(written);
        Ok(())
    }

    /// Notes what was written, and returns the chunks with their versions; without their version, the last, nothing is
    /// remembered of their bytes, and a chunk that is there is none that can be checked.
    pub(super) fn made(&self, planned: Planned, version: Option<Version>) -> Vec<(u64, Option<Version>)> {
        let mut state = self.state.lock();
        state.tally.change += planned.change;
        let mut replaced = Vec::new();
        let note = |written: Written| {
            let Written { index, bytes, object, before } = written;
            if bytes.is_some() && index >= state.absent_from {
                state.absent_from = index + 1;
            }
            replaced.extend(before);
            let there = version.filter(|_| bytes.is_some());
            match (bytes, version) {
                (Some(_), None) => self.chunks.shared.cache.forget(self.ino.0, index),
                (bytes, version) => {
                    let held = bytes.zip(version).map(|(bytes, version)| Held { version, bytes, object });
                    self.chunks.shared.cache.wrote(self.ino.0, index, held);
                }
            }
            (index, there)
        };
        let noted = planned.written.into_iter().map(note).collect();
        self.replace(replaced);
        noted
    }

    /// Forgets what was staged, and that anything is known of these chunks: the store has refused it, or it is not known
    /// what became of it.
    pub(super) fn unstage(&self, staged: Planned, refused: bool) {
        staged.written.iter().for_each(|written| self.chunks.shared.cache.forget(self.ino.0, written.index));
        if refused {
            self.take_back(staged);
        }
    }

    /// Removes the objects that a commit which was refused would have named. Bytes hang on it, so the chunks are looked at
    /// once more; what cannot be looked at is left.
    fn take_back(&self, planned: Planned) {
        let put: Vec<(u64, ObjectRef)> = planned
            .written
            .into_iter()
            .filter_map(|written| Some((written.index, written.object?)))
            .collect();
        if put.is_empty() {
            return;
        }
        match self.objects_of(&put.iter().map(|(index, _)| *index).collect::<Vec<_>>()) {
            Ok(named) => {
                self.discard(put.into_iter().map(|(_, object)| object).filter(|o| !named.contains(o)))
            }
            Err(error) => log::debug!("objects of a refused change are left: {error}"),
        }
    }

    /// Refuses to go on with a change of which another host has cut off a part: what it has put there before would be
    /// missing.
    fn require_as_written(&self, pieces: &[Piece], old: &[Option<Held>]) -> Result<(), CommitError> {
        let state = self.state.lock();
        let changed = pieces.iter().zip(old).find(|(piece, old)| {
            let written = state.written.get(&piece.index);
            written.is_some_and(|written| *written != old.as_ref().map(|held| held.version))
        });
        changed.map_or(Ok(()), |(piece, _)| Err(CommitError::Conflict(self.key(piece.index))))
    }

    /// What stands where the pieces are; with `guess`, what probably does.
    fn old(&self, pieces: &[Piece], guess: bool) -> Result<Vec<Option<Held>>, ContentError> {
        let absent_from = self.state.lock().absent_from;
        let probable = |piece: &Piece| match piece.index {
            _ if !guess => None,
            index if index >= absent_from => Some(None),
            index => self.chunks.shared.cache.guess(self.ino.0, index),
        };
        let mut old: Vec<Option<Option<Held>>> = pieces.iter().map(probable).collect();
        let unknown: Vec<u64> =
            pieces.iter().zip(&old).filter(|(_, old)| old.is_none()).map(|(piece, _)| piece.index).collect();
        let mut fetched = self.fetch(&unknown)?.into_iter();
        for slot in old.iter_mut().filter(|slot| slot.is_none()) {
            *slot = fetched.next();
        }
        Ok(old.into_iter().flatten().collect())
    }
}

/// `old` with `data` at `start`.
fn overwrite(old: Option<&Arc<[u8]>>, data: &[u8], start: usize) -> Arc<[u8]> {
    let old = old.map_or(&[][..], |old| &**old);
    let end = start + data.len();
    if start == 0 && end >= old.len() {
        return data.into();
    }
    let mut bytes = Vec::with_capacity(old.len().max(end));
    bytes.extend_from_slice(old);
    bytes.resize(old.len().max(end), 0);
    bytes[start..end].copy_from_slice(data);
    bytes.into()
}
