//! The judge of the tree: whatever happens it is one, and nothing is lost or under two names.
//!
//! Looks at documents alone and shares no code with the library's own check.

use std::collections::{BTreeMap, BTreeSet};

use lockwood::document::{Document, Entry, Ino, Key, Name, Node};

use super::truth::Truth;

/// Objects to what is no tree.
pub(crate) fn is_a_tree(truth: &Truth) -> Result<(), String> {
    let mut nodes: BTreeMap<Ino, &Node> = BTreeMap::new();
    let mut names: BTreeMap<Ino, Vec<(Ino, &Name)>> = BTreeMap::new();
    let mut directories: BTreeMap<Ino, (u64, u32)> = BTreeMap::new();
    for (key, stored) in truth.documents() {
        match (key, &*stored.document) {
            (Key::Node(ino), Document::Node(node)) => {
                nodes.insert(*ino, node);
            }
            (Key::Entry(parent, name), Document::Entry(Entry { ino, kind })) => {
                names.entry(*ino).or_default().push((*parent, name));
                let counts = directories.entry(*parent).or_default();
                counts.0 += 1;
                counts.1 += u32::from(*kind == lockwood::document::FileKind::Directory);
            }
            (key, _) => return Err(format!("{key} does not belong here")),
        }
    }
    if let Some((ino, names)) = names.iter().find(|(ino, _)| !nodes.contains_key(ino)) {
        return Err(format!("inode {ino} is gone, and {names:?} leads to it"));
    }
    for (ino, node) in &nodes {
        let found = names.get(ino).map_or(&[][..], Vec::as_slice);
        if *ino != Ino::ROOT && found.len() != 1 {
            return Err(format!("inode {ino} has the names {found:?}"));
        }
        let Some(directory) = node.directory() else { continue };
        let (children, subdirectories) = directories.get(ino).copied().unwrap_or_default();
        if directory.children != children || node.nlink != 2 + subdirectories {
            let says = (directory.children, node.nlink);
            return Err(format!(
                "directory {ino} has {children} entries, {subdirectories} of directories: {says:?}"
            ));
        }
        if *ino != Ino::ROOT && found[0] != (directory.parent, directory.name.as_ref().ok_or("no name")?) {
            let says = (directory.parent, &directory.name);
            return Err(format!("directory {ino} stands at {:?} and says {says:?}", found[0]));
        }
    }
    for ino in nodes.keys() {
        let mut seen = BTreeSet::new();
        let mut at = *ino;
        while at != Ino::ROOT {
            if !seen.insert(at) {
                return Err(format!("inode {ino} does not hang from the root: {seen:?} is a loop"));
            }
            at = names[&at][0].0;
        }
    }
    Ok(())
}
