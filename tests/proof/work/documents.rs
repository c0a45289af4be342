//! Documents that workloads begin with.

use std::sync::Arc;

use lockwood::document::{
    Body, ContentPlace, Directory, Document, Ino, Key, Node, Regular, Stored, Timestamp,
};
use lockwood::store::cells::{Cell, CellKey, Cells, MarkedDocument};

use crate::sim::{SimCells, World};

/// A directory with so many entries.
pub(crate) fn directory(children: u64) -> Document {
    Document::Node(node(Body::Directory(Directory { parent: Ino::ROOT, name: None, children })))
}

/// An empty file with one name.
pub(crate) fn file() -> Document {
    let body = Body::Regular(Regular { size: 0, blocks: 0, place: ContentPlace::Inline });
    Document::Node(Node { nlink: 1, ..node(body) })
}

/// A node.
pub(crate) fn node(body: Body) -> Node {
    let time = Timestamp { sec: 1, nsec: 0 };
    Node {
        mode: 0o755,
        uid: 0,
        gid: 0,
        nlink: 2,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        xattrs: 0,
        body,
    }
}

/// Puts documents into a world in which nothing goes wrong yet; `tell` is told what is there.
pub(crate) fn begin_with(
    world: &Arc<World>,
    documents: impl IntoIterator<Item = (Key, Document)>,
    mut tell: impl FnMut(Key, Stored),
) {
    let cells = SimCells { world: Arc::clone(world), host: 0 };
    for (key, document) in documents {
        // Made in two steps, as a commit makes them: the document's version is that of the cell before the last.
        let at = CellKey::Document(key.clone());
        let unborn = Cell::Document(MarkedDocument { before: None, mark: None });
        let version = cells.cas(&at, None, Some(unborn)).expect("nothing goes wrong yet");
        let stored = Stored { version, document: document.into() };
        tell(key, stored.clone());
        let born = Cell::Document(MarkedDocument { before: Some(stored), mark: None });
        cells.cas(&at, Some(version), Some(born)).expect("nothing goes wrong yet");
    }
}
