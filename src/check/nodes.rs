//! Nodes: what each says for itself, and whether what was found bears it out. Imports `document` and `store`.

use super::table::{NO_NAME, Record, What};
use super::{Judge, Phase, Rule};
use crate::document::{Body, ContentPlace, Document, Ino, Key, Kind, Node};
use crate::store::StoreError;

const MODE_MAX: u32 = 0o7777;
const NANOSECONDS_PER_SECOND: u32 = 1_000_000_000;
const SYMLINK_BYTES_MAX: usize = 4095;
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

impl Judge<'_> {
    /// Takes in one node, and judges the values that need nothing else to be seen wrong.
    pub(super) fn node(&mut self, key: &Key, document: Option<&Document>) {
        let &Key::Node(ino) = key else { return };
        let node = match document {
            Some(Document::Node(node)) => Some(node),
            _ => None,
        };
        self.report.counts.nodes += 1;
        self.table.push(ino, node);
        if let Some(node) = node {
            self.values(key, node);
        }
    }

    fn values(&mut self, key: &Key, node: &Node) {
        let report = &mut self.report;
        if node.mode > MODE_MAX {
            report.accuse(Rule::Mode, key, format_args!("the mode is 0o{:o}", node.mode));
        }
        let times =
            [("atime", node.atime), ("mtime", node.mtime), ("ctime", node.ctime), ("btime", node.btime)];
        if let Some((name, time)) = times.iter().find(|(_, time)| time.nsec >= NANOSECONDS_PER_SECOND) {
            report.accuse(Rule::Nanoseconds, key, format_args!("{name} has {} nanoseconds", time.nsec));
        }
        match &node.body {
            Body::Symlink { target } if !(1..=SYMLINK_BYTES_MAX).contains(&target.len()) => {
                let detail = format_args!("the target has {} bytes", target.len());
                report.accuse(Rule::SymlinkTarget, key, detail);
            }
            Body::Regular(regular) if regular.size > FILE_BYTES_MAX => {
                report.accuse(Rule::FileSize, key, format_args!("the size is {}", regular.size));
            }
            _ => {}
        }
    }

    /// Called when all nodes have been read: makes them findable and judges the root.
    pub(super) fn nodes_read(&mut self) -> Result<(), StoreError> {
        self.table.seal()?;
        self.report.counts.directories = self.table.directories.len() as u64;
        let root = Key::Node(Ino::ROOT);
        let Some(what) = self.table.get(Ino::ROOT).map(|record| record.what) else {
            self.root_missing = !self.gap(Kind::Node);
            if self.root_missing {
                self.report.accuse(Rule::Root, &root, format_args!("the root directory is missing"));
            }
            return Ok(());
        };
        match self.table.directory(what) {
            Some(directory) if directory.parent != Ino::ROOT => {
                let detail = format_args!("the root says that it is in node {}", directory.parent);
                self.report.accuse(Rule::Root, &root, detail);
            }
            Some(directory) if directory.place != NO_NAME => {
                self.report.accuse(Rule::Root, &root, format_args!("the root has a name"));
            }
            None if what != What::Unreadable => {
                self.report.accuse(Rule::Root, &root, format_args!("the root is not a directory"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Judges every node once everything that refers to it has gone by.
    pub(super) fn all_nodes(&mut self) -> Result<(), StoreError> {
        let total = self.table.records.len();
        for at in 0..total {
            let what = self.table.records[at].what;
            match what {
                What::Unreadable => {}
                What::Directory(_) => self.directory(at)?,
                _ => self.other(at),
            }
            if what != What::Unreadable {
                self.attributes(at);
            }
            self.advance(Phase::Nodes, at as u64 + 1, Some(total as u64));
        }
        Ok(())
    }

    fn attributes(&mut self, at: usize) {
        let Record { ino, xattrs, xattrs_seen, .. } = self.table.records[at];
        if xattrs != xattrs_seen && !self.gap(Kind::Xattr) {
            let detail = format_args!("xattrs is {xattrs}, and it has {xattrs_seen}");
            self.report.accuse(Rule::XattrCount, &Key::Node(ino), detail);
        }
    }

    /// A node that is no directory.
    fn other(&mut self, at: usize) {
        let record = &self.table.records[at];
        let &Record { ino, nlink, names, what, content, .. } = record;
        let removed_while_open = self.removed_while_open(record);
        let key = Key::Node(ino);
        if nlink == 0 && names == 0 {
            if !removed_while_open {
                let detail = format_args!("no name leads to it, and no orphan document holds it");
                self.report.accuse(Rule::UnnamedNode, &key, detail);
            }
        } else if nlink != names {
            let missing = nlink.saturating_sub(names);
            let excused =
                missing > 0 && (self.gap(Kind::Entry) || u64::from(missing) <= self.unreadable_entries);
            if !excused {
                let detail = format_args!("nlink is {nlink}, and {names} entries lead to it");
                self.report.accuse(Rule::LinkCount, &key, detail);
            }
        }
        if what == What::Regular(ContentPlace::Inline) && !content && !self.gap(Kind::Content) {
            let detail = format_args!("its bytes should be in a content document, and there is none");
            self.report.accuse(Rule::ContentMissing, &key, detail);
        }
    }

    fn directory(&mut self, at: usize) -> Result<(), StoreError> {
        let record = &self.table.records[at];
        let &Record { ino, nlink, names, what, .. } = record;
        let removed_while_open = self.removed_while_open(record);
        let Some(directory) = self.table.directory(what) else { return Ok(()) };
        if self.gap(Kind::Entry) {
            return Ok(());
        }
        let key = Key::Node(ino);
        let (parent, subdirectories) = (directory.parent, directory.subdirectories);
        let (children, entries) = (directory.children, directory.entries);
        if children != entries {
            let detail = format_args!("children is {children}, and it has {entries} entries");
            self.report.accuse(Rule::DirectoryChildren, &key, detail);
        }
        if removed_while_open {
            return Ok(());
        }
        let least = subdirectories.saturating_add(2);
        if !(least..=least.saturating_add(directory.unreadable)).contains(&nlink) {
            let detail = format_args!("nlink is {nlink}, and it has {subdirectories} subdirectories");
            self.report.accuse(Rule::DirectoryLinks, &key, detail);
        }
        if names > 0 || ino == Ino::ROOT {
            return Ok(());
        }
        let parent_what = self.table.get(parent).map(|record| record.what);
        if self.node_is_absent(parent) || parent_what.is_some_and(|what| !what.may_hold_entries()) {
            let detail = format_args!("it says that it is in node {parent}, which is no directory");
            self.report.accuse(Rule::DirectoryParent, &key, detail);
        } else if !self.entry_is_unreadable(ino)? {
            let detail = format_args!("no entry leads to it; it says that it is in node {parent}");
            self.report.accuse(Rule::DirectoryUnnamed, &key, detail);
        }
        Ok(())
    }

    /// Whether the entry of a directory is there and cannot be read. Its name was not kept, so the node is read again.
    fn entry_is_unreadable(&self, ino: Ino) -> Result<bool, StoreError> {
        if self.unreadable_entries == 0 {
            return Ok(false);
        }
        let Some((_, node)) = self.inputs.documents.node(ino)? else { return Ok(false) };
        let Some((parent, name)) = node.directory().and_then(|d| Some((d.parent, d.name.clone()?))) else {
            return Ok(false);
        };
        match self.inputs.documents.get(&Key::Entry(parent, name)) {
            Ok(stored) => Ok(stored.is_some_and(|stored| stored.document.kind() != Kind::Entry)),
            Err(StoreError::Damaged { .. }) => Ok(true),
            Err(other) => Err(other),
        }
    }
}
