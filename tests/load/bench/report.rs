//! The table of the benchmark and its requirements.

use crate::common::median;
use crate::options::Options;

/// The ratio of the medians of two targets, and the lowest and highest ratio within one round.
struct Ratio {
    of_medians: f64,
    low: f64,
    high: f64,
}

fn ratio(first: &[f64], second: &[f64]) -> Ratio {
    let by_round = || first.iter().zip(second).map(|(a, b)| a / b);
    Ratio {
        of_medians: median(first) / median(second),
        low: by_round().fold(f64::INFINITY, f64::min),
        high: by_round().fold(0.0, f64::max),
    }
}

/// Prints operations per second (medians over rounds) and ratios: `table[phase][target][round]`.
pub(crate) fn print(options: &Options, table: &[Vec<Vec<f64>>]) {
    println!(
        "{} threads, {} files each, {} rounds; operations per second, medians over rounds",
        options.threads, options.files, options.rounds
    );
    print!("{:<18}", "phase");
    for target in &options.targets {
        print!(" {:>11}", target.name);
    }
    if let [first, second, ..] = options.targets.as_slice() {
        print!("  {}/{} (min..max over rounds)", first.name, second.name);
    }
    println!();
    for (phase, rates) in options.phases.iter().zip(table) {
        print!("{:<18}", phase.name);
        for rounds in rates {
            print!(" {:>11.0}", median(rounds));
        }
        if let [first, second, ..] = rates.as_slice() {
            let r = ratio(first, second);
            print!("  {:.2} ({:.2}..{:.2})", r.of_medians, r.low, r.high);
        }
        println!();
    }
}

/// The requirements that were missed.
pub(crate) fn shortfalls(options: &Options, table: &[Vec<Vec<f64>>]) -> Vec<String> {
    let mut missed = Vec::new();
    for (name, floor) in &options.require {
        let Some(at) = options.phases.iter().position(|p| p.name == name) else { continue };
        let r = ratio(&table[at][0], &table[at][1]);
        if r.of_medians < *floor {
            missed.push(format!("{name}: ratio {:.3} is below the required {floor}", r.of_medians));
        }
    }
    missed
}
