//! What a rename rests on: read, judged, and said as paths and as checks.
//!
//! Nothing of it is sure before the commit: what was read may be old, and of several times.

use std::sync::Arc;

use super::{Manner, Moved, Rename};
use crate::document::{Entry, FileKind, Ino, Key, Version};
use crate::lock::{LockId, Plan};
use crate::namespace::resolve::Chain;
use crate::namespace::{Namespace, NamespaceError, Result};
use crate::rules::{Rule, holds};
use crate::store::{Check, Commit, NodeRef, StoreError};

/// Everything that a rename rests on, as read at one time.
pub(super) struct Resolved {
    pub(super) source: Side,
    pub(super) target: Option<Side>,
    pub(super) source_chain: Chain,
    pub(super) target_chain: Chain,
}

/// What the two names of a rename turned out to be.
pub(super) enum Resolution {
    /// Names of one file: nothing is to be done.
    Same(Moved),
    /// There is something to move.
    Apart(Resolved),
}

/// The two names of a rename, as paths.
#[derive(PartialEq, Eq)]
pub(super) struct Paths {
    pub(super) source: LockId,
    pub(super) target: LockId,
}

/// One name and what stands under it.
pub(super) struct Side {
    pub(super) version: Version,
    pub(super) entry: Entry,
    pub(super) node: (Version, NodeRef),
}

impl Namespace {
    /// Whether the subtrees that were walked for their locks are those that stand at these paths now. Strategies that
    /// lock paths alone do not care.
    pub(super) fn means_the_same(
        &self,
        paths: &Paths,
        rename: &Rename,
        before: &Resolved,
        now: &Resolved,
    ) -> bool {
        let inos = |resolved: &Resolved| paths.tops(resolved).iter().map(|(ino, _)| *ino).collect::<Vec<_>>();
        !self.volume.locking.locks_members(paths.plan(rename.manner))
            || inos(before) == inos(now)
            || !holds(Rule::MembersStillMeant)
    }

    /// Reads everything that the rename rests on and judges it.
    pub(super) fn resolve(&self, rename: &Rename) -> Result<Resolution> {
        let source_chain = self.chain(rename.parent)?;
        let target_chain = self.chain(rename.new_parent)?;
        let source = self.side(&rename.source_key())?.ok_or(NamespaceError::NotFound)?;
        let target = self.side(&rename.target_key())?;
        let resolved = Resolved { source, target, source_chain, target_chain };
        self.refuse_mistaken(rename, &resolved)?;
        match &resolved.target {
            Some(_) if matches!(rename.manner, Manner::NoReplace | Manner::WhiteoutNoReplace) => {
                return Err(NamespaceError::Exists);
            }
            None if rename.manner == Manner::Exchange => return Err(NamespaceError::NotFound),
            Some(target) if target.entry.ino == resolved.source.entry.ino => {
                // Two names of one file; unless one of them is only remembered, and what is asked for has to be done.
                let checks = resolved.checks(rename);
                return match self.commit(&Commit { checks, ..Commit::new() }) {
                    Err(error) => Err(nothing_moved("checking that two names are of one file", error)),
                    Ok(_) => Ok(Resolution::Same(resolved.moved(rename.manner))),
                };
            }
            _ => {}
        }
        let is_directory = resolved.source.entry.kind == FileKind::Directory;
        if is_directory
            && resolved.leads_to(rename.new_parent, resolved.source.entry.ino, &resolved.target_chain)
        {
            return Err(NamespaceError::IntoItself);
        }
        if let Some(target) = &resolved.target {
            let above = target.entry.kind == FileKind::Directory
                && resolved.leads_to(rename.parent, target.entry.ino, &resolved.source_chain);
            match rename.manner {
                Manner::Exchange if above => return Err(NamespaceError::IntoItself),
                Manner::Exchange => {}
                _ => may_replace(&resolved.source, target)?,
            }
        }
        Ok(Resolution::Apart(resolved))
    }

    /// Refuses to replace something else, or nothing, where a directory was meant that is somewhere else.
    fn refuse_mistaken(&self, rename: &Rename, found: &Resolved) -> Result<()> {
        match rename.taken_for {
            Some(meant) if matches!(rename.manner, Manner::Replace | Manner::Whiteout) => {
                let there = found.target.as_ref().map(|target| target.entry.ino);
                self.refuse_instead(&rename.target_key(), meant, there)
            }
            _ => Ok(()),
        }
    }

