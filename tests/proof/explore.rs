//! Runs as many schedules as wanted: `explore --schedules N [--seed-from S] [--workload NAME|all] [--threads N]`.
//!
//! `--seed N --trace` runs one again and prints what happened in it; `--mutate RULE` switches a rule off and looks for the
//! first seed at which a judge objects. Exit code 1: a judge objected (with `--mutate`: none did). 3: the run did not see
//! what it is for. 2: wrong arguments.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A judge that cannot judge has failed.

#[allow(dead_code)]
#[path = "../common/rng.rs"]
mod rng;
mod sim;
mod work;

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use clap::Parser;
use lockwood::ambient;
use lockwood::rules::Rule;

use sim::{Count, Counts};
use work::{Workload, first_violation, simulate};

/// Explores schedules of the real protocols over simulated hosts.
#[derive(Parser)]
struct Args {
    /// How many schedules of each workload.
    #[arg(long, default_value_t = 10_000)]
    schedules: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed_from: u64,
    /// Which workload, or all.
    #[arg(long, default_value = "all")]
    workload: String,
    /// How many threads, each with simulations of its own.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// One seed only.
    #[arg(long)]
    seed: Option<u64>,
    /// Print every event.
    #[arg(long)]
    trace: bool,
    /// Switch this rule off, and look for a seed at which a judge objects.
    #[arg(long)]
    mutate: Option<String>,
}

/// So much of a trace is shown of a seed that failed.
const TRACE_LINES: usize = 200;
/// Seeds that a thread takes at once.
const BATCH: u64 = 64;

fn main() -> ExitCode {
    let args = Args::parse();
    let workloads: Vec<Workload> = Workload::ALL
        .into_iter()
        .filter(|w| matches!(&*args.workload, "all") || w.name() == args.workload)
        .collect();
    if workloads.is_empty() {
        eprintln!("there is no workload {:?}", args.workload);
        return ExitCode::from(2);
    }
    if let Some(name) = &args.mutate {
        return mutate(name, &workloads, args.schedules);
    }
    if let Err(wrong) = lockwood::rules::read_environment() {
        eprintln!("{wrong}");
        return ExitCode::from(2);
    }
    let codes = workloads.iter().map(|workload| match args.seed {
        Some(seed) => again(*workload, seed, args.trace),
        None => explore(*workload, &args),
    });
    ExitCode::from(codes.max().unwrap_or(0))
}

fn again(workload: Workload, seed: u64, trace: bool) -> u8 {
    let outcome = simulate(workload, seed, trace);
    outcome.trace.iter().for_each(|line| println!("{line}"));
    println!("{} seed {seed}: digest {:016x}", workload.name(), outcome.digest);
    match outcome.violation {
        Some(what) => {
            println!("{} seed {seed}: VIOLATION: {what}", workload.name());
            1
        }
        None => 0,
    }
}

fn mutate(name: &str, workloads: &[Workload], schedules: u64) -> ExitCode {
    let Some(rule) = Rule::ALL.iter().find(|rule| rule.name() == name) else {
        eprintln!("there is no rule {name:?}");
        return ExitCode::from(2);
    };
    let mut caught = false;
    for workload in workloads {
        match first_violation(&[*rule], *workload, schedules) {
            Some((seed, what)) => {
                caught = true;
                println!("{name}: {} seed {seed}: {what}", workload.name());
            }
            None => println!("{name}: {}: nobody objects in {schedules} schedules", workload.name()),
        }
    }
    if caught { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What the threads of a run have found together.
struct Found {
    counts: Counts,
    /// The sum of the digests of all seeds: the same seeds have the same, whichever thread ran which.
    digest: u64,
    failed: Option<(u64, String)>,
}

fn explore(workload: Workload, args: &Args) -> u8 {
    let begun = ambient::monotonic();
    let next = AtomicU64::new(args.seed_from);
    let end = args.seed_from.saturating_add(args.schedules);
    let stop = AtomicBool::new(false);
    let found = Mutex::new(Found { counts: Counts::default(), digest: 0, failed: None });
    std::thread::scope(|scope| {
        for _ in 0..args.threads.max(1) {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    let from = next.fetch_add(BATCH, Relaxed);
                    if from >= end {
                        break;
                    }
                    work_through(workload, from..end.min(from + BATCH), &found, &stop);
                }
            });
        }
    });
    let seconds = begun.elapsed().as_secs_f64();
    let found = found.into_inner().unwrap();
    report(workload, args, &found, seconds)
}

fn work_through(workload: Workload, seeds: std::ops::Range<u64>, found: &Mutex<Found>, stop: &AtomicBool) {
    let mut counts = Counts::default();
    let mut digest = 0_u64;
    let mut failed = None;
    for seed in seeds {
        let outcome = simulate(workload, seed, false);
        counts.merge(&outcome.counts);
        digest = digest.wrapping_add(outcome.digest);
        if let Some(what) = outcome.violation {
            failed = Some((seed, what));
            stop.store(true, Relaxed);
            break;
        }
    }
    let mut found = found.lock().unwrap();
    found.counts.merge(&counts);
    found.digest = found.digest.wrapping_add(digest);
    if failed.is_some() && found.failed.as_ref().is_none_or(|(seed, _)| failed.as_ref().unwrap().0 < *seed) {
        found.failed = failed;
    }
}

fn report(workload: Workload, args: &Args, found: &Found, seconds: f64) -> u8 {
    let name = workload.name();
    if let Some((seed, what)) = &found.failed {
        let trace = simulate(workload, *seed, true).trace;
        trace[trace.len().saturating_sub(TRACE_LINES)..].iter().for_each(|line| println!("{line}"));
        println!("{name} seed {seed}: VIOLATION: {what}");
        println!("again with: explore --workload {name} --seed {seed} --trace");
        return 1;
    }
    let rate = args.schedules as f64 / seconds;
    println!(
        "{name}: {} schedules from seed {} in {seconds:.1} s, {rate:.0} a second, digest {:016x}",
        args.schedules, args.seed_from, found.digest
    );
    for what in Count::ALL.into_iter().filter(|what| found.counts.get(*what) > 0) {
        println!("  {what:?}: {}", found.counts.get(what));
    }
    let unseen: Vec<_> = workload.must_see().iter().filter(|what| found.counts.get(**what) == 0).collect();
    if unseen.is_empty() {
        return 0;
    }
    println!("{name}: NOT SHOWN: this run saw none of {unseen:?}");
    3
}
