//! Measures the lock strategies side by side: what a rename costs by the size of its subtree, and how many renames a
//! second several renamers make. Prints tables and draws them. `scripts/bench locks` formats and mounts a volume of each.
//!
//! What is hard: the figures of strategies that were taken minutes apart say little on a shared machine. So every round
//! takes each of them in turn, in an order that rotates, and what is reported is the median over rounds.

#![allow(clippy::disallowed_methods)] // A program outside of the library: it may have a clock of its own.

mod common;
#[path = "locks/options.rs"]
mod options;
#[path = "locks/plot.rs"]
mod plot;
#[path = "locks/renamers.rs"]
mod renamers;
#[path = "locks/sizes.rs"]
mod sizes;

use common::{Res, sys};
use options::Options;
use std::process::ExitCode;

/// One line of a figure: the name of a strategy, and its points.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(usize, f64)>,
}

fn main() -> ExitCode {
    sys::set_up_process();
    match run() {
        Ok(code) => code,
        Err(message) => {
            eprintln!("bench-locks: {message}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Res<ExitCode> {
    let Some(options) = Options::from_env()? else { return Ok(ExitCode::SUCCESS) };
    let measured = measure(&options);
    for target in options.targets.iter().filter(|_| !options.leave) {
        let cleared = sys::remove_tree(&target.scratch(0));
        cleared.map_err(|e| format!("cannot clear {}: {e}", target.scratch(0).display()))?;
    }
    let missed = measured?;
    for failure in &missed {
        eprintln!("bench-locks: FAILED: {failure}");
    }
    Ok(if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Measures everything, prints it, draws it, and returns the requirements that were missed.
fn measure(options: &Options) -> Res<Vec<String>> {
    let trees: Vec<sizes::Trees> =
        options.targets.iter().map(|target| sizes::build(options, target)).collect::<Res<_>>()?;
    let latency = sizes::measure(options, &trees)?;
    print_table("microseconds a rename, by the files below (medians)", &latency);
    let ratio = sizes::compare_ends(options, &trees[0])?;
    println!(
        "{}: median with {} files below / median with 1, in turns, {} of each: {ratio:.3}",
        options.targets[0].name, options.largest, options.pairs
    );
    let mut rates = Vec::new();
    for shape in renamers::Shape::ALL {
        let lines = renamers::measure(options, shape)?;
        print_table(&format!("renames a second, by renamers, {} (medians)", shape.title()), &lines);
        rates.push((shape.title(), lines));
    }
    if let Some(path) = &options.svg {
        plot::draw(path, &latency, &rates)?;
        println!("drawn: {}", path.display());
    }
    let missed = options.require_same.filter(|ceiling| ratio > *ceiling);
    Ok(missed.map(|c| format!("same: ratio {ratio:.3} is above the allowed {c}")).into_iter().collect())
}

fn print_table(title: &str, lines: &[Line]) {
    println!("{title}");
    print!("{:<10}", "");
    for line in lines {
        print!(" {:>12}", line.name);
    }
    println!();
    let rows = lines.iter().map(|line| line.points.len()).max().unwrap_or(0);
    for row in 0..rows {
        print!("{:<10}", lines[0].points[row].0);
        for line in lines {
            print!(" {:>12.0}", line.points[row].1);
        }
        println!();
    }
}
