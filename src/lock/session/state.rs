//! Where a session may stand, and what takes it from one place to the next. Pure; imports the document and `rules`.
//!
//! ```text
//!              IntentsMade        Fence           Cleaned
//!   (created) Joining ───▶ Live ───────▶ Fenced ───────▶ Recovered (deleted)
//!                 └───────────────────────▲
//! ```
//!
//! Nothing leads back. Whoever takes a step does it by one compare-and-set of the session's document, so of two who try, one
//! has done it and the other finds it done.

use crate::document::{Session, SessionState};
use crate::rules::{Rule, holds};

/// What happens to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionEvent {
    /// It has made all its intents itself, and begins to work.
    IntentsMade,
    /// It says that it lives, and which of its operations are over: all below this number.
    Beat {
        /// The lowest number of an operation that may still run.
        operations_below: u64,
    },
    /// It is declared dead, by whoever may or by itself.
    Fence,
    /// What it left behind has been cleaned up.
    Cleaned,
}

/// In which state a session's document is made.
pub fn first_state() -> SessionState {
    if holds(Rule::JoiningBeforeLive) { SessionState::Joining } else { SessionState::Live }
}

/// The document of a session after an event; `None` if the event is not for a session that stands where this one does.
pub fn after(session: &Session, event: SessionEvent) -> Option<Session> {
    use SessionState::{Fenced, Joining, Live, Recovered};
    let mut next = session.clone();
    match (session.state, event) {
        // Also a heartbeat: who saw none while the intents were made starts the lease again.
        (Joining, SessionEvent::IntentsMade) => {
            next.state = Live;
            next.heartbeat += 1;
        }
        (Live, SessionEvent::Beat { operations_below }) => {
            next.heartbeat += 1;
            next.operations_below = next.operations_below.max(operations_below);
        }
        (Joining | Live, SessionEvent::Fence) => next.state = Fenced,
        (Fenced, SessionEvent::Cleaned) => next.state = Recovered,
        _ => return None,
    }
    Some(next)
}

#[cfg(test)]
pub(in crate::lock) mod tests {
    use super::*;
    use crate::document::{SessionId, Timestamp};

    pub(in crate::lock) fn session(id: u64, state: SessionState) -> Session {
        Session {
            id: SessionId(id),
            host: "host".to_owned(),
            boot_id: "boot".to_owned(),
            pid: 1,
            mount_point: "/mnt".to_owned(),
            started: Timestamp::default(),
            lease_ms: 1000,
            heartbeat: 7,
            epoch: 1,
            intents: 2,
            operations_below: 5,
            state,
            locks: None,
        }
    }

    #[test]
    fn every_state_with_every_event() {
        use SessionEvent::{Beat, Cleaned, Fence, IntentsMade};
        use SessionState::{Fenced, Joining, Live, Recovered};
        let beat = Beat { operations_below: 6 };
        let table = [
            (Joining, IntentsMade, Some(Live)),
            (Joining, beat, None),
            (Joining, Fence, Some(Fenced)),
            (Joining, Cleaned, None),
            (Live, IntentsMade, None),
            (Live, beat, Some(Live)),
            (Live, Fence, Some(Fenced)),
            (Live, Cleaned, None),
            (Fenced, IntentsMade, None),
            (Fenced, beat, None),
            (Fenced, Fence, None),
            (Fenced, Cleaned, Some(Recovered)),
            (Recovered, IntentsMade, None),
            (Recovered, beat, None),
            (Recovered, Fence, None),
            (Recovered, Cleaned, None),
        ];
        for (state, event, expected) in table {
            let next = after(&session(1, state), event);
            assert_eq!(next.map(|next| next.state), expected, "{state:?} {event:?}");
        }
    }

    #[test]
    fn a_heartbeat_grows_and_what_is_over_stays_over() {
        let live = session(1, SessionState::Live);
        let beaten = after(&live, SessionEvent::Beat { operations_below: 9 }).unwrap();
        assert_eq!((beaten.heartbeat, beaten.operations_below), (8, 9));
        let again = after(&beaten, SessionEvent::Beat { operations_below: 3 }).unwrap();
        assert_eq!((again.heartbeat, again.operations_below), (9, 9));
        let fenced = after(&again, SessionEvent::Fence).unwrap();
        assert_eq!((fenced.heartbeat, fenced.operations_below), (9, 9));
    }
}
