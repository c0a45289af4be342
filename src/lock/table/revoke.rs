//! Breaking: operations that lose their locks before they are done with them. Imports the table and its fences.
//!
//! What is hard: in this order, or two operations could change what each believes to have locked. First the operation's
//! fence, which waits for a change under way and stops every later one; then its locks, which let in who waits.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::LockTable;
use super::fence::BreakOutcome;
use crate::lock::decide::{Event, Op};
use crate::lock::document::OperationDocument;
use crate::lock::who::{OpId, SessionId};

/// An operation whose locks were broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    /// What it was, and what it held and waited for.
    #[serde(flatten)]
    pub operation: OperationDocument,
    /// What became of it.
    pub outcome: BreakOutcome,
}

impl LockTable {
    /// Breaks one operation: fences it, then releases its locks or sends it away from where it waits. `by` says who did
    /// it and goes into the operation's error. `None` if it is not there any more.
    pub fn revoke(&self, op: OpId, by: &Arc<str>) -> Option<Broken> {
        let (fence, before) = {
            let inner = self.shared.inner.lock();
            (Arc::clone(inner.fences.get(&op)?), inner.state.operation(op, self.shared.moment())?)
        };
        // Not under the table's mutex: a change under way is waited for, and nobody else shall wait for that.
        let outcome = fence.revoke(by)?;
        let (now, moment) = (self.shared.now(), self.shared.moment());
        let mut inner = self.shared.inner.lock();
        let waited = inner.state.op(op).and_then(Op::waits_for).is_some();
        let operation = match inner.state.operation(op, moment) {
            Some(operation) => operation,
            None if outcome == BreakOutcome::AlreadyDone => return None,
            // It has met its fence and gone since: it was broken all the same.
            None => before,
        };
        inner.counters.broken += 1;
        inner.apply(Event::Release { op }, now, None);
        Some(Broken { operation, outcome: if waited { BreakOutcome::SentAway } else { outcome } })
    }

    /// Breaks every operation of a session: fences all of them, then forgets the session as
    /// [`LockTable::drop_session`] does, so that none is let in where another one leaves.
    pub fn revoke_session(&self, session: SessionId, by: &Arc<str>) -> Vec<Broken> {
        let of_session = self.operations().into_iter().filter(|operation| operation.session == session);
        let fenced = of_session.filter_map(|operation| {
            let fence = Arc::clone(self.shared.inner.lock().fences.get(&operation.id())?);
            let outcome = fence.revoke(by)?;
            let waited = operation.waits_for.is_some();
            Some(Broken { operation, outcome: if waited { BreakOutcome::SentAway } else { outcome } })
        });
        let broken: Vec<Broken> = fenced.collect();
        self.shared.inner.lock().counters.broken += broken.len() as u64;
        self.drop_session(session);
        broken
    }

    /// The operations that hold or wait at this moment, in the order of their ids.
    pub fn operations(&self) -> Vec<OperationDocument> {
        self.shared.inner.lock().state.operations(self.shared.moment())
    }
}
