//! Reads: one document, several at once, a page of a range; at present, or of one instant.

use std::time::Duration;

use parking_lot::Mutex;
use tokio_postgres::Row;

use super::connection::{Call, Connection, Sql};
use super::error;
use super::pool::{Pool, Use};
use super::rows::{key_of, key_values, stored};
use super::tables::{Action, What, table};
use super::value::Value;
use crate::document::{Ino, Key, Kind, Stored};
use crate::store::commit::HEARTBEAT_MAX;
use crate::store::scan::Pager;
use crate::store::{Range, Reader, Scan, ScanItem, Start, StoreError};

/// What documents are read from.
pub(super) trait Source {
    /// Runs calls at once, in one round trip.
    fn run(&self, calls: &[Call]) -> Result<Vec<Vec<Row>>, StoreError>;

    fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        Ok(self.get_many(std::slice::from_ref(key))?.pop().flatten())
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Stored>>, StoreError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let calls: Vec<Call> = keys
            .iter()
            .map(|key| Call { sql: Sql::Document(key.kind(), Action::Get), params: key_values(key) })
            .collect();
        let found = self.run(&calls)?;
        keys.iter()
            .zip(found)
            .map(|(key, rows)| rows.first().map(|row| stored(key, row, 0)).transpose())
            .collect()
    }

    fn page(&self, scan: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        self.page_of(scan, What::Documents, |key, row, columns| {
            let stored = stored(&key, row, columns);
            (key, stored)
        })
    }

    fn keys(&self, scan: &Scan) -> Result<Vec<Key>, StoreError> {
        self.page_of(scan, What::Keys, |key, _, _| key)
    }

    /// A page, of whose rows `item` makes what is wanted: it gets the key, the row, and how many columns the key has.
    fn page_of<T>(
        &self,
        scan: &Scan,
        what: What,
        item: impl Fn(Key, &Row, usize) -> T,
    ) -> Result<Vec<T>, StoreError> {
        let (kind, action, mut params) = from(scan, what);
        // Names that share a position are as good as never more than a few; if they are, once more with a longer page.
        let mut asked = scan.limit.max(1).saturating_add(4);
        params.push(Value::Null);
        loop {
            if let Some(limit) = params.last_mut() {
                *limit = Value::Int(i64::try_from(asked).unwrap_or(i64::MAX));
            }
            let call = Call { sql: Sql::Document(kind, action), params: params.clone() };
            let rows = self.run(&[call])?.pop().unwrap_or_default();
            let mut pager = Pager::new(scan);
            let mut page = Vec::with_capacity(rows.len());
            for row in &rows {
                let (key, columns) = key_of(kind, row)?;
                if !pager.admits(page.len(), &key) {
                    return Ok(page);
                }
                page.push(item(key, row, columns));
            }
            if rows.len() < asked {
                return Ok(page);
            }
            asked = asked.saturating_mul(2);
        }
    }
}

/// The page's statement and its parameters but the limit: the key behind which it begins.
fn from(scan: &Scan, what: What) -> (Kind, Action, Vec<Value>) {
    let below = |ino: Ino, kind: Kind, lowest: Vec<Value>| {
        let rest = match &scan.start {
            Start::After(key) if key.kind() == kind => key_values(key).split_off(1),
            Start::At(position) if kind == Kind::Entry => {
                vec![position.0.into(), Value::Bytes([][..].into())]
            }
            _ => lowest,
        };
        let mut params = vec![ino.0.into()];
        params.extend(rest);
        (kind, Action::PageBelow(what), params)
    };
    match scan.range {
        Range::Entries(parent) => {
            below(parent, Kind::Entry, vec![Value::Int(-1), Value::Bytes([][..].into())])
        }
        Range::Xattrs(ino) => below(ino, Kind::Xattr, vec![Value::Bytes([][..].into())]),
        Range::Chunks(ino) => below(ino, Kind::Chunk, vec![Value::Int(-1)]),
        Range::All(kind) => {
            let lowest = |column: &&str| match *column {
                "id" => Value::Text(String::new()),
                "name" => Value::Bytes([][..].into()),
                _ => Value::Int(i64::MIN),
            };
            let params = match &scan.start {
                Start::After(key) if key.kind() == kind => key_values(key),
                _ => table(kind).key.iter().map(lowest).collect(),
            };
            (kind, Action::Page(what), params)
        }
    }
}

/// The number that a call has returned; of several, the last one.
pub(super) fn number(rows: Option<&Vec<Row>>) -> Result<u64, StoreError> {
    let wrong = |cause: String| StoreError::Engine { what: "PostgreSQL".to_owned(), source: cause.into() };
    let row = rows.and_then(|rows| rows.first()).ok_or_else(|| wrong("no number was returned".to_owned()))?;
    row.try_get::<_, i64>(row.len().saturating_sub(1))
        .map(i64::cast_unsigned)
        .map_err(|error| wrong(error.to_string()))
}

impl Source for Pool {
    fn run(&self, calls: &[Call]) -> Result<Vec<Vec<Row>>, StoreError> {
        self.read("cannot read", |connection, within| connection.run(calls, within, &self.trips))
    }
}

/// A view of one instant: a transaction on a connection of its own.
pub(super) struct Snapshot<'a> {
    pool: &'a Pool,
    connection: Mutex<Result<Connection, String>>,
}

const PATIENCE: Duration = Duration::from_secs(30);

impl<'a> Snapshot<'a> {
    pub(super) fn begin(pool: &'a Pool) -> Self {
        let begun = pool.keep_trying(pool.deadline(), |within| {
            let mut connection = pool.connect(within)?;
            let begin = [
                Call::text("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"),
                Call::text("SET LOCAL idle_in_transaction_session_timeout = '1h'"),
                // The instant is that of the first query.
                Call::text("SELECT 1"),
            ];
            match connection.run(&begin, within, &pool.trips) {
                Ok(_) => Ok(connection),
                Err(failure) => {
                    Err((error::running(&pool.target, "cannot take a snapshot", &failure), false))
                }
            }
        });
        Self { pool, connection: Mutex::new(begun.map_err(|error| error.to_string())) }
    }
}

/// A session's document is read by whoever is about to beat, or to fence it: not behind all others, and on a connection that
/// says nothing no longer than a heartbeat waits.
pub(super) fn session(pool: &Pool, key: &Key) -> Result<Option<Stored>, StoreError> {
    let call = [Call { sql: Sql::Document(Kind::Session, Action::Get), params: key_values(key) }];
    let what = "cannot read a session";
    let found = pool.read_for(Use::Sessions, what, pool.deadline(), |connection, within| {
        connection.run(&call, within.min(HEARTBEAT_MAX), &pool.trips)
    })?;
    found.first().and_then(|rows| rows.first()).map(|row| stored(key, row, 0)).transpose()
}

impl Source for Snapshot<'_> {
    fn run(&self, calls: &[Call]) -> Result<Vec<Vec<Row>>, StoreError> {
        match &mut *self.connection.lock() {
            Ok(connection) => connection
                .run(calls, PATIENCE, &self.pool.trips)
                .map_err(|failure| error::running(&self.pool.target, "cannot read a snapshot", &failure)),
            Err(cause) => {
                Err(StoreError::Engine { what: "no snapshot".to_owned(), source: cause.clone().into() })
            }
        }
    }
}

impl Reader for Snapshot<'_> {
    fn get(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        Source::get(self, key)
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Stored>>, StoreError> {
        Source::get_many(self, keys)
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        self.page(scan)
    }

    fn scan_keys(&self, scan: &Scan) -> Result<Vec<Key>, StoreError> {
        self.keys(scan)
    }
}
