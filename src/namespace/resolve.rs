//! From names and inode numbers to documents, and from a directory up to the root.

use crate::document::{Document, Entry, Ino, Key, Name, Node, Stored, Version};
use crate::lock::LockId;
use crate::store::{Check, NodeRef, StoreError};

use super::{Namespace, NamespaceError, Result};

/// The directories from just below the root down to some directory, each with the entry that leads to it.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    links: Vec<Link>,
}

#[derive(Clone, Debug)]
struct Link {
    ino: Ino,
    key: Key,
    version: Version,
    name: Name,
}

/// A way up that comes back to where it was, so often, is no matter of what is remembered: the tree has a loop.
const CIRCLES_MAX: u32 = 16;

/// Where a way up has led.
enum Climbed {
    ToRoot(Chain),
    /// Round in a circle, through these documents.
    Round(Vec<Key>),
}

impl Chain {
    /// Whether `ino` is one of the directories.
    pub(super) fn contains(&self, ino: Ino) -> bool {
        self.links.iter().any(|link| link.ino == ino)
    }

    /// The path of `name` in the last directory.
    pub(super) fn path(&self, name: &Name) -> Result<LockId> {
        let names = self.links.iter().map(|link| link.name.as_bytes());
        Ok(LockId::from_components(names.chain([name.as_bytes()]))?)
    }

    /// The check of each directory that it still stands where it stood. An entry's version changes only when that very
    /// directory is moved or replaced, so nothing else conflicts.
    pub(super) fn checks(&self) -> impl Iterator<Item = Check> + '_ {
        self.links.iter().map(|link| Check::Version(link.key.clone(), link.version))
    }
}

impl Namespace {
    /// The node of `ino`, or the last one that it had if it was removed lately.
    pub(super) fn node_or_dead(&self, ino: Ino) -> Result<NodeRef> {
        match self.store.node(ino)? {
            Some((_, node)) => Ok(node),
            None => self.inodes.dead(ino).ok_or(NamespaceError::NotFound),
        }
    }

    pub(super) fn live_node(&self, ino: Ino) -> Result<(Version, NodeRef)> {
        self.store.node(ino)?.ok_or(NamespaceError::NotFound)
    }

    /// The node of an inode that was just changed: as it is now, or as it was `written`. Others may have removed it since,
    /// and what was done is not to be answered as if it had not been.
    pub(super) fn node_after(&self, ino: Ino, written: (Version, Node)) -> NodeRef {
        self.live_node(ino).map_or_else(|_| NodeRef::written(written.0, written.1), |(_, node)| node)
    }

    /// The node of an inode that somebody changes, maybe having come by an old name.
    pub(super) fn node_to_change(&self, ino: Ino) -> Result<(Version, NodeRef)> {
        let (version, node) = self.live_node(ino)?;
        self.refuse_others(ino, &node)?;
        Ok((version, node))
    }

    /// What has no name and is open on other hosts alone is there for these; whoever came here by a name that is gone is not
    /// to find it.
    pub(super) fn refuse_others(&self, ino: Ino, node: &NodeRef) -> Result<()> {
        let is_gone = node.nlink == 0 && self.is_shared() && self.inodes.dead(ino).is_none();
        if is_gone && !self.opens.lock().contains_key(&ino) { Err(NamespaceError::NotFound) } else { Ok(()) }
    }

    /// The entry under `key`.
    pub(super) fn entry(&self, key: &Key) -> Result<Option<(Version, Entry)>> {
        let as_entry = |stored: Stored| match &*stored.document {
            Document::Entry(entry) => Ok((stored.version, *entry)),
            other => Err(StoreError::Damaged {
                key: key.to_string(),
                cause: format!("it holds a {}", other.kind().name()),
            }),
        };
        Ok(self.store.get(key)?.map(as_entry).transpose()?)
    }

    /// The node that an entry leads to. The two are read one after the other: if the node is gone, or has no name any more,
    /// the entry is gone or leads elsewhere by now.
    pub(super) fn target(&self, key: &Key, entry: Entry) -> Result<(Version, NodeRef)> {
        if let Some(found) = self.store.node(entry.ino)?.filter(|(_, node)| node.nlink > 0) {
            return Ok(found);
        }
        // Either may have been an old one that was remembered.
        self.store.forget(&[key.clone(), Key::Node(entry.ino)]);
        let now = self.entry(key)?;
        if let Some(found) = self.store.node(entry.ino)?.filter(|_| now.is_some_and(|(_, now)| now == entry))
        {
            return Ok(found);
        }
        match now {
            Some((_, now)) if now == entry => Err(StoreError::Damaged {
                key: Key::Node(entry.ino).to_string(),
                cause: format!("it is missing, and {key} leads to it"),
            }
            .into()),
            _ => Err(NamespaceError::Conflict(key.clone())),
        }
    }

    /// The directories from the root down to `directory`, which is the last; none for the root itself.
    ///
    /// The walk reads one document after the other while others move directories, and some as they are remembered, so it may
    /// piece together a chain that never was. It is good for naming what to lock; that it is true is checked by the commit,
    /// at one instant. What is pieced together may even be a circle: then all that has led there is forgotten.
    pub(super) fn chain(&self, directory: Ino) -> Result<Chain> {
        for _ in 0..CIRCLES_MAX {
            match self.climb(directory)? {
                Climbed::ToRoot(chain) => return Ok(chain),
                Climbed::Round(keys) => self.store.forget(&keys),
            }
        }
        Err(NamespaceError::Broken(directory))
    }

    /// Finds circles as Brent does ("An Improved Monte Carlo Factorization Algorithm", BIT 20, 1980): by one inode to
    /// compare with, which is taken anew each time that the way has become twice as long.
    fn climb(&self, directory: Ino) -> Result<Climbed> {
        let mut links: Vec<Link> = Vec::new();
        let mut ino = directory;
        let mut met = directory;
        while ino != Ino::ROOT {
            if !links.is_empty() && ino == met {
                let documents = |link: Link| [Key::Node(link.ino), link.key];
                return Ok(Climbed::Round(links.into_iter().flat_map(documents).collect()));
            }
            if links.len().is_power_of_two() {
                met = ino;
            }
            let Some((_, node)) = self.store.node(ino)? else {
                // The directory itself was removed; or one above it was moved while this looked.
                return Err(if ino == directory {
                    NamespaceError::NotFound
                } else {
                    NamespaceError::Conflict(Key::Node(ino))
                });
            };
            let Some(here) = node.directory() else { return Err(NamespaceError::NotADirectory) };
            let Some(name) = here.name.clone() else { return Err(NamespaceError::Broken(ino)) };
            let key = Key::Entry(here.parent, name.clone());
            match self.entry(&key)? {
                Some((version, entry)) if entry.ino == ino => links.push(Link { ino, key, version, name }),
                _ => {
                    self.store.forget(&[Key::Node(ino), key.clone()]);
                    return Err(NamespaceError::Conflict(key));
                }
            }
            ino = here.parent;
        }
        links.reverse();
        Ok(Climbed::ToRoot(Chain { links }))
    }
}
