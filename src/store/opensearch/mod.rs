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
mod pages;
mod reply;
mod source;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde_json::{Value, json};

use self::link::{Failed, Link, Request, Sent, engine};
use self::reply::{BLOCKED, Reply, blocked, explain, said};
use self::source::{Part, Source};
use super::cells::{
    Answers, Beside, CasError, Cell, CellKey, Cells, Change, Compared, Found, Listed, ListedCell,
    ScannedCell, StoredCell,
};
use super::intents::shared::Remote;
use super::outage::Outages;
use super::{Scan, StoreError};
use crate::document::{Document, SessionState, Version, text};

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

/// The cells of one volume.
pub struct OpenSearchCells {
    link: Link,
    /// Whether documents were met that are none of Lockwood's. That is said once.
    has_met_others: AtomicBool,
}

/// The version of a document, from what was answered of it.
fn version(answer: &Value) -> Result<Version, String> {
    let number = |field: &str| answer.get(field).and_then(Value::as_u64);
    joined(number("_seq_no"), number("_primary_term"))
}

/// The version with this sequence number under this primary term. No two writes of an index have the same.
fn joined(sequence: Option<u64>, term: Option<u64>) -> Result<Version, String> {
    let sequence = sequence.ok_or("it has no _seq_no")?;
    let term = term.ok_or("it has no _primary_term")?;
    if sequence >> SEQUENCE_BITS == 0 && term <= TERM_MAX {
        Ok(Version(term << SEQUENCE_BITS | sequence))
    } else {
        Err(format!("it is beyond all versions: {sequence} of term {term}"))
    }
}

/// The sequence number and the primary term in a version.
fn parts(version: Version) -> (u64, u64) {
    (version.0 & ((1 << SEQUENCE_BITS) - 1), version.0 >> SEQUENCE_BITS)
}

impl OpenSearchCells {
    fn path(&self, key: &CellKey, endpoint: &str) -> String {
        let id = text::encode(ids::id(key).as_bytes());
        format!("/{}/{endpoint}/{id}", self.link.address.index(ids::index(key)))
    }

    /// The cell that the server says is there.
    fn found(key: &CellKey, hit: &Value, part: Part) -> Result<StoredCell, StoreError> {
        let version = version(hit).map_err(damaged(key))?;
        let source = hit.get("_source").ok_or_else(|| damaged(key)("it has no _source".to_owned()))?;
        let cell = source::read(key, source, version, part).map_err(damaged(key))?;
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
        let docs = reply.body().get("docs").and_then(Value::as_array).filter(|docs| docs.len() == keys.len());
        let docs = docs.ok_or_else(|| engine("reading several documents", explain(&reply)))?;
        let found = |(key, doc): (&CellKey, &Value)| match doc.get("found").and_then(Value::as_bool) {
            Some(true) => Self::found(key, doc, Part::Whole).map(Some),
            Some(false) => Ok(None),
            None => Err(engine(format!("reading {}", shown(key)), said(reply.status, doc))),
        };
        keys.iter().zip(docs).map(found).collect()
    }

    /// Asks for a change of one cell; none where nothing is to be changed.
    fn changing(&self, key: &CellKey, expected: Option<Version>, cell: Option<&Cell>) -> Option<Request> {
        let at = |version: Version| format!("{}?{}", self.path(key, "_doc"), condition(version));
        let request = match (cell, expected) {
            (Some(cell), None) => Request::put(self.path(key, "_create"), &Source { key, cell }),
            (Some(cell), Some(version)) => Request::put(at(version), &Source { key, cell }),
            (None, Some(version)) => Request::delete(at(version)),
            (None, None) => return None,
        };
        Some(request.within(cell.and_then(heartbeat_within)))
    }
}

