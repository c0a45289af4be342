//! Intents: changes of several documents, recorded before they are made, on engines that change one document at a time.
//!
//! Data only; what is done with it is decided in `store`. A session makes a fixed number of intent documents, its *slots*,
//! before it lives, and uses each again and again under a growing number. Whoever declares the session dead seals every
//! slot by compare-and-set. So a change that a dead session had begun can be found, decided and never be decided otherwise,
//! and one that it had not begun can never begin: there is no slot left to begin it in.

use serde::{Deserialize, Serialize};

use super::{Document, Key, SessionId, Version};

/// Which use of which slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct IntentId {
    /// Whose slot.
    pub session: SessionId,
    /// Which of its slots.
    pub slot: u16,
    /// Which use of the slot; grows by one at each.
    pub number: u64,
}

/// What an intent leaves at each document that it changes, or whose version it rests on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mark {
    /// The intent, which says which side is true.
    pub intent: IntentId,
    /// What the intent does to the document.
    pub change: MarkChange,
}

/// What an intent does to a marked document.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MarkChange {
    /// This stands here once the intent is committed.
    Put(Box<Document>),
    /// Nothing stands here once the intent is committed.
    Delete,
    /// What stands here stays; nobody may change it until the intent is decided.
    Keep,
}

/// Where an intent stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SlotState {
    /// Never used yet.
    Free,
    /// Marks are being set, or will be: what was before is true.
    Pending,
    /// What comes after is true, for ever, where a mark stands that the slot lists with its version.
    Committed,
    /// What was before is true, for ever.
    Aborted,
    /// The session is dead: the last use was decided and its marks are gone, and there will be no other.
    Sealed,
}

/// An intent document.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Slot {
    /// Which use this is.
    pub number: u64,
    /// Where it stands.
    pub state: SlotState,
    /// The documents that this use marks; none yet where it was begun ahead.
    pub marked: Vec<Marked>,
}

/// A document that an intent marks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Marked {
    /// Which document.
    pub key: Key,
    /// The version of the cell with the mark, known from the commit on: also the version of the document that the mark puts
    /// there. A mark that stands under another version was made by a request that was delivered twice, and means nothing.
    pub version: Option<Version>,
}
