//! What a kernel was told lately of the names in each directory: what it is to let go of, so that it finds a directory where
//! another host has put it.
//!
//! Linux has one dentry for a directory. A look that finds the directory in another one must move that dentry there, for
//! which it only tries the lock of all renames between directories (`__d_unalias` in Linux's fs/dcache.c): where these
//! follow each other without a pause, hardly any look gets it, and the others are refused (ESTALE). Without the dentry there
//! is nothing to move. A notice of the move makes it go, but not while anything below it is in use; and what renames that
//! wait for that lock use below it just then is kept afterwards, at a place where nobody finds it any more.
//!
//! So before a kernel is told that a directory is in another one than it was told before
//! ([`Known::found_in`](super::known::Known::found_in)), and for a while whenever it asks again, since it may have been
//! refused, it lets go of what it was told of the directory and of all below it, as far as that is not in use. What it keeps
//! below since long before is not known here any more.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use super::beliefs::Belief;
use super::lately::Lately;
use crate::document::{Ino, Name};

/// The names that one kernel was told, by their directories.
pub(super) struct Below {
    /// None for a kernel that no other host misleads.
    state: Option<Mutex<Lately<Part>>>,
}

/// What a kernel is to let go of, unless it is in use.
#[derive(Default, Debug, PartialEq, Eq)]
pub(super) struct Unused {
    /// Each behind all that is below it.
    pub(super) inodes: Vec<Ino>,
    /// Names that lead to nothing, each in its directory.
    pub(super) names: Vec<(Ino, Name)>,
}

#[derive(Default)]
struct Part {
    /// What was told of each name; nothing of one that leads to nothing.
    directories: HashMap<Ino, HashMap<Name, Option<Belief>, RandomState>, RandomState>,
    /// How many names there are.
    count: usize,
}

/// A name is told anew when a path goes through it, and in use for as long as a rename waits.
const PERIOD: Duration = Duration::from_secs(10);
/// So many names are kept in each part.
const NAMES_MAX: usize = 1 << 12;

impl Below {
    /// Of a kernel that other hosts mislead, or of another one.
    pub(super) fn new(is_misled: bool) -> Self {
        Self { state: is_misled.then(|| Mutex::new(Lately::new(PERIOD))) }
    }

    /// The kernel is about to be told what a name leads to, if to anything.
    pub(super) fn learns(&self, directory: Ino, name: &[u8], told: Option<Belief>) {
        // Of the names of handles, `.` and `..`, it keeps nothing.
        if let (Some(state), Ok(name)) = (&self.state, Name::new(name)) {
            state.lock().learn(directory, name, told);
        }
    }

    /// The kernel itself has renamed, and takes its names for these, as far as that is known.
    pub(super) fn renamed(&self, names: [(Ino, &Name); 2], now: [Option<Belief>; 2]) {
        let Some(state) = &self.state else { return };
        let mut state = state.lock();
        for ((directory, name), belief) in names.into_iter().zip(now) {
            match belief {
                Some(_) => state.learn(directory, name.clone(), belief),
                None => state.forget(directory, name),
            }
        }
    }

    /// A directory and all that was told below it. A name that leads to nothing is let go of once: it is gone then.
    pub(super) fn take(&self, directory: Ino) -> Unused {
        self.state.as_ref().map(|state| state.lock().take(directory)).unwrap_or_default()
    }
}

impl Lately<Part> {
    fn learn(&mut self, directory: Ino, name: Name, told: Option<Belief>) {
        self.part(|part| part.count >= NAMES_MAX);
        // Behind that, which may make the old part of the new one.
        let Self { new: part, old, .. } = self;
        old.forget(directory, &name);
        let is_new = part.directories.entry(directory).or_default().insert(name, told).is_none();
        part.count += usize::from(is_new);
    }

    fn forget(&mut self, directory: Ino, name: &Name) {
        self.new.forget(directory, name);
        self.old.forget(directory, name);
    }

    fn take(&mut self, directory: Ino) -> Unused {
        let mut unused = Unused::default();
        let (mut seen, mut rest) = (HashSet::<Ino, RandomState>::default(), vec![directory]);
        while let Some(directory) = rest.pop() {
            if !seen.insert(directory) {
                continue;
            }
            unused.inodes.push(directory);
            for part in [&mut self.new, &mut self.old] {
                part.keep(directory, |name, told| {
                    match told.map(|told| (told.directory(), told.inode())) {
                        Some((Some(found), _)) => rest.push(found),
                        Some((None, found)) => unused.inodes.extend(found),
                        None => unused.names.push((directory, name.clone())),
                    }
                    told.is_some()
                });
            }
        }
        unused.inodes.reverse();
        unused
    }
}

