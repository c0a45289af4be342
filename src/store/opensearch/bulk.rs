//! Several documents in one request.
//!
//! What is hard: each line of a request is done or refused by itself, and in order only within one index, which is one
//! shard.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::link::{Request, engine};
use super::source::Source;
use super::{OpenSearchCells, ids, joined, parts, unanswered, written};
use crate::document::Version;
use crate::store::StoreError;
use crate::store::cells::{Answers, CasError, CellKey, Cells, Change, Compared};

/// A request for several changes is ended behind this. The servers take 100 MB, and one change is below 1 MB.
const BULK_BYTES: usize = 16 << 20;

impl OpenSearchCells {
    /// See [`Cells::cas_each`].
    pub(super) fn change_each(&self, changes: &[Change]) -> Answers {
        let mut answers = Vec::with_capacity(changes.len());
        while answers.len() < changes.len() {
            let left = &changes[answers.len()..];
            match left {
                [first, second, ..] if is_change(first) && is_change(second) => {
                    let together = left.iter().position(|change| !is_change(change)).unwrap_or(left.len());
                    answers.extend(self.bulk(&left[..together]));
                }
                [Change { key, expected, cell, .. }, ..] => {
                    answers.push(self.cas(key, *expected, cell.clone()));
                }
                [] => {}
            }
        }
        answers
    }

    /// See [`Cells::cas_each_and_compare`]. An index is one shard, which does its part of a request in order; so each
    /// comparison comes behind all changes.
    pub(super) fn change_each_and_compare(
        &self,
        changes: &[Change],
        compared: &[Compared],
    ) -> (Answers, bool) {
        let mut lines = Vec::new();
        for change in changes {
            self.add_change(&mut lines, change);
        }
        if lines.len() > BULK_BYTES || changes.iter().any(|change| !is_change(change)) {
            let answers = self.change_each(changes);
            return (answers, self.are_unchanged(compared));
        }
        for compared in compared {
            self.add_comparison(&mut lines, compared);
        }
        match self.send(lines, changes.len() + compared.len()) {
            Ok(items) => {
                let (written, looked_at) = items.split_at(changes.len());
                let written = changes.iter().zip(written).map(|(change, item)| item.written(&change.key));
                (written.collect(), looked_at.iter().all(Item::is_unchanged))
            }
            Err(error) => (changes.iter().map(|_| Err(again(&error))).collect(), false),
        }
    }

    fn are_unchanged(&self, compared: &[Compared]) -> bool {
        let mut lines = Vec::new();
        for compared in compared {
            self.add_comparison(&mut lines, compared);
        }
        self.send(lines, compared.len()).is_ok_and(|items| items.iter().all(Item::is_unchanged))
    }

    /// The first of these changes, as many as one request takes. Returns their answers, of one at least.
    fn bulk(&self, changes: &[Change]) -> Answers {
        let mut lines = Vec::new();
        let mut sent = 0;
        for change in changes {
            if lines.len() > BULK_BYTES {
                break;
            }
            sent += 1;
            self.add_change(&mut lines, change);
        }
        let changes = &changes[..sent];
        match self.send(lines, sent) {
            Ok(items) => changes.iter().zip(&items).map(|(change, item)| item.written(&change.key)).collect(),
            Err(error) => changes.iter().map(|_| Err(again(&error))).collect(),
        }
    }

    fn add_change(&self, lines: &mut Vec<u8>, change: &Change) {
        let action = match (&change.cell, change.expected) {
            (Some(_), None) => Action::Create,
            (Some(_), Some(_)) => Action::Index,
            (None, _) => Action::Delete,
        };
        self.add_action(lines, action, &change.key, change.expected);
        if let Some(cell) = &change.cell {
            add(lines, &Source { key: &change.key, cell });
        }
    }

    /// An update that changes nothing, and is refused unless the version is that: by the primary, when it comes to it.
    fn add_comparison(&self, lines: &mut Vec<u8>, compared: &Compared) {
        self.add_action(lines, Action::Update, &compared.key, Some(compared.at));
        lines.extend_from_slice(b"{\"doc\":{}}\n");
    }

    fn add_action(
        &self,
        lines: &mut Vec<u8>,
        action: fn(Target) -> Action,
        key: &CellKey,
        expected: Option<Version>,
    ) {
        let (sequence, term) = expected.map(parts).unzip();
        let index = self.link.address.index(ids::index(key));
        add(lines, &action(Target { index, id: ids::id(key), sequence, term }));
    }

    /// Sends lines for `count` documents; an answer for each.
    fn send(&self, lines: Vec<u8>, count: usize) -> Result<Vec<Item>, CasError> {
        let reply = self.link.tell(&Request::lines("/_bulk", lines)).map_err(unanswered)?;
        match reply.read::<Items>() {
            Ok(Items { items }) if items.len() == count => Ok(items.into_iter().map(Item::of).collect()),
            Ok(Items { items }) => {
                Err(CasError::Unknown(format!("of {count} documents {} were answered", items.len())))
            }
            Err(cause) => Err(CasError::Unknown(cause)),
        }
    }
}

/// One line. A vector takes all, and all that is written here has names for keys.
fn add(lines: &mut Vec<u8>, line: &impl Serialize) {
    let _ = serde_json::to_writer(&mut *lines, line);
    lines.push(b'\n');
}

/// What is to be done with a document.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Create(Target),
    Index(Target),
    Delete(Target),
    Update(Target),
}

