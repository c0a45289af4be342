//! The decisions, as scripts that can be read without Rust. `properties.rs` has the random and the exhaustive tests.
//!
//! A script has one event a line; the indented lines below it are the commands that it must give, and nothing else.
//! An operation is `session.number`. `at N` sets the time, `by N` in front of an acquire is its deadline. `show` prints
//! the table: path, mode, holders, `<` and those who wait, first come first (`+` shared, `!` exclusive).

use super::*;
use crate::lock::Mode;

mod properties;

const NEVER: Nanos = Nanos(u64::MAX);

fn id(path: &str) -> LockId {
    LockId::from_path(path.as_bytes()).unwrap()
}

fn op(text: &str) -> OpId {
    let (session, number) = text.split_once('.').unwrap();
    OpId { session: SessionId(session.parse().unwrap()), number: number.parse().unwrap() }
}

fn name(op: OpId) -> String {
    format!("{}.{}", op.session.0, op.number)
}

fn set(words: &[&str]) -> LockSet {
    match words {
        ["rename", source, destination] => LockSet::for_rename(&id(source), &id(destination)),
        ["exchange", one, other] => LockSet::for_exchange(&id(one), &id(other)),
        ["share", path] => LockSet::for_hold(&id(path), Mode::Shared),
        ["hold", path] => LockSet::for_hold(&id(path), Mode::Exclusive),
        other => panic!("no lock set: {other:?}"),
    }
    .unwrap()
}

fn acquire(who: &str, deadline: Nanos, what: &[&str]) -> Event {
    Event::Acquire { op: op(who), set: set(what), operation: Arc::from(what.join(" ")), deadline }
}

fn show_command(command: &Command) -> String {
    match command {
        Command::Granted(op) => format!("granted {}", name(*op)),
        Command::Waiting { op, lock } => format!("waiting {} {lock}", name(*op)),
        Command::Expired { op, blocked } => {
            let holder = |by: &HeldBy| format!("{} for {} ns", name(by.op), by.held_for.as_nanos());
            let holders: Vec<_> = blocked.holders.iter().map(holder).collect();
            let Blocked { lock, wanted, held, waiting_before, .. } = &**blocked;
            let (op, holders) = (name(*op), holders.join(", "));
            format!("expired {op} {lock} {wanted}, held {held} by {holders}, {waiting_before} before")
        }
        Command::Dropped(op) => format!("dropped {}", name(*op)),
        Command::Cancelled(op) => format!("cancelled {}", name(*op)),
        Command::Closed(op) => format!("closed {}", name(*op)),
        Command::Reused(op) => format!("reused {}", name(*op)),
    }
}

fn show_state(state: &State) -> Vec<String> {
    let sign = |mode| if mode == Mode::Shared { '+' } else { '!' };
    let line = |(id, lock): (&LockId, &Lock)| {
        let holders: Vec<_> = lock.holders().iter().map(|holder| name(holder.op)).collect();
        let mut line = format!("{id} {}{}", sign(lock.mode()), holders.join(" "));
        for (nth, waiter) in lock.queue().enumerate() {
            let joint = if nth == 0 { " < " } else { " " };
            line.push_str(&format!("{joint}{}{}", sign(waiter.mode), name(waiter.op)));
        }
        line
    };
    let lines: Vec<_> = state.locks().map(line).collect();
    if lines.is_empty() { vec!["empty".to_owned()] } else { lines }
}

