//! A lock document as the state of one lock: the rules of [`one`](crate::lock::decide::one) applied to it. Pure.
//!
//! The rules stand there and nowhere else. A document becomes a [`Lock`], an event happens to it, and what came out becomes
//! a document again, with each claim's purpose.

use std::time::Duration;

use crate::document::{LockClaim, LockRecord, SessionId};
use crate::lock::decide::Nanos;
use crate::lock::decide::one::{Holder, Lock, Waiter};
use crate::lock::{Blocked, HeldBy, LockId, Mode, OpId};

/// What came of asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Whether the claim holds the lock, once the document is written.
    pub holds: bool,
    /// The document to write; none if it is as it should be.
    pub write: Option<LockRecord>,
}

/// What came of taking claims away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removed {
    /// None of them is there.
    Nothing,
    /// Nobody is left: the document is to be deleted.
    All,
    /// The document to write.
    Some(LockRecord),
}

/// Whose claim it is.
pub fn op_of(claim: &LockClaim) -> OpId {
    OpId { session: claim.session, number: claim.operation }
}

/// Whether this operation is one of those that share the lock.
pub fn holds_shared(record: &LockRecord, op: OpId) -> bool {
    record.holders.iter().any(|claim| claim.mode == Mode::Shared && op_of(claim) == op)
}

/// Whether this operation is one of those that hold the lock.
pub fn is_held(record: &LockRecord, op: OpId) -> bool {
    record.holders.iter().any(|claim| op_of(claim) == op)
}

/// Grants the lock of `path` to a claim, or puts it at the end of the queue. To ask again changes nothing.
pub fn ask(record: Option<&LockRecord>, path: &LockId, claim: &LockClaim) -> Asked {
    let now = Nanos(claim.since_ns);
    let mut lock = record.map(lock_of).unwrap_or_default();
    // Nobody who may be let in waits, whoever wrote the document.
    while lock.promote(now).is_some() {}
    let holds = lock.ask(op_of(claim), claim.mode, now);
    let path = record.map_or(path.as_bytes(), |record| &record.path);
    let next = record_of(&lock, path, record, Some(claim));
    Asked { holds, write: (record != Some(&next)).then_some(next) }
}

/// Takes away the claims that `goes` names, and lets in who is next.
pub fn remove(record: &LockRecord, now_ns: u64, goes: impl Fn(OpId) -> bool) -> Removed {
    let mut lock = lock_of(record);
    let going: Vec<OpId> = claims(record).map(op_of).filter(|op| goes(*op)).collect();
    if going.is_empty() {
        return Removed::Nothing;
    }
    for op in &going {
        lock.leave_queue(*op);
    }
    for op in going {
        lock.release(op);
    }
    while lock.promote(Nanos(now_ns)).is_some() {}
    if lock.is_idle() {
        return Removed::All;
    }
    Removed::Some(record_of(&lock, &record.path, Some(record), None))
}

/// What an operation that wants the lock waits for, and who has it.
pub fn blocked(record: &LockRecord, path: &LockId, op: OpId, wanted: Mode, now_ns: u64) -> Blocked {
    let held = |claim: &LockClaim| HeldBy {
        op: op_of(claim),
        operation: claim.purpose.clone(),
        held_for: Duration::from_nanos(now_ns.saturating_sub(claim.since_ns)),
    };
    Blocked {
        lock: path.clone(),
        wanted,
        held: lock_of(record).mode(),
        holders: record.holders.iter().map(held).collect(),
        waiting_before: record.waiters.iter().take_while(|claim| op_of(claim) != op).count(),
    }
}

/// Every claim of a document: who holds, then who waits.
pub fn claims(record: &LockRecord) -> impl Iterator<Item = &LockClaim> {
    record.holders.iter().chain(&record.waiters)
}

/// The sessions that have claims, each once, in their order.
pub fn sessions(record: &LockRecord) -> Vec<SessionId> {
    let mut sessions: Vec<_> = claims(record).map(|claim| claim.session).collect();
    sessions.sort_unstable();
    sessions.dedup();
    sessions
}

fn lock_of(record: &LockRecord) -> Lock {
    let mode = record.holders.iter().map(|claim| claim.mode).max().unwrap_or(Mode::Shared);
    let holder = |claim: &LockClaim| Holder { op: op_of(claim), since: Nanos(claim.since_ns) };
    let waiter =
        |claim: &LockClaim| Waiter { op: op_of(claim), mode: claim.mode, since: Nanos(claim.since_ns) };
    Lock::restore(
        mode,
        record.holders.iter().map(holder).collect(),
        record.waiters.iter().map(waiter).collect(),
    )
}

