//! What a kernel takes names for, where other hosts change them: what it was told last.
//!
//! A rename goes by names. Linux then shows under the new one what it knew under the old one, and asks nobody. Where another
//! host has put something else there meanwhile, a path through the new name would lead astray: what is done next may be
//! done in another directory. So whoever has renamed compares what was moved with what the kernel takes the name for, and if
//! that is not surely the same, the kernel is to ask for every name again.
//!
//! What is hard: answers reach the kernel in another order than they are noted here, and it may hold on to what it was told
//! before. So a name of which different things were told within a while is taken for something unknown, and so is one of
//! which nothing was told.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use super::lately::Lately;
use crate::document::{EntryPosition, Ino, Name, Node};

/// A directory and the hash of a name in it.
type Place = (Ino, EntryPosition);

/// What a name is taken for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Belief {
    /// What was told last; none if that was that there is nothing, or if nothing was told.
    last: Option<Ino>,
    is_directory: bool,
    /// Whether something else may be what the kernel goes by.
    is_doubtful: bool,
}

impl Belief {
    pub(super) fn found(ino: Ino, node: &Node) -> Self {
        Self { last: Some(ino), is_directory: node.directory().is_some(), is_doubtful: false }
    }

    /// The directory that the name is taken for. What Linux takes to be replaced or removed it takes to be dead, for as long
    /// as anybody has it open; of what is no directory that does not matter.
    pub(super) fn directory(self) -> Option<Ino> {
        self.last.filter(|_| self.is_directory)
    }

    /// What the name is taken for.
    pub(super) fn inode(self) -> Option<Ino> {
        self.last
    }

    #[cfg(test)]
    pub(super) fn directory_at(ino: Ino) -> Self {
        Self { last: Some(ino), is_directory: true, is_doubtful: false }
    }

    #[cfg(test)]
    pub(super) fn file_at(ino: Ino) -> Self {
        Self { last: Some(ino), is_directory: false, is_doubtful: false }
    }

    /// Whether the kernel takes the name for this, and for nothing else.
    pub(super) fn is_surely(self, ino: Ino) -> bool {
        self.last == Some(ino) && !self.is_doubtful
    }
}

/// The beliefs of one kernel.
pub(super) struct Beliefs {
    /// None for a kernel that no other host misleads.
    state: Option<Mutex<Lately<Part>>>,
}

/// The least time for which a belief is kept, though the kernel may keep none for so long: replies can be slow to arrive.
const PERIOD_MIN: Duration = Duration::from_secs(1);

type Part = HashMap<Place, Belief, RandomState>;

/// So many are kept in each part, as a table of 2^17 places takes, of some 40 bytes each.
const NAMES_MAX: usize = (1 << 17) / 8 * 7;

impl Beliefs {
    /// Of a kernel that keeps names for `ttl` though other hosts may change them, if it does.
    pub(super) fn new(ttl: Option<Duration>) -> Self {
        Self { state: ttl.map(|ttl| Mutex::new(Lately::new((ttl * 2).max(PERIOD_MIN)))) }
    }

    /// Whether other hosts may mislead the kernel; if not, nothing is noted here.
    pub(super) fn matter(&self) -> bool {
        self.state.is_some()
    }

    /// The kernel is about to be told what a name leads to, if to anything.
    pub(super) fn learns(&self, directory: Ino, name: &[u8], told: Option<Belief>) {
        let Some(state) = &self.state else { return };
        let place = place(directory, name);
        let mut state = state.lock();
        match (state.get(&place), told) {
            (None, None) => {}
            (None, Some(told)) => state.set(place, told),
            (Some(before), told) => {
                let told = told.unwrap_or_default();
                let is_doubtful = before.is_doubtful || before.last != told.last;
                state.set(place, Belief { is_doubtful, ..told });
            }
        }
    }

    /// The kernel knows that a name is free, since it has freed it.
    pub(super) fn freed(&self, directory: Ino, name: &[u8]) {
        if let Some(state) = &self.state {
            state.lock().forget(&place(directory, name));
        }
    }

    /// What the kernel takes a name for.
    pub(super) fn of(&self, directory: Ino, name: &Name) -> Belief {
        let Some(state) = &self.state else { return Belief::default() };
        state.lock().get(&place(directory, name.as_bytes())).unwrap_or_default()
    }

