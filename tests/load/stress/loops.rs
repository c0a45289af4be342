//! `mv a b/d/e` against `mv b/d a/c`, at the same moment: each is legal alone, both together would cut a loop off the
//! root (juicedata/juicefs issue 4800). Whoever succeeded undoes it, and the pair starts again.

use crate::common::rng::Rng;
use crate::common::sys;
use crate::ledger::Ledger;
use crate::world::{View, World};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The moves of the two threads. Of each pair one move takes away what the other needs.
const PAIRS: [[(&str, &str); 2]; 3] = [
    [("a", "b/d/e"), ("b/d", "a/c")],
    [("a", "b/d/e"), ("b", "a/c")],
    [("a/x/y", "b/d/e"), ("b", "a/x/y/c")],
];

/// Two threads in step.
pub(crate) struct Pair {
    step: Barrier,
    ended: AtomicBool,
    moves: AtomicUsize,
    succeeded: [AtomicBool; 2],
}

impl Pair {
    /// A pair that has not begun.
    pub(crate) fn new() -> Self {
        Self {
            step: Barrier::new(2),
            ended: AtomicBool::new(false),
            moves: AtomicUsize::new(0),
            succeeded: [AtomicBool::new(false), AtomicBool::new(false)],
        }
    }

    /// Makes the directories of pair `group`: `a/x/y` and `b/d`.
    pub(crate) fn make(view: &View, group: usize, ledger: &mut Ledger) -> io::Result<()> {
        let (_, dir) = ledger.make_dir(&view.loops, &format!("l{group}"))?;
        for path in ["a", "a/x", "a/x/y", "b", "b/d"] {
            let (_, made) = ledger.make_dir(&dir, path)?;
            ledger.make_file(&made, "file")?;
        }
        Ok(())
    }

    /// The life of one of the two threads; the first decides what both do and when they end.
    pub(crate) fn run(&self, world: &World, dir: &OwnedFd, side: usize, rng: &mut Rng, ledger: &mut Ledger) {
        loop {
            if side == 0 {
                self.ended.store(world.stopped(), Ordering::SeqCst);
                self.moves.store(rng.below(PAIRS.len()), Ordering::SeqCst);
            }
            self.step.wait();
            if self.ended.load(Ordering::SeqCst) {
                return;
            }
            let (old, new) = PAIRS[self.moves.load(Ordering::SeqCst)][side];
            let moved = ledger.count("loop", &sys::rename_at(dir, old, dir, new, 0));
            self.succeeded[side].store(moved, Ordering::SeqCst);
            self.step.wait();
            if self.succeeded.iter().all(|s| s.load(Ordering::SeqCst)) {
                // Nothing can be undone; the first thread ends the run, and both leave at the next step.
                if side == 0 {
                    let pair = PAIRS[self.moves.load(Ordering::SeqCst)];
                    ledger.violation(format!("both moves of {pair:?} succeeded: a loop"));
                    world.end();
                }
            } else if moved {
                // Until it is back nobody else needs it; a lock not granted in time is tried once more.
                let back = || sys::rename_at(dir, new, dir, old, 0);
                if !ledger.must("loop-undo", new, &back()) && !ledger.must("loop-undo", new, &back()) {
                    world.end();
                }
            }
        }
    }
}
