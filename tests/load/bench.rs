//! Measures one mounted filesystem beside others, interleaved, so that what disturbs one disturbs all: for each round
//! and each phase every target takes its turn, in an order that rotates. `scripts/bench` mounts the targets.
//!
//! What is hard: a ratio of two figures that were taken minutes apart says little on a shared machine. So the ratio is
//! of medians over rounds, and its spread is that of the ratios within each round. Where a scheduler puts programs and
//! daemons decides by a factor of two and more whether a request wakes a sleeping core, and stays so for a whole phase. So
//! each thread keeps a core of its own, whatever it measures.

#![allow(clippy::disallowed_methods)] // A program outside of the library: it may have a clock of its own.

mod common;
#[path = "bench/data.rs"]
mod data;
#[path = "bench/desk.rs"]
mod desk;
#[path = "bench/disjoint.rs"]
mod disjoint;
#[path = "bench/fill.rs"]
mod fill;
#[path = "bench/mix.rs"]
mod mix;
#[path = "bench/options.rs"]
mod options;
#[path = "bench/phases.rs"]
mod phases;
#[path = "bench/report.rs"]
mod report;
#[path = "bench/subtree.rs"]
mod subtree;

use common::{Res, sys};
use desk::Desk;
use options::{Options, Target};
use phases::Phase;
use std::process::ExitCode;

fn main() -> ExitCode {
    sys::set_up_process();
    match run() {
        Ok(code) => code,
        Err(message) => {
            eprintln!("bench: {message}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Res<ExitCode> {
    let Some(options) = Options::from_env()? else { return Ok(ExitCode::SUCCESS) };
    let mut failures = Vec::new();
    fill::run(&options.fill, options.threads)?;
    if !options.phases.is_empty() {
        let desks = set_up(&options)?;
        let measured = measure(&options, &desks);
        for target in &options.targets {
            let cleared = sys::remove_tree(&target.scratch());
            cleared.map_err(|e| format!("cannot clear {}: {e}", target.scratch().display()))?;
        }
        let table = measured?;
        report::print(&options, &table);
        failures.extend(report::shortfalls(&options, &table));
    }
    if options.subtree {
        failures.extend(subtree::run(&options)?);
    }
    if options.disjoint {
        failures.extend(disjoint::run(&options)?);
    }
    for failure in &failures {
        eprintln!("bench: FAILED: {failure}");
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The working directories of every thread on every target.
fn set_up(options: &Options) -> Res<Vec<Vec<Desk>>> {
    let mut all = Vec::new();
    for target in &options.targets {
        let desks: Res<Vec<Desk>> =
            (0..options.threads).map(|thread| desk(target, thread, options)).collect();
        all.push(desks?);
    }
    Ok(all)
}

fn desk(target: &Target, thread: usize, options: &Options) -> Res<Desk> {
    let dir = target.scratch().join(format!("t{thread}"));
    let made = std::fs::create_dir_all(&dir).and_then(|()| Desk::new(&dir, options.files, options.bytes));
    made.map_err(|e| format!("{}: {e}; is the target mounted and writable?", dir.display()))
}

/// Operations per second: `[phase][target][round]`.
fn measure(options: &Options, desks: &[Vec<Desk>]) -> Res<Vec<Vec<Vec<f64>>>> {
    let targets = options.targets.len();
    let mut table = vec![vec![Vec::new(); targets]; options.phases.len()];
    for round in 0..options.rounds + options.warm_up {
        for (p, phase) in options.phases.iter().enumerate() {
            for turn in 0..targets {
                let target = (turn + round + p) % targets;
                let rate = cell(phase, &desks[target])
                    .map_err(|e| format!("{} on {}: {e}", phase.name, options.targets[target].name))?;
                if round >= options.warm_up {
                    table[p][target].push(rate);
                }
            }
        }
        eprint!("\rround {} of {} ", round + 1, options.rounds + options.warm_up);
    }
    eprintln!();
    Ok(table)
}

/// One phase on one target by all threads at once, each on a core of its own while there are any: prepared and cleaned off
/// the clock.
fn cell(phase: &Phase, desks: &[Desk]) -> Res<f64> {
    common::in_parallel("prepare", desks, |desk| {
        (phase.prepare)(desk).map_err(|e| format!("preparing: {e}"))
    })?;
    phase.settle()?;
    let start = std::sync::Barrier::new(desks.len());
    let cores = sys::cores();
    let spans = common::in_parallel("run", desks.iter().enumerate(), |(thread, desk)| {
        if let Some(core) = cores.get(thread % cores.len().max(1)) {
            sys::stay_on(*core).map_err(|e| format!("cannot stay on processor {core}: {e}"))?;
        }
        start.wait();
        let from = common::now();
        let operations = (phase.run)(desk).map_err(|e| e.to_string())?;
        Ok((from, common::now(), operations))
    })?;
    common::in_parallel("clean", desks, |desk| (phase.clean)(desk).map_err(|e| format!("cleaning: {e}")))?;
    let first = spans.iter().map(|s| s.0).min().unwrap_or_default();
    let last = spans.iter().map(|s| s.1).max().unwrap_or_default();
    let operations: usize = spans.iter().map(|s| s.2).sum();
    Ok(operations as f64 / (last - first).as_secs_f64().max(1e-9))
}
