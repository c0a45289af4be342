//! The account of the inodes that one kernel was given and has not forgotten, and of its open files of them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use parking_lot::{Mutex, MutexGuard};

use crate::ambient;
use crate::document::{Ino, Name, Version};

const SHARDS: usize = 64;

/// Every change asks every other mount for each inode in it. The daemon itself gives out the numbers.
pub(super) type Shard = HashMap<Ino, Given, RandomState>;

/// What the kernel has of an inode.
#[derive(Clone, Debug, Default)]
pub(super) struct Given {
    /// How often it was given it and has not forgotten it.
    times: u64,
    pub(super) is_file: bool,
    /// How many open files it has of it.
    opens: u64,
    /// The newest version of it that an open has found, after which the kernel was told to ask again.
    pub(super) opened: Version,
    /// Of a directory: where it was told that it is.
    place: Option<Place>,
}

#[derive(Clone, Debug)]
struct Place {
    directory: Ino,
    name: Name,
    /// When it was told so first, if it was told another one before.
    moved: Option<Instant>,
}

/// For so long a kernel may not have accepted that a directory is in another one.
const MOVED_FOR: Duration = Duration::from_secs(10);

/// Where a directory is found, beside where the kernel was told before that it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FoundIn {
    /// In the same directory, or the kernel was told nothing.
    Same,
    /// Now in another one than this, where it had this name.
    Another(Ino, Name),
    /// In another one since a while, in which the kernel may have refused it.
    AnotherLately,
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
        self.of(ino).get(&ino).cloned()
    }

    /// It is about to be given an inode.
    pub(super) fn give(&self, ino: Ino, is_file: bool) {
        let mut shard = self.of(ino);
        let given = shard.entry(ino).or_default();
        given.times += 1;
        given.is_file = is_file;
    }

    /// It is about to be told in which directory, and under which name, this one is.
    pub(super) fn found_in(&self, ino: Ino, directory: Ino, name: &Name) -> FoundIn {
        let mut shard = self.of(ino);
        let Some(given) = shard.get_mut(&ino) else { return FoundIn::Same };
        let now = ambient::monotonic();
        let (found, moved) = match given.place.take() {
            Some(Place { directory: before, name, .. }) if before != directory => {
                (FoundIn::Another(before, name), Some(now))
            }
            Some(Place { moved: Some(since), .. }) if now.duration_since(since) < MOVED_FOR => {
                (FoundIn::AnotherLately, Some(since))
            }
            _ => (FoundIn::Same, None),
        };
        given.place = Some(Place { directory, name: name.clone(), moved });
        found
    }

    /// It has itself put a directory into this one, under this name.
    pub(super) fn put_into(&self, ino: Ino, directory: Ino, name: &Name) {
        if let Some(given) = self.of(ino).get_mut(&ino) {
            given.place = Some(Place { directory, name: name.clone(), moved: None });
        }
    }

    /// It has forgotten an inode that it was given so often.
    pub(super) fn take_back(&self, ino: Ino, times: u64) {
        if let Entry::Occupied(mut given) = self.of(ino).entry(ino) {
            given.get_mut().times = given.get().times.saturating_sub(times);
            if given.get().times == 0 {
                given.remove();
            }
        }
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
    fn a_directory_is_found_elsewhere_until_that_must_be_known() {
        let (known, moved) = (Known::new(), Ino(7));
        let name = |directory: u64| Name::new(format!("in{directory}").as_bytes()).unwrap();
        let found_in = |directory| known.found_in(moved, Ino(directory), &name(directory));
        assert_eq!([found_in(2), found_in(3)], [FoundIn::Same, FoundIn::Same], "the kernel does not have it");
        known.give(moved, false);
        assert_eq!([found_in(2), found_in(2)], [FoundIn::Same, FoundIn::Same]);
        assert_eq!([found_in(3), found_in(3)], [FoundIn::Another(Ino(2), name(2)), FoundIn::AnotherLately]);
        let mut shard = known.of(moved);
        let place = shard.get_mut(&moved).and_then(|given| given.place.as_mut()).unwrap();
        place.moved = place.moved.unwrap().checked_sub(MOVED_FOR);
        drop(shard);
        assert_eq!(found_in(3), FoundIn::Same);
        known.put_into(moved, Ino(4), &name(4));
        assert_eq!(found_in(4), FoundIn::Same, "the kernel has put it there itself");
        known.take_back(moved, 1);
        known.give(moved, false);
        assert_eq!(found_in(3), FoundIn::Same, "the kernel had forgotten it");
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
