//! Documents as the fields of a hash that `redis-cli HGETALL` explains, and back. Pure.
//!
//! Numbers are decimal, modes octal, times seconds and nanoseconds with a point between, bytes raw. The field `version`
//! stands beside them; the script writes it. An entry is one JSON object in a field of its directory, version first, since
//! the script reads it there.

use std::fmt::Display;
use std::str::FromStr;

use redis::{Cmd, RedisWrite as _};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::document::{
    AdvisoryRecord, Body, Chunk, Content, ContentPlace, Directory, Document, Entry, FileKind, Ino, Key, Kind,
    LockMode, LockRecord, Name, Node, Orphan, Regular, Session, Stored, Timestamp, Version, Volume, Xattr,
};

/// Collects fields and their values, one after the other.
#[derive(Default)]
struct Writer(Cmd);

impl Writer {
    fn bytes(&mut self, field: &str, value: &[u8]) -> &mut Self {
        self.0.write_arg(field.as_bytes());
        self.0.write_arg(value);
        self
    }

    fn text(&mut self, field: &str, value: impl Display) -> &mut Self {
        self.0.write_arg(field.as_bytes());
        self.0.write_arg_fmt(value);
        self
    }

    /// What serde makes of a value, without the quotation marks if it is a string.
    fn word(&mut self, field: &str, value: impl Serialize) -> &mut Self {
        let json = serde_json::to_string(&value).unwrap_or_default();
        self.text(field, json.trim_matches('"'))
    }
}

pub(super) fn time(time: Timestamp) -> String {
    format!("{}.{:09}", time.sec, time.nsec)
}

pub(super) fn place(place: ContentPlace) -> &'static str {
    match place {
        ContentPlace::Empty => "empty",
        ContentPlace::Inline => "inline",
        ContentPlace::Backing => "backing",
        ContentPlace::Chunks => "chunks",
    }
}

/// The document without its version. Of an entry this is what follows the version in its JSON text.
pub(super) fn write(document: &Document) -> Cmd {
    let mut fields = Writer::default();
    match document {
        Document::Entry(entry) => {
            let json = serde_json::to_vec(entry).unwrap_or_default();
            fields.0.write_arg(json.get(1..).unwrap_or_default());
        }
        Document::Volume(volume) => {
            fields
                .text("format", volume.format)
                .text("id", &volume.id)
                .text("locking", volume.locking)
                .text("created", time(volume.created))
                .text("next_ino", volume.next_ino)
                .text("epoch", volume.epoch)
                .text("inline_max", volume.inline_max);
            if let Some(content) = &volume.content {
                fields.text("content", content);
            }
        }
        Document::Node(node) => write_node(&mut fields, node),
        Document::Content(content) => {
            fields.bytes("bytes", &content.bytes);
        }
        Document::Chunk(chunk) => {
            fields.bytes("bytes", &chunk.bytes);
        }
        Document::Xattr(xattr) => {
            fields.bytes("value", &xattr.value);
        }
        Document::Orphan(orphan) => {
            fields.text("session", orphan.session);
        }
        Document::Session(session) => {
            fields
                .word("state", session.state)
                .text("id", session.id)
                .text("host", &session.host)
                .text("boot_id", &session.boot_id)
                .text("pid", session.pid)
                .text("mount_point", &session.mount_point)
                .text("started", time(session.started))
                .text("lease_ms", session.lease_ms)
                .text("heartbeat", session.heartbeat)
                .text("epoch", session.epoch)
                .text("intents", session.intents)
                .text("operations_below", session.operations_below);
            if let Some(locks) = &session.locks {
                fields.text("locks", locks);
            }
        }
        Document::Lock(lock) => {
            // The first two are for people: they say what the holders say.
            let exclusive = lock.holders.iter().any(|claim| claim.mode == LockMode::Exclusive);
            let lock_type = match lock.holders.len() {
                0 => "none",
                _ if exclusive => "exclusive",
                _ => "shared",
            };
            fields
                .text("lock_type", lock_type)
                .text("lock_count", lock.holders.len())
                .bytes("path", &lock.path)
                .word("holders", &lock.holders)
                .word("waiters", &lock.waiters);
        }
        Document::Advisory(AdvisoryRecord { locks }) => {
            // The first is for people.
            fields.text("lock_count", locks.len()).word("locks", locks);
        }
    }
    fields.0
}

