//! The bytes of chunks as objects of an object store: S3 and what speaks its protocol, or a directory. Owns [`Objects`],
//! the objects of one volume. Imports `store` (outages), `document` and this layer's errors.
//!
//! # Format
//!
//! Below the place that the volume names, a directory with the volume's id has `volume.json`, by which a mount knows that
//! it looks at the right store, and an object for each chunk: `SESSION/INODE-CHUNK-RANDOM`, by the session that made it.
//! An object is never changed. Which one has the bytes of a chunk, the chunk's document says ([`ObjectRef`]).
//!
//! # What is hard
//!
//! 1. *Two stores change, and no commit spans both.* An object is put, and acknowledged, before the commit that names it,
//!    and removed once the commit that stops naming it is durable. So whatever crashes when, a chunk has its old bytes or
//!    its new ones. What a crash leaves is an object that nothing names.
//! 2. *An object that nothing names may be about to be named.* Only the session that made it ever names it, and a session
//!    that has ended names nothing any more, since every commit checks its session. So what [`Objects::list`] has shown
//!    and what nothing names after its session has ended is garbage for ever: no clock is asked.
//! 3. *Requests take long.* [`requests`] has many under way at once, each with a bound.

mod location;
mod requests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

use self::requests::{Failed, Requests, Shared};
use super::error::ContentError;
use crate::ambient;
use crate::document::{Ino, Key, ObjectName, ObjectRef, SessionId};
use crate::store::Outage;

pub use self::location::Location;
pub use self::requests::ObjectCounters;

/// By which a mount knows the objects of its volume.
const MARKER: &str = "volume.json";

/// As many objects one look lists.
const LISTED: usize = 1000;

/// The objects of one volume.
#[derive(Clone)]
pub struct Objects {
    requests: Arc<Requests>,
    location: Arc<str>,
    root: Path,
}

impl std::fmt::Debug for Objects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objects").field("location", &self.location).finish_non_exhaustive()
    }
}

/// An object that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundObject {
    /// Its name, as chunks have it.
    pub name: String,
    /// What the name says.
    pub made: ObjectName,
    /// Its length, in bytes.
    pub bytes: u64,
}

impl Objects {
    /// The objects of `volume` at `location`. Operations wait for the store for `patience` before they fail.
    ///
    /// # Errors
    /// `OtherObjects` if those of this volume are not there; `Object` if the store does not answer or refuses.
    pub fn open(location: &Location, volume: &str, patience: Duration) -> Result<Self, ContentError> {
        let opened = Self::over(location.open(patience, false)?, location, volume, patience)?;
        let (shared, path) = opened.at(MARKER);
        let other = |cause: String| ContentError::OtherObjects { location: location.to_string(), cause };
        match opened.requests.one(async move { shared.get(&path).await }) {
            Ok(found) if *found == *marker_text(volume) => Ok(opened),
            Ok(_) => Err(other(format!("{volume}/{MARKER} says something else"))),
            Err(Failed::NotFound) => Err(other(format!("{volume}/{MARKER} is not there"))),
            Err(failed) => Err(opened.failed("reading", MARKER, &failed)),
        }
    }

    /// Makes the place of a new volume's objects.
    ///
    /// # Errors
    /// `Object` if the store does not answer or refuses.
    pub fn create(location: &Location, volume: &str, patience: Duration) -> Result<Self, ContentError> {
        let opened = Self::over(location.open(patience, true)?, location, volume, patience)?;
        opened.put_all(vec![(MARKER.to_owned(), marker_text(volume))])?;
        Ok(opened)
    }

    /// Takes the place away again, of a volume that could not be made.
    pub fn abandon(self) {
        self.discard(std::iter::once(MARKER.to_owned()));
    }

    fn over(
        store: Arc<dyn ObjectStore>,
        location: &Location,
        volume: &str,
        patience: Duration,
    ) -> Result<Self, ContentError> {
        let requests = Requests::start(store, patience)
            .map_err(|error| ContentError::Location(format!("{location}: starting a thread: {error}")))?;
        let root = location.root(volume);
        Ok(Self { requests: Arc::new(requests), location: location.to_string().into(), root })
    }

    /// Objects in the memory of a test.
    #[cfg(test)]
    pub(crate) fn in_memory(store: &Arc<object_store::memory::InMemory>) -> Self {
        let requests = Requests::start(Arc::clone(store) as _, Duration::from_secs(5)).unwrap();
        Self { requests: Arc::new(requests), location: "memory".into(), root: Path::from("volume") }
    }

    /// Puts the bytes of chunks of one inode, all at once, as `session` will name them.
    ///
    /// # Errors
    /// `Object`; then none of them is left, as far as can be told.
    pub(super) fn put(
        &self,
        session: Option<SessionId>,
        ino: Ino,
        chunks: Vec<(u64, Arc<[u8]>)>,
    ) -> Result<Vec<ObjectRef>, ContentError> {
        let session = session.unwrap_or(SessionId(0));
        let name = |index| ObjectName { session, ino: ino.0, index }.with(ambient::random_u64());
        let named: Vec<(String, Arc<[u8]>)> =
            chunks.into_iter().map(|(index, bytes)| (name(index), bytes)).collect();
        let refs = named.iter().map(|(name, bytes)| ObjectRef::to(name.clone(), bytes)).collect();
        self.put_all(named)?;
        Ok(refs)
    }

