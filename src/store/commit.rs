//! The commit primitive: checks and writes that take effect at one instant.
//!
//! It is the version number of optimistic concurrency control, over several documents: an operation reads documents,
//! plans, and commits with checks of what it read. If a check fails nothing is changed, and the operation reads again.

use std::fmt;
use std::time::Duration;

use super::StoreError;
use crate::document::{
    Document, Ino, Key, Kind, NodeDelta, SessionId, SessionState, Stored, Version, Volume,
};

/// What a busy server may need for a heartbeat.
const HEARTBEAT_MIN: Duration = Duration::from_millis(500);
pub(crate) const HEARTBEAT_MAX: Duration = Duration::from_millis(2500);

/// What must still hold at the instant of the commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// The document has this version.
    Version(Key, Version),
    /// There is no such document.
    Absent(Key),
    /// There is such a document.
    Exists(Key),
}

impl Check {
    /// The key that is checked.
    pub fn key(&self) -> &Key {
        match self {
            Self::Version(key, _) | Self::Absent(key) | Self::Exists(key) => key,
        }
    }

    /// Whether it holds for what stands under the key now.
    pub fn holds(&self, current: Option<&Stored>) -> bool {
        match (self, current) {
            (Self::Version(_, version), Some(stored)) => stored.version == *version,
            (Self::Version(..), None) | (Self::Absent(_), Some(_)) | (Self::Exists(_), None) => false,
            (Self::Absent(_), None) | (Self::Exists(_), Some(_)) => true,
        }
    }
}

/// A change of one document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// The document stands under the key afterwards.
    Put(Key, Document),
    /// Nothing stands under the key afterwards.
    Delete(Key),
    /// The node under the key is changed by what commutes. The node must be there: an absent one is a conflict.
    Merge(Key, NodeDelta),
}

impl Write {
    /// The key that is written.
    pub fn key(&self) -> &Key {
        match self {
            Self::Put(key, _) | Self::Delete(key) | Self::Merge(key, _) => key,
        }
    }

    /// What stands under the key afterwards.
    ///
    /// # Errors
    /// [`CommitError::Conflict`] for a merge into nothing, [`StoreError::Damaged`] for one that does not fit.
    pub fn apply(&self, current: Option<&Stored>) -> Result<Option<Document>, CommitError> {
        match self {
            Self::Put(_, document) => Ok(Some(document.clone())),
            Self::Delete(_) => Ok(None),
            Self::Merge(key, delta) => match current.map(|stored| &*stored.document) {
                Some(Document::Node(node)) => {
                    let mut node = node.clone();
                    delta.apply(&mut node).map_err(|cause| StoreError::Damaged {
                        key: key.to_string(),
                        cause: cause.to_string(),
                    })?;
                    Ok(Some(Document::Node(node)))
                }
                _ => Err(CommitError::Conflict(key.clone())),
            },
        }
    }
}

/// For how long a commit needs room in the store. So near to a full disk may it be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// For as long as what it makes is there; or it may as well be left, and so is to take no room from others.
    Lasting,
    /// Until the store is tidied: it changes what is there.
    Passing,
    /// The same, and more is given back.
    Less,
}

/// What a commit that has returned survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// All that the engine makes its commits survive.
    #[default]
    Full,
    /// A crash of the servers soon after may undo it, also once others have seen it; but no version of it is then handed
    /// out once more. Nor need it be found out what became of it if the answer was lost ([`StoreError::Unknown`]). Engines
    /// that gain nothing by it give it full durability.
    Delayed,
}

/// Checks and writes. Each key is written at most once.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Commit {
    /// What must hold.
    pub checks: Vec<Check>,
    /// What changes.
    pub writes: Vec<Write>,
    /// Whether locks keep what is checked and not written from changing, from before it is compared until this commit has
    /// returned; a session that dies loses these locks only after its intents are settled. Engines that change one
    /// document at a time then need not mark it. The others make no difference.
    pub covered: bool,
    /// Whether nobody waits for any of the locks whose documents it writes, before it or after it. Then those who listen
    /// need not be told of them.
    pub unawaited: bool,
    /// Delayed for nothing but locks, whose taker finds out by himself whether he has them, and rests on his own checks.
    pub durability: Durability,
    /// What it needs of the store's room, as far as that cannot be told from what it writes.
    pub room: Option<Need>,
    /// The session that makes the change, on engines that many hosts share: it is refused unless the session's document
    /// says, at the instant of the change, that it is live.
    pub session: Option<SessionId>,
}

impl Commit {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// What makes an empty store a volume: its document, and a root directory of this owner.
    pub fn format(volume: Volume, uid: u32, gid: u32) -> Self {
        let root = volume.empty_root(uid, gid);
        Self::new()
            .absent(Key::Volume)
            .put(Key::Volume, Document::Volume(volume))
            .put(Key::Node(Ino::ROOT), Document::Node(root))
    }

    /// Whether the store needs lasting room for it: a new name, content or attribute. What takes a name away never does,
    /// nor what only changes documents that are there; it passes when the disk is full, so that room can be made.
    pub fn grows(&self) -> bool {
        if let Some(need) = self.room {
            return need == Need::Lasting;
        }
        let removes = |write: &Write| matches!(write, Write::Delete(Key::Entry(..)));
        let adds = |write: &Write| {
            matches!(write, Write::Put(Key::Entry(..) | Key::Content(_) | Key::Xattr(..) | Key::Chunk(..), _))
        };
        self.writes.iter().any(adds) && !self.writes.iter().any(removes)
    }

