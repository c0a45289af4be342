//! The part of the tree that is locked, drawn as a tree: each name with who holds it and who waits for it.

use std::collections::BTreeMap;

use crate::cli::commands::sessions::Seen;
use crate::cli::output::{age, table};
use crate::lock::{LockDocument, SessionId, printable};

const HEADER: [&str; 7] = ["TREE", "MODE", "STATE", "SESSION", "PROCESS", "FOR", "OPERATION"];

/// A name of the tree, with what is below it. Names are bytes; they are in their order.
#[derive(Default)]
struct Branch<'a> {
    lock: Option<&'a LockDocument>,
    below: BTreeMap<&'a [u8], Branch<'a>>,
}

/// Draws the locks; a name that is not locked itself stands there if something below it is.
pub(super) fn draw(documents: &[LockDocument], sessions: &[Seen]) -> String {
    let mut root = Branch::default();
    for document in documents {
        let names = document.id.as_bytes().split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        names.fold(&mut root, |branch, name| branch.below.entry(name).or_default()).lock = Some(document);
    }
    let mut rows = vec![vec!["/".to_owned()]];
    root.add_below("", sessions, &mut rows);
    table(&HEADER, &rows)
}

impl Branch<'_> {
    /// Adds the rows of what is below; `rails` is what stands before their names.
    fn add_below(&self, rails: &str, sessions: &[Seen], rows: &mut Vec<Vec<String>>) {
        let last = self.below.len().saturating_sub(1);
        for (at, (name, branch)) in self.below.iter().enumerate() {
            let (joint, below) = if at == last { ("└── ", "    ") } else { ("├── ", "│   ") };
            let mut label = format!("{rails}{joint}{}", printable(name));
            let below = format!("{rails}{below}");
            // The second row of a lock and those after it carry on the lines of what is below it.
            let carry = if branch.below.is_empty() { below.clone() } else { format!("{below}│") };
            let claims = branch.claims(sessions);
            if claims.is_empty() {
                rows.push(vec![label]);
            } else {
                for claim in claims {
                    rows.push([vec![std::mem::replace(&mut label, carry.clone())], claim].concat());
                }
            }
            branch.add_below(&below, sessions, rows);
        }
    }

    /// Who holds the lock, then who waits for it: the cells behind the name.
    fn claims(&self, sessions: &[Seen]) -> Vec<Vec<String>> {
        let Some(lock) = self.lock else { return Vec::new() };
        let held = lock.holders.iter().flat_map(|holder| {
            holder.operations.iter().map(|operation| {
                let what = &operation.operation;
                (lock.lock_type, "held", holder.session, operation.since, what)
            })
        });
        let waits = lock
            .waiters
            .iter()
            .map(|waiter| (waiter.lock_type, "waits", waiter.session, waiter.since, &waiter.operation));
        held.chain(waits)
            .map(|(mode, state, session, since, what)| {
                let process = process(session, sessions);
                vec![
                    mode.to_string(),
                    state.to_owned(),
                    session.to_string(),
                    process,
                    age(since),
                    what.clone(),
                ]
            })
            .collect()
    }
}

/// The process of a session: its host and its number there.
fn process(id: SessionId, sessions: &[Seen]) -> String {
    let seen = sessions.iter().find(|seen| seen.session.id == id);
    seen.map_or_else(|| "?".to_owned(), |seen| format!("{} {}", seen.session.host, seen.session.pid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::LockId;

    fn document(path: &str, holders: &[&str], waiters: &[&str]) -> LockDocument {
        let operations = |names: &[&str]| -> Vec<_> {
            names
                .iter()
                .map(|name| serde_json::json!({ "op": 1, "since": SINCE, "operation": name }))
                .collect()
        };
        let id = LockId::from_path(path.as_bytes()).unwrap();
        let waiters: Vec<_> = operations(waiters)
            .into_iter()
            .map(|mut waiter| {
                waiter["session"] = SESSION.into();
                waiter["lock_type"] = "exclusive".into();
                waiter
            })
            .collect();
        serde_json::from_value(serde_json::json!({
            "id": id.encoded(), "path": path, "lock_type": "shared", "lock_count": holders.len(),
            "holders": [{ "session": SESSION, "count": holders.len(), "since": SINCE, "operations": operations(holders) }],
            "waiters": waiters,
        }))
        .unwrap()
    }

    const SESSION: &str = "00000000000000ab";
    const SINCE: &str = "2026-03-01T12:00:00.125Z";

    /// The tree column, and the last one.
    fn outline(drawn: &str) -> Vec<(String, String)> {
        let cut = |line: &str| {
            let label: String = line.chars().take(10).collect();
            let operation = line.rsplit("  ").next().filter(|_| line.contains(SESSION)).unwrap_or_default();
            (label.trim_end().to_owned(), operation.to_owned())
        };
        drawn.lines().skip(1).map(cut).collect()
    }

    #[test]
    fn the_rails_join_what_belongs_together() {
        let documents = [
            document("/a", &["one", "two"], &["three"]),
            document("/a-b", &["four"], &[]),
            document("/a/b/c", &["one"], &[]),
            document("/a/d", &["two"], &[]),
        ];
        let drawn = draw(&documents, &[]);
        let wanted = [
            ("/", ""),
            ("├── a", "one"),
            ("│   │", "two"),
            ("│   │", "three"),
            ("│   ├── b", ""),
            ("│   │   └─", "one"),
            ("│   └── d", "two"),
            ("└── a-b", "four"),
        ];
        let wanted = wanted.map(|(label, operation)| (label.to_owned(), operation.to_owned()));
        assert_eq!(outline(&drawn), wanted, "{drawn}");
        assert!(drawn.contains("exclusive  waits") && drawn.contains("shared     held"), "{drawn}");
    }

    #[test]
    fn a_name_cannot_draw_lines_of_its_own() {
        assert_eq!(printable(b"a\nb"), "a\\nb");
        assert_eq!(printable(b"\xff"), "\u{fffd}");
    }
}
