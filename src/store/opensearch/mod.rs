//! OpenSearch and Elasticsearch: a distributed store that changes one document at a time, as cells.
//!
//! Owns how a cell is a document of an index, and how its version is the server's (sequence number and primary term). What
//! makes a commit of several such changes is `store::intents`. docs/opensearch.md has what users need.
//!
//! What is hard, and where it is solved:
//! 1. A search sees what the last *refresh* saw. Nothing rests on when the server refreshes by itself: documents are read by
//!    id, which is always of the present, and a page is searched only after a refresh that was asked for when its reading
//!    began. So it shows all that was acknowledged before, and since a volume's index is one shard, it is of one instant.
//! 2. A request without an answer may have been carried out, and a server may answer with a conflict to a request that it
//!    has itself sent twice: [`link`], and `store::intents` after it, which reads before it concludes anything, and lets
//!    nothing count that was only read.
//! 3. Ids are short, names are not, and not all names are text: [`ids`], [`source`].
//! 4. A cluster may be set up to forget what it has acknowledged: [`open`].

mod address;
mod bulk;
mod ids;
mod link;
mod mappings;
mod open;
mod source;

use std::ops::Bound;
use std::time::Duration;

use serde_json::{Value, json};

use self::link::{Failed, Link, Reply, Request, Sent, engine, explain};
use super::cells::{
    Answers, Beside, CasError, Cell, CellKey, Cells, Change, Compared, Found, Listed, ListedCell,
    ScannedCell, StoredCell,
};
use super::intents::shared::Remote;
use super::outage::Outage;
use super::scan::{Pager, bounds};
use super::{Range, Scan, Start, StoreError};
use crate::document::{Document, Key, Kind, SessionState, Version, text};

pub use address::AddressError;
pub use open::{OpenError, Options, format, open};

/// How many bits of a version are the sequence number; the others are the primary term, all but the topmost, so that the
/// number fits the servers' `long`.
const SEQUENCE_BITS: u32 = 40;
const TERM_MAX: u64 = (1 << (63 - SEQUENCE_BITS)) - 1;

/// All readers ask the same copy of a shard, as long as it is there: one that has not got a change yet must not take back
/// what another one has shown.
const SAME_COPY: &str = "preference=lockwood";

/// So many documents are asked for in one request: of chunks some tens of MB.
const READ_AT_ONCE: usize = 100;

/// So many documents are asked for at first.
const PAGE: usize = 1025;

/// The cells of one volume.
pub struct OpenSearchCells {
    link: Link,
}

/// The version of a document with this sequence number under this primary term. No two writes of an index have the same.
fn version(answer: &Value) -> Result<Version, String> {
    let number = |field: &'static str| answer.get(field).and_then(Value::as_u64).ok_or(field);
    match (number("_seq_no"), number("_primary_term")) {
        (Ok(sequence), Ok(term)) if sequence >> SEQUENCE_BITS == 0 && term <= TERM_MAX => {
            Ok(Version(term << SEQUENCE_BITS | sequence))
        }
        (Ok(sequence), Ok(term)) => Err(format!("it is beyond all versions: {sequence} of term {term}")),
        (Err(field), _) | (_, Err(field)) => Err(format!("it has no {field}")),
    }
}

impl OpenSearchCells {
    fn path(&self, key: &CellKey, endpoint: &str) -> String {
        let id = text::encode(ids::id(key).as_bytes());
        format!("/{}/{endpoint}/{id}", self.link.address.index(ids::index(key)))
    }

    /// The cell that the server says is there.
    fn found(key: &CellKey, hit: &Value) -> Result<StoredCell, StoreError> {
        let damaged = |cause: String| StoreError::Damaged { key: shown(key), cause };
        let version = version(hit).map_err(damaged)?;
        let source = hit.get("_source").ok_or_else(|| damaged("it has no _source".to_owned()))?;
        let cell = source::read(key, source, version).map_err(damaged)?;
        Ok(StoredCell { version, cell: cell.into() })
    }

