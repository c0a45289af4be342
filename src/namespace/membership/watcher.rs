//! The thread that watches the other sessions, and cleans up after those that died.
//!
//! What waits for a lock of a dead session goes on when its lease has run out and somebody has seen that. A lease is counted
//! from when a heartbeat was first seen, so both ends of it come late by up to the time from look to look: that has to be
//! short, however long the lease is. Which sessions there are is asked rarely; those that are known are glanced at often.

use std::sync::Arc;
use std::time::Duration;

use super::bell::Bell;
use super::{BEATS_PER_LEASE, alive, collect_of, drop_locks};
use crate::ambient::Clock as _;
use crate::document::{Session, SessionId};
use crate::lock::session::{Member, Observer, Which};
use crate::lock::{Redlock, SharedLocks};
use crate::namespace::collect::Collector;
use crate::store::{Store, StoreError};

/// How often a session looks whether a process of its own host has died.
const LOOK_HERE: Duration = Duration::from_millis(100);
/// How often a session glances at the others, as long as they are few.
const GLANCE: Duration = Duration::from_millis(200);
/// No lease is shorter that anybody asks for; of a document that says so the numbers are not believed.
const SHORTEST_PACE: Duration = Duration::from_secs(1);
/// The time for each that is read: 25 a second, so that many do not keep a store busy by watching each other. Of fifty, with
/// the usual lease, none is glanced at between two looks at all.
const GLANCE_PER_SESSION: Duration = Duration::from_millis(40);
/// Once a lease a session looks for claims of operations that are over.
const LOOKS_PER_SWEEP: u32 = BEATS_PER_LEASE;
/// So often a session looks for intents of nobody when it has joined, and when another has gone: for a lease, in which
/// requests of the dead may still arrive, and one in which what came must stand still, and another as looks may be late.
const LOOKS_FOR_STRAYS: u32 = 3 * BEATS_PER_LEASE;

/// What the thread works with.
pub(super) struct Watcher {
    pub(super) member: Arc<Member>,
    pub(super) store: Arc<dyn Store>,
    pub(super) collector: Arc<Collector>,
    pub(super) locks: SharedLocks,
    pub(super) redlock: Option<Redlock>,
    pub(super) bell: Arc<Bell>,
    pub(super) lease: Duration,
}

/// What a watcher remembers from look to look.
#[derive(Default)]
struct Memory {
    /// How often all sessions were looked at.
    looks: u32,
    /// Of the sessions.
    observer: Observer,
    /// The others that live, as they were read.
    others: Vec<Session>,
    /// Of the intents that belong to none.
    strays: Observer,
    /// How often those are still looked for.
    looks_for_strays: u32,
}

impl Watcher {
    /// Watches until the session ends.
    pub(super) fn run(self, boot_id: &str) {
        let mut memory = Memory { looks_for_strays: LOOKS_FOR_STRAYS, ..Memory::default() };
        let mut failing = false;
        // Whether all sessions are to be looked at.
        let mut all = true;
        let (mut next_of_all, mut next, mut not_before) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        while !self.bell.is_closed() && !self.member.standing().is_fenced() {
            let now = self.bell.now();
            let died = || memory.others.iter().any(|session| alive::is_gone(session, boot_id));
            all = all || now >= next_of_all || self.bell.take_new_session() || died();
            if now >= not_before && (all || (now >= next && !memory.others.is_empty())) {
                let known: Vec<SessionId> = memory.others.iter().map(|session| session.id).collect();
                let which = if all { Which::All } else { Which::Known(&known) };
                // Why it failed, and whether it is made again at once.
                let (failed, again) = match self.look(which, &mut memory, boot_id) {
                    Ok(failed) => {
                        let others = memory.others.iter().map(|session| session.id);
                        self.bell.know(others.chain([self.member.id()]));
                        let shortest = self.shortest_lease(&memory.others);
                        self.member.standing().keep_pace_with(shortest);
                        next = now + glance_every(memory.others.len(), self.lease);
                        if all {
                            next_of_all = now + self.lease / BEATS_PER_LEASE;
                            self.tidy(&mut memory);
                        }
                        // What is left of the dead is gone on with once, and then by the looks at all that there are.
                        (
                            failed.map(|error| ("a dead session could not be cleaned up after", error)),
                            !failing,
                        )
                    }
                    Err(StoreError::Fenced) => (None, false),
                    // It may have been for the sake of a new session.
                    Err(error) => (Some(("the other sessions could not be looked at", error)), true),
                };
                // A glance says nothing of those whom a look at all could not clean up after.
                let was_failing = failing;
                failing = failed.is_some() || (failing && !all);
                all = failed.is_some() && again;
                if let Some((what, error)) = failed {
                    if !was_failing {
                        log::warn!("{what}: {error}; trying again");
                    }
                    not_before = self.bell.now() + GLANCE;
                }
            }
            self.bell.wait_until_closed(LOOK_HERE);
        }
    }

