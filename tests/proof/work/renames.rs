//! Renames of directories and files by sessions that die, stand still and go on as zombies, beside creates and removals.
//!
//! The real `LockSet`, `SharedLocks`, `IntentStore` and `Member`. The steps of a rename are those of
//! `namespace::ops::rename` in short: resolve, lock, resolve again, commit with covered checks of both chains. Judged by
//! [`Truth`], [`Claims`] and [`is_a_tree`], after every commit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockwood::document::{
    Body, Directory, Document, Entry, FileKind, Ino, Key, Name, Node, NodeDelta, Timestamp, Version,
};
use lockwood::lock::{LockError, LockId, LockSet, OpId, SharedGuard};
use lockwood::store::cells::Along;
use lockwood::store::cells::memory::MemoryCells;
use lockwood::store::{Check, Commit, CommitError, StoreError};
use parking_lot::Mutex;

use super::Outcome;
use super::asking::{KnowsTruth, asked, commit, commit_once, look};
use super::claims::Claims;
use super::documents::{begin_with, file, node};
use super::life::{Site, simulate_sessions};
use super::tree::is_a_tree;
use super::truth::{Asked, Truth};
use crate::rng::Rng;
use crate::sim::{Change, Count, Counts, Judge};

pub(crate) const MUST_SEE: &[Count] = &[
    Count::Unknown,
    Count::LateLandings,
    Count::LateRefused,
    Count::Pauses,
    Count::ClockJumps,
    Count::Crashes,
    Count::Commits,
    Count::CommitConflicts,
    Count::Aborts,
    Count::Grants,
    Count::TakenBeside,
    Count::TakenAlong,
    Count::MarkedAtOnce,
    Count::LockedAtOnce,
    Count::Waits,
    Count::KeptUses,
    Count::TimeOuts,
    Count::Fences,
    Count::Recoveries,
    Count::Revalidations,
    Count::ZombieRequests,
];

/// A wait that no simulation outlasts, unless it is lost.
const FOR_EVER: Duration = Duration::from_secs(100_000);
/// How often a rename begins again.
const ATTEMPTS_MAX: u32 = 4;
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// The tree at the beginning: inode, parent, name; directories from 10 on, files from 20 on.
const TREE: [(u64, u64, &str); 7] =
    [(10, 1, "a"), (11, 10, "b"), (12, 1, "c"), (13, 12, "d"), (14, 1, "e"), (20, 11, "a"), (21, 13, "b")];

/// Everything that is judged.
#[derive(Default)]
struct All {
    truth: Truth,
    claims: Claims,
    /// Which rename an actor commits.
    moving: BTreeMap<Asked, OpId>,
}

impl KnowsTruth for All {
    fn truth(&mut self) -> &mut Truth {
        &mut self.truth
    }
}

impl Judge for All {
    fn changed(&mut self, change: &Change<'_>, cells: &MemoryCells) -> Result<(), String> {
        let before = self.truth.clock();
        self.truth.changed(change, cells)?;
        if self.truth.clock() != before {
            let asked = (change.request.actor.unwrap_or(usize::MAX), change.request.operation);
            if let Some(op) = self.moving.get(&asked) {
                self.claims.moves(*op, &self.truth, cells)?;
            }
            is_a_tree(&self.truth)?;
        }
        self.claims.changed(change, &self.truth, cells)
    }

    fn count(&self, counts: &mut Counts) {
        self.truth.count(counts);
        self.claims.count(counts);
    }
}

