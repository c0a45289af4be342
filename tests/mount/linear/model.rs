//! The sequential tree: two directories that stand still, a few names in each, and one file whose mode changes.

use std::collections::BTreeMap;

/// A name: which directory, and which name in it.
pub(super) type Place = (usize, usize);

/// What a thread asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Call {
    Mkdir(Place),
    Rmdir(Place),
    Create(Place),
    Unlink(Place),
    Rename(Place, Place),
    Exchange(Place, Place),
    Look(Place),
    SetMode(u32),
    GetMode,
}

/// What it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Outcome {
    Done,
    /// A file was made, or seen, with this inode number.
    File(u64),
    Directory,
    Absent,
    Mode(u32),
    /// Refused because the name is taken, or because of what stands under it.
    Exists,
    WrongKind,
    /// Done, while another thread moved something to the same place. Linux looks up the source, then the target; where it
    /// finds one inode under both, since the other move came between, it calls the rename done and asks nobody.
    DoneOrMet,
    /// The second case of that.
    Met,
    /// Called done between hosts, where what Linux knows of either name may be old, and nothing was asked for.
    Not,
    /// Told of something that another operation was changing at that moment. Until that returns, one mount may show it
    /// while another does not yet, so this may be either.
    Early,
    /// Refused before the file system was asked about this very operation: Linux judges a rename by what it looked up
    /// before, and by two looks, and lets a look fail that met a rename (ESTALE). It says nothing, but changes nothing.
    Refused(i32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Thing {
    Directory,
    File(u64),
}

impl Outcome {
    /// What it may have been.
    pub(super) fn cases(self) -> Vec<Self> {
        match self {
            Self::DoneOrMet => vec![Self::Done, Self::Met],
            one => vec![one],
        }
    }
}

/// The state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Tree {
    pub(super) names: BTreeMap<Place, Thing>,
    pub(super) mode: u32,
}

impl Call {
    /// The names that it is about; none for the file whose mode changes.
    pub(super) fn touches(self) -> [Option<Place>; 2] {
        match self {
            Self::Mkdir(at) | Self::Rmdir(at) | Self::Create(at) | Self::Unlink(at) | Self::Look(at) => {
                [Some(at), Some(at)]
            }
            Self::Rename(from, to) | Self::Exchange(from, to) => [Some(from), Some(to)],
            Self::SetMode(_) | Self::GetMode => [None, None],
        }
    }

    /// Whether the call has changed something, if that was its outcome.
    pub(super) fn changes(self, outcome: Outcome) -> bool {
        let done = matches!(outcome, Outcome::Done | Outcome::File(_) | Outcome::DoneOrMet);
        done && match self {
            Self::Look(_) | Self::GetMode => false,
            Self::Rename(from, to) | Self::Exchange(from, to) => from != to,
            _ => true,
        }
    }
}

impl Tree {
    /// The state after the call, if the call may have this outcome here.
    pub(super) fn after(&self, call: Call, outcome: Outcome) -> Option<Self> {
        use Outcome::{Absent, Done, Exists, File, Mode, Refused, WrongKind};
        let stays = |holds: bool| holds.then(|| self.clone());
        if let Refused(_) | Outcome::Early | Outcome::Not = outcome {
            return stays(true);
        }
        let at = |place: Place| self.names.get(&place).copied();
        match (call, outcome) {
            (Call::Mkdir(place), Done) => self.with(at(place).is_none(), place, Some(Thing::Directory)),
            (Call::Create(place), File(ino)) => self.with(at(place).is_none(), place, Some(Thing::File(ino))),
            (Call::Mkdir(place) | Call::Create(place), Exists) => stays(at(place).is_some()),
            (Call::Rmdir(place), Done) => self.with(at(place) == Some(Thing::Directory), place, None),
            (Call::Unlink(place), Done) => self.with(matches!(at(place), Some(Thing::File(_))), place, None),
            (Call::Rmdir(place), WrongKind) => stays(matches!(at(place), Some(Thing::File(_)))),
            (Call::Unlink(place), WrongKind) => stays(at(place) == Some(Thing::Directory)),
            (Call::Rmdir(place) | Call::Unlink(place) | Call::Look(place), Absent) => {
                stays(at(place).is_none())
            }
            (Call::Look(place), Outcome::Directory) => stays(at(place) == Some(Thing::Directory)),
            (Call::Look(place), File(ino)) => stays(at(place) == Some(Thing::File(ino))),
            (Call::Rename(from, _), Absent) => stays(at(from).is_none()),
            (Call::Rename(from, to), Done) => self.renamed(at(from)?, from, to),
            (Call::Rename(_, to) | Call::Exchange(_, to), Outcome::Met) => stays(at(to).is_some()),
            (Call::Exchange(from, to), Absent) => stays(at(from).is_none() || at(to).is_none()),
            (Call::Exchange(from, to), Done) => {
                let (one, other) = (at(from)?, at(to)?);
                self.with(true, from, Some(other))?.with(true, to, Some(one))
            }
            (Call::SetMode(mode), Done) => Some(Self { mode, ..self.clone() }),
            (Call::GetMode, Mode(mode)) => stays(mode == self.mode),
            _ => None,
        }
    }

    fn with(&self, holds: bool, place: Place, thing: Option<Thing>) -> Option<Self> {
        let mut tree = self.clone();
        match thing {
            Some(thing) => tree.names.insert(place, thing),
            None => tree.names.remove(&place),
        };
        holds.then_some(tree)
    }

    fn renamed(&self, moved: Thing, from: Place, to: Place) -> Option<Self> {
        if from == to {
            return Some(self.clone());
        }
        let is_directory = |thing: Thing| thing == Thing::Directory;
        let replaces = self.names.get(&to).is_none_or(|there| is_directory(*there) == is_directory(moved));
        self.with(replaces, to, Some(moved))?.with(true, from, None)
    }
}
