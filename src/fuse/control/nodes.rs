//! The control files: which there are, their names and their inode numbers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fuser::FileType;
use xxhash_rust::xxh3::xxh3_64;

use super::intents;
use crate::document::name::NAME_MAX;
use crate::document::{Key, Kind, SessionId};
use crate::lock::LockId;
use crate::namespace::Namespace;
use crate::store::{Range, Scan, Start};

/// Control files have the inode numbers from here on; files of the volume never reach them.
pub(super) const FIRST_INO: u64 = 1 << 63;
const FIRST_DYNAMIC_INO: u64 = FIRST_INO | 1 << 62;

/// One control file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ControlNode {
    Root,
    Locks,
    Sessions,
    Intents,
    Documents,
    Status,
    Check,
    /// Each look-up gets an inode of its own: the kernel lets one writer at a time at an inode, and a writer may wait.
    Hold(u64),
    /// The same.
    Break(u64),
    LockTable,
    Advisory,
    Lock(LockId),
    Session(SessionId),
    Intent(intents::Which),
    Document(Key),
}

const HOLD: &str = "hold";
const BREAK: &str = "break";

/// The number of the next look-up of a file that takes requests.
static NEXT_REQUEST: AtomicU64 = AtomicU64::new(0);

/// The files that take requests.
fn request(name: &str) -> Option<ControlNode> {
    let new: fn(u64) -> ControlNode = match name {
        HOLD => ControlNode::Hold,
        BREAK => ControlNode::Break,
        _ => return None,
    };
    Some(new(NEXT_REQUEST.fetch_add(1, Relaxed)))
}

const FIXED: [(ControlNode, &str); 9] = [
    (ControlNode::Root, super::NAME),
    (ControlNode::Locks, "locks"),
    (ControlNode::Sessions, "sessions"),
    (ControlNode::Intents, "intents"),
    (ControlNode::Documents, "documents"),
    (ControlNode::Status, "status"),
    (ControlNode::Check, "check"),
    (ControlNode::LockTable, "locks.json"),
    (ControlNode::Advisory, "advisory.json"),
];

impl ControlNode {
    /// The file that has this number whatever happens.
    pub(super) fn fixed(ino: u64) -> Option<Self> {
        let at = usize::try_from(ino.checked_sub(FIRST_INO)?).ok()?;
        FIXED.get(at).map(|(node, _)| node.clone())
    }

    pub(super) fn ino(&self) -> u64 {
        match FIXED.iter().position(|(node, _)| node == self) {
            Some(at) => FIRST_INO + at as u64,
            None => FIRST_DYNAMIC_INO | xxh3_64(self.describe().as_bytes()) >> 2,
        }
    }

    pub(super) fn is_dynamic(&self) -> bool {
        matches!(
            self,
            Self::Hold(_)
                | Self::Break(_)
                | Self::Lock(_)
                | Self::Session(_)
                | Self::Intent(_)
                | Self::Document(_)
        )
    }

    pub(super) fn is_directory(&self) -> bool {
        matches!(self, Self::Root | Self::Locks | Self::Sessions | Self::Intents | Self::Documents)
    }

    pub(super) fn file_type(&self) -> FileType {
        if self.is_directory() { FileType::Directory } else { FileType::RegularFile }
    }

    pub(super) fn describe(&self) -> String {
        match self {
            Self::Hold(serial) => format!("{HOLD}:{serial}"),
            Self::Break(serial) => format!("{BREAK}:{serial}"),
            Self::Lock(id) => format!("lock:{}", id.encoded()),
            Self::Session(id) => format!("sessions/{id}"),
            Self::Intent(which) => format!("intents/{}", intents::file_name(*which)),
            Self::Document(key) => key.to_string(),
            other => format!("{other:?}").to_lowercase(),
        }
    }

