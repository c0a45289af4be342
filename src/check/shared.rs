//! What only stores that many hosts share have: chunks and lock documents. Imports `document` and `store`.
//!
//! Both are left behind where a host dies, and do no harm: they are garbage and no violation. A chunk that is absent is a
//! hole, so none is ever missed.
//!
//! What is hard: under a mount a chunk is written before its node speaks of it, and removed after. So a chunk counts as
//! garbage only if nothing of its inode is there now, and what lies beyond the end of a file only offline.

use super::table::What;
use super::{Judge, Mode, Rule};
use crate::content::CHUNK_BYTES;
use crate::document::{ContentPlace, Document, Ino, Key, Kind, LockRecord, SessionId, SessionState};
use crate::store::StoreError;

/// How the garbage of a report names the chunks of an inode: this, and its number.
pub const CHUNKS: &str = "chunk:";

/// What is remembered of chunks and locks until all of them have gone by.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    /// The inode of the chunk before.
    ino: Option<Ino>,
    /// What keeps its chunks, since it is the same for all of them.
    owner: Owner,
    chunks: Vec<StrayChunks>,
    locks: Vec<(Key, SessionId)>,
    pub(super) advisory: Vec<(Key, SessionId)>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Owner {
    /// A file of this size, in bytes.
    File(u64),
    /// Something may keep them that could not be read, or that is about to be collected.
    #[default]
    Unknown,
    Elsewhere,
    Nobody,
}

/// Chunks of one inode that nothing speaks of.
#[derive(Debug)]
struct StrayChunks {
    ino: Ino,
    bytes: u64,
    why: &'static str,
    beyond: bool,
}

impl Judge<'_> {
    /// Takes in one chunk. They come inode by inode.
    pub(super) fn chunk(&mut self, key: &Key, document: Option<&Document>) {
        let &Key::Chunk(ino, index) = key else { return };
        self.report.counts.chunks += 1;
        let full = self.inputs.backing.map_or(CHUNK_BYTES, |list| list.chunk_bytes());
        let in_objects = self.inputs.backing.is_some_and(|list| list.objects().is_some());
        let len = match document {
            Some(Document::Chunk(chunk)) if in_objects => self.named_object(key, &chunk.bytes),
            Some(Document::Chunk(chunk)) => Some(chunk.bytes.len() as u64),
            _ => None,
        };
        let is_known = len.is_some();
        let len = len.unwrap_or(0);
        if is_known && !(1..=full).contains(&len) {
            let detail = format_args!("it has {len} bytes, and a chunk has 1 to {full}");
            self.report.accuse(Rule::ChunkLength, key, detail);
        }
        if self.leftovers.ino != Some(ino) {
            (self.leftovers.ino, self.leftovers.owner) = (Some(ino), self.owner(ino));
        }
        let (why, beyond) = match self.leftovers.owner {
            Owner::File(size) if index.saturating_mul(full) >= size => ("its file ends before it", true),
            Owner::File(_) | Owner::Unknown => return,
            Owner::Elsewhere => ("its node keeps no bytes in chunks", false),
            Owner::Nobody => ("its node is missing", false),
        };
        match self.leftovers.chunks.last_mut() {
            Some(stray) if stray.ino == ino => stray.bytes = stray.bytes.saturating_add(len),
            _ => self.leftovers.chunks.push(StrayChunks { ino, bytes: len, why, beyond }),
        }
    }

    fn owner(&self, ino: Ino) -> Owner {
        match self.table.get(ino) {
            Some(record) if record.what == What::Regular(ContentPlace::Chunks) => {
                let size = u64::from(record.size);
                if record.size < u32::MAX {
                    return Owner::File(size);
                }
                // The table has no room for large sizes.
                match self.inputs.documents.node(ino) {
                    Ok(Some((_, node))) => Owner::File(node.size()),
                    _ => Owner::Unknown,
                }
            }
            Some(record) if record.orphan || record.what == What::Unreadable => Owner::Unknown,
            Some(_) => Owner::Elsewhere,
            None if self.orphans_without_node.binary_search(&ino).is_ok() => Owner::Unknown,
            None if self.gap(Kind::Node) || self.gap(Kind::Orphan) => Owner::Unknown,
            None => Owner::Nobody,
        }
    }

    /// Takes in one lock document, after the sessions.
    pub(super) fn lock(&mut self, key: &Key, document: Option<&Document>) {
        self.report.counts.locks += 1;
        let Some(Document::Lock(LockRecord { holders, waiters, .. })) = document else { return };
        let mut sessions = holders.iter().chain(waiters).map(|claim| claim.session);
        if let Some(session) = sessions.find(|session| self.session_is_gone(*session)) {
            self.leftovers.locks.push((key.clone(), session));
        }
    }

    /// Whether a session is known to have ended, or is not known at all.
    pub(super) fn session_is_gone(&self, session: SessionId) -> bool {
        match self.sessions.get(&session) {
            Some(state) => *state == Some(SessionState::Recovered),
            None => !self.gap(Kind::Session),
        }
    }

    /// Names the garbage, once all has gone by.
    pub(super) fn leftovers(&mut self) -> Result<(), StoreError> {
        let online = self.inputs.mode != Mode::Offline;
        for stray in std::mem::take(&mut self.leftovers.chunks) {
            let ino = stray.ino;
            let spoken_for = [Key::Node(ino), Key::Orphan(ino)];
            if online && (stray.beyond || self.is_there_now(&spoken_for)?) {
                continue;
            }
            self.report.collect(format!("{CHUNKS}{ino}"), stray.bytes, stray.why);
        }
        for (key, session) in std::mem::take(&mut self.leftovers.locks) {
            // A session that is known was recovered, and stays so; any other may have begun since.
            let known = self.sessions.contains_key(&session);
            if online && !known && self.is_there_now(&[Key::Session(session)])? {
                continue;
            }
            let state = if known { "has been recovered" } else { "is gone" };
            self.report.collect(
                key.to_string(),
                0,
                &format!("session {session} has a claim in it, and {state}"),
            );
        }
        Ok(())
    }
}