/// Runs a script and returns it with the commands that were really given.
fn run(script: &str) -> String {
    crate::lock::tests::read_rules();
    let mut state = State::default();
    let mut now = Nanos(0);
    let mut out = String::new();
    for line in script.lines().filter(|line| !line.starts_with(' ') && !line.is_empty()) {
        out.push_str(line);
        out.push('\n');
        let words: Vec<_> = line.split(' ').collect();
        let event = match words.as_slice() {
            ["at", time] => {
                now = Nanos(time.parse().unwrap());
                continue;
            }
            ["show"] => {
                show_state(&state).iter().for_each(|line| out.push_str(&format!("  {line}\n")));
                continue;
            }
            ["by", deadline, "acquire", who, what @ ..] => {
                acquire(who, Nanos(deadline.parse().unwrap()), what)
            }
            ["acquire", who, what @ ..] => acquire(who, NEVER, what),
            ["release", who] => Event::Release { op: op(who) },
            ["expire"] => Event::Expire,
            ["drop", session] => Event::DropSession { session: SessionId(session.parse().unwrap()) },
            ["close"] => Event::Close,
            other => panic!("no event: {other:?}"),
        };
        let mut commands = Vec::new();
        state.apply(event, now, &mut commands);
        commands.iter().for_each(|command| out.push_str(&format!("  {}\n", show_command(command))));
    }
    out
}

fn check(script: &str) {
    let script = script.trim_start_matches('\n');
    assert_eq!(run(script), script);
}

#[test]
fn the_book_a_large_rename_and_a_file_below_it() {
    check(
        "
acquire 1.1 rename /clinton /bill
  granted 1.1
acquire 2.1 rename /clinton/projects/README.txt /clinton/projects/README.md
  waiting 2.1 /clinton
show
  /bill !1.1
  /clinton !1.1 < +2.1
release 1.1
  granted 2.1
show
  /clinton +2.1
  /clinton/projects +2.1
  /clinton/projects/README.md !2.1
  /clinton/projects/README.txt !2.1
release 2.1
show
  empty
",
    );
}

#[test]
fn two_moves_that_would_make_a_loop_exclude_each_other() {
    check(
        "
acquire 1.1 rename /a /b/d/e
  granted 1.1
acquire 2.1 rename /b/d /a/c
  waiting 2.1 /a
show
  /a !1.1 < +2.1
  /b +1.1
  /b/d +1.1
  /b/d/e !1.1
release 1.1
  granted 2.1
",
    );
}

#[test]
fn renames_apart_from_each_other_run_at_once() {
    check(
        "
acquire 1.1 rename /a/x/1 /a/y/1
  granted 1.1
acquire 1.2 rename /a/x/2 /a/y/2
  granted 1.2
acquire 2.1 rename /b /c
  granted 2.1
show
  /a +1.1 1.2
  /a/x +1.1 1.2
  /a/x/1 !1.1
  /a/x/2 !1.2
  /a/y +1.1 1.2
  /a/y/1 !1.1
  /a/y/2 !1.2
  /b !2.1
  /c !2.1
",
    );
}

#[test]
fn operations_of_one_session_conflict_like_those_of_two() {
    check(
        "
acquire 1.1 rename /a /b
  granted 1.1
acquire 1.2 rename /a/x /a/y
  waiting 1.2 /a
release 1.1
  granted 1.2
",
    );
}

#[test]
fn who_waits_keeps_what_comes_before_and_nothing_after() {
    check(
        "
acquire 1.1 hold /m
  granted 1.1
acquire 2.1 exchange /a/x /z
  granted 2.1
release 2.1
acquire 3.1 rename /a/x /m/y
  waiting 3.1 /m
acquire 4.1 rename /m/z /z
  waiting 4.1 /m
show
  /a +3.1
  /a/x !3.1
  /m !1.1 < +3.1 +4.1
acquire 5.1 hold /z
  granted 5.1
release 1.1
  granted 3.1
  waiting 4.1 /z
show
  /a +3.1
  /a/x !3.1
  /m +3.1 4.1
  /m/y !3.1
  /m/z !4.1
  /z !5.1 < !4.1
release 5.1
  granted 4.1
",
    );
}

#[test]
fn a_waiting_exclusive_stops_new_shares_even_of_those_who_share() {
    check(
        "
acquire 1.1 share /a
  granted 1.1
acquire 2.1 hold /a
  waiting 2.1 /a
acquire 1.2 share /a
  waiting 1.2 /a
acquire 3.1 share /a
  waiting 3.1 /a
release 1.1
  granted 2.1
release 2.1
  granted 1.2
  granted 3.1
acquire 4.1 hold /a
  waiting 4.1 /a
release 1.2
release 3.1
  granted 4.1
",
    );
}

