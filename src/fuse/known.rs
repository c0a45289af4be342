//! The account of the inodes that one kernel was given and has not forgotten, and of its open files of them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use foldhash::fast::RandomState;
use parking_lot::{Mutex, MutexGuard};

use crate::document::{Ino, Version};

const SHARDS: usize = 64;

/// Every change asks every other mount for each inode in it. The daemon itself gives out the numbers.
pub(super) type Shard = HashMap<Ino, Given, RandomState>;

/// What the kernel has of an inode.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Given {
    /// How often it was given it and has not forgotten it.
    times: u64,
    pub(super) is_file: bool,
    /// How many open files it has of it.
    opens: u64,
    /// The newest version of it that an open has found, after which the kernel was told to ask again.
    pub(super) opened: Version,
}

impl Given {
    /// Whether the kernel may use pages of it before it drops them by itself, which it does when it opens a file anew. A
    /// notice of bytes that nobody has open would only make void the answer to a GETATTR that it overtakes, and the kernel
    /// then judges who may open the file by what it knew before.
    pub(super) fn may_have_pages(&self) -> bool {
        self.opens > 0
    }
}

pub(super) struct Known {
    shards: [Mutex<Shard>; SHARDS],
}

impl Known {
    pub(super) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    /// The part of the account in which an inode is.
    pub(super) fn of(&self, ino: Ino) -> MutexGuard<'_, Shard> {
        self.shards[(ino.0 % SHARDS as u64) as usize].lock()
    }

    /// What the kernel has of an inode, if it has it.
    pub(super) fn get(&self, ino: Ino) -> Option<Given> {
        self.of(ino).get(&ino).copied()
    }

    /// It is about to be given an inode.
    pub(super) fn give(&self, ino: Ino, is_file: bool) {
        let mut shard = self.of(ino);
        let given = shard.entry(ino).or_default();
        given.times += 1;
        given.is_file = is_file;
    }

    /// It has forgotten an inode that it was given so often. Returns whether that was the last of what is no file.
    pub(super) fn take_back(&self, ino: Ino, times: u64) -> bool {
        let mut shard = self.of(ino);
        let Entry::Occupied(mut given) = shard.entry(ino) else { return false };
        given.get_mut().times = given.get().times.saturating_sub(times);
        given.get().times == 0 && !given.remove().is_file
    }

    /// It is about to be told that a file of an inode is open, which it was given before.
    pub(super) fn open(&self, ino: Ino) {
        if let Some(given) = self.of(ino).get_mut(&ino) {
            given.opens += 1;
        }
    }

    /// Those of which it has open files. No part of the account is held between one and the next.
    pub(super) fn open_files(&self) -> impl Iterator<Item = Ino> {
        self.shards.iter().flat_map(|shard| {
            let shard = shard.lock();
            let open = shard.iter().filter(|(_, given)| given.may_have_pages());
            open.map(|(ino, _)| *ino).collect::<Vec<_>>()
        })
    }

    /// It has closed one.
    pub(super) fn close(&self, ino: Ino) {
        if let Some(given) = self.of(ino).get_mut(&ino) {
            given.opens = given.opens.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_known_until_it_is_forgotten_as_often_as_it_was_given() {
        let known = Known::new();
        assert!(known.get(Ino(7)).is_none());
        known.give(Ino(7), true);
        known.give(Ino(7), true);
        known.take_back(Ino(7), 1);
        assert!(known.get(Ino(7)).is_some());
        known.take_back(Ino(7), 1);
        assert!(known.get(Ino(7)).is_none());
        known.take_back(Ino(7), 1);
        known.give(Ino(7), true);
        assert!(known.get(Ino(7)).is_some(), "what was taken back too often does not count");
    }

    #[test]
    fn there_are_pages_of_open_files_alone() {
        let known = Known::new();
        let may_have_pages = || known.get(Ino(7)).is_some_and(|given| given.may_have_pages());
        known.open(Ino(7));
        known.give(Ino(7), true);
        assert!(!may_have_pages());
        known.open(Ino(7));
        known.open(Ino(7));
        known.close(Ino(7));
        assert!(may_have_pages());
        known.close(Ino(7));
        assert!(!may_have_pages());
    }
}
