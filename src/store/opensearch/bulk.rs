//! Several documents in one request.
//!
//! What is hard: each line of a request is done or refused by itself, and in order only within one index, which is one
//! shard.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::link::{Request, engine, explain};
use super::{OpenSearchCells, ids, parts, source, unanswered, written};
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
        let mut lines = String::new();
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
        let mut lines = String::new();
        for compared in compared {
            self.add_comparison(&mut lines, compared);
        }
        self.send(lines, compared.len()).is_ok_and(|items| items.iter().all(Item::is_unchanged))
    }

    /// The first of these changes, as many as one request takes. Returns their answers, of one at least.
    fn bulk(&self, changes: &[Change]) -> Answers {
        let mut lines = String::new();
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

    fn add_change(&self, lines: &mut String, change: &Change) {
        let action = match (&change.cell, change.expected) {
            (Some(_), None) => "create",
            (Some(_), Some(_)) => "index",
            (None, _) => "delete",
        };
        self.add_line(lines, action, &change.key, change.expected);
        if let Some(cell) = &change.cell {
            let _ = writeln!(lines, "{}", source::write(&change.key, cell)); // A string takes all.
        }
    }

    /// An update that changes nothing, and is refused unless the version is that: by the primary, when it comes to it.
    fn add_comparison(&self, lines: &mut String, compared: &Compared) {
        self.add_line(lines, "update", &compared.key, Some(compared.at));
        let _ = writeln!(lines, "{}", json!({ "doc": {} })); // A string takes all.
    }

    fn add_line(&self, lines: &mut String, action: &str, key: &CellKey, expected: Option<Version>) {
        let mut target = json!({ "_index": self.link.address.index(ids::index(key)), "_id": ids::id(key) });
        if let Some(version) = expected {
            let (sequence, term) = parts(version);
            target["if_seq_no"] = sequence.into();
            target["if_primary_term"] = term.into();
        }
        let _ = writeln!(lines, "{}", json!({ action: target })); // A string takes all.
    }

    /// Sends lines for `count` documents; an answer for each.
    fn send(&self, lines: String, count: usize) -> Result<Vec<Item>, CasError> {
        let mut reply = self.link.tell(&Request::lines("/_bulk", lines.into_bytes())).map_err(unanswered)?;
        match reply.body.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) if items.len() == count => {
                Ok(items.into_iter().map(Item::of).collect())
            }
            _ => Err(CasError::Unknown(explain(&reply))),
        }
    }
}

/// What was answered of one document of many.
struct Item {
    status: u16,
    body: Value,
}

impl Item {
    fn of(item: Value) -> Self {
        let body = match item {
            Value::Object(actions) => actions.into_iter().next().map(|(_, body)| body).unwrap_or_default(),
            _ => Value::Null,
        };
        let status = body.get("status").and_then(Value::as_u64);
        let status = status.and_then(|status| u16::try_from(status).ok()).unwrap_or_default();
        Self { status, body }
    }

    fn written(&self, key: &CellKey) -> Result<Version, CasError> {
        written(key, self.status, &self.body)
    }

    fn is_unchanged(&self) -> bool {
        self.status == 200 && self.body.get("result").and_then(Value::as_str) == Some("noop")
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
