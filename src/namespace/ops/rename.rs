//! Renaming: the operation that the project exists for.
//!
//! What is hard:
//! 1. Two renames, each legal alone, may together cut a loop off the root. Every rename takes the locks of the volume's
//!    strategy (docs/locking.md): by default shared ones on the ancestors of both paths and exclusive ones on both
//!    targets. Its commit checks the entry of every ancestor of both, at the instant at which it writes. The locks keep
//!    renames out of each other's way; the checks alone would keep the tree a tree.
//! 2. Paths are resolved before the locks are held, and may mean something else by then. Who has waited resolves them again
//!    under the locks, and if the locks are not those of the paths any more, everything starts over. Who got the locks at
//!    once leaves it to the commit, which checks every entry that the paths rest on, and starts over if one has changed.
//! 3. The subtree may be large: a directory's place is in its own node and its entry, so a rename writes at most eight
//!    documents (and the attributes of a file that it replaces), whatever is below.
//! 4. A rename that must wait must not hold up others: [`Patience::Try`] never waits, and the caller can take the
//!    operation elsewhere before it asks again with [`Patience::Wait`].

mod resolved;

use std::sync::Arc;
use std::time::Instant;

use crate::ambient;
use crate::document::{Document, Entry, FileKind, Ino, Key, Name, Node, NodeDelta, Timestamp};
use crate::lock::{LockError, LockGuard, LockId, Mode, Plan, Request, Wait};
use crate::namespace::{Caller, Namespace, NamespaceError, Result};
use crate::store::cells::Along;
use crate::store::{Commit, StoreError};

pub use resolved::{rests_on, still_fits};

use self::resolved::{Paths, Resolution, Resolved, Side, nothing_moved};
use super::make::{Make, What};
use super::remove::After;

/// Few renames write more documents.
const WRITES: usize = 6;

/// A rename, as asked for.
#[derive(Clone, Debug)]
pub struct Rename {
    /// The directory that the name is in.
    pub parent: Ino,
    /// The name.
    pub name: Name,
    /// The directory that it goes to.
    pub new_parent: Ino,
    /// Its name there.
    pub new_name: Name,
    /// What kind of rename.
    pub manner: Manner,
    /// The directory that the new name is taken to lead to. Nothing else is replaced, unless that one is gone.
    pub taken_for: Option<Ino>,
}

/// What a rename has moved, whatever its names were taken to lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// To the new name.
    pub there: Ino,
    /// To the old name, by an exchange.
    pub back: Option<Ino>,
}

/// The kinds of rename; see renameat2(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// What stands under the new name is replaced.
    Replace,
    /// Nothing may stand under the new name.
    NoReplace,
    /// The two names change places.
    Exchange,
    /// What stands under the new name is replaced, and a whiteout (a character device 0/0) takes the old name's place.
    Whiteout,
    /// The same, and nothing may stand under the new name.
    WhiteoutNoReplace,
}

/// Whether to wait for locks.
#[derive(Clone, Copy, Debug)]
pub enum Patience<'a> {
    /// Not at all: if a lock is not free, `LockError::WouldBlock`, and nothing is held.
    Try,
    /// Until then, or until the caller gives up.
    Wait(Wait<'a>),
}

/// A rename that is being made, under these locks.
struct Move<'a> {
    rename: &'a Rename,
    held: Option<&'a LockGuard>,
    now: Timestamp,
}

impl Rename {
    fn source_key(&self) -> Key {
        Key::Entry(self.parent, self.name.clone())
    }

    fn target_key(&self) -> Key {
        Key::Entry(self.new_parent, self.new_name.clone())
    }
}

impl Namespace {
    /// How long this mount waits for locks from now on.
    pub fn lock_deadline(&self) -> Instant {
        ambient::monotonic() + self.settings.lock_wait
    }

