//! Asking a store, with the judge told what is asked and what is answered.

use lockwood::document::{Key, SessionId, Stored, Version};
use lockwood::store::{Commit, CommitError, Granting, Reader, Store};
use parking_lot::Mutex;

use super::truth::{Asked, Truth};
use crate::sim::World;

/// A judge that knows what is true.
pub(crate) trait KnowsTruth {
    fn truth(&mut self) -> &mut Truth;
}

impl KnowsTruth for Truth {
    fn truth(&mut self) -> &mut Truth {
        self
    }
}

/// What the actor with the turn is at.
pub(crate) fn asked(world: &World) -> Asked {
    (world.actor().unwrap_or(usize::MAX), crate::sim::operation())
}

/// Reads one document, judged. An error of the store is the inner one.
pub(crate) fn look<J: KnowsTruth>(
    judge: &Mutex<J>,
    store: &impl Reader,
    key: &Key,
) -> Result<Result<Option<Stored>, lockwood::store::StoreError>, String> {
    let from = judge.lock().truth().clock();
    let seen = store.get(key);
    if let Ok(seen) = &seen {
        judge.lock().truth().saw(key, from, seen.as_ref())?;
    }
    Ok(seen)
}

/// Commits, judged.
pub(crate) fn commit<J: KnowsTruth>(
    judge: &Mutex<J>,
    world: &World,
    store: &impl Store,
    session: SessionId,
    commit: &Commit,
) -> Result<Result<Version, CommitError>, String> {
    judged(judge, world, session, commit, || store.commit(commit))
}

/// Commits if `granting` says yes, judged. What is not granted is answered as a conflict in the volume.
pub(crate) fn commit_once<J: KnowsTruth>(
    judge: &Mutex<J>,
    world: &World,
    store: &impl Store,
    session: SessionId,
    commit: &Commit,
    granting: Granting<'_>,
) -> Result<Result<Version, CommitError>, String> {
    let make = || store.commit_once(commit, granting)?.ok_or(CommitError::Conflict(Key::Volume));
    judged(judge, world, session, commit, make)
}

fn judged<J: KnowsTruth>(
    judge: &Mutex<J>,
    world: &World,
    session: SessionId,
    commit: &Commit,
    make: impl FnOnce() -> Result<Version, CommitError>,
) -> Result<Result<Version, CommitError>, String> {
    let asked = asked(world);
    world.event(|| format!("{}: commits {commit:?}", world.who()), |_| {});
    judge.lock().truth().asks(asked, session, commit.clone());
    let answer = make();
    world.event(|| format!("{}: is answered {answer:?}", world.who()), |mix| mix(answer.is_ok().into()));
    judge.lock().truth().answered(asked, &answer)?;
    Ok(answer)
}
