//! Changes of several documents, by several sessions at once, some of which are settled while they are at work.
//!
//! The real `IntentStore`, `create_slots` and `settle`, judged by [`Truth`]. Sessions have no documents here and hold no
//! locks; who settles one needs no reason.
//!
//! What the clients do is chosen to go wrong where it can: transfers between counters (two checks, two writes), a write
//! that rests on a document that it does not write (write skew), merges that meet, an entry that goes to and fro between
//! two names while others list the directory, and a document that is made and removed again (a cell that comes back).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use lockwood::ambient::Clock;
use lockwood::document::{
    Document, Entry, FileKind, Ino, Key, Name, NodeDelta, SessionId, Stored, Timestamp,
};
use lockwood::store::cells::memory::MemoryCells;
use lockwood::store::intents::{IntentStore, OwnSlot, create_slots, settle};
use lockwood::store::{Check, Commit, Range, Reader, Scan, Start};
use parking_lot::Mutex;

use super::Outcome;
use super::asking::{commit, look};
use super::documents::{begin_with, directory};
use super::later::SimLater;
use super::truth::Truth;
use crate::rng::Rng;
use crate::sim::{Actors, Change, Count, Counts, Faults, HostId, Judge, SimCells, SimClock, World, run};

pub(crate) const MUST_SEE: &[Count] = &[
    Count::Unknown,
    Count::LateLandings,
    Count::LateRefused,
    Count::CasConflicts,
    Count::FailedReads,
    Count::Pauses,
    Count::ClockJumps,
    Count::Crashes,
    Count::Commits,
    Count::MarkedAtOnce,
    Count::CommitConflicts,
    Count::Aborts,
    Count::UnknownCommits,
    Count::ZombieRequests,
];

/// Pauses are as long as leases, although there are none here.
const LEASE_NS: u64 = 1_000_000_000;
const COUNTERS: [u64; 3] = [10, 11, 12];
/// Two that must not both become zero.
const PAIR: [u64; 2] = [20, 21];
/// One that comes and goes.
const FLICKER: u64 = 30;
const DIRECTORY: Ino = Ino(4);
const NAMES: [&str; 2] = ["here", "there"];

impl Judge for Truth {
    fn changed(&mut self, change: &Change<'_>, cells: &MemoryCells) -> Result<(), String> {
        Self::changed(self, change, cells)
    }

    fn count(&self, counts: &mut Counts) {
        Self::count(self, counts);
    }
}

pub(crate) fn simulate(mut rng: Rng, trace: bool) -> Outcome {
    let sessions = 2 + rng.below(2) as usize;
    let slots = 1 + rng.below(2) as u16;
    let faults = Faults::draw(&mut rng, LEASE_NS);
    let truth = Arc::new(Mutex::new(Truth::default()));
    // Host 0 settles; it outlives the others.
    let world = World::new(rng, 100, 1 + sessions, truth.clone(), trace);
    let here = Here { world: Arc::clone(&world), truth, slots };
    here.set_up();
    let mut own: Vec<_> = (1..=sessions).map(|host| here.join(host)).collect();
    world.begin(faults);
    let mut actors = Actors::default();
    for (at, slots) in own.drain(..).enumerate() {
        here.add_clients(&mut actors, 1 + at, slots);
    }
    for _ in 0..world.below(3) {
        let session = session_of(1 + world.below(sessions as u64) as usize);
        let (here, wait) = (here.clone(), world.below(LEASE_NS / 2));
        actors.add(0, "settler", move || {
            here.clock(0).sleep(Duration::from_nanos(wait));
            here.settle(session);
        });
    }
    let mut result = run(&world, actors);
    if result.is_ok() {
        let mut actors = Actors::default();
        let last = here.clone();
        actors.add(0, "judge", move || {
            (1..=sessions).for_each(|host| last.settle(session_of(host)));
            last.look_at_the_end();
        });
        result = run(&world, actors);
    }
    Outcome {
        digest: world.digest(),
        counts: world.counts(),
        violation: result.err(),
        trace: world.take_trace(),
    }
}

fn session_of(host: HostId) -> SessionId {
    SessionId(host as u64)
}

fn counter(ino: u64) -> Key {
    Key::Node(Ino(ino))
}

