//! Opening and closing regular files.
//!
//! What is hard: who opens a file after a close on another host has returned is to see what was written before, and what is
//! remembered here may be older: notices come late. So on a store that hosts share each open asks anew for the node and the
//! bytes beside it, in one request. Nothing saves it: that somebody looked the file up a moment ago says nothing of what was
//! closed since, and who opens may have been told of that on any other way. Whoever makes a file has just written it.

use std::collections::hash_map::Entry;

use crate::document::{Ino, Key, Version};
use crate::namespace::collect::{delete_inode, is_apart};
use crate::namespace::inodes::Pin;
use crate::namespace::{Found, Namespace, NamespaceError, Registration, Result, privilege_bits};
use crate::store::{Commit, NodeRef, StoreError};

use super::make::Make;
use super::passthrough::{Access, Register};
use super::write::Privileges;

/// A file that was opened.
pub struct Opened {
    /// How the kernel reads and writes it itself, if it does.
    pub registration: Option<Registration>,
    /// The version of its node that was found.
    pub version: Version,
    /// Whether its bytes are apart from its node.
    pub is_apart: bool,
    /// Whether it was found to have lost privileges.
    pub privileges: Privileges,
}

impl Namespace {
    /// Opens a file: it is kept until it is closed as often as it was opened, names or not. What is read from here on is at
    /// least as new as what was written, on any host, before this was called.
    ///
    /// # Errors
    /// `NotFound` if it has been removed; `Stale` if that may have happened on another host.
    pub fn open(&self, ino: Ino) -> Result<()> {
        self.open_as(ino, |_, _, _| Ok(None)).map(drop)
    }

    /// Opens a file that the kernel may read and write itself, if it can be registered for that: then it is, also by all
    /// who open it while it is open.
    ///
    /// # Errors
    /// As [`Namespace::open`]; the host's.
    pub fn open_passing(&self, ino: Ino, access: Access, register: Register<'_>) -> Result<Opened> {
        self.open_as(ino, |pin, node, others| self.pass(pin, ino, node, others, access, register))
    }

    /// `pass` says how the file is passed of which so many others have it open.
    fn open_as(
        &self,
        ino: Ino,
        pass: impl FnOnce(&Pin<'_>, &NodeRef, u64) -> Result<Option<Registration>>,
    ) -> Result<Opened> {
        if self.is_shared() {
            // Not under the inode's turn: a server that is away would hold up who closes the file.
            let keys = [Key::Node(ino), Key::Content(ino)];
            self.store.forget(&keys);
            self.store.get_many(&keys)?;
        }
        let pin = self.inodes.pin(ino);
        let mut life = pin.life.lock();
        // Who is about to run the file must not find privileges that a write has taken.
        let caught_up = self.catch_up_in_turn(&pin, ino);
        let (version, node) = match self.live_node(ino) {
            // Who has it open here may open it once more; others were led to it by a name that is gone, and under which
            // there may be another file by now: a rename that replaces one is in the tree before the kernel knows of it.
            Ok((_, node)) if node.nlink == 0 && life.opens == 0 => return Err(NamespaceError::Stale),
            Err(NamespaceError::NotFound) => return Err(NamespaceError::Stale),
            found => found?,
        };
        let privileges = match caught_up {
            // It catches up later. A store that takes no change is no reason not to read.
            Err(error) if privilege_bits(&node) == 0 => {
                log::warn!("inode {ino} has more than its node says: {error}");
                Privileges::Kept
            }
            caught_up => caught_up?,
        };
        let is_apart = is_apart(&node);
        let registration = pass(&pin, &node, life.opens)?;
        life.opens += 1;
        self.count_open(ino);
        Ok(Opened { registration, version, is_apart, privileges })
    }

    /// Makes a node under a free name, and opens it.
    ///
    /// # Errors
    /// As [`Namespace::make`].
    pub fn create(&self, make: &Make<'_>) -> Result<Found> {
        loop {
            let ino = self.numbers.take()?;
            // Opened before it has a name: whoever unlinks it at once finds it open.
            let pin = self.inodes.pin(ino);
            pin.life.lock().opens += 1;
            let made = self.make_as(ino, make);
            if let Ok(Some(found)) = made {
                self.count_open(ino);
                return Ok(found);
            }
            pin.life.lock().opens -= 1;
            made?;
            self.numbers.give_up(ino);
        }
    }

    fn count_open(&self, ino: Ino) {
        *self.opens.lock().entry(ino).or_default() += 1;
    }

    fn count_close(&self, ino: Ino) {
        if let Entry::Occupied(mut open) = self.opens.lock().entry(ino) {
            *open.get_mut() -= 1;
            if *open.get() == 0 {
                open.remove();
            }
        }
    }

    /// Closes a file. The last close of a file without names, through whichever mount, removes it.
    ///
    /// # Errors
    /// When the store fails. The file is closed even so, and what is left of one without names is removed when the store
    /// answers again, or by whoever cleans up after the session.
    pub fn close_file(&self, ino: Ino) -> Result<()> {
        self.close_file_as(ino, None).map(drop)
    }

    /// Closes a file that was passed, if it was, for this access.
    ///
    /// # Errors
    /// As [`Namespace::close_file`]; where only the node did not catch up with what the kernel has written, it does later.
    pub fn close_file_as(&self, ino: Ino, passed: Option<Access>) -> Result<Privileges> {
        let pin = self.inodes.pin(ino);
        let mut life = pin.life.lock();
        // In one turn: whoever opens the file in between would find it open, and not passed.
        let caught_up = match passed {
            Some(access) => self.no_longer_passed(&pin, ino, access),
            None => Ok(Privileges::Kept),
        };
        life.opens = life.opens.checked_sub(1).ok_or(NamespaceError::Invalid("the file is not open"))?;
        self.count_close(ino);
        if life.opens > 0 || !life.orphaned {
            return caught_up;
        }
        let removed = self.retry(|| {
            let (version, node) = self.live_node(ino)?;
            if node.nlink > 0 {
                // The store has lost the change that took its last name.
                return Ok(None);
            }
            let backed = is_apart(&node);
            let commit = Commit::new().at(Key::Node(ino), version);
            let mut commit = delete_inode(&*self.store, ino, &node, commit)?;
            if !backed {
                commit = commit.delete(Key::Orphan(ino));
            }
            self.inodes.bury(ino, node);
            self.commit(&commit)?;
            Ok(Some(backed))
        });
        match removed {
            Ok(Some(true)) => self.collector.remove_content(ino),
            Ok(Some(false)) => {}
            Ok(None) => life.orphaned = false,
            // What it has left is for whoever cleans up after it.
            Err(NamespaceError::Store(StoreError::Fenced)) => return Err(StoreError::Fenced.into()),
            Err(error) => {
                self.collector.remove_orphan(ino);
                return Err(error);
            }
        }
        Ok(Privileges::Kept)
    }
}
