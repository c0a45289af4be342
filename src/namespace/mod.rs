//! POSIX semantics over documents, callable without FUSE.
//!
//! Owns what an operation means. Imports `lock`, `content`, `store`, `document` and `ambient`. Each operation has a file
//! in [`ops`], and all have one skeleton: resolve names to documents, plan, lock (renames only), check again, commit, and
//! retry from the start when a check of the commit failed.
//!
//! What is hard, and where it is solved:
//! 1. Two changes at once: every commit checks the versions that the plan rests on: [`Namespace::retry`].
//! 2. Renames of whole subtrees at once, with no loop and no loss: [`ops::rename`].
//! 3. A file that is unlinked while it is open: [`inodes`] knows who has it open, [`collect`] removes it after.
//! 4. No byte is shown that was not written, whatever crashes when: [`ops::write`].
//! 5. A listing shows what is there throughout exactly once: [`ops::readdir`].
//! 6. A session that was declared dead changes nothing more, whatever it was doing: [`gate`].
//!    On a store that many hosts use, sessions say that they live, and clean up after those that do not: [`membership`].
//! 7. Several mounts of one process change one tree, and each sees at once what the others changed: [`peers`].
//! 8. Locks that programs take on files exclude programs of other mounts and hosts: [`advisory`].
//! 9. Written bytes may be kept back and committed together, and nobody is to notice but by the time it takes:
//!    [`ops::later`], [`write_back`].
//! 10. Access control lists, whose masks and defaults are the server's part: [`acl`].
//! 11. Files that the kernel reads and writes past all this: [`ops::passthrough`], [`passthrough`].
//! 12. A rename of which a store that was away has not said whether it was made: [`in_doubt`].

pub mod acl;
mod advisory;
mod collect;
mod end;
mod error;
mod gate;
mod in_doubt;
mod inodes;
mod membership;
mod numbers;
pub mod ops;
mod passthrough;
mod peers;
mod resolve;
mod session;
mod subtree;
mod write_back;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::ambient;
use crate::content::Contents;
use crate::document::{Ino, Node, SessionId, Timestamp, Version, Volume};
use crate::lock::Locks;
use crate::store::{Commit, CommitError, Granting, Need, NodeRef, Store, StoreError};

pub use advisory::{AdvisoryCall, AdvisoryLocks, advisory_of_all};
pub use collect::Collector;
pub use error::{NamespaceError, Result};
pub use membership::{Looked, Outsider, Recovered, lock_servers};
pub use passthrough::Registration;
pub use peers::Watcher;
pub use session::{Fenced, SessionInfo};
pub use write_back::WriteBackCounters;

use advisory::Advisory;
use gate::Gate;
use in_doubt::InDoubt;
use inodes::InodeTable;
use membership::Membership;
use numbers::InodeNumbers;
use passthrough::Passthrough;
use peers::Peers;
use write_back::WriteBack;

/// On whose behalf an operation runs. Permissions are checked by the kernel; this is for ownership and for what the
/// server decides itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user.
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
    /// The process.
    pub pid: u32,
}

impl Caller {
    /// Root, for work of the daemon's own.
    pub const ROOT: Self = Self { uid: 0, gid: 0, pid: 0 };

    /// Whether set-user-id and set-group-id bits survive what this caller writes.
    fn keeps_privileges(self) -> bool {
        self.uid == 0
    }

    /// Whether the caller may do what only the owner may, by the kernel's own rule: as the owner, as root, or with
    /// CAP_FOWNER or CAP_CHOWN in a user namespace that has the owner and the group of the file. As far as /proc tells.
    fn may_act_for(self, node: &Node) -> bool {
        const CAPABILITIES: u64 = (1 << 0) | (1 << 3);
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", self.pid)).ok();
        let has_capability = || {
            let status = read("status")?;
            let digits = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
            Some(u64::from_str_radix(digits.trim(), 16).ok()? & CAPABILITIES != 0)
        };
        let has = |map: &str, id: u32| read(map).is_some_and(|map| maps_to(&map, id));
        self.uid == 0
            || self.uid == node.uid
            || (has_capability().unwrap_or(false) && has("uid_map", node.uid) && has("gid_map", node.gid))
    }

    /// Whether the caller is in `gid`, by its primary group or, as far as /proc tells, by another one.
    fn in_group(self, gid: u32) -> bool {
        let listed = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
            let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"))?;
            Some(groups.split_whitespace().any(|g| g.parse() == Ok(gid)))
        };
        self.gid == gid || listed().unwrap_or(false)
    }
}

/// Whether a uid_map or gid_map of /proc has an id of this namespace: see user_namespaces(7).
fn maps_to(map: &str, id: u32) -> bool {
    let has = |line: &str| {
        let mut numbers = line.split_whitespace().skip(1).map(str::parse::<u64>);
        let (Some(Ok(first)), Some(Ok(count))) = (numbers.next(), numbers.next()) else { return false };
        (first..first.saturating_add(count)).contains(&u64::from(id))
    };
    map.lines().any(has)
}

/// How a namespace behaves.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a rename waits for its locks.
    pub lock_wait: Duration,
    /// Whether reads keep the access time, as `relatime` of mount(8) does.
    pub relatime: bool,
    /// How long others wait for a sign of life of this session before they declare it dead, on a store that they share.
    pub lease: Duration,
    /// As many written bytes may wait at most until they are committed together; 0: each write is a commit.
    pub write_back_bytes: u64,
}

/// See [`Settings::lease`]; the design's default.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(10);

impl Default for Settings {
    fn default() -> Self {
        Self {
            lock_wait: crate::lock::DEFAULT_WAIT,
            relatime: true,
            lease: DEFAULT_LEASE,
            write_back_bytes: 0,
        }
    }
}

