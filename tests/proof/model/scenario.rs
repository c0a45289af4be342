//! The scenarios: a small tree, what each session does in it, and what may go wrong. Owns the table and how it is read.

use super::locks::Locks;
use super::state::{
    DIRECTORIES, ENTRIES, NAMES, NODES, Op, Phase, Place, SESSIONS, Session, SlotOf, Standing,
};
use super::state::{State, Tree, entry_key};

/// What the store can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// Checks and writes at one instant.
    Transactional,
    /// One compare-and-set at a time: commits are intents.
    Weak,
}

/// A directory and a name.
pub(crate) type At = (u8, u8);

/// How a rename treats what stands at its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It goes.
    Replace,
    /// The rename is refused.
    NoReplace,
    /// It goes to the source's place.
    Exchange,
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spec {
    /// `mv`, `mv -n`, `mv --exchange`.
    Rename {
        /// The source.
        from: At,
        /// The destination.
        to: At,
        /// Which.
        manner: Manner,
    },
    /// `mkdir`.
    Make {
        /// Where.
        at: At,
        /// The node that comes into being.
        node: u8,
    },
    /// `rmdir`.
    Rmdir {
        /// Which.
        at: At,
    },
}

/// A line of the table.
pub(crate) struct Line {
    /// What it is called.
    pub(crate) name: &'static str,
    /// On which kind of engine.
    pub(crate) engine: Engine,
    /// Whether renames take tree locks, or rely on versions alone.
    pub(crate) locked: bool,
    /// The tree: directories, parents first; names that begin with `f` are files.
    pub(crate) tree: &'static str,
    /// What each session does: `mv A B`, `mvn A B` (no replace), `xchg A B`, `mkdir A`, `rmdir A`; separated by commas.
    pub(crate) operations: [&'static str; SESSIONS],
    /// The session that has a deadline.
    pub(crate) impatient: Option<usize>,
    /// How many processes may die, live sessions may be fenced, messages may be late.
    pub(crate) faults: [u8; 3],
    /// Whether it is for the long run only.
    pub(crate) long: bool,
}

/// A line, read.
pub(crate) struct Scenario {
    /// What it is called.
    pub(crate) name: &'static str,
    /// On which kind of engine.
    pub(crate) engine: Engine,
    /// Whether renames take tree locks.
    pub(crate) locked: bool,
    /// What each session does.
    pub(crate) operations: [Vec<Spec>; SESSIONS],
    /// The session that has a deadline.
    pub(crate) impatient: Option<usize>,
    /// The beginning.
    pub(crate) initial: State,
    /// The lock engine.
    pub(crate) locks: Locks,
    directories: u16,
}

impl Scenario {
    /// Whether a node is a directory.
    pub(crate) fn is_directory(&self, node: u8) -> bool {
        self.directories & 1 << node != 0
    }

    /// Reads a line.
    pub(crate) fn new(line: &Line) -> Self {
        let mut reader = Reader::default();
        for path in line.tree.split_whitespace() {
            let at = reader.at(path);
            let node = reader.node(path);
            reader.tree.entry[entry_key(at.0, at.1) as usize] = node;
            reader.tree.place[node as usize] = Place::At(entry_key(at.0, at.1));
        }
        let operations = line.operations.map(|text| reader.operations(text));
        let sessions = operations.each_ref().map(|list| Session {
            standing: Standing::Live,
            crashed: false,
            stopped: false,
            op: Op { phase: if list.is_empty() { Phase::Over } else { Phase::Begin }, ..Op::default() },
            slot: SlotOf::default(),
        });
        let initial = State {
            tree: reader.tree,
            marks: Vec::new(),
            locks: 0,
            sessions,
            late: Vec::new(),
            broken: 0,
            faults: line.faults,
        };
        assert!(initial.tree.is_sound(), "{}: the tree is none", line.name);
        Self {
            name: line.name,
            engine: line.engine,
            locked: line.locked,
            operations,
            impatient: line.impatient,
            initial,
            locks: Locks::new(reader.names),
            directories: reader.directories,
        }
    }
}

/// Turns text into numbers.
struct Reader {
    names: Vec<String>,
    /// The node of each path as it is at the beginning; directories from 1 on, files from [`DIRECTORIES`] on.
    nodes: Vec<(String, u8)>,
    directories: u16,
    tree: Tree,
}

impl Default for Reader {
    fn default() -> Self {
        let tree = Tree { entry: [0; ENTRIES], place: [Place::None; NODES] };
        Self { names: Vec::new(), nodes: vec![(String::new(), 0)], directories: 1, tree }
    }
}

impl Reader {
    fn at(&mut self, path: &str) -> At {
        let (parent, name) = path.rsplit_once('/').expect("a path begins with a slash");
        let parent = self.nodes.iter().find(|(known, _)| known == parent).expect("parents come first").1;
        let known = self.names.iter().position(|known| known == name);
        let name = known.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        assert!(name < NAMES, "too many names");
        (parent, name as u8)
    }

    fn node(&mut self, path: &str) -> u8 {
        let is_file = path.rsplit('/').next().is_some_and(|name| name.starts_with('f'));
        let same = |(_, node): &&(String, u8)| (usize::from(*node) >= DIRECTORIES) == is_file;
        let count = self.nodes.iter().filter(same).count();
        let node = if is_file { DIRECTORIES + count } else { count };
        assert!(node < if is_file { NODES } else { DIRECTORIES }, "too many nodes");
        self.nodes.push((path.to_owned(), node as u8));
        self.directories |= u16::from(!is_file) << node;
        node as u8
    }

    fn operations(&mut self, text: &str) -> Vec<Spec> {
        text.split(',').filter(|text| !text.trim().is_empty()).map(|text| self.operation(text)).collect()
    }

    fn operation(&mut self, text: &str) -> Spec {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["mkdir", path] => {
                let at = self.at(path);
                Spec::Make { at, node: self.node(path) }
            }
            ["rmdir", path] => Spec::Rmdir { at: self.at(path) },
            [verb, from, to] => {
                let manner = match verb {
                    "mv" => Manner::Replace,
                    "mvn" => Manner::NoReplace,
                    "xchg" => Manner::Exchange,
                    other => panic!("{other}: no such operation"),
                };
                Spec::Rename { from: self.at(from), to: self.at(to), manner }
            }
            _ => panic!("{text:?}: no operation"),
        }
    }
}
