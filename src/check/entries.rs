//! Entries, streamed in the order of their keys: directory by directory. Imports `document`.
//!
//! What is hard: a directory whose node is lost leaves all its entries without a parent. They are one group in the
//! stream, and one violation speaks for the group.

use super::table::What;
use super::{Judge, Rule};
use crate::document::{Document, Entry, EntryPosition, FileKind, Ino, Key};

/// The entries of the directory that is going by.
#[derive(Default)]
pub(super) struct Group {
    parent: Option<Ino>,
    /// What their parent is; `None` if it is missing.
    what: Option<What>,
    /// If the parent is missing or no directory: the first entry, and how many there are.
    stray: Option<(Key, u64)>,
}

impl Judge<'_> {
    /// Takes in one entry.
    pub(super) fn entry(&mut self, key: &Key, document: Option<&Document>) {
        let Key::Entry(parent, name) = key else { return };
        self.report.counts.entries += 1;
        if self.group.parent != Some(*parent) {
            self.end_of_group();
            let what = self.table.get(*parent).map(|record| record.what);
            self.group = Group { parent: Some(*parent), what, stray: None };
        }
        self.in_its_directory(key, *parent);
        let kind = match document {
            Some(Document::Entry(entry)) => {
                let place = EntryPosition::of(name.as_bytes());
                Some(self.leads_to(key, *parent, place, entry))
            }
            _ => {
                self.unreadable_entries += 1;
                None
            }
        };
        let Some(directory) = self.group.what.and_then(|what| self.table.directory_mut(what)) else { return };
        directory.entries += 1;
        match kind {
            None => directory.unreadable = directory.unreadable.saturating_add(1),
            Some(FileKind::Directory) => {
                directory.subdirectories = directory.subdirectories.saturating_add(1);
            }
            Some(_) => {}
        }
    }

    /// Judges the upward side of an entry.
    fn in_its_directory(&mut self, key: &Key, parent: Ino) {
        let stray = match self.group.what {
            Some(what) => !what.may_hold_entries(),
            None => self.node_is_absent(parent),
        };
        if stray {
            self.group.stray.get_or_insert_with(|| (key.clone(), 0)).1 += 1;
        }
    }

    /// Judges the downward side of an entry; returns the kind of what it leads to, as the node says if it is there.
    fn leads_to(&mut self, key: &Key, parent: Ino, place: EntryPosition, entry: &Entry) -> FileKind {
        let ino = entry.ino;
        let Some(record) = self.table.get_mut(ino) else {
            if self.node_is_absent(ino) {
                let detail = format_args!("it leads to node {ino}, which is missing");
                self.report.accuse(Rule::EntryNode, key, detail);
            }
            return entry.kind;
        };
        record.names = record.names.saturating_add(1);
        let what = record.what;
        let kind = what.kind().unwrap_or(entry.kind);
        if kind != entry.kind {
            let detail = format_args!("it says {:?}, and node {ino} is {kind:?}", entry.kind);
            self.report.accuse(Rule::EntryKind, key, detail);
        }
        if let Some(directory) = self.table.directory(what)
            && (directory.parent != parent || directory.place != place)
        {
            let elsewhere = directory.parent;
            let detail = if elsewhere == parent {
                format_args!("it leads to directory {ino}, which says that it has another name")
            } else {
                format_args!("it leads to directory {ino}, which says that it is in node {elsewhere}")
            };
            self.report.accuse(Rule::DirectoryPlace, key, detail);
        }
        kind
    }

    /// Called between two directories and after the last one.
    pub(super) fn end_of_group(&mut self) {
        let Group { parent: Some(parent), what, stray: Some((first, count)) } =
            std::mem::take(&mut self.group)
        else {
            return;
        };
        let wrong = if what.is_some() { "not a directory" } else { "missing" };
        let others = count - 1;
        let detail = format_args!("its parent, node {parent}, is {wrong}; {others} more entries are in it");
        self.report.accuse(Rule::EntryParent, &first, detail);
    }
}
