//! Where a kernel has the directories that it was given.
//!
//! Linux has one name for a directory. One that is found elsewhere, since another host has moved it, is refused there as
//! long as the old name stands, so whoever finds it has the kernel let go of that. What is hard: to let go of a name that
//! leads right takes the directory from under those who work in it. So it is known of each place who was found there last,
//! and answers that were begun before this kernel has put a directory somewhere itself say nothing of where it is.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::ambient;
use crate::document::{EntryPosition, Ino, Name};

/// For so long a kernel may not have accepted that a directory is in another one.
const MOVED_FOR: Duration = Duration::from_secs(10);

/// Where a directory is found, beside where the kernel was told before that it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FoundIn {
    /// In the same directory, or the kernel was told nothing.
    Same,
    /// Now in another one than this, where it had this name.
    Another(Ino, Name),
    /// In another one since a while, in which the kernel may have refused it; or now, and its name is another's.
    AnotherLately,
}

#[derive(Clone, Debug)]
struct Place {
    directory: Ino,
    name: Name,
    /// When it was told so first, if it was told another one before.
    moved: Option<Instant>,
    /// When the kernel has put it there itself, if it has.
    put: Option<Instant>,
    /// Whether another one was found there since.
    is_anothers: bool,
}

impl Place {
    fn key(&self) -> (Ino, EntryPosition) {
        (self.directory, EntryPosition::of(self.name.as_bytes()))
    }
}

/// The places of one kernel's directories.
#[derive(Default)]
pub(super) struct Places(Mutex<State>);

#[derive(Default)]
struct State {
    of: HashMap<Ino, Place, RandomState>,
    /// Who was found there last.
    at: HashMap<(Ino, EntryPosition), Ino, RandomState>,
}

impl State {
    fn remove(&mut self, ino: Ino) -> Option<Place> {
        let place = self.of.remove(&ino)?;
        if self.at.get(&place.key()) == Some(&ino) {
            self.at.remove(&place.key());
        }
        Some(place)
    }

    fn put(&mut self, ino: Ino, place: Place) {
        if let Some(before) = self.at.insert(place.key(), ino)
            && before != ino
            && let Some(place) = self.of.get_mut(&before)
        {
            place.is_anothers = true;
        }
        self.of.insert(ino, place);
    }
}

impl Places {
    /// The kernel is about to be told in which directory, and under which name, this one is; it has asked at `asked`.
    pub(super) fn found_in(&self, ino: Ino, directory: Ino, name: &Name, asked: Instant) -> FoundIn {
        let mut state = self.0.lock();
        let now = ambient::monotonic();
        if state.of.get(&ino).and_then(|place| place.put).is_some_and(|put| asked <= put) {
            return FoundIn::Same;
        }
        let (found, moved) = match state.remove(ino) {
            Some(Place { directory: before, is_anothers: true, .. }) if before != directory => {
                (FoundIn::AnotherLately, Some(now))
            }
            Some(Place { directory: before, name, .. }) if before != directory => {
                (FoundIn::Another(before, name), Some(now))
            }
            Some(Place { moved: Some(since), .. }) if now.duration_since(since) < MOVED_FOR => {
                (FoundIn::AnotherLately, Some(since))
            }
            _ => (FoundIn::Same, None),
        };
        state.put(ino, Place { directory, name: name.clone(), moved, put: None, is_anothers: false });
        found
    }

    /// It has itself put a directory into this one, under this name.
    pub(super) fn put_into(&self, ino: Ino, directory: Ino, name: &Name) {
        let mut state = self.0.lock();
        state.remove(ino);
        let put = Some(ambient::monotonic());
        state.put(ino, Place { directory, name: name.clone(), moved: None, put, is_anothers: false });
    }

    /// It has forgotten a directory.
    pub(super) fn forget(&self, ino: Ino) {
        self.0.lock().remove(ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOVED: Ino = Ino(7);

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    fn found_in(places: &Places, directory: u64) -> FoundIn {
        places.found_in(MOVED, Ino(directory), &name("a"), ambient::monotonic())
    }

    #[test]
    fn a_directory_is_found_elsewhere_until_that_must_be_known() {
        let places = Places::default();
        let found_in = |directory| found_in(&places, directory);
        assert_eq!([found_in(2), found_in(2)], [FoundIn::Same, FoundIn::Same]);
        assert_eq!([found_in(3), found_in(3)], [FoundIn::Another(Ino(2), name("a")), FoundIn::AnotherLately]);
        let mut state = places.0.lock();
        let place = state.of.get_mut(&MOVED).unwrap();
        place.moved = place.moved.unwrap().checked_sub(MOVED_FOR);
        drop(state);
        assert_eq!(found_in(3), FoundIn::Same);
        places.put_into(MOVED, Ino(4), &name("a"));
        assert_eq!(found_in(4), FoundIn::Same, "the kernel has put it there itself");
        places.forget(MOVED);
        assert_eq!(found_in(3), FoundIn::Same, "the kernel had forgotten it");
        places.forget(MOVED);
        let state = places.0.lock();
        assert!(state.of.is_empty() && state.at.is_empty());
    }

    #[test]
    fn an_answer_from_before_the_kernel_s_own_rename_says_nothing() {
        let places = Places::default();
        let before = ambient::monotonic();
        assert_eq!(found_in(&places, 2), FoundIn::Same);
        places.put_into(MOVED, Ino(3), &name("a"));
        assert_eq!(places.found_in(MOVED, Ino(2), &name("a"), before), FoundIn::Same);
        assert_eq!(found_in(&places, 4), FoundIn::Another(Ino(3), name("a")));
    }

    #[test]
    fn the_old_name_of_one_is_let_alone_once_another_was_found_there() {
        let places = Places::default();
        assert_eq!(found_in(&places, 2), FoundIn::Same);
        let now = ambient::monotonic();
        assert_eq!(places.found_in(Ino(8), Ino(2), &name("a"), now), FoundIn::Same);
        assert_eq!(found_in(&places, 3), FoundIn::AnotherLately);
        assert_eq!(places.found_in(Ino(8), Ino(4), &name("a"), now), FoundIn::Another(Ino(2), name("a")));
        places.put_into(MOVED, Ino(4), &name("a"));
        assert_eq!(places.found_in(Ino(8), Ino(5), &name("a"), now), FoundIn::AnotherLately);
    }
}
