//! The table of each kind of document, and the statements over it.
//!
//! A statement changes or checks one document, or several of a kind, and fails if what it rests on does not hold, which
//! ends the transaction that it stands in. SQL has no statement that only fails; so the outermost number is made of a text
//! that is none ([`Demand::verdict`]). The server's message then quotes that text, in any language.

use super::merge::Touched;
use crate::document::Kind;

/// The version of what a transaction writes, which it has drawn before.
pub(super) const VERSION: &str = "currval('versions')";

/// What the server quotes when a demand is not met.
pub(super) const CHANGED: &str = "lockwood: the document has changed";
pub(super) const MISFIT: &str = "lockwood: the change does not fit the node";
pub(super) const FENCED: &str = "lockwood: the session is not live";
pub(super) const CLOSED: &str = "lockwood: the connection was given up";
/// The server's code for a row whose key is there already.
pub(super) const IS_THERE: &str = "23505";

pub(super) struct Table {
    pub(super) name: &'static str,
    pub(super) key: &'static [&'static str],
    pub(super) columns: &'static [&'static str],
}

const NODE: [&str; 22] = [
    "kind", "mode", "uid", "gid", "nlink", "atime", "atime_ns", "mtime", "mtime_ns", "ctime", "ctime_ns",
    "btime", "btime_ns", "xattrs", "size", "blocks", "place", "parent", "name", "children", "target", "rdev",
];
const VOLUME: [&str; 9] =
    ["format", "id", "locking", "created", "created_ns", "next_ino", "epoch", "inline_max", "content"];
const SESSION: [&str; 13] = [
    "host",
    "boot_id",
    "pid",
    "mount_point",
    "started",
    "started_ns",
    "lease_ms",
    "heartbeat",
    "epoch",
    "intents",
    "operations_below",
    "state",
    "locks",
];
const LOCK: [&str; 5] = ["path", "lock_type", "lock_count", "holders", "waiters"];

pub(super) fn table(kind: Kind) -> Table {
    let (key, columns): (&[_], &[_]) = match kind {
        Kind::Volume => (&["one"], &VOLUME),
        Kind::Node => (&["ino"], &NODE),
        Kind::Entry => (&["parent", "position", "name"], &["ino", "kind"]),
        Kind::Content => (&["ino"], &["bytes"]),
        Kind::Xattr => (&["ino", "name"], &["value"]),
        Kind::Orphan => (&["ino"], &["session"]),
        Kind::Session => (&["id"], &SESSION),
        Kind::Chunk => (&["ino", "index"], &["bytes"]),
        Kind::Lock => (&["id"], &LOCK),
        Kind::Advisory => (&["ino"], &["lock_count", "locks"]),
    };
    Table { name: kind.name(), key, columns }
}

/// What is wanted of the documents of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum What {
    Documents,
    /// Their keys alone.
    Keys,
}

/// What a statement does with a document. Its parameters are the key, then the columns of the document or of the merge, then
/// the version, as far as it has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// Reads it.
    Get,
    /// Reads a page behind a key.
    Page(What),
    /// Reads a page below the first column of the key, behind the others.
    PageBelow(What),
    /// Keeps whoever would change it out; it must have the version.
    HoldVersion,
    /// Keeps whoever would remove it out; it must be there.
    HoldExisting,
    /// Keeps all writers of some entries out; each must have its version. The parameters are those of
    /// [`Action::HoldVersion`], each a list.
    HoldEntries,
    /// Makes so many; none may be there, or the primary key refuses it ([`IS_THERE`]). Parameters of each follow those of
    /// the one before.
    Insert(u8),
    /// Makes or replaces it.
    Upsert,
    /// Replaces it; it must be there.
    Update,
    /// Replaces it; it must have the version.
    UpdateVersion,
    /// Removes it; it must be there.
    Delete,
    /// Removes so many; each must have the one version. Of several the key is one column.
    DeleteVersion(u8),
    /// Adds to its counters and sets its times; it must be there.
    Merge(Touched),
    /// The same; it must have the version.
    MergeVersion(Touched),
    /// Keeps whoever would change the state of the session out; it must be live, and its commits not be held back.
    HoldLive,
    /// The same for a commit that changes that very session.
    HoldLiveAlone,
}

