//! Visits every state of scenarios, and says how many there were and what was wrong. Owns the choice of scenarios.

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model as _};

use super::protocol::Protocol;
use super::reached::{Reached, missing};
use super::scenario::{Line, Scenario};
use super::table::SCENARIOS;

/// What came of a scenario.
pub(crate) struct Outcome {
    /// Which.
    pub(crate) name: &'static str,
    /// Different states.
    pub(crate) states: usize,
    /// Steps taken, those to known states included.
    pub(crate) steps: usize,
    /// States of the lock engine among them.
    pub(crate) lock_states: usize,
    /// Whether every state was visited; else the limit was reached.
    pub(crate) complete: bool,
    /// How long it took, in seconds.
    pub(crate) seconds: f64,
    /// What was met, as a set.
    pub(crate) reached: u32,
    /// The property that failed, and the actions that lead there.
    pub(crate) violation: Option<(String, String)>,
}

impl Outcome {
    /// A line for people.
    pub(crate) fn line(&self) -> String {
        let rate = self.states as f64 / self.seconds.max(1e-6);
        let end = match &self.violation {
            Some((property, _)) => format!("VIOLATED: {property}"),
            None if self.complete => "all".to_owned(),
            None => "limit".to_owned(),
        };
        let Self { name, states, steps, lock_states, seconds, .. } = self;
        format!(
            "{name:32} {states:>11} states {steps:>12} steps {lock_states:>6} of locks {seconds:>7.1} s {rate:>9.0}/s  {end}"
        )
    }
}

/// The names of all scenarios, those of the long run included if `long`.
pub(crate) fn names(long: bool) -> Vec<&'static str> {
    SCENARIOS.iter().filter(|line| long || !line.long).map(|line| line.name).collect()
}

fn line(name: &str) -> Option<&'static Line> {
    SCENARIOS.iter().find(|line| line.name == name)
}

/// Visits the states of a scenario, `steps_max` steps at most, on this many threads, until one breaks a property. None if
/// there is no such scenario.
pub(crate) fn run(name: &str, steps_max: usize, threads: usize) -> Option<Outcome> {
    let scenario = Scenario::new(line(name)?);
    #[allow(clippy::disallowed_methods)] // A measurement, which decides nothing.
    let started = Instant::now();
    let checker = Protocol::new(scenario).checker();
    let checker =
        checker.threads(threads).target_state_count(steps_max).finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_dfs().join();
    let seconds = started.elapsed().as_secs_f64();
    let violation = checker.discoveries().into_iter().next();
    let violation = violation.map(|(property, path)| {
        let actions: Vec<String> = path.into_actions().iter().map(|action| format!("{action:?}")).collect();
        (property.to_owned(), actions.join(" "))
    });
    let model = checker.model();
    Some(Outcome {
        name: model.scenario.name,
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        lock_states: model.scenario.locks.count(),
        complete: violation.is_none() && checker.state_count() < steps_max,
        seconds,
        reached: model.reached(),
        violation,
    })
}

/// What none of these scenarios has met.
pub(crate) fn not_reached(outcomes: &[Outcome]) -> Vec<Reached> {
    missing(outcomes.iter().fold(0, |set, outcome| set | outcome.reached))
}
