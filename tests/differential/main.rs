//! The same random system calls on a mount and on a directory of the machine: each must end alike, and the trees must be
//! alike in the end. What the other file system does is taken for right.
//!
//! The seed is fixed, so that a run can be had again; `LOCKWOOD_SEED=N` takes another one. A failure prints the seed and
//! the last steps.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may stop at what it does not expect")]

#[path = "../common/mod.rs"]
mod common;

mod draw;
mod side;
mod tree;

use std::fs;
use std::path::Path;

use common::rng::{Rng, seed};
use common::{Mounted, skipped};
use draw::{Op, Source, draw};
use side::{Outcome, Side};

const ROUNDS: u64 = 20;
const STEPS: usize = 700;

/// How often a round compares the whole trees, and mounts again.
const COMPARISONS: usize = 3;

/// How often the paths that there are are looked at.
const REFRESHED_EVERY: usize = 8;

/// So many steps before the failure are shown.
const SHOWN: usize = 12;

/// What is compared with must have what is compared.
fn is_comparable(directory: &Path) -> bool {
    const EXT4: i64 = 0xef53;
    const XFS: i64 = 0x5846_5342;
    let found = rustix::fs::statfs(directory).unwrap();
    [EXT4, XFS].contains(&found.f_type)
}

struct Pair {
    here: Side,
    there: Side,
    /// Behind the sides, so that nothing in it is open when it goes.
    mounted: Mounted,
}

impl Pair {
    fn new() -> Option<Self> {
        let mounted = Mounted::new()?;
        let other = mounted.dir.path().join("other");
        fs::create_dir(&other).unwrap();
        if !is_comparable(&other) {
            skipped("needs ext4 or xfs to compare with; set TMPDIR");
            return None;
        }
        Some(Self { here: Side::new(&mounted.mount_point), there: Side::new(&other), mounted })
    }

    fn compare_trees(&self) -> Result<(), String> {
        let [here, there] = [&self.here, &self.there].map(|side| tree::describe(side.root()));
        tree::difference(&here, &there).map_or(Ok(()), Err)
    }

    /// Open files are closed on both sides: an unmount wants that.
    fn remount(&mut self) {
        self.here.leave();
        self.there.leave();
        self.mounted.remount();
        self.here.enter();
        self.there.enter();
    }

    /// Does a step on both sides, and compares what came of it.
    fn step(&mut self, op: &Op) -> Result<Outcome, String> {
        let watched = op.watched();
        let times = |side: &Side| watched.iter().map(|path| side.modified(path)).collect::<Vec<_>>();
        let before = [times(&self.here), times(&self.there)];
        let (here, there) = (self.here.perform(op), self.there.perform(op));
        if here != there {
            return Err(format!("here {}, there {}", short(&here), short(&there)));
        }
        if here.is_err() {
            return Ok(here); // ext4 stamps a directory also when it takes a change back.
        }
        let after = [times(&self.here), times(&self.there)];
        for (at, path) in watched.iter().enumerate() {
            let [ours, theirs] = [0, 1].map(|side| before[side][at] != after[side][at]);
            if ours != theirs {
                return Err(format!("modification time of {path} changed here: {ours}, there: {theirs}"));
            }
        }
        Ok(here)
    }
}

fn short(outcome: &Outcome) -> String {
    match outcome {
        Ok(bytes) if bytes.len() <= 64 => format!("{:?}", String::from_utf8_lossy(bytes)),
        Ok(bytes) => format!("{} bytes, {:016x}", bytes.len(), xxhash_rust::xxh3::xxh3_64(bytes)),
        Err(errno) => format!("{errno} ({})", errno.raw_os_error()),
    }
}

fn words(op: &Op) -> String {
    let words = format!("{op:?}");
    let cut: String = words.chars().take(160).collect();
    if cut.len() < words.len() { format!("{cut}...") } else { words }
}

fn fail(seed: u64, history: &[String], what: &str) -> ! {
    let last = history[history.len().saturating_sub(SHOWN)..].join("\n  ");
    panic!("LOCKWOOD_SEED={seed}, step {}: {what}\nthe last steps:\n  {last}", history.len());
}

/// Returns how many steps succeeded; none if nothing can be compared here.
fn round(seed: u64) -> Option<usize> {
    let mut pair = Pair::new()?;
    let mut source = Source { rng: Rng::new(seed), paths: Vec::new() };
    let mut history = Vec::new();
    let mut succeeded = 0;
    for number in 1..=STEPS {
        if number % REFRESHED_EVERY == 1 {
            let all = tree::describe(pair.there.root());
            source.paths = all.into_keys().filter_map(|p| Some(p.strip_prefix("./")?.to_owned())).collect();
        }
        let op = draw(&mut source);
        history.push(words(&op));
        match pair.step(&op) {
            Ok(outcome) => succeeded += usize::from(outcome.is_ok()),
            Err(what) => fail(seed, &history, &what),
        }
        if number % (STEPS / COMPARISONS) == 0 {
            let compared = pair.compare_trees();
            pair.remount();
            if let Err(what) = compared.and_then(|()| pair.compare_trees()) {
                fail(seed, &history, &what);
            }
        }
    }
    let Pair { here, there, mounted } = pair;
    drop((here, there));
    mounted.finish();
    Some(succeeded)
}

#[test]
fn a_mount_does_what_the_file_system_of_the_machine_does() {
    let (first, steps) = (seed(), ROUNDS as usize * STEPS);
    let Some(succeeded) = (0..ROUNDS).map(|n| round(first + n)).sum::<Option<usize>>() else { return };
    println!("LOCKWOOD_SEED={first}: {succeeded} of {steps} steps succeeded");
    assert!(succeeded > steps / 5, "only {succeeded} of {steps} steps succeeded");
}

#[test]
fn a_whiteout_may_also_be_forbidden_to_replace() {
    let Some(mut pair) = Pair::new() else { return };
    let flags = libc::RENAME_NOREPLACE | libc::RENAME_WHITEOUT;
    let [a, b, c] = ["a", "b", "c"].map(str::to_owned);
    let steps = [
        Op::Create(a.clone()),
        Op::Create(b.clone()),
        Op::Rename(a.clone(), b, flags),
        Op::Rename(a, c, flags),
    ];
    for op in &steps {
        if let Err(what) = pair.step(op) {
            panic!("{op:?}: {what}");
        }
    }
}
