//! The small scenarios of the model, all of their states. Owns the test, and what it must have met.

use crate::model::run;

/// Enough for the largest of the small scenarios; a scenario that needs more is one for the long run.
const STEPS_MAX: usize = 4_000_000;

#[test]
fn every_state_of_the_small_scenarios_is_sound() {
    let outcomes: Vec<_> =
        run::names(false).into_iter().filter_map(|name| run::run(name, STEPS_MAX, 2)).collect();
    for outcome in &outcomes {
        println!("{}", outcome.line());
        assert!(outcome.violation.is_none(), "{}: {:?}", outcome.name, outcome.violation);
        assert!(outcome.complete, "{}: more states than the small run has time for", outcome.name);
    }
    println!("{} states", outcomes.iter().map(|outcome| outcome.states).sum::<usize>());
    let not_reached = run::not_reached(&outcomes);
    assert!(not_reached.is_empty(), "no scenario has met {not_reached:?}");
}
