//! Pages of documents, and lists of all: by a search, behind a refresh that was asked for when the reading began.
//!
//! What is hard: anybody can put documents into an index that are none of ours, and a listing that they ended would
//! stop more than whoever put them there: no session joins, or is recovered, that cannot list the others. So they are
//! passed over.

use std::ops::Bound;
use std::sync::atomic::Ordering::Relaxed;

use serde::Deserialize;
use serde_json::{Value, json};

use super::link::{Request, engine};
use super::reply::explain;
use super::source::{self, Part};
use super::{OpenSearchCells, SAME_COPY, ids, mappings};
use crate::document::{Document, Key, Kind, SessionId};
use crate::store::cells::{Cell, CellKey, ListedCell, ScannedCell, StoredCell};
use crate::store::scan::{Pager, bounds};
use crate::store::{Range, Scan, Start, StoreError};

/// So many documents are asked for at first.
const PAGE: usize = 1025;

/// What is answered to a search.
#[derive(Deserialize)]
struct Searched {
    hits: Hits,
}

#[derive(Deserialize)]
struct Hits {
    hits: Vec<Value>,
}

impl OpenSearchCells {
    /// All documents of an index whose keys are in a range, as they are at one instant; at most `limit` of them.
    fn search(&self, kind: &str, keys: &Value, part: Part, limit: usize) -> Result<Vec<Value>, StoreError> {
        let index = self.link.address.index(kind);
        // All copies must have done it: any of them may answer the search.
        let refreshed = self.link.ask(&Request::post_nothing(format!("/{index}/_refresh")))?;
        if refreshed.status != 200 || refreshed.body().pointer("/_shards/failed") != Some(&0.into()) {
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
        let answer = self.link.ask(&Request::post(&path, &query))?;
        match answer.read::<Searched>() {
            Ok(Searched { hits: Hits { hits } }) => Ok(hits),
            Err(cause) => Err(engine(format!("searching {index}"), cause)),
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
                let decode = |bytes: &[u8]| Key::decode(kind, bytes).map(CellKey::Document);
                let Some(cell_key @ CellKey::Document(key)) = &self.own(hit, decode) else { continue };
                if !pager.admits(page.len(), key) {
                    is_whole = true;
                    break;
                }
                page.push((key.clone(), Self::found(cell_key, hit, part)));
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
                let Some(key) = self.own(hit, slot_key) else { continue };
                let found = Self::found(&key, hit, Part::Whole);
                listed.push((key, found));
            }
            match hits.last() {
                // Behind the last one, whoever has put it there.
                Some(last) if hits.len() >= PAGE => keys = json!({ "gt": last.pointer("/sort/0") }),
                _ => return Ok(listed),
            }
        }
    }

    /// The key of a document that a search has found, if it is there that one is read which has this key.
    fn own(&self, hit: &Value, decode: impl Fn(&[u8]) -> Option<CellKey>) -> Option<CellKey> {
        let text = |pointer: &str| hit.pointer(pointer).and_then(Value::as_str);
        let key = text("/_source/key").and_then(ids::unhex).and_then(|bytes| decode(&bytes));
        let own = key.filter(|key| text("/_id") == Some(&*ids::id(key)));
        if own.is_none() && !self.has_met_others.swap(true, Relaxed) {
            let (index, id) = (text("/_index").unwrap_or_default(), text("/_id").unwrap_or_default());
            log::warn!(
                "the document {id:?} in the index {index} is none of Lockwood's; it is passed over, and so are others"
            );
        }
        own
    }
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
