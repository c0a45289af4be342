//! What observers, recoverers and sessions may do, as statements about their pure functions. Owns the statements.

use std::sync::Arc;
use std::time::Duration;

use lockwood::ambient::Clock;
use lockwood::document::{Session, SessionId, SessionState, Timestamp};
use lockwood::lock::OpId;
use lockwood::lock::session::Standing;
use lockwood::lock::session::observe::{Observer, Verdict};
use lockwood::lock::session::plan::{Found, SlotsSeen, Step, next_step};
use lockwood::lock::session::state::first_state;
use lockwood::lock::shared::claims::is_ghost;
use parking_lot::Mutex;

use super::{Judged, Objection, objection};
use crate::rng::Rng;

const LEASE: Duration = Duration::from_secs(10);
const SCHEDULES: u64 = 2_000;

/// Judges all statements.
pub(super) fn judge() -> Judged {
    Ok(observations()? + recoveries()? + standing()? + ghosts()?)
}

/// Nobody is declared dead whose heartbeat was not seen to stand still for a whole lease, at several readings: a gap between
/// two of them shows nothing, for both may have stood still together.
fn observations() -> Judged {
    let session = SessionId(1);
    for schedule in 0..SCHEDULES {
        let mut rng = Rng::new(schedule + 1);
        let mut observer = Observer::default();
        let (mut now, mut heartbeat) = (Duration::ZERO, 0);
        let mut readings: Vec<Duration> = Vec::new();
        for _ in 0..30 {
            let gap = if rng.below(8) == 0 { 60_000 } else { rng.below(3_000) };
            now += Duration::from_millis(gap);
            if rng.below(4) == 0 {
                heartbeat += 1;
                readings.clear();
            }
            readings.push(now);
            if observer.observe(session, heartbeat, LEASE, now) == Verdict::MayFence {
                let still = now - readings[0];
                if still < LEASE || readings.len() < 5 {
                    let count = readings.len();
                    return objection(
                        schedule,
                        format!("declared dead after {still:?} and {count} readings"),
                    );
                }
            }
        }
    }
    Ok(SCHEDULES)
}

/// From whatever is found, the steps come in the one order: fence, settle, drop claims, collect, and so on. Claims go when
/// all slots are sealed by whoever takes them, and no slot goes that is not sealed.
fn recoveries() -> Judged {
    use SessionState::{Fenced, Joining, Live, Recovered};
    let mut cases = 0;
    for state in [Joining, Live, Fenced, Recovered] {
        for slots in [SlotsSeen::Open, SlotsSeen::Sealed, SlotsSeen::ReadSealed, SlotsSeen::Gone] {
            let mut found = Found { state: Some(state), slots, claims: true, collected: false };
            let mut steps = Vec::new();
            let mut unsettled = None;
            while steps.len() < 9 && next_step(&found) != Step::Done {
                let step = next_step(&found);
                let ready = match step {
                    Step::DropClaims => found.slots == SlotsSeen::Sealed,
                    Step::DeleteSlots => found.slots != SlotsSeen::Open,
                    _ => true,
                };
                if !ready {
                    unsettled.get_or_insert((step, found.slots));
                }
                steps.push(step);
                match step {
                    Step::Fence => found.state = Some(Fenced),
                    Step::SettleIntents => found.slots = SlotsSeen::Sealed,
                    Step::DropClaims => found.claims = false,
                    Step::Collect => found.collected = true,
                    Step::MarkRecovered => found.state = Some(Recovered),
                    Step::DeleteSlots => found.slots = SlotsSeen::Gone,
                    Step::DeleteSession => found.state = None,
                    Step::Done => {}
                }
            }
            cases += 1;
            if let Some((step, slots)) = unsettled {
                return objection(cases, format!("slots found {slots:?} before {step:?}: {steps:?}"));
            }
            let dropped = state == Recovered || steps.contains(&Step::DropClaims);
            let fenced = matches!(state, Fenced | Recovered) || steps.first() == Some(&Step::Fence);
            let in_order = steps.iter().map(|step| *step as u8).is_sorted();
            if !dropped || !fenced || !in_order {
                return objection(cases, format!("a session found {state:?}: {steps:?}"));
            }
        }
    }
    Ok(cases)
}

/// A clock that a test sets.
#[derive(Default)]
struct Hand(Mutex<Duration>);

impl Clock for Hand {
    fn now(&self) -> Duration {
        *self.0.lock()
    }

    fn sleep(&self, duration: Duration) {
        *self.0.lock() += duration;
    }
}

/// A session starts nothing once it knows that it is dead, or has not heard for a lease that it lives; and none lives before
/// it has made its intents.
fn standing() -> Judged {
    let clock = Arc::new(Hand::default());
    let new = || Standing::new(SessionId(1), LEASE, clock.clone(), clock.now());
    let says = |after, what: &str| -> Result<(), Objection> { objection(after, what) };
    let fenced = new();
    if fenced.check().is_err() {
        says(0, "a session that has just begun may start nothing")?;
    }
    fenced.fence();
    if fenced.check().is_ok() {
        says(1, "a session that knows that it is fenced starts a change")?;
    }
    let silent = new();
    clock.sleep(LEASE);
    if silent.check().is_ok() {
        says(2, "a session that nobody has confirmed for a lease starts a change")?;
    }
    if first_state() != SessionState::Joining {
        says(3, "a session lives that has made no intents")?;
    }
    Ok(4)
}

/// A claim is a ghost exactly if its operation is over for certain.
fn ghosts() -> Judged {
    let mut cases = 0;
    let states = [SessionState::Joining, SessionState::Live, SessionState::Fenced, SessionState::Recovered];
    for state in states {
        for number in 0..4 {
            let session = session(state, 2);
            let claim = OpId { session: session.id, number };
            let gone = matches!(state, SessionState::Joining | SessionState::Recovered);
            cases += 1;
            if is_ghost(claim, Some(&session)) != (gone || number < 2) {
                return objection(cases, format!("operation {number} of a session that is {state:?}"));
            }
        }
    }
    let claim = OpId { session: SessionId(1), number: 9 };
    if is_ghost(claim, None) { Ok(cases + 1) } else { objection(cases, "a claim of a session that is gone") }
}

fn session(state: SessionState, operations_below: u64) -> Session {
    Session {
        id: SessionId(1),
        host: String::new(),
        boot_id: String::new(),
        pid: 1,
        mount_point: String::new(),
        started: Timestamp::default(),
        lease_ms: 1000,
        heartbeat: 7,
        epoch: 1,
        intents: 2,
        operations_below,
        state,
        locks: None,
    }
}
