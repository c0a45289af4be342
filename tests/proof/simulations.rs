//! A few thousand schedules of each workload, and that each of them can fail.

use crate::rng::Rng;
use crate::sim::{Count, Counts};
use crate::work::{Workload, simulate, toy};

/// Runs seeds from 0 on, and demands that they saw what they are for.
fn holds(workload: Workload, schedules: u64) {
    let mut counts = Counts::default();
    for seed in 0..schedules {
        let outcome = simulate(workload, seed, false);
        if let Some(what) = outcome.violation {
            let trace = simulate(workload, seed, true).trace;
            let last = &trace[trace.len().saturating_sub(60)..];
            panic!("{} seed {seed}: {what}\n{}", workload.name(), last.join("\n"));
        }
        counts.merge(&outcome.counts);
    }
    for what in workload.must_see() {
        assert!(counts.get(*what) > 0, "{} schedules of {} saw no {what:?}", schedules, workload.name());
    }
}

#[test]
fn the_same_seed_has_the_same_digest() {
    for workload in Workload::ALL {
        for seed in 0..20 {
            let one = simulate(workload, seed, false);
            let other = simulate(workload, seed, true);
            assert_eq!((one.digest, &one.counts), (other.digest, &other.counts), "{workload:?} seed {seed}");
            assert!(!other.trace.is_empty());
        }
        let digests: std::collections::BTreeSet<_> =
            (0..100).map(|seed| simulate(workload, seed, false).digest).collect();
        assert_eq!(digests.len(), 100, "{workload:?}: two seeds did the same");
    }
}

#[test]
fn counters_only_grow_by_one() {
    holds(Workload::Toy, 5_000);
}

#[test]
fn a_lost_update_is_found() {
    let found = (0..200)
        .find(|seed| toy::simulate(Rng::new(*seed), false, toy::Manner::LosesUpdates).violation.is_some());
    assert!(found.is_some());
}

#[test]
fn counts_are_in_their_order() {
    assert!(Count::ALL.iter().enumerate().all(|(at, count)| *count as usize == at));
}
