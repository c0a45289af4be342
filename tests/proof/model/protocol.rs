//! The model: what each session does next, what may go wrong, and what must never be seen. Owns the actions and a
//! session's way up to its commit; [`super::commit`] has the commits of both kinds of engines, [`super::faults`] what goes
//! wrong.
//!
//! What decides is production's own: lock sets ([`lockwood::lock::LockSet`]), the lock engine
//! ([`lockwood::lock::decide::State`]), what a rename's commit rests on
//! ([`rests_on`]), and intents ([`lockwood::store::intents::decide`]). The model adds the order in which they are asked,
//! and everything that can come between.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use lockwood::document::{Session, SessionId, SessionState, Timestamp};
use lockwood::lock::OpId;
use lockwood::lock::shared::claims::is_ghost;
use lockwood::namespace::ops::rename::{rests_on, still_fits};
use stateright::{Model, Property};

use super::locks::{Ask, Decided, Wanted};
use super::reached::{self, Reached};
use super::scenario::{Engine, Manner, Scenario, Spec};
use super::state::{Phase, SESSIONS, Standing, State, bit, broken, entry_key, keys, node_key};
use super::tree::with_name;

/// A scenario with what was met in it.
pub(crate) struct Protocol {
    /// What is tried.
    pub(crate) scenario: Scenario,
    /// Whether claims are taken for ghosts of sessions that are at work, and of those that have no document any more.
    pub(super) ghosts: [bool; 2],
    reached: AtomicU32,
}

/// What happens next. The number is that of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// It goes on.
    Step(usize),
    /// It aborts the intents that stand in its way.
    AbortOthers(usize),
    /// It sends what comes next, gets no answer, and the message is under way.
    Delay(usize),
    /// Its process dies.
    Crash(usize),
    /// Somebody holds it for dead, and begins its recovery.
    Fence(usize),
    /// Somebody takes the next step of its recovery.
    Recover(usize),
    /// Its claims are taken for ghosts.
    Sweep(usize),
    /// Time passes: who has a deadline gives up.
    Expire,
    /// The message with this number arrives.
    Arrive(usize),
}

/// How often an operation starts over before it gives up.
const ATTEMPTS_MAX: u8 = 2;
const LATE_MAX: usize = 2;

impl Protocol {
    /// A scenario at its beginning.
    pub(crate) fn new(scenario: Scenario) -> Self {
        let claim = OpId { session: SessionId(0), number: 1 };
        let at_work = Session {
            id: claim.session,
            host: String::new(),
            boot_id: String::new(),
            pid: 0,
            mount_point: String::new(),
            started: Timestamp::default(),
            lease_ms: 0,
            heartbeat: 0,
            epoch: 0,
            intents: 1,
            operations_below: 1,
            state: SessionState::Live,
            locks: None,
        };
        let ghosts = [is_ghost(claim, Some(&at_work)), is_ghost(claim, None)];
        Self { scenario, ghosts, reached: AtomicU32::new(0) }
    }

    /// What was met so far.
    pub(crate) fn reached(&self) -> u32 {
        self.reached.load(Relaxed)
    }

    pub(super) fn reach(&self, what: Reached) {
        let bit = reached::bit(what);
        if self.reached.load(Relaxed) & bit == 0 {
            self.reached.fetch_or(bit, Relaxed);
        }
    }

    pub(super) fn spec(&self, state: &State, s: usize) -> Option<Spec> {
        self.scenario.operations[s].get(state.sessions[s].op.index as usize).copied()
    }

    /// Whether the session can go on by itself. It may yet find that it must wait for the mark of another.
    pub(super) fn may_step(&self, state: &State, s: usize) -> bool {
        let session = &state.sessions[s];
        match session.op.phase {
            _ if session.crashed => false,
            Phase::Begin => !session.stopped && self.spec(state, s).is_some(),
            Phase::Waiting | Phase::InDoubt | Phase::Over => false,
            _ => true,
        }
    }

    fn step(&self, state: &State, s: usize) -> Option<State> {
        let mut next = state.clone();
        let spec = self.spec(state, s)?;
        match state.sessions[s].op.phase {
            Phase::Begin => self.begin(&mut next, s, spec),
            Phase::SourceRead => self.resolve(&mut next, s, spec),
            Phase::Resolved => self.lock(&mut next, s),
            Phase::Locked => self.read_source_again(&mut next, s, spec),
            Phase::SourceReadAgain => self.validate(&mut next, s, spec),
            Phase::Releasing => self.release(&mut next, s),
            Phase::Ready if self.scenario.engine == Engine::Transactional => {
                self.commit_at_once(&mut next, s, spec)
            }
            _ => return self.step_of_intent(&mut next, s, spec).then_some(next),
        }
        Some(next)
    }