    /// What it needs of the store's room.
    pub fn need(&self) -> Need {
        if let Some(need) = self.room {
            return need;
        }
        let is_name = |write: &Write| matches!(write.key(), Key::Entry(..));
        let removes = |write: &Write| matches!(write, Write::Delete(_));
        // Who moves a name removes one, too.
        let puts_name = self.writes.iter().any(|write| is_name(write) && !removes(write));
        if self.grows() || self.keeps_access_times() {
            Need::Lasting
        } else if self.writes.iter().any(|write| removes(write) && !(puts_name && is_name(write))) {
            Need::Less
        } else {
            Need::Passing
        }
    }

    /// How long an engine that is asked over a network waits for the answer, if not for as long as it has patience. A
    /// session is taken for dead a lease after its last heartbeat, so one that a server keeps to itself is made on another
    /// connection, perhaps to another server, a quarter of the lease later.
    pub fn answer_within(&self) -> Option<Duration> {
        match &self.writes[..] {
            [Write::Put(_, Document::Session(session))] if session.state == SessionState::Live => {
                Some((Duration::from_millis(session.lease_ms) / 4).clamp(HEARTBEAT_MIN, HEARTBEAT_MAX))
            }
            _ => None,
        }
    }

    /// Whether it says when something was read, and no more.
    fn keeps_access_times(&self) -> bool {
        let is_time = |write: &Write| match write {
            Write::Merge(_, delta) => *delta == NodeDelta { atime: delta.atime, ..NodeDelta::default() },
            _ => false,
        };
        !self.writes.is_empty() && self.writes.iter().all(is_time)
    }

    /// About how many bytes the store takes for it, at most, until it is tidied.
    pub fn cost_bytes(&self) -> u64 {
        const DOCUMENT_BYTES: u64 = 1024;
        let variable = |write: &Write| match write {
            Write::Put(_, Document::Content(content)) => content.bytes.len() as u64,
            Write::Put(_, Document::Xattr(xattr)) => xattr.value.len() as u64,
            Write::Put(_, Document::Chunk(chunk)) => chunk.bytes.len() as u64,
            _ => 0,
        };
        self.writes.iter().map(|write| DOCUMENT_BYTES + variable(write)).sum()
    }

    /// Adds a check.
    #[must_use]
    pub fn check(mut self, check: Check) -> Self {
        self.checks.push(check);
        self
    }

    /// The same with all that `other` checks and writes. The two write no key in common.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        // Not if neither says so: locks that are added later would not be told of.
        let says_so = self.unawaited || other.unawaited;
        self.unawaited = says_so && !self.tells_of_locks() && !other.tells_of_locks();
        if self.durability != other.durability {
            self.durability = Durability::Full;
        }
        self.checks.extend(other.checks);
        self.writes.extend(other.writes);
        self
    }

    /// Says that locks cover what is checked and not written.
    #[must_use]
    pub fn covered(mut self) -> Self {
        self.covered = true;
        self
    }

    /// Says that nobody waits for the locks whose documents it writes.
    #[must_use]
    pub fn unawaited(mut self) -> Self {
        self.unawaited = true;
        self
    }

    /// The keys that those who listen are to be told of.
    pub fn told(&self) -> impl Iterator<Item = &Key> {
        self.writes.iter().map(Write::key).filter(|key| !self.unawaited || key.kind() != Kind::Lock)
    }

    fn tells_of_locks(&self) -> bool {
        self.told().any(|key| key.kind() == Kind::Lock)
    }

    /// Says what it needs of the store's room.
    #[must_use]
    pub fn needing(mut self, room: Need) -> Self {
        self.room = Some(room);
        self
    }

    /// Says which session makes the change.
    #[must_use]
    pub fn by(mut self, session: SessionId) -> Self {
        self.session = Some(session);
        self
    }

    /// Whether the session that makes the change may; `stored` is what stands under its key.
    pub fn may_be_made(&self, stored: Option<&Stored>) -> bool {
        self.session.is_none()
            || matches!(stored.map(|s| &*s.document), Some(Document::Session(s)) if s.state == SessionState::Live)
    }

    /// Adds a check that `key` has `version`.
    #[must_use]
    pub fn at(self, key: Key, version: Version) -> Self {
        self.check(Check::Version(key, version))
    }

    /// Adds a check that `key` is absent.
    #[must_use]
    pub fn absent(self, key: Key) -> Self {
        self.check(Check::Absent(key))
    }

    /// Adds a put.
    #[must_use]
    pub fn put(mut self, key: Key, document: Document) -> Self {
        debug_assert_eq!(key.kind(), document.kind());
        self.writes.push(Write::Put(key, document));
        self
    }

    /// Adds a delete.
    #[must_use]
    pub fn delete(mut self, key: Key) -> Self {
        self.writes.push(Write::Delete(key));
        self
    }

    /// Adds a merge into the node under `key`.
    #[must_use]
    pub fn merge(mut self, key: Key, delta: NodeDelta) -> Self {
        debug_assert!(matches!(key, Key::Node(_)));
        self.writes.push(Write::Merge(key, delta));
        self
    }
}

impl fmt::Debug for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.checks).entries(&self.writes).finish()
    }
}

/// Why a commit did not take effect.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// A check failed, or a merge met nothing. Read again and retry.
    #[error("{0} has changed meanwhile")]
    Conflict(Key),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_commits_in_one_survive_what_the_safer_one_does() {
        let [full, delayed] =
            [Durability::Full, Durability::Delayed].map(|durability| Commit { durability, ..Commit::new() });
        for (one, other, both) in [
            (&full, &full, &full),
            (&full, &delayed, &full),
            (&delayed, &full, &full),
            (&delayed, &delayed, &delayed),
        ] {
            assert_eq!(one.clone().and(other.clone()).durability, both.durability);
        }
    }
}
