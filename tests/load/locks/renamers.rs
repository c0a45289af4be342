//! How many renames several renamers make together, each with a directory of its own that it moves to and fro.

use crate::Line;
use crate::common::{self, Res, median, sys};
use crate::options::{Options, Target};
use crate::sizes::fill;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Barrier;

/// Where the renamers move their directories.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// Each between two parents of its own.
    Disjoint,
    /// All between the same two parents.
    Shared,
}

impl Shape {
    pub(crate) const ALL: [Self; 2] = [Self::Disjoint, Self::Shared];

    /// For tables and figures.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Disjoint => "each in a subtree of its own",
            Self::Shared => "all in one subtree",
        }
    }

    fn home(self, nth: usize) -> String {
        match self {
            Self::Disjoint => format!("own-{nth}"),
            Self::Shared => "shared".to_owned(),
        }
    }
}

/// One renamer on one target, by the mount point that it uses.
struct Renamer {
    sides: [OwnedFd; 2],
    name: String,
}

impl Renamer {
    fn make(options: &Options, target: &Target, shape: Shape, nth: usize) -> Res<Self> {
        let text = |e: io::Error| format!("{}: {e}", target.name);
        let home = target.scratch(nth).join(shape.home(nth));
        let side = |name: &str| {
            std::fs::create_dir_all(home.join(name)).and_then(|()| sys::open_dir(&home.join(name)))
        };
        let sides = [side("left").map_err(text)?, side("right").map_err(text)?];
        let name = format!("moved-{nth}");
        sys::mkdir_at(&sides[0], &name).map_err(text)?;
        fill(&sys::open_dir_at(&sides[0], &name).map_err(text)?, options.renamer_files)?;
        Ok(Self { sides, name })
    }

    /// Renames until the time is over; ends where it began. Returns the renames and those that lost (EBUSY).
    fn run(&self, options: &Options, start: &Barrier) -> Res<(u64, u64)> {
        let [left, right] = &self.sides;
        let (mut done, mut lost) = (0, 0);
        let (mut from, mut to) = (left, right);
        start.wait();
        let end = common::now() + options.time;
        while common::now() < end || done % 2 == 1 {
            match sys::rename_at(from, &self.name, to, &self.name, 0) {
                Ok(()) => {
                    done += 1;
                    std::mem::swap(&mut from, &mut to);
                }
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => lost += 1,
                Err(e) => return Err(format!("renaming {}: {e}", self.name)),
            }
        }
        Ok((done, lost))
    }
}

/// Median renames a second, a line for each target.
pub(crate) fn measure(options: &Options, shape: Shape) -> Res<Vec<Line>> {
    let most = options.renamers.iter().copied().max().unwrap_or(1);
    let renamers: Vec<Vec<Renamer>> = options
        .targets
        .iter()
        .map(|target| (0..most).map(|nth| Renamer::make(options, target, shape, nth)).collect())
        .collect::<Res<_>>()?;
    let mut taken = vec![vec![Vec::new(); options.renamers.len()]; renamers.len()];
    let mut losses = vec![0; renamers.len()];
    for round in 0..options.rounds {
        for (nth, count) in options.renamers.iter().enumerate() {
            for turn in 0..renamers.len() {
                let target = (turn + round + nth) % renamers.len();
                let (rate, lost) = rate(options, &renamers[target][..*count])
                    .map_err(|e| format!("{}: {e}", options.targets[target].name))?;
                taken[target][nth].push(rate);
                losses[target] += lost;
            }
        }
        eprint!("\r{}: round {} of {} ", shape.title(), round + 1, options.rounds);
    }
    eprintln!();
    for (target, lost) in options.targets.iter().zip(losses).filter(|(_, lost)| *lost > 0) {
        println!("{}, {}: {lost} renames failed with EBUSY", target.name, shape.title());
    }
    let line = |(target, taken): (&Target, &Vec<Vec<f64>>)| Line {
        name: target.name.clone(),
        points: options.renamers.iter().copied().zip(taken.iter().map(|t| median(t))).collect(),
    };
    Ok(options.targets.iter().zip(&taken).map(line).collect())
}

/// All of these renamers at once; renames a second, and how many lost.
fn rate(options: &Options, renamers: &[Renamer]) -> Res<(f64, u64)> {
    let barrier = Barrier::new(renamers.len());
    let start = common::now();
    let counts = common::in_parallel("renamer", renamers, |renamer| renamer.run(options, &barrier))?;
    let seconds = (common::now() - start).as_secs_f64();
    let (done, lost) = counts.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    Ok((done as f64 / seconds, lost))
}
