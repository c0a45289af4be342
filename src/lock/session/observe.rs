//! When a session may be declared dead by somebody who only sees its heartbeat. Pure; imports `rules`.
//!
//! The observer's own monotonic clock is the only one. It notes when, on that clock, it first saw the heartbeat that it
//! still sees; only after a whole lease may it fence. So hosts need no common time, only clocks of about the same rate.
//!
//! What is hard:
//! 1. A reading is older than its answer. The caller takes the time *after* the answer has come: then the lease counts from
//!    a moment at which the heartbeat was already this one. That it is still the same at the end needs no clock: the fence
//!    is a compare-and-set on exactly the document that was seen last.
//! 2. A clock may jump, and an observer may stand still and go on, together with all whom it observes (a suspended
//!    machine). A gap between two readings therefore counts for a quarter of the lease at most: whoever is alive has the
//!    rest of it to say so. An observer that reads four times a lease or more often loses nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::document::SessionId;
use crate::rules::{Rule, holds};

/// For how many parts of a lease, at least, the heartbeat must have been seen to stand still.
pub const PARTS: u32 = 4;

/// No mount has a shorter lease: a document that says so is damaged, and must not be out of everybody's reach.
const LEASE_BELIEVED: Duration = Duration::from_secs(1);

/// What an observer remembers of the sessions that it observes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Observer {
    seen: BTreeMap<SessionId, Seen>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Seen {
    heartbeat: u64,
    lease: Duration,
    /// When it was read last.
    last: Duration,
    /// For how much of the lease it has stood still.
    still: Duration,
}

/// What an observation allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Nothing: the session may be alive.
    Wait,
    /// To fence the session, by a compare-and-set on the document that was just read.
    MayFence,
}

impl Observer {
    /// Takes into account that `session`, which has this lease, was read with this heartbeat. `now` is the observer's
    /// monotonic clock after the answer.
    pub fn observe(&mut self, session: SessionId, heartbeat: u64, lease: Duration, now: Duration) -> Verdict {
        let fresh = Seen { heartbeat, lease, last: now, still: Duration::ZERO };
        let Some(seen) = self.seen.get_mut(&session) else {
            self.seen.insert(session, fresh);
            return Verdict::Wait;
        };
        if seen.heartbeat != heartbeat && holds(Rule::HeartbeatChangeRestartsTheLease) {
            *seen = fresh;
            return Verdict::Wait;
        }
        let gap = now.saturating_sub(seen.last);
        let counts = if holds(Rule::LongGapsCountInPart) { gap.min(lease / PARTS) } else { gap };
        seen.still = seen.still.saturating_add(counts);
        seen.last = seen.last.max(now);
        if seen.still >= lease || !holds(Rule::LeaseObservedOnOwnClockForItsWholeLength) {
            Verdict::MayFence
        } else {
            Verdict::Wait
        }
    }

    /// Forgets every session but those that `keep` names: what is gone is not observed.
    pub fn retain(&mut self, keep: impl Fn(SessionId) -> bool) {
        self.seen.retain(|session, _| keep(*session));
    }

    /// Begins anew to count for those of whom an observer cannot judge whose own last heartbeat was confirmed so long ago:
    /// they may have the same trouble. That is less than the time for which theirs must stand still: they were seen up to
    /// the time between two beats earlier than that began.
    pub(super) fn unheard_for(&mut self, silent: Duration) {
        self.seen.retain(|_, seen| silent < seen.lease.max(LEASE_BELIEVED) * 3 / 4);
    }

    /// How many sessions are remembered.
    pub fn len(&self) -> usize {
        self.seen.len()
    }

    /// Whether no session is remembered.
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(100);

    /// What an observer says to readings of (time in ms, heartbeat): `.` wait, `F` may fence.
    fn verdicts(readings: &[(u64, u64)]) -> String {
        let mut observer = Observer::default();
        let verdict = |(at, heartbeat): &(u64, u64)| match observer.observe(
            SessionId(1),
            *heartbeat,
            LEASE,
            Duration::from_millis(*at),
        ) {
            Verdict::Wait => '.',
            Verdict::MayFence => 'F',
        };
        readings.iter().map(verdict).collect()
    }

    #[test]
    fn a_heartbeat_must_stand_still_for_a_whole_lease_of_readings() {
        let table: &[(&str, &[(u64, u64)])] = &[
            // From the first reading, and the end is exact.
            (".....F", &[(7, 1), (32, 1), (57, 1), (82, 1), (106, 1), (107, 1)]),
            // A change starts again, however small the numbers.
            (".....", &[(0, 1), (25, 1), (50, 1), (75, 1), (100, 2)]),
            ("......F", &[(0, 1), (50, 2), (75, 2), (100, 2), (125, 2), (149, 2), (150, 2)]),
            // Also a change backwards: it is another document.
            ("......", &[(0, 9), (25, 9), (50, 9), (75, 9), (99, 0), (124, 0)]),
            // A jump forward, or an observer that stood still, counts for a quarter.
            ("....F", &[(0, 1), (5000, 1), (90_000, 1), (91_000, 1), (92_000, 1)]),
            (".....", &[(0, 1), (5000, 1), (5001, 1), (5002, 1), (5003, 2)]),
            // A clock that goes back counts for nothing, and what follows is not counted twice.
            (".....F", &[(100, 1), (50, 1), (125, 1), (150, 1), (175, 1), (200, 1)]),
            // Once dead, it stays dead for this observer.
            ("....FF", &[(0, 1), (25, 1), (50, 1), (75, 1), (100, 1), (101, 1)]),
        ];
        for (expected, readings) in table {
            assert_eq!(verdicts(readings), *expected, "{readings:?}");
        }
    }

    #[test]
    fn sessions_are_observed_apart_and_forgotten() {
        let mut observer = Observer::default();
        for ms in [0, 25, 50, 75] {
            assert_eq!(observer.observe(SessionId(1), 1, LEASE, Duration::from_millis(ms)), Verdict::Wait);
        }
        let later = Duration::from_millis(100);
        assert_eq!(observer.observe(SessionId(2), 1, LEASE, later), Verdict::Wait);
        let mut other = observer.clone();
        assert_eq!(observer.observe(SessionId(1), 1, LEASE, later), Verdict::MayFence);
        other.retain(|session| session == SessionId(2));
        assert_eq!(other.len(), 1);
        assert_eq!(other.observe(SessionId(1), 1, LEASE, later), Verdict::Wait);
    }

    /// Observer and session at clocks whose rates differ by a fifth: who beats three times a lease is never fenced, and who
    /// stops is, within two leases.
    #[test]
    fn clocks_at_other_rates() {
        for (observer_percent, session_percent) in [(90, 110), (100, 100), (110, 90)] {
            let mut observer = Observer::default();
            let mut fenced_at = None;
            for real_ms in 0..2000_u64 {
                // The session beats until second 1 of real time.
                let beats = real_ms.min(1000) * session_percent / 100 / 33;
                if real_ms % 20 == 0 && fenced_at.is_none() {
                    let now = Duration::from_millis(real_ms * observer_percent / 100);
                    if observer.observe(SessionId(1), beats, LEASE, now) == Verdict::MayFence {
                        fenced_at = Some(real_ms);
                    }
                }
            }
            let fenced_at = fenced_at.expect("a dead session was never fenced");
            assert!((1050..1200).contains(&fenced_at), "{observer_percent} {session_percent}: {fenced_at}");
        }
    }
}
