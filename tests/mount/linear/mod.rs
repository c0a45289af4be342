//! Linearizability of what several mounts show: short histories of operations by several threads through several mounts,
//! each with the order of its calls and returns, must be explained by some order in which a sequential tree runs them.
//!
//! Every operation is about one name in a directory that stands still, or about an open file, for which Linux asks the
//! file system at one instant. (A path of several names is walked step by step, in every Linux filesystem, so it is no
//! single operation.) What is promised is that an operation that has returned is seen: while one is under way, the kernel
//! of one mount may show it before that of another does, so what is told of it meanwhile is not held to an order.
//! LOCKWOOD_LINEAR_SEEDS says how many histories are recorded.

mod lag;
mod model;
mod record;
mod search;

use std::io::Write as _;

use crate::common::rng;
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
    let stage = Stage::new(&many.points, "linear");
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
    Event { thread, begun, ended, call, outcome, told: outcome, after: 0 }
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

/// What hosts may show of each other's changes, and what not.
#[test]
fn between_hosts_a_look_may_be_old_by_the_bound_and_a_change_may_not() {
    use Outcome::{Absent, Directory, Done, Exists, File};
    const LAG: u64 = 100;
    let (name, other) = ((0, 0), (1, 1));
    let empty = Tree::default();
    let explained = |events: &[Event]| lag::explained(&empty, events, 2, LAG);
    let made = event(0, 0, 10, Call::Mkdir(name), Done);
    // Another host (odd threads) may not see it yet, for as long as the bound; the same host must.
    let look = |thread, begun| event(thread, begun, begun + 1, Call::Look(name), Absent);
    assert!(explained(&[made.clone(), look(1, 50)]));
    assert!(explained(&[made.clone(), look(1, 109)]));
    assert!(!explained(&[made.clone(), look(1, 111)]));
    assert!(!explained(&[made.clone(), look(0, 50)]));
    assert!(!explained(&[made.clone(), look(2, 50)]), "another thread of the same host");
    // Nobody sees what is not there yet, nor refuses for what is long gone.
    assert!(!explained(&[
        event(1, 0, 9, Call::Look(name), Directory),
        event(0, 10, 20, Call::Mkdir(name), Done)
    ]));
    let gone = [made.clone(), event(0, 20, 30, Call::Rmdir(name), Done)];
    let refused = |begun| event(1, begun, begun + 1, Call::Mkdir(name), Exists);
    assert!(explained(&[&gone[..], &[refused(120)]].concat()));
    assert!(!explained(&[&gone[..], &[refused(131)]].concat()));
    // Changes are true at once: one of two who make a name, one of two who remove it, and a rename that was done was done.
    let both = |one, two| [made.clone(), event(0, 20, 30, one, Done), event(1, 25, 35, two, Done)];
    assert!(!explained(&[made.clone(), event(1, 5, 15, Call::Mkdir(name), Done)]));
    assert!(!explained(&both(Call::Rmdir(name), Call::Rmdir(name))));
    assert!(!explained(&both(Call::Rename(name, other), Call::Rmdir(name))));
    let lost = event(1, 300, 301, Call::Look(name), Directory);
    assert!(!explained(&[made.clone(), event(0, 20, 30, Call::Rename(name, other), Done), lost]));
    let files = [event(0, 0, 1, Call::Create(name), File(7)), event(1, 200, 201, Call::Look(name), File(8))];
    assert!(!explained(&files));
}

