//! The tree inside the model: what a reader sees of marked documents, ways to the root, and the judge. Owns no state.
//!
//! What a mark means is decided by production's own functions ([`lockwood::store::intents::decide`]).

use lockwood::document::{Ino, IntentId, Key as DocumentKey, Marked, SessionId, Slot, SlotState, Version};
use lockwood::store::intents::decide::{self, Verdict};

use super::state::{
    Change, DIRECTORIES, ENTRIES, Key, Keys, MarkOf, NAMES, NODES, Path, Place, SlotOf, State,
};
use super::state::{bit, entry_key, node_key};

const SLOT_STATES: [SlotState; 5] =
    [SlotState::Free, SlotState::Pending, SlotState::Committed, SlotState::Aborted, SlotState::Sealed];

/// The version of a mark that its owner knows of, and that of one that it does not.
const VERSIONS: [Version; 2] = [Version(1), Version(2)];

fn document_key(key: Key) -> DocumentKey {
    DocumentKey::Node(Ino(u64::from(key) + 1))
}

impl SlotOf {
    /// As production knows it, with those of its marks that stand in `keys`.
    pub(crate) fn slot(self, keys: Keys) -> Slot {
        let state = SLOT_STATES[self.state as usize];
        let version = (state == SlotState::Committed).then_some(VERSIONS[0]);
        let marked = super::state::keys(self.marked & keys);
        let marked = marked.map(|key| Marked { key: document_key(key), version }).collect();
        Slot { number: self.number.into(), state, marked }
    }

    /// Takes over what production decided.
    pub(crate) fn become_like(&mut self, slot: &Slot) {
        let state = SLOT_STATES.iter().position(|state| *state == slot.state);
        self.state = state.expect("all states are listed") as u8;
        self.number = slot.number as u8;
        if slot.state == SlotState::Sealed {
            self.marked = 0;
        }
    }

    /// The versions that a commit of this slot lists.
    pub(crate) fn versions(self) -> Vec<Version> {
        vec![VERSIONS[0]; self.marked.count_ones() as usize]
    }
}

impl State {
    /// What production says of a mark.
    pub(crate) fn verdict(&self, mark: MarkOf) -> Verdict {
        let intent =
            IntentId { session: SessionId(mark.session.into()), slot: 0, number: mark.number.into() };
        let slot = self.sessions[mark.session as usize].slot.slot(bit(mark.key));
        decide::verdict(intent, &document_key(mark.key), VERSIONS[usize::from(!mark.known)], Some(&slot))
    }

    /// The mark at a key.
    pub(crate) fn mark(&self, key: Key) -> Option<MarkOf> {
        self.marks.iter().find(|mark| mark.key == key).copied()
    }

    fn after(&self, key: Key) -> Option<Change> {
        let mark = self.mark(key)?;
        (self.verdict(mark) == Verdict::After).then_some(mark.change)
    }

    /// The node of an entry, as a reader sees it.
    pub(crate) fn entry(&self, key: Key) -> u8 {
        match self.after(key) {
            Some(Change::Entry(node)) => node,
            _ => self.tree.entry[key as usize],
        }
    }

    /// The place of a node, as a reader sees it.
    pub(crate) fn place(&self, node: u8) -> Place {
        match self.after(node_key(node)) {
            Some(Change::Place(place)) => place,
            _ => self.tree.place[node as usize],
        }
    }

    /// Whether there is such a directory.
    pub(crate) fn exists(&self, node: u8) -> bool {
        node == 0 || matches!(self.place(node), Place::At(_))
    }

    /// Whether nothing stands in a directory.
    pub(crate) fn is_empty(&self, directory: u8) -> bool {
        (0..NAMES as u8).all(|name| self.entry(entry_key(directory, name)) == 0)
    }

    /// The entries from the root down to a directory, and its path. None if the way does not lead there.
    pub(crate) fn chain(&self, directory: u8) -> Option<(Keys, Path)> {
        let (mut chain, mut path, mut node) = (0, 0, directory);
        for _ in 0..=DIRECTORIES {
            if node == 0 {
                return Some((chain, path));
            }
            let Place::At(key) = self.place(node) else { return None };
            if self.entry(key) != node {
                return None;
            }
            chain |= bit(key);
            path = path << 4 | u32::from(key % NAMES as u8 + 1);
            node = key / NAMES as u8;
        }
        None
    }

    /// Everything as a reader sees it.
    pub(crate) fn seen(&self) -> Box<super::state::Tree> {
        let mut tree = Box::new(self.tree.clone());
        for mark in &self.marks {
            if self.verdict(*mark) == Verdict::After {
                tree.set(mark.key, mark.change);
            }
        }
        tree
    }
}

/// A path with one more name.
pub(crate) fn with_name(path: Path, name: u8) -> Path {
    let depth = (32 - path.leading_zeros()).div_ceil(4);
    path | u32::from(name + 1) << (4 * depth)
}

impl super::state::Tree {
    /// Makes a change at a key.
    pub(crate) fn set(&mut self, key: Key, change: Change) {
        match change {
            Change::Entry(node) => self.entry[key as usize] = node,
            Change::Place(place) => self.place[key as usize - ENTRIES] = place,
            Change::Count | Change::Keep => {}
        }
    }

    /// The judge: every node is under exactly the name that it says, every way leads to the root, nothing is lost.
    pub(crate) fn is_sound(&self) -> bool {
        let named = self.entry.iter().enumerate().filter(|(_, node)| **node != 0);
        let mut names = [0_u8; NODES];
        for (key, node) in named {
            if self.place[*node as usize] != Place::At(key as Key) {
                return false;
            }
            names[*node as usize] += 1;
        }
        (1..NODES as u8).all(|node| match self.place[node as usize] {
            Place::None | Place::Gone => names[node as usize] == 0,
            Place::At(_) => names[node as usize] == 1 && self.hangs_from_the_root(node),
        })
    }

    fn hangs_from_the_root(&self, node: u8) -> bool {
        let mut node = node;
        for _ in 0..NODES {
            match self.place[node as usize] {
                Place::At(key) => node = key / NAMES as u8,
                Place::None => return node == 0,
                Place::Gone => return false,
            }
        }
        false
    }
}
