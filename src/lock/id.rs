//! The id of a lock: an absolute path inside the volume, and the name of its document.
//!
//! Owns what a valid path is, the global order, and the URL-encoded form. Imports only the layer's error.
//!
//! What is hard:
//! 1. The order must be total and put every ancestor before its descendants, for that is why no two renames can wait
//!    for each other. Plain byte order of the whole path does: an ancestor is a proper prefix of its descendants, and a
//!    proper prefix sorts first. (Subtrees need not be contiguous in it: `/a-b` sorts between `/a` and `/a/b`. Nothing
//!    relies on that.)
//! 2. One path has one document id and one only, so [`LockId::parse`] refuses every spelling but the canonical one.
//! 3. Some engines bound the length of an id, and paths are longer. [`LockId::document_id`] then ends in a hash.
//! 4. A rename names some eighteen paths, most of them prefixes of two, so an ancestor shares its descendant's bytes.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use xxhash_rust::xxh3::xxh3_128;

use super::error::LockError;

/// Everything but the unreserved characters of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Between the prefix and the hash of a shortened document id. No canonical id has it.
const SHORTENED: char = '=';

/// The digits of a shortened id's hash: XXH3-128 in hexadecimal.
const HASH_DIGITS: usize = 32;

/// The path that a lock stands for, for example `/clinton/projects`.
///
/// It begins with `/`; its components are arbitrary bytes except `/` and NUL, never empty, `.` or `..`. The root, `/`,
/// is an id too, so that every directory has one; only the strategy `global` locks it.
///
/// The order is that of the bytes of the path; every ancestor sorts before its descendants. Cloning copies no bytes.
#[derive(Clone)]
pub struct LockId {
    /// A path that begins with this id's own; an ancestor shares the bytes of the path that it was taken from.
    bytes: Arc<[u8]>,
    /// How much of `bytes` is this id's path.
    len: usize,
}

impl LockId {
    /// The id of the volume's root.
    pub fn root() -> LockId {
        LockId { bytes: Arc::from(&b"/"[..]), len: 1 }
    }

    /// The id of an absolute path, for example `b"/clinton/projects"`.
    ///
    /// # Errors
    /// [`LockError::InvalidPath`] if the path is not absolute, ends in a slash, or has a component that is empty, `.`,
    /// `..` or contains NUL.
    pub fn from_path(path: &[u8]) -> Result<LockId, LockError> {
        let invalid = |reason| LockError::InvalidPath { path: printable(path).into(), reason };
        let Some(rest) = path.strip_prefix(b"/") else {
            return Err(invalid("it does not begin with a slash"));
        };
        if !rest.is_empty() {
            for name in rest.split(|byte| *byte == b'/') {
                check_name(name).map_err(invalid)?;
            }
        }
        Ok(LockId { bytes: Arc::from(path), len: path.len() })
    }

    /// The id of the path with these components, from the root down; no components make the root.
    ///
    /// # Errors
    /// [`LockError::InvalidPath`] if a component is empty, `.`, `..`, or contains a slash or NUL.
    pub fn from_components<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> Result<LockId, LockError> {
        let mut path = Vec::with_capacity(128);
        for name in names {
            check_component(name)?;
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            return Ok(LockId::root());
        }
        let len = path.len();
        Ok(LockId { bytes: Arc::from(path), len })
    }

    /// The id of `name` in the directory that this is the path of.
    ///
    /// # Errors
    /// [`LockError::InvalidPath`] if the name is empty, `.`, `..`, or contains a slash or NUL.
    pub fn join(&self, name: &[u8]) -> Result<LockId, LockError> {
        check_component(name)?;
        let above = if self.is_root() { &[] } else { self.as_bytes() };
        let path: Arc<[u8]> = [above, b"/", name].concat().into();
        Ok(LockId { len: path.len(), bytes: path })
    }

    /// The id of the directory that the path is in; `None` for the root.
    pub fn parent(&self) -> Option<LockId> {
        let slash = self.as_bytes().iter().rposition(|byte| *byte == b'/')?;
        match slash {
            _ if self.is_root() => None,
            0 => Some(LockId::root()),
            len => Some(LockId { bytes: Arc::clone(&self.bytes), len }),
        }
    }

