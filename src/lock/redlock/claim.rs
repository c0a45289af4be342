//! Claims as the servers keep them: JSON texts under keys that people can read. Pure.
//!
//! A claim's text has a random value, so that nobody but its owner writes the same text again: to take a claim out by its
//! text is the compare-and-delete of the algorithm.

use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::ambient::{self, Clock};
use crate::document::{LockMode, SessionId};
use crate::lock::{LockId, LockSet, OpId};
use crate::store::redis::Arguments;

/// Whether a claim holds its lock on this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ClaimState {
    /// It does.
    Held,
    /// It shall go before those who ask later.
    Waits,
}

/// One operation at one lock on one server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claim {
    pub(super) state: ClaimState,
    pub(super) mode: LockMode,
    pub(super) session: SessionId,
    /// Which operation of the session.
    pub(super) operation: u64,
    /// Random, 32 hexadecimal digits: of this operation and no other.
    pub(super) value: String,
    /// When it was asked for, in milliseconds since 1970 by the clock of whoever asked: who asked first goes first.
    pub(super) asked_ms: u64,
    /// What for; for people.
    pub(super) purpose: String,
}

impl Claim {
    pub(super) fn op(&self) -> OpId {
        OpId { session: self.session, number: self.operation }
    }
}

/// Under which keys the locks of a volume are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    pub(super) index: String,
    /// What stands before the id in the key of a lock.
    pub(super) before_id: String,
}

impl Keys {
    /// Those of a volume. Volumes that share servers do not meet.
    pub(super) fn new(tag: &str, volume: &str) -> Self {
        Self { index: format!("{tag}redlock-index:{volume}"), before_id: format!("{tag}redlock:{volume}:") }
    }

    pub(super) fn key(&self, id: &LockId) -> String {
        format!("{}{}", self.before_id, id.encoded())
    }
}

/// How a set is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    /// Once.
    Try,
    /// Again and again, so that a mark keeps its place.
    Wait,
    /// By whoever holds it, for more time.
    Extend,
}

/// What one operation says to the servers, from its beginning to its end.
#[derive(Clone, Debug)]
pub(super) struct Request {
    keys: Vec<String>,
    modes: Vec<LockMode>,
    value: String,
    asked_ms: u64,
    held: [String; 2],
    waiting: [String; 2],
}

impl Request {
    pub(super) fn new(keys: &Keys, set: &LockSet, op: OpId, purpose: &str, clock: &dyn Clock) -> Self {
        let value = format!("{:016x}{:016x}", ambient::random_u64(), ambient::random_u64());
        let since = clock.wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default();
        let asked_ms = u64::try_from(since.as_millis()).unwrap_or_default();
        let texts = |state| {
            [LockMode::Shared, LockMode::Exclusive].map(|mode| {
                let claim = Claim {
                    state,
                    mode,
                    session: op.session,
                    operation: op.number,
                    value: value.clone(),
                    asked_ms,
                    purpose: purpose.to_owned(),
                };
                serde_json::to_string(&claim).unwrap_or_default()
            })
        };
        let (held, waiting) = (texts(ClaimState::Held), texts(ClaimState::Waits));
        let locks = set.entries().iter().map(|entry| keys.key(&entry.id));
        Self {
            keys: std::iter::once(keys.index.clone()).chain(locks).collect(),
            modes: set.entries().iter().map(|entry| entry.mode).collect(),
            value,
            asked_ms,
            held,
            waiting,
        }
    }

    /// The arguments of `acquire.lua`.
    pub(super) fn acquire(&self, asking: Asking, ttl: Duration, mark: Duration) -> Arguments {
        let asking = match asking {
            Asking::Try => "try",
            Asking::Wait => "wait",
            Asking::Extend => "extend",
        };
        let arguments = self.over_keys();
        let arguments = arguments.arg(ttl.as_millis()).arg(asking).arg(mark.as_millis()).arg(&self.value);
        let arguments =
            self.held.iter().chain(&self.waiting).fold(arguments.arg(self.asked_ms), Arguments::arg);
        self.modes.iter().fold(arguments, Arguments::arg)
    }

    /// The arguments of `release.lua`: of what is held, and of the marks too where nobody waits any more.
    pub(super) fn release(&self, with_marks: bool) -> Arguments {
        let marks = self.waiting.iter().filter(|_| with_marks);
        self.held.iter().chain(marks).fold(self.over_keys(), Arguments::arg)
    }

    /// How many locks it is about.
    pub(super) fn locks(&self) -> usize {
        self.modes.len()
    }

    fn over_keys(&self) -> Arguments {
        self.keys.iter().fold(Arguments::default(), |arguments, key| arguments.key(key.as_str()))
    }
}

/// The arguments of `list.lua`.
pub(super) fn list(keys: &Keys, drop: Option<SessionId>) -> Arguments {
    let drop = drop.map(|session| session.to_string()).unwrap_or_default();
    Arguments::default().key(keys.index.as_str()).arg(&keys.before_id).arg(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ambient::SystemClock;

    #[test]
    fn a_claim_can_be_read_and_not_be_guessed() {
        let keys = Keys::new("{lockwood}:", "0f");
        let id = LockId::from_path(b"/a b").unwrap();
        assert_eq!(keys.key(&id), "{lockwood}:redlock:0f:%2Fa%20b");
        let set = LockSet::for_hold(&id, LockMode::Exclusive).unwrap();
        let op = OpId { session: SessionId(0xab), number: 7 };
        let request = || Request::new(&keys, &set, op, "rename /a b to /c", &SystemClock::new());
        let (one, other) = (request(), request());
        assert_ne!(one.value, other.value);
        let claim: Claim = serde_json::from_str(&one.held[1]).unwrap();
        assert_eq!((claim.op(), claim.mode, claim.state), (op, LockMode::Exclusive, ClaimState::Held));
        assert!(
            one.held[1].starts_with(r#"{"state":"held","mode":"exclusive","session":"00000000000000ab""#)
        );
    }
}
