//! Moves that are legal alone and would cut a loop off the root together (juicedata/juicefs issue 4800), made at the
//! same moment through different mounts of one store, many thousands of times. `scripts/loop-hunt` mounts the store.
//!
//! What is hard:
//!
//! 1. To be able to find a loop. Two threads leave a barrier with a small random lag, so that over many rounds every
//!    order of the steps inside the daemon occurs; the program counts the rounds in which both calls overlapped, and in
//!    which order they took effect, and fails if it saw too few. With the rules of the rename switched off
//!    (`--expect-loops`) it must find loops.
//! 2. To know that nothing is lost. Each team has five directories with a file each. Whoever moved one moves it back by
//!    its new name, which proves where it is; a walk counts all of them whenever the outcome is not that of one winner,
//!    and every so often anyway.
//! 3. To be quick: no process and no directory is made for a round.

#![allow(clippy::disallowed_methods)] // A program outside of the library: it may have a clock of its own.

mod common;
#[path = "hunt/options.rs"]
mod options;
#[path = "hunt/report.rs"]
mod report;
#[path = "hunt/team.rs"]
mod team;

use common::{Res, command, now, sys};
use options::Options;
use report::Tally;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64};
use team::Team;

/// What all teams share.
pub(crate) struct Hunt {
    pub(crate) options: Options,
    /// Rounds that were begun, over all teams.
    pub(crate) rounds: AtomicU64,
    /// Whether the hunt is over.
    pub(crate) over: AtomicBool,
    /// Which of two sides has come first, in rounds of the kind that lets one of them win.
    pub(crate) came_first: [AtomicBool; 2],
}

fn main() -> ExitCode {
    sys::set_up_process();
    match run() {
        Ok(code) => code,
        Err(message) => {
            eprintln!("loop-hunt: {message}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Res<ExitCode> {
    let Some(options) = Options::from_env()? else { return Ok(ExitCode::SUCCESS) };
    let hunt = Hunt {
        options,
        rounds: AtomicU64::new(0),
        over: AtomicBool::new(false),
        came_first: Default::default(),
    };
    let options = &hunt.options;
    let sizes = options.teams();
    println!("seed {}, {} mounts, teams of {sizes:?}", options.seed, options.mounts.len());
    let teams: Vec<Team> = sizes.iter().enumerate().map(|(n, size)| Team::new(n, *size)).collect();
    let start = now();
    let members = teams.iter().flat_map(|team| (0..team.size()).map(move |side| (team, side)));
    let tallies = common::in_parallel("hunt", members, |(team, side)| team.run(&hunt, side))?;
    let tally = tallies.into_iter().fold(Tally::default(), Tally::add);
    tally.print(now() - start);
    let mut wrong = tally.judge(options);
    if !options.plain {
        wrong.extend(judge_volume(options));
    }
    for line in wrong.iter().take(20) {
        eprintln!("loop-hunt: WRONG: {line}");
    }
    if wrong.is_empty() {
        println!("passed");
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("loop-hunt: FAILED: {} findings; seed {}", wrong.len(), options.seed);
    Ok(ExitCode::FAILURE)
}

/// What `lockwood check` says through the last mount: clean, or with loops where they were expected.
fn judge_volume(options: &Options) -> Option<String> {
    let Some(mount) = options.mounts.last() else { return Some("there is no mount".into()) };
    match (command::check(mount), options.expect_loops) {
        (Ok(()), false) | (Err(_), true) => None,
        (Err(found), false) => Some(found),
        (Ok(()), true) => Some("loops were made, and `lockwood check` calls the volume clean".into()),
    }
}
