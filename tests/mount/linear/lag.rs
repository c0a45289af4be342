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
//! It follows that nothing is held to be seen in one order on two hosts within the bound. And Linux judges a rename by what
//! it knows of both names, which may be old where another host has changed one of them within the bound: where both seem
//! to be one inode it calls the rename done and asks nobody ([`Outcome::Not`]).
//!
//! And who looks by a name at a directory that another host has replaced within the bound, may be told of the old one, that
//! it is gone ([`Outcome::Early`], if it was absence).

use super::model::{Call, Outcome, Place, Tree};
use super::search::{Event, explain};

/// So many renames of one history may have asked nobody, or not; of what is beyond, all are held to be done.
const DOUBTS_MAX: usize = 10;

/// Whether an order explains what the hosts saw. `hosts`: how many; thread N is on host N modulo `hosts`. `lag_ns` as the
/// stamps are.
pub(super) fn explained(before: &Tree, events: &[Event], hosts: usize, lag_ns: u64) -> bool {
    let history = History { events, hosts, lag_ns };
    let doubted: Vec<usize> =
        (0..events.len()).filter(|at| history.is_doubted(&events[*at])).take(DOUBTS_MAX).collect();
    (0..1usize << doubted.len()).any(|choice| {
        let mut chosen = events.to_vec();
        for (bit, at) in doubted.iter().enumerate() {
            if choice & (1 << bit) != 0 {
                chosen[*at].outcome = Outcome::Not;
            }
        }
        explain(before, &History { events: &chosen, ..history }.lagging()).is_some()
    })
}

#[derive(Clone, Copy)]
struct History<'a> {
    events: &'a [Event],
    hosts: usize,
    lag_ns: u64,
}

impl History<'_> {
    /// The history that is to be explained: with the looks as early as they may have been.
    fn lagging(self) -> Vec<Event> {
        let weaker = |event: &Event| match event {
            _ if changes(event) => event.clone(),
            _ if self.finds_it_gone(event) => Event { outcome: Outcome::Early, ..event.clone() },
            _ => Event { begun: self.earliest(event), after: self.own_before(event), ..event.clone() },
        };
        self.events.iter().map(weaker).collect()
    }

    fn earliest(self, event: &Event) -> u64 {
        event.begun.saturating_sub(self.lag_ns)
    }

    fn is_of_one_host(self, one: &Event, other: &Event) -> bool {
        one.thread % self.hosts == other.thread % self.hosts
    }

    /// Whether it is a rename of two names, of which another thread has moved something to or from one within the bound.
    fn is_doubted(self, event: &Event) -> bool {
        is_rename(event)
            && event.told == Outcome::Done
            && changes(event)
            && self.others_changed(event, event.call.touches(), is_rename)
    }

    /// Whether another thread has changed one of these places within the bound, by what is `meant`.
    fn others_changed(self, event: &Event, places: [Option<Place>; 2], meant: fn(&Event) -> bool) -> bool {
        self.events.iter().any(|other| {
            let in_time = other.begun < event.ended && self.earliest(event) < other.ended;
            let touches = || other.call.touches().iter().any(|at| places.contains(at));
            changes(other) && meant(other) && in_time && other.thread != event.thread && touches()
        })
    }

    /// Whether a look finds nothing where another host has put something by a rename within the bound.
    fn finds_it_gone(self, look: &Event) -> bool {
        matches!((look.call, look.outcome), (Call::Look(_), Outcome::Absent))
            && self.others_changed(look, look.call.touches(), is_rename)
    }

    /// The changes of the same host at the place that the look tells of that had returned when it was called.
    fn own_before(self, look: &Event) -> u64 {
        let [from, to] = look.call.touches();
        let told_of = match (look.call, look.outcome) {
            (Call::Rename(..), Outcome::Absent) => [from, from],
            _ => [from, to],
        };
        // Of an exchange it is not known which of the two was absent.
        let both = matches!(look.call, Call::Exchange(..));
        let is_own = |event: &Event| {
            let touched = event.call.touches();
            let tells = |at| touched.contains(at);
            let touches = if both { told_of.iter().all(tells) } else { told_of.iter().any(tells) };
            changes(event) && touches && event.ended < look.begun && self.is_of_one_host(event, look)
        };
        self.events
            .iter()
            .enumerate()
            .filter(|(_, event)| is_own(event))
            .fold(0, |bits, (at, _)| bits | 1 << at)
    }
}

fn changes(event: &Event) -> bool {
    event.call.changes(event.outcome)
}

fn is_rename(event: &Event) -> bool {
    matches!(event.call, Call::Rename(..) | Call::Exchange(..))
}
