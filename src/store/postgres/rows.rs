//! Documents as rows, and rows as documents.
//!
//! Numbers that are unsigned in a document are the same 64 bits in a column. Inode numbers, sizes and counts stay below
//! 2^63; a heartbeat above it would show as negative, and survive. Ids of sessions are text, as everywhere.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Row;
use tokio_postgres::types::FromSqlOwned;

use super::tables::table;
use super::value::Value;
use crate::document::{
    AdvisoryRecord, Body, Chunk, Content, Directory, Document, Entry, EntryPosition, FileKind, Ino, Key,
    Kind, LockRecord, Name, Node, Orphan, Regular, Session, SessionId, SessionState, Stored, Timestamp,
    Version, Volume, Xattr,
};
use crate::store::StoreError;

/// The columns of the key.
pub(super) fn key_values(key: &Key) -> Vec<Value> {
    match key {
        Key::Volume => vec![Value::Int(1)],
        Key::Node(ino) | Key::Content(ino) | Key::Orphan(ino) | Key::Advisory(ino) => vec![ino.0.into()],
        Key::Entry(parent, name) => {
            vec![parent.0.into(), EntryPosition::of(name.as_bytes()).0.into(), name.as_bytes().into()]
        }
        Key::Xattr(ino, name) => vec![ino.0.into(), Value::Bytes(Arc::clone(name))],
        Key::Session(id) => vec![Value::Text(id.to_string())],
        Key::Chunk(ino, index) => vec![ino.0.into(), (*index).into()],
        Key::Lock(id) => vec![Value::Text(id.to_string())],
    }
}

/// The columns of the keys of entries, and behind them the versions, each as a list.
pub(super) fn entry_lists(entries: &[(Ino, &Name, Version)]) -> Vec<Value> {
    let number = |number: u64| number.cast_signed();
    let position = |name: &Name| EntryPosition::of(name.as_bytes()).0;
    vec![
        Value::Ints(entries.iter().map(|(parent, ..)| number(parent.0)).collect()),
        Value::Ints(entries.iter().map(|(_, name, _)| number(position(name))).collect()),
        Value::ManyBytes(entries.iter().map(|(_, name, _)| name.as_bytes().into()).collect()),
        Value::Ints(entries.iter().map(|(.., version)| number(version.0)).collect()),
    ]
}

/// A word of one of the document's enumerations, as its JSON has it.
pub(super) fn word(value: impl Serialize) -> Value {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => Value::Text(word),
        _ => Value::Null, // No unit variant does this; a NOT NULL column would refuse it.
    }
}

fn json(value: impl Serialize) -> Value {
    serde_json::to_string(&value).map_or(Value::Null, Value::Text)
}

/// The columns of the document.
pub(super) fn document_values(document: &Document) -> Vec<Value> {
    match document {
        Document::Volume(volume) => vec![
            volume.format.into(),
            volume.id.as_str().into(),
            word(volume.locking),
            volume.created.sec.into(),
            volume.created.nsec.into(),
            volume.next_ino.into(),
            volume.epoch.into(),
            volume.inline_max.into(),
            volume.content.as_deref().into(),
        ],
        Document::Node(node) => node_values(node),
        Document::Entry(entry) => vec![entry.ino.0.into(), word(entry.kind)],
        Document::Content(content) => vec![Value::Bytes(Arc::clone(&content.bytes))],
        Document::Xattr(xattr) => vec![Value::Bytes(Arc::clone(&xattr.value))],
        Document::Orphan(orphan) => vec![Value::Text(orphan.session.to_string())],
        Document::Session(session) => vec![
            session.host.as_str().into(),
            session.boot_id.as_str().into(),
            session.pid.into(),
            session.mount_point.as_str().into(),
            session.started.sec.into(),
            session.started.nsec.into(),
            session.lease_ms.into(),
            session.heartbeat.into(),
            session.epoch.into(),
            u32::from(session.intents).into(),
            session.operations_below.into(),
            word(session.state),
            session.locks.as_deref().into(),
        ],
        Document::Chunk(chunk) => vec![Value::Bytes(Arc::clone(&chunk.bytes))],
        Document::Lock(lock) => vec![
            lock.path.as_slice().into(),
            lock.holders.iter().map(|claim| claim.mode).max().map_or(Value::Null, word),
            (lock.holders.len() as u64).into(),
            json(&lock.holders),
            json(&lock.waiters),
        ],
        Document::Advisory(AdvisoryRecord { locks }) => vec![(locks.len() as u64).into(), json(locks)],
    }
}

