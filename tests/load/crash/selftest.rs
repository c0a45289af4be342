//! Tries the judge: a tree that it has just found right is altered in one place after the other, and each time it must
//! object. A judge that accepts everything would let every crash pass.

use crate::Verdict;
use crate::common::rng::Rng;
use crate::common::{Res, sys};
use crate::judge::judge;
use crate::ledger::{self, History};
use crate::model::Body;
use crate::options::{Options, TREE, thread_dir};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

/// The file that is altered: its path, its size and one offset in it.
struct Victim {
    dir: OwnedFd,
    path: String,
    size: u64,
    mode: u32,
    offset: u64,
}

/// One alteration: what it is called, what it does and how it is undone.
type Trick = (&'static str, fn(&Victim) -> io::Result<()>, fn(&Victim) -> io::Result<()>);

const TRICKS: [Trick; 6] = [
    ("alter a byte", flip, flip),
    ("add a byte", |v| open(v)?.write_all_at(b"!", v.size), |v| open(v)?.set_len(v.size)),
    (
        "change the mode",
        |v| sys::chmod_at(&v.dir, &v.path, v.mode ^ 0o044),
        |v| sys::chmod_at(&v.dir, &v.path, v.mode),
    ),
    (
        "add a file",
        |v| sys::create_at(&v.dir, "never-made").map(drop),
        |v| sys::unlink_at(&v.dir, "never-made"),
    ),
    (
        "rename a file",
        |v| sys::rename_at(&v.dir, &v.path, &v.dir, "elsewhere", 0),
        |v| sys::rename_at(&v.dir, "elsewhere", &v.dir, &v.path, 0),
    ),
    ("remove a file", |v| sys::unlink_at(&v.dir, &v.path), |_| Ok(())),
];

fn open(victim: &Victim) -> io::Result<File> {
    sys::open_at(&victim.dir, &victim.path, libc::O_RDWR, 0).map(File::from)
}

fn flip(victim: &Victim) -> io::Result<()> {
    let (file, mut byte) = (open(victim)?, [0u8]);
    file.read_exact_at(&mut byte, victim.offset)?;
    file.write_all_at(&[!byte[0]], victim.offset)
}

/// Plays every trick. The tree is one file poorer afterwards.
pub(crate) fn run(options: &Options) -> Res<Verdict> {
    let histories = ledger::replay(&options.ledger)?;
    let clean = judge(options, &histories)?;
    if let Some(wrong) = clean.wrong.first() {
        return Err(format!("the tree is wrong before anything was altered: {wrong}"));
    }
    let victim = find(options, &histories)?;
    let mut verdict = Verdict::Passed;
    for (name, play, undo) in TRICKS {
        play(&victim).map_err(|e| format!("cannot {name} ({}): {e}", victim.path))?;
        match judge(options, &histories)?.wrong.first() {
            Some(objection) => println!("{name}: the judge objects: {objection}"),
            None => {
                eprintln!("crash-load: WRONG: {name} ({}): the judge has seen nothing", victim.path);
                verdict = Verdict::Failed;
            }
        }
        undo(&victim).map_err(|e| format!("cannot undo: {name} ({}): {e}", victim.path))?;
    }
    Ok(verdict)
}

fn find(options: &Options, histories: &BTreeMap<usize, History>) -> Res<Victim> {
    let mut rng = Rng::new(options.seed, 0);
    let mut candidates = Vec::new();
    // A thread with an operation in flight has two right states: whatever was altered must be in neither.
    for (thread, history) in histories.iter().filter(|(_, h)| h.in_flight.is_none()) {
        for (path, number) in &history.model.paths {
            if let Some(object) = history.model.objects.get(number)
                && let Body::File(bytes) = &object.body
                && !bytes.is_empty()
            {
                candidates.push((*thread, path, bytes.len() as u64, object.mode));
            }
        }
    }
    let Some((thread, path, size, mode)) = rng.pick(&candidates) else {
        return Err("no file with bytes in it: load longer, and judge before the self-test".into());
    };
    let dir = sys::open_dir(&options.mount.join(TREE).join(thread_dir(*thread)));
    Ok(Victim {
        dir: dir.map_err(|e| format!("cannot open the tree: {e}"))?,
        path: (*path).clone(),
        size: *size,
        mode: *mode,
        offset: rng.below(*size as usize) as u64,
    })
}