    /// Reads a document id back: `%2Fclinton` is the lock of `/clinton`.
    ///
    /// # Errors
    /// [`LockError::InvalidId`] if the text is not the URL-encoded form of a valid path, or not its canonical form
    /// (upper-case digits, nothing encoded that need not be); the error then holds the canonical one.
    pub fn parse(encoded: &str) -> Result<LockId, LockError> {
        if let Some((_, hash)) = encoded.rsplit_once(SHORTENED) {
            let is_hash = hash.len() == HASH_DIGITS && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
            if is_hash {
                let reason = "it was shortened to end in a hash; the lock document itself has the path";
                return Err(LockError::InvalidId {
                    id: printable(encoded.as_bytes()).into(),
                    reason: reason.to_owned(),
                });
            }
        }
        let decoded: Vec<u8> = percent_decode_str(encoded).collect();
        let id = LockId::from_path(&decoded).map_err(|error| match error {
            LockError::InvalidPath { reason, .. } => {
                LockError::InvalidId { id: printable(encoded.as_bytes()).into(), reason: reason.to_owned() }
            }
            other => other,
        })?;
        let canonical = id.encoded();
        if canonical != encoded {
            return Err(LockError::InvalidId {
                id: printable(encoded.as_bytes()).into(),
                reason: format!("this path is written {canonical}"),
            });
        }
        Ok(id)
    }

    /// The id of the lock document: the path with every byte but `A-Z a-z 0-9 - . _ ~` as `%XX`.
    pub fn encoded(&self) -> String {
        let bytes = self.as_bytes();
        // Room for most paths: slashes are escaped, and not much else.
        let mut id = String::with_capacity(bytes.len() * 2);
        id.extend(percent_encode(bytes, ENCODED));
        id
    }

    /// The id of the lock document where ids have at most `bytes_max` bytes: [`LockId::encoded`] if that is short enough;
    /// else as much of it as fits, without cutting an escape in two, then `=` and the XXH3-128 hash of the whole path as 32
    /// hexadecimal digits. Never longer than `bytes_max`, which is 33 at least.
    ///
    /// Two paths have the same id only if their hashes collide, which is not to be expected; they then share a lock, and
    /// that excludes more than it need, never less. The path stands in the document, so nothing is read back from the hash.
    pub fn document_id(&self, bytes_max: usize) -> String {
        let mut id = self.encoded();
        if id.len() <= bytes_max {
            return id;
        }
        let fits = bytes_max.saturating_sub(1 + HASH_DIGITS);
        // An escape is three bytes: cut before it if fewer of them fit.
        let cut = (fits.saturating_sub(2)..fits).find(|at| id.as_bytes().get(*at) == Some(&b'%'));
        id.truncate(cut.unwrap_or(fits));
        let _ = write!(id, "{SHORTENED}{:0HASH_DIGITS$x}", xxh3_128(self.as_bytes()));
        id
    }

    /// The path.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }

    /// The path on one line, for people, as it is displayed.
    pub fn printable(&self) -> Cow<'_, str> {
        printable(self.as_bytes())
    }

    /// Whether this is the volume's root.
    pub fn is_root(&self) -> bool {
        self.len == 1
    }

    /// Whether `other` lies somewhere below this path. No path is its own ancestor.
    pub fn is_ancestor_of(&self, other: &LockId) -> bool {
        match other.as_bytes().strip_prefix(self.as_bytes()) {
            Some(rest) if self.is_root() => !rest.is_empty(),
            Some(rest) => rest.first() == Some(&b'/'),
            None => false,
        }
    }

    /// The ancestors, from the top down, without the root and without the path itself; so in the global order.
    pub fn ancestors(&self) -> impl Iterator<Item = LockId> + '_ {
        let slashes = self.as_bytes().iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/');
        slashes.map(|(at, _)| LockId { bytes: Arc::clone(&self.bytes), len: at })
    }
}

fn check_component(name: &[u8]) -> Result<(), LockError> {
    let checked = if name.contains(&b'/') { Err("it contains a slash") } else { check_name(name) };
    checked.map_err(|reason| LockError::InvalidPath { path: printable(name).into(), reason })
}

