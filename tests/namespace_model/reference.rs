//! What a file system is, in its plainest form: nodes in a vector, names in maps, no documents and no locks. Slow and
//! obviously right. Uses nothing of lockwood.

use std::collections::BTreeMap;

/// The number of a node: its place in the order in which nodes were made.
pub(crate) type Id = usize;

pub(crate) const ROOT: Id = 0;

/// Why something was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotFound,
    Exists,
    NotADirectory,
    IsADirectory,
    NotEmpty,
    IntoItself,
    NotPermitted,
    Invalid,
    NoAttribute,
}

pub(crate) type Outcome<T = ()> = Result<T, Refusal>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Replace,
    NoReplace,
    Exchange,
    Whiteout,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    File(Vec<u8>),
    Directory(BTreeMap<String, Id>),
    Symlink(Vec<u8>),
    Whiteout,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) body: Body,
    pub(crate) mode: u32,
    pub(crate) xattrs: BTreeMap<String, Vec<u8>>,
    pub(crate) opens: usize,
    /// Without names, and not open: it is no more.
    pub(crate) gone: bool,
}

pub(crate) struct Reference {
    pub(crate) nodes: Vec<Node>,
}

impl Reference {
    pub(crate) fn new() -> Self {
        let mut reference = Self { nodes: Vec::new() };
        reference.add(Body::Directory(BTreeMap::new()), 0o755);
        reference
    }

    fn add(&mut self, body: Body, mode: u32) -> Id {
        self.nodes.push(Node { body, mode, xattrs: BTreeMap::new(), opens: 0, gone: false });
        self.nodes.len() - 1
    }

    pub(crate) fn live(&self, id: Id) -> Outcome<&Node> {
        self.nodes.get(id).filter(|node| !node.gone).ok_or(Refusal::NotFound)
    }

    fn live_mut(&mut self, id: Id) -> Outcome<&mut Node> {
        self.nodes.get_mut(id).filter(|node| !node.gone).ok_or(Refusal::NotFound)
    }

    pub(crate) fn entries(&self, id: Id) -> Outcome<&BTreeMap<String, Id>> {
        match &self.live(id)?.body {
            Body::Directory(entries) => Ok(entries),
            _ => Err(Refusal::NotADirectory),
        }
    }

    fn entries_mut(&mut self, id: Id) -> Outcome<&mut BTreeMap<String, Id>> {
        match &mut self.live_mut(id)?.body {
            Body::Directory(entries) => Ok(entries),
            _ => Err(Refusal::NotADirectory),
        }
    }

    pub(crate) fn bytes_mut(&mut self, id: Id) -> Outcome<&mut Vec<u8>> {
        match &mut self.live_mut(id)?.body {
            Body::File(bytes) => Ok(bytes),
            Body::Directory(_) => Err(Refusal::IsADirectory),
            _ => Err(Refusal::Invalid),
        }
    }

    pub(crate) fn is_directory(&self, id: Id) -> bool {
        matches!(self.nodes[id].body, Body::Directory(_))
    }

    fn names_of(&self, id: Id) -> usize {
        let directories = self.nodes.iter().filter_map(|node| match &node.body {
            Body::Directory(entries) if !node.gone => Some(entries),
            _ => None,
        });
        directories.flat_map(BTreeMap::values).filter(|child| **child == id).count()
    }

    /// The link count: names; of a directory two and one for each directory in it.
    pub(crate) fn nlink(&self, id: Id) -> usize {
        match &self.nodes[id].body {
            Body::Directory(entries) => {
                2 + entries.values().filter(|child| self.is_directory(**child)).count()
            }
            _ => self.names_of(id),
        }
    }

    /// Whether `id` is `directory`, or `directory` is somewhere below it.
    fn is_at_or_above(&self, id: Id, directory: Id) -> bool {
        let below = || match &self.nodes[id].body {
            Body::Directory(entries) => entries.values().any(|child| self.is_at_or_above(*child, directory)),
            _ => false,
        };
        id == directory || below()
    }

    /// Called when `id` has lost a name or was closed.
    fn settle(&mut self, id: Id) {
        let unused = self.names_of(id) == 0 && self.nodes[id].opens == 0;
        self.nodes[id].gone |= unused;
    }

    pub(crate) fn make(&mut self, parent: Id, name: &str, body: Body, mode: u32) -> Outcome<Id> {
        if self.entries(parent)?.contains_key(name) {
            return Err(Refusal::Exists);
        }
        let id = self.add(body, mode);
        self.entries_mut(parent)?.insert(name.to_owned(), id);
        Ok(id)
    }

    pub(crate) fn link(&mut self, id: Id, parent: Id, name: &str) -> Outcome {
        self.live(id)?;
        if self.is_directory(id) {
            return Err(Refusal::NotPermitted);
        }
        if self.names_of(id) == 0 {
            return Err(Refusal::NotFound);
        }
        if self.entries(parent)?.contains_key(name) {
            return Err(Refusal::Exists);
        }
        self.entries_mut(parent)?.insert(name.to_owned(), id);
        Ok(())
    }

