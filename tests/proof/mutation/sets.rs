//! Lock sets against their definition, for every pair of paths over a few names. Owns the definition.

use std::collections::BTreeMap;

use lockwood::lock::{LockId, LockSet, Mode};

use super::{Judged, objection};

fn paths() -> Vec<String> {
    let names = ["a", "a-", "b"];
    let mut paths: Vec<String> = names.iter().map(|name| format!("/{name}")).collect();
    let mut from = 0;
    for _ in 0..2 {
        let until = paths.len();
        for at in from..until {
            paths.extend(names.map(|name| format!("{}/{name}", paths[at])));
        }
        from = until;
    }
    paths
}

/// Shared on whatever is above either path, exclusive on both, in the order of their bytes.
fn expected(source: &str, destination: &str) -> Vec<(String, Mode)> {
    let mut set = BTreeMap::new();
    for path in [source, destination] {
        for (at, _) in path.match_indices('/').skip(1) {
            set.entry(path[..at].to_owned()).or_insert(Mode::Shared);
        }
    }
    for path in [source, destination] {
        set.insert(path.to_owned(), Mode::Exclusive);
    }
    set.into_iter().collect()
}

/// Judges every pair.
pub(super) fn judge() -> Judged {
    let id = |path: &str| LockId::from_path(path.as_bytes()).expect("a path");
    let paths = paths();
    let mut cases = 0;
    for source in &paths {
        for destination in &paths {
            cases += 1;
            let into_itself = destination.starts_with(&format!("{source}/"));
            let set = LockSet::for_rename(&id(source), &id(destination));
            if set.is_err() != into_itself {
                return objection(cases, format!("{source} to {destination}: {set:?}"));
            }
            let Ok(set) = set else { continue };
            let text = |id: &LockId| String::from_utf8_lossy(id.as_bytes()).into_owned();
            let got: Vec<_> = set.entries().iter().map(|entry| (text(&entry.id), entry.mode)).collect();
            let expected = expected(source, destination);
            if got != expected {
                return objection(cases, format!("{source} to {destination}: {got:?}, not {expected:?}"));
            }
        }
    }
    Ok(cases)
}
