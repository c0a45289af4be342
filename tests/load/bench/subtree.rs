//! Renames a directory with many files below it, in turns with an empty one: the claim is that the size of a subtree
//! does not show. Each rename takes the directory to another parent, so that the locks are those of a real move.

use crate::common::{self, Res, median, sys};
use crate::fill::fill;
use crate::options::{Options, Target};
use std::io;
use std::os::fd::OwnedFd;

const WARM_UP: usize = 3;

/// Measures every target, prints a table and returns the requirements that were missed.
pub(crate) fn run(options: &Options) -> Res<Vec<String>> {
    let mut missed = Vec::new();
    println!(
        "rename of a directory with {} files below it beside an empty one, {} times each; microseconds, medians",
        options.subtree_files, options.reps
    );
    println!("{:<14} {:>11} {:>11}  full/empty", "target", "empty", "full");
    for (index, target) in options.targets.iter().enumerate() {
        let measured = measure(options, target);
        let cleared = sys::remove_tree(&target.scratch());
        let (empty, full) = measured.map_err(|e| format!("subtree on {}: {e}", target.name))?;
        cleared.map_err(|e| format!("cannot clear {}: {e}", target.scratch().display()))?;
        let ratio = full / empty;
        println!("{:<14} {:>11.1} {:>11.1}  {:.2}", target.name, empty * 1e6, full * 1e6, ratio);
        for (_, ceiling) in options.require.iter().filter(|(phase, _)| index == 0 && phase == "subtree") {
            if ratio > *ceiling {
                missed.push(format!("subtree: ratio {ratio:.3} is above the allowed {ceiling}"));
            }
        }
    }
    Ok(missed)
}

/// Median seconds of a rename of the empty directory and of the full one.
fn measure(options: &Options, target: &Target) -> Res<(f64, f64)> {
    let text = |e: io::Error| e.to_string();
    std::fs::create_dir_all(target.scratch()).map_err(text)?;
    let home = sys::open_dir(&target.scratch()).map_err(text)?;
    for dir in ["left", "right"] {
        sys::mkdir_at(&home, dir).map_err(text)?;
    }
    let sides =
        [sys::open_dir_at(&home, "left").map_err(text)?, sys::open_dir_at(&home, "right").map_err(text)?];
    for dir in ["empty", "full"] {
        sys::mkdir_at(&sides[0], dir).map_err(text)?;
    }
    fill(&sys::open_dir_at(&sides[0], "full").map_err(text)?, options.subtree_files, options.threads)?;
    let (mut empty, mut full) = (Vec::new(), Vec::new());
    for rep in 0..options.reps + WARM_UP {
        let (from, to) = (&sides[rep % 2], &sides[(rep + 1) % 2]);
        // Who goes first changes every second repetition, so that neither always finds the caches warm.
        let order = if rep % 4 < 2 { ["empty", "full"] } else { ["full", "empty"] };
        for dir in order {
            let seconds = timed_rename(from, to, dir).map_err(text)?;
            if rep >= WARM_UP {
                if dir == "empty" { empty.push(seconds) } else { full.push(seconds) }
            }
        }
    }
    Ok((median(&empty), median(&full)))
}

fn timed_rename(from: &OwnedFd, to: &OwnedFd, name: &str) -> io::Result<f64> {
    let start = common::now();
    sys::rename_at(from, name, to, name, 0)?;
    Ok((common::now() - start).as_secs_f64())
}
