//! A commit as the keys and arguments that `commit.lua` takes. Pure.

use std::fmt::Write as _;

use super::fields;
use super::names::{Names, Place};
use crate::document::{Key, NodeDelta};
use crate::store::{Check, Commit, Write};

/// Outcomes are kept for as long after the last commit of a client, or up to an hour less; no request is under way that
/// long.
pub(super) const OUTCOMES_KEPT_S: u32 = 24 * 60 * 60;

/// The keys and arguments of a script.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) args: Vec<Vec<u8>>,
}

impl Arguments {
    /// One more key.
    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.keys.push(key.into());
        self
    }

    /// One more argument that is no key.
    pub fn arg(mut self, arg: impl ToString) -> Self {
        self.args.push(arg.to_string().into_bytes());
        self
    }

    fn add(&mut self, args: impl IntoIterator<Item = Vec<u8>>) {
        self.args.extend(args);
    }

    /// Replaces which commit of which lane it is; the first two arguments.
    pub(super) fn number(&mut self, lane: u64, number: u64) {
        for (slot, value) in self.args.iter_mut().zip([lane, number]) {
            *slot = value.to_string().into_bytes();
        }
    }
}

/// The request that makes `commit`; [`Arguments::number`] gives it its number before it is sent.
pub(super) fn commit(names: &Names, outcomes: &str, commit: &Commit) -> Arguments {
    let counter = names.other("version");
    let session = commit.session.map(|id| names.place(&Key::Session(id)).key);
    let mut request = Arguments::default()
        .key(counter.clone())
        .key(outcomes)
        .key(session.unwrap_or(counter.into_bytes()))
        .arg(0)
        .arg(0)
        .arg(u8::from(commit.session.is_some()))
        .arg(names.channel())
        .arg(notice(commit))
        .arg(OUTCOMES_KEPT_S)
        .arg(commit.checks.len())
        .arg(commit.writes.len());
    for check in &commit.checks {
        let Place { key, field, .. } = names.place(check.key());
        let (kind, version) = match check {
            Check::Version(_, version) => ("version", version.0.to_string()),
            Check::Absent(_) => ("absent", String::new()),
            Check::Exists(_) => ("exists", String::new()),
        };
        request.keys.push(key);
        request.add([kind.into(), field, version.into_bytes()]);
    }
    for write in &commit.writes {
        add_write(&mut request, names.place(write.key()), write);
    }
    request
}

/// What is published: whose commit it is, and the keys that it tells of, whose text has no spaces; nothing without keys.
fn notice(commit: &Commit) -> String {
    let mut notice = String::new();
    for key in commit.told() {
        if notice.is_empty() {
            notice = commit.session.map_or_else(|| "-".to_owned(), |id| id.to_string());
        }
        let _ = write!(notice, " {key}");
    }
    notice
}

fn add_write(request: &mut Arguments, place: Place, write: &Write) {
    request.keys.push(place.key);
    let kind = match write {
        Write::Put(..) => "put",
        Write::Delete(_) => "delete",
        Write::Merge(_, delta) => {
            request.add(["merge".into()]);
            return add_merge(request, delta);
        }
    };
    request.keys.push(place.index);
    let (groups, group) = place.group.unzip();
    request.keys.extend(groups);
    request.add([kind.into(), place.field, place.member, group.unwrap_or_default().into_bytes()]);
    if let Write::Put(_, document) = write {
        add_counted(request, fields::write(document));
    }
}

fn add_counted(request: &mut Arguments, fields: fields::Fields) {
    request.add([fields.len().to_string().into_bytes()]);
    request.add(fields);
}

fn add_merge(request: &mut Arguments, delta: &NodeDelta) {
    let NodeDelta { children, nlink, xattrs, atime, mtime, ctime, mode_clear, reparent, extent } = delta;
    let needs_directory = *children != 0 || reparent.is_some();
    let kind = [(needs_directory, "d"), (extent.is_some(), "r")];
    let kind: String = kind.iter().filter(|(needed, _)| *needed).map(|(_, letter)| *letter).collect();
    let size = extent.map_or(0, |extent| extent.size_at_least);
    let numbers = [children.to_string(), nlink.to_string(), xattrs.to_string(), mode_clear.to_string()];
    request.add(numbers.map(String::into_bytes));
    request.add([kind.into_bytes(), size.to_string().into_bytes()]);
    let mut set = Vec::new();
    let times = [("atime", atime), ("mtime", mtime), ("ctime", ctime)];
    for (field, time) in times.into_iter().filter_map(|(field, time)| Some((field, (*time)?))) {
        set.extend([field.into(), fields::time(time).into_bytes()]);
    }
    if let Some((parent, name)) = reparent {
        set.extend(["parent".into(), parent.to_string().into_bytes()]);
        set.extend(["name".into(), name.as_bytes().to_vec()]);
    }
    if let Some(extent) = extent {
        set.extend(["blocks".into(), extent.blocks.to_string().into_bytes()]);
        set.extend(["place".into(), fields::place(extent.place).into()]);
    }
    add_counted(request, set);
}
