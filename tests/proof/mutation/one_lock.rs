//! The rules of one lock, as a lock document has them, against a plain re-statement of docs/locking.md. Owns the latter.

use std::sync::Arc;

use lockwood::document::{LockClaim, LockMode, LockRecord, SessionId};
use lockwood::lock::shared::claims::is_own;
use lockwood::lock::shared::record::{self, Removed};
use lockwood::lock::{LockId, OpId};

use super::{Judged, objection};
use crate::rng::Rng;

const SCHEDULES: u64 = 2_000;
const STEPS: u64 = 24;
const OPERATIONS: u64 = 5;

type Claim = (u64, LockMode);

/// Who holds and who waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Plain {
    holders: Vec<Claim>,
    waiters: Vec<Claim>,
}

impl Plain {
    fn is_free_for(&self, mode: LockMode) -> bool {
        let shared = |mode| mode == LockMode::Shared;
        self.holders.is_empty() || shared(mode) && self.holders.iter().all(|(_, held)| shared(*held))
    }

    fn ask(&mut self, op: u64, mode: LockMode) {
        if self.holders.iter().chain(&self.waiters).any(|(known, _)| *known == op) {
            return; // To ask again changes nothing.
        }
        if self.waiters.is_empty() && self.is_free_for(mode) {
            self.holders.push((op, mode));
        } else {
            self.waiters.push((op, mode));
        }
    }

    fn remove(&mut self, op: u64) {
        self.holders.retain(|(known, _)| *known != op);
        self.waiters.retain(|(known, _)| *known != op);
        while let Some((first, mode)) = self.waiters.first().copied()
            && self.is_free_for(mode)
        {
            self.waiters.remove(0);
            self.holders.push((first, mode));
        }
    }
}

fn plain(record: Option<&LockRecord>) -> Plain {
    let claims =
        |of: &[LockClaim]| of.iter().map(|claim| (claim.operation, claim.mode)).collect::<Vec<Claim>>();
    record.map_or_else(Plain::default, |record| Plain {
        holders: claims(&record.holders),
        waiters: claims(&record.waiters),
    })
}

/// Judges schedules of a few operations that ask, ask again, and go.
pub(super) fn judge() -> Judged {
    let path = LockId::from_path(b"/a").expect("a path");
    let session = SessionId(1);
    for schedule in 0..SCHEDULES {
        let mut rng = Rng::new(schedule + 1);
        let mut expected = Plain::default();
        let mut record: Option<LockRecord> = None;
        for _ in 0..STEPS {
            let op = rng.next() % OPERATIONS;
            let before = expected.clone();
            let what = if rng.below(3) == 0 {
                expected.remove(op);
                let own = |claim: OpId| is_own(claim, OpId { session, number: op });
                match record.as_ref().map(|record| record::remove(record, 0, own)) {
                    None | Some(Removed::Nothing) => {}
                    Some(Removed::All) => record = None,
                    Some(Removed::Some(next)) => record = Some(next),
                }
                format!("{op} goes")
            } else {
                let mode = if rng.below(2) == 0 { LockMode::Shared } else { LockMode::Exclusive };
                expected.ask(op, mode);
                let claim = LockClaim { session, operation: op, mode, purpose: Arc::from(""), since_ns: 0 };
                if let Some(next) = record::ask(record.as_ref(), &path, &claim).write {
                    record = Some(next);
                }
                format!("{op} asks, {mode:?}")
            };
            let got = plain(record.as_ref());
            expected.holders.sort_unstable_by_key(|(op, _)| *op);
            if got != expected {
                return objection(schedule, format!("{what}: {before:?} became {got:?}, not {expected:?}"));
            }
        }
    }
    Ok(SCHEDULES)
}
