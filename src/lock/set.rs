//! Which locks an operation needs.
//!
//! Owns the tree locks of a rename and of a hold, and the order of every set; which sets the other strategies want is in
//! [`strategy`](super::strategy). Imports ids, the layer's error and `rules`.
//!
//! What is hard: one entry a path, although a path may be an ancestor of one side and the target of the other (rename
//! of `/a/b` to `/a`), and a lock is never upgraded, so the stronger mode must be known before the first is taken.
//! Each side alone is a chain already in the global order, so the set is the merge of two chains.

use super::error::LockError;
use super::id::LockId;
pub use crate::document::LockMode as Mode;
use crate::rules::{Rule, holds};

/// One lock of a set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockEntry {
    /// Which lock.
    pub id: LockId,
    /// How strong.
    pub mode: Mode,
}

/// The locks of one operation: in the global order, one entry a path, never empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockSet {
    entries: Vec<LockEntry>,
    is_of_rename: bool,
}

impl LockSet {
    /// The locks of a rename of `source` to `destination`, whether the destination exists or not: shared on every
    /// ancestor of both except the root, exclusive on both.
    ///
    /// # Errors
    /// [`LockError::Root`] if either is the root; [`LockError::IntoItself`] if the source is an ancestor of the
    /// destination.
    pub fn for_rename(source: &LockId, destination: &LockId) -> Result<LockSet, LockError> {
        may_rename(source, destination)?;
        let target = if holds(Rule::TargetsLockedExclusive) { Mode::Exclusive } else { Mode::Shared };
        let above_source = holds(Rule::SourceAncestorsLocked);
        let above_destination = holds(Rule::DestinationAncestorsLocked);
        let from = chain(source, target).filter(|entry| above_source || entry.id == *source);
        let to = chain(destination, target).filter(|entry| above_destination || entry.id == *destination);
        Ok(LockSet { entries: merge(from, to), is_of_rename: true })
    }

    /// The locks of an exchange of `one` with `other`: those of a rename either way.
    ///
    /// # Errors
    /// [`LockError::Root`] if either is the root; [`LockError::IntoItself`] if either is an ancestor of the other.
    pub fn for_exchange(one: &LockId, other: &LockId) -> Result<LockSet, LockError> {
        may_exchange(one, other)?;
        LockSet::for_rename(one, other)
    }

    /// The locks of somebody who wants `path` to stay where it is (shared), or nothing renamed at or below it by
    /// anybody else (exclusive): shared on every ancestor except the root, `mode` on the path.
    ///
    /// # Errors
    /// [`LockError::Root`] if the path is the root.
    pub fn for_hold(path: &LockId, mode: Mode) -> Result<LockSet, LockError> {
        if path.is_root() {
            return Err(LockError::Root);
        }
        Ok(LockSet { entries: chain(path, mode).collect(), is_of_rename: false })
    }

    /// These paths, all in one mode, in whatever order and however often they are named; at least one.
    pub(super) fn of_paths(mut paths: Vec<LockId>, mode: Mode) -> LockSet {
        paths.sort_unstable();
        paths.dedup();
        let entries = paths.into_iter().map(|id| LockEntry { id, mode }).collect();
        LockSet { entries, is_of_rename: false }
    }

    /// Whether it is that of a rename or an exchange by the tree locks, and so of an operation that ends soon.
    pub fn is_of_rename(&self) -> bool {
        self.is_of_rename
    }

    /// The entries, in the global order.
    pub fn entries(&self) -> &[LockEntry] {
        &self.entries
    }

    /// The same, to be taken apart.
    pub(super) fn into_entries(self) -> Vec<LockEntry> {
        self.entries
    }
}

/// Refuses what no strategy can allow: to rename the root, or to move a directory below itself.
pub(super) fn may_rename(source: &LockId, destination: &LockId) -> Result<(), LockError> {
    if source.is_root() || destination.is_root() {
        return Err(LockError::Root);
    }
    if source.is_ancestor_of(destination) && holds(Rule::IntoItselfRefused) {
        return Err(LockError::IntoItself { upper: source.clone(), lower: destination.clone() });
    }
    Ok(())
}

/// The same for an exchange, which moves both.
pub(super) fn may_exchange(one: &LockId, other: &LockId) -> Result<(), LockError> {
    may_rename(one, other)?;
    may_rename(other, one)
}

/// Shared on the ancestors of a path, `mode` on the path; in the global order.
fn chain(path: &LockId, mode: Mode) -> impl Iterator<Item = LockEntry> + '_ {
    let ancestors = path.ancestors().map(|id| LockEntry { id, mode: Mode::Shared });
    ancestors.chain([LockEntry { id: path.clone(), mode }])
}

