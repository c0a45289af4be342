//! The locks as people see them: what a majority of the servers says. Pure.
//!
//! A claim that fewer servers have is one that is being made, was refused, or comes from a request that arrived late: it
//! holds nothing, and is not shown as if it did.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::claim::{Claim, ClaimState};
use crate::document::LockMode;
use crate::lock::{HolderEntry, LockDocument, LockError, LockId, OperationEntry, Timestamp, WaiterEntry};

/// What `list.lua` returns.
#[derive(Deserialize)]
pub(super) struct Listed {
    locks: Vec<Vec<String>>,
}

/// The claims to one lock, each once, and how many servers have it.
type Claims = BTreeMap<(String, bool), (Claim, usize)>;

/// The lock documents that a majority makes of the servers' lists, in the global order. What cannot be read is an error of
/// its own.
pub(super) fn documents(lists: Vec<Listed>, majority: usize) -> Vec<Result<LockDocument, LockError>> {
    let mut locks: BTreeMap<LockId, Claims> = BTreeMap::new();
    let mut damaged = Vec::new();
    for lock in lists.into_iter().flat_map(|listed| listed.locks) {
        let Some((id, texts)) = lock.split_first() else { continue };
        let id = match LockId::parse(id) {
            Ok(id) => id,
            Err(error) => {
                damaged.push(Err(error));
                continue;
            }
        };
        let claims = locks.entry(id.clone()).or_default();
        for text in texts {
            match serde_json::from_str::<Claim>(text) {
                Ok(claim) => {
                    let key = (claim.value.clone(), claim.state == ClaimState::Held);
                    claims.entry(key).or_insert((claim, 0)).1 += 1;
                }
                Err(error) => {
                    damaged.push(Err(LockError::Damaged { id: id.encoded(), reason: error.to_string() }));
                }
            }
        }
    }
    let documents = locks.into_iter().filter_map(|(id, claims)| Some(Ok(document(id, claims, majority)?)));
    documents.chain(damaged).collect()
}

/// None if nobody holds it.
fn document(id: LockId, claims: Claims, majority: usize) -> Option<LockDocument> {
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for (claim, servers) in claims.into_values() {
        match claim.state {
            ClaimState::Held if servers >= majority => held.push(claim),
            ClaimState::Held => {}
            // A mark is left only where the way was blocked, so one server is enough.
            ClaimState::Waits => waiting.push(claim),
        }
    }
    held.sort_by_key(Claim::op);
    waiting.retain(|mark| held.iter().all(|claim| claim.value != mark.value));
    waiting.sort_by(|a, b| (a.asked_ms, &a.value).cmp(&(b.asked_ms, &b.value)));
    let holders = held.chunk_by(|one, next| one.session == next.session).filter_map(|of_session| {
        Some(HolderEntry {
            session: of_session.first()?.session,
            count: of_session.len() as u64,
            since: of_session.iter().map(since).min()?,
            operations: of_session
                .iter()
                .map(|claim| OperationEntry {
                    op: claim.operation,
                    since: since(claim),
                    operation: claim.purpose.clone(),
                })
                .collect(),
        })
    });
    let waiters = waiting.iter().map(|mark| WaiterEntry {
        session: mark.session,
        op: mark.operation,
        lock_type: mark.mode,
        since: since(mark),
        operation: mark.purpose.clone(),
    });
    Some(LockDocument {
        path: id.to_string(),
        lock_type: held.iter().map(|claim| claim.mode).max()?,
        lock_count: held.len() as u64,
        holders: holders.collect(),
        waiters: waiters.collect(),
        id,
    })
}

fn since(claim: &Claim) -> Timestamp {
    Timestamp { unix_ms: claim.asked_ms }
}

/// Who is in the way of somebody, as one server said.
pub(super) fn holders(texts: &[String]) -> (LockMode, Vec<Claim>, usize) {
    let claims: Vec<Claim> = texts.iter().filter_map(|text| serde_json::from_str(text).ok()).collect();
    let waiting = claims.iter().filter(|claim| claim.state == ClaimState::Waits).count();
    let held: Vec<Claim> = claims.iter().filter(|claim| claim.state == ClaimState::Held).cloned().collect();
    // Where nobody holds it, those who wait before are in the way.
    let shown = if held.is_empty() { claims } else { held };
    let mode = shown.iter().map(|claim| claim.mode).max().unwrap_or(LockMode::Shared);
    (mode, shown, waiting)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::SessionId;

    fn text(state: ClaimState, session: u64) -> String {
        let claim = Claim {
            state,
            mode: LockMode::Shared,
            session: SessionId(session),
            operation: 1,
            value: format!("{session:032x}"),
            asked_ms: session,
            purpose: "test".to_owned(),
        };
        serde_json::to_string(&claim).unwrap()
    }

    fn list(claims: &[String]) -> Listed {
        let lock = std::iter::once("%2Fa".to_owned()).chain(claims.iter().cloned()).collect();
        Listed { locks: if claims.is_empty() { Vec::new() } else { vec![lock] } }
    }

    #[test]
    fn what_a_majority_has_is_held() {
        use ClaimState::{Held, Waits};
        let lists = vec![
            list(&[text(Held, 1), text(Held, 2), text(Waits, 3)]),
            list(&[text(Held, 1), text(Waits, 1)]),
            list(&[text(Waits, 3), text(Waits, 4)]),
        ];
        let documents = documents(lists, 2);
        let [Ok(lock)] = documents.as_slice() else { panic!("{documents:?}") };
        assert_eq!((lock.lock_count, lock.holders.len()), (1, 1));
        assert_eq!(lock.holders[0].session, SessionId(1));
        assert_eq!(lock.waiters.iter().map(|w| w.session.0).collect::<Vec<_>>(), [3, 4]);
        let few = super::documents(vec![list(&[text(Held, 1)]), list(&[])], 2);
        assert!(few.is_empty(), "{few:?}");
    }

    #[test]
    fn what_is_no_claim_is_named() {
        let lists =
            vec![Listed { locks: vec![vec!["%2Fa".to_owned(), "x".to_owned()], vec!["a".to_owned()]] }];
        let documents = documents(lists, 1);
        assert_eq!(documents.iter().filter(|document| document.is_err()).count(), 2, "{documents:?}");
    }
}
