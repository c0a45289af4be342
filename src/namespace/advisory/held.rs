//! Where the advisory locks of an inode are, for the mounts of this process, and changing them: documents of a store that
//! other hosts share, or a table.
//!
//! What is hard:
//! 1. A lock that nobody disputes is to cost one request. So what this process left there last is remembered, or else that
//!    there is nothing is guessed; the commit checks it. Only what would be *refused* on a guess is looked at first.
//! 2. A commit whose answer was lost is decided again on what is there; every decision knows its own work. Should it come
//!    late after all, and find what it checked, it makes a lock that nobody wants: the close of the file looks for it, and
//!    what comes later still goes with the session. The engines rule that out as far as they can (what they call unknown
//!    they could not find out about, and they say so seldom).
//! 3. Only a live session may be granted anything: the commit names it, and is refused if it was fenced.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ambient;
use crate::document::{
    AdvisoryHolder, AdvisoryLock, AdvisoryRecord, Document, Ino, Key, Kind, SessionId, Version,
};
use crate::lock::advisory::without;
use crate::namespace::{Namespace, NamespaceError, PAUSE_FIRST, PAUSE_MAX, RETRY_TIME_MAX, Result};
use crate::store::{Commit, CommitError, Range, Store, StoreError, for_each};

/// The locks of an inode under the version of their document; none if there is no document.
type Found = Option<(Version, Vec<AdvisoryLock>)>;

/// The advisory locks of one file, as people see them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdvisoryLocks {
    /// Which file.
    pub inode: Ino,
    /// All of its locks, never none.
    pub locks: Vec<AdvisoryLock>,
}

/// What the mounts of this process know of the advisory locks of an open inode.
#[derive(Debug, Default)]
pub(in crate::namespace) struct Held {
    /// Who may have locks, and through which open file. Noted before a lock is asked for, taken out after it is given up.
    taken: Vec<(AdvisoryHolder, u64)>,
    /// The locks as this process left them.
    left: Option<Found>,
    /// A commit may come late that nobody waits for any more.
    doubtful: bool,
}

impl Held {
    /// Returns whether it is news.
    pub(super) fn note(&mut self, holder: AdvisoryHolder, handle: u64) -> bool {
        let news = !self.taken.contains(&(holder, handle));
        if news {
            self.taken.push((holder, handle));
        }
        news
    }

    /// The holder was refused what was news. In doubt it stays noted, so that its close looks for what came late.
    pub(super) fn refused(&mut self, holder: AdvisoryHolder, handle: u64) {
        if !self.doubtful {
            self.forget(|taken, through| (*taken, through) == (holder, handle));
        }
    }

    pub(super) fn forget(&mut self, goes: impl Fn(&AdvisoryHolder, u64) -> bool) {
        self.taken.retain(|(holder, handle)| !goes(holder, *handle));
    }

    /// The holders that may have locks and that `concerned` names.
    pub(super) fn holders(&self, concerned: impl Fn(&AdvisoryHolder, u64) -> bool) -> Vec<AdvisoryHolder> {
        let named = self.taken.iter().filter(|(holder, handle)| concerned(holder, *handle));
        named.map(|(holder, _)| *holder).collect()
    }
}

impl Namespace {
    /// The advisory locks of an inode, as they are.
    pub(super) fn advisory_locks(&self, ino: Ino) -> Result<Vec<AdvisoryLock>> {
        match &self.advisory.table {
            Some(table) => Ok(table.of(ino)),
            None => Ok(read(&*self.store, ino)?.map_or_else(Vec::new, |(_, locks)| locks)),
        }
    }

    /// The advisory locks of all files that have any. A mount that is alone on its store has none to tell of: its kernel
    /// keeps them.
    ///
    /// # Errors
    /// The store's.
    pub fn advisory_of_all(&self) -> Result<Vec<AdvisoryLocks>> {
        match &self.advisory.table {
            Some(table) => {
                Ok(table.all().into_iter().map(|(inode, locks)| AdvisoryLocks { inode, locks }).collect())
            }
            None => Ok(advisory_of_all(&*self.store)?),
        }
    }

    /// Replaces the locks of an inode by what `decide` makes of them, unless that is nothing. It may be asked more than
    /// once; the last time counts. `look`: what was remembered is no good.
    pub(super) fn change_advisory(
        &self,
        ino: Ino,
        held: &mut Held,
        look: bool,
        mut decide: impl FnMut(&[AdvisoryLock]) -> Option<Vec<AdvisoryLock>>,
    ) -> Result<()> {
        let changed = match &self.advisory.table {
            Some(table) => {
                let _pass = self.gate.enter()?;
                table.change(ino, decide)
            }
            None => self.change_documents(ino, held, look, &mut decide)?,
        };
        if changed {
            self.advisory.waits.ring(ino);
        }
        Ok(())
    }

