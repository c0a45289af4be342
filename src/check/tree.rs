//! Whether following the parents of every directory leads to the root. Imports `document`.
//!
//! Every step goes to a node that the walk has not met, or ends it: at the root, at a directory judged before, at a node
//! that is missing or no directory (accused elsewhere, as the parent of an entry or of a directory), or at a directory
//! of this very walk, and that is a loop. Each directory is entered once, so the whole takes linear time.

use std::fmt::Write as _;

use super::table::{Walk, What};
use super::{Judge, Phase, Rule};
use crate::document::{Ino, Key};

/// How many members of a loop are named.
const NAMED_MAX: usize = 20;

impl Judge<'_> {
    /// Judges every directory.
    pub(super) fn tree(&mut self) {
        let total = self.table.directories.len() as u64;
        let mut path = Vec::new();
        let mut done = 0;
        for at in 0..self.table.records.len() {
            let record = &self.table.records[at];
            let What::Directory(_) = record.what else { continue };
            let removed_while_open = self.removed_while_open(record);
            done += 1;
            self.advance(Phase::Tree, done, Some(total));
            if removed_while_open {
                continue; // Its parent may be gone as well.
            }
            let end = self.walk(at, &mut path);
            for at in path.drain(..) {
                self.set_walk(at, end);
                self.report.counts.unreachable_directories += u64::from(end == Walk::Lost);
            }
        }
    }

    /// Walks up from the directory at `at`, leaving those that it entered in `path`.
    fn walk(&mut self, mut at: usize, path: &mut Vec<usize>) -> Walk {
        loop {
            let record = &self.table.records[at];
            let (ino, what) = (record.ino, record.what);
            let Some(directory) = self.table.directory(what) else {
                // Of an unreadable node nobody knows where it is: nothing above it is judged.
                return if what == What::Unreadable { Walk::Rooted } else { Walk::Lost };
            };
            let parent = directory.parent;
            match directory.walk {
                Walk::Unknown => {}
                Walk::OnPath => {
                    let begin = path.iter().position(|&member| member == at).unwrap_or_default();
                    self.looped(&path[begin..]);
                    return Walk::Lost;
                }
                known => return known,
            }
            path.push(at);
            if ino == Ino::ROOT {
                return Walk::Rooted;
            }
            self.set_walk(at, Walk::OnPath);
            match self.table.find(parent) {
                Some(next) => at = next,
                None if self.node_is_absent(parent) => return Walk::Lost,
                None => return Walk::Rooted,
            }
        }
    }

    fn set_walk(&mut self, at: usize, walk: Walk) {
        let what = self.table.records[at].what;
        if let Some(directory) = self.table.directory_mut(what) {
            directory.walk = walk;
        }
    }

    fn looped(&mut self, members: &[usize]) {
        let inos = || members.iter().map(|&at| self.table.records[at].ino);
        let Some(lowest) = inos().min() else { return };
        let mut chain = String::new();
        for ino in inos().take(NAMED_MAX) {
            let _ = write!(chain, "{ino} in "); // Writing to a string does not fail.
        }
        match members.len().checked_sub(NAMED_MAX) {
            Some(more) if more > 0 => {
                let _ = write!(chain, "{more} more in ");
            }
            _ => {}
        }
        let back = inos().next().unwrap_or(lowest);
        let detail = format_args!("directories lie in each other and not under the root: {chain}{back}");
        self.report.accuse(Rule::DirectoryLoop, &Key::Node(lowest), detail);
    }
}
