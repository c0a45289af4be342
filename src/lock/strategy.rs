//! The four strategies: which locks an operation needs, by the [`Locking`] that its volume was formatted with.
//!
//! Owns the differences between the strategies, all of them. Imports lock sets, ids and the volume's choice. Whatever comes
//! after the set is the same for all: the order, the queues, looking again under the locks, the checks of the commit.
//!
//! What is hard: `document` locks no ancestors, so nothing in its set stands for the chain above a path. Two moves that
//! would make a loop meet all the same, for each puts its source into what the other moves: the directory that the one
//! locks as its destination's is among the paths that the other locks as its subtree (docs/locking.md).

use super::error::LockError;
use super::id::LockId;
use super::set::{LockSet, Mode, may_exchange, may_rename};
use crate::document::Locking;
use crate::rules::{Rule, holds};

/// An operation that needs locks, by its paths.
#[derive(Clone, Copy, Debug)]
pub enum Plan<'a> {
    /// `source` gets the name `destination`, whether that exists or not.
    Rename {
        /// What moves.
        source: &'a LockId,
        /// Where to.
        destination: &'a LockId,
    },
    /// Two names change places.
    Exchange {
        /// One of them.
        one: &'a LockId,
        /// The other.
        other: &'a LockId,
    },
    /// A path is to stay where it is (shared), or nothing is to be renamed at or below it by anybody else (exclusive).
    Hold {
        /// Which path.
        path: &'a LockId,
        /// How.
        mode: Mode,
    },
}

impl Locking {
    /// Whether [`Locking::lock_set`] needs to know every path below those of the plan.
    pub fn locks_members(self, plan: Plan<'_>) -> bool {
        self == Self::Document && !matches!(plan, Plan::Hold { mode: Mode::Shared, .. })
    }

    /// Whether no rename can change what the commit of a rename checks and does not write, while its locks are held.
    ///
    /// Those checks are the entries of all ancestors of both paths. Under `tree` each of these paths is held shared, and
    /// under `global` no other rename runs, so an engine that changes one document at a time may check them before it
    /// writes and need not mark them. Under `document` and `version` nobody holds the ancestors: there the commit must
    /// guard them itself until it is decided.
    pub fn covers_checks(self) -> bool {
        matches!(self, Self::Tree | Self::Global)
    }

    /// The locks that `plan` needs; none under `version`. `members` are the paths below those of the plan, in any order,
    /// if [`Locking::locks_members`] asks for them.
    ///
    /// # Errors
    /// [`LockError::Root`] if a path is the root; [`LockError::IntoItself`] if a directory would move below itself;
    /// [`LockError::NoLocks`] for a hold where there are no locks.
    pub fn lock_set(self, plan: Plan<'_>, members: Vec<LockId>) -> Result<Option<LockSet>, LockError> {
        plan.may_be()?;
        match self {
            Self::Tree => plan.tree_set().map(Some),
            Self::Document => Ok(Some(plan.document_set(members))),
            Self::Global => Ok(holds(Rule::VolumeLocked).then(|| plan.volume_set())),
            Self::Version => match plan {
                Plan::Hold { .. } => Err(LockError::NoLocks),
                Plan::Rename { .. } | Plan::Exchange { .. } => Ok(None),
            },
        }
    }
}

