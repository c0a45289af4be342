//! The search for an order (Wing and Gong 1993, with the memory of Lowe 2017): depth first over which operation took
//! effect next, never before one that had returned when it was called.

use std::collections::HashSet;

use super::model::{Call, Outcome, Tree};

/// One operation: who, when it was called and when it returned, what was asked and told.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) thread: usize,
    /// Ticks of one clock that all threads share; no two are the same.
    pub(super) begun: u64,
    pub(super) ended: u64,
    pub(super) call: Call,
    pub(super) outcome: Outcome,
    /// What the thread was told, whatever that is held to mean.
    pub(super) told: Outcome,
    /// Which events took effect before, whatever the clock says: a bit an event.
    pub(super) after: u64,
}

/// An order of the events that the sequential tree can run, by their indices.
pub(super) fn explain(before: &Tree, events: &[Event]) -> Option<Vec<usize>> {
    assert!(events.len() <= 64, "a bit an event");
    let mut order = Vec::new();
    let mut seen = HashSet::new();
    descend(before, events, 0, &mut order, &mut seen).then_some(order)
}

fn descend(
    tree: &Tree,
    events: &[Event],
    done: u64,
    order: &mut Vec<usize>,
    seen: &mut HashSet<(u64, Tree)>,
) -> bool {
    if order.len() == events.len() {
        return true;
    }
    if !seen.insert((done, tree.clone())) {
        return false;
    }
    let left = || (0..events.len()).filter(|at| done & (1 << at) == 0);
    let first_return = left().map(|at| events[at].ended).min().unwrap_or(u64::MAX);
    let may_be_next = |event: &Event| event.begun < first_return && done & event.after == event.after;
    // What only looks, and may look now, hinders nobody: no other choice has to be tried.
    let look = left().find(|at| {
        let Event { call, outcome, .. } = events[*at];
        may_be_next(&events[*at])
            && !call.changes(outcome)
            && tree.after(call, outcome).as_ref() == Some(tree)
    });
    if let Some(at) = look {
        order.push(at);
        if descend(tree, events, done | 1 << at, order, seen) {
            return true;
        }
        order.pop();
        return false;
    }
    for at in left().filter(|at| may_be_next(&events[*at])) {
        for outcome in events[at].outcome.cases() {
            let Some(next) = tree.after(events[at].call, outcome) else { continue };
            order.push(at);
            if descend(&next, events, done | 1 << at, order, seen) {
                return true;
            }
            order.pop();
        }
    }
    false
}

/// How many pairs of operations were under way at the same time.
pub(super) fn overlaps(events: &[Event]) -> u64 {
    let meet = |a: &Event, b: &Event| a.begun < b.ended && b.begun < a.ended;
    let pairs =
        |at: usize| events[at + 1..].iter().filter(move |other| meet(&events[at], other)).count() as u64;
    (0..events.len()).map(pairs).sum()
}

/// A history to read, in the order of the calls.
pub(super) fn show(events: &[Event]) -> String {
    let mut sorted: Vec<&Event> = events.iter().collect();
    sorted.sort_by_key(|event| event.begun);
    let line = |e: &&Event| {
        let us = |stamp: u64| stamp / 1000;
        let told = if e.told == e.outcome { String::new() } else { format!(", told {:?}", e.told) };
        let (begun, ended) = (us(e.begun), us(e.ended));
        format!("  {begun:>7}-{ended:<7} us thread {}: {:?} -> {:?}{told}\n", e.thread, e.call, e.outcome)
    };
    sorted.iter().map(line).collect()
}
