//! The session of a mount on a store that other hosts use as well: it says that it lives, watches the others, cleans up
//! after those that died, and stops when it was declared dead itself.
//!
//! Owns the threads of a session. What is decided, and in which order a dead session is cleaned up after, is
//! `lock::session`'s.
//!
//! What is hard:
//! 1. A fenced session must change nothing. The store sees to that: every commit names its session, and is refused in the
//!    same transaction if that is not live any more. To stop by itself before only saves work.
//! 2. Who waits for a lock must learn that it is free without asking all the time: [`Bell`] is the clock that those who wait
//!    sleep by, and every notice of a changed lock document ends their sleep.
//! 3. All sessions must keep their locks at the same place, and none may be asked: each says in its document where its own
//!    are, and once that can be seen it looks at the others ([`agree`]). Of two that differ and begin at the same time, each
//!    has written before it reads, so at least one sees the other and leaves.
//! 4. Who died on this very host need not be waited for: the kernel has freed what it held, [`alive`].

mod alive;
mod bell;
mod keeper;
mod outsider;
mod watcher;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use super::{NamespaceError, SessionInfo};
use crate::ambient::{self, Clock};
use crate::document::{Document, Key, Kind, Orphan, Session, SessionId, SessionState};
use crate::lock::redlock::{Extender, Settings as RedlockSettings};
use crate::lock::session::{Heart, Member};
use crate::lock::shared::Settings as LockSettings;
use crate::lock::{Locks, Redlock, SharedLocks};
use crate::store::cells::documents::cells_of;
use crate::store::redis::servers::Servers;
use crate::store::{Commit, CommitError, Intents, Range, Store, StoreError, for_each};

use super::advisory::held::drop_session;
use super::collect::Collector;
use alive::Proof;
use bell::Bell;
use keeper::Keeper;
pub use outsider::{Looked, Outsider, Recovered, lock_servers};
use watcher::Watcher;

/// A session beats so often in a lease, and looks as often which others there are.
const BEATS_PER_LEASE: u32 = 5;
/// For how long a session keeps a lock that it has shared again and again and that nobody uses any more.
const KEEP_FOR: Duration = Duration::from_secs(10);
/// When a process has nobody to serve any more, it waits for the end of outages that have not lasted for longer than this.
const OUTAGE_MAX: Duration = Duration::from_secs(5);

/// A session at work.
pub(super) struct Membership {
    member: Arc<Member>,
    watch: Mutex<Option<Watch>>,
    /// Held for as long as the process lives.
    proof: Option<Proof>,
    /// The locks, if they are on servers of their own.
    redlock: Option<Redlock>,
}

struct Watch {
    heart: Heart,
    extender: Option<Extender>,
    keeper: Option<Keeper>,
    bell: Arc<Bell>,
    thread: JoinHandle<()>,
}

/// What a session begins with.
pub(super) struct Beginning<'a> {
    pub(super) info: SessionInfo,
    pub(super) lease: Duration,
    pub(super) epoch: u64,
    /// The id of the volume.
    pub(super) volume: &'a str,
    /// The servers that keep the locks; none if the store does.
    pub(super) lock_servers: Option<Arc<Servers>>,
}

