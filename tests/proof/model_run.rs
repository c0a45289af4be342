//! Visits the states of the model's scenarios, the large ones included, until there were enough.
//!
//! `cargo run --profile load --features proof --example model -- --states-min 100000000`. Ends with an error if a property
//! was broken, if something was never met, or if the scenarios have fewer states than that. `LOCKWOOD_RULES_OFF=RULE`
//! switches rules off.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A judge that cannot judge has failed.

use std::process::ExitCode;

#[allow(dead_code)]
mod model;

use model::run;

struct Options {
    states_min: usize,
    /// For one scenario.
    steps_max: usize,
    threads: usize,
    only: Option<String>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { states_min: 0, steps_max: 150_000_000, threads: 2, only: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word}: a value is missing"))?;
        let number = || value.parse::<usize>().map_err(|error| format!("{word} {value}: {error}"));
        match word.as_str() {
            "--states-min" => options.states_min = number()?,
            "--steps-max" => options.steps_max = number()?,
            "--threads" => options.threads = number()?.max(1),
            "--only" => options.only = Some(value),
            _ => return Err(format!("{word}: --states-min N, --steps-max N, --threads N, --only SCENARIO")),
        }
    }
    Ok(options)
}

fn run(options: &Options) -> Result<(), String> {
    lockwood::rules::read_environment()?;
    let mut outcomes = Vec::new();
    let chosen = |name: &&str| options.only.as_ref().is_none_or(|only| only == name);
    for name in run::names(true).into_iter().filter(chosen) {
        let Some(outcome) = run::run(name, options.steps_max, options.threads) else { continue };
        println!("{}", outcome.line());
        if let Some((property, actions)) = &outcome.violation {
            return Err(format!("{name}: {property}: {actions}"));
        }
        outcomes.push(outcome);
    }
    let states: usize = outcomes.iter().map(|outcome| outcome.states).sum();
    let seconds: f64 = outcomes.iter().map(|outcome| outcome.seconds).sum();
    println!("{states} states in {seconds:.0} s, {:.0} a second", states as f64 / seconds.max(1e-6));
    if states < options.states_min {
        return Err(format!("{states} states are fewer than {}", options.states_min));
    }
    let not_reached = run::not_reached(&outcomes);
    if options.only.is_none() && !not_reached.is_empty() {
        return Err(format!("no scenario has met {not_reached:?}"));
    }
    Ok(())
}

fn main() -> ExitCode {
    match options().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("model: {error}");
            ExitCode::FAILURE
        }
    }
}
