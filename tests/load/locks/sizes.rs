//! What a rename costs by the size of its subtree. Each rename takes a directory to another parent, so that the locks are
//! those of a real move.

use crate::Line;
use crate::common::{self, Res, median, sys};
use crate::options::{Options, Target};
use std::io;
use std::os::fd::OwnedFd;

const FILES_A_DIRECTORY: usize = 1000;
const BUILDERS: usize = 2;
/// As many renames make one figure of a round, for those that take less than [`SHORT_S`].
const SHORT_REPEATS: usize = 10;
const SHORT_S: f64 = 0.01;

/// The directories of one target: all subtrees are in one of two, `left` and `right`, and change sides together.
pub(crate) struct Trees {
    sides: [OwnedFd; 2],
}

/// Makes a directory of each size.
pub(crate) fn build(options: &Options, target: &Target) -> Res<Trees> {
    let text = |e: io::Error| format!("{}: {e}", target.name);
    std::fs::create_dir_all(target.scratch(0)).map_err(text)?;
    let home = sys::open_dir(&target.scratch(0)).map_err(text)?;
    let side = |name: &str| sys::mkdir_at(&home, name).and_then(|()| sys::open_dir_at(&home, name));
    let sides = [side("left").map_err(text)?, side("right").map_err(text)?];
    for size in options.sizes() {
        let name = size.to_string();
        sys::mkdir_at(&sides[0], &name).map_err(text)?;
        fill(&sys::open_dir_at(&sides[0], &name).map_err(text)?, size)?;
    }
    Ok(Trees { sides })
}

/// Fills a directory by one or two levels: no directory has more than [`FILES_A_DIRECTORY`] files.
pub(crate) fn fill(top: &OwnedFd, files: usize) -> Res<()> {
    let create = |dir: &OwnedFd, files: usize| -> io::Result<()> {
        (0..files).try_for_each(|i| sys::create_at(dir, &format!("file-{i:04}")).map(drop))
    };
    if files <= FILES_A_DIRECTORY {
        return create(top, files).map_err(|e| format!("filling: {e}"));
    }
    let fill_some = |builder: usize| -> io::Result<()> {
        for d in (builder..files.div_ceil(FILES_A_DIRECTORY)).step_by(BUILDERS) {
            let name = format!("dir-{d:05}");
            sys::mkdir_at(top, &name)?;
            create(&sys::open_dir_at(top, &name)?, FILES_A_DIRECTORY.min(files - d * FILES_A_DIRECTORY))?;
        }
        Ok(())
    };
    common::in_parallel("fill", 0..BUILDERS, |b| fill_some(b).map_err(|e| format!("filling: {e}")))?;
    Ok(())
}

/// Moves a directory to the other side and back; the median microseconds of one rename.
fn there_and_back(trees: &Trees, name: &str) -> io::Result<f64> {
    let [left, right] = &trees.sides;
    let mut taken = Vec::new();
    while taken.len() < 2 || (taken.len() < SHORT_REPEATS && taken[0] < SHORT_S * 1e6) {
        taken.push(timed_rename(left, right, name)?);
        taken.push(timed_rename(right, left, name)?);
    }
    Ok(median(&taken))
}

fn timed_rename(from: &OwnedFd, to: &OwnedFd, name: &str) -> io::Result<f64> {
    let start = common::now();
    sys::rename_at(from, name, to, name, 0)?;
    Ok((common::now() - start).as_secs_f64() * 1e6)
}

/// Median microseconds of a rename, a line for each target.
pub(crate) fn measure(options: &Options, trees: &[Trees]) -> Res<Vec<Line>> {
    let sizes = options.sizes();
    let mut taken = vec![vec![Vec::new(); sizes.len()]; trees.len()];
    // The first round only warms the caches.
    for round in 0..=options.rounds {
        for (nth, size) in sizes.iter().enumerate() {
            for turn in 0..trees.len() {
                let target = (turn + round + nth) % trees.len();
                let one = there_and_back(&trees[target], &size.to_string());
                let one =
                    one.map_err(|e| format!("{size} files on {}: {e}", options.targets[target].name))?;
                if round > 0 {
                    taken[target][nth].push(one);
                }
            }
        }
        eprint!("\rsizes: round {round} of {} ", options.rounds);
    }
    eprintln!();
    let line = |(target, taken): (&Target, &Vec<Vec<f64>>)| Line {
        name: target.name.clone(),
        points: sizes.iter().copied().zip(taken.iter().map(|t| median(t))).collect(),
    };
    Ok(options.targets.iter().zip(&taken).map(line).collect())
}

/// The smallest and the largest in turns: the ratio of the medians.
pub(crate) fn compare_ends(options: &Options, trees: &Trees) -> Res<f64> {
    let names = ["1".to_owned(), options.largest.to_string()];
    let mut taken = [Vec::new(), Vec::new()];
    let (mut from, mut to) = (&trees.sides[0], &trees.sides[1]);
    for round in 0..options.pairs.next_multiple_of(2) {
        // Who goes first changes every second round, so that neither always finds the caches warm.
        let order = if round % 4 < 2 { [0, 1] } else { [1, 0] };
        for which in order {
            let one = timed_rename(from, to, &names[which]);
            taken[which].push(one.map_err(|e| format!("renaming {}: {e}", names[which]))?);
        }
        std::mem::swap(&mut from, &mut to);
    }
    Ok(median(&taken[1]) / median(&taken[0]))
}