fn node_values(node: &Node) -> Vec<Value> {
    let regular = node.regular();
    let directory = node.directory();
    let name = directory.and_then(|directory| directory.name.as_ref());
    let (target, rdev) = match &node.body {
        Body::Symlink { target } => (Value::Bytes(Arc::clone(target)), Value::Null),
        Body::CharDevice { rdev } | Body::BlockDevice { rdev } => (Value::Null, (*rdev).into()),
        _ => (Value::Null, Value::Null),
    };
    let time = |time: Timestamp| [time.sec.into(), time.nsec.into()];
    let mut values = vec![word(node.kind()), node.mode.into(), node.uid.into(), node.gid.into()];
    values.push(node.nlink.into());
    values.extend([node.atime, node.mtime, node.ctime, node.btime].into_iter().flat_map(time));
    values.extend([
        node.xattrs.into(),
        regular.map(|regular| regular.size).into(),
        regular.map(|regular| regular.blocks).into(),
        regular.map_or(Value::Null, |regular| word(regular.place)),
        directory.map(|directory| directory.parent.0).into(),
        name.map(Name::as_bytes).into(),
        directory.map(|directory| directory.children).into(),
        target,
        rdev,
    ]);
    values
}

/// Some document of the kind, for a row that is removed in the same transaction: it keeps others from making the row.
pub(super) fn placeholder(kind: Kind) -> Document {
    let session = SessionId(0);
    let time = Timestamp::default();
    match kind {
        Kind::Volume => {
            Document::Volume(Volume::empty(String::new(), crate::document::Locking::Tree, 0, time))
        }
        Kind::Node => Document::Node(Node {
            mode: 0,
            uid: 0,
            gid: 0,
            nlink: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            xattrs: 0,
            body: Body::Fifo,
        }),
        Kind::Entry => Document::Entry(Entry { ino: Ino(0), kind: FileKind::Fifo }),
        Kind::Content => Document::Content(Content { bytes: [][..].into() }),
        Kind::Xattr => Document::Xattr(Xattr { value: [][..].into() }),
        Kind::Orphan => Document::Orphan(Orphan { session }),
        Kind::Session => Document::Session(Session {
            id: session,
            host: String::new(),
            boot_id: String::new(),
            pid: 0,
            mount_point: String::new(),
            started: time,
            lease_ms: 0,
            heartbeat: 0,
            epoch: 0,
            intents: 0,
            operations_below: 0,
            state: SessionState::Recovered,
            locks: None,
        }),
        Kind::Chunk => Document::Chunk(Chunk { bytes: [][..].into() }),
        Kind::Lock => {
            Document::Lock(LockRecord { path: Vec::new(), holders: Vec::new(), waiters: Vec::new() })
        }
        Kind::Advisory => Document::Advisory(AdvisoryRecord::default()),
    }
}

/// Why a row is no document.
type Wrong = Box<dyn std::error::Error + Send + Sync>;

struct Columns<'a> {
    row: &'a Row,
    next: usize,
}

impl Columns<'_> {
    fn take<T: FromSqlOwned>(&mut self) -> Result<T, Wrong> {
        self.next += 1;
        Ok(self.row.try_get(self.next - 1)?)
    }

    fn u64(&mut self) -> Result<u64, Wrong> {
        Ok(self.take::<i64>()?.cast_unsigned())
    }

    fn u32(&mut self) -> Result<u32, Wrong> {
        Ok(self.take::<i64>()?.try_into()?)
    }

    fn bytes(&mut self) -> Result<Arc<[u8]>, Wrong> {
        Ok(self.take::<Vec<u8>>()?.into())
    }

    fn time(&mut self) -> Result<Timestamp, Wrong> {
        Ok(Timestamp { sec: self.take()?, nsec: self.u32()? })
    }

    fn word<T: DeserializeOwned>(&mut self) -> Result<T, Wrong> {
        Ok(serde_json::from_value(serde_json::Value::String(self.take()?))?)
    }

    fn json<T: DeserializeOwned>(&mut self) -> Result<T, Wrong> {
        Ok(serde_json::from_str(&self.take::<String>()?)?)
    }
}

/// The document of a row that has the document's columns and the version behind `skip` others.
pub(super) fn stored(key: &Key, row: &Row, skip: usize) -> Result<Stored, StoreError> {
    let mut columns = Columns { row, next: skip };
    let document = document(key, &mut columns);
    let stored = document
        .and_then(|document| Ok(Stored { version: Version(columns.u64()?), document: Arc::new(document) }));
    stored.map_err(|cause| StoreError::Damaged { key: key.to_string(), cause: cause.to_string() })
}

