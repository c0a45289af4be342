//! A commit as the keys and arguments that `commit.lua` takes. Pure.

use std::fmt::{Display, Write as _};

use redis::{Arg, Cmd, RedisWrite, ToRedisArgs};

use super::fields;
use super::names::{self, Names};
use crate::document::{Key, NodeDelta};
use crate::store::{Check, Commit, Write, notice};

/// Outcomes are kept for as long after the last commit of a client, or up to an hour less; no request is under way that
/// long.
pub(super) const OUTCOMES_KEPT_S: u32 = 24 * 60 * 60;

/// The keys and arguments of a script, each lot in one piece of memory.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    keys: Cmd,
    /// Which commit of which lane it is: the first two arguments of what has them.
    number: Option<[u64; 2]>,
    args: Cmd,
}

impl Arguments {
    /// One more key.
    pub fn key(mut self, key: impl Display) -> Self {
        self.keys.write_arg_fmt(key);
        self
    }

    /// One more argument that is no key.
    pub fn arg(mut self, arg: impl Display) -> Self {
        self.args.write_arg_fmt(arg);
        self
    }

    /// The same, of any bytes.
    pub(super) fn bytes(mut self, arg: &[u8]) -> Self {
        self.args.write_arg(arg);
        self
    }

    /// Says which commit of which lane it is.
    pub(super) fn number(&mut self, lane: u64, number: u64) {
        self.number = Some([lane, number]);
    }

    fn add(&mut self, arg: &str) {
        self.args.write_arg(arg.as_bytes());
    }
}

/// What a command has been given so far.
pub(super) fn given(command: &Cmd) -> impl ExactSizeIterator<Item = &[u8]> {
    command.args_iter().map(|arg| match arg {
        Arg::Simple(bytes) => bytes,
        _ => &[], // A cursor, which nothing here adds.
    })
}

/// How many keys, the keys, and the other arguments: what follows the script.
impl ToRedisArgs for Arguments {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        let keys = given(&self.keys);
        out.write_arg_fmt(keys.len());
        keys.for_each(|key| out.write_arg(key));
        self.number.iter().flatten().for_each(|number| out.write_arg_fmt(number));
        given(&self.args).for_each(|arg| out.write_arg(arg));
    }
}

/// The request that makes `commit`, and publishes what it changes if it `tells`. [`Arguments::number`] gives it its number
/// before it is sent.
pub(super) fn commit(names: &Names, outcomes: &str, commit: &Commit, tells: bool) -> Arguments {
    let counter = names.other("version");
    let mut request = Arguments::default().key(&counter).key(outcomes);
    match commit.session {
        Some(id) => names.add_document(&mut request.keys, &Key::Session(id)),
        None => request.keys.write_arg(counter.as_bytes()),
    }
    let mut request = request
        .arg(u8::from(commit.session.is_some()))
        .arg(names.channel())
        .arg(if tells { told(commit) } else { String::new() })
        .arg(OUTCOMES_KEPT_S)
        .arg(commit.checks.len())
        .arg(commit.writes.len());
    for check in &commit.checks {
        add_check(&mut request, names, check);
    }
    for write in &commit.writes {
        add_write(&mut request, names, write);
    }
    request
}

/// What is published behind the version: whose commit it is, and the keys that it tells of; nothing without keys.
fn told(commit: &Commit) -> String {
    let mut notice = String::new();
    for key in commit.told() {
        if notice.is_empty() {
            notice = notice::word(commit.session);
        }
        let _ = write!(notice, " {key}");
    }
    notice
}

fn add_check(request: &mut Arguments, names: &Names, check: &Check) {
    let key = check.key();
    names.add_document(&mut request.keys, key);
    let (kind, version) = match check {
        Check::Version(_, version) => ("version", Some(version.0)),
        Check::Absent(_) => ("absent", None),
        Check::Exists(_) => ("exists", None),
    };
    request.add(kind);
    request.args.write_arg(names::field(key));
    match version {
        Some(version) => request.args.write_arg_fmt(version),
        None => request.add(""),
    }
}

fn add_write(request: &mut Arguments, names: &Names, write: &Write) {
    let key = write.key();
    names.add_document(&mut request.keys, key);
    let kind = match write {
        Write::Put(..) => "put",
        Write::Delete(_) => "delete",
        Write::Merge(_, delta) => {
            request.add("merge");
            return add_merge(request, delta);
        }
    };
    names.add_index(&mut request.keys, key);
    names.add_groups(&mut request.keys, key);
    request.add(kind);
    request.args.write_arg(names::field(key));
    names::add_member(&mut request.args, key);
    names::add_group(&mut request.args, key);
    if let Write::Put(_, document) = write {
        add_counted(request, &fields::write(document));
    }
}

fn add_counted(request: &mut Arguments, fields: &Cmd) {
    let fields = given(fields);
    request.args.write_arg_fmt(fields.len());
    fields.for_each(|field| request.args.write_arg(field));
}

fn add_merge(request: &mut Arguments, delta: &NodeDelta) {
    let NodeDelta { children, nlink, xattrs, atime, mtime, ctime, mode_clear, reparent, extent } = delta;
    let needs_directory = *children != 0 || reparent.is_some();
    let size = extent.map_or(0, |extent| extent.size_at_least);
    request.args.arg(*children).arg(*nlink).arg(*xattrs).arg(*mode_clear);
    request.add(match (needs_directory, extent) {
        (true, Some(_)) => "dr",
        (true, None) => "d",
        (false, Some(_)) => "r",
        (false, None) => "",
    });
    request.args.write_arg_fmt(size);
    let mut set = Cmd::new();
    let times = [("atime", atime), ("mtime", mtime), ("ctime", ctime)];
    for (field, time) in times.into_iter().filter_map(|(field, time)| Some((field, (*time)?))) {
        set.write_arg(field.as_bytes());
        set.write_arg_fmt(fields::time(time));
    }
    if let Some((parent, name)) = reparent {
        set.arg("parent").arg(parent.0).arg("name").arg(name.as_bytes());
    }
    if let Some(extent) = extent {
        set.arg("blocks").arg(extent.blocks).arg("place").arg(fields::place(extent.place));
    }
    add_counted(request, &set);
}