fn check_name(name: &[u8]) -> Result<(), &'static str> {
    match name {
        b"" => Err("a component is empty"),
        b"." | b".." => Err("a component is \".\" or \"..\""),
        _ if name.contains(&0) => Err("it contains a NUL byte"),
        _ => Ok(()),
    }
}

/// Bytes as one line of text for people: what is not UTF-8 is replaced, control characters are escaped.
pub fn printable(bytes: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(bytes);
    // Nearly every path, and every rename describes two.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
    out.into()
}

impl PartialEq for LockId {
    fn eq(&self, other: &LockId) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for LockId {}

impl PartialOrd for LockId {
    fn partial_cmp(&self, other: &LockId) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LockId {
    fn cmp(&self, other: &LockId) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for LockId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

/// The path on one line, for people: not reversible. [`LockId::encoded`] is.
impl fmt::Display for LockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.printable())
    }
}

impl fmt::Debug for LockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        write!(f, "{}", self.as_bytes().escape_ascii())?;
        f.write_char('"')
    }
}

/// As the document id.
impl Serialize for LockId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&percent_encode(self.as_bytes(), ENCODED))
    }
}

impl<'de> Deserialize<'de> for LockId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LockId, D::Error> {
        let text = String::deserialize(deserializer)?;
        LockId::parse(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn id(path: &str) -> LockId {
        LockId::from_path(path.as_bytes()).unwrap()
    }

    #[test]
    fn a_path_has_one_document_id() {
        let table: &[(&[u8], &str)] = &[
            (b"/", "%2F"),
            (b"/clinton", "%2Fclinton"),
            (b"/clinton/projects", "%2Fclinton%2Fprojects"),
            (b"/a-b_c.d~e", "%2Fa-b_c.d~e"),
            (b"/100% +&?", "%2F100%25%20%2B%26%3F"),
            ("/é".as_bytes(), "%2F%C3%A9"),
            (b"/\xff\n", "%2F%FF%0A"),
            (b"/...", "%2F..."),
        ];
        for (path, encoded) in table {
            let id = LockId::from_path(path).unwrap();
            assert_eq!(id.encoded(), *encoded);
            assert_eq!(LockId::parse(encoded).unwrap(), id);
            assert_eq!(serde_json::from_str::<LockId>(&serde_json::to_string(&id).unwrap()).unwrap(), id);
        }
    }

    #[test]
    fn what_is_no_path_is_refused_with_its_reason() {
        let table: &[(&[u8], &str)] = &[
            (b"", "slash"),
            (b"a", "slash"),
            (b"/a/", "empty"),
            (b"//", "empty"),
            (b"//a", "empty"),
            (b"/a//b", "empty"),
            (b"/./a", "\".\""),
            (b"/a/..", "\"..\""),
            (b"/a\0b", "NUL"),
        ];
        for (path, reason) in table {
            let error = LockId::from_path(path).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        assert!(LockId::from_components([&b"a/b"[..]]).is_err());
        assert!(LockId::from_components([&b""[..]]).is_err());
    }

    #[test]
    fn other_spellings_of_a_document_id_are_refused_and_the_right_one_is_named() {
        for spelling in ["%2fclinton", "/clinton", "%2F%63linton"] {
            let error = LockId::parse(spelling).unwrap_err().to_string();
            assert!(error.contains("%2Fclinton"), "{error}");
        }
        for nonsense in ["", "clinton", "%2Fa%2F", "%2F%00", "%2", "%zz"] {
            assert!(LockId::parse(nonsense).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn a_long_id_is_cut_between_two_escapes_and_ends_in_a_hash() {
        let path = format!("/{}", "\u{e9}".repeat(30));
        let long = LockId::from_path(path.as_bytes()).unwrap();
        let hash = format!("={:032x}", xxh3_128(path.as_bytes()));
        let table = [(33, ""), (35, ""), (36, "%2F"), (38, "%2F"), (39, "%2F%C3"), (42, "%2F%C3%A9")];
        for (bytes_max, prefix) in table {
            assert_eq!(long.document_id(bytes_max), format!("{prefix}{hash}"));
        }
        assert_eq!(long.document_id(long.encoded().len()), long.encoded());
        assert_eq!(id("/clinton").document_id(33), "%2Fclinton");
        let error = LockId::parse(&long.document_id(99)).unwrap_err().to_string();
        assert!(error.contains("shortened"), "{error}");
    }

    #[test]
    fn long_paths_that_begin_alike_have_ids_of_their_own() {
        let mut seen = std::collections::BTreeSet::new();
        for depth in 1..40 {
            for name in ["x", "y", "x%", "x="] {
                let path = format!("{}/{name}", "/a directory".repeat(depth));
                let document = id(&path).document_id(512);
                assert!(document.len() <= 512);
                assert!(seen.insert(document), "{path}");
            }
        }
        assert!(seen.iter().any(|id| id.contains(SHORTENED)), "no id was shortened");
    }

    #[test]
    fn ancestors_are_named_from_the_top_without_the_root() {
        let deep = id("/a/bc/d");
        assert_eq!(deep.ancestors().collect::<Vec<_>>(), [id("/a"), id("/a/bc")]);
        assert_eq!(id("/a").ancestors().count(), 0);
        assert_eq!(LockId::root().ancestors().count(), 0);
        assert!(LockId::root().is_ancestor_of(&deep));
        assert!(id("/a/bc").is_ancestor_of(&deep));
        assert!(!id("/a/b").is_ancestor_of(&deep), "a name that begins alike is no ancestor");
        assert!(!deep.is_ancestor_of(&deep));
        assert!(!LockId::root().is_ancestor_of(&LockId::root()));
        assert_eq!(LockId::from_components([&b"a"[..], b"bc", b"d"]).unwrap(), deep);
        assert_eq!(LockId::from_components([]).unwrap(), LockId::root());
        assert_eq!(id("/a/bc").join(b"d").unwrap(), deep);
        assert_eq!(LockId::root().join(b"a").unwrap(), id("/a"));
        assert!(deep.join(b"a/b").is_err() && deep.join(b"..").is_err());
        assert_eq!(deep.parent(), Some(id("/a/bc")));
        assert_eq!((id("/a").parent(), LockId::root().parent()), (Some(LockId::root()), None));
    }

    #[test]
    fn a_line_for_people_stays_one_line() {
        assert_eq!(id("/a\nb\u{1b}[2J").to_string(), "/a\\nb\\u{1b}[2J");
    }

    /// Few and awkward bytes: the ones that sort around the slash, one that is encoded, one that is not UTF-8.
    fn names() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let byte =
            prop_oneof![Just(b'-'), Just(b'.'), Just(b'0'), Just(b'a'), Just(1), Just(0xff), Just(b'%')];
        let name = vec(byte, 1..4).prop_filter("dots", |name| name != b"." && name != b"..");
        vec(name, 0..5)
    }

    proptest! {
        #[test]
        fn encoding_and_parsing_are_inverse(names in names()) {
            let id = LockId::from_components(names.iter().map(Vec::as_slice)).unwrap();
            prop_assert_eq!(LockId::parse(&id.encoded()).unwrap(), id);
        }

        #[test]
        fn every_ancestor_sorts_before_its_descendants(one in names(), other in names()) {
            let one = LockId::from_components(one.iter().map(Vec::as_slice)).unwrap();
            let other = LockId::from_components(other.iter().map(Vec::as_slice)).unwrap();
            if one.is_ancestor_of(&other) {
                prop_assert!(one < other);
            }
            let mut last = LockId::root();
            for ancestor in one.ancestors().chain([one.clone()]).filter(|id| !id.is_root()) {
                prop_assert!(last < ancestor && last.is_ancestor_of(&ancestor));
                last = ancestor;
            }
            prop_assert_eq!(one.cmp(&other), one.as_bytes().cmp(other.as_bytes()));
        }

        #[test]
        fn any_text_is_parsed_or_refused_without_panic(text in ".*") {
            if let Ok(id) = LockId::parse(&text) {
                prop_assert_eq!(id.encoded(), text);
            }
        }
    }
}
