//! The life of a session, as the workloads with locks share it: it joins, beats, watches, works, and leaves or dies.
//!
//! Everything here is the real code: `Member`, `Observer`, `IntentStore`, `SharedLocks`. What its clients do is the
//! workload's. What is hard: an actor must come to an end, whatever becomes of its session, or the simulation has none. So
//! the heart and the watcher of a session stop when its clients have ended, and after that, on a host where nothing goes
//! wrong, a last session recovers all that is left.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use lockwood::ambient::Clock;
use lockwood::document::{Session, SessionId, SessionState, Timestamp};
use lockwood::lock::SharedLocks;
use lockwood::lock::session::{Member, Observer, Which};
use lockwood::lock::shared::Settings;
use lockwood::store::StoreError;
use lockwood::store::cells::{CellKey, Cells, Listed};
use lockwood::store::intents::{IntentStore, create_slots};

use parking_lot::Mutex;

use super::Outcome;
use super::later::SimLater;
use crate::rng::Rng;
use crate::sim::{Actors, Faults, HostId, Judge, SimCells, SimClock, World, run};

/// How long others wait for a heartbeat.
pub(crate) const LEASE: Duration = Duration::from_secs(1);
/// How long a lock id may be: short, so that some are shortened.
pub(crate) const ID_BYTES_MAX: usize = 64;

/// A session at work.
pub(crate) struct Site {
    pub(crate) world: Arc<World>,
    pub(crate) host: HostId,
    pub(crate) member: Member,
    pub(crate) store: IntentStore<dyn Cells>,
    pub(crate) locks: SharedLocks,
    later: Arc<SimLater>,
    clients: AtomicUsize,
    beating: Beating,
    /// When the last heartbeat began that was confirmed, by the host's clock.
    confirmed: Mutex<Duration>,
    /// Something of this session is in doubt, which ends only with the session.
    stopped: AtomicBool,
}

/// Sessions whose heart beats. Where nothing goes wrong nobody may declare them dead.
pub(crate) type Beating = Arc<Mutex<BTreeSet<SessionId>>>;

pub(crate) fn cells(world: &Arc<World>, host: HostId) -> Arc<dyn Cells> {
    Arc::new(SimCells { world: Arc::clone(world), host })
}

pub(crate) fn clock(world: &Arc<World>, host: HostId) -> Arc<dyn Clock> {
    Arc::new(SimClock { world: Arc::clone(world), host })
}

/// Nothing is left in a tree that is not one.
fn collect_nothing(_: SessionId) -> Result<(), StoreError> {
    Ok(())
}