    /// Who has a long lease judges of those that have a short one, and beats as they do.
    fn shortest_lease(&self, others: &[Session]) -> Duration {
        let theirs = others.iter().map(|session| Duration::from_millis(session.lease_ms)).min();
        theirs.map_or(self.lease, |theirs| theirs.clamp(SHORTEST_PACE.min(self.lease), self.lease))
    }

    /// Looks at the others of these sessions, cleans up after the dead, and remembers those that live on. Returns why one of
    /// the dead is left, if one is.
    fn look(
        &self,
        which: Which<'_>,
        memory: &mut Memory,
        boot_id: &str,
    ) -> Result<Option<StoreError>, StoreError> {
        let is_gone = |session: &Session| alive::is_gone(session, boot_id);
        let collect = |dead| collect_of(&*self.store, &self.collector, dead);
        let observed = self.member.observe(which, &mut memory.observer, &is_gone, &collect)?;
        for ended in &observed.ended {
            drop_locks(self.redlock.as_ref(), *ended);
            log::warn!("session {ended} was dead: what it left is cleaned up, and its locks are free");
            alive::forget(*ended);
            self.collector.sweep_after(*ended);
        }
        let before = std::mem::replace(&mut memory.others, observed.others);
        let lives = |session: &Session| memory.others.iter().any(|other| other.id == session.id);
        // Whoever cleaned up after it, and also if it left: its process may have died in the end all the same.
        if !observed.ended.is_empty() || !before.iter().all(lives) {
            memory.looks_for_strays = LOOKS_FOR_STRAYS;
        }
        Ok(observed.failed)
    }

    /// Looks for what operations and commits have left, from time to time.
    fn tidy(&self, memory: &mut Memory) {
        memory.looks = memory.looks.wrapping_add(1);
        if memory.looks.is_multiple_of(LOOKS_PER_SWEEP)
            && let Err(error) = self.locks.sweep()
        {
            log::debug!("locks were not swept: {error}");
        }
        self.look_for_strays(memory);
    }

    /// Whoever dies in the middle of a commit that names no session, as a collector's, leaves an intent that belongs to no
    /// session which anybody would recover.
    fn look_for_strays(&self, memory: &mut Memory) {
        let Some(looks) = memory.looks_for_strays.checked_sub(1) else { return };
        if self.store.intents().is_some()
            && let Err(error) = self.member.recoverer().sweep_slots(&mut memory.strays, self.lease)
        {
            log::debug!("intents of nobody were not swept: {error}");
            if self.store.outage().is_some() {
                return;
            }
        }
        memory.looks_for_strays = looks;
    }
}

/// How often a session glances at this many others.
fn glance_every(others: usize, lease: Duration) -> Duration {
    let others = u32::try_from(others).unwrap_or(u32::MAX);
    GLANCE_PER_SESSION.saturating_mul(others).max(GLANCE).min(lease / BEATS_PER_LEASE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_glanced_at_often_and_many_as_often_as_they_beat() {
        let every = |others, lease_s| glance_every(others, Duration::from_secs(lease_s)).as_millis();
        assert_eq!([every(0, 10), every(5, 10), every(7, 10)], [200, 200, 280]);
        assert_eq!([every(25, 10), every(50, 10), every(usize::MAX, 10)], [1000, 2000, 2000]);
        assert_eq!([every(1, 1), every(100, 1)], [200, 200]);
    }
}