    /// Removes a name: of a directory, or of something else.
    pub(crate) fn remove(&mut self, parent: Id, name: &str, directory: bool) -> Outcome {
        let id = *self.entries(parent)?.get(name).ok_or(Refusal::NotFound)?;
        match (directory, &self.nodes[id].body) {
            (true, Body::Directory(entries)) if !entries.is_empty() => return Err(Refusal::NotEmpty),
            (true, Body::Directory(_)) => {}
            (true, _) => return Err(Refusal::NotADirectory),
            (false, Body::Directory(_)) => return Err(Refusal::IsADirectory),
            (false, _) => {}
        }
        self.entries_mut(parent)?.remove(name);
        self.settle(id);
        Ok(())
    }

    pub(crate) fn rename(&mut self, from: (Id, &str), to: (Id, &str), manner: Manner) -> Outcome {
        self.entries(from.0)?;
        let target = self.entries(to.0)?.get(to.1).copied();
        let source = *self.entries(from.0)?.get(from.1).ok_or(Refusal::NotFound)?;
        match (manner, target) {
            (Manner::NoReplace, Some(_)) => return Err(Refusal::Exists),
            (Manner::Exchange, None) => return Err(Refusal::NotFound),
            (_, Some(target)) if target == source => return Ok(()),
            _ => {}
        }
        if self.is_at_or_above(source, to.0) {
            return Err(Refusal::IntoItself);
        }
        if let Some(target) = target {
            if manner == Manner::Exchange {
                if self.is_at_or_above(target, from.0) {
                    return Err(Refusal::IntoItself);
                }
                self.entries_mut(from.0)?.insert(from.1.to_owned(), target);
                self.entries_mut(to.0)?.insert(to.1.to_owned(), source);
                return Ok(());
            }
            match (self.is_directory(source), &self.nodes[target].body) {
                (false, Body::Directory(_)) => return Err(Refusal::IsADirectory),
                (true, Body::Directory(entries)) if !entries.is_empty() => return Err(Refusal::NotEmpty),
                (true, Body::Directory(_)) => {}
                (true, _) => return Err(Refusal::NotADirectory),
                (false, _) => {}
            }
        }
        self.entries_mut(from.0)?.remove(from.1);
        self.entries_mut(to.0)?.insert(to.1.to_owned(), source);
        if manner == Manner::Whiteout {
            let whiteout = self.add(Body::Whiteout, 0);
            self.entries_mut(from.0)?.insert(from.1.to_owned(), whiteout);
        }
        if let Some(target) = target {
            self.settle(target);
        }
        Ok(())
    }

    pub(crate) fn open(&mut self, id: Id) -> Outcome {
        self.live_mut(id)?.opens += 1;
        Ok(())
    }

    pub(crate) fn close(&mut self, id: Id) -> Outcome {
        let node = &mut self.nodes[id];
        node.opens = node.opens.checked_sub(1).ok_or(Refusal::Invalid)?;
        if !self.is_directory(id) {
            self.settle(id);
        }
        Ok(())
    }

    /// The mount ends, in whatever way: nothing is open any more, and what had no name is gone.
    pub(crate) fn remount(&mut self) {
        for id in 0..self.nodes.len() {
            if std::mem::take(&mut self.nodes[id].opens) > 0 && !self.is_directory(id) {
                self.settle(id);
            }
        }
    }

    pub(crate) fn write(&mut self, id: Id, offset: usize, data: &[u8]) -> Outcome {
        let bytes = self.bytes_mut(id)?;
        if !data.is_empty() {
            let end = offset + data.len();
            bytes.resize(bytes.len().max(end), 0);
            bytes[offset..end].copy_from_slice(data);
        }
        Ok(())
    }

    pub(crate) fn zero(&mut self, id: Id, range: std::ops::Range<usize>, clear: bool, grow: bool) -> Outcome {
        let bytes = self.bytes_mut(id)?;
        if range.is_empty() {
            return Err(Refusal::Invalid);
        }
        if grow {
            bytes.resize(bytes.len().max(range.end), 0);
        }
        if clear {
            let len = bytes.len();
            bytes[range.start.min(len)..range.end.min(len)].fill(0);
        }
        Ok(())
    }

    pub(crate) fn set_xattr(&mut self, id: Id, name: &str, value: &[u8]) -> Outcome {
        self.live_mut(id)?.xattrs.insert(name.to_owned(), value.to_vec());
        Ok(())
    }

    pub(crate) fn remove_xattr(&mut self, id: Id, name: &str) -> Outcome {
        self.live_mut(id)?.xattrs.remove(name).map(drop).ok_or(Refusal::NoAttribute)
    }

    pub(crate) fn chmod(&mut self, id: Id, mode: u32) -> Outcome {
        self.live_mut(id)?.mode = mode;
        Ok(())
    }
}
