//! The engine over PostgreSQL: a volume in a schema of a database, one table for each kind of document.
//!
//! Owns the schema (`schema.sql`), the statements and the connections. Imports `document`, `ambient` and the port.
//! docs/postgresql.md says how to run it; `plan` says why commits are serialisable.
//!
//! What is hard, and where it is solved:
//! 1. **One round trip a commit.** Where it can be, a commit is one statement ([`whole`]): each statement costs the server
//!    as much for its answer as for its work. Otherwise all statements of a transaction, from BEGIN to COMMIT, are
//!    sent at once ([`connection`]). What a check does not find makes its statement fail, which makes the COMMIT behind it a
//!    rollback; the number of the part or of the statement that failed names the document, or the first of those that it
//!    is about.
//! 2. **Versions** come from one sequence, one a commit, drawn by its first statement: all documents that it writes have
//!    it. None is handed out twice: a sequence does not go back when a transaction does, only when the server crashes or
//!    a standby takes over, and then it is sent ahead before the first commit ([`pool`]). Of two commits that overlap the
//!    later may have the lower version, so versions of a document are only ever compared for equality; they grow from one
//!    commit to another that began after the first had returned.
//! 3. **Fences.** A commit of a session reads its row `FOR KEY SHARE` on condition that it is live, and holds that to the
//!    end. `(id, state)` is a unique key, so an update that changes the state takes the row `FOR UPDATE`, which waits for
//!    all such readers; once it has committed, new ones look at the row again and find it fenced. A heartbeat changes no
//!    column of a key: its `FOR NO KEY UPDATE` and their `FOR KEY SHARE` do not conflict. This is the protocol of foreign
//!    keys, with the session as the parent row. When a fence has returned, no commit that names the session is under way,
//!    and none can begin. But readers do not queue behind an update that waits: a busy session could keep it waiting for
//!    ever. So it is preceded by a transaction that sets `held_until`, which is of no key; whoever finds that set waits
//!    without the row. Only progress rests on it: it ends by itself, should the fence not come.
//! 4. **Lost answers.** Each connection has a row in table `outcome`; each commit that writes (but see 6) sets its number
//!    there, in its transaction, on condition that the row is not closed. Whoever loses the answer closes the row from
//!    another connection. Closing waits for a transaction that has already set the number, and keeps one that has not
//!    from ever committing. So the number in the row then says for ever whether the commit was made, and if not, it is
//!    made again under another row. A row that was trimmed refuses as well. Only if no server can be asked in time is
//!    the outcome unknown.
//! 5. **Notices** are sent after the commit, by a thread of their own ([`notices`]): NOTIFY within a transaction
//!    takes a lock that makes all commits of the database go one after the other.
//! 6. **Locks that nobody else wants** need not be on the disk before a rename goes on: what they cover its commit checks,
//!    and that they are there, and waits for the disk once. So a commit that says so ([`Durability`](super::Durability)) is
//!    made with `synchronous_commit` off, for that transaction alone, and without its number in `outcome`.
//!
//! What of PostgreSQL is used: READ COMMITTED with row locks in four strengths, `INSERT ... ON CONFLICT`, `RETURNING` in
//! common table expressions, several of which may change one table, `unnest` of several arrays, whose rows a sub-select
//! locks, one sequence, UNIQUE constraints, an UNLOGGED table, `jsonb` for display, LISTEN and NOTIFY. No extensions, no
//! functions, no triggers, no advisory locks.

mod commit;
mod connection;
mod error;
mod merge;
mod notices;
mod open;
mod plan;
mod pool;
mod read;
mod rows;
mod tables;
mod tls;
mod url;
mod value;
mod whole;

use std::sync::Arc;

use super::{
    Capabilities, Commit, CommitError, Listener, Notice, Outages, Reader, Scan, ScanItem, Store,
    StoreCounters, StoreError,
};
use crate::document::{Key, Stored, Version};
use crate::store::counts::Counts;
use crate::store::stopped::Stopped;

use notices::Notices;
use pool::Pool;
use read::Source as _;

pub use url::{Target, UrlError};

/// A volume in a PostgreSQL database.
pub struct PostgresStore {
    pool: Arc<Pool>,
    notices: Notices,
    counts: Counts,
    stopped: Stopped,
}

impl PostgresStore {
    /// How often something was sent to the server and its answer waited for.
    pub fn round_trips(&self) -> u64 {
        self.pool.trips.count()
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.notices.close(&self.pool);
        self.pool.close();
    }
}

impl Reader for PostgresStore {
    fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        self.counts.got(1);
        match key {
            Key::Session(_) => read::session(&self.pool, key),
            _ => self.pool.get(key),
        }
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Stored>>, StoreError> {
        self.counts.got(keys.len());
        self.pool.get_many(keys)
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        self.counts.scanned();
        self.pool.page(scan)
    }

    fn scan_keys(&self, scan: &Scan) -> Result<Vec<Key>, StoreError> {
        self.counts.scanned();
        self.pool.keys(scan)
    }
}

impl Store for PostgresStore {
    fn commit(&self, commit: &Commit) -> Result<Version, CommitError> {
        self.stopped.refuse()?;
        let done = commit::commit(&self.pool, commit);
        self.counts.committed(commit, &done);
        self.notices.tell(commit, &done);
        done
    }

    /// Nothing to do: a commit that is to be durable returns when the server has made it so.
    fn sync(&self) -> Result<(), StoreError> {
        self.stopped.refuse()?;
        self.counts.synced();
        Ok(())
    }

    fn stop(&self, cause: &str) {
        self.stopped.stop(cause);
    }

    fn listen(&self, listener: Arc<dyn Listener>) -> Result<(), StoreError> {
        self.notices.listen(&self.pool, listener)
    }

    fn outages(&self) -> Option<&Outages> {
        Some(&self.pool.outages)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { snapshots: true, one_version: true, shared: true, notices: true }
    }

    fn snapshot(&self) -> Box<dyn Reader + '_> {
        Box::new(read::Snapshot::begin(&self.pool))
    }

    fn counters(&self) -> StoreCounters {
        self.counts.remote()
    }
}