    fn put_all(&self, objects: Vec<(String, Arc<[u8]>)>) -> Result<(), ContentError> {
        let names: Vec<String> = objects.iter().map(|(name, _)| name.clone()).collect();
        let outcomes = self.requests.all(objects.into_iter().map(|(name, bytes)| {
            let (shared, path) = self.at(&name);
            async move { shared.put(&path, Bytes::from_owner(bytes)).await }
        }));
        let failed = names.iter().zip(outcomes).find_map(|(name, outcome)| Some((name, outcome.err()?)));
        let Some((name, failed)) = failed else { return Ok(()) };
        let error = self.failed("writing", name, &failed);
        self.discard(names.into_iter());
        Err(error)
    }

    /// The bytes of objects, all at once; none where there is no such object. The keys are those of the chunks that name
    /// them.
    ///
    /// # Errors
    /// `ObjectDamaged` if an object has other bytes than were put; `Object`.
    pub(super) fn get(&self, wanted: &[(Key, ObjectRef)]) -> Result<Vec<Option<Arc<[u8]>>>, ContentError> {
        let outcomes = self.requests.all(wanted.iter().map(|(_, object)| {
            let (shared, path) = self.at(&object.object);
            async move { shared.get(&path).await }
        }));
        let judged = wanted.iter().zip(outcomes).map(|((key, object), outcome)| match outcome {
            Ok(bytes) => match object.mismatch(&bytes) {
                None => Ok(Some(Arc::from(&*bytes))),
                Some(cause) => Err(self.damaged(key, object, cause)),
            },
            Err(Failed::NotFound) => Ok(None),
            Err(failed) => Err(self.failed("reading", &object.object, &failed)),
        });
        judged.collect()
    }

    /// Removes objects soon, which nothing names any more.
    pub(super) fn discard(&self, names: impl Iterator<Item = String>) {
        let paths: Vec<Path> = names.map(|name| self.path(&name)).collect();
        if !paths.is_empty() {
            self.requests.remove_later(paths);
        }
    }

    /// Calls `visit` for every object there is, in no order that means anything. What is no object of ours is passed over.
    ///
    /// # Errors
    /// `Object`.
    pub fn list(&self, visit: &mut dyn FnMut(FoundObject)) -> Result<(), ContentError> {
        self.list_of(None, visit)
    }

    /// The same, of those that `session` has put alone, if one is named.
    pub(super) fn list_of(
        &self,
        session: Option<SessionId>,
        visit: &mut dyn FnMut(FoundObject),
    ) -> Result<(), ContentError> {
        let mut stream = None;
        let below = session.map_or(String::new(), |session| session.to_string());
        loop {
            let (shared, root) = self.at(&below);
            let page = self.requests.one(async move {
                let mut stream = stream.unwrap_or_else(|| shared.store.list(Some(&root)));
                let page = shared.within(stream.by_ref().take(LISTED).try_collect::<Vec<_>>()).await?;
                Ok((page, stream))
            });
            let (page, rest) = page.map_err(|failed| self.failed("listing", "", &failed))?;
            page.iter().filter_map(|meta| self.found(meta)).for_each(&mut *visit);
            if page.len() < LISTED {
                return Ok(());
            }
            stream = Some(rest);
        }
    }

    fn found(&self, meta: &ObjectMeta) -> Option<FoundObject> {
        let name = meta.location.as_ref().strip_prefix(self.root.as_ref())?.trim_start_matches('/');
        Some(FoundObject { made: ObjectName::parse(name)?, name: name.to_owned(), bytes: meta.size })
    }

    /// The length of an object, in bytes; none if there is no such object.
    ///
    /// # Errors
    /// `Object`.
    pub fn len(&self, name: &str) -> Result<Option<u64>, ContentError> {
        let (shared, path) = self.at(name);
        match self.requests.one(async move { shared.len(&path).await }) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Failed::NotFound) => Ok(None),
            Err(failed) => Err(self.failed("reading", name, &failed)),
        }
    }

    /// Removes an object now; absent is fine.
    ///
    /// # Errors
    /// `Object`.
    pub fn remove(&self, name: &str) -> Result<(), ContentError> {
        let (shared, path) = self.at(name);
        let removed = self.requests.one(async move { shared.delete(&path).await });
        removed.map_err(|failed| self.failed("removing", name, &failed))
    }

    /// Where the objects are.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// What was asked of the object store since it was opened.
    pub fn counters(&self) -> ObjectCounters {
        self.requests.shared.counters()
    }

    /// The outage of this moment, if the object store does not answer.
    pub fn outage(&self) -> Option<Outage> {
        self.requests.shared.outages.now()
    }

    fn path(&self, name: &str) -> Path {
        let parts = name.split('/').filter(|part| !part.is_empty());
        Path::from_iter(self.root.parts().chain(parts.map(Into::into)))
    }

    /// What a request for an object needs.
    fn at(&self, name: &str) -> (Arc<Shared>, Path) {
        (Arc::clone(&self.requests.shared), self.path(name))
    }

    fn failed(&self, doing: &'static str, object: &str, failed: &Failed) -> ContentError {
        let object = self.path(object).to_string();
        let location = self.location.to_string();
        match failed {
            Failed::NoSpace => ContentError::NoSpace { doing, path: format!("{location}/{object}").into() },
            _ => ContentError::Object { doing, object, location, cause: failed.to_string() },
        }
    }

    pub(super) fn damaged(&self, key: &Key, object: &ObjectRef, cause: String) -> ContentError {
        let object = self.path(&object.object).to_string();
        ContentError::ObjectDamaged { key: key.clone(), object, location: self.location.to_string(), cause }
    }
}

fn marker_text(volume: &str) -> Arc<[u8]> {
    format!("{{\"lockwood\":\"the contents of a volume\",\"volume\":\"{volume}\"}}\n").into_bytes().into()
}