fn name(at: usize) -> Key {
    Key::Entry(DIRECTORY, Name::new(NAMES[at].as_bytes()).expect("a good name"))
}

fn children(stored: &Stored) -> u64 {
    match &*stored.document {
        Document::Node(node) => node.directory().map_or(0, |directory| directory.children),
        _ => 0,
    }
}

/// What the actors of one simulation share.
#[derive(Clone)]
struct Here {
    world: Arc<World>,
    truth: Arc<Mutex<Truth>>,
    /// How many slots each session has.
    slots: u16,
}

impl Here {
    fn cells(&self, host: HostId) -> Arc<SimCells> {
        Arc::new(SimCells { world: Arc::clone(&self.world), host })
    }

    fn clock(&self, host: HostId) -> Arc<dyn Clock> {
        Arc::new(SimClock { world: Arc::clone(&self.world), host })
    }

    fn set_up(&self) {
        let mut documents: Vec<_> = COUNTERS.iter().map(|ino| (counter(*ino), directory(2))).collect();
        documents.extend(PAIR.iter().map(|ino| (counter(*ino), directory(1))));
        documents.push((name(0), Document::Entry(Entry { ino: Ino(99), kind: FileKind::Regular })));
        begin_with(&self.world, documents, |key, stored| self.truth.lock().begin(key, stored));
    }

    fn join(&self, host: HostId) -> Vec<OwnSlot> {
        create_slots(&self.cells(host), &self.clock(host), session_of(host), self.slots).expect("slots")
    }

    fn add_clients(&self, actors: &mut Actors, host: HostId, slots: Vec<OwnSlot>) {
        let store = IntentStore::new(self.cells(host), self.clock(host), session_of(host), slots);
        let later = SimLater::new(&self.world, host);
        let store = Arc::new(store.cleaning_up(later.clone()));
        let clients = 1 + self.world.below(2) as usize;
        let working = Arc::new(AtomicUsize::new(clients));
        for _ in 0..clients {
            let working = Arc::clone(&working);
            let client = Client { here: self.clone(), store: Arc::clone(&store), host };
            let rounds = 1 + self.world.below(4);
            actors.add(host, "client", move || {
                for round in 1..=rounds {
                    if let Err(what) = client.act(round) {
                        client.here.world.object(what);
                    }
                }
                working.fetch_sub(1, Relaxed);
            });
        }
        actors.add(host, "janitor", move || later.work_while(|| working.load(Relaxed) > 0));
    }

    fn settle(&self, session: SessionId) {
        for _ in 0..3 {
            if settle(&self.cells(0), &self.clock(0), session, self.slots).is_ok() {
                self.world.event(|| format!("session {session} is settled"), |_| {});
                self.truth.lock().is_settled(session);
                return;
            }
        }
    }

    /// When all are settled, whoever comes new sees what is true, and all of it.
    fn look_at_the_end(&self) {
        let reader = IntentStore::new(self.cells(0), self.clock(0), SessionId(100), Vec::new());
        let keys: Vec<_> = self.truth.lock().keys().cloned().collect();
        for key in keys {
            let seen = match reader.get(&key) {
                Ok(seen) => seen,
                Err(error) => return self.world.object(format!("in the end {key} cannot be read: {error}")),
            };
            let truth = self.truth.lock();
            if seen.as_ref() != truth.current(&key) {
                let current = truth.current(&key).cloned();
                drop(truth);
                self.world.object(format!("in the end {key} is read as {seen:?}; it is {current:?}"));
            }
        }
    }
}

/// One thread of a session.
struct Client {
    here: Here,
    store: Arc<IntentStore<SimCells>>,
    host: HostId,
}

type Judged = Result<(), String>;

impl Client {
    fn act(&self, round: u64) -> Judged {
        self.here.world.begin_operation(round);
        let drawn = self.here.world.below(100);
        match drawn {
            0..20 => self.transfer(),
            20..40 => self.skew(),
            40..55 => self.merge(),
            55..72 => self.move_name(),
            72..85 => self.flicker(),
            85..92 => self.list().map(|_| ()),
            _ => self.look(&counter(COUNTERS[0])).map(|_| ()),
        }?;
        self.here.clock(self.host).sleep(Duration::from_millis(self.here.world.below(3)));
        Ok(())
    }

    fn draw<T: Copy, const N: usize>(&self, items: [T; N]) -> T {
        items[self.here.world.below(N as u64) as usize]
    }