    /// Renames.
    ///
    /// # Errors
    /// Those of rename(2) and renameat2(2); `Lock` if the locks were not granted; `Stale` if the new name does not lead to
    /// the directory that it is taken for, and that one is somewhere else.
    pub fn rename(&self, caller: Caller, rename: &Rename, patience: Patience<'_>) -> Result<Moved> {
        self.retry(|| {
            let resolved = match self.resolve(rename)? {
                Resolution::Apart(resolved) => resolved,
                Resolution::Same(moved) => return Ok(moved),
            };
            let paths = resolved.paths(rename)?;
            let plan = paths.plan(rename.manner);
            let members = self.members(plan, &paths.tops(&resolved))?;
            let may_have_waited =
                matches!(patience, Patience::Wait(_)) || self.volume.locking.locks_members(plan);
            let outcome = match self.request(plan, members, || paths.describe(rename.manner))? {
                None => self.move_names(caller, rename, &resolved, None),
                Some(request) if may_have_waited => {
                    let guard = self.lock(request, patience)?;
                    self.ended(rename, self.look_and_move(caller, rename, &paths, &resolved, &guard), guard)
                }
                Some(request) if self.may_lock_beside(&resolved) => {
                    self.lock_and_move(caller, rename, &resolved, request)
                }
                Some(request) => {
                    let guard = self.lock(request, patience)?;
                    let moves = || self.move_names(caller, rename, &resolved, Some(&guard));
                    self.ended(rename, guard.while_held(moves), guard)
                }
            };
            if outcome.is_ok() {
                self.peers.settle(self.session);
            }
            outcome
        })
    }

    /// Looks again under the locks, and renames. Now no directory of the two chains moves any more, but all may have moved
    /// until now. The commit would find that out as well: for who did not wait, it does.
    fn look_and_move(
        &self,
        caller: Caller,
        rename: &Rename,
        paths: &Paths,
        before: &Resolved,
        guard: &LockGuard,
    ) -> Result<Moved> {
        let now = match self.resolve(rename)? {
            Resolution::Apart(now) => now,
            Resolution::Same(moved) => return Ok(moved),
        };
        if !still_fits(paths, &now.paths(rename)?) || !self.means_the_same(paths, rename, before, &now) {
            return Err(NamespaceError::Conflict(rename.source_key()));
        }
        guard.while_held(|| self.move_names(caller, rename, &now, Some(guard)))
    }

    /// Whether the locks of a rename are to be taken while its commit is being prepared: where that saves a request in
    /// sequence, and the commit needs nothing of this mount to be settled before.
    fn may_lock_beside(&self, resolved: &Resolved) -> bool {
        resolved.target.is_none()
            && self.volume.locking.covers_checks()
            && self.locks.may_be_taken_beside()
            && self.store.intents().is_some()
    }

