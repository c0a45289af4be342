//! Switches off every rule of the protocols in turn, and prints who objected. `scripts/proof mutation` builds and runs it;
//! by hand it may be given rules, and needs the example `lockwood-proof` beside it. Ends with an error if nobody objected
//! to one, or if somebody objected to none.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A judge that cannot judge has failed.

#[allow(dead_code)]
mod model;
#[allow(dead_code)]
mod mutation;
#[allow(dead_code)]
#[path = "../common/rng.rs"]
mod rng;
#[allow(dead_code)]
mod sim;
#[allow(dead_code)]
mod work;

use std::process::ExitCode;

use lockwood::rules::Rule;

fn chosen() -> Result<Vec<Rule>, String> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    if names.is_empty() {
        return Ok(Rule::ALL.to_vec());
    }
    let named = |name: &String| {
        let found = Rule::ALL.iter().copied().find(|rule| rule.name() == *name);
        found.ok_or_else(|| format!("there is no rule {name:?}"))
    };
    names.iter().map(named).collect()
}

fn run() -> Result<(), String> {
    let rules = chosen()?;
    if let Some((checker, objection)) = mutation::objections_to_nothing() {
        let name = checker.name();
        return Err(format!(
            "{name} objects with all rules on, after {}: {}",
            objection.after, objection.what
        ));
    }
    println!("| rule that was off | who objected | after | to what |");
    println!("|---|---|---|---|");
    let mut nobody = Vec::new();
    for rule in rules.iter().copied() {
        let line = mutation::try_rule(rule);
        println!("{line}");
        if line.found.is_none() {
            nobody.push(rule.name());
        }
    }
    println!("{} rules, {} to which nobody objected", rules.len(), nobody.len());
    if nobody.is_empty() { Ok(()) } else { Err(format!("nobody objected to {}", nobody.join(", "))) }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mutation: {error}");
            ExitCode::FAILURE
        }
    }
}
