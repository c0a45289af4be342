//! The life of a session, as the workloads with locks share it: it joins, beats, watches, works, and leaves or dies.
//!
//! Everything here is the real code: `Member`, `Observer`, `IntentStore`, `SharedLocks`. What its clients do is the
//! workload's. What is hard: an actor must come to an end, whatever becomes of its session, or the simulation has none. So
//! the heart and the watcher of a session stop when its clients have ended, and after that, on a host where nothing goes
//! wrong, a last session recovers all that is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use lockwood::ambient::Clock;
use lockwood::document::{Session, SessionId, SessionState, Timestamp};
use lockwood::lock::SharedLocks;
use lockwood::lock::session::{Member, Observer};
use lockwood::lock::shared::Settings;
use lockwood::store::StoreError;
use lockwood::store::cells::{CellKey, Cells, Listed};
use lockwood::store::intents::{IntentStore, create_slots};

use crate::sim::{Actors, HostId, SimCells, SimClock, World};

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
    clients: AtomicUsize,
    /// Something of this session is in doubt, which ends only with the session.
    stopped: AtomicBool,
}

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
    ) -> Result<Self, StoreError> {
        let (cells, clock) = (cells(world, host), clock(world, host));
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
        };
        let (member, own) = Member::join(Arc::clone(&cells), Arc::clone(&clock), document, |id| {
            create_slots(&cells, &clock, id, slots)
        })?;
        world.event(|| format!("session {id} lives"), |mix| mix(id.0));
        let store = IntentStore::new(Arc::clone(&cells), Arc::clone(&clock), id, own);
        let settings = Settings { id_bytes_max: ID_BYTES_MAX, ..Settings::default() };
        let locks = SharedLocks::new(cells, clock, Arc::clone(member.standing()), settings);
        let world = Arc::clone(world);
        let (clients, stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
        Ok(Self { world, host, member, store, locks, clients, stopped })
    }

    pub(crate) fn sleep(&self, duration: Duration) {
        clock(&self.world, self.host).sleep(duration);
    }

    /// Whether clients may begin something new.
    pub(crate) fn is_open(&self) -> bool {
        !self.stopped.load(Relaxed) && !self.member.standing().is_fenced()
    }

    /// Nothing new is begun: what was begun ends with the session.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }

    fn beat_until_clients_end(&self) {
        while self.clients.load(Relaxed) > 0 && !self.stopped.load(Relaxed) {
            if matches!(self.member.beat(), Err(StoreError::Fenced)) {
                self.store.fence();
                return;
            }
            self.sleep(LEASE / 4);
        }
    }

    fn watch_until_clients_end(&self) {
        let mut observer = Observer::default();
        while self.clients.load(Relaxed) > 0 {
            // What fails is gone on with at the next look.
            let _later = self.member.observe(&mut observer, &|_| false, &collect_nothing);
            self.sleep(LEASE / 5);
        }
    }

    /// A client has ended; the last one ends the session, in good order or without a word.
    fn client_ended(&self) {
        if self.clients.fetch_sub(1, Relaxed) == 1 && self.is_open() && self.world.below(2) == 0 {
            let _others_do_the_rest = self.member.leave(&collect_nothing);
        }
    }
}

/// What a client does.
pub(crate) type Client = Arc<dyn Fn(&Site)>;

/// Adds the actors of a session on a host: one joins, works as a client, and is joined by more; a heart, a watcher.
pub(crate) fn add_session(actors: &mut Actors, world: &Arc<World>, host: HostId, slots: u16, work: &Client) {
    let site: Arc<parking_lot::Mutex<Option<Arc<Site>>>> = Arc::default();
    let more_clients = world.below(2) as usize;
    let begin_after = Duration::from_millis(if world.below(2) == 0 { 0 } else { world.below(2_000) });
    let given_up = Arc::new(AtomicBool::new(false));
    {
        let (world, site, work, given_up) = (Arc::clone(world), site.clone(), work.clone(), given_up.clone());
        actors.add(host, "client", move || {
            clock(&world, host).sleep(begin_after);
            match Site::join(&world, host, SessionId(host as u64), slots) {
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

/// Adds an actor that declares sessions dead for no reason, live ones as well, and one that recovers what is fenced.
pub(crate) fn add_fencers(actors: &mut Actors, world: &Arc<World>, sessions: usize) {
    for _ in 0..world.below(3) {
        let world = Arc::clone(world);
        let wait = Duration::from_millis(world.below(1_000));
        let victim = SessionId(1 + world.below(sessions as u64));
        let recovers = world.below(2) == 0;
        actors.add(0, "fencer", move || {
            clock(&world, 0).sleep(wait);
            let Ok(member) = keeper(&world) else { return };
            let key = lockwood::document::Key::Session(victim);
            let Ok(Some(found)) = cells(&world, 0).read(&CellKey::Document(key)) else { return };
            if matches!(member.fence(victim, &found), Ok(true)) && recovers {
                let _others_do_the_rest = member.recover(victim, &collect_nothing);
            }
        });
    }
}

/// A session that holds nothing and changes nothing but others' leavings.
fn keeper(world: &Arc<World>) -> Result<Member, StoreError> {
    let id = SessionId(1_000 + world.below(1 << 40));
    Ok(Site::join(world, 0, id, 0)?.member)
}

/// When nothing goes wrong any more: recovers everything that is left, and finds that nothing is.
pub(crate) fn end(world: &Arc<World>) -> Result<(), String> {
    let site =
        Site::join(world, 0, SessionId(999), 1).map_err(|error| format!("the last session: {error}"))?;
    let mut observer = Observer::default();
    for _ in 0..200 {
        site.member.beat().map_err(|error| format!("the last session beats: {error}"))?;
        site.member
            .observe(&mut observer, &|_| false, &collect_nothing)
            .map_err(|error| format!("the last session recovers the others: {error}"))?;
        site.sleep(LEASE / 5);
        if observer.is_empty() {
            break;
        }
    }
    site.locks.sweep().map_err(|error| format!("sweeping ghosts: {error}"))?;
    site.member.sweep_slots().map_err(|error| format!("sweeping slots: {error}"))?;
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
