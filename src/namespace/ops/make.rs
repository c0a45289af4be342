//! Making files, directories, symbolic links and special files.
//!
//! A create puts the node and its entry and merges the parent's counts and times. It checks that the name is free and
//! that the parent is there, and nothing else, so that a thousand creates in one directory do not conflict.

use std::sync::Arc;

use crate::document::{
    Body, ContentPlace, Directory, Document, Entry, Ino, Key, Name, Node, NodeDelta, Regular, Xattr,
};
use crate::namespace::acl::{self, Acl};
use crate::namespace::{Caller, Found, Namespace, NamespaceError, Result};
use crate::rules::{Rule, holds};
use crate::store::{Commit, NodeRef};

const SGID: u32 = 0o2000;

/// The longest target of a symbolic link, in bytes.
const TARGET_MAX: usize = 4095;

/// What to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link to these bytes.
    Symlink(Vec<u8>),
    /// A named pipe.
    Fifo,
    /// The name of a socket.
    Socket,
    /// A character device with this number.
    CharDevice(u32),
    /// A block device with this number.
    BlockDevice(u32),
}

/// A node to be made and how.
#[derive(Clone, Debug)]
pub struct Make<'a> {
    /// The directory that it will be in.
    pub parent: Ino,
    /// Its name there.
    pub name: &'a Name,
    /// What it is.
    pub what: What,
    /// The permissions that the caller asked for.
    pub mode: u32,
    /// The caller's mask; a default access control list of the parent takes its place.
    pub umask: u32,
    /// Whose it will be.
    pub caller: Caller,
}

/// What the parent gives to a new node.
struct Inherited {
    mode: u32,
    gid: u32,
    access: Option<Acl>,
    default: Option<Arc<[u8]>>,
}

impl Namespace {
    /// Makes a node under a free name.
    ///
    /// # Errors
    /// `Exists`; `NotFound` if the parent has been removed; `NotADirectory`.
    pub fn make(&self, make: &Make<'_>) -> Result<Found> {
        loop {
            let ino = self.numbers.take()?;
            match self.make_as(ino, make)? {
                Some(found) => return Ok(found),
                None => self.numbers.give_up(ino),
            }
        }
    }

    /// The same under this number; none if that is taken.
    pub(super) fn make_as(&self, ino: Ino, make: &Make<'_>) -> Result<Option<Found>> {
        let entry_key = Key::Entry(make.parent, make.name.clone());
        self.retry(|| {
            let (_, parent) = self.live_node(make.parent)?;
            if parent.directory().is_none() {
                return Err(NamespaceError::NotADirectory);
            }
            let inherited = self.inherit(make, &parent)?;
            let node = self.new_node(make, &inherited)?;
            let kind = node.kind();
            let subdirectories = i32::from(make.what == What::Directory);
            let now = node.ctime;
            let mut commit = Commit::new()
                .put(entry_key.clone(), Document::Entry(Entry { ino, kind }))
                .put(Key::Node(ino), Document::Node(node.clone()))
                .absent(Key::Node(ino))
                .merge(Key::Node(make.parent), NodeDelta::entries_changed(1, subdirectories, now));
            if holds(Rule::CreateChecksAbsence) {
                commit = commit.absent(entry_key.clone());
            }
            for (name, value) in inherited.attributes() {
                commit = commit.put(Key::Xattr(ino, name.into()), Document::Xattr(Xattr { value }));
            }
            match self.commit(&commit) {
                // Not read anew: others may have removed it by now.
                Ok(version) => Ok(Some((ino, NodeRef::written(version, node)))),
                // Maybe for want of a turn, where many make names in a directory: so it is looked whether it is so. Whether
                // the directory is still there the next attempt finds out.
                Err(NamespaceError::Conflict(key)) if key == entry_key && self.is_there(&key)? => {
                    Err(NamespaceError::Exists)
                }
                Err(NamespaceError::Conflict(key)) if key == Key::Node(ino) && self.is_there(&key)? => {
                    Ok(None)
                }
                Err(other) => Err(other),
            }
        })
    }

    fn is_there(&self, key: &Key) -> Result<bool> {
        Ok(self.store.get(key)?.is_some())
    }

    fn inherit(&self, make: &Make<'_>, parent: &NodeRef) -> Result<Inherited> {
        let is_directory = make.what == What::Directory;
        let gid = if parent.mode & SGID != 0 { parent.gid } else { make.caller.gid };
        let mut mode = make.mode & 0o7777;
        if is_directory && parent.mode & SGID != 0 {
            mode |= SGID;
        }
        let default = match make.what {
            What::Symlink(_) => None,
            _ if parent.xattrs == 0 => None,
            _ => self.attribute(make.parent, acl::DEFAULT)?,
        };
        let parsed = default.as_deref().map(Acl::parse).transpose().ok().flatten();
        let Some(list) = parsed else {
            let mask = if matches!(make.what, What::Symlink(_)) { 0 } else { make.umask };
            return Ok(Inherited { mode: mode & !(mask & 0o777), gid, access: None, default: None });
        };
        let (access, permissions) = list.inherit(mode & 0o777);
        Ok(Inherited {
            mode: (mode & !0o777) | permissions,
            gid,
            access: (!access.is_minimal()).then_some(access),
            default: default.filter(|_| is_directory),
        })
    }

    /// The node of a whiteout, which inherits nothing.
    pub(super) fn whiteout_node(&self, make: &Make<'_>) -> Result<Node> {
        self.new_node(make, &Inherited { mode: 0, gid: make.caller.gid, access: None, default: None })
    }

    fn new_node(&self, make: &Make<'_>, inherited: &Inherited) -> Result<Node> {
        let now = self.now();
        let body = match &make.what {
            What::Regular => Body::Regular(Regular { size: 0, blocks: 0, place: ContentPlace::Empty }),
            What::Directory => {
                Body::Directory(Directory { parent: make.parent, name: Some(make.name.clone()), children: 0 })
            }
            What::Symlink(target) if target.is_empty() => {
                return Err(NamespaceError::Invalid("a symbolic link to nothing"));
            }
            What::Symlink(target) if target.len() > TARGET_MAX => {
                return Err(NamespaceError::Name(crate::document::NameError::TooLong));
            }
            What::Symlink(target) => Body::Symlink { target: target.as_slice().into() },
            What::Fifo => Body::Fifo,
            What::Socket => Body::Socket,
            What::CharDevice(rdev) => Body::CharDevice { rdev: *rdev },
            What::BlockDevice(rdev) => Body::BlockDevice { rdev: *rdev },
        };
        Ok(Node {
            mode: inherited.mode,
            uid: make.caller.uid,
            gid: inherited.gid,
            nlink: if make.what == What::Directory { 2 } else { 1 },
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            xattrs: inherited.attributes().count() as u32,
            body,
        })
    }
}

impl Inherited {
    fn attributes(&self) -> impl Iterator<Item = (&'static [u8], Arc<[u8]>)> {
        let access = self.access.as_ref().map(|list| (acl::ACCESS, list.to_bytes().into()));
        let default = self.default.clone().map(|value| (acl::DEFAULT, value));
        access.into_iter().chain(default)
    }
}