/// What Linux makes of a rename that names what another host has moved, without asking; and what it must not make of it.
#[test]
fn a_rename_of_what_another_host_has_moved_may_be_called_done_by_the_bound() {
    use Outcome::{Absent, Done, File, WrongKind};
    const LAG: u64 = 100;
    let (one, two, three) = ((0, 0), (0, 1), (1, 0));
    let explained = |events: &[Event]| lag::explained(&Tree::default(), events, 2, LAG);
    let made = event(0, 0, 10, Call::Create(one), File(5));
    let moved = event(0, 30, 40, Call::Rename(one, two), Done);
    // It knows one inode under both names: nothing was asked for, and the old name may be remembered as before.
    let unasked = event(1, 50, 51, Call::Rename(two, one), Done);
    let refused = |begun| event(1, begun, begun + 1, Call::Rmdir(one), WrongKind);
    let removed = event(0, 300, 310, Call::Unlink(two), Done);
    let all = |begun| [made.clone(), moved.clone(), unasked.clone(), refused(begun), removed.clone()];
    assert!(explained(&all(60)));
    assert!(!explained(&all(141)), "that is too old");
    assert!(!explained(&[made.clone(), unasked.clone(), refused(60)]), "nobody had moved it");
    // The same where the host itself has moved on what another had moved.
    let own = event(1, 50, 60, Call::Rename(two, three), Done);
    let exchange = event(1, 70, 71, Call::Exchange(one, three), Done);
    let old = |begun| event(1, begun, begun + 1, Call::Look(one), File(5));
    let exchanged = |begun| [made.clone(), moved.clone(), own.clone(), exchange.clone(), old(begun)];
    assert!(explained(&exchanged(80)));
    assert!(!explained(&exchanged(141)));
    // Another host puts something else in the place of what this one moves: that is at the new name, and nothing else.
    let replaced =
        [made, event(0, 20, 30, Call::Unlink(one), Done), event(0, 31, 40, Call::Create(one), File(6))];
    let after = |seen| {
        let moved = event(1, 50, 60, Call::Rename(one, three), Done);
        let look = event(1, 70, 71, Call::Look(three), seen);
        explained(&[&replaced[..], &[moved, look]].concat())
    };
    assert_eq!([File(6), File(5), Absent].map(after), [true, false, false]);
}

/// A host that knows a directory by its name asks for this directory, which is gone, and not for what took its name.
#[test]
fn a_directory_that_another_host_has_replaced_may_be_found_gone_by_the_bound() {
    use Outcome::{Absent, Directory, Done};
    const LAG: u64 = 100;
    let (one, other) = ((0, 0), (0, 1));
    let explained = |seen, begun| {
        let look = event(1, begun, begun + 1, Call::Look(one), seen);
        let made = [event(1, 0, 10, Call::Mkdir(one), Done), event(0, 20, 30, Call::Mkdir(other), Done)];
        let replaced = event(0, 40, 50, Call::Rename(other, one), Done);
        lag::explained(&Tree::default(), &[&made[..], &[replaced, look]].concat(), 2, LAG)
    };
    assert!(explained(Absent, 60) && explained(Absent, 149) && explained(Directory, 300));
    assert!(!explained(Absent, 151) && !explained(Outcome::File(4), 60));
}

/// The recorder with the weaker promise: over one directory, which keeps it, and over two that know nothing of each other.
#[test]
fn hosts_that_never_hear_of_each_other_are_found_out() {
    let lag = std::time::Duration::from_millis(20);
    let pace = record::Pace { calls: 6, pause: lag };
    let [one, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let objections = |points: [&std::path::Path; 2]| {
        let points = points.map(std::path::Path::to_owned);
        let object = |seed: &u64| {
            let name = format!("history{seed}");
            if points[1] != points[0] {
                for dir in ["d0", "d1"] {
                    std::fs::create_dir_all(points[1].join(&name).join(dir)).unwrap();
                }
                std::fs::write(points[1].join(&name).join("file"), b"x").unwrap();
            }
            let (before, events) = Stage::record_apart(&points, &name, *seed, pace, lag);
            !lag::explained(&before, &events, 2, lag.as_nanos() as u64)
        };
        (0..12).filter(object).count()
    };
    assert!(objections([one.path(), other.path()]) > 0, "nobody objects to two different trees");
    let third = tempfile::tempdir().unwrap();
    assert_eq!(objections([third.path(); 2]), 0, "one tree keeps every promise");
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
