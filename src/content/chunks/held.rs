//! Chunks with their bytes, wherever those are: in the documents, or in objects that the documents name. Owns how one
//! becomes the other.
//!
//! What is hard: an object goes some time after the commit by which its chunk names another one. Who has read the chunk
//! before that commit and asks for the object after that finds none; so it looks at the chunk again before it calls anything
//! lost.

use std::sync::Arc;

use super::{ChunkFile, bytes_of};
use crate::content::error::ContentError;
use crate::document::{Chunk, Document, ObjectRef, Stored, Version};
use crate::store::StoreError;

/// How often a chunk whose object is gone is looked at again: each time somebody else has changed it in between.
const LOOKS: usize = 8;

/// A chunk as it was read or written.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) version: Version,
    pub(super) bytes: Arc<[u8]>,
    /// The object that has the bytes, where objects do.
    pub(super) object: Option<ObjectRef>,
}

impl ChunkFile {
    /// The document that holds these bytes, and the object that does, which is put before this returns.
    pub(super) fn put_bytes(
        &self,
        chunks: Vec<(u64, Arc<[u8]>)>,
    ) -> Result<Vec<(Document, Option<ObjectRef>)>, ContentError> {
        let document = |bytes| Document::Chunk(Chunk { bytes });
        let Some(objects) = &self.chunks.shared.objects else {
            return Ok(chunks.into_iter().map(|(_, bytes)| (document(bytes), None)).collect());
        };
        let put = objects.put(self.chunks.session, self.ino, chunks)?;
        Ok(put.into_iter().map(|object| (document(object.encode()), Some(object))).collect())
    }

    /// Chunks with their bytes.
    pub(super) fn fetch(&self, indexes: &[u64]) -> Result<Vec<Option<Held>>, ContentError> {
        let mut stored = self.documents(indexes)?;
        let Some(objects) = &self.chunks.shared.objects else {
            let held = |stored: Stored| {
                Ok(Held { version: stored.version, bytes: Arc::clone(bytes_of(&stored)?), object: None })
            };
            return stored.into_iter().map(|stored| stored.map(held).transpose()).collect();
        };
        let mut found: Vec<Option<Held>> = vec![None; indexes.len()];
        let mut wanted: Vec<usize> = (0..indexes.len()).filter(|&at| stored[at].is_some()).collect();
        for _ in 0..LOOKS {
            let (mut asked, mut named) = (Vec::new(), Vec::new());
            for &at in &wanted {
                let Some(stored) = &stored[at] else { continue };
                let object = self.reference(indexes[at], stored)?;
                // An object never changes: who has had its bytes has them, whatever else has changed since.
                match self.chunks.shared.cache.guess(self.ino.0, indexes[at]).flatten() {
                    Some(held) if held.object.as_ref() == Some(&object) => {
                        found[at] = Some(Held { version: stored.version, ..held });
                    }
                    _ => {
                        asked.push(at);
                        named.push((self.key(indexes[at]), object));
                    }
                }
            }
            let mut gone = Vec::new();
            for ((&at, (_, object)), bytes) in asked.iter().zip(&named).zip(objects.get(&named)?) {
                match (bytes, &stored[at]) {
                    (Some(bytes), Some(stored)) => {
                        found[at] =
                            Some(Held { version: stored.version, bytes, object: Some(object.clone()) });
                    }
                    _ => gone.push((at, object.clone())),
                }
            }
            let Some((first, _)) = gone.first() else { return Ok(found) };
            let first = *first;
            let now = self.documents(&gone.iter().map(|(at, _)| indexes[*at]).collect::<Vec<_>>())?;
            wanted.clear();
            for ((at, object), now) in gone.into_iter().zip(now) {
                let version = |stored: &Option<Stored>| stored.as_ref().map(|stored| stored.version);
                if version(&now) == version(&stored[at]) {
                    let cause = "there is no such object".to_owned();
                    return Err(objects.damaged(&self.key(indexes[at]), &object, cause));
                }
                if now.is_some() {
                    wanted.push(at);
                }
                stored[at] = now;
            }
            if wanted.is_empty() {
                return Ok(found);
            }
            log::debug!("{} changes as it is read", self.key(indexes[first]));
        }
        let changing = wanted.first().map_or(0, |&at| indexes[at]);
        Err(ContentError::Conflict(self.key(changing)))
    }

    /// How many bytes a chunk has; 0 if it is absent.
    pub(super) fn len_of(&self, index: u64) -> Result<u64, StoreError> {
        match self.store().get(&self.key(index))? {
            None => Ok(0),
            Some(stored) if self.chunks.shared.objects.is_some() => Ok(self.reference(index, &stored)?.bytes),
            Some(stored) => Ok(bytes_of(&stored)?.len() as u64),
        }
    }

    /// The objects that chunks name; none where chunks have their bytes themselves. What names none that can be told is
    /// passed over: its chunk is about to go.
    pub(super) fn objects_of(&self, indexes: &[u64]) -> Result<Vec<ObjectRef>, StoreError> {
        if self.chunks.shared.objects.is_none() {
            return Ok(Vec::new());
        }
        let stored = self.documents(indexes)?;
        let named =
            indexes.iter().zip(stored).filter_map(|(&index, stored)| self.reference(index, &stored?).ok());
        Ok(named.collect())
    }

    /// Removes objects soon that nothing names any more, since a commit that has returned.
    pub(super) fn replace(&self, objects: impl IntoIterator<Item = ObjectRef>) {
        if let Some(replaced) = &self.chunks.shared.replaced {
            replaced.remove_later(objects.into_iter().map(|object| object.object));
        }
    }

    /// Removes objects soon that nothing has ever named.
    pub(super) fn discard(&self, objects: impl IntoIterator<Item = ObjectRef>) {
        if let Some(store) = &self.chunks.shared.objects {
            store.discard(objects.into_iter().map(|object| object.object));
        }
    }

    fn documents(&self, indexes: &[u64]) -> Result<Vec<Option<Stored>>, StoreError> {
        match indexes {
            [] => Ok(Vec::new()),
            _ => self.store().get_many(&indexes.iter().map(|&index| self.key(index)).collect::<Vec<_>>()),
        }
    }

    fn reference(&self, index: u64, stored: &Stored) -> Result<ObjectRef, StoreError> {
        let damaged = |cause| StoreError::Damaged { key: self.key(index).to_string(), cause };
        ObjectRef::decode(bytes_of(stored)?).map_err(damaged)
    }
}