    /// Reads the source side of a rename, or all that the other operations need.
    fn begin(&self, state: &mut State, s: usize, spec: Spec) {
        let op = &mut state.sessions[s].op;
        (op.stale, op.overwritten, op.done, op.victim, op.to) = (0, 0, 0, 0, 0);
        match spec {
            Spec::Rename { .. } => {
                if self.read_source(state, s, spec) {
                    let op = &mut state.sessions[s].op;
                    (op.from, op.found) = (op.found, 0);
                    op.phase = Phase::SourceRead;
                } else {
                    self.next_operation(state, s);
                }
            }
            Spec::Make { at: (directory, name), node } => {
                let key = entry_key(directory, name);
                if !state.exists(directory) || state.entry(key) != 0 {
                    return self.next_operation(state, s);
                }
                let op = &mut state.sessions[s].op;
                (op.moved, op.rests_on, op.stands_on) = (node, bit(key), 0);
                op.phase = Phase::Ready;
            }
            Spec::Rmdir { at: (directory, name) } => {
                let key = entry_key(directory, name);
                let node = state.entry(key);
                if node == 0 || !self.scenario.is_directory(node) || !state.is_empty(node) {
                    return self.next_operation(state, s);
                }
                let op = &mut state.sessions[s].op;
                (op.moved, op.rests_on, op.stands_on) = (node, bit(key) | bit(node_key(node)), 0);
                op.phase = Phase::Ready;
            }
        }
    }

    /// Returns whether there is something to rename.
    fn read_source(&self, state: &mut State, s: usize, spec: Spec) -> bool {
        let Spec::Rename { from: (directory, name), .. } = spec else { return false };
        let Some((chain, path)) = state.chain(directory) else { return false };
        let key = entry_key(directory, name);
        let moved = state.entry(key);
        let op = &mut state.sessions[s].op;
        op.found = with_name(path, name);
        op.moved = moved;
        op.stands_on = chain | bit(key);
        op.rests_on = op.stands_on;
        op.stale = 0;
        moved != 0
    }

    /// Reads the destination side and judges the rename. Returns the destination's path.
    fn read_target(&self, state: &mut State, s: usize, spec: Spec) -> Option<u32> {
        let Spec::Rename { from, to: (directory, name), manner } = spec else { return None };
        let (chain, path) = state.chain(directory)?;
        let key = entry_key(directory, name);
        let victim = state.entry(key);
        let moved = state.sessions[s].op.moved;
        let is_directory = |node| self.scenario.is_directory(node);
        let allowed = match manner {
            _ if victim == moved => false,
            Manner::Exchange => victim != 0,
            Manner::NoReplace => victim == 0,
            Manner::Replace if victim == 0 => true,
            Manner::Replace => {
                is_directory(victim) == is_directory(moved)
                    && (!is_directory(victim) || state.is_empty(victim))
            }
        };
        if !allowed {
            return None;
        }
        let source = entry_key(from.0, from.1);
        let op = &mut state.sessions[s].op;
        let above_source = op.stands_on & !bit(source);
        let checks = rests_on(source, key, keys(above_source), keys(chain));
        op.victim = victim;
        op.stands_on |= chain | bit(key);
        op.rests_on = checks.into_iter().fold(0, |set, key| set | bit(key));
        if victim != 0 && manner == Manner::Replace {
            op.rests_on |= bit(node_key(victim));
        }
        op.stale &= op.rests_on;
        Some(with_name(path, name))
    }

    fn wanted(spec: Spec, from: u32, to: u32) -> Wanted {
        let exchange = matches!(spec, Spec::Rename { manner: Manner::Exchange, .. });
        Wanted { exchange, from, to }
    }

    fn resolve(&self, state: &mut State, s: usize, spec: Spec) {
        let Some(to) = self.read_target(state, s, spec) else { return self.next_operation(state, s) };
        let op = &mut state.sessions[s].op;
        op.to = to;
        if self.scenario.locks.set(Self::wanted(spec, op.from, to)).is_none() {
            self.reach(Reached::IntoItself);
            return self.next_operation(state, s);
        }
        op.phase = if self.scenario.locked { Phase::Resolved } else { Phase::Ready };
        if !self.scenario.locked {
            (op.from, op.to) = (0, 0);
        }
    }

    fn lock(&self, state: &mut State, s: usize) {
        let Some(spec) = self.spec(state, s) else { return };
        let op = &mut state.sessions[s].op;
        op.phase = Phase::Waiting;
        // What was read before the locks counts no more.
        (op.moved, op.victim, op.stands_on, op.rests_on, op.stale) = (0, 0, 0, 0, 0);
        let (wanted, number) = (Self::wanted(spec, op.from, op.to), op.number());
        let impatient = self.scenario.impatient == Some(s);
        self.ask(state, Ask::Acquire { session: s as u8, number, wanted, impatient });
        if state.sessions[s].op.phase == Phase::Waiting {
            self.reach(Reached::Wait);
        }
    }

    fn read_source_again(&self, state: &mut State, s: usize, spec: Spec) {
        let found = self.read_source(state, s, spec);
        state.sessions[s].op.phase = if found { Phase::SourceReadAgain } else { Phase::Releasing };
    }

