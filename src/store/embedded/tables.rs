//! When what is in memory goes to the database's tables, and who waits for that: whoever closes the store, and all who
//! change it while the disk is short of room. What is short is [`space`](super::space)'s to say.

use std::time::Duration;

use fjall::{AbstractTree as _, Keyspace};

use super::turn::Turn;
use super::{EmbeddedStore, engine_error};
use crate::ambient;
use crate::store::{Commit, Store as _, StoreError};

/// How long anybody waits for the tables.
const FLUSH_WAIT: Duration = Duration::from_secs(10);
pub(super) const FLUSH_POLL: Duration = Duration::from_millis(2);

impl EmbeddedStore {
    /// Writes what is in memory to the tables. True if all that was ever committed is there then; it stays true for as long
    /// as nobody commits.
    ///
    /// # Errors
    /// The database's.
    pub fn flush(&self) -> Result<bool, StoreError> {
        self.sync()?;
        let is_flushed = self.send_to_tables()?;
        if !is_flushed {
            log::warn!("the database has not flushed its memory; its journal is replayed when it is opened");
        }
        self.sync()?;
        Ok(is_flushed && self.keyspaces().all(|space| space.tree.active_memtable().is_empty()))
    }

    /// Writes to the tables what is in memory now. False if it is not there in time.
    fn send_to_tables(&self) -> Result<bool, StoreError> {
        self.start_flush()?;
        // A database whose disk is full or gone never comes to an end. What is synced is in the journal anyway.
        let begun = ambient::monotonic();
        while self.keyspaces().any(|space| space.sealed_memtable_count() > 0) {
            if begun.elapsed() > FLUSH_WAIT {
                return Ok(false);
            }
            std::thread::sleep(FLUSH_POLL);
        }
        Ok(true)
    }

    /// Begins to write what is in memory to the tables, in the background.
    ///
    /// # Errors
    /// The database's.
    pub fn start_flush(&self) -> Result<(), StoreError> {
        // All of them: the journal is kept for as long as one has something in memory.
        self.keyspaces().try_for_each(Self::send_to_table)
    }

    fn keyspaces(&self) -> impl Iterator<Item = &Keyspace> {
        self.spaces.iter().chain([&self.eras])
    }

    /// Lets the guard know how large the tables are.
    pub(super) fn measure(&self) {
        self.space.has_in_tables(self.keyspaces().map(Keyspace::disk_space).max().unwrap_or_default());
    }

    /// Lets `commit` pass if there is room for it. While that is short, all waits here for what is in memory to go to
    /// tables: the journal cannot go before it does.
    pub(super) fn admit(&self, turn: &mut Turn, commit: &Commit) -> Result<(), StoreError> {
        let cost = commit.cost_bytes();
        let Some(mut free) = self.space.look(cost)? else { return Ok(()) };
        if self.space.is_due(turn.in_memory_bytes(), free) {
            if self.send_to_tables().map_err(|e| self.failed(e))? {
                turn.none_in_memory();
            }
            self.measure();
            free = self.space.look(cost)?.unwrap_or(free);
        }
        self.space.admit(commit, turn.in_memory_bytes(), free)
    }

    pub(super) fn send_to_table(space: &Keyspace) -> Result<(), StoreError> {
        space.rotate_memtable().map(drop).map_err(|e| engine_error("the database could not be flushed", e))
    }
}
