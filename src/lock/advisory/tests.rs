//! The decisions one by one, and all together against an array of bytes.

use proptest::prelude::*;

use super::*;
use crate::document::{OFFSET_MAX, SessionId, Timestamp};
use LockMode::{Exclusive, Shared};

fn held(holder: u64, mode: LockMode, start: u64, end: u64) -> AdvisoryLock {
    AdvisoryLock {
        family: AdvisoryFamily::Fcntl,
        mode,
        start,
        end,
        session: SessionId(holder / 10),
        owner: holder % 10,
        pid: 1,
        host: "ada".into(),
        since: Timestamp::default(),
    }
}

fn flock(holder: u64, mode: LockMode) -> AdvisoryLock {
    AdvisoryLock { family: AdvisoryFamily::Flock, ..held(holder, mode, 0, OFFSET_MAX) }
}

fn granted(locks: &[AdvisoryLock], wanted: &AdvisoryLock) -> Vec<AdvisoryLock> {
    match lock(locks, wanted) {
        Outcome::Granted(after) => after,
        other => panic!("{wanted:?} beside {locks:?}: {other:?}"),
    }
}

/// Holder, mode, first and last byte.
fn short(locks: &[AdvisoryLock]) -> Vec<(u64, LockMode, u64, u64)> {
    let one = |lock: &AdvisoryLock| (lock.session.0 * 10 + lock.owner, lock.mode, lock.start, lock.end);
    locks.iter().map(one).collect()
}

#[test]
fn ranges_of_one_holder_are_cut_and_grow_together() {
    let all = granted(&[], &held(11, Exclusive, 10, 19));
    // A downgrade in the middle leaves both ends.
    let all = granted(&all, &held(11, Shared, 13, 15));
    assert_eq!(short(&all), [(11, Exclusive, 10, 12), (11, Shared, 13, 15), (11, Exclusive, 16, 19)]);
    let all = granted(&all, &held(11, Exclusive, 13, 15));
    assert_eq!(short(&all), [(11, Exclusive, 10, 19)]);
    // Neighbours grow together, and what is between two.
    let all = granted(&all, &held(11, Exclusive, 30, 39));
    let all = granted(&all, &held(11, Exclusive, 20, 29));
    assert_eq!(short(&all), [(11, Exclusive, 10, 39)]);
    let all = unlock(&all, held(11, Shared, 0, 0).holder(), 15, OFFSET_MAX).unwrap();
    assert_eq!(short(&all), [(11, Exclusive, 10, 14)]);
    assert_eq!(unlock(&all, held(12, Shared, 0, 0).holder(), 0, OFFSET_MAX), None);
    assert_eq!(unlock(&all, held(11, Shared, 0, 0).holder(), 0, 9), None);
    assert_eq!(unlock(&all, held(11, Shared, 0, 0).holder(), 0, OFFSET_MAX), Some(vec![]));
}

#[test]
fn to_the_end_of_the_file_is_as_far_as_it_goes() {
    let all = granted(&[], &held(11, Shared, 5, OFFSET_MAX));
    let all = granted(&all, &held(11, Shared, 0, 4));
    assert_eq!(short(&all), [(11, Shared, 0, OFFSET_MAX)]);
    let all = granted(&all, &held(11, Exclusive, OFFSET_MAX, OFFSET_MAX));
    assert_eq!(short(&all), [(11, Shared, 0, OFFSET_MAX - 1), (11, Exclusive, OFFSET_MAX, OFFSET_MAX)]);
}

#[test]
fn what_is_in_the_way_is_the_first_of_another_holder() {
    let all = granted(&[], &held(11, Shared, 10, 19));
    let all = granted(&all, &held(21, Shared, 15, 30));
    assert_eq!(blocker(&all, &held(31, Shared, 0, 99)), None);
    assert_eq!(blocker(&all, &held(31, Exclusive, 0, 99)).map(|lock| lock.start), Some(10));
    assert_eq!(blocker(&all, &held(11, Exclusive, 0, 99)).map(|lock| lock.start), Some(15));
    assert_eq!(blocker(&all, &held(11, Exclusive, 0, 14)), None);
    // The owner of one mount is another's than the same number on the next.
    assert!(matches!(lock(&all, &held(12, Exclusive, 12, 12)), Outcome::Blocked { .. }));
}

