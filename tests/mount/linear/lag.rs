//! What is promised between hosts, as a weaker history: what a host shows may be old, by a bound; what changes the tree
//! may not.
//!
//! 1. A call that has changed something did so at one instant between its call and its return, in one order for all hosts:
//!    the server makes it, or refuses it, on what is true.
//! 2. A call that changed nothing (a look, or a refusal, for which Linux often asks nobody) is told of a state that was true
//!    at some instant between `lag` before it was called and its return. Never of one that came later, and never of one that
//!    lay before a change which the same host had made at that place and which had returned: a host sees its own changes.
//!    The place is the one that it was told of: a rename that finds nothing says it of its source, an exchange of one of
//!    both.
//!
//! It follows that nothing is held to be seen in one order on two hosts within the bound. A rename is judged by Linux by
//! what it knows of both names: where that is old, and names one inode twice, it calls the rename done and asks nobody
//! ([`Outcome::DoneOrNot`]), if another host moved something to or from there within the bound.

use super::model::{Call, Outcome};
use super::search::Event;

/// The history that is to be explained: with the looks as early as they may have been. `hosts`: how many; thread N is on
/// host N modulo `hosts`. `lag_ns` as the stamps are.
pub(super) fn lagging(events: &[Event], hosts: usize, lag_ns: u64) -> Vec<Event> {
    let earliest = |event: &Event| event.begun.saturating_sub(lag_ns);
    let moved_by_another = |event: &Event| {
        events.iter().any(|other| {
            let moves = matches!(other.call, Call::Rename(..) | Call::Exchange(..)) && changes(other);
            let in_time = other.begun < event.ended && earliest(event) < other.ended;
            let [_, target] = event.call.touches();
            moves && in_time && other.thread != event.thread && other.call.touches().contains(&target)
        })
    };
    let weaker = |event: &Event| match (event.call, event.outcome) {
        (Call::Rename(..) | Call::Exchange(..), Outcome::Done)
            if changes(event) && moved_by_another(event) =>
        {
            Event { outcome: Outcome::DoneOrNot, ..event.clone() }
        }
        _ if changes(event) => event.clone(),
        _ => Event { begun: earliest(event), after: own_before(event, events, hosts), ..event.clone() },
    };
    events.iter().map(weaker).collect()
}

fn changes(event: &Event) -> bool {
    event.call.changes(event.outcome)
}

/// The changes of the same host at the place that the look tells of that had returned when it was called.
fn own_before(look: &Event, events: &[Event], hosts: usize) -> u64 {
    let [from, to] = look.call.touches();
    let told_of = match (look.call, look.outcome) {
        (Call::Rename(..), Outcome::Absent) => [from, from],
        _ => [from, to],
    };
    let is_own = |event: &Event| {
        let touched = event.call.touches();
        let tells = |at| touched.contains(at);
        changes(event)
            && event.ended < look.begun
            && event.thread % hosts == look.thread % hosts
            // Of an exchange it is not known which of the two was absent.
            && if matches!(look.call, Call::Exchange(..)) { told_of.iter().all(tells) } else { told_of.iter().any(tells) }
    };
    events.iter().enumerate().filter(|(_, event)| is_own(event)).fold(0, |bits, (at, _)| bits | 1 << at)
}
