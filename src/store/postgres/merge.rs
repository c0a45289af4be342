//! A merge of a node as a statement: it names the columns that the delta touches, and no others.
//!
//! The server prepares each expression anew for each statement, which takes longer than all else that a merge does. Few
//! sets of columns are ever touched together, so few statements come of it.
//!
//! A part that the node's kind does not have becomes something that does not fit: children of what is no directory, a size
//! of what is no regular file. These are no constraints of the table, since all of those would be prepared each time.

use super::rows::word;
use super::tables::VERSION;
use super::value::Value;
use crate::document::{NodeDelta, Timestamp};

/// The columns that a delta touches, by their place in [`COLUMNS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Touched(u16);

/// A column of a node that a merge may change.
struct Column {
    name: &'static str,
    /// What it becomes; `?` is the value.
    becomes: &'static str,
    /// What must then be true of the node.
    fits: Option<&'static str>,
    /// The value; none if the delta leaves the column alone.
    value: fn(&NodeDelta) -> Option<Value>,
}

const IS_DIRECTORY: Option<&str> = Some("kind = 'directory'");
const IS_REGULAR: Option<&str> = Some("kind = 'regular'");

const COLUMNS: [Column; 15] = [
    column("nlink", "nlink + ?", Some("nlink BETWEEN 0 AND 4294967295"), |delta| added(delta.nlink.into())),
    column("xattrs", "xattrs + ?", Some("xattrs BETWEEN 0 AND 4294967295"), |delta| {
        added(delta.xattrs.into())
    }),
    column("atime", "?", None, |delta| seconds(delta.atime)),
    column("atime_ns", "?", None, |delta| nanoseconds(delta.atime)),
    column("mtime", "?", None, |delta| seconds(delta.mtime)),
    column("mtime_ns", "?", None, |delta| nanoseconds(delta.mtime)),
    column("ctime", "?", None, |delta| seconds(delta.ctime)),
    column("ctime_ns", "?", None, |delta| nanoseconds(delta.ctime)),
    column("mode", "mode & ~CAST(? AS bigint)", None, |delta| {
        (delta.mode_clear != 0).then(|| delta.mode_clear.into())
    }),
    // What is no directory has none, which is no number that would fit.
    column("children", "children + ?", Some("children >= 0"), |delta| added(delta.children)),
    column("parent", "?", IS_DIRECTORY, |delta| Some(delta.reparent.as_ref()?.0.0.into())),
    column("name", "?", None, |delta| Some(delta.reparent.as_ref()?.1.as_bytes().into())),
    column("size", "greatest(size, ?)", IS_REGULAR, |delta| Some(delta.extent?.size_at_least.into())),
    column("blocks", "?", None, |delta| Some(delta.extent?.blocks.into())),
    column("place", "?", None, |delta| Some(word(delta.extent?.place))),
];

const fn column(
    name: &'static str,
    becomes: &'static str,
    fits: Option<&'static str>,
    value: fn(&NodeDelta) -> Option<Value>,
) -> Column {
    Column { name, becomes, fits, value }
}

fn added(number: i64) -> Option<Value> {
    (number != 0).then(|| number.into())
}

fn seconds(time: Option<Timestamp>) -> Option<Value> {
    time.map(|time| time.sec.into())
}

fn nanoseconds(time: Option<Timestamp>) -> Option<Value> {
    time.map(|time| time.nsec.into())
}

/// What a delta touches, and the values of these columns in the order of the statement.
pub(super) fn touched(delta: &NodeDelta) -> (Touched, Vec<Value>) {
    let mut values = Vec::with_capacity(COLUMNS.len());
    let mut touched = 0;
    for (n, column) in COLUMNS.iter().enumerate() {
        if let Some(value) = (column.value)(delta) {
            touched |= 1 << n;
            values.push(value);
        }
    }
    (Touched(touched), values)
}

impl Touched {
    /// The statement, whose parameters are the node's number, the values, and the version if it must have one.
    pub(super) fn sql(self, has_version: bool) -> String {
        let mut columns = String::new();
        let mut fits = Vec::new();
        let mut parameter = 2;
        for (_, column) in COLUMNS.iter().enumerate().filter(|(n, _)| self.0 & (1 << n) != 0) {
            let becomes = column.becomes.replace('?', &format!("${parameter}"));
            columns.push_str(&format!("{} = {becomes}, ", column.name));
            fits.extend(column.fits);
            parameter += 1;
        }
        let version = if has_version { format!(" AND version = ${parameter}") } else { String::new() };
        let fits = if fits.is_empty() { "true".to_owned() } else { fits.join(" AND ") };
        format!(
            "UPDATE node SET {columns}version = {VERSION} WHERE ino = $1{version} RETURNING {fits} AS fits"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::merge::Extent;
    use crate::document::{ContentPlace, Ino, Name};

    #[test]
    fn a_statement_names_what_is_touched() {
        let time = Timestamp { sec: 7, nsec: 8 };
        let (touched_by, values) = touched(&NodeDelta::entries_changed(-1, 0, time));
        assert_eq!(
            touched_by.sql(true),
            "UPDATE node SET mtime = $2, mtime_ns = $3, ctime = $4, ctime_ns = $5, children = children + $6, \
             version = currval('versions') WHERE ino = $1 AND version = $7 RETURNING children >= 0 AS fits"
        );
        assert_eq!(values.len(), 5);
        let (nothing, values) = touched(&NodeDelta::default());
        assert_eq!(values.len(), 0);
        assert_eq!(
            nothing.sql(false),
            "UPDATE node SET version = currval('versions') WHERE ino = $1 RETURNING true AS fits"
        );
    }

    #[test]
    fn all_can_be_touched() {
        let time = Some(Timestamp::default());
        let (touched, values) = touched(&NodeDelta {
            children: 1,
            nlink: 1,
            xattrs: 1,
            atime: time,
            mtime: time,
            ctime: time,
            mode_clear: 0o6000,
            reparent: Some((Ino(5), Name::new(b"name").unwrap())),
            extent: Some(Extent { size_at_least: 1, blocks: 1, place: ContentPlace::Inline }),
        });
        assert_eq!(values.len(), COLUMNS.len());
        assert!(touched.sql(true).contains("place = $16, version ="), "{}", touched.sql(true));
        assert!(touched.sql(true).contains("AND version = $17 RETURNING"), "{}", touched.sql(true));
    }
}
