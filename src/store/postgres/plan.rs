//! A commit as statements: one transaction, one statement a document, nodes behind all else, each in the order of the keys.
//! Where it can be they are parts of one statement (`whole`).
//!
//! All that is checked is locked by its check, and all locks are held to the end, so the transactions are serialisable
//! (strict two-phase locking) under READ COMMITTED: a version that is checked is held `FOR SHARE`, an existing row
//! `FOR KEY SHARE`, which lets merges pass. What is absent has no row to lock. Where the commit makes it, the primary key
//! decides; where it does not, a placeholder is made and removed in the same transaction, which keeps others from making
//! the row until the end. A blind delete makes sure of a row in the same way.
//!
//! Nodes come last, since what a merge into a node counts on is checked at the entries: two commits that remove one entry
//! each count it off, and the second must be refused for the entry that is gone, not for the count that would fall below 0.
//!
//! What the locks of the tree cover nobody changes while the session that has them lives. So the entries that a covered
//! commit only checks are held together, behind all other entries: out of the order, since nobody else wants them. (Unless a
//! crash has lost the locks; then two may wait for each other, which the server finds.)
//!
//! The order is the same for all, so no two commits wait for each other but where one key has several checks, or
//! two commits hold a row for reading that both then write; those deadlocks the server finds, and they are tried again.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::connection::{Call, Sql};
use super::merge::touched;
use super::rows::{document_values, key_values, placeholder};
use super::tables::{Action, table};
use super::value::Value;
use super::whole::Parts;
use crate::document::{Document, Key, Kind, NodeDelta, Version};
use crate::store::{Check, Commit, Durability, Write};

/// One statement, and the document that it is about.
pub(super) struct Step {
    pub(super) key: Key,
    pub(super) call: Call,
}

/// What a commit does with one document.
#[derive(Default)]
struct Part<'a> {
    checks: Vec<&'a Check>,
    write: Option<&'a Write>,
}

/// The statements of a commit; none for one whose own parts exclude each other.
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// Whether anything is written.
    pub(super) writes: bool,
    pub(super) durability: Durability,
}

/// What a commit is to note in table `outcome`: for whoever loses its answer.
pub(super) struct Own {
    pub(super) connection: i64,
    pub(super) number: i64,
}

impl Plan {
    /// # Errors
    /// The key that a commit both rests on as absent and merges into, which nothing can satisfy.
    pub(super) fn of(commit: &Commit) -> Result<Self, Key> {
        let mut documents: BTreeMap<(bool, &Key), Part<'_>> = BTreeMap::new();
        for check in &commit.checks {
            documents.entry(ordered(check.key())).or_default().checks.push(check);
        }
        for write in &commit.writes {
            documents.entry(ordered(write.key())).or_default().write = Some(write);
        }
        let own = commit.session.map(Key::Session);
        if let Some(own) = &own {
            documents.entry(ordered(own)).or_default();
        }
        let mut steps = Vec::with_capacity(documents.len() + 1);
        let mut covered = Entries::default();
        for ((is_node, key), Part { checks, write }) in documents {
            if is_node {
                steps.extend(std::mem::take(&mut covered).steps());
            }
            if commit.covered && commit.session.is_some() && write.is_none() && covered.add(&checks) {
                continue;
            }
            if own.as_ref() == Some(key) {
                let action = if write.is_some() { Action::HoldLiveAlone } else { Action::HoldLive };
                steps.push(step(key, action, Vec::new()));
            }
            document(key, &checks, write, &mut steps)?;
        }
        steps.extend(covered.steps());
        Ok(Self { steps, writes: !commit.writes.is_empty(), durability: commit.durability })
    }

    /// The step whose document is there already, by the table that refused it, which not every server that speaks the
    /// protocol names. Of several new documents it is then not known which; whoever makes several looks at all again.
    pub(super) fn refused_as_there(&self, table_name: Option<&str>) -> Option<&Step> {
        self.steps.iter().find(|step| match step.call.sql {
            Sql::Document(kind, Action::Insert) => table_name.is_none_or(|name| name == table(kind).name),
            _ => false,
        })
    }

    /// Whether it is found out what became of it if its answer is lost.
    pub(super) fn is_noted(&self) -> bool {
        self.writes && self.durability == Durability::Full
    }

    fn noted(&self, own: &Own) -> impl Iterator<Item = Value> + use<> {
        let noted = self.is_noted().then_some([own.connection, own.number]);
        noted.into_iter().flatten().map(Value::Int)
    }

    /// All of it as one statement, if it can be: no document has two parts, and there are not so many that the statement
    /// were hardly ever used again.
    pub(super) fn whole(&self, own: &Own) -> Option<Call> {
        let once = self.steps.windows(2).all(|pair| pair[0].key != pair[1].key);
        if !self.writes || !once || self.steps.len() > PARTS_MAX {
            return None;
        }
        let part = |step: &Step| match step.call.sql {
            Sql::Document(kind, action) => Some((kind, action)),
            _ => None,
        };
        let parts = self.steps.iter().map(part).collect::<Option<Arc<Parts>>>()?;
        let params = self.steps.iter().flat_map(|step| step.call.params.iter().cloned());
        Some(Call {
            sql: Sql::Whole(parts, self.durability),
            params: params.chain(self.noted(own)).collect(),
        })
    }
}

const PARTS_MAX: usize = 24;
/// A multiple of four.
const HELD_TOGETHER: usize = 16;

/// Entries that must have their versions.
#[derive(Default)]
struct Entries<'a>(Vec<(&'a Key, Version)>);

impl<'a> Entries<'a> {
    /// False if this is another document than an entry, or checked for something else.
    fn add(&mut self, checks: &[&'a Check]) -> bool {
        let [Check::Version(key @ Key::Entry(..), version)] = checks else { return false };
        self.0.push((key, *version));
        true
    }

    /// Statements for so many at a time. Which of them has changed is then not known; whoever meets that forgets all that
    /// the commit rests on.
    fn steps(&self) -> impl Iterator<Item = Step> {
        self.0.chunks(HELD_TOGETHER).map(held_together)
    }
}

/// Of these at least one.
fn held_together(entries: &[(&Key, Version)]) -> Step {
    let count = entries.len();
    // One statement serves paths of several depths: the last entry fills the places that are left, which is to ask twice.
    let places = if count > 4 { count.next_multiple_of(4) } else { count };
    let last = entries.last().into_iter().cycle().take(places - count);
    let values = |(key, version): &(&Key, Version)| with_version(key_values(key), *version);
    let params = entries.iter().chain(last).flat_map(values).collect();
    let sql = Sql::Document(Kind::Entry, Action::HoldVersions(places as u8));
    Step { key: entries[0].0.clone(), call: Call { sql, params } }
}

fn ordered(key: &Key) -> (bool, &Key) {
    (key.kind() == Kind::Node, key)
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
    let (touched, values) = touched(delta);
    steps.push(match check {
        Some(Check::Absent(_)) => return Err(key.clone()),
        None | Some(Check::Exists(_)) => step(key, Action::Merge(touched), values),
        Some(Check::Version(_, version)) => {
            step(key, Action::MergeVersion(touched), with_version(values, *version))
        }
    });
    Ok(())
}
