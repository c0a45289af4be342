//! What a recoverer does next for a dead session, given what it has read. Pure; imports `rules`.
//!
//! Any number of recoverers may be at it, and each may die at any step: the plan rests on what is in the store alone, every
//! step may be repeated, and whoever comes later goes on where the last one stopped. Why the order:
//!
//! 1. *Fence first.* A session that is not fenced may still commit, and its locks are what its commits rest on.
//! 2. *Settle its intents before its locks go.* A commit does not mark what it checks under a lock; if the lock went while
//!    the commit can still be decided, somebody could change what it checked. Once every slot is sealed nothing can be
//!    decided any more. A slot that is not there may be one that the server which was read does not have, and one that was
//!    read as sealed may be lost with that server; settling makes it, sealed, or writes it once more. So of a fenced session
//!    all slots are there, sealed by whoever takes its claims away.
//! 3. *Collect before it is called recovered*, for nobody looks at a recovered session again.
//! 4. *The slots go after the session is recovered*, and none goes that has marks to speak for: what it has committed would
//!    be lost with it, and until then it could be committed.
//! 5. *The session's document goes last*: as long as anything is left, it tells others that there is something to do.

use crate::document::SessionState;
use crate::rules::{Rule, holds};

/// The slots of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlotsSeen {
    /// At least one is there and not sealed.
    Open,
    /// All are there, and sealed: this recoverer has written each of them.
    Sealed,
    /// Some are there, or all, and those were read as sealed.
    ReadSealed,
    /// None is there.
    Gone,
}

/// What a recoverer has read of a session that may be fenced, or has been.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Found {
    /// Where the session stands; `None` if it has no document.
    pub state: Option<SessionState>,
    /// Its slots.
    pub slots: SlotsSeen,
    /// Whether some lock document may have a claim of its: until a whole listing, made after its slots were sealed, had
    /// none.
    pub claims: bool,
    /// Whether what the session left in the tree is collected; each recoverer makes sure itself.
    pub collected: bool,
}

/// A step of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Declare it dead: the session to fenced.
    Fence,
    /// Decide its intents, clean their marks, seal its slots.
    SettleIntents,
    /// Take its claims out of every lock document, and let in who is next.
    DropClaims,
    /// Collect what it left in the tree.
    Collect,
    /// The session from fenced to recovered.
    MarkRecovered,
    /// Delete its slots.
    DeleteSlots,
    /// Delete its document.
    DeleteSession,
    /// Nothing is left.
    Done,
}

/// The next step.
pub fn next_step(found: &Found) -> Step {
    match found.state {
        Some(SessionState::Joining | SessionState::Live) if holds(Rule::FenceBeforeRelease) => Step::Fence,
        Some(SessionState::Recovered) if found.slots == SlotsSeen::Gone => Step::DeleteSession,
        None if found.slots == SlotsSeen::Gone => Step::Done,
        // A delayed request made it again, or they were not seen when they were to be settled.
        Some(SessionState::Recovered) | None
            if found.slots == SlotsSeen::Open && holds(Rule::OpenSlotsNeverDeleted) =>
        {
            Step::SettleIntents
        }
        Some(SessionState::Recovered) | None => Step::DeleteSlots,
        Some(_) => clean_up(found),
    }
}

fn clean_up(found: &Found) -> Step {
    let settled = found.slots == SlotsSeen::Sealed;
    if !settled && (holds(Rule::IntentsSettledBeforeLocksDropped) || !found.claims) {
        Step::SettleIntents
    } else if found.claims && holds(Rule::ClaimsDroppedBeforeRecovered) {
        Step::DropClaims
    } else if !found.collected {
        Step::Collect
    } else {
        Step::MarkRecovered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SessionState::{Fenced, Joining, Live, Recovered};
    use SlotsSeen::{Gone, Open, ReadSealed, Sealed};

    #[test]
    fn the_next_step_of_whatever_is_found() {
        // State, slots, claims left, collected.
        let table = [
            (Some(Joining), Gone, true, false, Step::Fence),
            (Some(Joining), Open, false, true, Step::Fence),
            (Some(Live), Open, true, false, Step::Fence),
            (Some(Live), Sealed, true, false, Step::Fence),
            (Some(Fenced), Open, true, false, Step::SettleIntents),
            (Some(Fenced), Open, false, true, Step::SettleIntents),
            (Some(Fenced), Sealed, true, false, Step::DropClaims),
            (Some(Fenced), ReadSealed, true, false, Step::SettleIntents),
            (Some(Fenced), Gone, true, false, Step::SettleIntents),
            (Some(Fenced), Sealed, false, false, Step::Collect),
            (Some(Fenced), Sealed, false, true, Step::MarkRecovered),
            (Some(Fenced), Gone, false, true, Step::SettleIntents),
            (Some(Recovered), Sealed, true, false, Step::DeleteSlots),
            (Some(Recovered), ReadSealed, true, false, Step::DeleteSlots),
            (Some(Recovered), Open, true, false, Step::SettleIntents),
            (Some(Recovered), Gone, true, false, Step::DeleteSession),
            (None, Open, false, false, Step::SettleIntents),
            (None, Sealed, false, false, Step::DeleteSlots),
            (None, ReadSealed, false, false, Step::DeleteSlots),
            (None, Gone, true, false, Step::Done),
        ];
        for (state, slots, claims, collected, expected) in table {
            let found = Found { state, slots, claims, collected };
            assert_eq!(next_step(&found), expected, "{found:?}");
        }
    }

    /// From whatever is found, each step done leads to the end, in the one order.
    #[test]
    fn every_recovery_ends_in_the_one_order() {
        for state in [None, Some(Joining), Some(Live), Some(Fenced), Some(Recovered)] {
            for slots in [Open, Sealed, ReadSealed, Gone] {
                for (claims, collected) in [(false, false), (false, true), (true, false), (true, true)] {
                    let mut found = Found { state, slots, claims, collected };
                    let mut steps = Vec::new();
                    while next_step(&found) != Step::Done {
                        let step = next_step(&found);
                        steps.push(step as u8);
                        match step {
                            Step::Fence => found.state = Some(Fenced),
                            Step::SettleIntents => found.slots = Sealed,
                            Step::DropClaims => found.claims = false,
                            Step::Collect => found.collected = true,
                            Step::MarkRecovered => found.state = Some(Recovered),
                            Step::DeleteSlots => found.slots = Gone,
                            Step::DeleteSession => found.state = None,
                            Step::Done => {}
                        }
                        assert!(steps.len() < 8, "no end: {steps:?}");
                    }
                    assert!(steps.is_sorted(), "{steps:?}");
                }
            }
        }
    }
}
