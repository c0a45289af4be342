//! The state of the model, as small as it can be: hundreds of millions of them are hashed and copied. Owns the encodings of
//! keys, paths and marks. Imports nothing but the tree's sizes.
//!
//! What is hard: versions grow without bound, and a model's state must not. A version is only ever compared for equality
//! with the one that was read, and none comes twice; so the state keeps, instead of versions, which of the keys that an
//! operation has read were written since ([`Op::stale`]).

/// Directories come first among the nodes; node 0 is the root.
pub(crate) const DIRECTORIES: usize = 8;
/// Nodes at most, the root included.
pub(crate) const NODES: usize = 10;
/// Different names at most.
pub(crate) const NAMES: usize = 6;
/// The entries: a directory and a name each.
pub(crate) const ENTRIES: usize = DIRECTORIES * NAMES;
/// Sessions.
pub(crate) const SESSIONS: usize = 3;

/// A key: an entry, or the node at [`ENTRIES`] plus its number.
pub(crate) type Key = u8;
/// A set of keys, a bit each.
pub(crate) type Keys = u64;

/// The key of an entry.
pub(crate) fn entry_key(directory: u8, name: u8) -> Key {
    directory * NAMES as u8 + name
}

/// The key of a node.
pub(crate) fn node_key(node: u8) -> Key {
    ENTRIES as u8 + node
}

/// One key as a set.
pub(crate) fn bit(key: Key) -> Keys {
    1 << key
}

/// The keys of a set, in their order.
pub(crate) fn keys(mut set: Keys) -> impl Iterator<Item = Key> {
    std::iter::from_fn(move || {
        let key = (set != 0).then(|| set.trailing_zeros() as Key)?;
        set &= set - 1;
        Some(key)
    })
}

/// A path: the names from the root down, four bits each (name + 1), the first in the lowest.
pub(crate) type Path = u32;

/// Where a node stands: its entry, nowhere (the root), or gone for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// The root, or not made yet.
    None,
    /// Removed or replaced by an operation that meant to.
    Gone,
    /// Under this entry.
    At(Key),
}

/// The documents of the tree: what stands under each key, unless a mark says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tree {
    /// The node of each entry; 0 where there is none.
    pub(crate) entry: [u8; ENTRIES],
    /// What each node says of its place.
    pub(crate) place: [Place; NODES],
}

/// How far a session's current operation has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Phase {
    /// About to read its source side.
    #[default]
    Begin,
    /// Has read the source side.
    SourceRead,
    /// Has read both; about to ask for its locks.
    Resolved,
    /// In a queue.
    Waiting,
    /// Holds its locks; about to read again.
    Locked,
    /// Has read the source side again.
    SourceReadAgain,
    /// Has seen that its paths mean what they meant; about to commit.
    Ready,
    /// Its commit was sent and is under way.
    InDoubt,
    /// Its intent is pending, and some of its marks are set.
    Marking,
    /// All marks are set and all checks have been seen to hold.
    Validated,
    /// Its intent is committed; its marks are being taken away.
    Cleaning,
    /// Its intent is aborted; then it starts over.
    Aborting,
    /// Done, one way or another; about to release.
    Releasing,
    /// Nothing left to do.
    Over,
}

/// The operation that a session is at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Op {
    /// How far.
    pub(crate) phase: Phase,
    /// Which of the session's operations.
    pub(crate) index: u8,
    /// How often it has started over.
    pub(crate) attempt: u8,
    /// What it moves or removes, and what it replaces or changes places with; 0 where there is nothing.
    pub(crate) moved: u8,
    /// See `moved`.
    pub(crate) victim: u8,
    /// The entries that its paths consist of, both names included.
    pub(crate) stands_on: Keys,
    /// The keys whose versions it has read, and checks.
    pub(crate) rests_on: Keys,
    /// Those of them that were written since.
    pub(crate) stale: Keys,
    /// Cells that it has read to change them, and that were written since.
    pub(crate) overwritten: Keys,
    /// The keys that it has marked, then those that it has cleaned.
    pub(crate) done: Keys,
    /// The paths that its locks stand for.
    pub(crate) from: Path,
    /// See `from`.
    pub(crate) to: Path,
    /// The source's path as it is read under the locks.
    pub(crate) found: Path,
}

