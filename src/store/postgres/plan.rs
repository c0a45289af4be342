//! A commit as statements: one transaction, one statement a document (or for the locks of a set, or for all entries that
//! are only held), nodes behind all else, each in the order of the keys. Where it can be they are parts of one statement
//! (`whole`).
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
//! The order is the same for all (several of one statement are found in the order of their index, which is that of the
//! keys), so no two commits wait for each other but where one key has several checks, or two commits hold a row for reading
//! that both then write; those deadlocks the server finds, and they are tried again.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::connection::{Call, Sql};
use super::merge::touched;
use super::rows::{document_values, entry_lists, key_values, placeholder};
use super::tables::{Action, table};
use super::value::Value;
use super::whole::Parts;
use crate::document::{Document, Ino, Key, Kind, Name, NodeDelta, Version};
use crate::store::{Check, Commit, Durability, Write};

/// One statement, and the document that it is about, or the first of them.
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
    /// Whether the steps can be parts of one statement: no two are about the same document, and there are not so many that
    /// the statement were hardly ever used again.
    is_whole: bool,
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
                steps.extend(std::mem::take(&mut covered).step());
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
        steps.extend(covered.step());
        let writes = !commit.writes.is_empty();
        let once = steps.windows(2).all(|pair| pair[0].key != pair[1].key);
        let is_whole = writes && once && steps.len() <= PARTS_MAX;
        if is_whole {
            steps = locks_together(steps);
        }
        Ok(Self { steps, is_whole, writes, durability: commit.durability })
    }

    /// The step whose document is there already, by the table that refused it, which not every server that speaks the
    /// protocol names. Of several new documents it is then not known which; whoever makes several looks at all again.
    pub(super) fn refused_as_there(&self, table_name: Option<&str>) -> Option<&Step> {
        self.steps.iter().find(|step| match step.call.sql {
            Sql::Document(kind, Action::Insert(_)) => table_name.is_none_or(|name| name == table(kind).name),
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

    /// All of it as one statement, if it can be.
    pub(super) fn whole(&self, own: &Own) -> Option<Call> {
        if !self.is_whole {
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

/// Of one statement.
const PARTS_MAX: usize = 24;

/// Entries that must have their versions. They are held by one statement, however many they are. Which of them has changed
/// is then not known; whoever meets that forgets all that the commit rests on.
#[derive(Default)]
struct Entries<'a>(Vec<(Ino, &'a Name, Version)>);

impl<'a> Entries<'a> {
    /// False if this is another document than an entry, or checked for something else.
    fn add(&mut self, checks: &[&'a Check]) -> bool {
        let [Check::Version(Key::Entry(parent, name), version)] = checks else { return false };
        self.0.push((*parent, name, *version));
        true
    }

    fn step(&self) -> Option<Step> {
        let (parent, name, _) = self.0.first()?;
        let sql = Sql::Document(Kind::Entry, Action::HoldEntries);
        Some(Step {
            key: Key::Entry(*parent, (*name).clone()),
            call: Call { sql, params: entry_lists(&self.0) },
        })
    }
}

/// Takes the locks of a set together, and lets go of them so. (Their documents follow each other.) A part for each would
/// have the server set up as many statements; which one is refused, nobody asks.
fn locks_together(steps: Vec<Step>) -> Vec<Step> {
    let mut together: Vec<Step> = Vec::with_capacity(steps.len());
    for step in steps {
        if !together.last_mut().is_some_and(|last| last.takes_in(&step)) {
            together.push(step);
        }
    }
    together
}

impl Step {
    fn takes_in(&mut self, next: &Self) -> bool {
        let Sql::Document(Kind::Lock, action) = &mut self.call.sql else { return false };
        let Sql::Document(Kind::Lock, another) = next.call.sql else { return false };
        let (params, more) = (&mut self.call.params, &next.call.params);
        match (action, another) {
            (Action::Insert(count), Action::Insert(1)) => {
                *count += 1;
                params.extend_from_slice(more);
                true
            }
            // Keys, and behind them their version.
            (Action::DeleteVersion(count), Action::DeleteVersion(1)) if params.last() == more.last() => {
                *count += 1;
                params.pop();
                params.extend_from_slice(more);
                true
            }
            _ => false,
        }
    }
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
            steps.push(step(key, Action::Insert(1), document_values(&placeholder(key.kind()))));
            steps.push(step(key, Action::Delete, Vec::new()));
        }
    }
}

fn put(key: &Key, check: Option<&Check>, document: &Document, steps: &mut Vec<Step>) {
    let values = document_values(document);
    steps.push(match check {
        None => step(key, Action::Upsert, values),
        Some(Check::Absent(_)) => step(key, Action::Insert(1), values),
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
            steps.push(step(key, Action::DeleteVersion(1), vec![version.0.into()]));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::SessionId;

    fn lock(id: &str) -> Key {
        Key::Lock(id.into())
    }

    fn actions(commit: &Commit) -> Vec<(Kind, Action, usize)> {
        let part = |step: &Step| match step.call.sql {
            Sql::Document(kind, action) => (kind, action, step.call.params.len()),
            ref other => panic!("{other:?} is no part of a commit"),
        };
        Plan::of(commit).unwrap().steps.iter().map(part).collect()
    }

    #[test]
    fn locks_are_taken_and_released_together() {
        let take = |commit: Commit, id: &str| commit.absent(lock(id)).put(lock(id), placeholder(Kind::Lock));
        let set = ["a", "b", "c"].into_iter().fold(Commit::new(), take);
        assert_eq!(actions(&set), [(Kind::Lock, Action::Insert(3), 18)]);
        let release = |commit: Commit, (id, version)| commit.at(lock(id), Version(version)).delete(lock(id));
        let released = [("a", 5), ("b", 5), ("c", 6), ("d", 6)].into_iter().fold(Commit::new(), release);
        let two = (Kind::Lock, Action::DeleteVersion(2), 3);
        assert_eq!(actions(&released), [two, two]);
        // A lock that is shared with others stays.
        let shared = release(Commit::new(), ("a", 5)).at(lock("b"), Version(5));
        let shared = release(shared.put(lock("b"), placeholder(Kind::Lock)), ("c", 5));
        let one = (Kind::Lock, Action::DeleteVersion(1), 2);
        assert_eq!(actions(&shared), [one, (Kind::Lock, Action::UpdateVersion, 7), one]);
    }

    #[test]
    fn a_document_with_two_statements_keeps_all_apart() {
        let absent =
            Commit::new().absent(lock("a")).put(lock("a"), placeholder(Kind::Lock)).absent(lock("b"));
        let expected = [Action::Insert(1), Action::Insert(1), Action::Delete];
        assert_eq!(actions(&absent).iter().map(|(_, action, _)| *action).collect::<Vec<_>>(), expected);
        assert!(Plan::of(&absent).unwrap().whole(&Own { connection: 1, number: 1 }).is_none());
    }

    #[test]
    fn so_many_locks_as_are_seldom_taken_twice_are_statements_that_are_shared_by_all() {
        let take = |commit: Commit, n: usize| {
            let key = lock(&format!("{n:03}"));
            commit.absent(key.clone()).put(key, placeholder(Kind::Lock))
        };
        let few = (0..PARTS_MAX).fold(Commit::new(), take);
        assert_eq!(actions(&few).len(), 1);
        let many = (0..=PARTS_MAX).fold(Commit::new(), take);
        assert!(actions(&many).iter().all(|(_, action, _)| *action == Action::Insert(1)));
        assert!(Plan::of(&many).unwrap().whole(&Own { connection: 1, number: 1 }).is_none());
    }

    #[test]
    fn covered_entries_are_held_by_one_statement() {
        let entry = |name: &[u8]| Key::Entry(Ino(1), Name::new(name).unwrap());
        let checks = [b"x", b"y"].map(|name| Check::Version(entry(name), Version(3)));
        let commit = Commit { checks: checks.into(), covered: true, ..Commit::new() };
        let commit = commit.delete(lock("a")).by(SessionId(1));
        let held = actions(&commit);
        assert_eq!(held.last(), Some(&(Kind::Entry, Action::HoldEntries, 4)));
        let plan = Plan::of(&commit).unwrap();
        let [.., last] = &plan.steps[..] else { panic!("no step") };
        assert_eq!(last.call.params[3], Value::Ints(vec![3, 3]));
        assert!(matches!(&last.call.params[2], Value::ManyBytes(names) if names.len() == 2));
    }
}