impl Membership {
    /// Begins a session, with its threads and its locks.
    ///
    /// # Errors
    /// The store's, or the operating system's if there is no room for a thread; [`NamespaceError::OtherLocks`] if another
    /// session keeps its locks elsewhere, and the lock servers' if too few of them answer. No session is left then.
    pub(super) fn join(
        store: &Arc<dyn Store>,
        collector: &Arc<Collector>,
        beginning: Beginning<'_>,
    ) -> Result<(Self, Locks), NamespaceError> {
        let Beginning { info, lease, epoch, volume, lock_servers } = beginning;
        let cells = cells_of(store);
        let per_session = store.intents().map_or(0, Intents::per_session);
        let bell = Bell::new();
        store.listen(Arc::clone(&bell) as _)?;
        let clock = Arc::clone(&bell) as Arc<dyn Clock>;
        let id = SessionId(ambient::random_u64());
        let locks_at = lock_servers.as_ref().map(ToString::to_string);
        // Before others can see the session: they must not find a file that nobody holds.
        let proof = Proof::hold(id);
        let document = Session {
            id,
            host: info.host,
            boot_id: info.boot_id.clone(),
            pid: info.pid,
            mount_point: info.mount_point,
            started: ambient::wall_clock().into(),
            lease_ms: u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
            heartbeat: 0,
            epoch,
            intents: per_session,
            operations_below: 0,
            state: SessionState::Joining,
            locks: locks_at.clone(),
        };
        let (member, ()) = Member::join(Arc::clone(&cells), Arc::clone(&clock), document, |session| {
            store.intents().map_or(Ok(()), |intents| intents.begin(session))
        })?;
        let member = Arc::new(member);
        let redlock = lock_servers.map(|servers| {
            let settings = RedlockSettings::of_lease(lease);
            Redlock::new(servers, volume, Arc::clone(&clock), Arc::clone(member.standing()), settings)
        });
        let answer = || redlock.as_ref().map_or(Ok(()), |redlock| redlock.documents().map(drop));
        if let Err(refused) = agree(&**store, id, locks_at, lease).and_then(|()| Ok(answer()?)) {
            member.leave(&|dead| collect_of(&**store, collector, dead))?;
            if let Some(proof) = &proof {
                proof.withdraw();
            }
            return Err(refused);
        }
        let settings = LockSettings { silence_stops: false, keep_for: KEEP_FOR, ..LockSettings::default() };
        let locks = SharedLocks::new(cells, clock, Arc::clone(member.standing()), settings);
        // Elsewhere a commit releases the locks that it was made under.
        let locks = match store.intents() {
            Some(intents) => locks.releasing(intents.later()),
            None => locks,
        };
        let keeper = match redlock {
            None => Some(Keeper::start(locks.clone(), &**store)?),
            Some(_) => None,
        };
        let watcher = Watcher {
            member: Arc::clone(&member),
            store: Arc::clone(store),
            collector: Arc::clone(collector),
            locks: locks.clone(),
            redlock: redlock.clone(),
            bell: Arc::clone(&bell),
            lease,
        };
        let no_thread = |error| StoreError::io("starting a thread of the session", error);
        let heart = Heart::start(Arc::clone(&member), BEATS_PER_LEASE).map_err(no_thread)?;
        let extender = redlock.as_ref().map(Extender::start).transpose().map_err(no_thread)?;
        let thread =
            ambient::spawn("lockwood-watch", move || watcher.run(&info.boot_id)).map_err(no_thread)?;
        let watch = Mutex::new(Some(Watch { heart, extender, keeper, bell, thread }));
        let locks = redlock.clone().map_or(Locks::Documents(locks), Locks::Redlock);
        Ok((Self { member, watch, proof, redlock }, locks))
    }

    pub(super) fn id(&self) -> SessionId {
        self.member.id()
    }

    /// Commits as this session. A store that is away is waited for, for as long as its engine has patience: whether the
    /// session still lives is for the commit itself to find out.
    pub(super) fn commit<T>(
        &self,
        commit: &Commit,
        make: impl FnOnce(&Commit) -> Result<T, CommitError>,
    ) -> Result<T, CommitError> {
        if self.is_fenced() {
            return Err(StoreError::Fenced.into());
        }
        let outcome = make(&commit.clone().by(self.id()));
        if matches!(outcome, Err(CommitError::Store(StoreError::Fenced))) {
            self.member.standing().fence();
        }
        outcome
    }

    /// Whether the session knows that it was declared dead.
    pub(super) fn is_fenced(&self) -> bool {
        self.member.standing().is_fenced()
    }

    /// Declares a session dead, this one or another, and cleans up after it. When this has returned nothing of it takes
    /// effect any more.
    ///
    /// # Errors
    /// The store's; whoever sees the session next goes on with it.
    pub(super) fn fence(
        &self,
        store: &dyn Store,
        collector: &Collector,
        session: SessionId,
    ) -> Result<(), StoreError> {
        if session == self.id() {
            self.member.standing().fence();
        }
        self.member.recover(session, &|dead| collect_of(store, collector, dead))?;
        drop_locks(self.redlock.as_ref(), session);
        Ok(())
    }

    /// Ends the session: the threads first, then what it left, then its document. A store that is away is not waited for
    /// once more than the requests under way do.
    ///
    /// # Errors
    /// The store's; others clean up when the lease has run out.
    pub(super) fn leave(&self, store: &dyn Store, collector: &Collector) -> Result<(), StoreError> {
        self.stop();
        self.leave_if_away(store)?;
        let left = self.member.leave(&|dead| collect_of(store, collector, dead));
        if let Some(intents) = store.intents() {
            intents.end(self.id());
        }
        if let Some(proof) = &self.proof
            && left.is_ok()
        {
            proof.withdraw();
        }
        left
    }

