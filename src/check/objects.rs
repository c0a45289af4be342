//! The objects that have the bytes of chunks, on volumes whose contents are in an object store. Imports `content`,
//! `document` and `store`.
//!
//! What is hard: nothing shows documents and objects at one instant. An object that no chunk names may be about to be named
//! by the session that made it, which its name says, and by nobody else; so it is garbage only if that session has ended
//! and its chunk, looked at after that, does not name it. Then it never will be, and whoever likes may remove it. An object
//! counts as missing only if it was looked for between two reads that saw the same version of its chunk: it goes after
//! the commit that stops naming it.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_128;

use super::{Judge, Phase, Rule};
use crate::content::{ContentError, FoundObject, Objects};
use crate::document::{Document, Ino, Key, ObjectRef, SessionState, Stored, Version};
use crate::store::{Reader, StoreError};

/// How the garbage of a report names an object: this, and its name.
pub const OBJECT: &str = "object:";

/// Which chunk names which object. By hashes, since a large volume has millions.
#[derive(Debug, Default)]
pub(super) struct NamedObjects(HashMap<u128, Named>);

#[derive(Clone, Copy, Debug)]
struct Named {
    ino: Ino,
    index: u64,
    bytes: u64,
}

impl Judge<'_> {
    /// The length of the bytes that a chunk stands for, where it names an object; none if that cannot be told, which is
    /// accused.
    pub(super) fn named_object(&mut self, key: &Key, bytes: &[u8]) -> Option<u64> {
        let &Key::Chunk(ino, index) = key else { return None };
        match ObjectRef::decode(bytes) {
            Ok(object) => {
                let named = Named { ino, index, bytes: object.bytes };
                self.named.0.insert(xxh3_128(object.object.as_bytes()), named);
                Some(object.bytes)
            }
            Err(cause) => {
                self.report.accuse(Rule::Damaged, key, format_args!("{cause}"));
                None
            }
        }
    }

    /// Judges the objects, if an object store has the bytes. The chunks have gone by.
    pub(super) fn objects(&mut self) -> Result<(), StoreError> {
        let Some(objects) = self.inputs.backing.and_then(|list| list.objects()) else { return Ok(()) };
        let mut named = std::mem::take(&mut self.named.0);
        let (mut strays, mut suspects) = (Vec::new(), Vec::new());
        let listed = objects.list(&mut |found: FoundObject| {
            self.report.counts.objects += 1;
            self.report.counts.object_bytes = self.report.counts.object_bytes.saturating_add(found.bytes);
            self.advance(Phase::Backing, self.report.counts.objects, None);
            match named.remove(&xxh3_128(found.name.as_bytes())) {
                Some(named) if named.bytes == found.bytes => {}
                Some(named) => suspects.push(named),
                None => strays.push(found),
            }
        });
        listed.map_err(failed)?;
        for stray in strays {
            if let Some(why) = self.why_stray(&stray)? {
                self.report.collect(format!("{OBJECT}{}", stray.name), stray.bytes, &why);
            }
        }
        // What the listing did not show, in the order of the files.
        suspects.extend(named.into_values());
        suspects.sort_unstable_by_key(|named| (named.ino, named.index));
        for named in suspects {
            self.suspect(objects, &Key::Chunk(named.ino, named.index))?;
        }
        Ok(())
    }

    /// Why nothing will ever name an object; none if something does, or may.
    fn why_stray(&self, stray: &FoundObject) -> Result<Option<String>, StoreError> {
        let now = self.inputs.live.unwrap_or(self.inputs.documents);
        let made = stray.made;
        // In this order: once its session has ended, what it has named is to be seen.
        let state = match read(now, &Key::Session(made.session))? {
            Look::Absent => "gone",
            Look::Found(stored) => match &*stored.document {
                Document::Session(session) if session.state == SessionState::Recovered => "recovered",
                _ => return Ok(None),
            },
            Look::Damaged => return Ok(None),
        };
        let names = match read(now, &Key::Chunk(Ino(made.ino), made.index))? {
            Look::Absent => false,
            Look::Found(stored) => reference(&stored).is_none_or(|object| object.object == stray.name),
            Look::Damaged => true,
        };
        let why = || format!("session {} made it, and is {state}; its chunk does not name it", made.session);
        Ok((!names).then(why))
    }

    /// Accuses an object that a chunk names and that is missing or of another length, unless the chunk changes meanwhile.
    fn suspect(&mut self, objects: &Objects, key: &Key) -> Result<(), StoreError> {
        let now = self.inputs.live.unwrap_or(self.inputs.documents);
        let Some((version, object)) = named_now(now, key)? else { return Ok(()) };
        let found = objects.len(&object.object).map_err(failed)?;
        if found == Some(object.bytes) || named_now(now, key)?.is_none_or(|(later, _)| later != version) {
            return Ok(());
        }
        let name = &object.object;
        match found {
            None => self.report.accuse(Rule::ObjectMissing, key, format_args!("there is no object {name}")),
            Some(bytes) => {
                let detail = format_args!("object {name} has {bytes} bytes instead of {}", object.bytes);
                self.report.accuse(Rule::ObjectMissing, key, detail);
            }
        }
        Ok(())
    }
}

enum Look {
    Absent,
    Damaged,
    Found(Stored),
}

fn read(now: &dyn Reader, key: &Key) -> Result<Look, StoreError> {
    match now.get(key) {
        Ok(None) => Ok(Look::Absent),
        Ok(Some(stored)) => Ok(Look::Found(stored)),
        Err(StoreError::Damaged { .. }) => Ok(Look::Damaged),
        Err(other) => Err(other),
    }
}

fn reference(stored: &Stored) -> Option<ObjectRef> {
    match &*stored.document {
        Document::Chunk(chunk) => ObjectRef::decode(&chunk.bytes).ok(),
        _ => None,
    }
}

/// The object that a chunk names, if it does and can be read.
fn named_now(now: &dyn Reader, key: &Key) -> Result<Option<(Version, ObjectRef)>, StoreError> {
    let Look::Found(stored) = read(now, key)? else { return Ok(None) };
    Ok(reference(&stored).map(|object| (stored.version, object)))
}

fn failed(error: ContentError) -> StoreError {
    StoreError::Engine { what: "the objects cannot be looked at".to_owned(), source: error.into() }
}
