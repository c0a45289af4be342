//! Advisory locks. Imports `document` and `store`.
//!
//! A lock of a session that is gone is a violation and no garbage: it keeps living processes out. Sessions end only after
//! their locks are gone, so there never is one.
//!
//! What is hard: on a store that many hosts share the documents are not of one instant. So before a lock is called left
//! behind, first its session is looked at again and then the lock: a session that is gone by then has no lock any more.

use super::{Judge, Mode, Rule};
use crate::document::{AdvisoryLock, AdvisoryRecord, Document, Key, LockMode, SessionId};
use crate::store::StoreError;

impl Judge<'_> {
    /// Takes in the advisory locks of one inode, after the sessions.
    pub(super) fn advisory(&mut self, key: &Key, document: Option<&Document>) {
        let Some(Document::Advisory(AdvisoryRecord { locks })) = document else { return };
        self.report.counts.advisory_locks += locks.len() as u64;
        if locks.is_empty() {
            self.report.accuse(Rule::AdvisoryLocks, key, format_args!("it has no locks, and should not be"));
        }
        if let Some(lock) = locks.iter().find(|lock| lock.start > lock.end) {
            let detail = format_args!("a lock from {} to {} has no byte", lock.start, lock.end);
            self.report.accuse(Rule::AdvisoryLocks, key, detail);
        }
        if let Some((one, other)) = first_clash(locks) {
            let detail = format_args!(
                "locks of sessions {} and {} are both held at byte {}",
                one.session,
                other.session,
                one.start.max(other.start)
            );
            self.report.accuse(Rule::AdvisoryLocks, key, detail);
        }
        let left = locks.iter().map(|lock| lock.session).find(|session| self.session_is_gone(*session));
        if let Some(session) = left {
            self.leftovers.advisory.push((key.clone(), session));
        }
    }

    /// Names the locks of sessions that are gone, once all has gone by.
    pub(super) fn advisory_left(&mut self) -> Result<(), StoreError> {
        for (key, session) in std::mem::take(&mut self.leftovers.advisory) {
            let known = self.sessions.contains_key(&session);
            if self.inputs.mode != Mode::Offline {
                // A session that is known was recovered, and stays so; any other may have begun since.
                if !known && self.is_there_now(&[Key::Session(session)])? {
                    continue;
                }
                if !self.has_lock_now(&key, session)? {
                    continue;
                }
            }
            let state = if known { "has been recovered" } else { "is gone" };
            self.report.accuse(
                Rule::AdvisorySession,
                &key,
                format_args!("session {session} holds a lock, and {state}"),
            );
        }
        Ok(())
    }

    fn has_lock_now(&self, key: &Key, session: SessionId) -> Result<bool, StoreError> {
        let Some(live) = self.inputs.live else { return Ok(false) };
        Ok(match live.get(key)?.map(|stored| stored.document) {
            Some(document) => match &*document {
                Document::Advisory(record) => record.locks.iter().any(|lock| lock.session == session),
                _ => false,
            },
            None => false,
        })
    }
}

/// Two locks that cannot both be: they exclude each other, or are one holder's.
fn first_clash(locks: &[AdvisoryLock]) -> Option<(&AdvisoryLock, &AdvisoryLock)> {
    let clash = |one: &AdvisoryLock, other: &AdvisoryLock| {
        one.family == other.family
            && one.start <= other.end
            && other.start <= one.end
            && (one.holder() == other.holder() || [one.mode, other.mode].contains(&LockMode::Exclusive))
    };
    let mut pairs =
        locks.iter().enumerate().flat_map(|(n, one)| locks[n + 1..].iter().map(move |other| (one, other)));
    pairs.find(|(one, other)| clash(one, other))
}