impl Remote for OpenSearchCells {
    fn outages(&self) -> Option<&Outages> {
        Some(&self.link.outages)
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

impl Cells for OpenSearchCells {
    fn read(&self, key: &CellKey) -> Result<Option<StoredCell>, StoreError> {
        let reply = self.link.ask(&Request::get(format!("{}?{SAME_COPY}", self.path(key, "_doc"))))?;
        found_or_absent(&reply).and_then(|found| match found {
            true => Self::found(key, reply.body(), Part::Whole).map(Some),
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
        self.page(scan, Part::Whole)
    }

    fn scan_outlines(&self, scan: &Scan) -> Result<Vec<ScannedCell>, StoreError> {
        self.page(scan, Part::Outline)
    }

    fn list(&self, what: Listed) -> Result<Vec<ListedCell>, StoreError> {
        match what {
            Listed::Locks => self.locks(),
            Listed::Slots => self.slots(),
        }
    }

    fn cas(&self, key: &CellKey, expected: Option<Version>, cell: Option<Cell>) -> Result<Version, CasError> {
        match self.changing(key, expected, cell.as_ref()) {
            Some(request) => {
                let reply = self.link.tell(&request).map_err(unanswered)?;
                written(key, reply.status, || version(reply.body()), reply.body())
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

/// What is wrong with what the server has of a cell.
fn damaged(key: &CellKey) -> impl FnOnce(String) -> StoreError {
    move |cause| StoreError::Damaged { key: shown(key), cause }
}

/// What a failure of a write without an answer is.
fn unanswered(failed: Failed) -> CasError {
    match failed {
        Failed::Unreached(error) | Failed::Refused(error) => CasError::Store(error),
        Failed::Unanswered(cause) => CasError::Unknown(cause),
    }
}

/// What became of a write that was answered: which `version` it has made, or why not.
fn written(
    key: &CellKey,
    status: u16,
    version: impl FnOnce() -> Result<Version, String>,
    body: &Value,
) -> Result<Version, CasError> {
    let changing = || format!("changing {}", shown(key));
    let kind = body.pointer("/error/type").and_then(Value::as_str).unwrap_or_default();
    match status {
        // It was made; what it has become is to be looked up.
        200 | 201 => version().map_err(|cause| CasError::Unknown(format!("{}: {cause}", shown(key)))),
        // A deletion that finds nothing is answered so even where a version was to be compared.
        409 | 404 if kind != "index_not_found_exception" => Err(CasError::Conflict),
        403 | 429 if kind == BLOCKED => Err(blocked(changing(), status, body).into()),
        400..=499 => Err(engine(changing(), said(status, body)).into()),
        _ => Err(CasError::Unknown(said(status, body))),
    }
}

/// Why one of several documents was not read, though it may be later: its shard is just going to another node.
fn unserved(answer: &Reply) -> Option<String> {
    let parts = answer.body().get("docs").and_then(Value::as_array)?;
    let error = |doc: &Value| {
        let kind = doc.pointer("/error/type").and_then(Value::as_str)?;
        (kind != "index_not_found_exception").then(|| said(503, doc))
    };
    parts.iter().find_map(error)
}

/// Whether a reading has found its document.
fn found_or_absent(reply: &Reply) -> Result<bool, StoreError> {
    match (reply.status, reply.body().get("found").and_then(Value::as_bool)) {
        (200, Some(true)) => Ok(true),
        (200 | 404, Some(false)) => Ok(false),
        _ => Err(engine("reading a document", explain(reply))),
    }
}

/// What a write compares.
fn condition(version: Version) -> String {
    let (sequence, term) = parts(version);
    format!("if_seq_no={sequence}&if_primary_term={term}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Key;

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
        let of = |status, body: Value| written(&key, status, || version(&body), &body);
        assert!(of(201, json!({ "_seq_no": 7, "_primary_term": 3 })).is_ok());
        assert!(matches!(of(409, Value::Null), Err(CasError::Conflict)));
        assert!(matches!(of(404, json!({ "result": "not_found" })), Err(CasError::Conflict)));
        let missing = json!({ "error": { "type": "index_not_found_exception" } });
        assert!(matches!(of(404, missing), Err(CasError::Store(StoreError::Engine { .. }))));
        let blocked =
            |reason: &str| json!({ "error": { "type": "cluster_block_exception", "reason": reason } });
        let full =
            of(429, blocked("blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark]"));
        assert!(matches!(full, Err(CasError::Store(StoreError::NoSpace))));
        let by_someone = of(403, blocked("blocked by: [FORBIDDEN/8/index write (api)]"));
        assert!(matches!(by_someone, Err(CasError::Store(StoreError::Engine { .. }))));
        assert!(matches!(of(503, Value::Null), Err(CasError::Unknown(_))));
    }

    #[test]
    fn an_answer_in_parts_may_lack_one() {
        let found = json!({ "_id": "7", "found": true });
        let of = |kind: &str| {
            Reply::of(
                200,
                &json!({ "docs": [found, { "_id": "8", "error": { "type": kind, "reason": "r" } }] }),
            )
        };
        let moving = unserved(&of("no_shard_available_action_exception")).unwrap();
        assert!(moving.starts_with("no_shard_available_action_exception: r"), "{moving}");
        assert_eq!(unserved(&of("index_not_found_exception")), None);
        assert_eq!(unserved(&Reply::of(200, &json!({ "docs": [found] }))), None);
    }
}
