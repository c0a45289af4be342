//! Several documents in one request.
//!
//! What is hard: each line of a request is done or refused by itself, and in order only within one index, which is one
//! shard.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::link::{Request, engine, explain};
use super::source::Source;
use super::{OpenSearchCells, damaged, ids, joined, parts, unanswered, written};
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
            Some(Items { items }) if items.len() == count => Ok(items.into_iter().map(Item::of).collect()),
            _ => Err(CasError::Unknown(explain(&reply))),
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
        match (self.status, self.sequence, self.term) {
            (200 | 201, Some(sequence), Some(term)) => Ok(joined(sequence, term).map_err(damaged(key))?),
            _ => written(key, self.status, &json!({ "error": self.error })),
        }
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
