//! The database's journal: its tail after a crash, and its end when the store is closed.
//!
//! The database replays its journal when it is opened. A power cut leaves any of the pages that were never synced as
//! zeros, and `fjall` refuses a journal in which such a page falls inside a value. What was not synced was not promised,
//! so the journal is cut behind its last whole batch before the database sees it. Only the newest journal can be torn:
//! an older one was synced before the next was begun.
//!
//! A process that died without its machine tears no pages. Then a bad batch with good ones behind it is damage, and
//! cutting it off would lose acknowledged changes in silence, so it is reported instead.
//!
//! The format, as of fjall 3 (all integers little-endian):
//! ```text
//! batch = start item* end
//! start = 1 item_count:u32 seqno:u64
//! item  = 2 type:u8 compression:u8 keyspace:u64 key_len:u16 value_len:u32 stored_len:u32 key value
//! clear = 4 keyspace:u64
//! end   = 3 xxh3_64(items):u64 "FJL" 3
//! ```

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::store::StoreError;

const TAG_START: u8 = 1;
const TAG_ITEM: u8 = 2;
const TAG_END: u8 = 3;
const TAG_CLEAR: u8 = 4;
const TRAILER: &[u8] = b"FJL\x03";

/// Cuts the newest journal in `dir` behind its last whole batch.
///
/// `torn_pages`: whether the machine may have lost power since the journal was written.
///
/// # Errors
/// [`StoreError::Damaged`] if whole batches stand behind a bad one although no power was lost.
pub fn trim(dir: &Path, torn_pages: bool) -> Result<(), StoreError> {
    let failed = |e: io::Error| StoreError::io(format!("the journal in {}", dir.display()), e);
    let Some(path) = journals(dir).map_err(failed)?.pop() else { return Ok(()) };
    let bytes = fs::read(&path).map_err(failed)?;
    let good = whole_batches(&bytes);
    let rest = &bytes[good..];
    let Some(last) = last_written(rest) else { return Ok(()) };
    if !torn_pages && has_batch_behind_damage(rest) {
        return Err(StoreError::Damaged {
            key: format!("journal {}", path.display()),
            cause: format!("the batch at byte {good} is altered, and whole ones follow it"),
        });
    }
    log::warn!(
        "{}: dropped {} bytes behind byte {good}, which are no whole batch: the end of a change that a crash cut off, \
         or damage to what the tables hold as well",
        path.display(),
        last + 1
    );
    let file = OpenOptions::new().write(true).open(&path).map_err(failed)?;
    file.set_len(good as u64).and_then(|()| file.sync_all()).map_err(failed)
}

/// Empties the journal in `dir`, of a database that is closed and has all of it in its tables: it would replay what is there
/// for nothing when it is opened. The newest file stays, since without one the database does not look in its tables for the
/// number of its last change.
///
/// Older files go first, and the oldest first of all: what is left at any moment is the end of the journal. Without the
/// newest an older one would bring back what was removed since.
///
/// # Errors
/// The operating system's.
pub fn clear(dir: &Path) -> Result<(), StoreError> {
    let failed = |e: io::Error| StoreError::io(format!("the journal in {}", dir.display()), e);
    let mut paths = journals(dir).map_err(failed)?;
    let Some(newest) = paths.pop() else { return Ok(()) };
    if !paths.is_empty() {
        paths.iter().try_for_each(fs::remove_file).map_err(failed)?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
    }
    let file = OpenOptions::new().write(true).open(newest).map_err(failed)?;
    file.set_len(0).and_then(|()| file.sync_all()).map_err(failed)
}

/// Where the last byte is that is not zero. Most of a journal is room that the database made for itself, so whole pages are
/// compared first.
fn last_written(bytes: &[u8]) -> Option<usize> {
    const PAGE: [u8; 4096] = [0; 4096];
    let page = bytes.chunks(PAGE.len()).rposition(|chunk| *chunk != PAGE[..chunk.len()])?;
    let behind = bytes.len().min((page + 1) * PAGE.len());
    bytes[..behind].iter().rposition(|&byte| byte != 0)
}

/// The files of the journal, the oldest first.
fn journals(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found: Vec<(u64, PathBuf)> = Vec::new();
    for item in fs::read_dir(dir)? {
        let path = item?.path();
        let number = path.file_name().and_then(|n| n.to_str()?.strip_suffix(".jnl")?.parse().ok());
        found.extend(number.map(|number| (number, path)));
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// How many bytes the whole batches at the beginning of `bytes` take.
fn whole_batches(bytes: &[u8]) -> usize {
    let mut good = 0;
    while let Some(length) = batch_length(&bytes[good..]) {
        good += length;
    }
    good
}

fn has_batch_behind_damage(rest: &[u8]) -> bool {
    let ends = rest.windows(TRAILER.len()).enumerate().filter(|(_, w)| *w == TRAILER);
    ends.map(|(at, _)| at + TRAILER.len()).any(|behind| batch_length(&rest[behind..]).is_some())
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    fn integer(&mut self, len: usize) -> Option<u64> {
        let mut wide = [0; 8];
        wide.get_mut(..len)?.copy_from_slice(self.take(len)?);
        Some(u64::from_le_bytes(wide))
    }

    fn tag(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }
}

/// The length of the whole, unaltered batch that `bytes` begin with.
fn batch_length(bytes: &[u8]) -> Option<usize> {
    let mut cursor = Cursor(bytes);
    if cursor.tag()? != TAG_START {
        return None;
    }
    let items = cursor.integer(4)?;
    cursor.integer(8)?;
    let body = cursor.0;
    for _ in 0..items {
        match cursor.tag()? {
            TAG_ITEM => {
                cursor.take(2 + 8)?;
                let key_len = cursor.integer(2)?;
                cursor.integer(4)?;
                let stored_len = cursor.integer(4)?;
                cursor.take(usize::try_from(key_len + stored_len).ok()?)?;
            }
            TAG_CLEAR => {
                cursor.take(8)?;
            }
            _ => return None,
        }
    }
    let body = &body[..body.len() - cursor.0.len()];
    if cursor.tag()? != TAG_END
        || cursor.integer(8)? != xxh3_64(body)
        || cursor.take(TRAILER.len())? != TRAILER
    {
        return None;
    }
    Some(bytes.len() - cursor.0.len())
}
