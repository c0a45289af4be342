//! Pages of documents, and lists of all: by a search, behind a refresh that was asked for when the reading began.

use std::ops::Bound;

use serde_json::{Value, json};

use super::link::{Request, engine, explain};
use super::source::{self, Part};
use super::{OpenSearchCells, SAME_COPY, ids, mappings};
use crate::document::{Document, Key, Kind, SessionId};
use crate::store::cells::{Cell, CellKey, ListedCell, ScannedCell, StoredCell};
use crate::store::scan::{Pager, bounds};
use crate::store::{Range, Scan, Start, StoreError};

/// So many documents are asked for at first.
const PAGE: usize = 1025;

impl OpenSearchCells {
    /// All documents of an index whose keys are in a range, as they are at one instant; at most `limit` of them.
    fn search(&self, kind: &str, keys: &Value, part: Part, limit: usize) -> Result<Vec<Value>, StoreError> {
        let index = self.link.address.index(kind);
        // All copies must have done it: any of them may answer the search.
        let refreshed = self.link.ask(&Request::post_nothing(format!("/{index}/_refresh")))?;
        if refreshed.status != 200 || refreshed.body.pointer("/_shards/failed") != Some(&0.into()) {
            return Err(engine(format!("refreshing {index}"), explain(&refreshed)));
        }
        let mut query = json!({
            "size": limit,
            "query": { "range": { "key": keys } },
            "sort": [{ "key": "asc" }],
            "seq_no_primary_term": true,
            "track_total_hits": false,
        });
        if part == Part::Outline {
            query["_source"] = json!(source::OUTLINE);
        }
        let path = format!("/{index}/_search?allow_partial_search_results=false&{SAME_COPY}");
        let mut answer = self.link.ask(&Request::post(&path, &query))?;
        match answer.body.pointer_mut("/hits/hits").map(Value::take) {
            Some(Value::Array(hits)) if answer.status == 200 => Ok(hits),
            _ => Err(engine(format!("searching {index}"), explain(&answer))),
        }
    }

    /// See [`Cells::scan`](crate::store::cells::Cells::scan).
    pub(super) fn page(&self, scan: &Scan, part: Part) -> Result<Vec<ScannedCell>, StoreError> {
        let (kind, from, prefix) = bounds(scan);
        let mut keys = match from {
            Bound::Included(from) => json!({ "gte": ids::hex(&from) }),
            Bound::Excluded(from) => json!({ "gt": ids::hex(&from) }),
            Bound::Unbounded => json!({}),
        };
        if !prefix.is_empty() {
            // Behind all keys of the range: no digit is greater.
            keys["lt"] = format!("{}g", ids::hex(&prefix)).into();
        }
        // Read again and longer where that was not enough, for a page is of one instant.
        let mut limit = scan.limit.saturating_add(1).min(PAGE);
        loop {
            if limit > mappings::PAGE_MAX {
                return Err(engine(format!("reading {:?}", scan.range), "a page of it is too long"));
            }
            let hits = self.search(kind.name(), &keys, part, limit)?;
            let mut pager = Pager::new(scan);
            let mut page = Vec::with_capacity(hits.len());
            let mut is_whole = hits.len() < limit;
            for hit in &hits {
                let bytes = key_of(hit)?;
                let key = Key::decode(kind, &bytes).ok_or_else(|| StoreError::Damaged {
                    key: format!("{}:{}", kind.name(), ids::hex(&bytes)),
                    cause: "it is no key of its kind".to_owned(),
                })?;
                if !pager.admits(page.len(), &key) {
                    is_whole = true;
                    break;
                }
                let found = Self::found(&CellKey::Document(key.clone()), hit, part);
                page.push((key, found));
            }
            if is_whole {
                return Ok(page);
            }
            limit = limit.saturating_mul(2);
        }
    }

    /// All locks.
    pub(super) fn locks(&self) -> Result<Vec<ListedCell>, StoreError> {
        let mut listed = Vec::new();
        let mut start = Start::First;
        loop {
            let page = self.page(&Scan { range: Range::All(Kind::Lock), start, limit: PAGE }, Part::Whole)?;
            let more = page.len() >= PAGE;
            start = page.last().map_or(Start::First, |(key, _)| Start::After(key.clone()));
            for (key, stored) in page {
                let Key::Lock(id) = key else { continue };
                let found = stored.map(|stored| match as_lock(&stored) {
                    Some(cell) => StoredCell { cell: cell.into(), ..stored },
                    None => stored,
                });
                listed.push((CellKey::Lock(id), found));
            }
            if !more {
                return Ok(listed);
            }
        }
    }

    /// All intents.
    pub(super) fn slots(&self) -> Result<Vec<ListedCell>, StoreError> {
        let mut listed = Vec::new();
        let mut keys = json!({ "gte": "" });
        loop {
            let hits = self.search(ids::INTENT, &keys, Part::Whole, PAGE)?;
            for hit in &hits {
                let bytes = key_of(hit)?;
                let Some(key) = slot_key(&bytes) else { continue };
                let found = Self::found(&key, hit, Part::Whole);
                listed.push((key, found));
                keys = json!({ "gt": ids::hex(&bytes) });
            }
            if hits.len() < PAGE {
                return Ok(listed);
            }
        }
    }
}

/// The key of a document that a search has found.
fn key_of(hit: &Value) -> Result<Vec<u8>, StoreError> {
    let id = || hit.get("_id").map(Value::to_string).unwrap_or_default();
    let text = hit.pointer("/_source/key").and_then(Value::as_str);
    text.and_then(ids::unhex).ok_or_else(|| StoreError::Damaged {
        key: id(),
        cause: "its field key is missing, or none".to_owned(),
    })
}

/// A lock document as a lock.
fn as_lock(stored: &StoredCell) -> Option<Cell> {
    match &*stored.cell {
        Cell::Document(marked) => match &*marked.before.as_ref()?.document {
            Document::Lock(lock) => Some(Cell::Lock(lock.clone())),
            _ => None,
        },
        _ => None,
    }
}

/// The key of an intent.
fn slot_key(bytes: &[u8]) -> Option<CellKey> {
    let (session, slot) = bytes.split_first_chunk::<8>()?;
    let slot = u16::from_be_bytes(slot.try_into().ok()?);
    Some(CellKey::Slot(SessionId(u64::from_be_bytes(*session)), slot))
}