    /// A rename has ended, after which the kernel takes its names for these, as far as that is known.
    pub(super) fn renamed(&self, names: [(Ino, &Name); 2], now: [Option<Belief>; 2]) {
        let Some(state) = &self.state else { return };
        let mut state = state.lock();
        for ((directory, name), belief) in names.into_iter().zip(now) {
            let place = place(directory, name.as_bytes());
            match belief {
                Some(belief) => state.set(place, belief),
                None => state.forget(&place),
            }
        }
    }
}

impl Lately<Part> {
    fn get(&self, place: &Place) -> Option<Belief> {
        self.new.get(place).or_else(|| self.old.get(place)).copied()
    }

    fn set(&mut self, place: Place, belief: Belief) {
        self.part(|part| part.len() >= NAMES_MAX).insert(place, belief);
    }

    fn forget(&mut self, place: &Place) {
        self.new.remove(place);
        self.old.remove(place);
    }
}

fn place(directory: Ino, name: &[u8]) -> Place {
    (directory, EntryPosition::of(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(7);

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    fn beliefs() -> Beliefs {
        Beliefs::new(Some(Duration::ZERO))
    }

    fn file(ino: u64) -> Belief {
        Belief::file_at(Ino(ino))
    }

    #[test]
    fn a_name_is_taken_for_what_was_told_unless_that_was_several_things() {
        let beliefs = beliefs();
        let tell = |ino: Option<u64>| beliefs.learns(DIR, b"a", ino.map(file));
        let is_surely = |ino| beliefs.of(DIR, &name("a")).is_surely(Ino(ino));
        tell(None);
        assert_eq!(beliefs.of(DIR, &name("a")), Belief::default());
        tell(Some(8));
        tell(Some(8));
        assert!(is_surely(8) && !is_surely(9));
        // Who still holds on to the first is not told of here.
        for others in [&[Some(9)][..], &[None, Some(9)], &[Some(9), Some(8)]] {
            beliefs.freed(DIR, b"a");
            tell(Some(8));
            others.iter().for_each(|ino| tell(*ino));
            assert!(!is_surely(8) && !is_surely(9), "{others:?}");
            assert_eq!(beliefs.of(DIR, &name("a")).last, others.last().unwrap().map(Ino));
        }
        beliefs.freed(DIR, b"a");
        tell(Some(9));
        assert!(is_surely(9));
    }

    #[test]
    fn a_directory_is_meant_until_the_name_is_free() {
        let beliefs = beliefs();
        beliefs.learns(DIR, b"a", Some(Belief::directory_at(Ino(8))));
        assert_eq!(beliefs.of(DIR, &name("a")).directory(), Some(Ino(8)));
        beliefs.learns(DIR, b"a", None);
        assert_eq!(beliefs.of(DIR, &name("a")).directory(), None);
        beliefs.learns(DIR, b"a", Some(file(9)));
        assert_eq!(beliefs.of(DIR, &name("a")).directory(), None);
    }

    #[test]
    fn what_was_renamed_is_known_at_its_new_name() {
        let beliefs = beliefs();
        let (a, b) = (name("a"), name("b"));
        beliefs.learns(DIR, b"b", Some(file(7)));
        beliefs.renamed([(DIR, &a), (DIR, &b)], [None, Some(file(8))]);
        assert!(beliefs.of(DIR, &b).is_surely(Ino(8)));
        beliefs.renamed([(DIR, &a), (DIR, &b)], [Some(file(8)), Some(file(9))]);
        assert!(beliefs.of(DIR, &a).is_surely(Ino(8)) && beliefs.of(DIR, &b).is_surely(Ino(9)));
        beliefs.renamed([(DIR, &a), (DIR, &b)], [None; 2]);
        assert_eq!([&a, &b].map(|name| beliefs.of(DIR, name)), [Belief::default(); 2]);
    }

    #[test]
    fn a_belief_is_kept_for_a_period_at_least_and_not_for_ever() {
        let beliefs = beliefs();
        let is_kept = || beliefs.of(DIR, &name("a")).last.is_some();
        let age = || {
            beliefs.state.as_ref().unwrap().lock().age();
            beliefs.learns(DIR, b"other", Some(file(1)));
        };
        beliefs.learns(DIR, b"a", Some(file(8)));
        age();
        assert!(is_kept());
        age();
        assert!(!is_kept());
        beliefs.learns(DIR, b"a", Some(file(8)));
        (0..2 * NAMES_MAX as u64).for_each(|ino| beliefs.learns(Ino(ino), b"n", Some(file(ino))));
        assert!(!is_kept() && beliefs.state.as_ref().unwrap().lock().new.len() <= NAMES_MAX);
    }
}