#[test]
fn shares_behind_an_exclusive_that_gives_up_go_on() {
    check(
        "
acquire 1.1 share /a
  granted 1.1
by 10 acquire 2.1 hold /a
  waiting 2.1 /a
acquire 3.1 share /a
  waiting 3.1 /a
at 10
expire
  expired 2.1 /a exclusive, held shared by 1.1 for 10 ns, 0 before
  granted 3.1
show
  /a +1.1 3.1
",
    );
}

#[test]
fn an_expired_wait_leaves_nothing_and_the_deadline_is_exact() {
    check(
        "
acquire 1.1 hold /b/c
  granted 1.1
at 5
by 20 acquire 2.1 rename /a /b/c/d
  waiting 2.1 /b/c
by 21 acquire 3.1 rename /a /x
  waiting 3.1 /a
at 19
expire
at 20
expire
  expired 2.1 /b/c shared, held exclusive by 1.1 for 20 ns, 0 before
  granted 3.1
release 3.1
show
  /b +1.1
  /b/c !1.1
",
    );
}

#[test]
fn who_expires_together_is_granted_nothing_on_the_way_out() {
    check(
        "
acquire 1.1 share /a
  granted 1.1
by 10 acquire 2.1 hold /a
  waiting 2.1 /a
by 10 acquire 3.1 share /a
  waiting 3.1 /a
by 11 acquire 4.1 hold /a
  waiting 4.1 /a
at 10
expire
  expired 2.1 /a exclusive, held shared by 1.1 for 10 ns, 0 before
  expired 3.1 /a shared, held shared by 1.1 for 10 ns, 1 before
release 1.1
  granted 4.1
",
    );
}

#[test]
fn a_deadline_that_has_passed_takes_all_or_nothing() {
    check(
        "
acquire 1.1 hold /b
  granted 1.1
at 7
by 7 acquire 2.1 rename /a /b
  expired 2.1 /b exclusive, held exclusive by 1.1 for 7 ns, 0 before
show
  /b !1.1
by 7 acquire 2.2 rename /a /c
  granted 2.2
",
    );
}

#[test]
fn asking_and_releasing_again_changes_nothing() {
    check(
        "
acquire 1.1 hold /a
  granted 1.1
acquire 1.1 hold /a
  granted 1.1
acquire 2.1 share /a
  waiting 2.1 /a
acquire 2.1 share /a
  waiting 2.1 /a
acquire 2.1 hold /b
  reused 2.1
acquire 1.1 share /a
  reused 1.1
show
  /a !1.1 < +2.1
release 1.1
  granted 2.1
release 1.1
release 9.9
show
  /a +2.1
",
    );
}

#[test]
fn a_wait_can_be_cancelled() {
    check(
        "
acquire 1.1 share /a
  granted 1.1
acquire 2.1 rename /a /b
  waiting 2.1 /a
acquire 3.1 share /a
  waiting 3.1 /a
release 2.1
  granted 3.1
  cancelled 2.1
show
  /a +1.1 3.1
",
    );
}

#[test]
fn a_dropped_session_leaves_nothing() {
    check(
        "
acquire 1.1 rename /a /b
  granted 1.1
acquire 1.2 rename /c/d /e
  granted 1.2
acquire 1.3 rename /c /f
  waiting 1.3 /c
acquire 2.1 share /c
  waiting 2.1 /c
acquire 2.2 rename /a /x
  waiting 2.2 /a
drop 1
  granted 2.2
  granted 2.1
  dropped 1.1
  dropped 1.2
  dropped 1.3
drop 1
release 1.1
show
  /a !2.2
  /c +2.1
  /x !2.2
",
    );
}

#[test]
fn a_closed_table_grants_nothing_and_keeps_what_is_held() {
    check(
        "
acquire 1.1 share /a
  granted 1.1
acquire 2.1 hold /a
  waiting 2.1 /a
acquire 3.1 share /a
  waiting 3.1 /a
close
  closed 2.1
  closed 3.1
acquire 4.1 share /b
  closed 4.1
show
  /a +1.1
release 1.1
show
  empty
",
    );
}
