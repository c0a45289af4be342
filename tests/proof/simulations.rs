//! Some ten thousand schedules of each workload, and that each of them can fail.
//!
//! The switches of rules are for a whole process, and other tests run beside these. So whatever runs with a rule off runs
//! in a process of its own: this program again, with [`objects_to_the_rules_that_are_off`] alone.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;

use lockwood::document::SessionId;
use lockwood::store::cells::memory::MemoryCells;
use lockwood::store::intents::{IntentStore, create_slots};
use lockwood::store::{Store, conformance};
use parking_lot::Mutex;

use crate::rng::Rng;
use crate::sim::{Change, Count, Counts, Faults, Judge, World};
use crate::work::{Workload, first_violation, life, simulate, toy};

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
        assert!(counts.get(*what) > 0, "{schedules} schedules of {} saw no {what:?}", workload.name());
    }
}

#[test]
fn the_same_seed_has_the_same_digest() {
    for workload in Workload::ALL {
        for seed in 0..300 {
            let one = simulate(workload, seed, false);
            let other = simulate(workload, seed, true);
            assert_eq!((one.digest, &one.counts), (other.digest, &other.counts), "{workload:?} seed {seed}");
            assert!(!other.trace.is_empty());
        }
        let digests: BTreeSet<_> = (0..100).map(|seed| simulate(workload, seed, false).digest).collect();
        assert_eq!(digests.len(), 100, "{workload:?}: two seeds did the same");
    }
}

#[test]
fn counters_only_grow_by_one() {
    holds(Workload::Toy, 10_000);
}

#[test]
fn changes_of_several_documents_are_all_or_nothing() {
    holds(Workload::Intents, 10_000);
}

#[test]
fn locks_exclude_and_the_dead_have_no_effect() {
    holds(Workload::Locks, 2_000);
}

#[test]
fn the_tree_stays_a_tree() {
    holds(Workload::Renames, 2_000);
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

/// Each workload objects to a rule that is for it to hold.
#[test]
fn each_workload_can_fail() {
    for (workload, rule) in [
        (Workload::Intents, "intent-decided-by-cas"),
        (Workload::Intents, "checks-marked"),
        (Workload::Intents, "unknown-resolved-by-reading"),
        (Workload::Locks, "claim-removed-by-its-owner-only"),
        (Workload::Locks, "intents-settled-before-locks-dropped"),
        (Workload::Locks, "lease-observed-on-own-clock-for-its-whole-length"),
        (Workload::Renames, "live-claims-are-no-ghosts"),
        (Workload::Renames, "slots-sealed"),
    ] {
        let program = std::env::current_exe().unwrap();
        let output = Command::new(program)
            .args(["--exact", "simulations::objects_to_the_rules_that_are_off", "--ignored"])
            .env("LOCKWOOD_RULES_OFF", rule)
            .env("WORKLOAD", workload.name())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{rule}: {text}");
    }
}

#[test]
#[ignore = "runs with rules off, in a process that each_workload_can_fail starts"]
fn objects_to_the_rules_that_are_off() {
    let off = std::env::var("LOCKWOOD_RULES_OFF").unwrap();
    let all = lockwood::rules::Rule::ALL.iter().copied();
    let rules: Vec<_> = all.filter(|rule| off.split(',').any(|name| rule.name() == name)).collect();
    assert!(!rules.is_empty(), "{off} is no rule");
    let name = std::env::var("WORKLOAD").unwrap();
    let workload = Workload::ALL.into_iter().find(|workload| workload.name() == name).unwrap();
    assert!(first_violation(&rules, workload, 5_000).is_some(), "nobody objects");
}

struct NoJudge;

impl Judge for NoJudge {
    fn changed(&mut self, _: &Change<'_>, _: &MemoryCells) -> Result<(), String> {
        Ok(())
    }

    fn count(&self, _: &mut Counts) {}
}

/// What every engine promises holds over a store that loses requests and answers, and carries some out late or twice.
#[test]
fn intents_pass_the_conformance_of_engines_over_a_faulty_store() {
    let mut unknown = 0;
    for seed in 0..200 {
        let worlds = Mutex::new(Vec::new());
        let factory = || -> Box<dyn Store> {
            let mut rng = Rng::new(seed);
            let faults = Faults::draw(&mut rng, life::LEASE.as_nanos() as u64);
            let world = World::new(rng, 0, 1, Arc::new(Mutex::new(NoJudge)), false);
            let (cells, clock) = (life::cells(&world, 0), life::clock(&world, 0));
            let slots = create_slots(&cells, &clock, SessionId(1), 2).unwrap();
            world.begin(faults);
            worlds.lock().push(world);
            Box::new(IntentStore::new(cells, clock, SessionId(1), slots))
        };
        conformance::run_in_one_thread(&factory);
        unknown += worlds.lock().iter().map(|world| world.counts().get(Count::Unknown)).sum::<u64>();
    }
    assert!(unknown > 1_000, "only {unknown} requests went wrong");
}
