//! Where a kernel was told lately that directories are, and what it was told lately of the names in them: what it is to let
//! go of to find a directory where another host has put it.
//!
//! Linux has one dentry for a directory. A look that finds the directory in another one must move that dentry there, for
//! which it only tries the lock of all renames between directories (`__d_unalias` in Linux's fs/dcache.c): where these
//! follow each other without a pause, hardly any look gets it, and the others are refused (ESTALE). Without the dentry there
//! is nothing to move. A notice of the move makes it go, but not while anything below it is in use; and what renames that
//! wait for that lock use below it just then is kept afterwards, at a place where nobody finds it any more.
//!
//! So before a kernel is told that a directory is in another one than it was told before, and for a while whenever it asks
//! again, since it may have been refused, it lets go of what it was told of the directory and of all below it, as far as
//! that is not in use. (Which costs no more than looks.)

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use super::beliefs::Belief;
use super::lately::Lately;
use crate::ambient;
use crate::document::{Ino, Name};

/// The places that one kernel was told.
pub(super) struct Places {
    /// None for a kernel that no other host misleads.
    state: Option<Mutex<Lately<Part>>>,
}

/// What a kernel is to let go of, unless it is in use.
#[derive(Default, Debug, PartialEq, Eq)]
pub(super) struct Below {
    /// Each behind all that is below it.
    pub(super) inodes: Vec<Ino>,
    /// Names that lead to nothing, each in its directory.
    pub(super) names: Vec<(Ino, Name)>,
}

#[derive(Default)]
struct Part {
    /// What was told of the names in a directory; nothing of those that lead to nothing.
    names: HashMap<Ino, HashMap<Name, Option<Belief>, RandomState>, RandomState>,
    /// The places of directories.
    places: HashMap<Ino, Place, RandomState>,
    /// How many names there are.
    count: usize,
}

#[derive(Clone, Copy)]
struct Place {
    directory: Ino,
    /// When it was told first, if another one was told before.
    moved: Option<Instant>,
}

/// For so long after a move a look may be refused.
const REFUSALS: Duration = Duration::from_secs(2);
/// So many names are kept in each part.
const NAMES_MAX: usize = 1 << 12;

impl Places {
    /// Of a kernel that keeps names for `ttl` though other hosts may change them, if it does.
    pub(super) fn new(ttl: Option<Duration>) -> Self {
        Self { state: ttl.map(|ttl| Mutex::new(Lately::new(ttl))) }
    }

    /// The kernel is about to be told what a name leads to, if to anything. Returns what it is to let go of before.
    pub(super) fn learns(&self, directory: Ino, name: &[u8], told: Option<Belief>) -> Option<Below> {
        // Of the names of handles, `.` and `..`, it keeps nothing.
        let (Some(state), Ok(name)) = (&self.state, Name::new(name)) else { return None };
        let mut state = state.lock();
        state.part(Part::is_full).learn(directory, name, told);
        let found = told.and_then(Belief::directory)?;
        let now = ambient::monotonic();
        let moved = match state.place(found) {
            Some(before) if before.directory != directory => Some(now),
            Some(Place { moved: Some(since), .. }) if now.duration_since(since) < REFUSALS => Some(since),
            _ => None,
        };
        state.new.places.insert(found, Place { directory, moved });
        moved.map(|_| state.below(found))
    }

    /// The kernel itself has renamed, and takes its names for these, as far as that is known.
    pub(super) fn renamed(&self, names: [(Ino, &Name); 2], now: [Option<Belief>; 2]) {
        let Some(state) = &self.state else { return };
        let mut state = state.lock();
        for ((directory, name), belief) in names.into_iter().zip(now) {
            state.forget(directory, name);
            if let Some(belief) = belief {
                let part = state.part(Part::is_full);
                part.learn(directory, name.clone(), Some(belief));
                if let Some(found) = belief.directory() {
                    part.places.insert(found, Place { directory, moved: None });
                }
            }
        }
    }
}

impl Lately<Part> {
    fn place(&self, found: Ino) -> Option<Place> {
        self.new.places.get(&found).or_else(|| self.old.places.get(&found)).copied()
    }

    fn forget(&mut self, directory: Ino, name: &Name) {
        for part in [&mut self.new, &mut self.old] {
            let is_known = part.names.get_mut(&directory).and_then(|names| names.remove(name)).is_some();
            part.count -= usize::from(is_known);
        }
    }

    /// A directory and all that was told below it. A name that leads to nothing is let go of once: it is gone then.
    fn below(&mut self, directory: Ino) -> Below {
        let mut below = Below::default();
        let (mut seen, mut rest) = (HashSet::<Ino, RandomState>::default(), vec![directory]);
        while let Some(directory) = rest.pop() {
            if !seen.insert(directory) {
                continue;
            }
            below.inodes.push(directory);
            for part in [&mut self.new, &mut self.old] {
                let Some(names) = part.names.get_mut(&directory) else { continue };
                let before = names.len();
                names.retain(|name, told| {
                    match told.map(|told| (told.directory(), told.inode())) {
                        Some((Some(found), _)) => rest.push(found),
                        Some((None, found)) => below.inodes.extend(found),
                        None => below.names.push((directory, name.clone())),
                    }
                    told.is_some()
                });
                part.count -= before - names.len();
            }
        }
        below.inodes.reverse();
        below
    }
}

