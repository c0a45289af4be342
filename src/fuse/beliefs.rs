//! What a kernel takes names for, where other hosts change them: what it was told last.
//!
//! A rename goes by names. Linux then shows under the new one what it knew under the old one, and asks nobody. Where another
//! host has put something else there meanwhile, a path through the new name would lead astray: what is done next may be
//! done in another directory. So a rename says what the kernel takes its names for, and if one of them leads elsewhere it is
//! sent to look again ([`NamespaceError::Stale`](crate::namespace::NamespaceError::Stale)); Linux does so once.
//!
//! A name that others change all the time could be sent away each time. So the second time it is doubted: it moves whatever
//! is there, and the kernel is told to let go of both names.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::ambient;
use crate::document::{EntryPosition, Ino, Name};

/// A directory and the hash of a name in it.
type Place = (Ino, EntryPosition);

/// The beliefs of one kernel.
pub(super) struct Beliefs {
    /// None for a kernel that no other host misleads.
    period: Option<Duration>,
    state: Mutex<State>,
}

/// In two parts, of which the old one is dropped as a whole: nothing is kept for less than one period, unless there is more
/// than [`NAMES_MAX`].
struct State {
    begun: Instant,
    new: HashMap<Place, Ino, RandomState>,
    old: HashMap<Place, Ino, RandomState>,
    /// The names of renames that were sent to look again.
    doubted: HashSet<Place, RandomState>,
}

/// The least time for which a belief is kept, though the kernel may keep none for so long: replies can be slow to arrive.
const PERIOD_MIN: Duration = Duration::from_secs(1);
/// So many are kept in each part, of some 40 bytes each. What is not kept is not checked.
const NAMES_MAX: usize = 1 << 17;
/// Who is sent to look again comes back at once, or never.
const DOUBTED_MAX: usize = 256;

impl Beliefs {
    /// Of a kernel that keeps names for `ttl` though other hosts may change them, if it does.
    pub(super) fn new(ttl: Option<Duration>) -> Self {
        let state = State {
            begun: ambient::monotonic(),
            new: HashMap::default(),
            old: HashMap::default(),
            doubted: HashSet::default(),
        };
        Self { period: ttl.map(|ttl| (ttl * 2).max(PERIOD_MIN)), state: Mutex::new(state) }
    }

    /// The kernel is about to be told what a name leads to, if to anything.
    pub(super) fn learns(&self, directory: Ino, name: &[u8], leads_to: Option<Ino>) {
        if let Some(period) = self.period {
            self.state.lock().set(period, place(directory, name), leads_to);
        }
    }

    /// What the kernel takes these names for, as far as it matters.
    pub(super) fn taken_for(&self, names: [(Ino, &Name); 2]) -> [Option<Ino>; 2] {
        let state = self.state.lock();
        let places = names.map(|(directory, name)| place(directory, name.as_bytes()));
        if places.iter().any(|place| state.doubted.contains(place)) {
            return [None; 2];
        }
        places.map(|place| state.get(&place))
    }

    /// A rename was sent to look again.
    pub(super) fn doubt(&self, names: [(Ino, &Name); 2]) {
        let mut state = self.state.lock();
        if state.doubted.len() >= DOUBTED_MAX {
            state.doubted.clear();
        }
        state.doubted.extend(names.map(|(directory, name)| place(directory, name.as_bytes())));
    }

    /// The first name was renamed to the second, or they were exchanged. Whether it was doubted what they are.
    pub(super) fn renamed(&self, names: [(Ino, &Name); 2], is_exchange: bool) -> bool {
        let Some(period) = self.period else { return false };
        let [from, to] = names.map(|(directory, name)| place(directory, name.as_bytes()));
        let mut state = self.state.lock();
        let [moved, replaced] = [from, to].map(|place| state.get(&place));
        state.set(period, to, moved);
        state.set(period, from, replaced.filter(|_| is_exchange));
        let [one, other] = [from, to].map(|place| state.doubted.remove(&place));
        one || other
    }
}

impl State {
    fn get(&self, place: &Place) -> Option<Ino> {
        self.new.get(place).or_else(|| self.old.get(place)).copied()
    }

    fn set(&mut self, period: Duration, place: Place, leads_to: Option<Ino>) {
        let Some(ino) = leads_to else {
            self.new.remove(&place);
            self.old.remove(&place);
            return;
        };
        if self.new.len() >= NAMES_MAX || self.begun.elapsed() > period {
            self.begun = ambient::monotonic();
            std::mem::swap(&mut self.new, &mut self.old);
            self.new.clear();
        }
        self.new.insert(place, ino);
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

    #[test]
    fn a_name_is_taken_for_what_was_said_last() {
        let beliefs = Beliefs::new(Some(Duration::ZERO));
        let (a, b) = (name("a"), name("b"));
        let taken_for = || beliefs.taken_for([(DIR, &a), (DIR, &b)]);
        assert_eq!(taken_for(), [None, None]);
        beliefs.learns(DIR, b"a", Some(Ino(8)));
        beliefs.learns(DIR, b"a", Some(Ino(9)));
        assert_eq!(taken_for(), [Some(Ino(9)), None]);
        assert!(!beliefs.renamed([(DIR, &a), (DIR, &b)], false));
        assert_eq!(taken_for(), [None, Some(Ino(9))]);
        beliefs.learns(DIR, b"a", Some(Ino(10)));
        beliefs.renamed([(DIR, &a), (DIR, &b)], true);
        assert_eq!(taken_for(), [Some(Ino(9)), Some(Ino(10))]);
        beliefs.learns(DIR, b"a", None);
        assert_eq!(taken_for(), [None, Some(Ino(10))]);
    }

    #[test]
    fn who_was_sent_to_look_again_is_not_sent_twice() {
        let beliefs = Beliefs::new(Some(Duration::ZERO));
        let (a, b) = (name("a"), name("b"));
        let names = [(DIR, &a), (DIR, &b)];
        beliefs.learns(DIR, b"a", Some(Ino(8)));
        beliefs.doubt(names);
        beliefs.learns(DIR, b"a", Some(Ino(9)));
        assert_eq!(beliefs.taken_for(names), [None, None]);
        assert!(beliefs.renamed(names, false), "it is to be let go of");
        assert!(!beliefs.renamed(names, false));
        assert_eq!(beliefs.taken_for([(DIR, &b), (DIR, &a)]), [None, None]);
    }

    #[test]
    fn a_belief_is_kept_for_a_period_at_least_and_not_for_ever() {
        let beliefs = Beliefs::new(Some(Duration::ZERO));
        let a = name("a");
        let is_kept = || beliefs.taken_for([(DIR, &a); 2])[0].is_some();
        let age = || {
            let mut state = beliefs.state.lock();
            state.begun = state.begun.checked_sub(PERIOD_MIN * 2).unwrap();
            drop(state);
            beliefs.learns(DIR, b"other", Some(Ino(1)));
        };
        beliefs.learns(DIR, b"a", Some(Ino(8)));
        age();
        assert!(is_kept());
        age();
        assert!(!is_kept());
        beliefs.learns(DIR, b"a", Some(Ino(8)));
        (0..2 * NAMES_MAX as u64).for_each(|ino| beliefs.learns(Ino(ino), b"n", Some(Ino(ino))));
        assert!(!is_kept() && beliefs.state.lock().new.len() <= NAMES_MAX);
    }
}