    /// Ends the session if the store is away: the threads, and nothing else.
    ///
    /// # Errors
    /// That it has been left so: others clean up when the lease has run out.
    pub(super) fn leave_if_away(&self, store: &dyn Store) -> Result<(), StoreError> {
        let Some(outage) = store.outage() else { return Ok(()) };
        self.stop();
        self.member.standing().fence();
        Err(StoreError::Engine {
            what: format!("ending session {}, which others clean up after its lease", self.id()),
            source: format!("the store does not answer: {}", outage.cause).into(),
        })
    }

    /// The session has nobody to serve any more: it does not insist on what a store that is away should answer. Nor do
    /// requests then, if it is the last of its process.
    pub(super) fn hurry(&self, store: &dyn Store, is_last: bool) {
        if let Some(watch) = &*self.watch.lock() {
            watch.bell.hurry();
        }
        if let Some(outages) = store.outages().filter(|_| is_last) {
            outages.outlast(OUTAGE_MAX);
        }
    }

    /// Ends the threads.
    fn stop(&self) {
        let Some(Watch { heart, extender, keeper, bell, thread }) = self.watch.lock().take() else { return };
        bell.close();
        drop((heart, extender, keeper));
        if thread.join().is_err() {
            log::error!("the thread that watches the other sessions panicked");
        }
    }
}

/// Who did not leave is dead from here on, for others to recover; but nothing of the session may keep the store.
impl Drop for Membership {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Refuses a session whose locks are elsewhere than those of any other that is at work. On servers of their own they also
/// have to last equally long: one that was started again counts for nothing for as long as a lock of one's own lasts.
fn agree(
    store: &dyn Store,
    own: SessionId,
    locks_at: Option<String>,
    lease: Duration,
) -> Result<(), NamespaceError> {
    let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
    let text = |place: &Option<String>, lease_ms: u64| match place {
        Some(servers) => format!("on {servers} with a lease of {} s", lease_ms as f64 / 1000.0),
        None => "with the tree".to_owned(),
    };
    let differs =
        |other: &Session| other.locks != locks_at || (locks_at.is_some() && other.lease_ms != lease_ms);
    // Who is fenced changes nothing any more, with or without locks.
    let is_at_work = |other: &Session| matches!(other.state, SessionState::Joining | SessionState::Live);
    let others = sessions_of(store)?.into_iter().filter(|other| other.id != own && is_at_work(other));
    match others.into_iter().find(differs) {
        Some(other) => Err(NamespaceError::OtherLocks {
            session: other.id,
            theirs: text(&other.locks, other.lease_ms),
            ours: text(&locks_at, lease_ms),
            pid: other.pid,
            host: other.host,
            mount_point: other.mount_point,
        }),
        None => Ok(()),
    }
}

/// The sessions of a volume. One that is damaged keeps nobody from mounting, and from cleaning up after the others.
fn sessions_of(store: &dyn Store) -> Result<Vec<Session>, StoreError> {
    let mut sessions = Vec::new();
    for_each::<_, StoreError>(store, Range::All(Kind::Session), |_, stored| {
        match stored.map(|stored| Document::clone(&stored.document)) {
            Ok(Document::Session(session)) => sessions.push(session),
            Ok(_) => {}
            Err(error) => log::warn!("{error}; see: lockwood check"),
        }
        Ok(())
    })?;
    Ok(sessions)
}

/// Lets go of the locks that a dead session has on servers of their own. Left alone, they would end by themselves.
fn drop_locks(redlock: Option<&Redlock>, dead: SessionId) {
    if let Some(Err(error)) = redlock.map(|redlock| redlock.drop_session(dead)) {
        log::warn!("the locks of session {dead} were not released, and end by themselves: {error}");
    }
}

/// Collects what a dead session had unlinked while it was open, and gives up its advisory locks.
fn collect_of(store: &dyn Store, collector: &Collector, dead: SessionId) -> Result<(), StoreError> {
    drop_session(store, dead)?;
    let mut orphans = Vec::new();
    for_each::<_, StoreError>(store, Range::All(Kind::Orphan), |key, stored| {
        match (key, stored.as_ref().map(|stored| &*stored.document)) {
            (Key::Orphan(ino), Ok(Document::Orphan(Orphan { session }))) if *session == dead => {
                orphans.push(ino)
            }
            // Whose it is cannot be told; it takes space, and `lockwood check` names it.
            (key, Err(error)) => log::warn!("{key} is left: {error}"),
            _ => {}
        }
        Ok(())
    })?;
    for ino in orphans {
        collector.collect_now(ino).map_err(|error| StoreError::Engine {
            what: format!("collecting inode {ino}, which session {dead} left"),
            source: error.into(),
        })?;
    }
    Ok(())
}
