//! Judges a volume: every invariant of its documents and backing files, offline or under a running mount.
//!
//! Owns the rules and their judge. Imports `document`, `store` and `ambient`; never `namespace` or whoever else writes,
//! and shares no logic with them: a mistake that both made would go unseen. What it needs to know of backing files comes
//! through [`BackingList`].
//!
//! What is hard, and where it is solved:
//! 1. Ten million nodes must fit in a GiB although everything refers to them: `table`.
//! 2. A damaged document must not bring down a shower of accusations of the sound ones around it: what an unreadable
//!    document might explain is not accused, and neither is absence from a key space that could not be read to its end
//!    (`Judge::gaps`).
//! 3. One cause should break one rule. A lost directory is reported once and not for each entry in it: `entries`;
//!    a loop once, with its members: `tree`.
//! 4. Under a running mount the backing files are not of the instant of the snapshot: `backing` looks at the live
//!    documents again before it accuses.
//! 5. On a store that many hosts share others are at work meanwhile, and what a dead one left is no damage: `shared`.
//! 6. Documents and the objects that some of them name are in two stores: `objects`.
//! 7. Where there are no snapshots documents change while they are read, and seem not to fit each other: `again`.
//! 8. Thousands of violations must not eat the memory: [`report`].
//!
//! # The invariants
#![doc = include_str!("invariants.md")]

mod advisory;
mod again;
mod attached;
mod backing;
mod entries;
mod nodes;
mod objects;
pub mod report;
pub mod rule;
mod shared;
mod table;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::HashMap;
use std::sync::Arc;

use self::table::{Record, Table};
use crate::document::{Document, FORMAT_VERSION, Ino, Key, Kind, SessionId, SessionState, Stored, Volume};
use crate::store::{Range, Reader, StoreError, for_each};

#[cfg(test)]
use again::run_while_changing;
pub use again::{Judgement, judge_in_use};
pub use backing::{BackingFile, BackingList};
pub use objects::OBJECT;
pub use report::{Counts, Garbage, Report, Violation};
pub use rule::Rule;
pub use shared::CHUNKS;

/// What is judged.
pub struct Inputs<'a> {
    /// The documents of one instant: a snapshot, or a store that nobody changes meanwhile.
    pub documents: &'a dyn Reader,
    /// The documents as they change under a running mount, to look again before accusing what is not of the instant of the
    /// snapshot. Without them a mounted volume's backing files are counted and not accused.
    pub live: Option<&'a dyn Reader>,
    /// The backing files; without them invariant 6 is not judged.
    pub backing: Option<&'a dyn BackingList>,
    /// Whether the volume is mounted.
    pub mode: Mode<'a>,
}

/// Whether the volume is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode<'a> {
    /// Nobody has it mounted, and who checks owns the store.
    Offline,
    /// The check runs inside of the process that has the store mounted, once or several times.
    Online {
        /// The sessions of the process that has the store open, as of the instant of the documents.
        sessions: &'a [SessionId],
    },
    /// Other hosts may have the store mounted too, and their sessions live. Who checks may have none.
    Shared {
        /// The sessions of the process that checks, as of the instant of the documents.
        sessions: &'a [SessionId],
    },
}

/// What a check is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reads the documents of one kind.
    Documents(Kind),
    /// Judges what the nodes say against what was found.
    Nodes,
    /// Follows directories to the root.
    Tree,
    /// Looks at backing files.
    Backing,
}

/// How far a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What it is doing.
    pub phase: Phase,
    /// How many of it are done.
    pub done: u64,
    /// How many there should be, if that is known.
    pub total: Option<u64>,
}

/// How many documents go by between two reports of progress.
const PROGRESS_STEP: u64 = 1024;

/// Judges a volume. `progress` is called often and should be quick.
///
/// # Errors
/// [`StoreError`] if the store or a backing file cannot be read at all; what is damaged is reported, and the check goes on.
pub fn run(inputs: &Inputs<'_>, progress: &mut dyn FnMut(Progress)) -> Result<Report, StoreError> {
    let mut judge = Judge {
        inputs,
        progress,
        report: Report::default(),
        table: Table::default(),
        gaps: [false; Kind::ALL.len()],
        volume: None,
        root_missing: false,
        sessions: HashMap::new(),
        orphans_without_node: Vec::new(),
        group: entries::Group::default(),
        leftovers: shared::Leftovers::default(),
        named: objects::NamedObjects::default(),
        unreadable_entries: 0,
    };
    judge.documents()?;
    if judge.report.by_rule.contains_key(&Rule::FormatUnknown) {
        return Ok(judge.report); // Rules of this format would accuse another one wrongly.
    }
    judge.all_nodes()?;
    judge.tree();
    judge.backing()?;
    judge.objects()?;
    Ok(judge.report)
}

type Visit<'a> = fn(&mut Judge<'a>, &Key, Option<&Document>);

/// A check at work. Each module adds the methods for one kind of document or one question.
struct Judge<'a> {
    inputs: &'a Inputs<'a>,
    progress: &'a mut dyn FnMut(Progress),
    report: Report,
    table: Table,
    /// Key spaces that could not be read to their end: what is absent from them proves nothing.
    gaps: [bool; Kind::ALL.len()],
    /// The volume document, if it is there and if it can be read.
    volume: Option<Option<Volume>>,
    /// The root is accused already; that it is missing is no fault of what refers to it.
    root_missing: bool,
    /// The sessions, and their states if they can be read.
    sessions: HashMap<SessionId, Option<SessionState>>,
    /// In order.
    orphans_without_node: Vec<Ino>,
    group: entries::Group,
    leftovers: shared::Leftovers,
    named: objects::NamedObjects,
    /// Entries that nobody can read: each may be the name that some node lacks.
    unreadable_entries: u64,
}

