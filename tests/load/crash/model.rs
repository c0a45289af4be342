//! What the tree of one thread must look like after a sequence of operations: a map of paths to objects in memory.

use crate::op::{Op, bytes_of};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Bytes that the kernel writes or not as one; a write of several may be there in part if it was never acknowledged.
pub(crate) const PAGE: u64 = 4096;

/// Names of the extended attributes in use.
pub(crate) const XATTRS: [&str; 3] = ["user.first", "user.second", "user.third"];

/// What an object is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    Dir,
    File(Arc<Vec<u8>>),
    Symlink(String),
}

/// An object, which may have several paths if it is a file.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) body: Body,
    pub(crate) mode: u32,
    pub(crate) xattrs: BTreeMap<String, String>,
}

/// The tree of one thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    thread: usize,
    /// Paths, each with the number of its object.
    pub(crate) paths: BTreeMap<String, u64>,
    /// Objects by the number of the operation that made them.
    pub(crate) objects: BTreeMap<u64, Object>,
}

/// How much of a write took effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Torn {
    /// Bit n: the nth page that the write touches is there.
    pub(crate) pages: u64,
    /// The size of the file afterwards.
    pub(crate) size: u64,
}

/// The parts of a write, cut where pages meet: offset and length.
pub(crate) fn parts(offset: u64, length: u64) -> Vec<(u64, u64)> {
    let mut parts = Vec::new();
    let mut at = offset;
    while at < offset + length {
        let end = ((at / PAGE + 1) * PAGE).min(offset + length);
        parts.push((at, end - at));
        at = end;
    }
    parts
}

impl Model {
    /// The empty tree of a thread.
    pub(crate) fn new(thread: usize) -> Self {
        Self { thread, ..Self::default() }
    }

    /// The object at a path.
    pub(crate) fn at(&self, path: &str) -> Option<&Object> {
        self.paths.get(path).and_then(|number| self.objects.get(number))
    }

    /// The size of the file at a path; 0 if there is none.
    pub(crate) fn size(&self, path: &str) -> u64 {
        match self.at(path).map(|o| &o.body) {
            Some(Body::File(bytes)) => bytes.len() as u64,
            _ => 0,
        }
    }

    /// Applies operation `number`; a write may be given in part.
    pub(crate) fn apply(&mut self, number: u64, op: &Op, torn: Option<Torn>) {
        match op {
            Op::Create { path } => self.add(number, path, Body::File(Arc::default()), 0o644),
            Op::Mkdir { path } => self.add(number, path, Body::Dir, 0o755),
            Op::Symlink { path, target } => self.add(number, path, Body::Symlink(target.clone()), 0o777),
            Op::Write { path, offset, length } | Op::Append { path, offset, length } => {
                self.write(number, path, *offset, *length, torn);
            }
            Op::Fsync { .. } => {}
            Op::Truncate { path, size } => self.with_bytes(path, |bytes| bytes.resize(*size as usize, 0)),
            Op::Rename { old, new } => {
                if self.paths.get(old) != self.paths.get(new) {
                    self.paths.remove(new);
                    self.move_below(old, new);
                }
            }
            Op::Exchange { old, new } => {
                let aside = "\u{0}aside";
                self.move_below(old, aside);
                self.move_below(new, old);
                self.move_below(aside, new);
            }
            Op::Link { old, new } => {
                if let Some(object) = self.paths.get(old).copied() {
                    self.paths.insert(new.clone(), object);
                }
            }
            Op::Unlink { path } | Op::Rmdir { path } => {
                self.paths.remove(path);
            }
            Op::Chmod { path, mode } => self.with(path, |o| o.mode = *mode),
            Op::SetXattr { path, name, value } => {
                self.with(path, |o| drop(o.xattrs.insert(name.clone(), value.clone())));
            }
            Op::RemoveXattr { path, name } => self.with(path, |o| drop(o.xattrs.remove(name))),
        }
        self.forget_nameless();
    }

    fn add(&mut self, number: u64, path: &str, body: Body, mode: u32) {
        self.paths.insert(path.to_owned(), number);
        self.objects.insert(number, Object { body, mode, xattrs: BTreeMap::new() });
    }

    fn with(&mut self, path: &str, change: impl FnOnce(&mut Object)) {
        if let Some(object) = self.paths.get(path).and_then(|number| self.objects.get_mut(number)) {
            change(object);
        }
    }

    fn with_bytes(&mut self, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        self.with(path, |object| {
            if let Body::File(bytes) = &mut object.body {
                change(Arc::make_mut(bytes));
            }
        });
    }

    fn write(&mut self, number: u64, path: &str, offset: u64, length: u64, torn: Option<Torn>) {
        let new = bytes_of(self.thread, number, offset, length);
        self.with_bytes(path, |bytes| {
            let end = (offset + length) as usize;
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            for (index, (at, size)) in parts(offset, length).into_iter().enumerate() {
                if torn.is_none_or(|t| t.pages >> index & 1 == 1) {
                    let from = (at - offset) as usize;
                    bytes[at as usize..(at + size) as usize]
                        .copy_from_slice(&new[from..from + size as usize]);
                }
            }
            if let Some(torn) = torn {
                bytes.truncate(torn.size as usize);
            }
        });
    }

    /// Moves a path and all below it.
    fn move_below(&mut self, old: &str, new: &str) {
        let below = format!("{old}/");
        let moved: Vec<String> =
            self.paths.keys().filter(|p| *p == old || p.starts_with(&below)).cloned().collect();
        for path in moved {
            if let Some(object) = self.paths.remove(&path) {
                self.paths.insert(format!("{new}{}", &path[old.len()..]), object);
            }
        }
    }

    /// Now and then: as many nameless objects may linger as there are second names.
    fn forget_nameless(&mut self) {
        if self.objects.len() > self.paths.len() {
            let named: BTreeSet<u64> = self.paths.values().copied().collect();
            self.objects.retain(|number, _| named.contains(number));
        }
    }
}