/// Which document, and the version that it must have.
#[derive(Serialize)]
struct Target {
    #[serde(rename = "_index")]
    index: String,
    #[serde(rename = "_id")]
    id: String,
    #[serde(rename = "if_seq_no", skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
    #[serde(rename = "if_primary_term", skip_serializing_if = "Option::is_none")]
    term: Option<u64>,
}

#[derive(Deserialize)]
struct Items {
    items: Vec<Answered>,
}

/// What was answered of one document of many, under what was done with it.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answered {
    Create(Item),
    Index(Item),
    Delete(Item),
    Update(Item),
}

/// The fields of that which are of use.
#[derive(Deserialize)]
struct Item {
    status: u16,
    result: Option<String>,
    #[serde(rename = "_seq_no")]
    sequence: Option<u64>,
    #[serde(rename = "_primary_term")]
    term: Option<u64>,
    error: Option<Value>,
}

impl Item {
    fn of(answered: Answered) -> Self {
        match answered {
            Answered::Create(item)
            | Answered::Index(item)
            | Answered::Delete(item)
            | Answered::Update(item) => item,
        }
    }

    fn written(&self, key: &CellKey) -> Result<Version, CasError> {
        let version = || joined(self.sequence, self.term);
        written(key, self.status, version, &json!({ "error": self.error }))
    }

    fn is_unchanged(&self) -> bool {
        self.status == 200 && self.result.as_deref() == Some("noop")
    }
}

/// What changes nothing is no line of a request.
fn is_change(change: &Change) -> bool {
    change.cell.is_some() || change.expected.is_some()
}

/// The same failure for another change of the same request.
fn again(error: &CasError) -> CasError {
    match error {
        CasError::Conflict => CasError::Conflict,
        CasError::Store(StoreError::NoSpace) => CasError::Store(StoreError::NoSpace),
        CasError::Store(error) => CasError::Store(engine("changing several documents", error.to_string())),
        CasError::Unknown(cause) => CasError::Unknown(cause.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::reply::{BLOCKED, Reply};
    use super::*;
    use crate::document::Key;

    #[test]
    fn lines_are_what_the_servers_take() {
        let target = |version: Option<(u64, u64)>| {
            let (sequence, term) = version.unzip();
            Target { index: "v-entry".into(), id: "1:a".into(), sequence, term }
        };
        for (action, is) in [
            (Action::Create(target(None)), r#"{"create":{"_index":"v-entry","_id":"1:a"}}"#),
            (
                Action::Index(target(Some((7, 3)))),
                r#"{"index":{"_index":"v-entry","_id":"1:a","if_seq_no":7,"if_primary_term":3}}"#,
            ),
            (
                Action::Delete(target(Some((u64::MAX, 1)))),
                r#"{"delete":{"_index":"v-entry","_id":"1:a","if_seq_no":18446744073709551615,"if_primary_term":1}}"#,
            ),
            (Action::Update(target(None)), r#"{"update":{"_index":"v-entry","_id":"1:a"}}"#),
        ] {
            let mut lines = Vec::new();
            add(&mut lines, &action);
            assert_eq!(String::from_utf8(lines).unwrap(), format!("{is}\n"));
        }
    }

    #[test]
    fn each_document_has_an_answer() {
        let refused = |status: u16, error: Value| json!({ "index": { "_id": "1:a", "status": status, "error": error } });
        let error = |kind: &str, reason: &str| json!({ "type": kind, "reason": reason });
        let made = json!({ "_id": "1:a", "result": "created", "_shards": { "total": 1 },
            "_seq_no": 7, "_primary_term": 3, "status": 201 });
        let without = json!({ "result": "updated", "_seq_no": 7, "status": 200 });
        let gone = json!({ "result": "not_found", "_seq_no": 8, "_primary_term": 3, "status": 404 });
        let items = [
            json!({ "create": made }),
            json!({ "index": without }),
            json!({ "delete": gone }),
            refused(409, error("version_conflict_engine_exception", "r")),
            refused(429, error(BLOCKED, "disk usage exceeded flood-stage watermark")),
            refused(400, "in words".into()),
            refused(503, error("unavailable_shards_exception", "r")),
            json!({ "update": { "result": "noop", "_seq_no": 7, "_primary_term": 3, "status": 200 } }),
        ];
        let answer = Reply::of(200, &json!({ "took": 1, "errors": true, "items": items }));
        let items: Vec<_> = answer.read::<Items>().unwrap().items.into_iter().map(Item::of).collect();
        let key = CellKey::Document(Key::Volume);
        let of = |nth: usize| items[nth].written(&key);
        assert_eq!(of(0).unwrap(), joined(Some(7), Some(3)).unwrap());
        assert!(matches!(of(1), Err(CasError::Unknown(cause)) if cause.contains("_primary_term")));
        assert!(matches!(of(2), Err(CasError::Conflict)));
        assert!(matches!(of(3), Err(CasError::Conflict)));
        assert!(matches!(of(4), Err(CasError::Store(StoreError::NoSpace))));
        assert!(matches!(of(5), Err(CasError::Store(StoreError::Engine { .. }))));
        assert!(matches!(of(6), Err(CasError::Unknown(_))));
        assert!(items[7].is_unchanged() && !items[0].is_unchanged());
        let odd = Reply::of(200, &json!({ "items": [{ "index": { "status": "201" } }] }));
        assert!(odd.read::<Items>().is_err_and(|cause| cause.contains("status")));
    }
}