/// A lock as a document. What each claim is for comes from the document before, or from the `new` claim.
fn record_of(lock: &Lock, path: &[u8], before: Option<&LockRecord>, new: Option<&LockClaim>) -> LockRecord {
    let claim = |op: OpId, mode: Mode, since: Nanos| {
        let mut known = before.into_iter().flat_map(claims).chain(new);
        let purpose = known.find(|claim| op_of(claim) == op).map(|claim| claim.purpose.clone());
        LockClaim {
            session: op.session,
            operation: op.number,
            mode,
            purpose: purpose.unwrap_or_default(),
            since_ns: since.0,
        }
    };
    LockRecord {
        path: path.to_vec(),
        holders: lock.holders().iter().map(|holder| claim(holder.op, lock.mode(), holder.since)).collect(),
        waiters: lock.queue().map(|waiter| claim(waiter.op, waiter.mode, waiter.since)).collect(),
    }
}

/// Whether somebody is in the queue of a lock. The version that the change expects makes sure that this is still so.
pub(super) fn is_awaited(record: Option<&LockRecord>) -> bool {
    record.is_some_and(|record| !record.waiters.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::LockMode::{Exclusive, Shared};

    fn path() -> LockId {
        LockId::from_path(b"/a").unwrap()
    }

    fn claim(session: u64, mode: Mode) -> LockClaim {
        LockClaim {
            session: SessionId(session),
            operation: 1,
            mode,
            purpose: format!("of {session}").into(),
            since_ns: session,
        }
    }

    /// A document after these claims have asked: `+` shared, `!` exclusive, `<` before those who wait.
    fn asked(claims: &[(u64, Mode)]) -> Option<LockRecord> {
        crate::lock::tests::read_rules();
        let mut record = None;
        for (session, mode) in claims {
            let asked = ask(record.as_ref(), &path(), &claim(*session, *mode));
            record = asked.write.or(record);
        }
        record
    }

    fn text(record: &LockRecord) -> String {
        let sign = |claim: &LockClaim| if claim.mode == Shared { '+' } else { '!' };
        let list = |claims: &[LockClaim]| -> String {
            claims.iter().map(|claim| format!("{}{}", sign(claim), claim.session.0)).collect()
        };
        for claim in claims(record) {
            assert_eq!(*claim.purpose, format!("of {}", claim.session.0));
        }
        format!("{}<{}", list(&record.holders), list(&record.waiters))
    }

    #[test]
    fn asking_follows_the_rules_of_one_lock() {
        let table: &[(&[(u64, Mode)], &str)] = &[
            (&[(1, Shared), (2, Shared)], "+1+2<"),
            (&[(1, Exclusive), (2, Shared)], "!1<+2"),
            (&[(1, Shared), (2, Exclusive), (3, Shared)], "+1<!2+3"),
            (&[(2, Shared), (1, Shared), (1, Shared)], "+1+2<"),
            // A held lock is not upgraded, and who waits is not put into the queue twice.
            (&[(1, Shared), (1, Exclusive)], "+1<"),
            (&[(1, Exclusive), (2, Shared), (2, Shared), (2, Exclusive)], "!1<+2"),
        ];
        for (claims, expected) in table {
            assert_eq!(text(&asked(claims).unwrap()), *expected);
        }
        let record = asked(&[(1, Exclusive), (2, Shared)]).unwrap();
        for again in [claim(1, Exclusive), claim(2, Shared)] {
            assert_eq!(ask(Some(&record), &path(), &again).write, None);
        }
    }

    #[test]
    fn removing_lets_in_who_is_next_and_nothing_is_kept_of_an_idle_lock() {
        let record = asked(&[(1, Shared), (2, Shared), (3, Exclusive), (4, Shared), (5, Shared)]).unwrap();
        let remove = |gone: &[u64]| match super::remove(&record, 9, |op| gone.contains(&op.session.0)) {
            Removed::Nothing => "nothing".to_owned(),
            Removed::All => "all".to_owned(),
            Removed::Some(record) => text(&record),
        };
        assert_eq!(remove(&[7]), "nothing");
        assert_eq!(remove(&[1]), "+2<!3+4+5");
        assert_eq!(remove(&[1, 2]), "!3<+4+5");
        assert_eq!(remove(&[3]), "+1+2+4+5<");
        // Who leaves together is granted nothing on the way out.
        assert_eq!(remove(&[1, 2, 3]), "+4+5<");
        assert_eq!(remove(&[1, 2, 4, 5]), "!3<");
        assert_eq!(remove(&[1, 2, 3, 4, 5]), "all");
    }

    #[test]
    fn a_document_that_lets_nobody_in_is_mended_by_whoever_asks() {
        let mut record = asked(&[(1, Exclusive), (2, Shared)]).unwrap();
        record.holders.clear();
        let asked = ask(Some(&record), &path(), &claim(3, Shared));
        assert!(asked.holds);
        assert_eq!(text(&asked.write.unwrap()), "+2+3<");
    }

    #[test]
    fn who_is_blocked_learns_by_whom() {
        let record = asked(&[(1, Shared), (2, Exclusive), (3, Shared)]).unwrap();
        let op = OpId { session: SessionId(3), number: 1 };
        let blocked = blocked(&record, &path(), op, Shared, 2_000_000_001);
        assert_eq!((blocked.held, blocked.waiting_before, blocked.holders.len()), (Shared, 1, 1));
        assert!(blocked.to_string().contains("session 0000000000000001 for 2.0 s (of 1)"), "{blocked}");
    }
}
