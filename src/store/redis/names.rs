//! Where a document stands in Redis, and where its key stands in an index. Pure.
//!
//! Every key begins with `{PREFIX}:`. The braces make it a hash tag, so that a cluster keeps one volume in one slot. Behind
//! it stands the document's name as people write it (`node:17`), each a hash of its own; only the entries of a directory
//! are the fields of one hash (`entry:17`). Indexes are sorted sets whose members all have the score 0, which Redis then
//! keeps in the order of their bytes. A member is written so that this order is the one of [`Key::encode`] and people can
//! read it: numbers with as many digits as there can be, the place of an entry before its name. Kinds whose keys begin with
//! an inode have an index for each inode, their *group*, and one of all groups.

use std::fmt::{self, Display};
use std::io::{self, Write};

use redis::{Cmd, RedisWrite as _};

use crate::document::{EntryPosition, Ino, Key, Kind, Name, SessionId};

/// The keys of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    tag: String,
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        Self { tag: format!("{{{prefix}}}:") }
    }

    /// What all keys begin with.
    pub(super) fn tag(&self) -> &str {
        &self.tag
    }

    /// The key of something that is no document.
    pub(super) fn other(&self, name: &str) -> String {
        format!("{}{name}", self.tag)
    }

    /// The channel of the notices.
    pub(super) fn channel(&self) -> String {
        self.other("notices")
    }

    /// The index of a kind: of its documents or, if it has groups, of these; or of one group.
    pub(super) fn index(&self, kind: Kind, group: Option<Ino>) -> Index<'_> {
        Index { tag: &self.tag, kind, group }
    }

    /// Adds the key of the hash in which a document stands.
    pub(super) fn add_document(&self, to: &mut Cmd, key: &Key) {
        match key {
            Key::Entry(parent, _) => {
                to.write_arg_fmt(format_args!("{}{}:{parent}", self.tag, key.kind().name()));
            }
            _ => to.write_arg_fmt(format_args!("{}{key}", self.tag)),
        }
    }

    /// Adds the key of the index that lists a document.
    pub(super) fn add_index(&self, to: &mut Cmd, key: &Key) {
        to.write_arg_fmt(self.index(key.kind(), group(key)));
    }

    /// Adds the key of the index of groups that lists the group of a document, if it has one.
    pub(super) fn add_groups(&self, to: &mut Cmd, key: &Key) {
        if group(key).is_some() {
            to.write_arg_fmt(self.index(key.kind(), None));
        }
    }
}

/// The key of an index, to be written out.
pub(super) struct Index<'a> {
    tag: &'a str,
    kind: Kind,
    group: Option<Ino>,
}

impl Display for Index<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}index:{}", self.tag, self.kind.name())?;
        self.group.map_or(Ok(()), |group| write!(f, ":{group}"))
    }
}

/// A number as a member: its order as text is its order.
pub(super) struct Digits(pub(super) u64);

impl Display for Digits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// As many as the greatest number has.
        const DIGITS: usize = 20;
        write!(f, "{:0DIGITS$}", self.0)
    }
}

/// The field that is the document; empty if all fields of the hash are.
pub(super) fn field(key: &Key) -> &[u8] {
    match key {
        Key::Entry(_, name) => name.as_bytes(),
        _ => &[],
    }
}

/// The inode that the key begins with, in the kinds that have groups.
pub(super) fn group(key: &Key) -> Option<Ino> {
    match key {
        Key::Entry(ino, _) | Key::Xattr(ino, _) | Key::Chunk(ino, _) => Some(*ino),
        _ => None,
    }
}

pub(super) fn has_groups(kind: Kind) -> bool {
    matches!(kind, Kind::Entry | Kind::Xattr | Kind::Chunk)
}

/// What the members of entries at or behind a place begin at.
pub(super) fn position(position: EntryPosition) -> String {
    format!("{:016x}", position.0)
}

/// The member of a key in the index of its kind, or of its group.
pub(super) fn member(key: &Key) -> Vec<u8> {
    let mut member = Vec::new();
    let _ = write_member(&mut member, key); // Memory takes everything.
    member
}

/// Adds the member of a key.
pub(super) fn add_member(to: &mut Cmd, key: &Key) {
    let _ = write_member(&mut to.writer_for_next_arg(), key); // As above.
}

/// Adds the member of its group in the index of groups; empty if it has none.
pub(super) fn add_group(to: &mut Cmd, key: &Key) {
    match group(key) {
        Some(ino) => to.write_arg_fmt(Digits(ino.0)),
        None => to.write_arg(&[]),
    }
}