impl Site {
    /// Joins. An error: the session never lived, as far as it knows.
    pub(crate) fn join(
        world: &Arc<World>,
        host: HostId,
        id: SessionId,
        slots: u16,
        beating: &Beating,
    ) -> Result<Self, StoreError> {
        let (cells, clock) = (cells(world, host), clock(world, host));
        let confirmed = Mutex::new(clock.now());
        let document = Session {
            id,
            host: format!("host {host}"),
            boot_id: String::new(),
            pid: 1,
            mount_point: String::new(),
            started: Timestamp::default(),
            lease_ms: LEASE.as_millis() as u64,
            heartbeat: 0,
            epoch: 1,
            intents: slots,
            operations_below: 0,
            state: SessionState::Joining,
            locks: None,
        };
        let (member, own) = Member::join(Arc::clone(&cells), Arc::clone(&clock), document, |id| {
            create_slots(&cells, &clock, id, slots)
        })?;
        world.event(|| format!("session {id} lives"), |mix| mix(id.0));
        let later = SimLater::new(world, host);
        let store = IntentStore::new(Arc::clone(&cells), Arc::clone(&clock), id, own);
        let store = store.cleaning_up(later.clone());
        // Not at all, for a while, or until somebody wants it.
        let keep_for = match world.below(3) {
            0 => Duration::ZERO,
            1 => Duration::from_millis(world.below(2_000)),
            _ => Duration::MAX,
        };
        let keep_from_use = 1 + world.below(2) as u32;
        let settings =
            Settings { id_bytes_max: ID_BYTES_MAX, keep_for, keep_from_use, ..Settings::default() };
        let locks = SharedLocks::new(cells, clock, Arc::clone(member.standing()), settings);
        let locks = locks.releasing(later.clone());
        let world = Arc::clone(world);
        let (clients, stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
        let beating = Arc::clone(beating);
        Ok(Self { world, host, member, store, locks, later, clients, beating, confirmed, stopped })
    }

    pub(crate) fn sleep(&self, duration: Duration) {
        clock(&self.world, self.host).sleep(duration);
    }

    /// Whether clients may begin something new. Now and then they try although they know that they may not.
    pub(crate) fn is_open(&self) -> bool {
        if self.world.is_calm() {
            // Long enough for others to look at this session many times.
            self.sleep(Duration::from_millis(self.world.below(1_500)));
        }
        let stopped = self.stopped.load(Relaxed);
        !stopped && (!self.member.standing().is_fenced() || self.world.below(2) == 0)
    }

    /// Whether the session must not begin a change now: it knows that it is dead, or has not had a heartbeat confirmed for
    /// a whole lease.
    pub(crate) fn must_not_begin(&self) -> bool {
        let silent = clock(&self.world, self.host).now().saturating_sub(*self.confirmed.lock());
        self.member.standing().is_fenced() || silent >= LEASE
    }

    /// Nothing new is begun: what was begun ends with the session.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }

    fn beat_until_clients_end(&self) {
        while self.clients.load(Relaxed) > 0 && !self.stopped.load(Relaxed) {
            let begun = clock(&self.world, self.host).now();
            match self.member.beat() {
                Ok(()) => *self.confirmed.lock() = begun,
                Err(StoreError::Fenced) => {
                    self.store.fence();
                    break;
                }
                Err(_) => {}
            }
            if self.clients.load(Relaxed) > 0 {
                self.beating.lock().insert(self.member.id());
            }
            self.sleep(LEASE / 4);
        }
        self.beating.lock().remove(&self.member.id());
    }

    fn work_until_clients_end(&self) {
        self.later.work_while(|| self.clients.load(Relaxed) > 0);
    }

    fn watch_until_clients_end(&self) {
        let mut observer = Observer::default();
        let mut looks = 0_u32;
        while self.clients.load(Relaxed) > 0 {
            // What fails is gone on with at the next look.
            let _later = self.member.observe(Which::All, &mut observer, &|_| false, &collect_nothing);
            looks += 1;
            let _later = self.locks.look_at_kept();
            if looks.is_multiple_of(5) {
                let _later = self.locks.sweep();
            }
            self.sleep(LEASE / 5);
        }
    }

    /// A client has ended; the last one ends the session, in good order or without a word.
    fn client_ended(&self) {
        if self.clients.fetch_sub(1, Relaxed) > 1 {
            return;
        }
        self.beating.lock().remove(&self.member.id());
        if !self.stopped.load(Relaxed) && self.world.below(2) == 0 {
            let _others_do_the_rest = self.member.leave(&collect_nothing);
        }
    }
}

/// What a client does.
pub(crate) type Client = Arc<dyn Fn(&Site)>;

/// Adds the actors of a session on a host: one joins, works as a client, and is joined by more; a heart, a watcher.
fn add_session(
    actors: &mut Actors,
    world: &Arc<World>,
    host: HostId,
    slots: u16,
    work: &Client,
    beating: &Beating,
) {
    let site: Arc<Mutex<Option<Arc<Site>>>> = Arc::default();
    let more_clients = world.below(2) as usize;
    let begin_after = Duration::from_millis(if world.below(2) == 0 { 0 } else { world.below(2_000) });
    let given_up = Arc::new(AtomicBool::new(false));
    {
        let (world, site, work, given_up) = (Arc::clone(world), site.clone(), work.clone(), given_up.clone());
        let beating = beating.clone();
        actors.add(host, "client", move || {
            clock(&world, host).sleep(begin_after);
            match Site::join(&world, host, SessionId(host as u64), slots, &beating) {
                Ok(joined) => {
                    joined.clients.store(1 + more_clients, Relaxed);
                    let joined = Arc::new(joined);
                    *site.lock() = Some(Arc::clone(&joined));
                    work(&joined);
                    joined.client_ended();
                }
                Err(_) => given_up.store(true, Relaxed),
            }
        });
    }
    let mut helper = |name, body: Box<dyn FnOnce(&Site)>| {
        let (world, site, given_up) = (Arc::clone(world), site.clone(), given_up.clone());
        actors.add(host, name, move || {
            while !given_up.load(Relaxed) {
                let joined = site.lock().clone();
                match joined {
                    Some(joined) => return body(&joined),
                    None => clock(&world, host).sleep(Duration::from_millis(20)),
                }
            }
        });
    };
    helper("heart", Box::new(Site::beat_until_clients_end));
    helper("watcher", Box::new(Site::watch_until_clients_end));
    helper("janitor", Box::new(Site::work_until_clients_end));
    for _ in 0..more_clients {
        let work = work.clone();
        helper(
            "client",
            Box::new(move |site| {
                work(site);
                site.client_ended();
            }),
        );
    }
}

/// Adds actors that declare sessions dead for no reason: as soon as they are there, or live ones; some only declare, some
/// recover as well.
fn add_fencers(actors: &mut Actors, world: &Arc<World>, sessions: usize, beating: &Beating) {
    for _ in 0..world.below(3) {
        let (world, beating) = (Arc::clone(world), beating.clone());
        let wait = Duration::from_millis(if world.below(2) == 0 { 0 } else { world.below(1_000) });
        let victim = SessionId(1 + world.below(sessions as u64));
        let manner = world.below(3);
        actors.add(0, "fencer", move || {
            clock(&world, 0).sleep(wait);
            let Ok(member) = keeper(&world, &beating) else { return };
            let key = CellKey::Document(lockwood::document::Key::Session(victim));
            for _ in 0..20 {
                let Ok(Some(found)) = cells(&world, 0).read(&key) else {
                    clock(&world, 0).sleep(Duration::from_millis(5));
                    continue;
                };
                let _others_do_the_rest = match manner {
                    0 => member.recoverer().fence(victim, &found).map(|_| ()),
                    // Recovery begins with the fence, if there is none yet.
                    _ => member.recover(victim, &collect_nothing),
                };
                return;
            }
        });
    }
}

/// A session that holds nothing and changes nothing but others' leavings.
fn keeper(world: &Arc<World>, beating: &Beating) -> Result<Member, StoreError> {
    let id = SessionId(1_000 + world.below(1 << 40));
    Ok(Site::join(world, 0, id, 0, beating)?.member)
}

/// When nothing goes wrong any more: recovers everything that is left, and finds that nothing is.
fn end(world: &Arc<World>, beating: &Beating) -> Result<(), String> {
    let site = Site::join(world, 0, SessionId(999), 1, beating)
        .map_err(|error| format!("the last session: {error}"))?;
    let mut observer = Observer::default();
    for _ in 0..200 {
        site.member.beat().map_err(|error| format!("the last session beats: {error}"))?;
        site.member
            .observe(Which::All, &mut observer, &|_| false, &collect_nothing)
            .map_err(|error| format!("the last session recovers the others: {error}"))?;
        site.sleep(LEASE / 5);
        if observer.is_empty() {
            break;
        }
    }
    site.locks.sweep().map_err(|error| format!("sweeping ghosts: {error}"))?;
    let mut strays = Observer::default();
    for _ in 0..200 {
        site.member.beat().map_err(|error| format!("the last session beats: {error}"))?;
        let left = site.member.recoverer().sweep_slots(&mut strays, LEASE);
        if left.map_err(|error| format!("sweeping slots: {error}"))?.left.is_empty() {
            break;
        }
        site.sleep(LEASE / 5);
    }
    site.member.leave(&collect_nothing).map_err(|error| format!("the last session leaves: {error}"))?;
    let cells = cells(world, 0);
    for what in [Listed::Locks, Listed::Slots] {
        let left = cells.list(what).map_err(|error| error.to_string())?;
        if !left.is_empty() {
            return Err(format!("in the end there are {what:?} left: {left:?}"));
        }
    }
    let range = lockwood::store::Range::All(lockwood::document::Kind::Session);
    let scan = lockwood::store::Scan { range, start: lockwood::store::Start::First, limit: 10 };
    let left = cells.scan(&scan).map_err(|error| error.to_string())?;
    if left.is_empty() { Ok(()) } else { Err(format!("in the end there are sessions left: {left:?}")) }
}

/// Runs sessions at `work` in a world that begins with what `begin` puts there; recovers all that they leave behind, and
/// finds that nothing is left. `beating` is for a judge: with it empty, anybody may be declared dead.
pub(crate) fn simulate_sessions(
    mut rng: Rng,
    trace: bool,
    judge: Arc<Mutex<dyn Judge>>,
    begin: impl FnOnce(&Arc<World>),
    work: &Client,
    beating: &Beating,
) -> Outcome {
    let sessions = 2 + rng.below(2) as usize;
    let slots = 1 + rng.below(2) as u16;
    let calm = rng.below(8) == 0;
    let lease_ns = LEASE.as_nanos() as u64;
    let faults = if calm { Faults::calm(lease_ns) } else { Faults::draw(&mut rng, lease_ns) };
    // In a world where things go wrong nobody is safe from being declared dead.
    let beating = if calm { Arc::clone(beating) } else { Beating::default() };
    let world = World::new(rng, 100, 1 + sessions, judge, trace);
    begin(&world);
    world.begin(faults);
    let mut actors = Actors::default();
    (1..=sessions).for_each(|host| add_session(&mut actors, &world, host, slots, work, &beating));
    if !calm {
        add_fencers(&mut actors, &world, sessions, &beating);
    }
    let mut result = run(&world, actors);
    if result.is_ok() {
        world.begin(Faults::none_for(lease_ns));
        let mut actors = Actors::default();
        let last = Arc::clone(&world);
        actors.add(0, "last", move || {
            if let Err(what) = end(&last, &beating) {
                last.object(what);
            }
        });
        result = run(&world, actors);
    }
    let violation = result.err();
    Outcome { digest: world.digest(), counts: world.counts(), violation, trace: world.take_trace() }
}
