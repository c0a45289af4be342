//! A volume from its beginning: the schema is made or brought up to date, and the server is looked at.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;

use super::connection::{Call, Connection, Failure, Sql};
use super::notices::Notices;
use super::pool::{Pool, TRIM_OUTCOMES, jittered};
use super::tables::IS_THERE;
use super::url::Target;
use super::value::Value;
use super::{PostgresStore, error};
use crate::ambient;
use crate::document::{Document, FORMAT_VERSION, Key};
use crate::store::counts::Counts;
use crate::store::stopped::Stopped;
use crate::store::{Commit, CommitError, Reader as _, Store as _, StoreError};

/// What makes each version of the schema out of the one before. None is ever altered: only appended to.
const MIGRATIONS: [&str; 7] = [
    include_str!("schema.sql"),
    include_str!("schema_2.sql"),
    include_str!("locks.sql"),
    include_str!("content.sql"),
    include_str!("checks.sql"),
    include_str!("fence.sql"),
    include_str!("run.sql"),
];

const STATE: &str = "SELECT pg_is_in_recovery(), current_setting('fsync'), current_setting('full_page_writes'), \
     current_setting('server_encoding')";
/// Every name is a text in what is made of it for people: in these any is.
const ENCODINGS: [&str; 2] = ["UTF8", "SQL_ASCII"];
const TABLES: &str = "SELECT count(*) FROM pg_catalog.pg_class c \
     JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = CAST($1 AS text)";
const OWN: &str = "SELECT count(*) FROM pg_catalog.pg_class c \
     JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
     WHERE n.nspname = CAST($1 AS text) AND c.relname = 'schema_version'";
const MAY_GO_AHEAD: &str = "SELECT CASE WHEN has_sequence_privilege('versions', 'UPDATE') \
     AND has_table_privilege('server_run', 'INSERT') AND has_table_privilege('server_run', 'UPDATE') \
     THEN CAST(1 AS bigint) ELSE 0 END";
const MAY_USE: &str =
    "SELECT CASE WHEN has_schema_privilege(CAST($1 AS text), 'USAGE') THEN CAST(1 AS bigint) ELSE 0 END";
const VERSION: &str = "SELECT coalesce(max(version), 0) FROM schema_version";

impl PostgresStore {
    /// Opens the volume that `target` names, bringing its schema up to date.
    ///
    /// # Errors
    /// What is wrong with the server, the database or the schema, and what to do next.
    pub fn open(target: Target) -> Result<Self, StoreError> {
        let pool = Arc::new(Pool::new(target));
        let mut setup = Setup::begin(&pool)?;
        let version = setup.version()?.ok_or_else(|| setup.wrong("there is no volume", NOT_FORMATTED))?;
        setup.migrate(version)?;
        setup.may_go_ahead()?;
        setup.run(&[Call::text(TRIM_OUTCOMES)])?;
        let store = Self::over(pool)?;
        let found =
            store.get(&Key::Volume)?.ok_or_else(|| setup.wrong("there is no volume", NOT_FORMATTED))?;
        match &*found.document {
            Document::Volume(volume) if volume.format > FORMAT_VERSION => Err(setup.wrong(
                &format!("the volume has format {}", volume.format),
                "this program is older than that; use a newer lockwood",
            )),
            _ => Ok(store),
        }
    }

    /// Makes the schema and its tables, and the volume that `commit` makes ([`Commit::format`]).
    ///
    /// # Errors
    /// Also if the schema has something in it already.
    pub fn format(target: Target, commit: &Commit) -> Result<Self, StoreError> {
        let pool = Arc::new(Pool::new(target));
        let mut setup = Setup::begin(&pool)?;
        let occupied = "give the volume a schema of its own: postgres://.../DATABASE?schema=NAME";
        match setup.version()? {
            Some(version) => setup.migrate(version)?,
            None if setup.number(TABLES, true)? > 0 => {
                return Err(setup.wrong("the schema has tables of others", occupied));
            }
            None => setup.create()?,
        }
        let store = Self::over(pool)?;
        match store.commit(commit) {
            Ok(_) => Ok(store),
            Err(CommitError::Conflict(_)) => Err(setup.wrong("there is a volume already", occupied)),
            Err(CommitError::Store(error)) => Err(error),
        }
    }

    /// Ends what the store has begun, as dropping it does.
    pub fn close(self) {
        drop(self);
    }

    fn over(pool: Arc<Pool>) -> Result<Self, StoreError> {
        let notices = Notices::new(&pool)?;
        Ok(Self { pool, notices, counts: Counts::default(), stopped: Stopped::default() })
    }
}

/// SQLSTATE of a lock that did not come free in time.
const LOCKED: &str = "55P03";
/// SQLSTATE of a right that one lacks.
const NOT_OWNER: &str = "42501";
/// Between two attempts to change the tables.
const AGAIN: Duration = Duration::from_secs(3);

const NOT_FORMATTED: &str = "make one with: lockwood format URL";

struct Setup {
    pool: Arc<Pool>,
    connection: Connection,
}

