//! What may go wrong inside the model, and recovery: crashes, fences, messages that are late. Owns the judgement that nobody
//! waits for ever.

use lockwood::document::SessionState;
use lockwood::lock::session::plan::{Found, SlotsSeen, Step, next_step};
use lockwood::store::intents::decide::{self, Settling};

use super::locks::Ask;
use super::protocol::Protocol;
use super::reached::Reached;
use super::scenario::Engine;
use super::state::{Late, MarkOf, Phase, SESSIONS, Session, Standing, State, bit};

impl Protocol {
    /// The next step of the recovery of a session that somebody holds for dead. Any number of recoverers take such steps,
    /// in any order.
    pub(super) fn recover(&self, state: &mut State, s: usize) {
        let session = &state.sessions[s];
        let (state_of, slots) = match session.standing {
            Standing::Live => (SessionState::Live, SlotsSeen::Open),
            Standing::Fenced => (SessionState::Fenced, SlotsSeen::Open),
            Standing::Settled => (SessionState::Fenced, SlotsSeen::Sealed),
            Standing::Recovered => (SessionState::Recovered, SlotsSeen::Gone),
        };
        // Where there are no intents, none is to be settled.
        let slots = if self.scenario.engine == Engine::Weak { slots } else { SlotsSeen::Sealed };
        let found =
            Found { state: Some(state_of), slots, claims: self.holds_locks(state, s), collected: true };
        match next_step(&found) {
            Step::Fence => {
                state.faults[1] -= u8::from(!session.crashed);
                state.sessions[s].standing = Standing::Fenced;
            }
            Step::SettleIntents => self.settle(state, s),
            Step::DropClaims => {
                self.reach(Reached::Recovery);
                self.ask(state, Ask::Drop(s as u8));
            }
            Step::MarkRecovered => state.sessions[s].standing = Standing::Recovered,
            Step::Collect | Step::DeleteSlots | Step::DeleteSession | Step::Done => {
                // A request of the dead session's was late. Those whom its claim blocks remove it if it is a ghost.
                self.reach(Reached::Ghost);
                self.ask(state, Ask::Drop(s as u8));
            }
        }
    }

    /// One step towards a sealed slot.
    pub(super) fn settle(&self, state: &mut State, s: usize) {
        let of = state.sessions[s].slot;
        let slot = of.slot(u64::MAX);
        let next = match decide::settling(&slot) {
            Settling::Abort => decide::abort(&slot),
            Settling::RollForward | Settling::RollBack => {
                let own = |mark: &&MarkOf| {
                    (mark.session, mark.number) == (s as u8, of.number) && of.marked & bit(mark.key) != 0
                };
                if let Some(mark) = state.marks.iter().find(own).copied() {
                    if decide::settling(&slot) == Settling::RollForward {
                        self.reach(Reached::RolledForward);
                    }
                    self.clean(state, mark);
                    None
                } else {
                    decide::seal(&slot)
                }
            }
            Settling::Seal => decide::seal(&slot),
            Settling::Done => {
                state.sessions[s].standing = Standing::Settled;
                None
            }
        };
        if let Some(next) = next {
            state.sessions[s].slot.become_like(&next);
        }
    }

    /// Whether there is something left to do for the recovery of a session.
    pub(super) fn can_recover(&self, state: &State, s: usize) -> bool {
        match state.sessions[s].standing {
            Standing::Live => false,
            Standing::Fenced | Standing::Settled => true,
            Standing::Recovered => self.ghosts[1] && self.holds_locks(state, s),
        }
    }

    /// Whether nothing will ever happen again, and somebody waits or something is left locked.
    pub(super) fn is_stuck(&self, state: &State) -> bool {
        let goes_on = |s: usize| {
            let session = &state.sessions[s];
            self.may_step(state, s)
                || self.can_recover(state, s)
                || session.crashed && session.standing == Standing::Live
        };
        if !state.late.is_empty() || (0..SESSIONS).any(goes_on) {
            return false;
        }
        let waits = |session: &Session| matches!(session.op.phase, Phase::Waiting | Phase::InDoubt);
        let left = self.scenario.locks.present(state.locks) != 0;
        left || state.sessions.iter().any(|session| !session.crashed && waits(session))
    }

    pub(super) fn crash(&self, state: &mut State, s: usize) {
        if self.holds_locks(state, s) {
            self.reach(Reached::CrashWithLocks);
        }
        state.faults[0] -= 1;
        state.sessions[s].crashed = true;
    }

    /// Sends what comes next without waiting for the answer. Returns whether there is something to send.
    pub(super) fn delay(&self, state: &mut State, s: usize) -> bool {
        let Some(spec) = self.spec(state, s) else { return false };
        let weak = self.scenario.engine == Engine::Weak;
        let (phase, number) = (state.sessions[s].op.phase, state.sessions[s].op.number());
        let late = match phase {
            Phase::Ready if !weak => Late::Commit(s as u8),
            Phase::Validated if weak => Late::Decision(s as u8, state.sessions[s].slot.number),
            Phase::Marking if weak => match self.next_mark(state, s, spec) {
                Some(mark) => {
                    // It carries the version that its sender has read, which may be an old one by now.
                    let overtaken = state.sessions[s].op.overwritten & bit(mark.key) != 0;
                    Late::Mark(MarkOf { known: false, ..mark }, overtaken)
                }
                None => return false,
            },
            Phase::Releasing if self.scenario.locked => Late::Unlock(s as u8, number),
            _ => return false,
        };
        match late {
            Late::Commit(_) => state.sessions[s].op.phase = Phase::InDoubt,
            Late::Unlock(..) => self.next_operation(state, s),
            _ => {}
        }
        state.faults[2] -= 1;
        state.late.push(late);
        true
    }

    pub(super) fn arrive(&self, state: &mut State, index: usize) {
        match state.late.remove(index) {
            Late::Commit(s) => {
                let s = s as usize;
                if let Some(spec) = self.spec(state, s) {
                    self.commit_at_once(state, s, spec);
                }
            }
            Late::Decision(s, number) => self.decide_late(state, s as usize, number),
            Late::Mark(mark, overtaken) => self.mark_late(state, mark, overtaken),
            Late::Unlock(s, number) => {
                if state.sessions[s as usize].standing == Standing::Recovered {
                    self.reach(Reached::LateUnlock);
                }
                self.ask(state, Ask::Release { session: s, number });
            }
        }
    }
}