fn document(key: &Key, columns: &mut Columns<'_>) -> Result<Document, Wrong> {
    Ok(match key {
        Key::Volume => Document::Volume(Volume {
            format: columns.u32()?,
            id: columns.take()?,
            locking: columns.word()?,
            created: columns.time()?,
            next_ino: columns.u64()?,
            epoch: columns.u64()?,
            inline_max: columns.u32()?,
            content: columns.take()?,
        }),
        Key::Node(_) => Document::Node(node(columns)?),
        Key::Entry(..) => Document::Entry(Entry { ino: Ino(columns.u64()?), kind: columns.word()? }),
        Key::Content(_) => Document::Content(Content { bytes: columns.bytes()? }),
        Key::Xattr(..) => Document::Xattr(Xattr { value: columns.bytes()? }),
        Key::Orphan(_) => Document::Orphan(Orphan { session: columns.take::<String>()?.parse()? }),
        Key::Session(id) => Document::Session(Session {
            id: *id,
            host: columns.take()?,
            boot_id: columns.take()?,
            pid: columns.u32()?,
            mount_point: columns.take()?,
            started: columns.time()?,
            lease_ms: columns.u64()?,
            heartbeat: columns.u64()?,
            epoch: columns.u64()?,
            intents: columns.u32()?.try_into()?,
            operations_below: columns.u64()?,
            state: columns.word()?,
            locks: columns.take()?,
        }),
        Key::Chunk(..) => Document::Chunk(Chunk { bytes: columns.bytes()? }),
        Key::Lock(_) => {
            let path = columns.take()?;
            let _for_people: (Option<String>, i64) = (columns.take()?, columns.take()?);
            Document::Lock(LockRecord { path, holders: columns.json()?, waiters: columns.json()? })
        }
        Key::Advisory(_) => {
            let _for_people: i64 = columns.take()?;
            Document::Advisory(AdvisoryRecord { locks: columns.json()? })
        }
    })
}

fn node(columns: &mut Columns<'_>) -> Result<Node, Wrong> {
    let kind: FileKind = columns.word()?;
    let mut node = Node {
        mode: columns.u32()?,
        uid: columns.u32()?,
        gid: columns.u32()?,
        nlink: columns.u32()?,
        atime: columns.time()?,
        mtime: columns.time()?,
        ctime: columns.time()?,
        btime: columns.time()?,
        xattrs: columns.u32()?,
        body: Body::Fifo,
    };
    let size: Option<i64> = columns.take()?;
    let blocks: Option<i64> = columns.take()?;
    let place: Option<String> = columns.take()?;
    let parent: Option<i64> = columns.take()?;
    let name: Option<Vec<u8>> = columns.take()?;
    let children: Option<i64> = columns.take()?;
    let target: Option<Vec<u8>> = columns.take()?;
    let rdev = columns.take::<Option<i64>>()?.map(u32::try_from).transpose()?.ok_or("rdev is missing");
    node.body = match kind {
        FileKind::Regular => Body::Regular(Regular {
            size: size.ok_or("size is missing")?.cast_unsigned(),
            blocks: blocks.ok_or("blocks is missing")?.cast_unsigned(),
            place: serde_json::from_value(serde_json::Value::String(place.ok_or("place is missing")?))?,
        }),
        FileKind::Directory => Body::Directory(Directory {
            parent: Ino(parent.ok_or("parent is missing")?.cast_unsigned()),
            name: name.map(|name| Name::new(&name)).transpose()?,
            children: children.ok_or("children is missing")?.cast_unsigned(),
        }),
        FileKind::Symlink => Body::Symlink { target: target.ok_or("target is missing")?.into() },
        FileKind::Fifo => Body::Fifo,
        FileKind::Socket => Body::Socket,
        FileKind::CharDevice => Body::CharDevice { rdev: rdev? },
        FileKind::BlockDevice => Body::BlockDevice { rdev: rdev? },
    };
    Ok(node)
}

/// The key at the beginning of a row of a page, and how many columns it takes.
pub(super) fn key_of(kind: Kind, row: &Row) -> Result<(Key, usize), StoreError> {
    let mut columns = Columns { row, next: 0 };
    let key = key(kind, &mut columns).map_err(|cause| StoreError::Damaged {
        key: kind.name().to_owned(),
        cause: format!("a row has no valid key: {cause}"),
    })?;
    Ok((key, table(kind).key.len()))
}

fn key(kind: Kind, columns: &mut Columns<'_>) -> Result<Key, Wrong> {
    Ok(match kind {
        Kind::Volume => Key::Volume,
        Kind::Node => Key::Node(Ino(columns.u64()?)),
        Kind::Entry => {
            let parent = Ino(columns.u64()?);
            let position = columns.u64()?;
            let name = Name::new(&columns.take::<Vec<u8>>()?)?;
            if EntryPosition::of(name.as_bytes()).0 != position {
                return Err(format!("the entry {name} of {parent} does not stand at its position").into());
            }
            Key::Entry(parent, name)
        }
        Kind::Content => Key::Content(Ino(columns.u64()?)),
        Kind::Xattr => Key::Xattr(Ino(columns.u64()?), columns.bytes()?),
        Kind::Orphan => Key::Orphan(Ino(columns.u64()?)),
        Kind::Session => Key::Session(columns.take::<String>()?.parse()?),
        Kind::Chunk => Key::Chunk(Ino(columns.u64()?), columns.u64()?),
        Kind::Lock => Key::Lock(columns.take::<String>()?.into()),
        Kind::Advisory => Key::Advisory(Ino(columns.u64()?)),
    })
}
