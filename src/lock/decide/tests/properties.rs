//! Random schedules against the invariants, and all schedules of a few operations.

use std::collections::{BTreeSet, HashSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Few paths, so that they meet; some are ancestors of others, some only begin alike.
const PATHS: [&str; 8] = ["/a", "/a/b", "/a/b/c", "/a-b", "/d", "/d/e", "/d/e/f", "/g"];

fn lock_set() -> impl Strategy<Value = LockSet> {
    let path = || proptest::sample::select(&PATHS[..]).prop_map(id);
    let rename = (path(), path()).prop_filter_map("into itself", |(s, d)| LockSet::for_rename(&s, &d).ok());
    let hold = (path(), any::<bool>()).prop_map(|(path, shared)| {
        LockSet::for_hold(&path, if shared { Mode::Shared } else { Mode::Exclusive }).unwrap()
    });
    prop_oneof![3 => rename, 1 => hold]
}

fn op_id() -> impl Strategy<Value = OpId> {
    (0_u64..3, 0_u64..4).prop_map(|(session, number)| OpId { session: SessionId(session), number })
}

fn event() -> impl Strategy<Value = Event> {
    let deadline = prop_oneof![0_u64..200, Just(u64::MAX)];
    let operation = Arc::<str>::from("");
    prop_oneof![
        6 => (op_id(), lock_set(), deadline).prop_map(move |(op, set, deadline)| {
            Event::Acquire { op, set, operation: Arc::clone(&operation), deadline: Nanos(deadline) }
        }),
        5 => op_id().prop_map(|op| Event::Release { op }),
        1 => Just(Event::Expire),
        1 => (0_u64..3).prop_map(|session| Event::DropSession { session: SessionId(session) }),
    ]
}

fn holds(state: &State, id: &LockId, op: OpId) -> bool {
    state.lock(id).is_some_and(|lock| lock.holders().iter().any(|holder| holder.op == op))
}

fn queue(state: &State, id: &LockId) -> Vec<OpId> {
    state.lock(id).map(|lock| lock.queue().map(|waiter| waiter.op).collect()).unwrap_or_default()
}

/// What is true between any two events.
fn check_state(state: &State) {
    let (mut held, mut waiting) = (0, 0);
    for (id, lock) in state.locks() {
        assert!(
            !lock.holders().is_empty(),
            "{id}: a lock without a holder left a trace, or lost its waiters"
        );
        assert!(
            lock.mode() == Mode::Shared || lock.holders().len() == 1,
            "{id}: an exclusive holder has company"
        );
        if let Some(head) = lock.queue().next() {
            let free = head.mode == Mode::Shared && lock.mode() == Mode::Shared;
            assert!(!free, "{id}: the head of the queue could be granted and was not");
        }
        held += lock.holders().len();
        waiting += lock.queue().len();
    }
    for (op, found) in state.ops() {
        assert!(found.set.entries().windows(2).all(|pair| pair[0].id < pair[1].id), "not in the order");
        for entry in found.held() {
            assert!(holds(state, &entry.id, *op), "{op} does not hold {}", entry.id);
            assert_eq!(state.lock(&entry.id).map(Lock::mode), Some(entry.mode));
        }
        held -= found.held().len();
        if let Some(entry) = found.waits_for() {
            assert_eq!(queue(state, &entry.id).iter().filter(|waiter| *waiter == op).count(), 1);
            waiting -= 1;
        }
    }
    assert_eq!((held, waiting), (0, 0), "a lock has a holder or a waiter that no operation accounts for");
}

/// What is true of any step from `old` to `new`.
fn check_step(old: &State, new: &State, event: &Event, now: Nanos, commands: &[Command]) {
    for (id, _) in new.locks().chain(old.locks()) {
        let (before, after) = (queue(old, id), queue(new, id));
        // First come first: who stayed stands as before, and newcomers stand behind.
        let stayed: Vec<_> = before.iter().filter(|op| after.contains(op)).collect();
        assert!(after.iter().take(stayed.len()).eq(stayed), "{id}: the queue was not kept in its order");
        // Nobody overtakes: whoever holds it now and did not before has nobody left who stood before it.
        let holders = new.lock(id).map(Lock::holders).unwrap_or_default();
        for newly in holders.iter().filter(|holder| !holds(old, id, holder.op)) {
            let mut overtaken = before.iter().take_while(|op| **op != newly.op);
            assert!(!overtaken.any(|op| after.contains(op)), "{id}: {} overtook", newly.op);
        }
    }
    for (op, was) in old.ops() {
        let may_leave = match event {
            Event::Release { op: released } => op == released,
            Event::Expire => was.waits_for().is_some() && was.deadline <= now,
            Event::DropSession { session } => op.session == *session,
            Event::Close => was.waits_for().is_some(),
            Event::Acquire { .. } => false,
        };
        let is = new.op(*op);
        assert_eq!(is.is_none(), may_leave, "{op} left without a reason, or stayed against one");
        let Some(is) = is else { continue };
        assert!(is.held >= was.held, "{op} lost a lock that it held");
        let granted = commands.iter().filter(|command| **command == Command::Granted(*op)).count();
        if !matches!(event, Event::Acquire { .. }) {
            let completed = was.waits_for().is_some() && is.waits_for().is_none();
            assert_eq!(granted, usize::from(completed), "{op} was not told once that it holds its set");
        }
    }
    for command in commands {
        match command {
            Command::Granted(op) => assert!(new.op(*op).is_some_and(|op| op.waits_for().is_none())),
            Command::Waiting { op, lock } => assert_eq!(new.op(*op).unwrap().waits_for().unwrap().id, *lock),
            Command::Reused(op) => assert!(new.op(*op).is_some()),
            Command::Expired { op, blocked } => {
                assert!(new.op(*op).is_none());
                assert!(!blocked.holders.is_empty(), "nobody held what was waited for");
                if matches!(event, Event::Acquire { .. }) {
                    assert_eq!(old, new, "a try that failed left something behind");
                }
            }
            Command::Dropped(op) | Command::Cancelled(op) | Command::Closed(op) => {
                assert!(new.op(*op).is_none());
            }
        }
    }
}

fn step(state: &mut State, event: &Event, now: Nanos) -> Vec<Command> {
    let old = state.clone();
    let mut commands = Vec::new();
    state.apply(event.clone(), now, &mut commands);
    check_state(state);
    check_step(&old, state, event, now, &commands);
    // Idempotence: the same event again changes nothing.
    let mut again = state.clone();
    again.apply(event.clone(), now, &mut Vec::new());
    assert_eq!(again, *state);
    commands
}

fn granted_ops(state: &State) -> Vec<OpId> {
    state.ops().filter(|(_, op)| op.waits_for().is_none()).map(|(id, _)| *id).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_events_keep_the_invariants_and_leave_nothing(events in vec((event(), 0_u64..5), 1..80)) {
        let mut state = State::default();
        let mut now = Nanos(0);
        for (event, later) in events {
            now = Nanos(now.0 + later);
            step(&mut state, &event, now);
        }
        step(&mut state, &Event::Close, now);
        for op in granted_ops(&state) {
            step(&mut state, &Event::Release { op }, now);
        }
        prop_assert_eq!(state, State { closed: true, ..State::default() });
    }

    /// No deadlock and no lost waiter: whatever the order, if each operation that is granted is released some day, then
    /// each is granted once, and nothing remains.
    #[test]
    fn any_schedule_of_renames_completes(
        sets in vec(lock_set(), 1..16),
        choices in vec(any::<proptest::sample::Index>(), 64),
    ) {
        let mut state = State::default();
        let mut to_ask: Vec<(u64, LockSet)> = (0..).zip(sets).collect();
        let all = to_ask.len();
        let mut granted = 0;
        for choice in choices.iter().cycle() {
            let held = granted_ops(&state);
            let moves = to_ask.len() + held.len();
            if moves == 0 {
                break;
            }
            let chosen = choice.index(moves);
            let event = if chosen < to_ask.len() {
                let (number, set) = to_ask.swap_remove(chosen);
                let op = OpId { session: SessionId(number % 3), number };
                Event::Acquire { op, set, operation: Arc::from(""), deadline: NEVER }
            } else {
                Event::Release { op: held[chosen - to_ask.len()] }
            };
            let commands = step(&mut state, &event, Nanos(0));
            granted += commands.iter().filter(|command| matches!(command, Command::Granted(_))).count();
        }
        prop_assert_eq!(granted, all, "some operation waits for ever");
        prop_assert_eq!(state, State::default());
    }

    /// A set asked for in one event is the same as nothing, once it has expired.
    #[test]
    fn a_wait_that_expires_was_never_there(
        events in vec(event().prop_filter("kept", |event| !matches!(event, Event::Expire)), 0..30),
        set in lock_set(),
    ) {
        let mut state = State::default();
        for event in &events {
            step(&mut state, event, Nanos(0));
        }
        let op = OpId { session: SessionId(9), number: 9 };
        let old = state.clone();
        let event = Event::Acquire { op, set, operation: Arc::from(""), deadline: Nanos(1) };
        let commands = step(&mut state, &event, Nanos(0));
        if matches!(commands[..], [Command::Waiting { .. }]) {
            // Only this operation has a deadline here.
            state.ops.iter_mut().filter(|(id, _)| **id != op).for_each(|(_, other)| other.deadline = NEVER);
            let mut old = old;
            old.ops.iter_mut().for_each(|(_, other)| other.deadline = NEVER);
            step(&mut state, &Event::Expire, Nanos(1));
            prop_assert_eq!(state, old);
        }
    }
}

/// Every schedule of some operations: each asks once, gives up while it waits or not, and is released once granted.
fn explore(sets: &[LockSet]) -> usize {
    let ops: Vec<_> =
        (0..).zip(sets).map(|(n, set)| (OpId { session: SessionId(n), number: n }, set)).collect();
    let start = (State::default(), BTreeSet::<OpId>::new());
    let mut seen = HashSet::from([start.clone()]);
    let mut stack = vec![start];
    while let Some((state, asked)) = stack.pop() {
        let waits = state.ops().any(|(_, op)| op.waits_for().is_some());
        assert!(!waits || !granted_ops(&state).is_empty(), "a deadlock: {:#?}", show_state(&state));
        for (op, set) in &ops {
            let event = match state.op(*op) {
                Some(_) => Event::Release { op: *op },
                None if asked.contains(op) => continue,
                None => {
                    let (set, operation) = ((*set).clone(), Arc::from(""));
                    Event::Acquire { op: *op, set, operation, deadline: NEVER }
                }
            };
            let mut next = (state.clone(), asked.clone());
            next.1.insert(*op);
            step(&mut next.0, &event, Nanos(0));
            if seen.insert(next.clone()) {
                stack.push(next);
            }
        }
        assert!(asked.len() < ops.len() || !state.ops.is_empty() || state == State::default());
    }
    seen.len()
}

#[test]
fn no_schedule_of_a_few_renames_deadlocks() {
    let cases: [&[[&str; 2]]; 4] = [
        &[["/a", "/b/d/e"], ["/b/d", "/a/c"], ["/b", "/a-b"]],
        &[["/a/b", "/d/e"], ["/d/e", "/a/b"], ["/a", "/d"], ["/d", "/a"]],
        &[["/a/b/c", "/a"], ["/a/x", "/a/y"], ["/d", "/a/b"], ["/a/b", "/d/e"]],
        &[["/a", "/b"], ["/b", "/c"], ["/c", "/d"], ["/d", "/a"]],
    ];
    for case in cases {
        let sets: Vec<_> =
            case.iter().map(|[source, destination]| set(&["rename", source, destination])).collect();
        let states = explore(&sets);
        assert!(states > 20, "only {states} states were seen");
    }
}