    /// One document, judged. None as well if the store does not answer.
    fn look(&self, key: &Key) -> Result<Option<Stored>, String> {
        Ok(look(&self.here.truth, &*self.store, key)?.unwrap_or(None))
    }

    /// All names, judged: the file has one of two.
    fn list(&self) -> Result<Option<usize>, String> {
        let from = self.here.truth.lock().clock();
        let scan = Scan { range: Range::Entries(DIRECTORY), start: Start::First, limit: 10 };
        let Ok(page) = self.store.scan(&scan) else { return Ok(None) };
        let at = |key: &Key| {
            page.iter().find(|(found, _)| found == key).map(|(_, item)| item.as_ref().ok().cloned())
        };
        let seen = [at(&name(0)), at(&name(1))];
        for (at, seen) in seen.iter().enumerate() {
            self.here.truth.lock().saw(&name(at), from, seen.clone().flatten().as_ref())?;
        }
        match seen {
            [Some(_), None] => Ok(Some(0)),
            [None, Some(_)] => Ok(Some(1)),
            _ => Err(format!("a page shows a file that moves under both of its names, or neither: {seen:?}")),
        }
    }

    fn commit(&self, commit: Commit) -> Judged {
        let Here { world, truth, .. } = &self.here;
        // Whatever the answer is, it has been judged.
        let _answer = self::commit(truth, world, &*self.store, session_of(self.host), &commit)?;
        Ok(())
    }

    fn transfer(&self) -> Judged {
        let from = self.draw(COUNTERS);
        let to = self.draw(COUNTERS);
        let (Some(source), Some(target)) = (self.look(&counter(from))?, self.look(&counter(to))?) else {
            return Ok(());
        };
        if from == to || children(&source) == 0 {
            return Ok(());
        }
        let commit = Commit::new()
            .at(counter(from), source.version)
            .at(counter(to), target.version)
            .put(counter(from), directory(children(&source) - 1))
            .put(counter(to), directory(children(&target) + 1));
        self.commit(commit)
    }

    /// Takes from one what it may only take because of the other, which it does not write.
    fn skew(&self) -> Judged {
        let mine = self.here.world.below(2) as usize;
        let (one, other) = (counter(PAIR[mine]), counter(PAIR[1 - mine]));
        let (Some(a), Some(b)) = (self.look(&one)?, self.look(&other)?) else { return Ok(()) };
        let next = if children(&a) + children(&b) >= 2 { 0 } else { 1 };
        self.commit(Commit::new().at(one.clone(), a.version).at(other, b.version).put(one, directory(next)))
    }

    fn merge(&self) -> Judged {
        let time = Timestamp { sec: self.here.world.below(100) as i64, nsec: 0 };
        let one = self.draw(COUNTERS);
        let other = self.draw(COUNTERS);
        let mut commit = Commit::new().merge(counter(one), NodeDelta::entries_changed(1, 0, time));
        if other != one {
            commit = commit.merge(counter(other), NodeDelta::entries_changed(1, 0, time));
        }
        if self.here.world.below(3) == 0 {
            commit = commit.check(Check::Exists(counter(FLICKER)));
        }
        self.commit(commit)
    }

    fn move_name(&self) -> Judged {
        let Some(from) = self.list()? else { return Ok(()) };
        let Some(source) = self.look(&name(from))? else { return Ok(()) };
        let commit = Commit::new()
            .at(name(from), source.version)
            .absent(name(1 - from))
            .delete(name(from))
            .put(name(1 - from), (*source.document).clone())
            .merge(counter(COUNTERS[0]), NodeDelta::entries_changed(0, 0, Timestamp { sec: 2, nsec: 0 }));
        self.commit(commit)
    }

    /// Makes what is not there, removes what is; with a counter beside it.
    fn flicker(&self) -> Judged {
        let key = counter(FLICKER);
        let commit = match self.look(&key)? {
            Some(found) => Commit::new().at(key.clone(), found.version).delete(key),
            None => Commit::new().absent(key.clone()).put(key, directory(0)),
        };
        self.commit(
            commit
                .merge(counter(COUNTERS[1]), NodeDelta::entries_changed(1, 0, Timestamp { sec: 3, nsec: 0 })),
        )
    }
}
