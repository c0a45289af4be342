//! The lock sets of the strategies against what they are for: of two renames that would make a loop together, or of which
//! one moves what the other stands in, one has to wait. For every pair of renames in a small tree.

use lockwood::document::Locking;
use lockwood::lock::{LockId, LockSet, Plan};

use super::{Judged, objection};

/// All directories that there are.
fn tree() -> Vec<String> {
    let mut paths = vec![String::new()];
    for depth in 0..3 {
        let upper: Vec<String> =
            paths.iter().filter(|path| path.matches('/').count() == depth).cloned().collect();
        paths.extend(upper.iter().flat_map(|path| [format!("{path}/a"), format!("{path}/b")]));
    }
    paths.split_off(1)
}

fn id(path: &str) -> LockId {
    LockId::from_path(path.as_bytes()).expect("a path")
}

fn is_below(path: &str, upper: &str) -> bool {
    path.strip_prefix(upper).is_some_and(|rest| rest.starts_with('/'))
}

fn is_within(path: &str, upper: &str) -> bool {
    path == upper || is_below(path, upper)
}

/// A rename and its locks.
struct Move<'a> {
    source: &'a str,
    /// The directory that it goes to; empty for the root.
    into: &'a str,
    set: Option<LockSet>,
}

fn moves<'a>(tree: &'a [String], locking: Locking) -> Vec<Move<'a>> {
    let mut moves = Vec::new();
    for source in tree {
        for into in tree.iter().filter(|into| !is_within(into, source)) {
            let (from, to) = (id(source), id(&format!("{into}/new")));
            let members = tree.iter().filter(|path| is_below(path, source)).map(|path| id(path)).collect();
            let set = locking.lock_set(Plan::Rename { source: &from, destination: &to }, members);
            moves.push(Move { source, into, set: set.expect("a rename that may be") });
        }
    }
    moves
}

fn meet(one: &Move, other: &Move) -> bool {
    let (Some(one), Some(other)) = (&one.set, &other.set) else { return false };
    one.entries().iter().any(|a| other.entries().iter().any(|b| a.id == b.id))
}

/// Judges every pair under `global` and under `document`.
pub(super) fn judge() -> Judged {
    let tree = tree();
    let mut cases = 0;
    for locking in [Locking::Global, Locking::Document] {
        let moves = moves(&tree, locking);
        for one in &moves {
            for other in &moves {
                cases += 1;
                let makes_a_loop = is_within(other.into, one.source) && is_within(one.into, other.source);
                let stands_in = is_below(other.source, one.source);
                let must = locking == Locking::Global || makes_a_loop || stands_in;
                if must && !meet(one, other) {
                    return objection(
                        cases,
                        format!(
                            "{locking}: mv {} {}/new and mv {} {}/new may run at once",
                            one.source, one.into, other.source, other.into
                        ),
                    );
                }
            }
        }
    }
    Ok(cases)
}
