//! What simulated hosts do, each kind of work with its judge: [`simulate`] runs one seed of it.
//!
//! Imports `sim` and the library. [`first_violation`] is how a mutation table asks whether anybody objects when a rule is
//! switched off.

mod asking;
mod claims;
mod documents;
mod intents;
mod later;
pub(crate) mod life;
mod locks;
mod renames;
pub(crate) mod toy;
mod tree;
mod truth;

use std::sync::Once;

use lockwood::rules::Rule;

use crate::rng::Rng;
use crate::sim::{Count, Counts};

/// What the hosts do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// Counters changed by compare-and-set, in code of the simulator's own: a test of the simulator.
    Toy,
    /// Changes of several documents, some by sessions that are settled meanwhile.
    Intents,
    /// Sessions that lock paths and change what they have locked, while some die and some go on as zombies.
    Locks,
    /// Renames, creates and removals in a tree, by sessions like these.
    Renames,
}

impl Workload {
    /// Every workload.
    pub(crate) const ALL: [Self; 4] = [Self::Toy, Self::Intents, Self::Locks, Self::Renames];

    /// The name, as arguments write it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Toy => "toy",
            Self::Intents => "intents",
            Self::Locks => "locks",
            Self::Renames => "renames",
        }
    }

    /// What a run of many seeds must have seen, or it has shown nothing.
    pub(crate) fn must_see(self) -> &'static [Count] {
        match self {
            Self::Toy => toy::MUST_SEE,
            Self::Intents => intents::MUST_SEE,
            Self::Locks => locks::MUST_SEE,
            Self::Renames => renames::MUST_SEE,
        }
    }
}

/// What came of one seed.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// A hash over every event: the same seed has the same.
    pub(crate) digest: u64,
    /// What happened how often.
    pub(crate) counts: Counts,
    /// What a judge objected to.
    pub(crate) violation: Option<String>,
    /// Every event, if asked for.
    pub(crate) trace: Vec<String>,
}

/// Runs one seed.
pub(crate) fn simulate(workload: Workload, seed: u64, trace: bool) -> Outcome {
    quiet_panics();
    // Neighbouring seeds must not give streams that are shifts of each other.
    let rng = Rng::new(Rng::new(seed ^ ((workload as u64) << 56)).next());
    match workload {
        Workload::Toy => toy::simulate(rng, trace, toy::Manner::Sound),
        Workload::Intents => intents::simulate(rng, trace),
        Workload::Locks => locks::simulate(rng, trace),
        Workload::Renames => renames::simulate(rng, trace),
    }
}

/// The first of so many seeds at which a judge objects while these rules are off, and what it says. Rules are switched in
/// the whole process: one caller at a time.
pub(crate) fn first_violation(
    rules_off: &[Rule],
    workload: Workload,
    schedules: u64,
) -> Option<(u64, String)> {
    lockwood::rules::only_off(rules_off);
    let found = (0..schedules).find_map(|seed| Some((seed, simulate(workload, seed, false).violation?)));
    lockwood::rules::only_off(&[]);
    found
}

/// A panic inside a simulation is a finding, which is reported with its seed; elsewhere it is printed as ever.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !crate::sim::has_turn() {
                loud(info);
            }
        }));
    });
}
