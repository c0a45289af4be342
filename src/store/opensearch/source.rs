//! Cells as JSON documents that people can read and query, and back. Pure.
//!
//! Every document has `key` (its place in the order of its index, hexadecimal), and what its key says in words. A document
//! of the volume stands under the name of its kind, with its `version`; the mark of an intent under `mark`. Where there is
//! neither, for a moment, it says so: `absent`.
//!
//! Contents are text where they are text, so that a search finds them, and base64 where they are not.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::DeserializeOwned;
use serde::ser::{Error as _, SerializeMap};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};

use super::ids::sort_key;
use crate::document::{
    Body, Chunk, Content, Document, IntentId, Key, Kind, LockMode, LockRecord, Mark, MarkChange, Marked,
    SessionId, Slot, SlotState, Stored, Version,
};
use crate::store::cells::{Cell, CellKey, MarkedDocument};

/// How much of a document was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it.
    Whole,
    /// The fields [`OUTLINE`].
    Outline,
}

/// The fields that tell whether there is a document, before a mark and after it.
pub(super) const OUTLINE: [&str; 7] =
    ["key", "version", "mark.session", "mark.slot", "mark.number", "mark.change", ABSENT];

/// Says of a cell that it holds nothing, and is to hold nothing.
const ABSENT: &str = "absent";
type Result<T> = std::result::Result<T, String>;

/// What stands in the index.
pub(super) struct Source<'a> {
    pub(super) key: &'a CellKey,
    pub(super) cell: &'a Cell,
}

impl Serialize for Source<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("key", &sort_key(self.key))?;
        match self.cell {
            Cell::Slot(slot) => write_slot(&mut map, self.key, slot)?,
            Cell::Lock(lock) => write_lock(&mut map, lock)?,
            Cell::Document(marked) => {
                if let CellKey::Document(key) = self.key {
                    describe(&mut map, key)?;
                }
                if let Some(before) = &marked.before {
                    map.serialize_entry("version", &before.version.0)?;
                    write_document(&mut map, &before.document)?;
                }
                if let Some(mark) = &marked.mark {
                    map.serialize_entry("mark", &Announced(mark))?;
                }
                if marked.before.is_none() && marked.mark.is_none() {
                    map.serialize_entry(ABSENT, &true)?;
                }
            }
        }
        map.end()
    }
}

/// What the key says, for people and for queries.
fn describe<M: SerializeMap>(map: &mut M, key: &Key) -> std::result::Result<(), M::Error> {
    match key {
        Key::Node(ino) | Key::Content(ino) | Key::Orphan(ino) | Key::Advisory(ino) => {
            map.serialize_entry("ino", &ino.0)
        }
        Key::Entry(parent, name) => {
            map.serialize_entry("parent", &parent.0)?;
            map.serialize_entry("name", &String::from_utf8_lossy(name.as_bytes()))
        }
        Key::Xattr(ino, name) => {
            map.serialize_entry("ino", &ino.0)?;
            map.serialize_entry("name", &String::from_utf8_lossy(name))
        }
        Key::Chunk(ino, index) => {
            map.serialize_entry("ino", &ino.0)?;
            map.serialize_entry("index", index)
        }
        Key::Volume | Key::Session(_) | Key::Lock(_) => Ok(()),
    }
}

fn write_document<M: SerializeMap>(map: &mut M, document: &Document) -> std::result::Result<(), M::Error> {
    map.serialize_entry(document.kind().name(), &Fields(document))
}

/// What a document has, without the name of its kind.
struct Fields<'a>(&'a Document);

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self.0 {
            Document::Content(Content { bytes }) | Document::Chunk(Chunk { bytes }) => {
                write_bytes(bytes, serializer)
            }
            Document::Node(node) => match node.body {
                Body::Regular(_)
                | Body::Directory(_)
                | Body::Symlink { .. }
                | Body::CharDevice { .. }
                | Body::BlockDevice { .. } => node.serialize(serializer),
                // An object in every node, since its mapping is one: `{"fifo": null}`, which serde takes as well.
                Body::Fifo | Body::Socket => {
                    let mut value = serde_json::to_value(node).map_err(S::Error::custom)?;
                    let word = value["body"].as_str().unwrap_or_default().to_owned();
                    value["body"] = json!({ word: null });
                    value.serialize(serializer)
                }
            },
            Document::Volume(volume) => volume.serialize(serializer),
            Document::Entry(entry) => entry.serialize(serializer),
            Document::Xattr(xattr) => xattr.serialize(serializer),
            Document::Orphan(orphan) => orphan.serialize(serializer),
            Document::Session(session) => session.serialize(serializer),
            Document::Lock(lock) => lock.serialize(serializer),
            Document::Advisory(record) => record.serialize(serializer),
        }
    }
}