pub(crate) fn simulate(rng: Rng, trace: bool) -> Outcome {
    let judge = Arc::new(Mutex::new(All::default()));
    let of_clients = Arc::clone(&judge);
    let begin = |world: &Arc<_>| {
        let directories = TREE.iter().filter(|(ino, ..)| *ino < 20);
        let mut documents = vec![(Key::Node(Ino::ROOT), directory(None, 3, 3))];
        documents.extend(directories.map(|(ino, parent, name)| {
            let children = TREE.iter().filter(|(_, parent, _)| parent == ino).count() as u64;
            let subdirectories =
                TREE.iter().filter(|(child, parent, _)| parent == ino && *child < 20).count();
            (
                Key::Node(Ino(*ino)),
                directory(Some((Ino(*parent), self::name(name))), children, subdirectories as u32),
            )
        }));
        documents.extend(
            TREE.iter().filter(|(ino, ..)| *ino >= 20).map(|(ino, ..)| (Key::Node(Ino(*ino)), file())),
        );
        documents.extend(TREE.iter().map(|(ino, parent, name)| {
            let kind = if *ino < 20 { FileKind::Directory } else { FileKind::Regular };
            (Key::Entry(Ino(*parent), self::name(name)), Document::Entry(Entry { ino: Ino(*ino), kind }))
        }));
        begin_with(world, documents, |key, stored| judge.lock().truth.begin(key, stored));
    };
    let work: super::life::Client = Arc::new(move |site: &Site| {
        let client = Client { site, judge: &of_clients };
        for round in 1..=1 + site.world.below(5) {
            if !site.is_open() {
                return;
            }
            if let Err(what) = client.act(round * 100) {
                site.world.object(what);
            }
        }
    });
    let beating = judge.lock().truth.beating();
    simulate_sessions(rng, trace, judge.clone(), begin, &work, &beating)
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a good name")
}

fn directory(stands: Option<(Ino, Name)>, children: u64, subdirectories: u32) -> Document {
    let (parent, name) = stands.map_or((Ino::ROOT, None), |(parent, name)| (parent, Some(name)));
    let body = Body::Directory(Directory { parent, name, children });
    Document::Node(Node { nlink: 2 + subdirectories, ..node(body) })
}

fn counts(children: i64, subdirectories: i32) -> NodeDelta {
    NodeDelta::entries_changed(children, subdirectories, Timestamp { sec: 5, nsec: 0 })
}

/// Why an attempt did not come to its end.
enum Stop {
    /// Somebody has changed what it rests on: try again.
    Again,
    /// It makes no sense, or the store fails.
    Over,
    /// It cannot be found out what became of it.
    InDoubt,
    /// A judge objects.
    Objection(String),
}

impl From<String> for Stop {
    fn from(what: String) -> Self {
        Self::Objection(what)
    }
}

/// What a rename rests on.
struct Resolved {
    entry: Entry,
    victim: Option<(Entry, Version)>,
    checks: Vec<Check>,
    paths: [LockId; 2],
}

/// One rename, as rename(2) names it.
struct Rename {
    source: (Ino, Name),
    target: (Ino, Name),
}

struct Client<'a> {
    site: &'a Site,
    judge: &'a Arc<Mutex<All>>,
}