impl Plan<'_> {
    fn may_be(self) -> Result<(), LockError> {
        match self {
            Self::Rename { source, destination } => may_rename(source, destination),
            Self::Exchange { one, other } => may_exchange(one, other),
            Self::Hold { path, .. } if path.is_root() => Err(LockError::Root),
            Self::Hold { .. } => Ok(()),
        }
    }

    fn tree_set(self) -> Result<LockSet, LockError> {
        match self {
            Self::Rename { source, destination } => LockSet::for_rename(source, destination),
            Self::Exchange { one, other } => LockSet::for_exchange(one, other),
            Self::Hold { path, mode } => LockSet::for_hold(path, mode),
        }
    }

    /// One lock for all, that of the root.
    fn volume_set(self) -> LockSet {
        let mode = match self {
            Self::Rename { .. } | Self::Exchange { .. } => Mode::Exclusive,
            Self::Hold { mode, .. } => mode,
        };
        LockSet::of_paths(vec![LockId::root()], mode)
    }

    /// Every document that moves or is put away, both names, and the directories that get something new. Nobody can move
    /// the root, so it is not locked.
    fn document_set(self, members: Vec<LockId>) -> LockSet {
        let mut paths = if holds(Rule::MembersLocked) { members } else { Vec::new() };
        let mut put_into = |name: &LockId| {
            if holds(Rule::DestinationDirectoryLocked) {
                paths.extend(name.parent().filter(|directory| !directory.is_root()));
            }
        };
        let mode = match self {
            Self::Rename { source, destination } => {
                put_into(destination);
                paths.extend([source.clone(), destination.clone()]);
                Mode::Exclusive
            }
            Self::Exchange { one, other } => {
                put_into(one);
                put_into(other);
                paths.extend([one.clone(), other.clone()]);
                Mode::Exclusive
            }
            Self::Hold { path, mode } => {
                paths.push(path.clone());
                mode
            }
        };
        LockSet::of_paths(paths, mode)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn id(path: &str) -> LockId {
        LockId::from_path(path.as_bytes()).unwrap()
    }

    fn text(set: Option<LockSet>) -> String {
        let Some(set) = set else { return "none".to_owned() };
        let sign = |mode| if mode == Mode::Shared { '+' } else { '!' };
        set.entries().iter().map(|e| format!("{}{}", sign(e.mode), e.id)).collect::<Vec<_>>().join(" ")
    }

    /// `/s/x/d` and `/s/y` are below the source, `/t/z` below the other.
    fn sets(plan: Plan<'_>) -> [String; 4] {
        Locking::ALL.map(|locking| {
            let members = match plan {
                _ if !locking.locks_members(plan) => vec![],
                Plan::Exchange { .. } => vec![id("/p/s/y"), id("/p/s/x"), id("/q/t/z"), id("/p/s/x/d")],
                _ => vec![id("/p/s/y"), id("/p/s/x"), id("/p/s/x/d")],
            };
            locking.lock_set(plan, members).map_or_else(|e| e.to_string(), text)
        })
    }

    #[test]
    fn each_strategy_has_its_set() {
        let (source, destination) = (&id("/p/s"), &id("/q/t"));
        let [tree, document, global, version] = sets(Plan::Rename { source, destination });
        assert_eq!(tree, "+/p !/p/s +/q !/q/t");
        assert_eq!(document, "!/p/s !/p/s/x !/p/s/x/d !/p/s/y !/q !/q/t");
        assert_eq!((&*global, &*version), ("!/", "none"));

        let [_, document, global, _] = sets(Plan::Exchange { one: source, other: destination });
        assert_eq!(document, "!/p !/p/s !/p/s/x !/p/s/x/d !/p/s/y !/q !/q/t !/q/t/z");
        assert_eq!(global, "!/");

        let [tree, document, global, version] = sets(Plan::Hold { path: source, mode: Mode::Exclusive });
        assert_eq!(tree, "+/p !/p/s");
        assert_eq!(document, "!/p/s !/p/s/x !/p/s/x/d !/p/s/y");
        assert_eq!(global, "!/");
        assert!(version.contains("--locking version"), "{version}");

        let [_, document, global, _] = sets(Plan::Hold { path: source, mode: Mode::Shared });
        assert_eq!((&*document, &*global), ("+/p/s", "+/"));

        // Into the root and out of it: the root itself is locked by nobody but `global`.
        let [_, document, ..] = sets(Plan::Rename { source: &id("/p/s"), destination: &id("/t") });
        assert_eq!(document, "!/p/s !/p/s/x !/p/s/x/d !/p/s/y !/t");
    }

    #[test]
    fn what_cannot_be_is_refused_by_all() {
        let (upper, lower, root) = (&id("/a"), &id("/a/b"), &LockId::root());
        for locking in Locking::ALL {
            let refused = |plan| locking.lock_set(plan, vec![]).unwrap_err();
            let into_itself = |plan| matches!(refused(plan), LockError::IntoItself { .. });
            assert!(into_itself(Plan::Rename { source: upper, destination: lower }));
            assert!(into_itself(Plan::Exchange { one: upper, other: lower }));
            assert!(into_itself(Plan::Exchange { one: lower, other: upper }));
            for plan in [
                Plan::Rename { source: root, destination: lower },
                Plan::Rename { source: upper, destination: root },
                Plan::Exchange { one: root, other: lower },
                Plan::Hold { path: root, mode: Mode::Shared },
            ] {
                assert!(matches!(refused(plan), LockError::Root), "{locking}: {plan:?}");
            }
        }
    }

    #[test]
    fn only_where_the_ancestors_are_held_do_the_locks_cover_the_checks() {
        let covered = Locking::ALL.map(Locking::covers_checks);
        assert_eq!(covered, [true, false, true, false]);
    }

    fn path() -> impl Strategy<Value = LockId> {
        vec(prop_oneof![Just("a"), Just("a-"), Just("b")], 1..4)
            .prop_map(|names| LockId::from_components(names.iter().map(|name| name.as_bytes())).unwrap())
    }

    proptest! {
        /// What docs/locking.md says of `document`: of two moves, if each puts its source into what the other moves, then
        /// they meet; and whoever moves a directory excludes every rename of what is in it.
        #[test]
        fn under_document_two_moves_that_would_make_a_loop_meet(
            tree in vec(path(), 1..12), source in path(), destination in path(),
            other_source in path(), other_destination in path(),
        ) {
            // The paths that there are: those drawn and all above them.
            let there: BTreeSet<LockId> =
                tree.iter().chain([&source, &other_source]).flat_map(|p| p.ancestors().chain([p.clone()])).collect();
            let set = |source: &LockId, destination: &LockId| {
                let below = there.iter().filter(|p| source.is_ancestor_of(p)).cloned().collect();
                Locking::Document.lock_set(Plan::Rename { source, destination }, below).ok().flatten()
            };
            let one = set(&source, &destination);
            let other = set(&other_source, &other_destination);
            let (Some(one), Some(other)) = (one, other) else { return Ok(()) };
            let within = |upper: &LockId, path: &LockId| upper == path || upper.is_ancestor_of(path);
            let into = |destination: &LockId| destination.parent().filter(|p| there.contains(p));
            let (Some(to), Some(other_to)) = (into(&destination), into(&other_destination)) else { return Ok(()) };
            let loop_together = within(&other_source, &to) && within(&source, &other_to);
            let moved_from_under = source.is_ancestor_of(&other_source);
            if loop_together || moved_from_under {
                prop_assert!(one.entries().iter().any(|a| other.entries().iter().any(|b| a.id == b.id)));
            }
        }
    }
}