    /// Takes the locks while the commit is being prepared, which compares and decides nothing before they are granted.
    /// That the paths are still those that were locked the commit finds out, as for everybody who does not wait.
    fn lock_and_move(
        &self,
        caller: Caller,
        rename: &Rename,
        resolved: &Resolved,
        request: Request,
    ) -> Result<Moved> {
        let now = self.now();
        let (commit, from, to) = self.names_moved(caller, rename, resolved, now)?;
        let commit = self.counted(rename, commit, from, to, now);
        let mut granted = None;
        let granting = Box::new(|along: Option<Along<'_>>| {
            let asked = self.locks.try_acquire_along(request, along);
            let is_granted = asked.is_ok();
            granted = Some(asked);
            is_granted
        });
        let made = self.commit_once(&commit, granting).map(|_| resolved.moved(rename.manner));
        match granted {
            Some(Ok(guard)) => self.ended(rename, made, guard),
            // Who was sent away because the session is dead is told so.
            Some(Err(refused)) => self.gate.enter().map_err(Into::into).and(Err(refused.into())),
            None => made,
        }
    }

    /// Holds a lock on a path, so that nothing is renamed at it (shared), or at or below it (exclusive), until the guard
    /// is dropped. The names lead from the root to what is locked.
    ///
    /// # Errors
    /// `NotFound` if the path leads nowhere; `Lock` for the root, if the volume has no locks, and if the lock was not
    /// granted.
    pub fn hold(
        &self,
        names: &[Name],
        mode: Mode,
        operation: &str,
        patience: Patience<'_>,
    ) -> Result<LockGuard> {
        let path = LockId::from_components(names.iter().map(Name::as_bytes))?;
        let plan = Plan::Hold { path: &path, mode };
        let before = self.walk(names)?;
        let members = self.members(plan, &[(before, &path)])?;
        let request = self.request(plan, members, || operation.into())?.ok_or(LockError::NoLocks)?;
        let guard = self.lock(request, patience)?;
        guard.hold_only();
        // While this waited the path may have come to mean something else.
        if self.walk(names)? == before { Ok(guard) } else { Err(NamespaceError::NotFound) }
    }

    fn walk(&self, names: &[Name]) -> Result<Ino> {
        names.iter().try_fold(Ino::ROOT, |parent, name| Ok(self.lookup(parent, name)?.0))
    }

    /// Everything below the tops of a plan, if the volume's strategy locks that.
    fn members(&self, plan: Plan<'_>, tops: &[(Ino, &LockId)]) -> Result<Vec<LockId>> {
        let mut members = Vec::new();
        if self.volume.locking.locks_members(plan) {
            for (top, path) in tops {
                members.append(&mut self.below(*top, path)?);
            }
        }
        Ok(members)
    }

    /// The locks of a plan; `None` if the volume's strategy has none.
    fn request(
        &self,
        plan: Plan<'_>,
        members: Vec<LockId>,
        operation: impl FnOnce() -> Arc<str>,
    ) -> Result<Option<Request>> {
        let set = self.volume.locking.lock_set(plan, members)?;
        Ok(set.map(|set| Request { session: self.session, set, operation: operation() }))
    }

    fn lock(&self, request: Request, patience: Patience<'_>) -> Result<LockGuard> {
        drop(self.gate.enter()?);
        let granted = match patience {
            Patience::Try => self.locks.try_acquire(request),
            Patience::Wait(wait) => self.locks.acquire(request, wait),
        };
        // Who was sent away because the session is dead is told so.
        drop(self.gate.enter()?);
        Ok(granted?)
    }

    /// The commit: every check of what was resolved, and every write.
    fn move_names(
        &self,
        caller: Caller,
        rename: &Rename,
        resolved: &Resolved,
        held: Option<&LockGuard>,
    ) -> Result<Moved> {
        let now = self.now();
        let by = Move { rename, held, now };
        let (commit, from, mut to) = self.names_moved(caller, rename, resolved, now)?;
        match &resolved.target {
            Some(victim) if rename.manner != Manner::Exchange => {
                to.children -= 1;
                self.replace(&by, victim, commit, from, to)?;
            }
            _ => self.commit_move(&by, commit, from, to)?,
        }
        Ok(resolved.moved(rename.manner))
    }

    /// The checks, and what is written of the two names and of what they lead to; and what is to be added to the counts of
    /// the two directories, as if nothing were replaced.
    fn names_moved(
        &self,
        caller: Caller,
        rename: &Rename,
        resolved: &Resolved,
        now: Timestamp,
    ) -> Result<(Commit, Counts, Counts)> {
        let source = &resolved.source;
        let (checks, writes) = (resolved.checks(rename), Vec::with_capacity(WRITES));
        let mut commit = Commit { checks, writes, ..Commit::new() };
        commit = commit.put(rename.target_key(), Document::Entry(source.entry));
        commit = moved(source, rename.new_parent, &rename.new_name, now, commit);
        let source_is_directory = i64::from(source.entry.kind == FileKind::Directory);
        let mut from = Counts { children: -1, subdirectories: -source_is_directory };
        let mut to = Counts { children: 1, subdirectories: source_is_directory };
        match (rename.manner, &resolved.target) {
            (Manner::Exchange, Some(target)) => {
                commit = commit.put(rename.source_key(), Document::Entry(target.entry));
                commit = moved(target, rename.parent, &rename.name, now, commit);
                let target_is_directory = i64::from(target.entry.kind == FileKind::Directory);
                from = Counts { children: 0, subdirectories: from.subdirectories + target_is_directory };
                to = Counts { children: 0, subdirectories: to.subdirectories - target_is_directory };
            }
            (Manner::Whiteout | Manner::WhiteoutNoReplace, _) => {
                commit = self.put_whiteout(caller, rename, now, commit)?;
                from.children = 0;
            }
            _ => commit = commit.delete(rename.source_key()),
        }
        Ok((commit, from, to))
    }

    /// Commits a rename that takes the name of `victim`.
    fn replace(
        &self,
        by: &Move<'_>,
        victim: &Side,
        commit: Commit,
        from: Counts,
        mut to: Counts,
    ) -> Result<()> {
        let ino = victim.entry.ino;
        let (version, node) = &victim.node;
        if victim.entry.kind == FileKind::Directory {
            to.subdirectories -= 1;
            let commit = self.drop_directory(ino, *version, node, commit)?;
            self.commit_move(by, commit, from, to)?;
            return Ok(());
        }
        let pin = self.inodes.pin(ino);
        let mut life = pin.life.lock();
        // Read again: the decision rests on who has it open, and that is settled from here on.
        let (version, node) =
            self.live_node(ino).map_err(|_| NamespaceError::Conflict(by.rename.target_key()))?;
        let (commit, after): (Commit, After) = self.drop_name(ino, version, &node, &life, by.now, commit)?;
        self.commit_move(by, commit, from, to)?;
        self.name_dropped(ino, &mut life, &after);
        Ok(())
    }

    /// Adds what happens to the parents, and commits; with the release of the locks, if nobody is likely to want them.
    fn commit_move(&self, by: &Move<'_>, commit: Commit, from: Counts, to: Counts) -> Result<()> {
        let commit = self.counted(by.rename, commit, from, to, by.now);
        if let Some((guard, release)) = by.held.and_then(|guard| Some((guard, guard.release_along()?))) {
            match self.commit(&commit.clone().and(release)) {
                // Somebody has come to a lock meanwhile. Nothing was changed, and the locks are held; or it starts over.
                Err(NamespaceError::Conflict(Key::Lock(_))) => {
                    if !guard.met_others()? {
                        return Err(NamespaceError::Conflict(by.rename.source_key()));
                    }
                }
                made => return made.map(|_| guard.released()),
            }
        }
        self.commit(&commit)?;
        Ok(())
    }

    /// The whole commit, with what happens to the parents.
    fn counted(&self, rename: &Rename, commit: Commit, from: Counts, to: Counts, now: Timestamp) -> Commit {
        let commit = if rename.parent == rename.new_parent {
            let both = Counts {
                children: from.children + to.children,
                subdirectories: from.subdirectories + to.subdirectories,
            };
            commit.merge(Key::Node(rename.parent), both.delta(now))
        } else {
            commit
                .merge(Key::Node(rename.parent), from.delta(now))
                .merge(Key::Node(rename.new_parent), to.delta(now))
        };
        // All that is checked and not written is the entries above both paths, which the tree locks keep in place.
        let covered = self.volume.locking.covers_checks() && self.locks.cover_checks();
        if covered { commit.covered() } else { commit }
    }

    fn put_whiteout(
        &self,
        caller: Caller,
        rename: &Rename,
        now: Timestamp,
        commit: Commit,
    ) -> Result<Commit> {
        let ino = self.numbers.take().map_err(|error| nothing_moved("taking an inode number", error))?;
        let make = Make {
            parent: rename.parent,
            name: &rename.name,
            what: What::CharDevice(0),
            mode: 0,
            umask: 0,
            caller,
        };
        let node = Node { ctime: now, ..self.whiteout_node(&make)? };
        let entry = Entry { ino, kind: FileKind::CharDevice };
        let commit = commit.put(rename.source_key(), Document::Entry(entry)).absent(Key::Node(ino));
        Ok(commit.put(Key::Node(ino), Document::Node(node)))
    }

    /// Ends a rename that was made under these locks, or not.
    fn ended<T>(&self, rename: &Rename, outcome: Result<T>, guard: LockGuard) -> Result<T> {
        // Should the change still be made, nobody may have moved what it rests on.
        if matches!(outcome, Err(NamespaceError::Store(StoreError::Unknown(_)))) {
            self.in_doubt.keep([rename.source_key(), rename.target_key()], guard);
            return outcome;
        }
        match (outcome, guard.release()) {
            // It starts over only if nobody was told that it is ended.
            (Err(NamespaceError::Conflict(_)), Err(revoked)) => Err(revoked.into()),
            (outcome, _) => outcome,
        }
    }
}

/// How the counts of a parent change.
#[derive(Clone, Copy)]
struct Counts {
    children: i64,
    subdirectories: i64,
}

impl Counts {
    fn delta(self, now: Timestamp) -> NodeDelta {
        NodeDelta::entries_changed(self.children, self.subdirectories as i32, now)
    }
}

/// What changes in the node of what moves: a directory learns its new place. Its counts and times may change at the same
/// moment, so it is merged; that no other rename moves it is what the version of its entry is checked for.
fn moved(side: &Side, parent: Ino, name: &Name, now: Timestamp, commit: Commit) -> Commit {
    let reparent = (side.entry.kind == FileKind::Directory).then(|| (parent, name.clone()));
    commit.merge(Key::Node(side.entry.ino), NodeDelta { ctime: Some(now), reparent, ..NodeDelta::default() })
}