impl Client<'_> {
    fn act(&self, number: u64) -> Result<(), String> {
        let world = &self.site.world;
        world.begin_operation(number);
        let stopped = match world.below(10) {
            0 | 1 => self.create(number),
            2 => self.remove(),
            _ => return self.rename(number),
        };
        match stopped {
            Err(Stop::Objection(what)) => Err(what),
            Err(Stop::InDoubt) => {
                self.site.stop();
                Ok(())
            }
            Ok(()) | Err(Stop::Again | Stop::Over) => Ok(()),
        }
    }

    /// An entry and a directory as somebody saw them who listed the tree just now.
    fn pick(&self) -> Option<((Ino, Name), Ino)> {
        let world = &self.site.world;
        let judge = self.judge.lock();
        let mut entries = Vec::new();
        let mut directories = vec![Ino::ROOT];
        for (key, stored) in judge.truth.documents() {
            match (key, &*stored.document) {
                (Key::Entry(parent, name), Document::Entry(_)) => entries.push((*parent, name.clone())),
                (Key::Node(ino), Document::Node(node)) if node.directory().is_some() => {
                    directories.push(*ino)
                }
                _ => {}
            }
        }
        drop(judge);
        let directory = directories[world.below(directories.len() as u64) as usize];
        if entries.is_empty() {
            return None;
        }
        Some((entries.swap_remove(world.below(entries.len() as u64) as usize), directory))
    }

    fn any_name(&self) -> Name {
        name(NAMES[self.site.world.below(NAMES.len() as u64) as usize])
    }

    fn entry(&self, parent: Ino, name: &Name) -> Result<Option<(Version, Entry)>, Stop> {
        let key = Key::Entry(parent, name.clone());
        let seen = look(self.judge, &self.site.store, &key)?.map_err(|_| Stop::Over)?;
        match seen.map(|stored| (stored.version, stored.document)) {
            None => Ok(None),
            Some((version, document)) => match &*document {
                Document::Entry(entry) => Ok(Some((version, *entry))),
                other => Err(Stop::Objection(format!("{key} is {other:?}"))),
            },
        }
    }

    fn node(&self, ino: Ino) -> Result<Option<(Version, Node)>, Stop> {
        let key = Key::Node(ino);
        let seen = look(self.judge, &self.site.store, &key)?.map_err(|_| Stop::Over)?;
        match seen.map(|stored| (stored.version, stored.document)) {
            None => Ok(None),
            Some((version, document)) => match &*document {
                Document::Node(node) => Ok(Some((version, node.clone()))),
                other => Err(Stop::Objection(format!("{key} is {other:?}"))),
            },
        }
    }

    fn commit(&self, commit: &Commit) -> Result<(), Stop> {
        let site = self.site;
        answered(self::commit(self.judge, &site.world, &site.store, site.member.id(), commit)?)
    }

    fn create(&self, number: u64) -> Result<(), Stop> {
        let Some((_, parent)) = self.pick() else { return Ok(()) };
        let name = self.any_name();
        let is_directory = self.site.world.below(2) == 0;
        let kind = if is_directory { FileKind::Directory } else { FileKind::Regular };
        let actor = self.site.world.actor().unwrap_or_default() as u64;
        let ino = Ino(100_000 + actor * 10_000 + number);
        let node = if is_directory { directory(Some((parent, name.clone())), 0, 0) } else { file() };
        let commit = Commit::new()
            .check(Check::Exists(Key::Node(parent)))
            .absent(Key::Entry(parent, name.clone()))
            .put(Key::Entry(parent, name), Document::Entry(Entry { ino, kind }))
            .put(Key::Node(ino), node)
            .merge(Key::Node(parent), counts(1, is_directory.into()));
        self.commit(&commit)
    }

    fn remove(&self) -> Result<(), Stop> {
        let Some(((parent, name), _)) = self.pick() else { return Ok(()) };
        let Some((version, entry)) = self.entry(parent, &name)? else { return Ok(()) };
        let Some((at, node)) = self.node(entry.ino)? else { return Ok(()) };
        if node.directory().is_some_and(|directory| directory.children > 0) {
            return Ok(());
        }
        let key = Key::Entry(parent, name);
        let commit = Commit::new()
            .at(key.clone(), version)
            .at(Key::Node(entry.ino), at)
            .delete(key)
            .delete(Key::Node(entry.ino))
            .merge(Key::Node(parent), counts(-1, -i32::from(entry.kind == FileKind::Directory)));
        self.commit(&commit)
    }

    fn rename(&self, number: u64) -> Result<(), String> {
        let Some((source, new_parent)) = self.pick() else { return Ok(()) };
        let rename = Rename { source, target: (new_parent, self.any_name()) };
        for attempt in 0..ATTEMPTS_MAX {
            self.site.world.begin_operation(number + u64::from(attempt));
            match self.try_rename(&rename) {
                Err(Stop::Again) => self.site.sleep(Duration::from_millis(1)),
                Err(Stop::Objection(what)) => return Err(what),
                Ok(()) | Err(Stop::Over | Stop::InDoubt) => return Ok(()),
            }
        }
        Ok(())
    }

    fn try_rename(&self, rename: &Rename) -> Result<(), Stop> {
        let world = &self.site.world;
        let resolved = self.resolve(rename)?;
        let set = LockSet::for_rename(&resolved.paths[0], &resolved.paths[1]).map_err(|_| Stop::Over)?;
        if resolved.victim.is_none() && world.below(3) == 0 {
            return self.rename_beside(rename, resolved, &set);
        }
        let wait = if world.below(8) == 0 { Duration::from_millis(world.below(300)) } else { FOR_EVER };
        let guard = match self.site.locks.acquire(&set, "rename".into(), wait) {
            Ok(guard) => guard,
            Err(LockError::TimedOut(blocked)) if wait == FOR_EVER => {
                return Err(Stop::Objection(format!("a wait was lost: {blocked}")));
            }
            Err(LockError::TimedOut(_)) => {
                world.count(Count::TimeOuts);
                return Err(Stop::Over);
            }
            Err(_) => return Err(Stop::Over),
        };
        let op = self.granted(&guard, &set)?;
        let result = self.rename_under_locks(rename, &resolved.paths, op);
        self.ended(result, guard)
    }

    fn granted(&self, guard: &SharedGuard, set: &LockSet) -> Result<OpId, String> {
        let (op, world) = (guard.op(), &self.site.world);
        world.event(|| format!("{}: {op} holds {set:?}", world.who()), |mix| mix(op.number));
        let all = &mut *self.judge.lock();
        all.claims.granted(guard, set, &all.truth, world.cells())?;
        Ok(op)
    }

    fn ended(&self, result: Result<(), Stop>, guard: SharedGuard) -> Result<(), Stop> {
        if matches!(result, Err(Stop::InDoubt)) {
            // The locks stay until its intents are settled.
            guard.abandon();
            self.site.stop();
        } else {
            self.judge.lock().claims.releases(guard.op());
            drop(guard);
        }
        result
    }

    /// Of one who does not wait: the locks are taken while the commit is prepared.
    fn rename_beside(&self, rename: &Rename, resolved: Resolved, set: &LockSet) -> Result<(), Stop> {
        let site = self.site;
        let paths = resolved.paths.to_vec();
        let commit = commit_of(rename, resolved);
        let mut granted = Ok(None);
        let granting = Box::new(|along: Option<Along<'_>>| {
            let Ok(guard) = site.locks.try_acquire_along(set, "rename".into(), along) else { return false };
            let judged = self.granted(&guard, set);
            if let Ok(op) = judged {
                self.moves(op, paths);
            }
            let is_right = judged.is_ok();
            granted = judged.map(|_| Some(guard));
            is_right
        });
        let (judge, session) = (self.judge, site.member.id());
        let made = answered(commit_once(judge, &site.world, &site.store, session, &commit, granting)?);
        match granted? {
            Some(guard) => {
                site.world.count(Count::TakenBeside);
                self.ended(made, guard)
            }
            // It was not granted, or not asked.
            None => made,
        }
    }

    fn moves(&self, op: OpId, paths: Vec<LockId>) {
        let all = &mut *self.judge.lock();
        all.claims.stands_on(op, paths);
        all.moving.insert(asked(&self.site.world), op);
    }

    fn rename_under_locks(&self, rename: &Rename, locked: &[LockId; 2], op: OpId) -> Result<(), Stop> {
        let resolved = self.resolve(rename)?;
        if resolved.paths != *locked {
            self.site.world.count(Count::Revalidations);
            return Err(Stop::Again);
        }
        self.moves(op, locked.to_vec());
        self.commit(&commit_of(rename, resolved))
    }

    fn resolve(&self, rename: &Rename) -> Result<Resolved, Stop> {
        let (from, to) = (&rename.source, &rename.target);
        let source_chain = self.chain(from.0)?;
        let target_chain = self.chain(to.0)?;
        let Some((version, entry)) = self.entry(from.0, &from.1)? else { return Err(Stop::Over) };
        let mut checks = vec![Check::Version(Key::Entry(from.0, from.1.clone()), version)];
        let target = self.entry(to.0, &to.1)?;
        let target_key = Key::Entry(to.0, to.1.clone());
        checks.push(match target {
            Some((version, _)) => Check::Version(target_key, version),
            None => Check::Absent(target_key),
        });
        let victim = match target {
            Some((_, found)) if found.ino == entry.ino || found.kind != entry.kind => return Err(Stop::Over),
            Some((_, found)) => {
                let (version, node) = self.node(found.ino)?.ok_or(Stop::Again)?;
                if node.directory().is_some_and(|directory| directory.children > 0) {
                    return Err(Stop::Over);
                }
                Some((found, version))
            }
            None => None,
        };
        if to.0 == entry.ino || target_chain.iter().any(|link| link.0 == entry.ino) {
            return Err(Stop::Over);
        }
        let path = |chain: &[Link], name: &Name| {
            let names = chain.iter().map(|(_, name, ..)| name.as_bytes());
            LockId::from_components(names.chain([name.as_bytes()])).map_err(|_| Stop::Over)
        };
        let paths = [path(&source_chain, &from.1)?, path(&target_chain, &to.1)?];
        for (_, _, key, version) in source_chain.into_iter().chain(target_chain) {
            let check = Check::Version(key, version);
            if !checks.contains(&check) {
                checks.push(check);
            }
        }
        Ok(Resolved { entry, victim, checks, paths })
    }

    /// The directories from below the root down to this one.
    fn chain(&self, directory: Ino) -> Result<Vec<Link>, Stop> {
        let mut chain = Vec::new();
        let mut at = directory;
        while at != Ino::ROOT {
            let (_, node) = self.node(at)?.ok_or(Stop::Again)?;
            let Some(Directory { parent, name: Some(name), .. }) = node.directory() else {
                return Err(Stop::Over);
            };
            match self.entry(*parent, name)? {
                Some((version, entry)) if entry.ino == at => {
                    chain.push((at, name.clone(), Key::Entry(*parent, name.clone()), version));
                }
                _ => return Err(Stop::Again),
            }
            at = *parent;
            if chain.len() > 100 {
                return Err(Stop::Again);
            }
        }
        chain.reverse();
        Ok(chain)
    }
}