impl Part {
    fn forget(&mut self, directory: Ino, name: &Name) {
        let Entry::Occupied(mut names) = self.directories.entry(directory) else { return };
        self.count -= usize::from(names.get_mut().remove(name).is_some());
        if names.get().is_empty() {
            names.remove();
        }
    }

    /// Keeps some of the names in a directory.
    fn keep(&mut self, directory: Ino, mut is_kept: impl FnMut(&Name, &Option<Belief>) -> bool) {
        let Entry::Occupied(mut names) = self.directories.entry(directory) else { return };
        let before = names.get().len();
        names.get_mut().retain(|name, told| is_kept(name, told));
        self.count -= before - names.get().len();
        if names.get().is_empty() {
            names.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(3);
    const MOVED: Ino = Ino(4);
    const LOWER: Ino = Ino(5);
    const FILE: Ino = Ino(6);

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    fn lower() -> Belief {
        Belief::directory_at(LOWER)
    }

    fn file() -> Belief {
        Belief::file_at(FILE)
    }

    /// In `moved` is `lower`, with a file and a free name.
    fn told() -> Below {
        let below = Below::new(true);
        below.learns(MOVED, b"lower", Some(lower()));
        below.learns(LOWER, b"file", Some(file()));
        below.learns(LOWER, b"free", None);
        below.learns(LOWER, b"..", Some(Belief::directory_at(MOVED)));
        below
    }

    #[test]
    fn all_that_was_told_below_a_directory_is_let_go_of() {
        let below = told();
        let unused = below.take(MOVED);
        assert_eq!(unused.inodes, [FILE, LOWER, MOVED], "the lowest first");
        assert_eq!(unused.names, [(LOWER, name("free"))]);
        let again = below.take(MOVED);
        assert_eq!((again.inodes, again.names), (unused.inodes, vec![]), "inodes may have been in use");
        below.learns(LOWER, b"free", None);
        assert_eq!(below.take(LOWER).names, [(LOWER, name("free"))]);
        assert_eq!(Below::new(false).take(MOVED), Unused::default());
    }

    #[test]
    fn what_the_kernel_has_renamed_is_below_its_new_place_alone() {
        let below = told();
        below.renamed([(LOWER, &name("file")), (DIR, &name("here"))], [None, Some(file())]);
        assert_eq!(below.take(MOVED).inodes, [LOWER, MOVED]);
        assert_eq!(below.take(DIR).inodes, [FILE, DIR]);
    }

    #[test]
    fn what_was_told_last_counts() {
        let below = told();
        below.state.as_ref().unwrap().lock().age();
        below.learns(LOWER, b"free", Some(Belief::file_at(Ino(9))));
        below.learns(LOWER, b"file", None);
        let unused = below.take(MOVED);
        assert_eq!((unused.inodes, unused.names), (vec![Ino(9), LOWER, MOVED], vec![(LOWER, name("file"))]));
    }

    #[test]
    fn directories_of_which_each_was_in_the_other_have_an_end() {
        let below = told();
        below.learns(LOWER, b"loop", Some(Belief::directory_at(MOVED)));
        assert_eq!(below.take(MOVED).inodes.last(), Some(&MOVED));
    }

    #[test]
    fn names_are_kept_for_a_period_and_are_not_too_many() {
        let below = told();
        let state = below.state.as_ref().unwrap();
        state.lock().age();
        below.learns(DIR, b"new", None);
        assert_eq!(below.take(MOVED).inodes, [FILE, LOWER, MOVED]);
        state.lock().age();
        below.learns(DIR, b"newer", None);
        assert_eq!(below.take(MOVED).inodes, [MOVED]);
        (10..10 + 3 * NAMES_MAX as u64).for_each(|ino| below.learns(Ino(ino), b"f", Some(file())));
        let state = state.lock();
        assert_eq!(
            [&state.new, &state.old].map(|part| part.directories.len().max(part.count) <= NAMES_MAX),
            [true; 2]
        );
    }
}