#[test]
fn an_upgrade_of_fcntl_that_must_wait_keeps_what_it_has_and_one_of_flock_does_not() {
    let both = granted(&granted(&[], &held(11, Shared, 0, 9)), &held(21, Shared, 0, 9));
    match lock(&both, &held(11, Exclusive, 0, 9)) {
        Outcome::Blocked { by, left: None } => assert_eq!(by.holder(), both[1].holder()),
        other => panic!("{other:?}"),
    }
    let both = granted(&granted(&[], &flock(11, Shared)), &flock(21, Shared));
    match lock(&both, &flock(11, Exclusive)) {
        Outcome::Blocked { left: Some(left), .. } => {
            assert_eq!(short(&left), [(21, Shared, 0, OFFSET_MAX)]);
            // So the other one, which wants the same, has its way.
            let after = granted(&left, &flock(21, Exclusive));
            assert!(matches!(lock(&after, &flock(11, Exclusive)), Outcome::Blocked { left: None, .. }));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_families_say_nothing_to_each_other() {
    let all = granted(&[], &flock(11, Exclusive));
    let all = granted(&all, &held(21, Exclusive, 0, OFFSET_MAX));
    assert_eq!(all.len(), 2);
    assert_eq!(without(&all, |lock| lock.session == SessionId(3)), None);
    assert_eq!(without(&all, |lock| lock.session == SessionId(2)).map(|left| left.len()), Some(1));
}

#[test]
fn an_inode_has_so_many_locks_and_no_more() {
    let many: Vec<_> = (0..LOCKS_MAX as u64).map(|at| held(11, Shared, at * 2, at * 2)).collect();
    let beyond = LOCKS_MAX as u64 * 2;
    assert_eq!(lock(&many, &held(11, Shared, beyond, beyond)), Outcome::TooMany);
    assert_eq!(granted(&many, &held(11, Shared, 1, 1)).len(), LOCKS_MAX - 1);
}

const BYTES: u64 = 12;

/// A request: the holder, the mode or none to unlock, the first byte, and how many follow.
type Step = (u64, AdvisoryFamily, Option<LockMode>, u64, u64);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let holder = prop_oneof![Just(11_u64), Just(12), Just(21)];
    let family = prop_oneof![3 => Just(AdvisoryFamily::Fcntl), 1 => Just(AdvisoryFamily::Flock)];
    let mode = prop_oneof![Just(None), Just(Some(Shared)), Just(Some(Exclusive))];
    prop::collection::vec((holder, family, mode, 0..BYTES, 0..BYTES), 1..40)
}

/// What each byte is held as, by whom: the locks in their plainest form.
fn bytes(locks: &[AdvisoryLock], family: AdvisoryFamily) -> Vec<Vec<(u64, LockMode)>> {
    let of = |at: u64| {
        let here = locks.iter().filter(|lock| lock.family == family && lock.start <= at && at <= lock.end);
        let mut here: Vec<_> = here.map(|lock| (lock.session.0 * 10 + lock.owner, lock.mode)).collect();
        here.sort_unstable();
        here
    };
    (0..BYTES).map(of).collect()
}

proptest! {
    #[test]
    fn the_decision_is_that_of_an_array_of_bytes(steps in steps()) {
        let mut locks: Vec<AdvisoryLock> = Vec::new();
        for (who, family, mode, start, more) in steps {
            let (start, end) = match family {
                AdvisoryFamily::Fcntl => (start, (start + more).min(BYTES - 1)),
                AdvisoryFamily::Flock => (0, BYTES - 1),
            };
            let wanted = AdvisoryLock { family, ..held(who, mode.unwrap_or(Shared), start, end) };
            let mut model = bytes(&locks, family);
            let range = start as usize..=end as usize;
            let conflict = mode.is_some_and(|mode| model[range.clone()].iter().flatten().any(|(holder, held)| {
                *holder != who && (mode == Exclusive || *held == Exclusive)
            }));
            let already = mode.is_some_and(|mode| model[range.clone()].iter().all(|b| b.contains(&(who, mode))));
            if !conflict {
                for byte in &mut model[range] {
                    byte.retain(|(holder, _)| *holder != who);
                    byte.extend(mode.map(|mode| (who, mode)));
                    byte.sort_unstable();
                }
            }
            prop_assert_eq!(mode.is_some() && blocker(&locks, &wanted).is_some(), conflict);
            let before = locks.clone();
            match mode.map(|_| lock(&locks, &wanted)) {
                None => {
                    if let Some(after) = unlock(&locks, wanted.holder(), start, end) {
                        locks = after;
                    }
                    prop_assert_eq!(unlock(&locks, wanted.holder(), start, end), None, "asked twice");
                }
                Some(Outcome::AsIs) => prop_assert!(already && !conflict),
                Some(Outcome::Granted(after)) => {
                    prop_assert!(!conflict && !already);
                    locks = after;
                    prop_assert_eq!(lock(&locks, &wanted), Outcome::AsIs, "asked twice");
                }
                Some(Outcome::Blocked { by, left }) => {
                    prop_assert!(conflict && before.contains(&by) && by.holder() != wanted.holder());
                    if let Some(left) = left {
                        prop_assert_eq!(family, AdvisoryFamily::Flock);
                        for byte in &mut model {
                            byte.retain(|(holder, _)| *holder != who);
                        }
                        locks = left;
                    }
                }
                Some(Outcome::TooMany) => prop_assert!(false),
            }
            prop_assert_eq!(bytes(&locks, family), model);
            // As few as can be, in one order, and none empty.
            let order = |lock: &AdvisoryLock| (lock.family, lock.start, lock.session, lock.owner);
            prop_assert!(locks.is_sorted_by_key(order));
            for (n, one) in locks.iter().enumerate() {
                prop_assert!(one.start <= one.end);
                for other in &locks[n + 1..] {
                    let same = one.holder() == other.holder();
                    prop_assert!(!same || !overlap(one, other.start, other.end));
                    prop_assert!(!same || one.mode != other.mode || !touch(one, other));
                }
            }
        }
    }
}
