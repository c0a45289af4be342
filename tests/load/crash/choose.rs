//! Chooses the next operation of a thread: always one that must succeed, given what the thread has done before.

use crate::common::rng::Rng;
use crate::model::{Body, Model, XATTRS};
use crate::op::Op;

const FILES_MAX: usize = 48;
const DIRECTORIES_MAX: usize = 16;
const FILE_BYTES_MAX: u64 = 256 * 1024;

/// The paths of a model by kind.
struct Paths<'a> {
    files: Vec<&'a String>,
    directories: Vec<&'a String>,
    links: Vec<&'a String>,
}

/// The next operation, with `number` for fresh names. Some choices have nothing to act on; then another is made.
pub(crate) fn choose(model: &Model, number: u64, exchanges: bool, rng: &mut Rng) -> Op {
    let mut paths = Paths { files: Vec::new(), directories: Vec::new(), links: Vec::new() };
    for (path, object) in &model.paths {
        match model.objects.get(object).map(|o| &o.body) {
            Some(Body::File(_)) => paths.files.push(path),
            Some(Body::Dir) => paths.directories.push(path),
            Some(Body::Symlink(_)) => paths.links.push(path),
            None => {}
        }
    }
    for _ in 0..20 {
        let op = match rng.below(100) {
            0..28 => bytes(model, &paths, rng),
            28..68 => names(model, &paths, number, rng),
            68..84 => attributes(model, &paths, rng),
            _ => directories(model, &paths, number, rng),
        };
        if let Some(op) = op
            && (exchanges || !matches!(op, Op::Exchange { .. }))
        {
            return op;
        }
    }
    let path = fresh(&paths, 'f', number, rng);
    Op::Create { path }
}

/// A path that nothing has had, in some directory.
fn fresh(paths: &Paths<'_>, letter: char, number: u64, rng: &mut Rng) -> String {
    match rng.pick(&paths.directories).filter(|_| rng.chance(75)) {
        Some(dir) => format!("{dir}/{letter}{number}"),
        None => format!("{letter}{number}"),
    }
}

fn bytes(model: &Model, paths: &Paths<'_>, rng: &mut Rng) -> Option<Op> {
    let path = (*rng.pick(&paths.files)?).clone();
    let size = model.size(&path);
    let length = 1 + match rng.below(10) {
        0..5 => rng.below(600),
        5..9 => rng.below(16 * 1024),
        _ => rng.below(128 * 1024),
    } as u64;
    let op = match rng.below(10) {
        // Now and then beyond the end, which leaves a hole of zeros.
        0..4 => Op::Write { path, offset: rng.below(size as usize + 5000) as u64, length },
        4..7 => Op::Append { path, offset: size, length },
        7 | 8 => Op::Fsync { path },
        _ => Op::Truncate { path, size: rng.below(size as usize + 9000) as u64 },
    };
    match op {
        Op::Write { offset, .. } | Op::Append { offset, .. } if offset + length > FILE_BYTES_MAX => None,
        other => Some(other),
    }
}

fn names(model: &Model, paths: &Paths<'_>, number: u64, rng: &mut Rng) -> Option<Op> {
    let file = || (!paths.files.is_empty()).then_some(());
    let many = paths.files.len() + paths.links.len() > FILES_MAX;
    match rng.below(40) {
        0..12 if !many => Some(Op::Create { path: fresh(paths, 'f', number, rng) }),
        12..15 if !many => Some(Op::Symlink {
            path: fresh(paths, 's', number, rng),
            target: format!("../target-{number}/{}", "x".repeat(rng.below(60))),
        }),
        15..19 if !many => {
            let old = (*rng.pick(&paths.files)?).clone();
            Some(Op::Link { old, new: fresh(paths, 'l', number, rng) })
        }
        19..30 => {
            let old = (*rng.pick(&paths.files)?).clone();
            let onto = rng.pick(&paths.files).filter(|_| rng.chance(35)).map(|p| (*p).clone());
            let new = onto.unwrap_or_else(|| fresh(paths, 'r', number, rng));
            // Two names of one file: a rename would be nothing at all.
            (model.paths.get(&old) != model.paths.get(&new)).then_some(Op::Rename { old, new })
        }
        30..34 => exchange(paths, rng),
        _ => {
            file()?;
            let all: Vec<&&String> = paths.files.iter().chain(&paths.links).collect();
            rng.pick(&all).map(|path| Op::Unlink { path: (**path).clone() })
        }
    }
}

fn exchange(paths: &Paths<'_>, rng: &mut Rng) -> Option<Op> {
    let all: Vec<&&String> = paths.files.iter().chain(&paths.directories).chain(&paths.links).collect();
    let (old, new) = ((**rng.pick(&all)?).clone(), (**rng.pick(&all)?).clone());
    let inside = |a: &str, b: &str| b.strip_prefix(a).is_some_and(|rest| rest.starts_with('/'));
    (old != new && !inside(&old, &new) && !inside(&new, &old)).then_some(Op::Exchange { old, new })
}

fn attributes(model: &Model, paths: &Paths<'_>, rng: &mut Rng) -> Option<Op> {
    let all: Vec<&&String> = paths.files.iter().chain(&paths.directories).collect();
    let path = (**rng.pick(&all)?).clone();
    let name = (*rng.pick(&XATTRS)?).to_owned();
    match rng.below(16) {
        0..6 => {
            let owner = if matches!(model.at(&path)?.body, Body::Dir) { 0o700 } else { 0o600 };
            Some(Op::Chmod { path, mode: owner | rng.below(0o100) as u32 })
        }
        6..13 => {
            Some(Op::SetXattr { path, name, value: format!("{:x}", rng.next()).repeat(1 + rng.below(9)) })
        }
        _ => {
            let is_set = model.at(&path)?.xattrs.contains_key(&name);
            is_set.then_some(Op::RemoveXattr { path, name })
        }
    }
}

fn directories(model: &Model, paths: &Paths<'_>, number: u64, rng: &mut Rng) -> Option<Op> {
    let empty = |dir: &str| {
        let below = format!("{dir}/");
        !model.paths.range(below.clone()..).next().is_some_and(|(path, _)| path.starts_with(&below))
    };
    match rng.below(16) {
        0..6 if paths.directories.len() < DIRECTORIES_MAX => {
            Some(Op::Mkdir { path: fresh(paths, 'd', number, rng) })
        }
        0..13 => {
            let old = (*rng.pick(&paths.directories)?).clone();
            let empties: Vec<&&String> =
                paths.directories.iter().filter(|d| **d != &old && empty(d)).collect();
            let onto = rng.pick(&empties).filter(|_| rng.chance(30)).map(|d| (**d).clone());
            let new = onto.unwrap_or_else(|| fresh(paths, 'e', number, rng));
            // Neither into itself, nor onto its own parent (which is not empty anyway).
            (!new.starts_with(&format!("{old}/"))).then_some(Op::Rename { old, new })
        }
        _ => {
            let empties: Vec<&&String> = paths.directories.iter().filter(|d| empty(d)).collect();
            rng.pick(&empties).map(|path| Op::Rmdir { path: (**path).clone() })
        }
    }
}
