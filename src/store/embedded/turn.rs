//! What commits change one after the other: the last version, and how much has come into the database's memory.
//!
//! What is hard:
//! 1. Versions never repeat, although the counter is in memory: each opening of the store begins an era of its own.
//! 2. The database must not be asked for tables by every commit that finds its memory full: [`Turn::count`].

use fjall::{AbstractTree as _, Keyspace};

use super::opening;
use crate::document::Kind;
use crate::store::StoreError;

/// The entries that are in memory are all that were ever made since it went to a table, the removed ones too, and a listing
/// goes over them. So they go to tables sooner than the other documents, which are not listed.
const ENTRIES_IN_MEMORY_BYTES: u64 = 3 << 19;
/// The others, too, are sent before the database itself would think of it: at 64 MiB, and at 2 MiB of entries in stores that
/// were told so when they were made.
const OTHERS_IN_MEMORY_BYTES: u64 = 48 << 20;
/// What a document takes there besides its key and record, at least as much as the database counts.
const BESIDES_BYTES: usize = 128;

const ERA_SHIFT: u32 = 40;
pub(super) const ERA_SPACE: &str = "engine";
const ERA_KEY: &[u8] = b"era";

/// What commits change one after the other.
pub(super) struct Turn {
    /// The last version: its upper bits count the openings of the store, its lower ones the commits of this opening.
    pub(super) last: u64,
    /// How much of each kind has come into memory since it was last sent to a table, in bytes.
    in_memory: [u64; Kind::ALL.len()],
}

impl Turn {
    pub(super) fn open(eras: &Keyspace, spaces: &[Keyspace; Kind::ALL.len()]) -> Result<Self, StoreError> {
        let era = match eras.get(ERA_KEY).map_err(opening)? {
            Some(bytes) => u64::from_be_bytes((&*bytes).try_into().map_err(|_| StoreError::Damaged {
                key: "engine:era".to_owned(),
                cause: format!("{} bytes instead of 8", bytes.len()),
            })?),
            None => 0,
        } + 1;
        eras.insert(ERA_KEY, era.to_be_bytes()).map_err(opening)?;
        // What was replayed from the journal is there already.
        let in_memory = std::array::from_fn(|kind| spaces[kind].tree.active_memtable().size());
        Ok(Self { last: era << ERA_SHIFT, in_memory })
    }

    /// Counts what has come into memory. True if all of the kind is to go to a table now, which the caller sees to.
    ///
    /// Left to itself the database is asked for that by every commit that finds its memory full, until it is done. The
    /// requests wait in a queue of bounded length, which the thread that serves it adds to and then waits for as well: a
    /// thousand quick commits during one slow merge of tables, and it would wait for itself for ever.
    pub(super) fn count(&mut self, kind: Kind, bytes: usize) -> bool {
        let most = if kind == Kind::Entry { ENTRIES_IN_MEMORY_BYTES } else { OTHERS_IN_MEMORY_BYTES };
        let counted = &mut self.in_memory[kind as usize];
        *counted += (bytes + BESIDES_BYTES) as u64;
        let is_full = *counted >= most;
        if is_full {
            *counted = 0;
        }
        is_full
    }

    /// At most so many bytes are to go to tables still, beside what has been sent there already.
    pub(super) fn in_memory_bytes(&self) -> u64 {
        self.in_memory.iter().sum()
    }

    /// All is in tables.
    pub(super) fn none_in_memory(&mut self) {
        self.in_memory = Default::default();
    }
}