fn write_bytes<S: Serializer>(bytes: &[u8], serializer: S) -> std::result::Result<S::Ok, S::Error> {
    // A control character takes six bytes in JSON.
    let is_text = |byte: &u8| *byte >= b' ' || b"\t\n\r".contains(byte);
    let mut map = serializer.serialize_map(Some(1))?;
    match std::str::from_utf8(bytes) {
        Ok(text) if bytes.iter().all(is_text) => map.serialize_entry("text", text)?,
        _ => map.serialize_entry("base64", &BASE64.encode(bytes))?,
    }
    map.end()
}

/// The mark of an intent: which one, and what is to come.
struct Announced<'a>(&'a Mark);

impl Serialize for Announced<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let Mark { intent, change } = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("session", &intent.session.to_string())?;
        map.serialize_entry("slot", &intent.slot)?;
        map.serialize_entry("number", &intent.number)?;
        let change = match change {
            MarkChange::Put(document) => {
                map.serialize_entry("after", &After(document))?;
                "put"
            }
            MarkChange::Delete => "delete",
            MarkChange::Keep => "keep",
        };
        map.serialize_entry("change", change)?;
        map.end()
    }
}

/// A document under the name of its kind.
struct After<'a>(&'a Document);

impl Serialize for After<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        write_document(&mut map, self.0)?;
        map.end()
    }
}

fn write_slot<M: SerializeMap>(map: &mut M, key: &CellKey, slot: &Slot) -> std::result::Result<(), M::Error> {
    if let CellKey::Slot(session, index) = key {
        map.serialize_entry("session", &session.to_string())?;
        map.serialize_entry("slot", index)?;
    }
    map.serialize_entry("number", &slot.number)?;
    map.serialize_entry("state", &slot.state)?;
    map.serialize_entry("marked", &slot.marked)
}

/// `lock_type` and `lock_count` are as in the book's lock documents, and say what the holders say.
fn write_lock<M: SerializeMap>(map: &mut M, lock: &LockRecord) -> std::result::Result<(), M::Error> {
    let exclusive = lock.holders.iter().any(|claim| claim.mode == LockMode::Exclusive);
    let lock_type = match lock.holders.len() {
        0 => "none",
        _ if exclusive => "exclusive",
        _ => "shared",
    };
    map.serialize_entry("lock_type", lock_type)?;
    map.serialize_entry("lock_count", &lock.holders.len())?;
    let path = String::from_utf8_lossy(&lock.path);
    map.serialize_entry("path", &path)?;
    if path.as_bytes() != lock.path {
        map.serialize_entry("path_base64", &BASE64.encode(&lock.path))?;
    }
    map.serialize_entry("holders", &lock.holders)?;
    map.serialize_entry("waiters", &lock.waiters)
}

/// The cell that this is, at this version. Of an outline any document stands where one is: an empty chunk.
pub(super) fn read(key: &CellKey, source: &Value, at: Version, part: Part) -> Result<Cell> {
    if text(source, "key")? != sort_key(key) {
        return Err("it says that it stands under another key".to_owned());
    }
    Ok(match key {
        CellKey::Slot(..) => Cell::Slot(Slot {
            number: field(source, "number")?,
            state: field::<SlotState>(source, "state")?,
            marked: field::<Vec<Marked>>(source, "marked")?,
        }),
        CellKey::Lock(_) => Cell::Lock(read_lock(source)?),
        // A lock that nothing but a single change has made; one that a commit made is a document like others.
        CellKey::Document(key) if key.kind() == Kind::Lock && source.get("lock_type").is_some() => {
            let document = Document::Lock(read_lock(source)?).into();
            Cell::Document(MarkedDocument { before: Some(Stored { version: at, document }), mark: None })
        }
        CellKey::Document(key) => {
            let document = match part {
                Part::Whole => read_document(source, Some(key.kind()))?,
                Part::Outline => source.get("version").map(|_| any_document()),
            };
            let before = match document {
                Some(document) => {
                    Some(Stored { version: Version(field(source, "version")?), document: document.into() })
                }
                None => None,
            };
            let mark = source.get("mark").map(|mark| read_mark(mark, part)).transpose()?;
            if before.is_none() && mark.is_none() && source.get(ABSENT) != Some(&true.into()) {
                return Err("it holds neither a document nor the mark of an intent".to_owned());
            }
            Cell::Document(MarkedDocument { before, mark })
        }
    })
}

