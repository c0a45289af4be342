//! Pages of a range, as `scan.lua` is asked for them and answers. Pure.

use redis::Value;

use super::decode;
use super::names::{self, Names};
use super::request::Arguments;
use crate::document::{Key, Kind};
use crate::store::{Range, Scan, ScanItem, Start, StoreError};

/// No page is longer, whatever the limit.
const PAGE_MAX: usize = 1 << 30;

fn kind(range: Range) -> Kind {
    match range {
        Range::All(kind) => kind,
        Range::Entries(_) => Kind::Entry,
        Range::Xattrs(_) => Kind::Xattr,
        Range::Chunks(_) => Kind::Chunk,
    }
}

pub(super) fn request(names: &Names, scan: &Scan, keys_only: bool) -> Arguments {
    let kind = kind(scan.range);
    let group = match scan.range {
        Range::All(_) => None,
        Range::Entries(ino) | Range::Xattrs(ino) | Range::Chunks(ino) => Some(ino),
    };
    let form = match group {
        Some(_) => "group",
        None if names::has_groups(kind) => "groups",
        None => "flat",
    };
    let index = names.index(kind, group);
    let (begin_in, from) = match &scan.start {
        Start::After(key) => (names::group(key), [b"(".to_vec(), names::member(key)].concat()),
        Start::At(position) if matches!(scan.range, Range::Entries(_)) => {
            (None, format!("[{}", names::position(*position)).into_bytes())
        }
        Start::At(_) | Start::First => (None, b"-".to_vec()),
    };
    let group = group.or(begin_in).map_or_else(String::new, |ino| names::Digits(ino.0).to_string());
    Arguments::default()
        .key(index)
        .arg(names.tag())
        .arg(kind.name())
        .arg(form)
        .arg(group)
        .bytes(&from)
        .arg(scan.limit.clamp(1, PAGE_MAX))
        .arg(u8::from(matches!(scan.range, Range::Entries(_))))
        .arg(u8::from(keys_only))
}

pub(super) fn keys(range: Range, answer: Value) -> Result<Vec<Key>, StoreError> {
    let kind = kind(range);
    let mut items = items(kind, answer)?.into_iter();
    let mut keys = Vec::with_capacity(items.len() / 2);
    while let (Some(group), Some(member)) = (items.next(), items.next()) {
        keys.push(key(kind, group, member)?);
    }
    Ok(keys)
}

fn damaged(kind: Kind, cause: String) -> StoreError {
    StoreError::Damaged { key: format!("the index of {}", kind.name()), cause }
}

fn items(kind: Kind, answer: Value) -> Result<Vec<Value>, StoreError> {
    match answer {
        Value::Array(items) => Ok(items),
        other => Err(damaged(kind, format!("the server sent {other:?}"))),
    }
}

fn key(kind: Kind, group: Value, member: Value) -> Result<Key, StoreError> {
    let (Value::BulkString(group), Value::BulkString(member)) = (group, member) else {
        return Err(damaged(kind, "the server sent a member that is no text".to_owned()));
    };
    let not_a_key =
        || damaged(kind, format!("{} is no key", String::from_utf8_lossy(&member).escape_debug()));
    names::key(kind, &group, &member).ok_or_else(not_a_key)
}

pub(super) fn page(range: Range, answer: Value) -> Result<Vec<ScanItem>, StoreError> {
    let kind = kind(range);
    let mut items = items(kind, answer)?.into_iter();
    let mut page = Vec::with_capacity(items.len() / 3);
    while let (Some(group), Some(member), Some(document)) = (items.next(), items.next(), items.next()) {
        let key = key(kind, group, member)?;
        let missing = |key: &Key| StoreError::Damaged {
            key: key.to_string(),
            cause: "the index lists it, and it is not there or of another type".to_owned(),
        };
        let found = decode(&key, document).and_then(|found| found.ok_or_else(|| missing(&key)));
        page.push((key, found));
    }
    Ok(page)
}