    fn change_documents(
        &self,
        ino: Ino,
        held: &mut Held,
        look: bool,
        decide: &mut dyn FnMut(&[AdvisoryLock]) -> Option<Vec<AdvisoryLock>>,
    ) -> Result<bool> {
        let key = Key::Advisory(ino);
        let begun = ambient::monotonic();
        let (mut guess, mut pause, mut attempts) = (!look, PAUSE_FIRST, 0);
        loop {
            let remembered = held.left.take();
            // Most files have no locks.
            let (found, guessed) = match remembered {
                found if guess => (found.unwrap_or_default(), true),
                _ => (read(&*self.store, ino)?, false),
            };
            guess = false;
            let locks = found.as_ref().map_or(&[][..], |(_, locks)| locks);
            let Some(next) = decide(locks) else {
                if guessed {
                    continue;
                }
                held.left = Some(found);
                return Ok(false);
            };
            let commit = match &found {
                Some((version, _)) => Commit::new().at(key.clone(), *version),
                None => Commit::new().absent(key.clone()),
            };
            let commit = match next.is_empty() {
                true => commit.delete(key.clone()),
                false => {
                    let record = AdvisoryRecord { locks: next.clone() };
                    commit.put(key.clone(), Document::Advisory(record))
                }
            };
            match self.commit(&commit) {
                Ok(version) => {
                    held.left = Some((!next.is_empty()).then_some((version, next)));
                    return Ok(true);
                }
                Err(NamespaceError::Conflict(_)) if begun.elapsed() < RETRY_TIME_MAX => {}
                Err(NamespaceError::Conflict(key)) => {
                    return Err(NamespaceError::Contended { attempts, key });
                }
                Err(NamespaceError::Store(StoreError::Unknown(cause))) => {
                    held.doubtful = true;
                    if begun.elapsed() >= RETRY_TIME_MAX {
                        return Err(StoreError::Unknown(cause).into());
                    }
                }
                Err(other) => return Err(other),
            }
            attempts += 1;
            if !guessed {
                let jitter = ambient::random_u64() % (pause.as_nanos() as u64).max(1);
                std::thread::sleep(pause / 2 + Duration::from_nanos(jitter));
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

/// The advisory locks that are documents, file by file, each as it was at some instant.
///
/// # Errors
/// The store's; also for a document that is damaged.
pub fn advisory_of_all(store: &dyn Store) -> std::result::Result<Vec<AdvisoryLocks>, StoreError> {
    let mut all = Vec::new();
    for_each::<_, StoreError>(store, Range::All(Kind::Advisory), |key, stored| {
        if let (Key::Advisory(inode), Document::Advisory(record)) = (key, &*stored?.document) {
            all.push(AdvisoryLocks { inode, locks: record.locks.clone() });
        }
        Ok(())
    })?;
    Ok(all)
}

fn read(store: &dyn Store, ino: Ino) -> std::result::Result<Found, StoreError> {
    let key = Key::Advisory(ino);
    let Some(stored) = store.get(&key)? else { return Ok(None) };
    match &*stored.document {
        Document::Advisory(record) => Ok(Some((stored.version, record.locks.clone()))),
        other => Err(StoreError::Damaged {
            key: key.to_string(),
            cause: format!("a {} stands under this key", other.kind().name()),
        }),
    }
}

/// Takes all advisory locks of a session away that is fenced: it makes no new ones, so one look at each document is enough.
/// Any number of callers at once.
///
/// # Errors
/// The store's; call again.
pub(in crate::namespace) fn drop_session(
    store: &dyn Store,
    dead: SessionId,
) -> std::result::Result<(), StoreError> {
    let mut concerned = Vec::new();
    for_each::<_, StoreError>(store, Range::All(Kind::Advisory), |key, stored| {
        // One that cannot be read has no lock that anybody could honour; `lockwood check` names it.
        if let (Key::Advisory(ino), Ok(stored)) = (key, stored)
            && let Document::Advisory(record) = &*stored.document
            && record.locks.iter().any(|lock| lock.session == dead)
        {
            concerned.push(ino);
        }
        Ok(())
    })?;
    for ino in concerned {
        let key = Key::Advisory(ino);
        loop {
            let Some((version, locks)) = read(store, ino)? else { break };
            let Some(left) = without(&locks, |lock| lock.session == dead) else { break };
            let commit = Commit::new().at(key.clone(), version);
            let commit = match left.is_empty() {
                true => commit.delete(key.clone()),
                false => commit.put(key.clone(), Document::Advisory(AdvisoryRecord { locks: left })),
            };
            match store.commit(&commit) {
                // Others take and give up locks meanwhile.
                Ok(_) | Err(CommitError::Conflict(_)) => {}
                Err(CommitError::Store(error)) => return Err(error),
            }
        }
    }
    Ok(())
}