    /// Asks for several cells.
    fn reading(&self, keys: &[CellKey]) -> Request {
        let address = &self.link.address;
        let wanted = |key: &CellKey| json!({ "_index": address.index(ids::index(key)), "_id": ids::id(key) });
        let docs: Vec<_> = keys.iter().map(wanted).collect();
        Request::post(format!("/_mget?{SAME_COPY}"), &json!({ "docs": docs }))
    }

    /// What is answered to that. `sent`: it is under way already.
    fn found_of(&self, keys: &[CellKey], request: &Request, sent: Option<Sent>) -> Found {
        let reply = self.link.ask_for_all(request, sent, unserved)?;
        let docs = reply.body.get("docs").and_then(Value::as_array).filter(|docs| docs.len() == keys.len());
        let docs = docs.ok_or_else(|| engine("reading several documents", explain(&reply)))?;
        let found = |(key, doc): (&CellKey, &Value)| match doc.get("found").and_then(Value::as_bool) {
            Some(true) => Self::found(key, doc).map(Some),
            Some(false) => Ok(None),
            None => {
                let reply = Reply { status: reply.status, body: doc.clone() };
                Err(engine(format!("reading {}", shown(key)), explain(&reply)))
            }
        };
        keys.iter().zip(docs).map(found).collect()
    }

    /// Asks for a change of one cell; none where nothing is to be changed.
    fn changing(&self, key: &CellKey, expected: Option<Version>, cell: Option<&Cell>) -> Option<Request> {
        let at = |version: Version| format!("{}?{}", self.path(key, "_doc"), condition(version));
        let request = match (cell, expected) {
            (Some(cell), None) => Request::put(self.path(key, "_create"), &source::write(key, cell)),
            (Some(cell), Some(version)) => Request::put(at(version), &source::write(key, cell)),
            (None, Some(version)) => Request::delete(at(version)),
            (None, None) => return None,
        };
        Some(request.within(cell.and_then(heartbeat_within)))
    }

    /// All documents of an index whose keys are in a range, as they are at one instant; at most `limit` of them.
    fn search(&self, kind: &str, keys: &Value, limit: usize) -> Result<Vec<Value>, StoreError> {
        let index = self.link.address.index(kind);
        // All copies must have done it: any of them may answer the search.
        let refreshed = self.link.ask(&Request::post_nothing(format!("/{index}/_refresh")))?;
        if refreshed.status != 200 || refreshed.body.pointer("/_shards/failed") != Some(&0.into()) {
            return Err(engine(format!("refreshing {index}"), explain(&refreshed)));
        }
        let query = json!({
            "size": limit,
            "query": { "range": { "key": keys } },
            "sort": [{ "key": "asc" }],
            "seq_no_primary_term": true,
            "track_total_hits": false,
        });
        let path = format!("/{index}/_search?allow_partial_search_results=false&{SAME_COPY}");
        let mut answer = self.link.ask(&Request::post(&path, &query))?;
        match answer.body.pointer_mut("/hits/hits").map(Value::take) {
            Some(Value::Array(hits)) if answer.status == 200 => Ok(hits),
            _ => Err(engine(format!("searching {index}"), explain(&answer))),
        }
    }
}

impl Remote for OpenSearchCells {
    fn outage(&self) -> Option<Outage> {
        self.link.outages.now()
    }
}

/// However short the lease is: what a busy cluster may need.
const HEARTBEAT_WITHIN_MIN: Duration = Duration::from_millis(500);

/// How long the answer to a heartbeat is waited for: a node that has died with it must be found out well within the lease of
/// the session, so that the next one hears it in time. Whether it was heard is looked up then.
fn heartbeat_within(cell: &Cell) -> Option<Duration> {
    match cell {
        Cell::Document(marked) => match &*marked.before.as_ref()?.document {
            Document::Session(session) if session.state == SessionState::Live => {
                Some((Duration::from_millis(session.lease_ms) / 4).max(HEARTBEAT_WITHIN_MIN))
            }
            _ => None,
        },
        _ => None,
    }
}

