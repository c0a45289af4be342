//! Random events of the lock engine, with judgements that hold after each. Owns the judgements.

use std::sync::Arc;

use lockwood::lock::decide::{Command, Event, Nanos, State};
use lockwood::lock::{LockId, LockSet, Mode, OpId, SessionId};

use super::{Judged, objection};
use crate::rng::Rng;

const SCHEDULES: u64 = 2_000;
const STEPS: u64 = 40;

const PATHS: [&str; 6] = ["/a", "/a/b", "/a/b/c", "/d", "/d/e", "/f"];

/// What is wrong with a state, if something is.
fn wrong(state: &State) -> Option<String> {
    for (id, lock) in state.locks() {
        let exclusive = lock.mode() == Mode::Exclusive;
        if lock.holders().len() > 1 && exclusive {
            return Some(format!("{id} is held exclusively by {}", lock.holders().len()));
        }
        for holder in lock.holders() {
            let held = state.op(holder.op).and_then(|op| op.held().iter().find(|entry| entry.id == *id));
            if held.is_none_or(|entry| entry.mode == Mode::Exclusive && !exclusive) {
                return Some(format!("{id} is held by {}, who does not hold it so", holder.op));
            }
        }
        for waiter in lock.queue() {
            let waits = state.op(waiter.op).and_then(|op| op.waits_for());
            if waits.is_none_or(|entry| entry.id != *id) {
                return Some(format!("{} is in the queue of {id} and does not wait for it", waiter.op));
            }
        }
        if lock.holders().is_empty() {
            return Some(format!("nobody holds {id}, and it is kept"));
        }
    }
    for (op, of) in state.ops() {
        let holds = |id: &LockId| {
            state.lock(id).is_some_and(|lock| lock.holders().iter().any(|holder| holder.op == *op))
        };
        if let Some(entry) = of.held().iter().find(|entry| !holds(&entry.id)) {
            return Some(format!("{op} does not hold {}, and goes on as if", entry.id));
        }
    }
    None
}

/// Judges schedules of operations of three sessions.
pub(super) fn judge() -> Judged {
    let id = |path: &str| LockId::from_path(path.as_bytes()).expect("a path");
    for schedule in 0..SCHEDULES {
        let mut rng = Rng::new(schedule + 1);
        let mut pick = |below: u64| rng.next() % below;
        let mut state = State::default();
        for step in 0..STEPS {
            let session = SessionId(pick(3));
            let op = OpId { session, number: pick(4) };
            let event = match pick(8) {
                0..=3 => {
                    let (source, destination) = (PATHS[pick(6) as usize], PATHS[pick(6) as usize]);
                    let Ok(set) = LockSet::for_rename(&id(source), &id(destination)) else { continue };
                    let deadline = Nanos(step + pick(10));
                    Event::Acquire { op, set, operation: Arc::from(""), deadline }
                }
                4 | 5 => Event::Release { op },
                6 => Event::Expire,
                _ => Event::DropSession { session },
            };
            let (before, mut commands) = (state.clone(), Vec::new());
            state.apply(event.clone(), Nanos(step), &mut commands);
            let reused = commands.iter().any(|command| matches!(command, Command::Reused(_)));
            let found = match &event {
                Event::DropSession { session } if state.ops().any(|(op, _)| op.session == *session) => {
                    Some("a dropped session has operations left".to_owned())
                }
                Event::Acquire { op, set, .. } if before.op(*op).is_some() && !reused && state != before => {
                    Some(format!("{op} asked again, for {set:?}, and that changed something"))
                }
                _ => wrong(&state),
            };
            if let Some(what) = found {
                return objection(schedule, format!("{what} (after {event:?})"));
            }
        }
    }
    Ok(SCHEDULES)
}