fn write_member(to: &mut impl Write, key: &Key) -> io::Result<()> {
    match key {
        Key::Volume => to.write_all(key.kind().name().as_bytes()),
        Key::Node(ino) | Key::Content(ino) | Key::Orphan(ino) | Key::Advisory(ino) => {
            write!(to, "{}", Digits(ino.0))
        }
        Key::Chunk(_, index) => write!(to, "{}", Digits(*index)),
        Key::Session(id) => write!(to, "{id}"),
        Key::Lock(id) => to.write_all(id.as_bytes()),
        Key::Xattr(_, name) => to.write_all(name),
        Key::Entry(_, name) => {
            write!(to, "{}:", position(EntryPosition::of(name.as_bytes())))?;
            to.write_all(name.as_bytes())
        }
    }
}

/// The key whose member this is; the group counts in kinds that have groups.
pub(super) fn key(kind: Kind, group: &[u8], member: &[u8]) -> Option<Key> {
    let ino = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse().ok().map(Ino);
    let key = match kind {
        Kind::Volume => Key::Volume,
        Kind::Node => Key::Node(ino(member)?),
        Kind::Content => Key::Content(ino(member)?),
        Kind::Orphan => Key::Orphan(ino(member)?),
        Kind::Advisory => Key::Advisory(ino(member)?),
        Kind::Session => Key::Session(std::str::from_utf8(member).ok()?.parse::<SessionId>().ok()?),
        Kind::Lock => format!("lock:{}", std::str::from_utf8(member).ok()?).parse().ok()?,
        Kind::Chunk => Key::Chunk(ino(group)?, ino(member)?.0),
        Kind::Xattr => Key::Xattr(ino(group)?, member.into()),
        Kind::Entry => Key::Entry(ino(group)?, Name::new(member.get(17..)?).ok()?),
    };
    (self::member(&key) == member).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::request::given;
    use proptest::prelude::*;

    fn keys() -> impl Strategy<Value = Key> {
        let few = || prop_oneof![0_u64..3, any::<u64>()];
        let bytes = || proptest::collection::vec(any::<u8>(), 1..6);
        let name = bytes().prop_filter_map("a name", |b| Name::new(&b).ok());
        prop_oneof![
            Just(Key::Volume),
            few().prop_map(|i| Key::Node(Ino(i))),
            few().prop_map(|i| Key::Content(Ino(i))),
            few().prop_map(|i| Key::Orphan(Ino(i))),
            few().prop_map(|i| Key::Advisory(Ino(i))),
            few().prop_map(|i| Key::Session(SessionId(i))),
            (few(), few()).prop_map(|(i, n)| Key::Chunk(Ino(i), n)),
            "[%A-Za-z0-9._~=-]{1,6}".prop_map(|id| Key::Lock(id.into())),
            (few(), name).prop_map(|(i, n)| Key::Entry(Ino(i), n)),
            (few(), bytes()).prop_map(|(i, n)| Key::Xattr(Ino(i), n.into())),
        ]
    }

    proptest! {
        #[test]
        fn members_stand_in_the_order_of_encoded_keys(a in keys(), b in keys()) {
            let of = |key: &Key| (group(key).map(|ino| Digits(ino.0).to_string()), member(key));
            if a.kind() == b.kind() {
                prop_assert_eq!(of(&a).cmp(&of(&b)), a.encode().cmp(&b.encode()), "{} {}", a, b);
            }
        }

        #[test]
        fn keys_survive_being_members(a in keys()) {
            let ino = group(&a).map(|ino| Digits(ino.0).to_string()).unwrap_or_default();
            prop_assert_eq!(key(a.kind(), ino.as_bytes(), &member(&a)), Some(a));
        }

        #[test]
        fn no_member_makes_key_panic(bytes in proptest::collection::vec(any::<u8>(), 0..30)) {
            for kind in Kind::ALL {
                let _ = key(kind, &bytes, &bytes);
            }
        }
    }

    #[test]
    fn keys_can_be_read() {
        let names = Names::new("lockwood");
        let text = |key: &str| {
            let (key, mut place) = (key.parse::<Key>().unwrap(), Cmd::new());
            names.add_document(&mut place, &key);
            names.add_index(&mut place, &key);
            add_member(&mut place, &key);
            let texts = given(&place).map(|arg| String::from_utf8(arg.to_vec()).unwrap());
            texts.collect::<Vec<_>>()
        };
        let nodes = ["{lockwood}:node:17", "{lockwood}:index:node", "00000000000000000017"];
        assert_eq!(text("node:17"), nodes);
        assert_eq!(text("lock:%2Fclinton")[0], "{lockwood}:lock:%2Fclinton");
        let [key, index, member] = &text("entry:17:a%20b")[..] else { panic!() };
        assert_eq!((&**key, &**index), ("{lockwood}:entry:17", "{lockwood}:index:entry:17"));
        assert!(member.ends_with(":a b"), "{member}");
    }
}
