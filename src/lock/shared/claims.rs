//! Who may take a claim out of a lock document, and doing so.
//!
//! Imports the documents of the layer, `rules` and `store::cells`. Three may: the operation whose claim it is; a recoverer,
//! once the session's intents are settled; and anybody, if the claim is a *ghost*. Every change of a lock document is a
//! compare-and-set on a version, so a late or repeated one does nothing, with one exception: a late request to *make* a
//! document finds none, for it was deleted when the last claim went, and makes it again, with a claim of an operation that
//! is over. (TiDB met this with its pessimistic locks, pingcap/tidb issue 43540.) Such a claim is a ghost: it hurts nobody
//! but those whom it blocks, and they remove it.

use std::time::UNIX_EPOCH;

use super::record::{Removed, is_awaited, remove};
use crate::ambient::Clock;
use crate::document::{LockRecord, Session, SessionId, SessionState};
use crate::lock::OpId;
use crate::lock::change::{Decision, Store};
use crate::rules::{Rule, holds};
use crate::store::StoreError;
use crate::store::cells::{Cell, CellKey, Change, Listed, StoredCell};

/// Whether a claim, of a session that is known to be like this, is for certain of an operation that is over. `session` was
/// read *after* the claim: it was live when the claim was made, so if it is not there or has not lived yet, that was another
/// life, made by a late request.
pub fn is_ghost(claim: OpId, session: Option<&Session>) -> bool {
    let over = session.is_none_or(|session| {
        matches!(session.state, SessionState::Joining | SessionState::Recovered)
            || claim.number < session.operations_below
    });
    (over || !holds(Rule::LiveClaimsAreNoGhosts)) && holds(Rule::GhostsRemoved)
}

/// Whether the operation `by` may remove this claim as its own.
pub fn is_own(claim: OpId, by: OpId) -> bool {
    claim == by || !holds(Rule::ClaimRemovedByItsOwnerOnly)
}

/// The lock in a cell; none if there is no cell.
///
/// # Errors
/// [`StoreError::Damaged`] if it is something else.
pub(super) fn in_cell<'a>(
    key: &CellKey,
    cell: Option<&'a StoredCell>,
) -> Result<Option<&'a LockRecord>, StoreError> {
    match cell.map(|cell| &*cell.cell) {
        None => Ok(None),
        Some(Cell::Lock(record)) => Ok(Some(record)),
        Some(_) => {
            let key = match key {
                CellKey::Lock(id) => format!("lock:{id}"),
                other => format!("{other:?}"),
            };
            Err(StoreError::Damaged { key, cause: "it is no lock".to_owned() })
        }
    }
}

/// Takes the claims that `goes` names out of one lock document, and lets in who is next. `known` is the cell as far as the
/// caller knows.
///
/// # Errors
/// The store's.
pub(super) fn take_out(
    store: &Store,
    key: &CellKey,
    known: Option<StoredCell>,
    goes: impl Fn(OpId) -> bool,
) -> Result<Option<StoredCell>, StoreError> {
    store.change(key, known.map(Some), |found| {
        let Some(record) = in_cell(key, found)? else { return Ok(Decision::Leave) };
        Ok(match remove(record, now_ns(&*store.clock), &goes) {
            Removed::Nothing => Decision::Leave,
            Removed::All => Decision::Write(None),
            Removed::Some(record) => Decision::Write(Some(Cell::Lock(record))),
        })
    })
}

/// Takes all claims of a session out of every lock document. The caller has settled the session's intents.
///
/// A claim that a request of the dead session adds after its lock was looked at is a ghost as soon as the session is
/// recovered.
///
/// # Errors
/// The store's.
pub(in crate::lock) fn drop_session(store: &Store, dead: SessionId) -> Result<(), StoreError> {
    let of_dead = |op: OpId| op.session == dead;
    let (mut changes, mut read) = (Vec::new(), Vec::new());
    for (key, found) in store.insist(|| store.cells.list(Listed::Locks))? {
        // One that cannot be read has no claim that anybody could honour; `lockwood check` names it.
        let Ok(found) = found else { continue };
        let Ok(Some(record)) = in_cell(&key, Some(&found)) else { continue };
        let cell = match remove(record, now_ns(&*store.clock), of_dead) {
            Removed::Nothing => continue,
            Removed::All => None,
            Removed::Some(record) => Some(Cell::Lock(record)),
        };
        changes.push(Change { key, expected: Some(found.version), cell, awaited: is_awaited(Some(record)) });
        read.push(found);
    }
    // All at once, since somebody waits for them; then by itself what others have changed, or whose answer was lost.
    let answers = store.cells.cas_each(&changes);
    for ((change, found), answer) in changes.iter().zip(read).zip(answers) {
        if answer.is_err() {
            take_out(store, &change.key, Some(found), of_dead)?;
        }
    }
    Ok(())
}

/// The wall clock as claims have it: for people.
pub(super) fn now_ns(clock: &dyn Clock) -> u64 {
    let since = clock.wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::session::state::tests::session;

    #[test]
    fn a_ghost_is_what_is_over_for_certain() {
        let claim = |number| OpId { session: SessionId(1), number };
        let of = |state| session(1, state);
        let table = [
            (claim(9), None, true),
            (claim(9), Some(of(SessionState::Joining)), true),
            (claim(9), Some(of(SessionState::Live)), false),
            (claim(5), Some(of(SessionState::Live)), false),
            (claim(4), Some(of(SessionState::Live)), true),
            (claim(9), Some(of(SessionState::Fenced)), false),
            (claim(4), Some(of(SessionState::Fenced)), true),
            (claim(9), Some(of(SessionState::Recovered)), true),
        ];
        for (claim, session, expected) in table {
            assert_eq!(is_ghost(claim, session.as_ref()), expected, "{claim} {session:?}");
        }
    }
}
