//! Which index a cell is in, and under which id. Pure.
//!
//! What is hard: an id is text of at most 512 bytes. Ids are what people look for (`1:README.txt`, `/clinton`) wherever that
//! fits; a longer one is the SHA-256 of the key behind a `#`, which no other id begins with, and the document itself says
//! which key it stands under.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::document::{Key, Kind, text};
use crate::store::cells::CellKey;

/// The longest id that the servers take.
const ID_BYTES_MAX: usize = 512;
/// The kind of intents, which are no documents of the volume.
pub(super) const INTENT: &str = "intent";

/// The last part of the name of the index that has this cell.
pub(super) fn index(key: &CellKey) -> &'static str {
    match key {
        CellKey::Document(key) => key.kind().name(),
        CellKey::Lock(_) => Kind::Lock.name(),
        CellKey::Slot(..) => INTENT,
    }
}

/// The last parts of the names of all indices of a volume. The volume's own is the last: it is made last.
pub(super) fn indices() -> impl Iterator<Item = &'static str> {
    let volume = Kind::Volume.name();
    let others = Kind::ALL.into_iter().map(Kind::name).filter(move |name| *name != volume);
    others.chain([INTENT, volume])
}

/// The id of this cell in its index.
pub(super) fn id(key: &CellKey) -> String {
    let id = match key {
        CellKey::Slot(session, slot) => format!("{session}:{slot}"),
        CellKey::Lock(id) | CellKey::Document(Key::Lock(id)) => lock(id),
        CellKey::Document(Key::Volume) => Kind::Volume.name().to_owned(),
        CellKey::Document(key) => {
            let text = key.to_string();
            text.split_once(':').map_or(text.clone(), |(_, rest)| rest.to_owned())
        }
    };
    if id.len() <= ID_BYTES_MAX { id } else { format!("#{}", hex(&Sha256::digest(sorted(key)))) }
}

/// The id of a lock: the path itself, which a URL has as `%2Fclinton`. One that is no text, or was shortened and is no path,
/// stays URL-encoded; such an id does not begin with a slash, as paths do.
fn lock(id: &str) -> String {
    match String::from_utf8(text::decode(id)) {
        Ok(path) if path.starts_with('/') && text::encode(path.as_bytes()) == id => path,
        _ => id.to_owned(),
    }
}

/// The bytes of a key: unique in its index, and in the order of its range.
fn sorted(key: &CellKey) -> Vec<u8> {
    match key {
        CellKey::Document(key) => key.encode(),
        CellKey::Lock(id) => id.as_bytes().to_vec(),
        CellKey::Slot(session, slot) => [&session.0.to_be_bytes()[..], &slot.to_be_bytes()].concat(),
    }
}

/// What the field `key` of a cell has.
pub(super) fn sort_key(key: &CellKey) -> String {
    hex(&sorted(key))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // A string takes all.
        text
    })
}

/// The bytes that [`hex`] wrote.
pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    if !digits.len().is_multiple_of(2) || digits.contains(&b'+') {
        return None;
    }
    digits.chunks(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Ino, Name, SessionId};

    #[test]
    fn ids_are_what_people_look_for() {
        let name = |bytes: &[u8]| Name::new(bytes).unwrap();
        for (key, index_is, id_is) in [
            (CellKey::Document(Key::Volume), "volume", "volume"),
            (CellKey::Document(Key::Node(Ino(7))), "node", "7"),
            (CellKey::Document(Key::Entry(Ino(1), name(b"a:b \xff"))), "entry", "1:a%3Ab%20%FF"),
            (CellKey::Document(Key::Lock("%2Fclinton".into())), "lock", "/clinton"),
            (CellKey::Lock("%2Fclinton%2Fa%20b".into()), "lock", "/clinton/a b"),
            (CellKey::Lock("%2F%FF".into()), "lock", "%2F%FF"),
            (CellKey::Lock("%2Fa%3Db".into()), "lock", "/a=b"),
            (CellKey::Lock("%2Fa=b".into()), "lock", "%2Fa=b"),
            (CellKey::Slot(SessionId(0xab), 3), "intent", "00000000000000ab:3"),
        ] {
            assert_eq!((index(&key), &*id(&key)), (index_is, id_is));
        }
    }

    #[test]
    fn long_ids_are_short_and_differ() {
        let long = |last: u8| {
            let mut bytes = vec![0xff; 254];
            bytes.push(last);
            id(&CellKey::Document(Key::Entry(Ino(1), Name::new(&bytes).unwrap())))
        };
        assert!(long(b'a').starts_with('#') && long(b'a').len() <= ID_BYTES_MAX);
        assert_ne!(long(b'a'), long(b'b'));
        let path = "%2F".repeat(600);
        assert!(id(&CellKey::Lock(path.as_str().into())).starts_with('#'));
    }

    #[test]
    fn hexadecimal_keeps_the_order_and_comes_back() {
        assert_eq!(unhex(&hex(&[0, 0x7f, 0xff])), Some(vec![0, 0x7f, 0xff]));
        for bad in ["0", "+1", "0g", "é"] {
            assert_eq!(unhex(bad), None, "{bad}");
        }
        assert!(hex(&[1, 0xff]) < hex(&[2]));
    }
}