/// The document of this kind in an object; of any kind, if none is named.
fn read_document(object: &Value, kind: Option<Kind>) -> Result<Option<Document>> {
    let there = |kind: &Kind| object.get(kind.name()).is_some();
    let kind = match kind {
        Some(kind) => Some(kind).filter(there),
        None => Kind::ALL.into_iter().find(there),
    };
    let Some(kind) = kind else { return Ok(None) };
    let value = &object[kind.name()];
    Ok(Some(match kind {
        Kind::Content => Document::Content(Content { bytes: read_bytes(value)? }),
        Kind::Chunk => Document::Chunk(Chunk { bytes: read_bytes(value)? }),
        _ => {
            let whole = json!({ kind.name(): value });
            Document::deserialize(whole).map_err(|error| format!("field {}: {error}", kind.name()))?
        }
    }))
}

fn any_document() -> Document {
    Document::Chunk(Chunk { bytes: Arc::default() })
}

fn read_bytes(value: &Value) -> Result<Arc<[u8]>> {
    if let Some(text) = value.get("text").and_then(Value::as_str) {
        return Ok(text.as_bytes().into());
    }
    Ok(BASE64.decode(text(value, "base64")?).map_err(|error| format!("field base64: {error}"))?.into())
}

fn read_mark(mark: &Value, part: Part) -> Result<Mark> {
    let intent = IntentId {
        session: field::<SessionId>(mark, "session")?,
        slot: field(mark, "slot")?,
        number: field(mark, "number")?,
    };
    let change = match text(mark, "change")? {
        "put" => {
            let after = match part {
                Part::Whole => mark.get("after").map_or(Ok(None), |after| read_document(after, None))?,
                Part::Outline => Some(any_document()),
            };
            MarkChange::Put(Box::new(after.ok_or("the mark's field after holds no document")?))
        }
        "delete" => MarkChange::Delete,
        "keep" => MarkChange::Keep,
        other => return Err(format!("{other:?} is no change that a mark can announce")),
    };
    Ok(Mark { intent, change })
}

fn read_lock(source: &Value) -> Result<LockRecord> {
    let path = match source.get("path_base64").and_then(Value::as_str) {
        Some(base64) => BASE64.decode(base64).map_err(|error| format!("field path_base64: {error}"))?,
        None => text(source, "path")?.as_bytes().to_vec(),
    };
    Ok(LockRecord { path, holders: field(source, "holders")?, waiters: field(source, "waiters")? })
}

fn text<'a>(object: &'a Value, name: &str) -> Result<&'a str> {
    object.get(name).and_then(Value::as_str).ok_or_else(|| format!("field {name} is missing, or no text"))
}