fn answered(answer: Result<Version, CommitError>) -> Result<(), Stop> {
    match answer {
        Ok(_) => Ok(()),
        Err(CommitError::Conflict(_)) => Err(Stop::Again),
        Err(CommitError::Store(StoreError::Unknown(_) | StoreError::Fenced)) => Err(Stop::InDoubt),
        Err(CommitError::Store(_)) => Err(Stop::Over),
    }
}

fn commit_of(rename: &Rename, resolved: Resolved) -> Commit {
    let (from, to) = (&rename.source, &rename.target);
    let ino = resolved.entry.ino;
    let is_directory = resolved.entry.kind == FileKind::Directory;
    let mut commit = Commit { checks: resolved.checks, ..Commit::new() }
        .delete(Key::Entry(from.0, from.1.clone()))
        .put(Key::Entry(to.0, to.1.clone()), Document::Entry(resolved.entry));
    let (mut added, mut subdirectories) = (1, i32::from(is_directory));
    if let Some((victim, version)) = resolved.victim {
        commit = commit.at(Key::Node(victim.ino), version).delete(Key::Node(victim.ino));
        added = 0;
        subdirectories -= i32::from(victim.kind == FileKind::Directory);
    }
    let gone = -i32::from(is_directory);
    commit = if from.0 == to.0 {
        commit.merge(Key::Node(from.0), counts(added - 1, subdirectories + gone))
    } else {
        commit
            .merge(Key::Node(from.0), counts(-1, gone))
            .merge(Key::Node(to.0), counts(added, subdirectories))
    };
    let reparent = is_directory.then(|| to.clone());
    commit.merge(Key::Node(ino), NodeDelta { reparent, ..counts(0, 0) }).covered()
}

/// A directory, its name, the entry that leads to it and the version of that.
type Link = (Ino, Name, Key, Version);