impl Part {
    fn is_full(&self) -> bool {
        self.count.max(self.places.len()) >= NAMES_MAX
    }

    fn learn(&mut self, directory: Ino, name: Name, told: Option<Belief>) {
        let is_new = self.names.entry(directory).or_default().insert(name, told).is_none();
        self.count += usize::from(is_new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Ino = Ino(2);
    const NEW: Ino = Ino(3);
    const MOVED: Ino = Ino(4);
    const LOWER: Ino = Ino(5);
    const FILE: Ino = Ino(6);

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    /// Looks at a directory.
    fn look(places: &Places, directory: Ino, text: &str, found: Ino) -> Option<Below> {
        places.learns(directory, text.as_bytes(), Some(Belief::directory_at(found)))
    }

    /// Below `old` is `moved` with `lower`, with a file and a free name.
    fn told() -> Places {
        let places = Places::new(Some(Duration::ZERO));
        assert_eq!(look(&places, OLD, "moved", MOVED), None);
        assert_eq!(look(&places, MOVED, "lower", LOWER), None);
        assert_eq!(places.learns(LOWER, b"file", Some(Belief::file_at(FILE))), None);
        assert_eq!(places.learns(LOWER, b"free", None), None);
        places
    }

    fn inodes(below: Option<Below>) -> Vec<Ino> {
        below.unwrap().inodes
    }

    #[test]
    fn all_below_a_directory_that_another_host_has_moved_is_let_go_of() {
        let places = told();
        let below = look(&places, NEW, "here", MOVED).unwrap();
        assert_eq!(below.inodes, [FILE, LOWER, MOVED], "the lowest first");
        assert_eq!(below.names, [(LOWER, name("free"))]);
        let again = look(&places, NEW, "here", MOVED).unwrap();
        assert_eq!(again.inodes, below.inodes, "they may have been in use");
        assert_eq!(again.names, []);
        places.learns(MOVED, b"free", None);
        assert_eq!(look(&places, NEW, "here", MOVED).unwrap().names, [(MOVED, name("free"))]);
        let mut state = places.state.as_ref().unwrap().lock();
        let place = state.new.places.get_mut(&MOVED).unwrap();
        place.moved = place.moved.unwrap().checked_sub(REFUSALS);
        drop(state);
        assert_eq!(look(&places, NEW, "here", MOVED), None, "no look is refused any more");
    }

    #[test]
    fn what_nobody_else_has_put_into_another_directory_is_kept() {
        let places = told();
        for text in ["moved", "renamed", "renamed"] {
            assert_eq!(look(&places, OLD, text, MOVED), None);
        }
        let (here, moved) = (name("here"), name("moved"));
        places.renamed([(OLD, &moved), (NEW, &here)], [None, Some(Belief::directory_at(MOVED))]);
        assert_eq!(look(&places, NEW, "here", MOVED), None);
        let alone = Places::new(None);
        for directory in [OLD, NEW] {
            assert_eq!(look(&alone, directory, "d", MOVED), None);
        }
    }

    #[test]
    fn what_the_kernel_has_renamed_is_below_its_new_place_alone() {
        let places = told();
        let (file, here) = (name("file"), name("here"));
        places.renamed([(LOWER, &file), (NEW, &here)], [None, Some(Belief::file_at(FILE))]);
        assert_eq!(inodes(look(&places, NEW, "x", MOVED)), [LOWER, MOVED]);
        look(&places, OLD, "new", NEW);
        let below = inodes(look(&places, LOWER, "new", NEW));
        assert!(below.contains(&FILE) && below.last() == Some(&NEW), "{below:?}");
    }

    #[test]
    fn directories_of_which_each_was_in_the_other_have_an_end() {
        let places = told();
        look(&places, LOWER, "loop", MOVED);
        assert_eq!(inodes(look(&places, NEW, "here", MOVED)).last(), Some(&MOVED));
    }

    #[test]
    fn names_are_kept_for_a_period_and_are_not_too_many() {
        let places = told();
        let state = places.state.as_ref().unwrap();
        state.lock().age();
        assert_eq!(inodes(look(&places, NEW, "here", MOVED)), [FILE, LOWER, MOVED]);
        for directory in [|ino| Ino(ino), |_| NEW] {
            (10..10 + 3 * NAMES_MAX as u64)
                .for_each(|ino| drop(look(&places, directory(ino), "d", Ino(ino))));
            let state = state.lock();
            for part in [&state.new, &state.old] {
                assert!(part.count <= NAMES_MAX && part.places.len() <= NAMES_MAX);
            }
        }
    }
}