fn field<T: DeserializeOwned>(object: &Value, name: &str) -> Result<T> {
    let value = object.get(name).ok_or_else(|| format!("field {name} is missing"))?;
    serde_json::from_value(value.clone()).map_err(|error| format!("field {name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Entry, FileKind, Ino, LockClaim, Locking, Name, Timestamp, Volume};

    fn survives(key: &CellKey, cell: &Cell) {
        let text = serde_json::to_string(&Source { key, cell }).unwrap();
        let source: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read(key, &source, Version(7), Part::Whole).as_ref(), Ok(cell), "{text}");
        if let Cell::Document(document) = cell {
            let outline = read(key, &outline(&source), Version(7), Part::Outline);
            assert_eq!(outline, Ok(Cell::Document(document.outline(&any_document()))), "{text}");
        }
    }

    /// What a server sends of a document of which these fields are asked for.
    fn outline(source: &Value) -> Value {
        let mut sent = json!({});
        for field in OUTLINE {
            let Some(value) = source.pointer(&format!("/{}", field.replace('.', "/"))) else { continue };
            match field.split_once('.') {
                Some((object, field)) => sent[object][field] = value.clone(),
                None => sent[field] = value.clone(),
            }
        }
        sent
    }

    fn chunk(bytes: &[u8]) -> Document {
        Document::Chunk(Chunk { bytes: bytes.into() })
    }

    #[test]
    fn cells_survive() {
        let intent = IntentId { session: SessionId(5), slot: 2, number: u64::MAX };
        let key = CellKey::Document(Key::Chunk(Ino(9), 1));
        for bytes in [&b""[..], b"text", b"\xff\x00", "π".as_bytes()] {
            let before = Stored { version: Version(u64::MAX >> 1), document: chunk(bytes).into() };
            for change in [MarkChange::Put(Box::new(chunk(bytes))), MarkChange::Delete, MarkChange::Keep] {
                let mark = Some(Mark { intent, change });
                let before = Some(before.clone());
                survives(&key, &Cell::Document(MarkedDocument { before, mark: mark.clone() }));
                survives(&key, &Cell::Document(MarkedDocument { before: None, mark }));
            }
            survives(&key, &Cell::Document(MarkedDocument { before: Some(before), mark: None }));
        }
        survives(&key, &Cell::Document(MarkedDocument { before: None, mark: None }));
        let mut node = Volume::empty(String::new(), Locking::Tree, 0, Timestamp::default()).empty_root(1, 2);
        let root = node.body.clone();
        for body in [root, Body::Fifo, Body::Socket, Body::BlockDevice { rdev: 7 }] {
            node.body = body;
            let stored = Stored { version: Version(1), document: Document::Node(node.clone()).into() };
            let key = CellKey::Document(Key::Node(Ino(3)));
            survives(&key, &Cell::Document(MarkedDocument { before: Some(stored), mark: None }));
        }
        // Reading takes a word as well, which the mapping does not.
        for (body, is) in [(Body::Fifo, json!({ "fifo": null })), (Body::Socket, json!({ "socket": null }))] {
            node.body = body;
            let written = serde_json::to_value(Fields(&Document::Node(node.clone()))).unwrap();
            assert_eq!(written["body"], is);
        }
        let marked = Marked { key: Key::Node(Ino(3)), version: Some(Version(4)) };
        let slot = Slot { number: 3, state: SlotState::Committed, marked: vec![marked] };
        survives(&CellKey::Slot(SessionId(1), 0), &Cell::Slot(slot));
        let claim = LockClaim {
            session: SessionId(u64::MAX),
            operation: u64::MAX,
            mode: LockMode::Exclusive,
            purpose: "rename /a".into(),
            since_ns: u64::MAX,
        };
        for path in [&b"/clinton"[..], b"/\xff"] {
            let lock = LockRecord {
                path: path.to_vec(),
                holders: vec![claim.clone()],
                waiters: vec![claim.clone()],
            };
            survives(&CellKey::Lock("%2Fclinton".into()), &Cell::Lock(lock));
        }
    }

    #[test]
    fn people_see_what_the_key_says() {
        let key = CellKey::Document(Key::Entry(Ino(1), Name::new(b"README.txt").unwrap()));
        let entry = Document::Entry(Entry { ino: Ino(2), kind: FileKind::Regular });
        let stored = Stored { version: Version(3), document: entry.into() };
        let cell = Cell::Document(MarkedDocument { before: Some(stored), mark: None });
        let mut object = serde_json::to_value(Source { key: &key, cell: &cell }).unwrap();
        object.as_object_mut().unwrap().remove("key");
        let shown = json!({
            "parent": 1, "name": "README.txt", "version": 3, "entry": { "ino": 2, "kind": "regular" },
        });
        assert_eq!(object, shown);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let key = CellKey::Document(Key::Node(Ino(1)));
        let at = |source: Value| read(&key, &source, Version(1), Part::Whole).unwrap_err();
        let own = sort_key(&key);
        assert!(at(json!({})).starts_with("field key"));
        assert!(at(json!({ "key": "00" })).contains("another key"));
        assert!(at(json!({ "key": own })).contains("neither"));
        assert!(at(json!({ "key": own, "version": 1, "node": {} })).starts_with("field node"));
        assert!(at(json!({ "key": own, "mark": { "session": "x" } })).starts_with("field session"));
    }
}
