//! Where a kernel was told lately that directories are, and what it was told lately of the names in them: what it must let
//! go of to find a directory where another host has put it.
//!
//! Linux has one dentry for a directory. A look that finds the directory at another place must move that dentry there, for
//! which it only tries the lock of all renames between directories (`__d_unalias` in Linux's fs/dcache.c): where these
//! follow each other without a pause, hardly any look gets it, and the others are refused (ESTALE). Without the dentry there
//! is nothing to move. A notice of the move makes it go, but not while anything below it is kept; and what was in use below
//! it just then, by renames that wait for that lock, is kept afterwards at a place where nobody finds it any more.
//!
//! What is hard: a kernel does not say that it has refused a look. But it looks again at once, though it was just told where
//! the directory is. Then all is to go that it was told of what is below, in use or not: what is in use goes when it is not.

use std::collections::HashMap;
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

#[derive(Default)]
struct Part {
    /// The names by directory, each with the directory that it leads to, if it does.
    names: HashMap<Ino, Names, RandomState>,
    /// The places of directories.
    places: HashMap<Ino, Place, RandomState>,
    /// How many names there are.
    count: usize,
}

type Names = HashMap<Name, Option<Ino>, RandomState>;

#[derive(Clone)]
struct Place {
    directory: Ino,
    name: Name,
    told: Instant,
    /// Another place that was told before, and when this one was first.
    moved: Option<(Ino, Name, Instant)>,
}

/// Who asks again so soon was refused.
const AGAIN: Duration = Duration::from_millis(10);
/// For so long after a move a look may be refused.
const REFUSALS: Duration = Duration::from_secs(2);
/// So many names are kept in each part.
const NAMES_MAX: usize = 1 << 12;

impl Places {
    /// Of a kernel that keeps names for `ttl` though other hosts may change them, if it does.
    pub(super) fn new(ttl: Option<Duration>) -> Self {
        Self { state: ttl.map(|ttl| Mutex::new(Lately::new(ttl))) }
    }

    /// The kernel is about to be told what a name leads to, if to anything. Returns the names, each in its directory, that
    /// it is to let go of before.
    pub(super) fn learns(&self, directory: Ino, name: &[u8], told: Option<Belief>) -> Vec<(Ino, Name)> {
        let mut gone = Vec::new();
        // Of the names of handles, `.` and `..`, it keeps nothing.
        let (Some(state), Ok(name)) = (&self.state, Name::new(name)) else { return gone };
        let found = told.and_then(Belief::directory);
        let mut state = state.lock();
        state.part(Part::is_full).name(directory, name.clone(), found);
        let Some(found) = found else { return gone };
        let now = ambient::monotonic();
        let moved = match state.place(found) {
            None => None,
            Some(before) if before.directory != directory || before.name != name => {
                Some((before.directory, before.name, now))
            }
            Some(before) => before.moved.filter(|(old, name, since)| {
                let is_lately = now.duration_since(*since) < REFUSALS;
                if is_lately && now.duration_since(before.told) < AGAIN {
                    gone.push((*old, name.clone()));
                }
                is_lately
            }),
        };
        if !gone.is_empty() {
            gone.extend(state.take_below(found));
        }
        state.new.places.insert(found, Place { directory, name, told: now, moved });
        gone
    }

    /// The kernel itself has put a directory there.
    pub(super) fn put(&self, found: Ino, directory: Ino, name: &Name) {
        let Some(state) = &self.state else { return };
        let mut state = state.lock();
        let part = state.part(Part::is_full);
        part.name(directory, name.clone(), Some(found));
        let told = ambient::monotonic();
        part.places.insert(found, Place { directory, name: name.clone(), told, moved: None });
    }
}

impl Lately<Part> {
    fn place(&self, found: Ino) -> Option<Place> {
        self.new.places.get(&found).or_else(|| self.old.places.get(&found)).cloned()
    }

    /// Takes out the names below a directory.
    fn take_below(&mut self, directory: Ino) -> Vec<(Ino, Name)> {
        let (mut below, mut rest) = (Vec::new(), vec![directory]);
        while let Some(directory) = rest.pop() {
            let parts = [&mut self.new, &mut self.old].map(|part| part.take(directory));
            for (name, found) in parts.into_iter().flatten() {
                below.push((directory, name));
                rest.extend(found);
            }
        }
        below
    }
}