impl Op {
    /// The operation's number in its session: another one at each attempt.
    pub(crate) fn number(&self) -> u8 {
        self.index * 4 + self.attempt
    }

    /// Forgets everything that was read, to begin afresh.
    pub(crate) fn forget(&mut self) {
        *self = Self { index: self.index, attempt: self.attempt, ..Self::default() };
    }
}

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Standing {
    /// At work.
    Live,
    /// Declared dead.
    Fenced,
    /// Its slot is sealed.
    Settled,
    /// Its claims are gone from the locks.
    Recovered,
}

/// A session's slot, in the form of `SlotState`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct SlotOf {
    /// Free 0, pending 1, committed 2, aborted 3, sealed 4.
    pub(crate) state: u8,
    /// Which use.
    pub(crate) number: u8,
    /// The keys that this use marks.
    pub(crate) marked: Keys,
}

/// A session with its process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Session {
    /// Where it stands in the store.
    pub(crate) standing: Standing,
    /// Whether its process is gone.
    pub(crate) crashed: bool,
    /// Whether it has noticed that it was declared dead; it starts nothing more.
    pub(crate) stopped: bool,
    /// What it is at.
    pub(crate) op: Op,
    /// Its slot.
    pub(crate) slot: SlotOf,
}

/// What a mark does to its document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    /// This node stands under the entry afterwards, or none.
    Entry(u8),
    /// The node stands there afterwards.
    Place(Place),
    /// A merge of counts into a directory: the model does not keep them.
    Count,
    /// The document stays.
    Keep,
}

/// A mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MarkOf {
    /// Where.
    pub(crate) key: Key,
    /// Whose.
    pub(crate) session: u8,
    /// Which use of the slot.
    pub(crate) number: u8,
    /// What for.
    pub(crate) change: Change,
    /// Whether its owner knows of it; a request that is delivered twice may set a second one.
    pub(crate) known: bool,
}

/// A message that its sender does not wait for any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Late {
    /// A commit over an engine with transactions.
    Commit(u8),
    /// The compare-and-set that commits this use of a session's slot.
    Decision(u8, u8),
    /// A mark, and whether the cell has been written since it was sent.
    Mark(MarkOf, bool),
    /// A release of the locks of a session's operation of this number.
    Unlock(u8, u8),
}

/// What must never be seen. A bit each, set by the step that did it.
pub(crate) mod broken {
    /// The tree has a loop, a node that cannot be reached, or one under two names.
    pub(crate) const TREE: u8 = 1;
    /// A rename moved what another one stood on.
    pub(crate) const EXCLUSION: u8 = 2;
    /// A dead session changed something after its recovery.
    pub(crate) const ZOMBIE: u8 = 4;
    /// A change was made by halves.
    pub(crate) const HALF: u8 = 8;
}

/// The whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The documents.
    pub(crate) tree: Tree,
    /// Marks on them, in the order of the keys; at most one a key.
    pub(crate) marks: Vec<MarkOf>,
    /// The lock engine's state, by its number in [`super::locks::Locks`].
    pub(crate) locks: u32,
    /// The sessions.
    pub(crate) sessions: [Session; SESSIONS],
    /// Messages under way.
    pub(crate) late: Vec<Late>,
    /// What has gone wrong: [`broken`].
    pub(crate) broken: u8,
    /// Processes that may still crash, live sessions that may still be fenced, messages that may still be late.
    pub(crate) faults: [u8; 3],
}

impl State {
    /// Notes that keys were written: whoever has read them has read something else.
    pub(crate) fn written(&mut self, keys: Keys) {
        for session in &mut self.sessions {
            session.op.stale |= keys & session.op.rests_on;
        }
        self.touched(keys);
    }

    /// Notes that cells were written, whatever became of the documents in them.
    pub(crate) fn touched(&mut self, cells: Keys) {
        for session in &mut self.sessions {
            if matches!(session.op.phase, Phase::Marking) {
                session.op.overwritten |= cells;
            }
        }
        for late in &mut self.late {
            if let Late::Mark(mark, overtaken) = late {
                *overtaken |= cells & bit(mark.key) != 0;
            }
        }
    }
}