/// Two ordered chains as one, one entry a path; where both name a path, the stronger mode wins.
fn merge(one: impl Iterator<Item = LockEntry>, other: impl Iterator<Item = LockEntry>) -> Vec<LockEntry> {
    let mut entries: Vec<LockEntry> = Vec::with_capacity(24);
    let (mut one, mut other) = (one.peekable(), other.peekable());
    loop {
        let next = match (one.peek(), other.peek()) {
            (Some(left), Some(right)) if left.id <= right.id || !holds(Rule::GlobalOrder) => one.next(),
            (Some(_), None) => one.next(),
            _ => other.next(),
        };
        let Some(next) = next else { return entries };
        match entries.last_mut() {
            Some(last) if last.id == next.id => {
                if holds(Rule::StrongerModeWins) {
                    last.mode = last.mode.max(next.mode);
                }
            }
            _ => entries.push(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    use super::*;

    fn id(path: &str) -> LockId {
        LockId::from_path(path.as_bytes()).unwrap()
    }

    /// A set as text: `+` shared, `!` exclusive.
    fn text(set: &LockSet) -> String {
        let sign = |entry: &LockEntry| if entry.mode == Mode::Shared { '+' } else { '!' };
        set.entries().iter().map(|entry| format!("{}{}", sign(entry), entry.id)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_rename_locks_both_chains() {
        let table = [
            // The book's example.
            ("/clinton", "/bill", "!/bill !/clinton"),
            // juicefs 4800: the two sets meet at /a and at /b/d, each time exclusive against shared.
            ("/a", "/b/d/e", "!/a +/b +/b/d !/b/d/e"),
            ("/b/d", "/a/c", "+/a !/a/c +/b !/b/d"),
            // Within one directory.
            ("/p/q/x", "/p/q/y", "+/p +/p/q !/p/q/x !/p/q/y"),
            // To itself.
            ("/p/x", "/p/x", "+/p !/p/x"),
            // Onto an ancestor: the stronger mode wins.
            ("/a/b/c", "/a", "!/a +/a/b !/a/b/c"),
            // A name that begins alike is no ancestor, and sorts in between.
            ("/a/b", "/a-b", "+/a !/a-b !/a/b"),
            ("/a", "/ab", "!/a !/ab"),
        ];
        for (source, destination, expected) in table {
            assert_eq!(text(&LockSet::for_rename(&id(source), &id(destination)).unwrap()), expected);
        }
    }

    #[test]
    fn a_move_into_itself_and_the_root_are_refused() {
        let into_itself = |result| matches!(result, Err(LockError::IntoItself { .. }));
        assert!(into_itself(LockSet::for_rename(&id("/a"), &id("/a/b"))));
        assert!(into_itself(LockSet::for_rename(&id("/a"), &id("/a/b/c"))));
        assert!(LockSet::for_rename(&id("/a/b"), &id("/a")).is_ok());
        assert!(into_itself(LockSet::for_exchange(&id("/a"), &id("/a/b"))));
        assert!(into_itself(LockSet::for_exchange(&id("/a/b"), &id("/a"))));
        assert!(LockSet::for_exchange(&id("/a/b"), &id("/a-b")).is_ok());
        let root = LockId::root();
        for result in [
            LockSet::for_rename(&root, &id("/a")),
            LockSet::for_rename(&id("/a"), &root),
            LockSet::for_exchange(&root, &id("/a")),
            LockSet::for_exchange(&id("/a"), &root),
            LockSet::for_hold(&root, Mode::Shared),
        ] {
            assert!(matches!(result, Err(LockError::Root)), "{result:?}");
        }
    }

    #[test]
    fn a_hold_locks_one_chain() {
        assert_eq!(text(&LockSet::for_hold(&id("/a/b/c"), Mode::Shared).unwrap()), "+/a +/a/b +/a/b/c");
        assert_eq!(text(&LockSet::for_hold(&id("/a/b/c"), Mode::Exclusive).unwrap()), "+/a +/a/b !/a/b/c");
    }

    fn path() -> impl Strategy<Value = LockId> {
        vec(prop_oneof![Just("a"), Just("a-"), Just("b")], 1..5)
            .prop_map(|names| LockId::from_components(names.iter().map(|name| name.as_bytes())).unwrap())
    }

    proptest! {
        #[test]
        fn the_set_is_what_the_definition_says(source in path(), destination in path()) {
            let mut expected = BTreeMap::new();
            for target in [&source, &destination] {
                for ancestor in target.ancestors() {
                    expected.entry(ancestor).or_insert(Mode::Shared);
                }
                expected.insert(target.clone(), Mode::Exclusive);
            }
            for target in [&source, &destination] {
                expected.insert(target.clone(), Mode::Exclusive);
            }
            match LockSet::for_rename(&source, &destination) {
                Ok(set) => {
                    let got: Vec<_> = set.entries().iter().map(|e| (e.id.clone(), e.mode)).collect();
                    prop_assert_eq!(got, expected.into_iter().collect::<Vec<_>>());
                }
                Err(_) => prop_assert!(source.is_ancestor_of(&destination)),
            }
        }

        /// What the proof in docs/locking.md rests on: of two renames, if one moves or replaces a path that the other
        /// depends on, then they do not run at once.
        #[test]
        fn whoever_moves_what_another_stands_on_excludes_it(
            source in path(), destination in path(), other_source in path(), other_destination in path(),
        ) {
            let one = LockSet::for_rename(&source, &destination);
            let other = LockSet::for_rename(&other_source, &other_destination);
            let (Ok(one), Ok(other)) = (one, other) else { return Ok(()) };
            let moved = [&other_source, &other_destination];
            let stands_on = |id: &LockId| moved.iter().any(|m| *m == id || m.is_ancestor_of(id));
            if stands_on(&source) || stands_on(&destination) {
                let conflict = one.entries().iter().any(|a| other.entries().iter().any(|b| {
                    a.id == b.id && (a.mode == Mode::Exclusive || b.mode == Mode::Exclusive)
                }));
                prop_assert!(conflict);
            }
        }
    }
}
