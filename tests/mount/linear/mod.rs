//! Linearizability of what several mounts show: short histories of operations by several threads through several mounts,
//! each with the order of its calls and returns, must be explained by some order in which a sequential tree runs them.
//!
//! Every operation is about one name in a directory that stands still, or about an open file, for which Linux asks the
//! file system at one instant. (A path of several names is walked step by step, in every Linux filesystem, so it is no
//! single operation.) What is promised is that an operation that has returned is seen: while one is under way, the kernel
//! of one mount may show it before that of another does, so what is told of it meanwhile is not held to an order.
//! LOCKWOOD_LINEAR_SEEDS says how many histories are recorded.

mod model;
mod record;
mod search;

use std::io::Write as _;

use crate::many::Many;
use model::{Call, Outcome, Tree};
use record::Stage;
use search::{Event, explain};

const SEEDS: u64 = 400;

fn seeds() -> u64 {
    std::env::var("LOCKWOOD_LINEAR_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS)
}

/// Records a history a seed; returns how many overlapping pairs of operations there were, and what was not explained.
fn hunt(many: &Many, seeds: u64) -> (u64, Vec<String>) {
    let stage = Stage::new(many);
    let (mut overlaps, mut wrong) = (0, Vec::new());
    for seed in 0..seeds {
        let (before, events) = stage.record(seed);
        overlaps += search::overlaps(&events);
        if explain(&before, &events).is_none() {
            wrong
                .push(format!("seed {seed}: no order explains, from {before:?}:\n{}", search::show(&events)));
        }
    }
    (overlaps, wrong)
}

#[test]
fn histories_through_several_mounts_are_linearizable() {
    let Some(many) = Many::new(3) else { return };
    let seeds = seeds();
    let (overlaps, wrong) = hunt(&many, seeds);
    let _ = writeln!(std::io::stderr(), "{seeds} histories, {overlaps} pairs of operations overlapped");
    assert!(wrong.is_empty(), "{} of {seeds}; the first: {}", wrong.len(), wrong[0]);
    assert!(overlaps > seeds, "{overlaps} overlaps in {seeds} histories: they were hardly concurrent");
    many.finish();
}

fn event(thread: usize, begun: u64, ended: u64, call: Call, outcome: Outcome) -> Event {
    Event { thread, begun, ended, call, outcome }
}

#[test]
fn the_search_objects_to_what_no_order_explains() {
    use Outcome::{Absent, Directory, Done};
    let name = (0, 0);
    let empty = Tree::default();
    // The make has returned, and a later look does not see it: a stale name.
    let stale = [event(0, 0, 1, Call::Mkdir(name), Done), event(1, 2, 3, Call::Look(name), Absent)];
    assert!(explain(&empty, &stale).is_none());
    // Overlapping, either answer will do.
    for seen in [Absent, Directory] {
        let beside = [event(0, 0, 3, Call::Mkdir(name), Done), event(1, 1, 2, Call::Look(name), seen)];
        assert!(explain(&empty, &beside).is_some());
    }
    // Seen, and then not seen, while only the make was under way.
    let to_and_fro = [
        event(0, 0, 9, Call::Mkdir(name), Done),
        event(1, 1, 2, Call::Look(name), Directory),
        event(2, 3, 4, Call::Look(name), Absent),
    ];
    assert!(explain(&empty, &to_and_fro).is_none());
    // Both names of a rename, or neither.
    let other = (1, 1);
    let split = [
        event(0, 0, 1, Call::Mkdir(name), Done),
        event(0, 2, 9, Call::Rename(name, other), Done),
        event(1, 3, 4, Call::Look(other), Directory),
        event(1, 5, 6, Call::Look(name), Directory),
    ];
    assert!(explain(&empty, &split).is_none());
    // A mode that was changed and returned, and an older one seen after.
    let modes =
        [event(0, 0, 1, Call::SetMode(0o600), Done), event(1, 2, 3, Call::GetMode, Outcome::Mode(0o644))];
    assert!(explain(&Tree { mode: 0o644, ..Tree::default() }, &modes).is_none());
}

/// The recorder and the search together find mounts that do not tell each other.
#[cfg(feature = "proof")]
#[test]
fn mounts_that_do_not_tell_each_other_are_found_out() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    const HUNTS_MAX: u32 = 50;
    for rule in ["names-told-before-reply", "attributes-told-before-reply"] {
        let Some(many) = Many::unmounted(3) else { return };
        let mut many = many;
        many.mount_with_rule_off(rule).ok();
        // The stage is set through one mount, which may not even see what is to be cleared away: an objection as well.
        let mut tries = 0..HUNTS_MAX;
        let silent =
            || catch_unwind(AssertUnwindSafe(|| hunt(&many, 100))).is_ok_and(|(_, wrong)| wrong.is_empty());
        assert!(tries.any(|_| !silent()), "nobody objects to {rule} being off");
    }
}