fn write_node(fields: &mut Writer, node: &Node) {
    fields
        .word("kind", node.kind())
        .text("mode", format_args!("{:04o}", node.mode))
        .text("uid", node.uid)
        .text("gid", node.gid)
        .text("nlink", node.nlink)
        .text("atime", time(node.atime))
        .text("mtime", time(node.mtime))
        .text("ctime", time(node.ctime))
        .text("btime", time(node.btime))
        .text("xattrs", node.xattrs);
    match &node.body {
        Body::Regular(file) => {
            fields.text("size", file.size).text("blocks", file.blocks).text("place", place(file.place));
        }
        Body::Directory(directory) => {
            fields.text("parent", directory.parent).text("children", directory.children);
            if let Some(name) = &directory.name {
                fields.bytes("name", name.as_bytes());
            }
        }
        Body::Symlink { target } => {
            fields.bytes("target", target);
        }
        Body::CharDevice { rdev } | Body::BlockDevice { rdev } => {
            fields.text("rdev", rdev);
        }
        Body::Fifo | Body::Socket => {}
    }
}

/// An entry as it stands in its directory.
#[derive(Deserialize)]
struct VersionedEntry {
    version: u64,
    ino: Ino,
    kind: FileKind,
}

/// The entry that this text is.
pub(super) fn read_entry(text: &[u8]) -> Result<Stored, String> {
    let found: VersionedEntry = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    let entry = Entry { ino: found.ino, kind: found.kind };
    Ok(Stored { version: Version(found.version), document: Document::Entry(entry).into() })
}

/// The document that these fields are.
pub(super) fn read(key: &Key, fields: &[(Vec<u8>, Vec<u8>)]) -> Result<Stored, String> {
    let fields = Reader(fields);
    let document = match key.kind() {
        Kind::Volume => Document::Volume(Volume {
            format: fields.number("format")?,
            id: fields.text("id")?.to_owned(),
            locking: fields.word("locking")?,
            created: fields.time("created")?,
            next_ino: fields.number("next_ino")?,
            epoch: fields.number("epoch")?,
            inline_max: fields.number("inline_max")?,
            content: fields.find("content").map(|_| fields.text("content").map(str::to_owned)).transpose()?,
        }),
        Kind::Node => Document::Node(read_node(&fields)?),
        Kind::Entry => return Err("an entry is no hash".to_owned()),
        Kind::Content => Document::Content(Content { bytes: fields.bytes("bytes")?.into() }),
        Kind::Chunk => Document::Chunk(Chunk { bytes: fields.bytes("bytes")?.into() }),
        Kind::Xattr => Document::Xattr(Xattr { value: fields.bytes("value")?.into() }),
        Kind::Orphan => Document::Orphan(Orphan { session: fields.number("session")? }),
        Kind::Session => Document::Session(Session {
            id: fields.number("id")?,
            host: fields.text("host")?.to_owned(),
            boot_id: fields.text("boot_id")?.to_owned(),
            pid: fields.number("pid")?,
            mount_point: fields.text("mount_point")?.to_owned(),
            started: fields.time("started")?,
            lease_ms: fields.number("lease_ms")?,
            heartbeat: fields.number("heartbeat")?,
            epoch: fields.number("epoch")?,
            intents: fields.number("intents")?,
            operations_below: fields.number("operations_below")?,
            state: fields.word("state")?,
            locks: fields.find("locks").map(|_| fields.text("locks").map(str::to_owned)).transpose()?,
        }),
        Kind::Lock => Document::Lock(LockRecord {
            path: fields.bytes("path")?.to_vec(),
            holders: fields.json("holders")?,
            waiters: fields.json("waiters")?,
        }),
        Kind::Advisory => Document::Advisory(AdvisoryRecord { locks: fields.json("locks")? }),
    };
    Ok(Stored { version: Version(fields.number("version")?), document: document.into() })
}