impl<'a> Judge<'a> {
    /// Reads every document once, in an order in which each finds what it refers to: sessions and nodes first.
    fn documents(&mut self) -> Result<(), StoreError> {
        self.scan(Kind::Volume, Judge::volume, Some(1))?;
        self.volume_read();
        if self.report.by_rule.contains_key(&Rule::FormatUnknown) {
            return Ok(());
        }
        self.scan(Kind::Session, Judge::session, None)?;
        self.own_sessions();
        self.scan(Kind::Node, Judge::node, None)?;
        self.nodes_read()?;
        self.scan(Kind::Orphan, Judge::orphan, None)?;
        self.next_ino();
        let children = self.table.directories.iter().map(|directory| directory.children);
        let total = children.fold(0, u64::saturating_add);
        self.scan(Kind::Entry, Judge::entry, Some(total))?;
        self.end_of_group();
        self.scan(Kind::Content, Judge::content, None)?;
        let total = self.table.records.iter().map(|record| u64::from(record.xattrs)).sum();
        self.scan(Kind::Xattr, Judge::xattr, Some(total))?;
        self.scan(Kind::Chunk, Judge::chunk, None)?;
        self.scan(Kind::Lock, Judge::lock, None)?;
        self.scan(Kind::Advisory, Judge::advisory, None)?;
        self.advisory_left()?;
        self.leftovers()
    }

    /// Hands every document of a kind to `visit`; `None` for one that is there and cannot be read.
    fn scan(&mut self, kind: Kind, visit: Visit<'a>, total: Option<u64>) -> Result<(), StoreError> {
        let mut last = None;
        let mut done = 0;
        let phase = Phase::Documents(kind);
        let outcome = for_each(self.inputs.documents, Range::All(kind), |key, item| {
            let document = self.readable(&key, item)?;
            visit(self, &key, document.as_deref());
            last = Some(key);
            done += 1;
            self.advance(phase, done, total);
            Ok(())
        });
        match outcome {
            Err(StoreError::Damaged { key, cause }) => {
                let read = last.map_or("its beginning".to_owned(), |key: Key| key.to_string());
                self.gaps[kind as usize] = true;
                let detail = format_args!("{cause}; what comes after {read} could not be read in whole");
                self.report.accuse(Rule::KeySpaceDamaged, &key, detail);
                Ok(())
            }
            other => other,
        }
    }

    /// The document of an item of a scan, or `None` after accusing one that cannot be read.
    fn readable(
        &mut self,
        key: &Key,
        item: Result<Stored, StoreError>,
    ) -> Result<Option<Arc<Document>>, StoreError> {
        match item {
            Ok(stored) if stored.document.kind() == key.kind() => Ok(Some(stored.document)),
            Ok(stored) => {
                let kind = stored.document.kind().name();
                self.report.accuse(Rule::Damaged, key, format_args!("a {kind} stands under this key"));
                Ok(None)
            }
            Err(StoreError::Damaged { cause, .. }) => {
                self.report.accuse(Rule::Damaged, key, format_args!("{cause}"));
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }

    fn advance(&mut self, phase: Phase, done: u64, total: Option<u64>) {
        if done.is_multiple_of(PROGRESS_STEP) || Some(done) == total {
            (self.progress)(Progress { phase, done, total });
        }
    }

    /// Whether some documents of a kind could not be read.
    fn gap(&self, kind: Kind) -> bool {
        self.gaps[kind as usize]
    }

    /// Whether it is certain, and not said already, that there is no such node.
    fn node_is_absent(&self, ino: Ino) -> bool {
        let excused = self.gap(Kind::Node) || (self.root_missing && ino == Ino::ROOT);
        !excused && self.table.find(ino).is_none()
    }

    /// Whether a node lost its last name while it was open: what a directory says of its parent is history then.
    fn removed_while_open(&self, record: &Record) -> bool {
        record.nlink == 0 && record.names == 0 && (record.orphan || self.gap(Kind::Orphan))
    }

    /// Takes in the volume document.
    fn volume(&mut self, _: &Key, document: Option<&Document>) {
        self.volume = Some(match document {
            Some(Document::Volume(volume)) => Some(volume.clone()),
            _ => None,
        });
    }

    /// Judges the volume document.
    fn volume_read(&mut self) {
        match &self.volume {
            None if !self.gap(Kind::Volume) => {
                self.report.accuse(Rule::VolumeMissing, &Key::Volume, format_args!("it is missing"));
            }
            Some(Some(volume)) if !(1..=FORMAT_VERSION).contains(&volume.format) => {
                let found = volume.format;
                let detail = format_args!(
                    "its format is {found}, and this program knows 1 to {FORMAT_VERSION}; nothing else was judged"
                );
                self.report.accuse(Rule::FormatUnknown, &Key::Volume, detail);
            }
            _ => {}
        }
    }

    /// Judges `next_ino` once all nodes and orphans are known. One violation says it for all inodes above.
    fn next_ino(&mut self) {
        let Some(Some(volume)) = &self.volume else { return };
        let node = self.table.records.last().map(|record| record.ino);
        let Some(highest) = node.max(self.orphans_without_node.last().copied()) else { return };
        if highest.0 >= volume.next_ino {
            let detail = format_args!("next_ino is {}, and inode {highest} is in use", volume.next_ino);
            self.report.accuse(Rule::NextIno, &Key::Volume, detail);
        }
    }
}