impl Setup {
    fn begin(pool: &Arc<Pool>) -> Result<Self, StoreError> {
        let deadline = pool.deadline().min(ambient::monotonic() + Duration::from_secs(10));
        let connection = pool.keep_trying(deadline, |within| pool.connect(within))?;
        let mut setup = Self { pool: Arc::clone(pool), connection };
        let rows = setup.run(&[Call::text(STATE)])?;
        let Some(row) = rows.first().and_then(|rows| rows.first()) else {
            return Err(setup.wrong("the server says nothing about itself", "is it PostgreSQL 12 or newer?"));
        };
        let text = |at: usize| row.try_get::<_, String>(at).unwrap_or_default();
        if row.try_get::<_, bool>(0).unwrap_or(false) {
            return Err(setup.wrong(
                "the server is a read-only replica",
                "name the primary, or several hosts and target_session_attrs=read-write",
            ));
        }
        let encoding = text(3);
        if !encoding.is_empty() && !ENCODINGS.contains(&&*encoding) {
            return Err(setup.wrong(
                &format!("the database has the encoding {encoding}, in which not every name can be written"),
                "make one with: createdb --template=template0 --encoding=UTF8 --locale=C.UTF-8 NAME",
            ));
        }
        for (setting, value) in [("fsync", text(1)), ("full_page_writes", text(2))] {
            if value == "off" {
                log::warn!("{}: {setting} is off: a crash of the server may destroy the volume", pool.target);
            }
        }
        Ok(setup)
    }

    fn wrong(&self, what: &str, next: &str) -> StoreError {
        let target = &self.pool.target;
        StoreError::Engine {
            what: format!("{target}, schema {}: {what}", target.schema),
            source: next.into(),
        }
    }

    fn within(&self) -> Duration {
        self.pool.target.commit_timeout
    }

    fn failed(&self, failure: &Failure) -> StoreError {
        error::running(&self.pool.target, "cannot look at the schema", failure)
    }

    fn run(&mut self, calls: &[Call]) -> Result<Vec<Vec<Row>>, StoreError> {
        let within = self.within();
        self.connection.run(calls, within, &self.pool.trips).map_err(|failure| self.failed(&failure))
    }

    fn number(&mut self, text: &'static str, of_schema: bool) -> Result<u64, StoreError> {
        let params = if of_schema { vec![Value::Text(self.pool.target.schema.clone())] } else { Vec::new() };
        let rows = self.run(&[Call { sql: Sql::Text(text), params }])?;
        super::read::number(rows.first())
    }

    /// What is needed only once the server has crashed, and then by all at once, is asked for now.
    fn may_go_ahead(&mut self) -> Result<(), StoreError> {
        match self.number(MAY_GO_AHEAD, false)? {
            0 => Err(self.wrong(
                "permission denied for sequence versions or table server_run",
                "grant the user what docs/postgresql.md lists",
            )),
            _ => Ok(()),
        }
    }

    /// The version of the schema, if it is one of ours.
    fn version(&mut self) -> Result<Option<usize>, StoreError> {
        if self.number(OWN, true)? == 0 {
            return Ok(None);
        }
        if self.number(MAY_USE, true)? == 0 {
            return Err(self.wrong("permission denied", "grant the user what docs/postgresql.md lists"));
        }
        let version = usize::try_from(self.number(VERSION, false)?).unwrap_or(usize::MAX);
        if version > MIGRATIONS.len() {
            return Err(self.wrong(
                &format!(
                    "the schema has version {version}, and this program knows up to {}",
                    MIGRATIONS.len()
                ),
                "use a newer lockwood",
            ));
        }
        Ok(Some(version))
    }

    fn create(&mut self) -> Result<(), StoreError> {
        let schema = &self.pool.target.schema;
        let text = format!("BEGIN; CREATE SCHEMA IF NOT EXISTS {schema}; {} COMMIT", steps(0));
        self.batch(&text)
    }

    /// Runs what is missing, in one transaction. Of several programs at once one does it, and the others find it done.
    /// Behind whoever waits for a table all its users wait: so it waits for no backup, but comes again.
    fn migrate(&mut self, mut from: usize) -> Result<(), StoreError> {
        let until = self.pool.deadline();
        while from < MIGRATIONS.len() {
            let text = format!(
                "BEGIN; SET LOCAL lock_timeout = '1s'; LOCK TABLE schema_version IN EXCLUSIVE MODE; {} COMMIT",
                steps(from)
            );
            let within = self.within();
            let Err(failure) = self.connection.batch(&text, within) else { return Ok(()) };
            let code = match &failure {
                Failure::Refused { error, .. } => error.code().map_or("", |code| code.code()).to_owned(),
                _ => String::new(),
            };
            let what = format!("cannot bring the schema from version {from} to {}", MIGRATIONS.len());
            match code.as_str() {
                IS_THERE | LOCKED if ambient::monotonic() < until => {
                    self.batch("ROLLBACK")?;
                    std::thread::sleep(jittered(AGAIN));
                    from = self.version()?.unwrap_or(from);
                }
                LOCKED => {
                    return Err(
                        self.wrong(&what, "somebody uses its tables, as pg_dump does: try again later")
                    );
                }
                NOT_OWNER => {
                    return Err(self.wrong(&what, "its owner can: mount once as that user, then grant again"));
                }
                _ => return Err(error::running(&self.pool.target, &what, &failure)),
            }
        }
        Ok(())
    }

    fn batch(&mut self, text: &str) -> Result<(), StoreError> {
        let within = self.within();
        let done = self.connection.batch(text, within);
        done.map_err(|failure| error::running(&self.pool.target, "cannot make the tables", &failure))
    }
}

/// The migrations behind `from`. Each records itself first, and so fails if another program was faster.
fn steps(from: usize) -> String {
    let steps = MIGRATIONS.iter().zip(1_usize..).skip(from);
    steps
        .map(|(step, version)| match version {
            1 => format!("{step}\nINSERT INTO schema_version (version) VALUES (1);\n"),
            _ => format!("INSERT INTO schema_version (version) VALUES ({version});\n{step}\n"),
        })
        .collect()
}
