//! A commit as statements: one transaction, one statement a document, in the order of the keys.
//!
//! All that is checked is locked by its check, and all locks are held to the end, so the transactions are serialisable
//! (strict two-phase locking) under READ COMMITTED: a version that is checked is held `FOR SHARE`, an existing row
//! `FOR KEY SHARE`, which lets merges pass. What is absent has no row to lock. Where the commit makes it, the primary key
//! decides; where it does not, a placeholder is made and removed in the same transaction, which keeps others from making
//! the row until the end. A blind delete makes sure of a row in the same way.
//!
//! The order of the keys is the same for all, so no two commits wait for each other but where one key has several checks, or
//! two commits hold a row for reading that both then write; those deadlocks the server finds, and they are tried again.

use std::collections::BTreeMap;

use super::connection::{Call, Sql};
use super::rows::{document_values, key_values, merge_values, placeholder};
use super::tables::Action;
use super::value::Value;
use crate::document::{Document, Key, NodeDelta, Version};
use crate::store::{Check, Commit, Write};

/// One statement, and the document that it is about.
pub(super) struct Step {
    pub(super) key: Key,
    pub(super) call: Call,
}

/// The statements of a commit; none for one whose own parts exclude each other.
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// Whether anything is written.
    pub(super) writes: bool,
}

impl Plan {
    /// # Errors
    /// The key that a commit both rests on as absent and merges into, which nothing can satisfy.
    pub(super) fn of(commit: &Commit) -> Result<Self, Key> {
        let mut documents: BTreeMap<&Key, (Vec<&Check>, Option<&Write>)> = BTreeMap::new();
        for check in &commit.checks {
            documents.entry(check.key()).or_default().0.push(check);
        }
        for write in &commit.writes {
            documents.entry(write.key()).or_default().1 = Some(write);
        }
        let own = commit.session.map(Key::Session);
        if let Some(own) = &own {
            documents.entry(own).or_default();
        }
        let mut steps = Vec::with_capacity(documents.len() + 1);
        for (key, (checks, write)) in documents {
            if own.as_ref() == Some(key) {
                let action = if write.is_some() { Action::HoldLiveAlone } else { Action::HoldLive };
                steps.push(step(key, action, Vec::new()));
            }
            document(key, &checks, write, &mut steps)?;
        }
        Ok(Self { steps, writes: !commit.writes.is_empty() })
    }
}

fn step(key: &Key, action: Action, more: Vec<Value>) -> Step {
    let mut params = key_values(key);
    params.extend(more);
    Step { key: key.clone(), call: Call { sql: Sql::Document(key.kind(), action), params } }
}

fn with_version(mut values: Vec<Value>, version: Version) -> Vec<Value> {
    values.push(version.0.into());
    values
}

fn document(key: &Key, checks: &[&Check], write: Option<&Write>, steps: &mut Vec<Step>) -> Result<(), Key> {
    // The last check is made by the statement that writes; others have one of their own.
    let (last, others) = match (checks.split_last(), write) {
        (Some((last, others)), Some(_)) => (Some(*last), others),
        _ => (None, checks),
    };
    for check in others {
        hold(key, check, steps);
    }
    match write {
        None => {}
        Some(Write::Put(_, document)) => put(key, last, document, steps),
        Some(Write::Delete(_)) => delete(key, last, steps),
        Some(Write::Merge(_, delta)) => merge(key, last, delta, steps)?,
    }
    Ok(())
}

fn hold(key: &Key, check: &Check, steps: &mut Vec<Step>) {
    match check {
        Check::Version(_, version) => steps.push(step(key, Action::HoldVersion, vec![version.0.into()])),
        Check::Exists(_) => steps.push(step(key, Action::HoldExisting, Vec::new())),
        Check::Absent(_) => {
            steps.push(step(key, Action::Insert, document_values(&placeholder(key.kind()))));
            steps.push(step(key, Action::Delete, Vec::new()));
        }
    }
}

fn put(key: &Key, check: Option<&Check>, document: &Document, steps: &mut Vec<Step>) {
    let values = document_values(document);
    steps.push(match check {
        None => step(key, Action::Upsert, values),
        Some(Check::Absent(_)) => step(key, Action::Insert, values),
        Some(Check::Exists(_)) => step(key, Action::Update, values),
        Some(Check::Version(_, version)) => step(key, Action::UpdateVersion, with_version(values, *version)),
    });
}

fn delete(key: &Key, check: Option<&Check>, steps: &mut Vec<Step>) {
    match check {
        None => {
            steps.push(step(key, Action::Upsert, document_values(&placeholder(key.kind()))));
            steps.push(step(key, Action::Delete, Vec::new()));
        }
        Some(Check::Absent(_)) => check.into_iter().for_each(|check| hold(key, check, steps)),
        Some(Check::Exists(_)) => steps.push(step(key, Action::Delete, Vec::new())),
        Some(Check::Version(_, version)) => {
            steps.push(step(key, Action::DeleteVersion, vec![version.0.into()]));
        }
    }
}

fn merge(key: &Key, check: Option<&Check>, delta: &NodeDelta, steps: &mut Vec<Step>) -> Result<(), Key> {
    let values = merge_values(delta);
    steps.push(match check {
        Some(Check::Absent(_)) => return Err(key.clone()),
        None | Some(Check::Exists(_)) => step(key, Action::Merge, values),
        Some(Check::Version(_, version)) => step(key, Action::MergeVersion, with_version(values, *version)),
    });
    Ok(())
}