/// A query that holds or changes what a commit is about, and finds so many rows. They have a column `fits`: whether it may
/// be so; of several that of the last one counts.
pub(super) struct Demand {
    pub(super) query: String,
    rows: u8,
    /// What is wrong if there are fewer.
    absent: &'static str,
    /// What is wrong if it does not fit.
    unfit: &'static str,
}

impl Demand {
    /// Makes a number of the query's row, which is found under the name `found`, or fails with what is wrong. `at` is quoted
    /// behind that.
    pub(super) fn verdict(&self, found: &str, at: &str) -> String {
        let Self { absent, unfit, rows, .. } = self;
        // Not counted: an aggregate is prepared anew for each statement.
        let last = if *rows > 1 { format!(" OFFSET {}", rows - 1) } else { String::new() };
        format!(
            "CAST(coalesce((SELECT CASE WHEN fits THEN '1' ELSE '{unfit}{at}' END FROM {found}{last}), \
             '{absent}{at}') AS bigint)"
        )
    }
}

/// The statement, by itself.
pub(super) fn sql(kind: Kind, action: Action) -> String {
    match statement(kind, action) {
        Statement::Read(text) => text,
        Statement::Demand(demand) => {
            format!("WITH found AS ({}) SELECT {}", demand.query, demand.verdict("found", ""))
        }
    }
}

pub(super) enum Statement {
    Read(String),
    Demand(Demand),
}

pub(super) fn statement(kind: Kind, action: Action) -> Statement {
    let Table { name, key, columns } = table(kind);
    let keys = key.len();
    let all = |first: usize, count: usize| {
        (first..first + count).map(|n| format!("${n}")).collect::<Vec<_>>().join(", ")
    };
    let is_key =
        key.iter().zip(1..).map(|(column, n)| format!("{column} = ${n}")).collect::<Vec<_>>().join(" AND ");
    let set =
        columns.iter().zip(keys + 1..).map(|(column, n)| format!("{column} = ${n}, ")).collect::<String>();
    let key_list = key.join(", ");
    let column_list = columns.join(", ");
    let made = "RETURNING true AS fits";
    let update = format!("UPDATE {name} SET {set}version = {VERSION} WHERE {is_key}");
    let width = keys + columns.len();
    let into = format!("INSERT INTO {name} ({key_list}, {column_list}, version)");
    let behind_columns = width + 1;
    let row = |nth: usize| format!("({}, {VERSION})", all(nth * width + 1, width));
    let found = |query: String, absent| Demand { query, rows: 1, absent, unfit: MISFIT };
    let held = |condition: String, lock: &str, absent| {
        found(format!("SELECT true AS fits FROM {name} WHERE {is_key}{condition} {lock}"), absent)
    };
    Statement::Demand(match action {
        Action::Get => {
            return Statement::Read(format!(
                "SELECT {}, version FROM {name} WHERE {is_key}",
                selected(columns)
            ));
        }
        Action::Page(what) => {
            return Statement::Read(format!(
                "SELECT {key_list}{} FROM {name} WHERE ({key_list}) > ({}) ORDER BY {key_list} LIMIT ${}",
                behind_key(what, columns),
                all(1, keys),
                keys + 1
            ));
        }
        Action::PageBelow(what) => {
            let rest = key[1..].join(", ");
            return Statement::Read(format!(
                "SELECT {key_list}{} FROM {name} WHERE {} = $1 AND ({rest}) > ({}) ORDER BY {rest} LIMIT ${}",
                behind_key(what, columns),
                key[0],
                all(2, keys - 1),
                keys + 1
            ));
        }
        Action::HoldVersion => held(format!(" AND version = ${}", keys + 1), "FOR SHARE", CHANGED),
        Action::HoldEntries => found(HOLD_ENTRIES.to_owned(), CHANGED),
        Action::HoldExisting => held(String::new(), "FOR KEY SHARE", CHANGED),
        Action::HoldLive => held(format!(" AND state = 'live' AND {NOT_HELD_BACK}"), "FOR KEY SHARE", FENCED),
        Action::HoldLiveAlone => held(" AND state = 'live'".to_owned(), "FOR UPDATE", FENCED),
        // Not ON CONFLICT DO NOTHING, which looks at the index twice and logs each row once more.
        Action::Insert(count) => {
            let rows = (0..count.into()).map(row).collect::<Vec<_>>().join(", ");
            Demand { rows: count, ..found(format!("{into} VALUES {rows} {made}"), CHANGED) }
        }
        Action::Upsert => {
            let set =
                columns.iter().map(|column| format!("{column} = excluded.{column}, ")).collect::<String>();
            let replace = format!("ON CONFLICT ({key_list}) DO UPDATE SET {set}version = {VERSION}");
            found(format!("{into} VALUES {} {replace} {made}", row(0)), CHANGED)
        }
        Action::Update => found(format!("{update} {made}"), CHANGED),
        Action::UpdateVersion => found(format!("{update} AND version = ${behind_columns} {made}"), CHANGED),
        Action::Delete => found(format!("DELETE FROM {name} WHERE {is_key} {made}"), CHANGED),
        Action::DeleteVersion(count) => {
            let (which, behind) = match count {
                0 | 1 => (is_key, keys + 1),
                several => {
                    let several = usize::from(several);
                    (format!("{key_list} IN ({})", all(1, several)), several + 1)
                }
            };
            let query = format!("DELETE FROM {name} WHERE {which} AND version = ${behind} {made}");
            Demand { rows: count, ..found(query, CHANGED) }
        }
        Action::Merge(touched) => found(touched.sql(false), CHANGED),
        Action::MergeVersion(touched) => found(touched.sql(true), CHANGED),
    })
}