/// How long an operation goes on retrying after conflicts, and how often at least: one that has waited for locks has not
/// been in conflict for all that time.
const RETRY_TIME_MAX: Duration = Duration::from_secs(30);
const ATTEMPTS_MIN: u32 = 4;

/// The first pause between attempts; doubled up to [`PAUSE_MAX`], with jitter.
const PAUSE_FIRST: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// A mounted tree. The mounts of one process have a namespace each, and share what is behind an `Arc`.
pub struct Namespace {
    store: Arc<dyn Store>,
    contents: Contents,
    locks: Locks,
    /// On a store that other hosts use as well.
    membership: Option<Membership>,
    session: SessionId,
    in_doubt: InDoubt,
    gate: Arc<Gate>,
    volume: Volume,
    settings: Settings,
    numbers: InodeNumbers,
    inodes: Arc<InodeTable>,
    splits: Arc<ops::readdir::Splits>,
    rests: Arc<ops::readdir::Rests>,
    collector: Arc<Collector>,
    peers: Arc<Peers>,
    advisory: Arc<Advisory>,
    /// How often this mount has each file open.
    opens: Mutex<HashMap<Ino, u64>>,
    write_back: WriteBack,
    passthrough: Arc<Passthrough>,
}

/// An inode and its attributes.
pub type Found = (Ino, NodeRef);

impl Namespace {
    /// The locks, for what shows or steers them.
    pub fn locks(&self) -> &Locks {
        &self.locks
    }

    /// The store, for what reads documents.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// The bytes of large files, for what judges them.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// The session of this mount.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// The volume document as it was when the volume was mounted.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// How many inodes are open or at work on.
    pub fn open_inodes(&self) -> usize {
        self.inodes.open_count()
    }

    /// How many renames there are of which it is not known yet whether they were made.
    pub fn in_doubt(&self) -> usize {
        self.in_doubt.count()
    }

    /// Every change that an operation makes goes through here: when this returns, the other mounts of the process know.
    fn commit(&self, commit: &Commit) -> Result<Version> {
        self.with_room(|| self.commit_if_room(commit))
    }

    /// Lets `bytes` of content pass if there is room for them, beside what the store needs for its own work.
    fn admit_content(&self, bytes: u64) -> Result<()> {
        self.with_room(|| Ok(self.store.admit_content(bytes)?))
    }

    /// Makes `attempt` once more if there was no room: that of a file which is gone is free when the collector has removed
    /// its bytes, and may have become so just now.
    fn with_room<T>(&self, attempt: impl Fn() -> Result<T>) -> Result<T> {
        match attempt() {
            Err(NamespaceError::Store(StoreError::NoSpace)) => {
                self.collector.wait_for_room();
                self.store.forget_room();
                attempt()
            }
            made => made,
        }
    }

    /// As [`commit`](Self::commit), for whom it is not worth while to wait for room.
    fn commit_if_room(&self, commit: &Commit) -> Result<Version> {
        let make = || self.make_commit(commit, |commit| self.store.commit(commit));
        let version = match make() {
            // What makes room, or needs none to last, may have what was kept for it.
            Err(NamespaceError::Store(StoreError::NoSpace))
                if commit.need() != Need::Lasting && self.give_back_room() =>
            {
                make()?
            }
            made => made?,
        };
        self.peers.tell(self.session, &commit.writes);
        Ok(version)
    }

    /// The same, if it is granted: see [`Store::commit_once`].
    fn commit_once(&self, commit: &Commit, granting: Granting<'_>) -> Result<Option<Version>> {
        let version = self.make_commit(commit, |commit| self.store.commit_once(commit, granting))?;
        if version.is_some() {
            self.peers.tell(self.session, &commit.writes);
        }
        Ok(version)
    }

    fn make_commit<T>(
        &self,
        commit: &Commit,
        make: impl FnOnce(&Commit) -> std::result::Result<T, CommitError>,
    ) -> Result<T> {
        let _pass = self.gate.enter()?;
        if self.passthrough.has_writers() {
            self.store.forget_room();
        }
        Ok(match &self.membership {
            None => make(commit)?,
            Some(membership) => membership.commit(commit, make)?,
        })
    }

    fn now(&self) -> Timestamp {
        ambient::wall_clock().into()
    }

    /// Runs `attempt` until it does not end in a conflict.
    fn retry<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let mut begun = None;
        let mut pause = PAUSE_FIRST;
        let mut attempts = 0;
        loop {
            let key = match attempt() {
                Err(NamespaceError::Conflict(key)) => key,
                other => return other,
            };
            attempts += 1;
            let begun = *begun.get_or_insert_with(ambient::monotonic);
            if attempts >= ATTEMPTS_MIN && begun.elapsed() > RETRY_TIME_MAX {
                return Err(NamespaceError::Contended { attempts, key });
            }
            let jitter = ambient::random_u64() % (pause.as_nanos() as u64).max(1);
            std::thread::sleep(pause / 2 + Duration::from_nanos(jitter));
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

/// The bits that a change of content or owner takes from `node`: set-user-id always, set-group-id where it gives
/// privileges, that is where the group may execute.
fn privilege_bits(node: &Node) -> u32 {
    const SUID: u32 = 0o4000;
    const SGID: u32 = 0o2000;
    const GROUP_EXECUTE: u32 = 0o010;
    match node.kind() {
        crate::document::FileKind::Directory => 0,
        _ if node.mode & GROUP_EXECUTE != 0 => node.mode & (SUID | SGID),
        _ => node.mode & SUID,
    }
}

#[cfg(test)]
mod tests;