    /// What `name` is in this directory.
    pub(super) fn child(&self, namespace: &Namespace, name: &[u8]) -> Option<Self> {
        if name == b"." {
            return Some(self.clone());
        }
        let name = std::str::from_utf8(name).ok()?;
        match self {
            Self::Root => {
                let fixed = FIXED.iter().skip(1).find(|(_, fixed)| *fixed == name);
                fixed.map(|(node, _)| node.clone()).or_else(|| request(name))
            }
            Self::Locks => lock(namespace, name),
            Self::Sessions => {
                let id = name.parse::<SessionId>().ok()?;
                exists(namespace, Key::Session(id)).map(|_| Self::Session(id))
            }
            Self::Intents => {
                let which = intents::parse(name)?;
                intents::one(namespace, which).ok()?.map(|_| Self::Intent(which))
            }
            Self::Documents => match name.strip_prefix("lock:") {
                Some(id) => lock(namespace, id),
                None => exists(namespace, name.parse().ok()?),
            },
            _ => None,
        }
    }

    /// What stands in this directory.
    pub(super) fn children(&self, namespace: &Namespace) -> Vec<(String, Self)> {
        match self {
            Self::Root => {
                let fixed = FIXED.iter().skip(1).map(|(node, name)| ((*name).to_owned(), node.clone()));
                let requests = [HOLD, BREAK].into_iter();
                fixed.chain(requests.filter_map(|name| Some((name.to_owned(), request(name)?)))).collect()
            }
            Self::Locks => {
                let documents = namespace.locks().documents();
                documents
                    .unwrap_or_default()
                    .into_iter()
                    .map(|document| (file_name(&document.id), Self::Lock(document.id)))
                    .collect()
            }
            Self::Sessions => {
                let scan = Scan { range: Range::All(Kind::Session), start: Start::First, limit: usize::MAX };
                let page = namespace.store().scan(&scan).unwrap_or_default();
                let ids = page.into_iter().filter_map(|(key, _)| match key {
                    Key::Session(id) => Some((id.to_string(), Self::Session(id))),
                    _ => None,
                });
                ids.collect()
            }
            Self::Intents => {
                let under_way = intents::under_way(namespace).unwrap_or_default().into_iter();
                under_way.map(|which| (intents::file_name(which), Self::Intent(which))).collect()
            }
            _ => Vec::new(),
        }
    }
}

fn exists(namespace: &Namespace, key: Key) -> Option<ControlNode> {
    // A damaged document exists too: opening it says what is wrong.
    match namespace.store().get(&key) {
        Ok(None) => None,
        Ok(Some(_)) | Err(_) => Some(ControlNode::Document(key)),
    }
}

fn lock(namespace: &Namespace, name: &str) -> Option<ControlNode> {
    if let Ok(id) = LockId::parse(name) {
        // A damaged one exists too: opening it says what is wrong.
        return namespace.locks().document(&id).transpose().map(|_| ControlNode::Lock(id));
    }
    let documents = namespace.locks().documents().ok()?;
    documents.into_iter().find(|d| file_name(&d.id) == name).map(|d| ControlNode::Lock(d.id))
}

/// The name of a lock's file: its id, or where that is longer than a name may be, the beginning of it and a hash.
pub fn file_name(id: &LockId) -> String {
    id.document_id(NAME_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_files_have_fixed_numbers_and_long_ids_have_distinct_names() {
        for (node, _) in &FIXED {
            assert_eq!(ControlNode::fixed(node.ino()).as_ref(), Some(node));
        }
        assert_eq!(ControlNode::fixed(FIRST_INO + FIXED.len() as u64), None);
        let new = |name: &str| request(name).unwrap().ino();
        assert!(new(HOLD) != new(HOLD) && new(BREAK) != new(BREAK) && new(HOLD) != new(BREAK));
        let deep =
            |last: &str| LockId::from_path(format!("{}/{last}", "/\u{e9}".repeat(100)).as_bytes()).unwrap();
        let (one, other) = (file_name(&deep("a")), file_name(&deep("b")));
        assert!(one.len() <= NAME_MAX && one != other);
    }
}
