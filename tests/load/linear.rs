//! Histories of several hosts that change and look at the same names at once, each of which must be explained by one order
//! of the changes: what is promised between hosts, as `tests/mount/linear/lag.rs` puts it. `scripts/hosts` mounts the tree.
//!
//! The recorder, the sequential tree and the search are those of `tests/mount/linear`. Many histories run at once, each in a
//! directory of its own, since most of the time is spent in pauses that make them longer than the bound.

#![allow(clippy::expect_used, reason = "a seed in the environment that is no number is said so")]
#![allow(clippy::disallowed_methods)] // A program outside of the library: it may have a clock of its own.
#![allow(clippy::unwrap_used, clippy::panic)] // A judge: what goes wrong has failed it.

mod common;
#[path = "../mount/linear/lag.rs"]
mod lag;
#[path = "../mount/linear/model.rs"]
#[allow(dead_code, reason = "its other user needs the rest")]
mod model;
#[path = "../mount/linear/record.rs"]
#[allow(dead_code, reason = "its other user needs the rest")]
mod record;
#[path = "../common/rng.rs"]
#[allow(dead_code, reason = "its other users need the rest")]
mod rng;
#[path = "../mount/linear/search.rs"]
mod search;

use common::args::Args;
use common::{Res, in_parallel};
use record::{Pace, Stage};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const HELP: &str = "\
linear: histories of several hosts, each of which one order of the changes must explain (scripts/hosts mounts the tree)

  --mount DIR        a mount of the tree; repeat it for each host
  --histories N      how many (default 100); up to six times as many, until calls of two hosts met
  --at-once N        how many at a time (default 16)
  --lag-ms N         for how long a host may show what is old (default 1000)
  --seed N           replays the calls of a run, not their times

Exit code: 0 all are explained, 1 not so, 2 could not run.";

/// Pauses in parts of the bound; a history lasts some of them, so that what is too old is told from what may be.
const PAUSES_PER_LAG: u32 = 3;
const CALLS: u64 = 9;
/// Where no two calls were under way at once, so many times as many histories are made to meet some.
const TIMES_MAX: u64 = 6;
/// So many of those that are not explained are printed.
const SHOWN_MAX: usize = 20;

struct Options {
    mounts: Vec<PathBuf>,
    histories: u64,
    at_once: usize,
    lag: Duration,
    seed: u64,
}

#[derive(Default)]
struct Counts {
    /// Histories.
    made: AtomicU64,
    calls: AtomicU64,
    overlaps: AtomicU64,
    changes: AtomicU64,
    /// Histories that need no lag at all.
    strict: AtomicU64,
}

fn main() -> ExitCode {
    match options().and_then(|options| options.map_or(Ok(ExitCode::SUCCESS), |options| run(&options))) {
        Ok(code) => code,
        Err(message) => {
            eprintln!("linear: {message}");
            ExitCode::from(2)
        }
    }
}

fn options() -> Res<Option<Options>> {
    let mut args = Args::from_env();
    if args.take_flag("--help") || args.take_flag("-h") {
        println!("{HELP}");
        return Ok(None);
    }
    let options = Options {
        mounts: args.take_list("--mount")?.into_iter().map(PathBuf::from).collect(),
        histories: args.take("--histories")?.unwrap_or(100),
        at_once: args.take("--at-once")?.unwrap_or(16),
        lag: Duration::from_millis(args.take("--lag-ms")?.unwrap_or(1000)),
        seed: args.take("--seed")?.unwrap_or_else(common::fresh_seed),
    };
    args.finish()?;
    if options.mounts.len() < 2 || options.histories == 0 || options.at_once == 0 {
        return Err(
            "two --mount DIR at least, and --histories and --at-once of at least 1; see --help".into()
        );
    }
    Ok(Some(options))
}

fn run(options: &Options) -> Res<ExitCode> {
    let Options { mounts, histories, at_once, lag, seed } = options;
    let pace = Pace { calls: CALLS, pause: *lag / PAUSES_PER_LAG };
    let (next, counts) = (AtomicU64::new(0), Counts::default());
    let judge = |_| {
        let mut wrong = Vec::new();
        loop {
            let number = next.fetch_add(1, Relaxed);
            // Fast hosts hardly ever meet: then it goes on until they have.
            let times = if counts.overlaps.load(Relaxed) > 0 { 1 } else { TIMES_MAX };
            if number >= histories * times {
                return Ok(wrong);
            }
            let of_this = seed.wrapping_mul(1_000_003).wrapping_add(number);
            let name = format!("linear.{seed}.{number}");
            // A host that has never heard of the directory asks for it.
            let (before, events) = Stage::record_apart(mounts, &name, of_this, pace, *lag);
            counts.made.fetch_add(1, Relaxed);
            counts.calls.fetch_add(events.len() as u64, Relaxed);
            counts.overlaps.fetch_add(search::overlaps(&events), Relaxed);
            let changes = events.iter().filter(|event| event.call.changes(event.outcome)).count();
            counts.changes.fetch_add(changes as u64, Relaxed);
            let explained = |lag: Duration| {
                let lag_ns = u64::try_from(lag.as_nanos()).unwrap_or(u64::MAX);
                lag::explained(&before, &events, mounts.len(), lag_ns)
            };
            counts.strict.fetch_add(u64::from(explained(Duration::ZERO)), Relaxed);
            if !explained(*lag) {
                wrong.push(format!(
                    "history {number}: no order explains it with a lag of {lag:?}, from {before:?}:\n{}",
                    search::show(&events)
                ));
            }
        }
    };
    let wrong: Vec<String> = in_parallel("history", 0..*at_once, judge)?.into_iter().flatten().collect();
    let Counts { made, calls, overlaps, changes, strict } = counts;
    let [made, calls, overlaps, changes, strict] =
        [made, calls, overlaps, changes, strict].map(AtomicU64::into_inner);
    for history in wrong.iter().take(SHOWN_MAX) {
        println!("{history}");
    }
    println!(
        "linear: {made} histories over {} hosts, {calls} calls, {changes} changes, {overlaps} pairs at once; \
         {strict} histories need no lag; lag {} ms; seed {seed}; not explained: {}",
        mounts.len(),
        lag.as_millis(),
        wrong.len()
    );
    if !wrong.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    if changes < made || overlaps == 0 {
        println!("linear: the hosts hardly met; that is no pass");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
