//! Opening and closing regular files.

use std::collections::hash_map::Entry;

use crate::document::{Ino, Key};
use crate::namespace::collect::{delete_inode, is_apart};
use crate::namespace::{Found, Namespace, NamespaceError, Result};
use crate::store::Commit;

use super::make::Make;

impl Namespace {
    /// Opens a file: it is kept until it is closed as often as it was opened, names or not.
    ///
    /// # Errors
    /// `NotFound` if it has been removed.
    pub fn open(&self, ino: Ino) -> Result<()> {
        let pin = self.inodes.pin(ino);
        let mut life = pin.life.lock();
        self.live_node(ino)?;
        life.opens += 1;
        self.count_open(ino);
        Ok(())
    }

    /// Makes a node under a free name, and opens it.
    ///
    /// # Errors
    /// As [`Namespace::make`].
    pub fn create(&self, make: &Make<'_>) -> Result<Found> {
        let ino = self.numbers.take()?;
        // Opened before it has a name: whoever unlinks it at once finds it open.
        let pin = self.inodes.pin(ino);
        pin.life.lock().opens += 1;
        let made = self.make_as(ino, make).inspect_err(|_| pin.life.lock().opens -= 1)?;
        self.count_open(ino);
        Ok(made)
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
    /// When the store fails; the next mount then collects what is left.
    pub fn close_file(&self, ino: Ino) -> Result<()> {
        let pin = self.inodes.pin(ino);
        let mut life = pin.life.lock();
        life.opens = life.opens.checked_sub(1).ok_or(NamespaceError::Invalid("the file is not open"))?;
        self.count_close(ino);
        if life.opens > 0 || !life.orphaned {
            return Ok(());
        }
        let backed = self.retry(|| {
            let (version, node) = self.live_node(ino)?;
            let backed = is_apart(&node);
            let commit = Commit::new().at(Key::Node(ino), version);
            let mut commit = delete_inode(&*self.store, ino, &node, commit)?;
            if !backed {
                commit = commit.delete(Key::Orphan(ino));
            }
            self.inodes.bury(ino, node);
            self.commit(&commit)?;
            Ok(backed)
        })?;
        if backed {
            self.collector.remove_content(ino);
        }
        Ok(())
    }
}