/// What a page reads behind the columns of the key.
fn behind_key(what: What, columns: &[&str]) -> String {
    match what {
        What::Documents => format!(", {}, version", selected(columns)),
        What::Keys => String::new(),
    }
}

/// The inner query has nothing to be joined by: the planner can only ask it for each entry by its key.
const HOLD_ENTRIES: &str = "SELECT true AS fits WHERE NOT EXISTS (SELECT FROM \
     unnest(CAST($1 AS bigint[]), CAST($2 AS bigint[]), CAST($3 AS bytea[]), CAST($4 AS bigint[])) \
     AS wanted (parent, position, name, version) WHERE (SELECT true FROM entry WHERE entry.parent = wanted.parent \
     AND entry.position = wanted.position AND entry.name = wanted.name AND entry.version = wanted.version FOR SHARE) \
     IS NULL)";

/// JSON is read as text: the driver need not know the type.
fn selected(columns: &[&str]) -> String {
    let column = |column: &&str| match *column {
        "holders" | "waiters" | "locks" => format!("CAST({column} AS text)"),
        other => other.to_owned(),
    };
    columns.iter().map(column).collect::<Vec<_>>().join(", ")
}

const NOT_HELD_BACK: &str = "(held_until IS NULL OR held_until < now())";
/// So many commits as are under way when this is made, and no more, come before a change of the session's state. For longer
/// than they take; whoever makes this may die. It changes no column of a key, so it waits for none of them.
pub(super) const HOLD_BACK: &str =
    "UPDATE session SET held_until = now() + interval '10 seconds' WHERE id = $1 AND state = 'live'";
pub(super) const LET_GO: &str = "UPDATE session SET held_until = NULL WHERE id = $1";
/// Asked when [`Action::HoldLive`] finds no row.
pub(super) const IS_LIVE: &str = "SELECT 1 FROM session WHERE id = $1 AND state = 'live'";
