//! The binary record of a document: what the embedded engine stores as a value.
//!
//! `[format: u8] [version: u64 LE] [document: postcard] [crc32: u32 LE]`. The checksum covers the encoded key too, so
//! that a record that strayed under another key is found out. The format byte comes first and alone decides whether the
//! rest is understood: a newer one is reported as such, whatever follows.

use postcard::ser_flavors::Flavor;

use super::{Document, FORMAT_VERSION, Key, Stored, Version};

const HEADER_LEN: usize = 1 + 8;
const CHECKSUM_LEN: usize = 4;

/// Why bytes are no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// Fewer bytes than any record has.
    #[error("the record is cut short ({0} bytes)")]
    Short(usize),
    /// Bytes were altered, or belong to another key.
    #[error("the checksum does not match")]
    Checksum,
    /// Written by a newer Lockwood.
    #[error("the record has format version {0}, newer than this program's {FORMAT_VERSION}")]
    Newer(u8),
    /// The checksum matches and still the bytes make no document.
    #[error("the record does not decode: {0}")]
    Malformed(String),
}

/// Writes a record, in the place of what is in `record`.
///
/// # Errors
/// [`CodecError::Malformed`] if the document cannot be encoded, which no document of this program brings about.
pub fn encode(
    record: &mut Vec<u8>,
    key: &[u8],
    version: Version,
    document: &Document,
) -> Result<(), CodecError> {
    record.clear();
    record.push(FORMAT_VERSION as u8);
    record.extend_from_slice(&version.0.to_le_bytes());
    postcard::serialize_with_flavor(document, Record(record))
        .map_err(|e| CodecError::Malformed(e.to_string()))?;
    let sum = checksum(key, record);
    record.extend_from_slice(&sum.to_le_bytes());
    Ok(())
}

/// A record under construction. (`postcard::to_extend` treats each byte as an iterator, and that takes twice as long.)
struct Record<'a>(&'a mut Vec<u8>);

impl Flavor for Record<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Reads a record that was stored under `key`.
///
/// # Errors
/// [`CodecError`] says what is wrong with it.
pub fn decode(key: &Key, record: &[u8]) -> Result<Stored, CodecError> {
    match record.first() {
        Some(&format) if u32::from(format) > FORMAT_VERSION => return Err(CodecError::Newer(format)),
        _ => {}
    }
    let short = || CodecError::Short(record.len());
    let (body, sum) = record.split_last_chunk::<CHECKSUM_LEN>().ok_or_else(short)?;
    let (header, payload) = body.split_first_chunk::<HEADER_LEN>().ok_or_else(short)?;
    if checksum(&key.encode(), body) != u32::from_le_bytes(*sum) {
        return Err(CodecError::Checksum);
    }
    let [_, version @ ..] = *header;
    let document: Document =
        postcard::from_bytes(payload).map_err(|e| CodecError::Malformed(e.to_string()))?;
    if document.kind() != key.kind() {
        return Err(CodecError::Malformed(format!("a {} under {key}", document.kind().name())));
    }
    Ok(Stored { version: Version(u64::from_le_bytes(version)), document: document.into() })
}

fn checksum(key: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(body);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{
        Body, Content, ContentPlace, Directory, Ino, Locking, Name, Node, Regular, Timestamp, Volume,
    };
    use proptest::prelude::*;

    fn encode(key: &[u8], version: Version, document: &Document) -> Result<Vec<u8>, CodecError> {
        let mut record = b"what was there".to_vec();
        super::encode(&mut record, key, version, document)?;
        Ok(record)
    }

    fn node(body: Body) -> Document {
        let t = Timestamp { sec: -5, nsec: 7 };
        Document::Node(Node {
            mode: 0o4755,
            uid: 1000,
            gid: 100,
            nlink: 3,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
            xattrs: 2,
            body,
        })
    }

    fn volume(content: Option<String>) -> Volume {
        Volume { content, ..Volume::empty("0".repeat(32), Locking::Tree, 4096, Timestamp::default()) }
    }

    fn samples() -> Vec<(Key, Document)> {
        let name = Name::new(b"\xff name").ok();
        vec![
            (Key::Node(Ino(9)), node(Body::Directory(Directory { parent: Ino(1), name, children: 4 }))),
            (
                Key::Node(Ino(8)),
                node(Body::Regular(Regular { size: u64::MAX >> 1, blocks: 8, place: ContentPlace::Backing })),
            ),
            (Key::Node(Ino(7)), node(Body::Symlink { target: b"../\xfe"[..].into() })),
            (Key::Content(Ino(8)), Document::Content(Content { bytes: vec![7; 4096].into() })),
            (Key::Volume, Document::Volume(volume(None))),
            (Key::Volume, Document::Volume(volume(Some("s3://bucket/prefix".to_owned())))),
        ]
    }

    #[test]
    fn documents_survive_records_and_json() {
        for (key, document) in samples() {
            let record = encode(&key.encode(), Version(42), &document).unwrap();
            let stored = decode(&key, &record).unwrap();
            assert_eq!((stored.version, &*stored.document), (Version(42), &document));
            let json = serde_json::to_string(&document).unwrap();
            assert_eq!(serde_json::from_str::<Document>(&json).unwrap(), document, "{json}");
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        for (key, document) in samples() {
            let record = encode(&key.encode(), Version(42), &document).unwrap();
            for at in (0..record.len()).step_by(7).chain(0..HEADER_LEN) {
                let mut bad = record.clone();
                bad[at] ^= 1 << (at % 8);
                assert!(decode(&key, &bad).is_err(), "byte {at}");
                assert!(decode(&key, &record[..at]).is_err(), "cut at {at}");
            }
        }
    }

    #[test]
    fn a_newer_format_and_a_stray_record_are_named() {
        let (key, document) = samples().remove(0);
        let mut record = encode(&key.encode(), Version(1), &document).unwrap();
        assert_eq!(decode(&Key::Node(Ino(10)), &record), Err(CodecError::Checksum));
        record[0] = 2;
        assert_eq!(decode(&key, &record), Err(CodecError::Newer(2)));
    }

    proptest! {
        #[test]
        fn no_bytes_make_decode_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(decode(&Key::Volume, &bytes).is_err());
        }
    }
}