impl Part {
    fn is_full(&self) -> bool {
        self.count.max(self.places.len()) >= NAMES_MAX
    }

    fn name(&mut self, directory: Ino, name: Name, found: Option<Ino>) {
        let is_new = self.names.entry(directory).or_default().insert(name, found).is_none();
        self.count += usize::from(is_new);
    }

    fn take(&mut self, directory: Ino) -> Names {
        let names = self.names.remove(&directory).unwrap_or_default();
        self.count -= names.len();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Ino = Ino(2);
    const NEW: Ino = Ino(3);
    const MOVED: Ino = Ino(4);
    const BELOW: Ino = Ino(5);
    const FILE: Ino = Ino(6);

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    fn places() -> Places {
        Places::new(Some(Duration::ZERO))
    }

    /// Looks at a directory.
    fn look(places: &Places, directory: Ino, text: &str, found: Ino) -> Vec<(Ino, Name)> {
        let mut gone = places.learns(directory, text.as_bytes(), Some(Belief::directory_at(found)));
        gone.sort();
        gone
    }

    /// Below `old` is `moved` with `below`, with a file and a free name.
    fn told() -> Places {
        let places = places();
        assert_eq!(look(&places, OLD, "moved", MOVED), []);
        assert_eq!(look(&places, MOVED, "below", BELOW), []);
        assert_eq!(places.learns(BELOW, b"file", Some(Belief::file_at(FILE))), []);
        assert_eq!(places.learns(BELOW, b"free", None), []);
        places
    }

    fn later(places: &Places, time: Duration) {
        let mut state = places.state.as_ref().unwrap().lock();
        let back = |place: &mut Place| {
            place.told = place.told.checked_sub(time).unwrap();
            if let Some((_, _, since)) = &mut place.moved {
                *since = since.checked_sub(time).unwrap();
            }
        };
        state.new.places.values_mut().for_each(back);
    }

    #[test]
    fn who_is_refused_lets_go_of_the_old_place_and_of_all_below() {
        let places = told();
        assert_eq!(look(&places, NEW, "here", MOVED), []);
        let all = [(OLD, "moved"), (MOVED, "below"), (BELOW, "file"), (BELOW, "free")];
        assert_eq!(look(&places, NEW, "here", MOVED), all.map(|(directory, text)| (directory, name(text))));
        assert_eq!(look(&places, NEW, "here", MOVED), [(OLD, name("moved"))], "the rest is gone already");
        places.learns(BELOW, b"file", None);
        look(&places, MOVED, "below", BELOW);
        let again = [(OLD, "moved"), (MOVED, "below"), (BELOW, "file")];
        assert_eq!(look(&places, NEW, "here", MOVED), again.map(|(directory, text)| (directory, name(text))));
    }

    #[test]
    fn who_looks_again_later_was_not_refused() {
        let places = told();
        look(&places, NEW, "here", MOVED);
        later(&places, AGAIN);
        assert_eq!(look(&places, NEW, "here", MOVED), []);
        assert_ne!(look(&places, NEW, "here", MOVED), []);
        later(&places, REFUSALS);
        assert_eq!(look(&places, NEW, "here", MOVED), []);
        assert_eq!(look(&places, NEW, "here", MOVED), []);
    }

    #[test]
    fn what_nobody_else_has_moved_is_kept() {
        let places = told();
        assert_eq!(look(&places, OLD, "moved", MOVED), []);
        places.put(MOVED, NEW, &name("here"));
        for _ in 0..2 {
            assert_eq!(look(&places, NEW, "here", MOVED), []);
        }
        let alone = Places::new(None);
        for directory in [OLD, NEW, NEW] {
            assert_eq!(look(&alone, directory, "d", MOVED), []);
        }
    }

    #[test]
    fn directories_that_each_were_in_the_other_have_an_end() {
        let places = told();
        look(&places, NEW, "here", BELOW);
        look(&places, BELOW, "there", MOVED);
        let gone = look(&places, BELOW, "there", MOVED);
        assert_eq!(gone.len(), 5, "{gone:?}");
    }

    #[test]
    fn names_are_kept_for_a_period_and_are_not_too_many() {
        let places = told();
        let state = places.state.as_ref().unwrap();
        state.lock().age();
        look(&places, NEW, "here", MOVED);
        assert_eq!(look(&places, NEW, "here", MOVED).len(), 4);
        let places = told();
        let state = places.state.as_ref().unwrap();
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
