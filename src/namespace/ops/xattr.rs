//! Extended attributes: one document each, so that a thousand of 64 KiB on one file cost nobody who does not ask.

use std::sync::Arc;

use crate::document::{Document, FileKind, Ino, Key, Node, Xattr};
use crate::namespace::acl::{self, Acl};
use crate::namespace::{Caller, Namespace, NamespaceError, Result};
use crate::store::{Commit, NodeRef, Range, Scan, Start};

/// The longest value, in bytes.
const VALUE_MAX: usize = 64 << 10;
/// The longest name, in bytes.
const NAME_MAX: usize = 255;
const SGID: u32 = 0o2000;
/// Labels are not kept: where SELinux is at work the kernel labels a FUSE mount as a whole, and asks for none and sets none
/// here. Programs that ask for the label of each file, as `ls -l` does, ask no more once they are told so of one; else each
/// file costs a request, since Linux remembers no answer about an attribute.
const SELINUX: &[u8] = b"security.selinux";

/// Whether an attribute may, must not or must be there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetMode {
    /// Made or replaced.
    Any,
    /// Made; it must not be there.
    Create,
    /// Replaced; it must be there.
    Replace,
}

impl Namespace {
    /// The value of an attribute; none if there is no such.
    pub(in crate::namespace) fn attribute(&self, ino: Ino, name: &[u8]) -> Result<Option<Arc<[u8]>>> {
        let stored = self.store.get(&Key::Xattr(ino, name.into()))?;
        Ok(stored.and_then(|stored| match &*stored.document {
            Document::Xattr(xattr) => Some(Arc::clone(&xattr.value)),
            _ => None,
        }))
    }

    /// The value of an attribute.
    ///
    /// # Errors
    /// `NoAttribute`; `Unsupported` for a name in no known class.
    pub fn get_attribute(&self, ino: Ino, name: &[u8]) -> Result<Arc<[u8]>> {
        check_name(name)?;
        refuse_label(name)?;
        if self.node_or_dead(ino)?.xattrs == 0 {
            return Err(NamespaceError::NoAttribute);
        }
        self.attribute(ino, name)?.ok_or(NamespaceError::NoAttribute)
    }

    /// The names of all attributes that `caller` may see, each followed by a zero byte.
    ///
    /// # Errors
    /// `NotFound`; the store's.
    pub fn list_attributes(&self, caller: Caller, ino: Ino) -> Result<Vec<u8>> {
        let mut names = Vec::new();
        if self.node_or_dead(ino)?.xattrs > 0 {
            let scan = Scan { range: Range::Xattrs(ino), start: Start::First, limit: usize::MAX };
            for (key, _) in self.store.scan(&scan)? {
                let Key::Xattr(_, name) = key else { continue };
                if caller.uid == 0 || !name.starts_with(b"trusted.") {
                    names.extend_from_slice(&name);
                    names.push(0);
                }
            }
        }
        Ok(names)
    }

    /// Sets an attribute. Setting an access control list changes the mode with it.
    ///
    /// # Errors
    /// `Exists` or `NoAttribute` by `mode`; `AttributeTooLarge`; `Invalid` for a list that is none.
    pub fn set_attribute(
        &self,
        caller: Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: SetMode,
    ) -> Result<()> {
        check_name(name)?;
        refuse_label(name)?;
        if value.len() > VALUE_MAX {
            return Err(NamespaceError::AttributeTooLarge);
        }
        // What was written before would take capabilities away again.
        self.settle(ino);
        self.retry(|| {
            let (version, old) = self.node_to_change(ino)?;
            if name == acl::ACCESS || name == acl::DEFAULT {
                self.may_as_owner(caller, &old)?;
            }
            let key = Key::Xattr(ino, name.into());
            let exists = old.xattrs > 0 && self.store.get(&key)?.is_some();
            match mode {
                SetMode::Create if exists => return Err(NamespaceError::Exists),
                SetMode::Replace if !exists => return Err(NamespaceError::NoAttribute),
                _ => {}
            }
            let mut node = (*old).clone();
            let keep = apply_list(caller, name, value, &old, &mut node)?;
            node.ctime = self.now();
            let commit = Commit::new().at(Key::Node(ino), version);
            let commit = if keep {
                node.xattrs += u32::from(!exists);
                commit.put(key, Document::Xattr(Xattr { value: value.into() }))
            } else {
                node.xattrs -= u32::from(exists);
                commit.delete(key)
            };
            self.commit(&commit.put(Key::Node(ino), Document::Node(node)))?;
            Ok(())
        })
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// `NoAttribute`.
    pub fn remove_attribute(&self, caller: Caller, ino: Ino, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.retry(|| {
            let (version, old) = self.node_to_change(ino)?;
            let key = Key::Xattr(ino, name.into());
            let is_list = name == acl::ACCESS || name == acl::DEFAULT;
            if is_list {
                self.may_as_owner(caller, &old)?;
            }
            if old.xattrs == 0 || self.store.get(&key)?.is_none() {
                // An access control list that is not there says what the mode says, and stays so.
                return if is_list { Ok(()) } else { Err(NamespaceError::NoAttribute) };
            }
            let mut node = (*old).clone();
            node.xattrs -= 1;
            node.ctime = self.now();
            let commit = Commit::new().at(Key::Node(ino), version).delete(key);
            self.commit(&commit.put(Key::Node(ino), Document::Node(node)))?;
            Ok(())
        })
    }
}

/// What setting an access control list does beyond storing it. Returns whether it is to be stored at all: one that says
/// no more than the mode is not.
fn apply_list(caller: Caller, name: &[u8], value: &[u8], old: &NodeRef, node: &mut Node) -> Result<bool> {
    if name != acl::ACCESS && name != acl::DEFAULT {
        return Ok(true);
    }
    if old.kind() == FileKind::Symlink {
        return Err(NamespaceError::Unsupported("access control lists of symbolic links"));
    }
    if value.is_empty() {
        return Ok(false);
    }
    let list = Acl::parse(value)?;
    if name == acl::DEFAULT {
        return match old.directory() {
            Some(_) => Ok(true),
            None => Err(NamespaceError::NotPermitted("only a directory has a default list")),
        };
    }
    node.mode = (old.mode & !0o777) | list.mode();
    if !caller.keeps_privileges() && !caller.in_group(old.gid) {
        node.mode &= !SGID;
    }
    Ok(!list.is_minimal())
}

fn check_name(name: &[u8]) -> Result<()> {
    const CLASSES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if name == acl::ACCESS || name == acl::DEFAULT {
        return Ok(());
    }
    if name.len() > NAME_MAX {
        return Err(NamespaceError::Name(crate::document::NameError::TooLong));
    }
    match CLASSES.iter().find(|class| name.starts_with(class)) {
        Some(class) if name.len() > class.len() => Ok(()),
        Some(_) => Err(NamespaceError::Invalid("an attribute without a name")),
        None => Err(NamespaceError::Unsupported("attributes of this class")),
    }
}

/// One that a store has from before can be removed.
fn refuse_label(name: &[u8]) -> Result<()> {
    if name == SELINUX { Err(NamespaceError::Unsupported("labels of SELinux")) } else { Ok(()) }
}
