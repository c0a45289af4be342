//! Sessions that lock paths and change what the locks are for, while some are fenced, die, stand still or go on as zombies.
//!
//! The real `Member`, `SharedLocks` and `IntentStore`, judged by [`Truth`] and [`Claims`]. Each path has a counter. An
//! operation locks as a rename does; under its locks it adds one to the counters of the paths that it holds exclusively, and
//! rests the commit on the counters above, which it does not write: the checks that locks must cover.

use std::sync::Arc;
use std::time::Duration;

use lockwood::document::{Document, Ino, Key, SessionState};
use lockwood::lock::{LockError, LockId, LockSet, Mode};
use lockwood::store::cells::memory::MemoryCells;
use lockwood::store::{Commit, CommitError, StoreError};
use parking_lot::Mutex;

use super::Outcome;
use super::asking::{KnowsTruth, commit, look};
use super::claims::Claims;
use super::documents::{begin_with, directory};
use super::life::{Site, simulate_sessions};
use super::truth::Truth;
use crate::rng::Rng;
use crate::sim::{Change, Count, Counts, Judge, World};

pub(crate) const MUST_SEE: &[Count] = &[
    Count::Unknown,
    Count::LateLandings,
    Count::LateRefused,
    Count::Pauses,
    Count::ClockJumps,
    Count::Crashes,
    Count::Commits,
    Count::Grants,
    Count::Waits,
    Count::KeptUses,
    Count::TimeOuts,
    Count::Fences,
    Count::Recoveries,
    Count::ZombieRequests,
];

/// A wait that no simulation outlasts, unless it is lost.
const FOR_EVER: Duration = Duration::from_secs(100_000);

const PATHS: [&str; 6] =
    ["/a", "/a/b", "/a/b/long-names-make-long-ids-which-are-cut-short", "/c", "/c/d", "/e"];

#[derive(Default)]
struct Both {
    truth: Truth,
    claims: Claims,
}

impl Judge for Both {
    fn changed(&mut self, change: &Change<'_>, cells: &MemoryCells) -> Result<(), String> {
        self.truth.changed(change, cells)?;
        self.claims.changed(change, &self.truth, cells)
    }

    fn count(&self, counts: &mut Counts) {
        self.truth.count(counts);
        self.claims.count(counts);
    }
}

impl KnowsTruth for Both {
    fn truth(&mut self) -> &mut Truth {
        &mut self.truth
    }
}

pub(crate) fn simulate(rng: Rng, trace: bool) -> Outcome {
    let judge = Arc::new(Mutex::new(Both::default()));
    let of_clients = Arc::clone(&judge);
    let work: super::life::Client = Arc::new(move |site: &Site| {
        for round in 1..=1 + site.world.below(4) {
            if !site.is_open() {
                return;
            }
            if let Err(what) = (Client { site, judge: &of_clients }).act(round) {
                site.world.object(what);
            }
        }
    });
    let begin = |world: &Arc<World>| {
        let documents = (0..PATHS.len()).map(|at| (counter(at), directory(0)));
        begin_with(world, documents, |key, stored| judge.lock().truth.begin(key, stored));
    };
    let beating = judge.lock().truth.beating();
    simulate_sessions(rng, trace, judge.clone(), begin, &work, &beating)
}

fn counter(at: usize) -> Key {
    Key::Node(Ino(10 + at as u64))
}

fn path(at: usize) -> LockId {
    LockId::from_path(PATHS[at].as_bytes()).expect("a good path")
}

fn place(id: &LockId) -> usize {
    (0..PATHS.len()).find(|at| path(*at) == *id).expect("locks are those of the paths")
}

struct Client<'a> {
    site: &'a Site,
    judge: &'a Arc<Mutex<Both>>,
}

impl Client<'_> {
    fn act(&self, round: u64) -> Result<(), String> {
        let world = &self.site.world;
        world.begin_operation(round);
        let (one, other) =
            (world.below(PATHS.len() as u64) as usize, world.below(PATHS.len() as u64) as usize);
        let set = match world.below(4) {
            0 => LockSet::for_hold(&path(one), Mode::Shared),
            1 => LockSet::for_hold(&path(one), Mode::Exclusive),
            _ => LockSet::for_rename(&path(one), &path(other)),
        };
        let Ok(set) = set else { return Ok(()) };
        let must_not = self.site.must_not_begin();
        let guard = match world.below(4) {
            0 => self.site.locks.try_acquire(&set, "sim".into()),
            1 => self.site.locks.acquire(&set, "sim".into(), Duration::from_millis(world.below(500))),
            _ => match self.site.locks.acquire(&set, "sim".into(), FOR_EVER) {
                Err(LockError::TimedOut(blocked)) => return Err(format!("a wait was lost: {blocked}")),
                other => other,
            },
        };
        let guard = match guard {
            Ok(guard) => guard,
            Err(LockError::TimedOut(_) | LockError::WouldBlock(_)) => {
                world.count(Count::TimeOuts);
                return Ok(());
            }
            Err(_) => return Ok(()),
        };
        if must_not {
            return Err("a session is granted locks that knows that it may be dead".into());
        }
        let op = guard.op();
        world.event(|| format!("{}: {op} holds {set:?}", world.who()), |mix| mix(op.number));
        {
            let both = &mut *self.judge.lock();
            both.claims.granted(&guard, &set, &both.truth, world.cells())?;
        }
        self.site.sleep(Duration::from_millis(world.below(3)));
        if self.change(&set)? {
            world.event(|| format!("{}: {op} releases", world.who()), |_| {});
            self.judge.lock().claims.releases(op);
            drop(guard);
        } else {
            // Whether it is changed is not known: the locks stay, and the session ends.
            guard.abandon();
            self.site.stop();
        }
        Ok(())
    }

    /// Changes what is locked. Returns whether it is known what became of that.
    fn change(&self, set: &LockSet) -> Result<bool, String> {
        let world = &self.site.world;
        let mut commit = Commit::new();
        for entry in set.entries() {
            let key = counter(place(&entry.id));
            let Ok(seen) = look(self.judge, &self.site.store, &key)? else { return Ok(true) };
            let Some(seen) = seen else { return Err(format!("{key} is gone")) };
            commit = commit.at(key.clone(), seen.version);
            if entry.mode == Mode::Exclusive {
                let Document::Node(node) = &*seen.document else { return Err(format!("{key} is no node")) };
                let children = node.directory().map_or(0, |directory| directory.children);
                commit = commit.put(key, directory(children + 1));
            }
        }
        if commit.writes.is_empty() {
            return Ok(true);
        }
        let (session, commit) = (self.site.member.id(), commit.covered());
        match self::commit(self.judge, world, &self.site.store, session, &commit)? {
            Ok(_) => Ok(true),
            // Under its locks nobody else changes what it has read.
            Err(CommitError::Conflict(key)) => {
                let dead = matches!(
                    self.judge.lock().truth.session(session),
                    None | Some(SessionState::Fenced | SessionState::Recovered)
                );
                let beside = key == counter(0);
                if dead || beside {
                    Ok(true)
                } else {
                    Err(format!("{key} has changed under its lock: {commit:?}"))
                }
            }
            Err(CommitError::Store(StoreError::Unknown(_) | StoreError::Fenced)) => Ok(false),
            Err(CommitError::Store(_)) => Ok(true),
        }
    }
}
