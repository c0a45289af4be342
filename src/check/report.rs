//! What a check found. Owns [`Report`] and how it stays small; imports `document` and the rules.
//!
//! A volume that lost one large directory breaks a rule once for each file that was in it. So only the first
//! [`KEPT_MAX`] violations are kept in words, and all of them are counted.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::Rule;

/// How many violations, and how much garbage, a report keeps; the rest is counted only.
pub const KEPT_MAX: usize = 10_000;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Which rule is broken.
    pub rule: Rule,
    /// The document, in the form that `lockwood get` takes; of a damaged key the name of its key space.
    pub document: String,
    /// What stands there and what should.
    pub detail: String,
    /// What a person can do, if that is known.
    pub advice: Option<&'static str>,
}

/// Something that nothing needs: a backing file, the chunks of an inode, an object, or a lock. It is collected in time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Garbage {
    /// `backing:INODE` or `chunk:INODE` for the bytes of an inode, `object:NAME` for an object, or the document in the form
    /// that `lockwood get` takes.
    pub document: String,
    /// The space that it takes, in bytes.
    pub allocated_bytes: u64,
    /// Why nothing needs it.
    pub detail: String,
}

/// How much was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Nodes of any kind.
    pub nodes: u64,
    /// Of these, directories.
    pub directories: u64,
    /// Entries.
    pub entries: u64,
    /// Content documents.
    pub contents: u64,
    /// Extended attributes.
    pub xattrs: u64,
    /// Orphan documents.
    pub orphans: u64,
    /// Session documents.
    pub sessions: u64,
    /// Chunks.
    pub chunks: u64,
    /// Lock documents.
    pub locks: u64,
    /// Advisory locks.
    pub advisory_locks: u64,
    /// Inodes with backing files.
    pub backing_files: u64,
    /// The space that these take, in bytes.
    pub backing_bytes: u64,
    /// Objects, on volumes whose contents are in an object store.
    pub objects: u64,
    /// Their length together, in bytes.
    pub object_bytes: u64,
    /// Directories that do not lead to the root.
    pub unreachable_directories: u64,
    /// Violations, those that the report does not keep included.
    pub violations: u64,
    /// Where something seemed wrong that was being changed each time it was looked at, so that nothing is known of it.
    pub changing: u64,
    /// Pieces of garbage, those that the report does not keep included.
    pub garbage: u64,
    /// The space that they take, in bytes.
    pub garbage_bytes: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What is wrong: the first [`KEPT_MAX`].
    pub violations: Vec<Violation>,
    /// How often each rule is broken, those that `violations` does not keep included.
    pub by_rule: BTreeMap<Rule, u64>,
    /// What is collected in time: the first [`KEPT_MAX`].
    pub garbage: Vec<Garbage>,
    /// How much was looked at.
    pub counts: Counts,
}

impl Report {
    /// Whether nothing is wrong. Garbage is nothing wrong.
    pub fn is_clean(&self) -> bool {
        self.counts.violations == 0
    }

    /// Whether something is wrong and all of it is what a crash leaves and the next mount mends.
    pub fn is_leftover_only(&self) -> bool {
        !self.is_clean() && self.by_rule.keys().all(|rule| rule.is_leftover())
    }

    /// Whether every violation is kept in words.
    pub(super) fn keeps_all(&self) -> bool {
        self.counts.violations == self.violations.len() as u64
    }

    /// Takes back what does not hold, of a report that keeps all.
    pub(super) fn keep(&mut self, holds: impl Fn(&Violation) -> bool) {
        self.violations.retain(holds);
        self.counts.violations = self.violations.len() as u64;
        self.by_rule.clear();
        for violation in &self.violations {
            *self.by_rule.entry(violation.rule).or_default() += 1;
        }
    }

    /// Notes a violation. The detail is put into words only if it is kept.
    pub(super) fn accuse(&mut self, rule: Rule, document: &dyn fmt::Display, detail: fmt::Arguments<'_>) {
        self.counts.violations += 1;
        *self.by_rule.entry(rule).or_default() += 1;
        if self.violations.len() < KEPT_MAX {
            self.violations.push(Violation {
                rule,
                document: document.to_string(),
                detail: detail.to_string(),
                advice: rule.advice(),
            });
        }
    }

    /// Notes garbage.
    pub(super) fn collect(&mut self, document: String, allocated_bytes: u64, detail: &str) {
        self.counts.garbage += 1;
        self.counts.garbage_bytes = self.counts.garbage_bytes.saturating_add(allocated_bytes);
        if self.garbage.len() < KEPT_MAX {
            self.garbage.push(Garbage { document, allocated_bytes, detail: detail.to_owned() });
        }
    }
}