    fn side(&self, key: &Key) -> Result<Option<Side>> {
        let Some((version, entry)) = self.entry(key)? else { return Ok(None) };
        let node = self.target(key, entry)?;
        Ok(Some(Side { version, entry, node }))
    }
}

/// An error of something that moves no name: what became of that makes no rename doubtful.
pub(super) fn nothing_moved(what: &str, error: NamespaceError) -> NamespaceError {
    match error {
        NamespaceError::Store(StoreError::Unknown(cause)) => {
            StoreError::Engine { what: what.to_owned(), source: cause.into() }.into()
        }
        other => other,
    }
}

/// Whether a rename that holds its locks may go on, having `found` this under them where it had resolved that `before`. If
/// not, its paths came to mean something else before the locks were granted, and it starts over. The model checker asks too.
pub fn still_fits<P: PartialEq>(before: &P, found: &P) -> bool {
    before == found || !holds(Rule::RevalidatedUnderLocks)
}

/// What the commit of a rename checks, each once: its two names, and the entry of every directory above either. So the
/// tree stays a tree without any lock. Whatever stands for a check; the model checker has its own.
pub fn rests_on<C: PartialEq>(
    source: C,
    target: C,
    above_source: impl Iterator<Item = C>,
    above_target: impl Iterator<Item = C>,
) -> Vec<C> {
    let names = [(Rule::SourceEntryChecked, source), (Rule::TargetEntryChecked, target)];
    let mut checks: Vec<C> = Vec::with_capacity(24);
    checks.extend(names.into_iter().filter(|(rule, _)| holds(*rule)).map(|(_, check)| check));
    let above_source = above_source.filter(|_| holds(Rule::SourceAncestorsChecked));
    let above_target = above_target.filter(|_| holds(Rule::DestinationAncestorsChecked));
    for check in above_source.chain(above_target) {
        if !checks.contains(&check) {
            checks.push(check);
        }
    }
    checks
}

impl Resolved {
    /// What is moved by this.
    pub(super) fn moved(&self, manner: Manner) -> Moved {
        let back = self.target.as_ref().filter(|_| manner == Manner::Exchange);
        Moved { there: self.source.entry.ino, back: back.map(|target| target.entry.ino) }
    }

    pub(super) fn paths(&self, rename: &Rename) -> Result<Paths> {
        let source = self.source_chain.path(&rename.name)?;
        Ok(Paths { source, target: self.target_chain.path(&rename.new_name)? })
    }

    pub(super) fn checks(&self, rename: &Rename) -> Vec<Check> {
        let source = Check::Version(rename.source_key(), self.source.version);
        let target = match &self.target {
            Some(target) => Check::Version(rename.target_key(), target.version),
            None => Check::Absent(rename.target_key()),
        };
        rests_on(source, target, self.source_chain.checks(), self.target_chain.checks())
    }

    /// Whether the way from the root to `directory` leads through `ino`.
    fn leads_to(&self, directory: Ino, ino: Ino, chain: &Chain) -> bool {
        directory == ino || chain.contains(ino)
    }
}

impl Paths {
    pub(super) fn plan(&self, manner: Manner) -> Plan<'_> {
        match manner {
            Manner::Exchange => Plan::Exchange { one: &self.source, other: &self.target },
            _ => Plan::Rename { source: &self.source, destination: &self.target },
        }
    }

    /// What moves or is put away, each with its path.
    pub(super) fn tops(&self, resolved: &Resolved) -> Vec<(Ino, &LockId)> {
        let target = resolved.target.as_ref().map(|side| (side.entry.ino, &self.target));
        [(resolved.source.entry.ino, &self.source)].into_iter().chain(target).collect()
    }

    /// For people.
    pub(super) fn describe(&self, manner: Manner) -> Arc<str> {
        let verb = if manner == Manner::Exchange { "exchange" } else { "rename" };
        [verb, " ", &self.source.printable(), " to ", &self.target.printable()].concat().into()
    }
}

fn may_replace(source: &Side, target: &Side) -> Result<()> {
    let directory = FileKind::Directory;
    match (source.entry.kind == directory, target.entry.kind == directory) {
        (true, false) => Err(NamespaceError::NotADirectory),
        (false, true) => Err(NamespaceError::IsADirectory),
        (true, true) if target.node.1.directory().is_some_and(|d| d.children > 0) => {
            Err(NamespaceError::NotEmpty)
        }
        _ => Ok(()),
    }
}
