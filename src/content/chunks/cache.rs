//! Chunks that were read or written of late, and reading through them.
//!
//! What is hard: another host may change a chunk at any time. Whoever changes bytes commits the node after them and
//! before the change is acknowledged. So what was read while the node had one version may be shown for as long as it has
//! that version ([`View`]), and there is nothing to be told and nothing to expire. A writer may take whatever is here for
//! what the store has, since its commit checks the version.

use quick_cache::sync::Cache;

use super::ChunkFile;
use super::held::Held;
use crate::content::error::ContentError;
use crate::content::names::{Piece, range_end};
use crate::document::Version;

/// As many chunks are kept, 16 MiB of them.
const CHUNKS_KEPT: usize = 128;

/// As many chunks one request reads.
const CHUNKS_READ: usize = 16;

/// As many chunks further a request reads that goes on where another one has ended.
const CHUNKS_AHEAD: u64 = 4;

/// What the node said when the reader looked.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// The version of the node.
    pub version: Version,
    /// The size of the file.
    pub size: u64,
}

/// A chunk as it was, or that it was absent.
#[derive(Clone)]
struct Kept {
    /// The node had this version before the chunk was read; none for what was written here.
    under: Option<Version>,
    held: Option<Held>,
}

/// The chunks that are kept, by inode and index.
pub(super) struct ChunkCache(Cache<(u64, u64), Kept>);

impl ChunkCache {
    pub(super) fn new() -> Self {
        Self(Cache::new(CHUNKS_KEPT))
    }

    /// What stood there when somebody last looked or wrote.
    pub(super) fn guess(&self, ino: u64, index: u64) -> Option<Option<Held>> {
        self.0.get(&(ino, index)).map(|kept| kept.held)
    }

    /// Notes what was written.
    pub(super) fn wrote(&self, ino: u64, index: u64, held: Option<Held>) {
        self.0.insert((ino, index), Kept { under: None, held });
    }

    pub(super) fn forget(&self, ino: u64, index: u64) {
        self.0.remove(&(ino, index));
    }

    fn under(&self, ino: u64, index: u64, version: Version) -> Option<Option<Held>> {
        self.0.get(&(ino, index)).filter(|kept| kept.under == Some(version)).map(|kept| kept.held)
    }

    fn read(&self, ino: u64, index: u64, version: Version, held: Option<Held>) {
        self.0.insert((ino, index), Kept { under: Some(version), held });
    }
}

impl ChunkFile {
    /// Fills `buf` from `offset`. Holes read as zeros.
    ///
    /// # Errors
    /// `TooLarge` for a range that no file has; the store's.
    pub fn read_at(&self, buf: &mut [u8], offset: u64, view: View) -> Result<(), ContentError> {
        let end = range_end(offset, buf.len() as u64)?;
        let pieces: Vec<Piece> = self.cut().pieces(offset, end).collect();
        let mut rest = buf;
        for batch in pieces.chunks(CHUNKS_READ) {
            for (piece, held) in batch.iter().zip(self.load(batch, view)?) {
                let (here, after) = rest.split_at_mut(usize::try_from(piece.len).unwrap_or(usize::MAX));
                rest = after;
                let bytes = held.as_ref().map_or(&[][..], |held| &held.bytes);
                let from = usize::try_from(piece.start).unwrap_or(usize::MAX).min(bytes.len());
                let there = &bytes[from..bytes.len().min(from.saturating_add(here.len()))];
                here[..there.len()].copy_from_slice(there);
                here[there.len()..].fill(0);
            }
        }
        Ok(())
    }

    /// The chunks of consecutive pieces; what is not kept comes in one request, together with what is wanted next.
    fn load(&self, pieces: &[Piece], view: View) -> Result<Vec<Option<Held>>, ContentError> {
        let (cache, ino) = (&self.chunks.shared.cache, self.ino.0);
        let mut found: Vec<Option<Option<Held>>> =
            pieces.iter().map(|piece| cache.under(ino, piece.index, view.version)).collect();
        let mut wanted: Vec<u64> = pieces
            .iter()
            .zip(&found)
            .filter(|(_, kept)| kept.is_none())
            .map(|(piece, _)| piece.index)
            .collect();
        let (Some(first), Some(&last)) = (pieces.first(), wanted.last()) else {
            return Ok(found.into_iter().flatten().collect());
        };
        let needed = wanted.len();
        let goes_on = first.index.checked_sub(1).is_some_and(|i| cache.under(ino, i, view.version).is_some());
        if goes_on && pieces.last().is_some_and(|piece| piece.index == last) {
            let behind_end = view.size.div_ceil(self.chunks.shared.chunk_bytes);
            wanted.extend((last + 1..behind_end).take(CHUNKS_AHEAD as usize));
        }
        let fetched = match self.fetch(&wanted) {
            // What nobody has asked for yet fails no read.
            Err(_) if wanted.len() > needed => {
                wanted.truncate(needed);
                self.fetch(&wanted)?
            }
            fetched => fetched?,
        };
        let mut fetched = fetched.into_iter();
        for (index, held) in wanted.iter().zip(fetched.as_slice()) {
            cache.read(ino, *index, view.version, held.clone());
        }
        for slot in found.iter_mut().filter(|slot| slot.is_none()) {
            *slot = fetched.next();
        }
        Ok(found.into_iter().flatten().collect())
    }
}