    fn validate(&self, state: &mut State, s: usize, spec: Spec) {
        let Some(to) = self.read_target(state, s, spec) else {
            state.sessions[s].op.phase = Phase::Releasing;
            return;
        };
        let op = &mut state.sessions[s].op;
        let (held, found) = (Self::wanted(spec, op.from, op.to), Self::wanted(spec, op.found, to));
        let fits = match (self.scenario.locks.set(held), self.scenario.locks.set(found)) {
            _ if held == found => true,
            (Some(held), Some(found)) => still_fits(&*held, &*found),
            _ => {
                op.phase = Phase::Releasing;
                return;
            }
        };
        if fits {
            (op.from, op.to, op.found) = (0, 0, 0);
            op.phase = Phase::Ready;
        } else {
            self.reach(Reached::MeansSomethingElse);
            self.start_over(state, s);
        }
    }

    /// Lets the locks go and goes on to the next operation.
    fn release(&self, state: &mut State, s: usize) {
        self.unlock(state, s);
        self.next_operation(state, s);
    }

    /// Lets the locks go and tries again, if it has not tried too often.
    pub(super) fn start_over(&self, state: &mut State, s: usize) {
        self.unlock(state, s);
        let op = &mut state.sessions[s].op;
        if op.attempt + 1 >= ATTEMPTS_MAX || state.sessions[s].stopped {
            return self.next_operation(state, s);
        }
        op.attempt += 1;
        op.forget();
    }

    fn unlock(&self, state: &mut State, s: usize) {
        let number = state.sessions[s].op.number();
        if self.scenario.locked {
            self.ask(state, Ask::Release { session: s as u8, number });
        }
    }

    pub(super) fn next_operation(&self, state: &mut State, s: usize) {
        let op = &mut state.sessions[s].op;
        op.index += 1;
        op.attempt = 0;
        op.forget();
        if self.scenario.operations[s].len() <= op.index as usize {
            op.phase = Phase::Over;
        }
    }

    /// Asks the lock engine, and tells those whom it concerns.
    pub(super) fn ask(&self, state: &mut State, ask: Ask) {
        let (locks, Decided { granted, refused, .. }) = self.scenario.locks.step(state.locks, ask);
        state.locks = locks;
        for other in 0..SESSIONS {
            if state.sessions[other].op.phase != Phase::Waiting {
                continue;
            }
            if granted & 1 << other != 0 {
                state.sessions[other].op.phase = Phase::Locked;
            } else if refused & 1 << other != 0 {
                self.next_operation(state, other);
            }
        }
    }

    pub(super) fn holds_locks(&self, state: &State, s: usize) -> bool {
        self.scenario.locks.present(state.locks) & 1 << s != 0
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.scenario.initial.clone()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken != 0 {
            return;
        }
        let [crashes, fences, delays] = state.faults;
        for s in 0..SESSIONS {
            let session = &state.sessions[s];
            let done = session.op.phase == Phase::Over;
            if self.may_step(state, s) {
                actions.push(Action::Step(s));
                if session.op.phase == Phase::Ready && !state.marks.is_empty() {
                    actions.push(Action::AbortOthers(s));
                }
                if delays > 0 && state.late.len() < LATE_MAX {
                    actions.push(Action::Delay(s));
                }
            }
            if crashes > 0 && !session.crashed && !done && session.op.phase != Phase::Begin {
                actions.push(Action::Crash(s));
            }
            if session.standing == Standing::Live && (session.crashed || fences > 0 && !done) {
                actions.push(Action::Fence(s));
            }
            if self.can_recover(state, s) {
                actions.push(Action::Recover(s));
            }
            let sweeps = session.standing == Standing::Live && self.ghosts[0] && self.holds_locks(state, s);
            if sweeps {
                actions.push(Action::Sweep(s));
            }
            if self.scenario.impatient == Some(s) && session.op.phase == Phase::Waiting {
                actions.push(Action::Expire);
            }
        }
        actions.extend((0..state.late.len()).map(Action::Arrive));
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        if let Action::Step(s) = action {
            return self.step(state, s);
        }
        let mut next = state.clone();
        match action {
            Action::Step(_) => {}
            Action::AbortOthers(s) => return self.abort_others(&mut next, s).then_some(next),
            Action::Delay(s) => return self.delay(&mut next, s).then_some(next),
            Action::Crash(s) => self.crash(&mut next, s),
            Action::Fence(s) | Action::Recover(s) => self.recover(&mut next, s),
            Action::Sweep(s) => self.ask(&mut next, Ask::Drop(s as u8)),
            Action::Expire => {
                self.reach(Reached::Expiry);
                self.ask(&mut next, Ask::Expire);
            }
            Action::Arrive(index) => self.arrive(&mut next, index),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the tree is a tree and nothing is lost", |_, state: &State| {
                state.broken & broken::TREE == 0
            }),
            Property::always("no rename moves what another stands on", |_, state: &State| {
                state.broken & broken::EXCLUSION == 0
            }),
            Property::always("the dead change nothing after their recovery", |_, state: &State| {
                state.broken & broken::ZOMBIE == 0
            }),
            Property::always("a change is made whole or not at all", |_, state: &State| {
                state.broken & broken::HALF == 0
            }),
            Property::always(
                "nobody waits for ever and nothing stays locked",
                |model: &Self, state: &State| !model.is_stuck(state),
            ),
        ]
    }
}
