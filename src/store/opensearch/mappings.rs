//! What an index is made with: settings that the promises rest on, and types that people can query by.
//!
//! `dynamic` is off: what is not named here is kept as it is and not indexed. So no document is refused because of a field,
//! and an index does not grow fields.

use serde_json::{Value, json};

use super::address::Flavour;
use super::ids::INTENT;
use crate::document::Kind;

/// Pages are of at most so many documents.
pub(super) const PAGE_MAX: usize = 100_000;

/// The settings and mappings of the index of a kind.
pub(super) fn index(kind: &str, flavour: Flavour) -> Value {
    let mut settings = json!({
        // One shard, since a page must be of one instant.
        "number_of_shards": 1,
        // A copy as soon as there is a second node.
        "auto_expand_replicas": "0-1",
        // On the disks of all copies before it is acknowledged.
        "translog.durability": "request",
        "max_result_window": PAGE_MAX,
    });
    if flavour == Flavour::OpenSearch {
        // The other kind has copies that answer with what they have not been told yet.
        settings["replication.type"] = "DOCUMENT".into();
    }
    let mut properties = of(kind);
    properties["key"] = keyword_of_any_length();
    properties["version"] = long();
    properties["mark"] =
        json!({ "properties": { "session": keyword(), "number": long(), "change": keyword() } });
    json!({
        "settings": { "index": settings },
        "mappings": { "dynamic": false, "properties": properties },
    })
}

fn of(kind: &str) -> Value {
    let time = || json!({ "properties": { "sec": long(), "nsec": long() } });
    match kind {
        _ if kind == INTENT => {
            json!({ "session": keyword(), "slot": long(), "number": long(), "state": keyword() })
        }
        _ if kind == Kind::Node.name() => json!({
            "ino": long(),
            "node": { "properties": {
                "mode": long(), "uid": long(), "gid": long(), "nlink": long(),
                "atime": time(), "mtime": time(), "ctime": time(), "btime": time(),
                "body": { "properties": {
                    "regular": { "properties": { "size": long(), "blocks": long(), "place": keyword() } },
                    "directory": { "properties": { "parent": long(), "name": keyword(), "children": long() } },
                    "symlink": { "properties": { "target": keyword() } },
                } },
            } },
        }),
        _ if kind == Kind::Entry.name() => json!({
            "parent": long(),
            "name": keyword(),
            "entry": { "properties": { "ino": long(), "kind": keyword() } },
        }),
        _ if kind == Kind::Content.name() => json!({
            "ino": long(),
            "content": { "properties": { "text": { "type": "text" } } },
        }),
        _ if kind == Kind::Chunk.name() => json!({ "ino": long(), "index": long() }),
        _ if kind == Kind::Xattr.name() => json!({ "ino": long(), "name": keyword() }),
        _ if kind == Kind::Lock.name() => {
            let claims =
                || json!({ "properties": { "session": keyword(), "mode": keyword(), "purpose": keyword() } });
            json!({
                "lock_type": keyword(), "lock_count": long(), "path": keyword(),
                "holders": claims(), "waiters": claims(),
            })
        }
        _ if kind == Kind::Session.name() => json!({
            "session": { "properties": {
                "id": keyword(), "host": keyword(), "boot_id": keyword(), "pid": long(), "mount_point": keyword(),
                "lease_ms": long(), "heartbeat": long(), "state": keyword(),
            } },
        }),
        _ if kind == Kind::Orphan.name() => {
            json!({ "ino": long(), "orphan": { "properties": { "session": keyword() } } })
        }
        _ => json!({ "ino": long() }),
    }
}

/// A greater one is kept, and not found.
fn long() -> Value {
    json!({ "type": "long", "ignore_malformed": true })
}

/// Longer ones are kept, and not found.
fn keyword() -> Value {
    json!({ "type": "keyword", "ignore_above": 8191 })
}

fn keyword_of_any_length() -> Value {
    json!({ "type": "keyword" })
}