fn read_node(fields: &Reader<'_>) -> Result<Node, String> {
    let body = match fields.word("kind")? {
        FileKind::Regular => Body::Regular(Regular {
            size: fields.number("size")?,
            blocks: fields.number("blocks")?,
            place: fields.word("place")?,
        }),
        FileKind::Directory => Body::Directory(Directory {
            parent: Ino(fields.number("parent")?),
            name: match fields.find("name") {
                Some(name) => Some(Name::new(name).map_err(|e| format!("field name: {e}"))?),
                None => None,
            },
            children: fields.number("children")?,
        }),
        FileKind::Symlink => Body::Symlink { target: fields.bytes("target")?.into() },
        FileKind::Fifo => Body::Fifo,
        FileKind::Socket => Body::Socket,
        FileKind::CharDevice => Body::CharDevice { rdev: fields.number("rdev")? },
        FileKind::BlockDevice => Body::BlockDevice { rdev: fields.number("rdev")? },
    };
    Ok(Node {
        mode: u32::from_str_radix(fields.text("mode")?, 8).map_err(|e| format!("field mode: {e}"))?,
        uid: fields.number("uid")?,
        gid: fields.number("gid")?,
        nlink: fields.number("nlink")?,
        atime: fields.time("atime")?,
        mtime: fields.time("mtime")?,
        ctime: fields.time("ctime")?,
        btime: fields.time("btime")?,
        xattrs: fields.number("xattrs")?,
        body,
    })
}

/// Looks fields up, and says which one is missing or wrong.
struct Reader<'a>(&'a [(Vec<u8>, Vec<u8>)]);

impl Reader<'_> {
    fn find(&self, field: &str) -> Option<&[u8]> {
        self.0.iter().find(|(name, _)| name == field.as_bytes()).map(|(_, value)| &**value)
    }

    fn bytes(&self, field: &str) -> Result<&[u8], String> {
        self.find(field).ok_or_else(|| format!("field {field} is missing"))
    }

    fn text(&self, field: &str) -> Result<&str, String> {
        std::str::from_utf8(self.bytes(field)?).map_err(|e| format!("field {field}: {e}"))
    }

    fn number<T: FromStr<Err: Display>>(&self, field: &str) -> Result<T, String> {
        self.text(field)?.parse().map_err(|e| format!("field {field}: {e}"))
    }

    /// A word that serde knows.
    fn word<T: for<'de> Deserialize<'de>>(&self, field: &str) -> Result<T, String> {
        let json = serde_json::Value::from(self.text(field)?);
        T::deserialize(json).map_err(|e| format!("field {field}: {e}"))
    }

    fn time(&self, field: &str) -> Result<Timestamp, String> {
        let parse =
            |(sec, nsec): (&str, &str)| Some(Timestamp { sec: sec.parse().ok()?, nsec: nsec.parse().ok()? });
        let text = self.text(field)?;
        text.split_once('.').and_then(parse).ok_or_else(|| format!("field {field}: {text:?} is no time"))
    }

    fn json<T: DeserializeOwned>(&self, field: &str) -> Result<T, String> {
        serde_json::from_slice(self.bytes(field)?).map_err(|e| format!("field {field}: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_fields_make_read_panic(
            fields in proptest::collection::vec(
                ("kind|mode|atime|version|name|parent|size|holders|locks|state", "[a-z0-9.\\[\\]{}-]{0,8}"), 0..9),
        ) {
            let fields: Vec<_> = fields.into_iter().map(|(a, b)| (a.into_bytes(), b.into_bytes())).collect();
            for key in ["volume", "node:1", "entry:1:a", "content:1", "session:00000000000000ab", "lock:a", "advisory:1"] {
                let _ = read(&key.parse().unwrap(), &fields);
            }
        }

        #[test]
        fn no_text_makes_read_entry_panic(text in any::<Vec<u8>>()) {
            let _ = read_entry(&text);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let key = Key::Orphan(Ino(1));
        assert_eq!(read(&key, &[]), Err("field session is missing".to_owned()));
        let bad = [(b"session".to_vec(), b"x".to_vec())];
        assert!(read(&key, &bad).unwrap_err().starts_with("field session: "));
    }
}