/// A key as people write it.
fn shown(key: &CellKey) -> String {
    match key {
        CellKey::Document(key) => key.to_string(),
        CellKey::Lock(id) => format!("lock:{id}"),
        CellKey::Slot(session, slot) => format!("intent:{session}:{slot}"),
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

impl Cells for OpenSearchCells {
    fn read(&self, key: &CellKey) -> Result<Option<StoredCell>, StoreError> {
        let reply = self.link.ask(&Request::get(format!("{}?{SAME_COPY}", self.path(key, "_doc"))))?;
        found_or_absent(&reply).and_then(|found| match found {
            true => Self::found(key, &reply.body).map(Some),
            false => Ok(None),
        })
    }

    fn read_many(&self, keys: &[CellKey]) -> Result<Vec<Option<StoredCell>>, StoreError> {
        match keys {
            [] => return Ok(Vec::new()),
            [key] => return Ok(vec![self.read(key)?]),
            _ if keys.len() > READ_AT_ONCE => {
                let parts = keys.chunks(READ_AT_ONCE).map(|part| self.read_many(part));
                return Ok(parts.collect::<Result<Vec<_>, _>>()?.concat());
            }
            _ => {}
        }
        self.found_of(keys, &self.reading(keys), None)
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScannedCell>, StoreError> {
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
            let hits = self.search(kind.name(), &keys, limit)?;
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
                let found = Self::found(&CellKey::Document(key.clone()), hit);
                page.push((key, found));
            }
            if is_whole {
                return Ok(page);
            }
            limit = limit.saturating_mul(2);
        }
    }

    fn list(&self, what: Listed) -> Result<Vec<ListedCell>, StoreError> {
        let mut listed = Vec::new();
        match what {
            Listed::Locks => {
                let mut start = Start::First;
                loop {
                    let page = self.scan(&Scan { range: Range::All(Kind::Lock), start, limit: PAGE })?;
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
            Listed::Slots => {
                let mut keys = json!({ "gte": "" });
                loop {
                    let hits = self.search(ids::INTENT, &keys, PAGE)?;
                    for hit in &hits {
                        let bytes = key_of(hit)?;
                        let Some(key) = slot_key(&bytes) else { continue };
                        let found = Self::found(&key, hit);
                        listed.push((key, found));
                        keys = json!({ "gt": ids::hex(&bytes) });
                    }
                    if hits.len() < PAGE {
                        return Ok(listed);
                    }
                }
            }
        }
    }

    fn cas(&self, key: &CellKey, expected: Option<Version>, cell: Option<Cell>) -> Result<Version, CasError> {
        match self.changing(key, expected, cell.as_ref()) {
            Some(request) => {
                let reply = self.link.tell(&request).map_err(unanswered)?;
                written(key, reply.status, &reply.body)
            }
            // Absent, and to be absent: nothing is to be done, but to look.
            None => match self.read(key)? {
                None => Ok(Version::default()),
                Some(_) => Err(CasError::Conflict),
            },
        }
    }

    fn cas_and_read(
        &self,
        change: Change,
        read: &[CellKey],
        beside: Option<Beside<'_>>,
    ) -> (Result<Version, CasError>, Found) {
        let reading = (1..=READ_AT_ONCE).contains(&read.len()).then(|| {
            let request = self.reading(read);
            let sent = self.link.send(&request);
            (request, sent)
        });
        let answer = match beside {
            Some(beside) => self.cas_along(change, beside),
            None => self.cas(&change.key, change.expected, change.cell),
        };
        let found = match reading {
            Some((request, sent)) => self.found_of(read, &request, Some(sent)),
            None => self.read_many(read),
        };
        (answer, found)
    }

    fn cas_each(&self, changes: &[Change]) -> Answers {
        self.change_each(changes)
    }

    fn cas_each_and_compare(&self, changes: &[Change], compared: &[Compared]) -> (Answers, bool) {
        self.change_each_and_compare(changes, compared)
    }
}

/// What a failure of a write without an answer is.
fn unanswered(failed: Failed) -> CasError {
    match failed {
        Failed::Unreached(error) | Failed::Refused(error) => CasError::Store(error),
        Failed::Unanswered(cause) => CasError::Unknown(cause),
    }
}

/// What became of a write that was answered.
fn written(key: &CellKey, status: u16, body: &Value) -> Result<Version, CasError> {
    let reply = || Reply { status, body: body.clone() };
    let kind = body.pointer("/error/type").and_then(Value::as_str).unwrap_or_default();
    match status {
        200 | 201 => version(body).map_err(|cause| StoreError::Damaged { key: shown(key), cause }.into()),
        // A deletion that finds nothing is answered so even where a version was to be compared.
        409 | 404 if kind != "index_not_found_exception" => Err(CasError::Conflict),
        403 | 429 if kind == "cluster_block_exception" => Err(StoreError::NoSpace.into()),
        400..=499 => Err(engine(format!("changing {}", shown(key)), explain(&reply())).into()),
        _ => Err(CasError::Unknown(explain(&reply()))),
    }
}

/// Why one of several documents was not read, though it may be later: its shard is just going to another node.
fn unserved(answer: &Value) -> Option<String> {
    let parts = answer.get("docs").and_then(Value::as_array)?;
    let error = |doc: &Value| {
        let kind = doc.pointer("/error/type").and_then(Value::as_str)?;
        (kind != "index_not_found_exception").then(|| explain(&Reply { status: 503, body: doc.clone() }))
    };
    parts.iter().find_map(error)
}

/// Whether a reading has found its document.
fn found_or_absent(reply: &Reply) -> Result<bool, StoreError> {
    match (reply.status, reply.body.get("found").and_then(Value::as_bool)) {
        (200, Some(true)) => Ok(true),
        (200 | 404, Some(false)) => Ok(false),
        _ => Err(engine("reading a document", explain(reply))),
    }
}

/// The sequence number and the primary term in a version.
fn parts(version: Version) -> (u64, u64) {
    (version.0 & ((1 << SEQUENCE_BITS) - 1), version.0 >> SEQUENCE_BITS)
}

/// What a write compares.
fn condition(version: Version) -> String {
    let (sequence, term) = parts(version);
    format!("if_seq_no={sequence}&if_primary_term={term}")
}

/// A lock document as a lock.
fn as_lock(stored: &StoredCell) -> Option<Cell> {
    use crate::document::Document;
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
    Some(CellKey::Slot(crate::document::SessionId(u64::from_be_bytes(*session)), slot))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_server() {
        let answer = json!({ "_seq_no": 7, "_primary_term": 3 });
        let at = version(&answer).unwrap();
        assert_eq!((parts(at), condition(at).as_str()), ((7, 3), "if_seq_no=7&if_primary_term=3"));
        assert!(at.0 < 1 << 63);
        assert!(version(&json!({ "_seq_no": 1u64 << 40, "_primary_term": 1 })).is_err());
        assert!(version(&json!({ "_seq_no": 1, "_primary_term": TERM_MAX + 1 })).is_err());
        assert!(version(&json!({ "_seq_no": 1 })).is_err());
    }

    #[test]
    fn answers_to_writes() {
        let key = CellKey::Document(Key::Volume);
        let of = |status, body: Value| written(&key, status, &body);
        assert!(of(201, json!({ "_seq_no": 7, "_primary_term": 3 })).is_ok());
        assert!(matches!(of(409, Value::Null), Err(CasError::Conflict)));
        assert!(matches!(of(404, json!({ "result": "not_found" })), Err(CasError::Conflict)));
        let missing = json!({ "error": { "type": "index_not_found_exception" } });
        assert!(matches!(of(404, missing), Err(CasError::Store(StoreError::Engine { .. }))));
        let full = json!({ "error": { "type": "cluster_block_exception" } });
        assert!(matches!(of(429, full), Err(CasError::Store(StoreError::NoSpace))));
        assert!(matches!(of(503, Value::Null), Err(CasError::Unknown(_))));
    }

    #[test]
    fn an_answer_in_parts_may_lack_one() {
        let found = json!({ "_id": "7", "found": true });
        let of =
            |kind: &str| json!({ "docs": [found, { "_id": "8", "error": { "type": kind, "reason": "r" } }] });
        let moving = unserved(&of("no_shard_available_action_exception")).unwrap();
        assert!(moving.starts_with("no_shard_available_action_exception: r"), "{moving}");
        assert_eq!(unserved(&of("index_not_found_exception")), None);
        assert_eq!(unserved(&json!({ "docs": [found] })), None);
    }
}
