//! The commits inside the model: at once, on engines with transactions, and by an intent, on engines that change one
//! document at a time. Owns what a change consists of, and the marks.
//!
//! What is hard: a writer meets the marks of others in every state. What they mean, and what becomes of slots, is decided
//! by [`lockwood::store::intents::decide`]; here is only who asks when.

use lockwood::store::intents::decide::{self, Verdict};

use super::protocol::Protocol;
use super::reached::Reached;
use super::scenario::{Engine, Manner, Spec};
use super::state::{Change, ENTRIES, Key, Keys, MarkOf, Phase, Place, SESSIONS, Standing, State};
use super::state::{bit, broken, entry_key, keys, node_key};

/// The slot's states as the model numbers them.
const COMMITTED: u8 = 2;
const SEALED: u8 = 4;

impl Protocol {
    /// Everything that the session's operation changes, in the order of the keys.
    fn plan(&self, state: &State, s: usize, spec: Spec) -> Vec<(Key, Change)> {
        let op = &state.sessions[s].op;
        let (moved, victim) = (op.moved, op.victim);
        let mut plan: Vec<(Key, Change)> = Vec::with_capacity(6);
        match spec {
            Spec::Rename { from, to, manner } => {
                let (source, target) = (entry_key(from.0, from.1), entry_key(to.0, to.1));
                let exchange = manner == Manner::Exchange;
                plan.push((target, Change::Entry(moved)));
                plan.push((source, Change::Entry(if exchange { victim } else { 0 })));
                plan.push((node_key(moved), Change::Place(Place::At(target))));
                if victim != 0 {
                    let place = if exchange { Place::At(source) } else { Place::Gone };
                    plan.push((node_key(victim), Change::Place(place)));
                }
                plan.extend([(node_key(from.0), Change::Count), (node_key(to.0), Change::Count)]);
            }
            Spec::Make { at: (directory, name), node } => {
                let key = entry_key(directory, name);
                plan.push((key, Change::Entry(node)));
                plan.push((node_key(node), Change::Place(Place::At(key))));
                plan.push((node_key(directory), Change::Count));
            }
            Spec::Rmdir { at: (directory, name) } => {
                plan.push((entry_key(directory, name), Change::Entry(0)));
                plan.push((node_key(moved), Change::Place(Place::Gone)));
                plan.push((node_key(directory), Change::Count));
            }
        }
        plan.sort_by_key(|(key, change)| (*key, *change == Change::Count));
        plan.dedup_by_key(|(key, _)| *key);
        plan
    }

    /// The key that must be absent, if there is one.
    fn absent(state: &State, s: usize, spec: Spec) -> Keys {
        match spec {
            Spec::Rename { to, .. } if state.sessions[s].op.victim == 0 => bit(entry_key(to.0, to.1)),
            Spec::Make { at, .. } => bit(entry_key(at.0, at.1)),
            _ => 0,
        }
    }

    /// Whether those of the operation's checks that are among `of` hold, and what it merges into is there.
    fn checks_hold(&self, state: &State, s: usize, spec: Spec, of: Keys) -> bool {
        let op = &state.sessions[s].op;
        let absent = Self::absent(state, s, spec);
        let fresh = op.stale & op.rests_on & of & !absent == 0;
        let free = keys(op.rests_on & absent & of).all(|key| state.entry(key) == 0);
        let there = |node: u8| state.exists(node);
        fresh
            && free
            && match spec {
                Spec::Rename { from, to, .. } => there(from.0) && there(to.0) && there(op.moved),
                Spec::Make { at, .. } => there(at.0),
                Spec::Rmdir { at } => there(at.0),
            }
    }

    /// Commits on an engine with transactions: its checks, the session's own among them, and its writes at one instant.
    pub(super) fn commit_at_once(&self, state: &mut State, s: usize, spec: Spec) {
        if state.sessions[s].standing != Standing::Live {
            self.reach(Reached::DeadRefused);
            return self.stop(state, s);
        }
        if !self.checks_hold(state, s, spec, Keys::MAX) {
            self.reach(Reached::Conflict);
            return self.start_over(state, s);
        }
        let plan = self.plan(state, s, spec);
        self.judge_exclusion(state, s, &plan);
        let mut written = 0;
        for (key, change) in plan {
            state.tree.set(key, change);
            written |= bit(key);
        }
        state.written(written);
        self.committed(state, s);
    }

    fn committed(&self, state: &mut State, s: usize) {
        self.reach(Reached::Committed);
        if state.sessions[s].standing == Standing::Recovered {
            state.broken |= broken::ZOMBIE;
        }
        if !state.seen().is_sound() {
            state.broken |= broken::TREE;
        }
        let op = &mut state.sessions[s].op;
        (op.stands_on, op.rests_on, op.stale, op.overwritten, op.done) = (0, 0, 0, 0, 0);
        (op.moved, op.victim) = (0, 0);
        op.phase = Phase::Releasing;
    }

    /// The session has learned that it is dead: it ends what it does and begins nothing more.
    fn stop(&self, state: &mut State, s: usize) {
        state.sessions[s].stopped = true;
        state.sessions[s].op.phase = Phase::Releasing;
    }

    /// Exclusion as docs/locking.md promises it, stated without lock sets: a commit that moves or replaces what stands
    /// under an entry finds no other rename, between its look under the locks and its commit, whose paths lead through
    /// that entry.
    fn judge_exclusion(&self, state: &mut State, s: usize, plan: &[(Key, Change)]) {
        let is_rename = |t: usize| matches!(self.spec(state, t), Some(Spec::Rename { .. }));
        if !self.scenario.locked || !is_rename(s) {
            return;
        }
        let entries = plan.iter().filter(|(key, _)| usize::from(*key) < ENTRIES);
        let moved = entries.fold(0, |set, (key, _)| set | bit(*key));
        for t in (0..SESSIONS).filter(|t| *t != s && is_rename(*t)) {
            let other = &state.sessions[t];
            let between =
                matches!(other.op.phase, Phase::Ready | Phase::InDoubt | Phase::Marking | Phase::Validated);
            if between && !self.is_harmless(state, t) && other.op.stands_on & moved != 0 {
                state.broken |= broken::EXCLUSION;
                return;
            }
        }
    }

    /// Whether a session can change nothing any more: it is fenced, and if its commits are intents, its slot is sealed.
    fn is_harmless(&self, state: &State, s: usize) -> bool {
        let session = &state.sessions[s];
        match self.scenario.engine {
            Engine::Transactional => session.standing != Standing::Live,
            Engine::Weak => session.standing >= Standing::Settled || session.slot.state == SEALED,
        }
    }

    /// One step of a commit by an intent. Returns whether there is one.
    pub(super) fn step_of_intent(&self, state: &mut State, s: usize, spec: Spec) -> bool {
        match state.sessions[s].op.phase {
            Phase::Ready => return self.begin_intent(state, s, spec),
            Phase::Marking => match self.next_mark(state, s, spec) {
                Some(mark) => self.set_mark(state, s, spec, mark),
                None if self.validated(state, s, spec) => state.sessions[s].op.phase = Phase::Validated,
                None => {
                    self.reach(Reached::Conflict);
                    self.abort_own(state, s);
                }
            },
            Phase::Validated => self.decide(state, s),
            Phase::Cleaning => match self.own_mark(state, s) {
                Some(mark) => self.clean(state, mark),
                None => state.sessions[s].op.phase = Phase::Releasing,
            },
            Phase::Aborting => match self.own_mark(state, s) {
                Some(mark) => self.clean(state, mark),
                None => self.start_over(state, s),
            },
            _ => return false,
        }
        true
    }

    /// Whether somebody else's intent that is not decided stands at one of these keys.
    fn undecided(&self, state: &State, s: usize, of: Keys) -> bool {
        let foreign = |mark: &&MarkOf| usize::from(mark.session) != s && of & bit(mark.key) != 0;
        state.marks.iter().filter(foreign).any(|mark| state.verdict(*mark) == Verdict::Undecided)
    }

    fn needed(&self, state: &State, s: usize, spec: Spec) -> Keys {
        let plan = self.plan(state, s, spec);
        plan.iter().fold(state.sessions[s].op.rests_on, |set, (key, _)| set | bit(*key))
    }

    /// Reads everything, checks it, and makes the slot pending.
    fn begin_intent(&self, state: &mut State, s: usize, spec: Spec) -> bool {
        if self.undecided(state, s, self.needed(state, s, spec)) {
            return false; // It waits, or aborts the others.
        }
        if !self.checks_hold(state, s, spec, Keys::MAX) {
            self.reach(Reached::Conflict);
            self.start_over(state, s);
            return true;
        }
        let mut marked = self.plan(state, s, spec).iter().fold(0, |set, (key, _)| set | bit(*key));
        if !self.scenario.locked {
            marked |= state.sessions[s].op.rests_on;
        }
        let session = &mut state.sessions[s];
        let Some(slot) = decide::begin(&session.slot.slot(0), []) else {
            self.reach(Reached::DeadRefused);
            self.stop(state, s);
            return true;
        };
        session.slot.become_like(&slot);
        session.slot.marked = marked;
        (session.op.overwritten, session.op.done) = (0, 0);
        session.op.phase = Phase::Marking;
        true
    }

    /// The next mark to be set.
    pub(super) fn next_mark(&self, state: &State, s: usize, spec: Spec) -> Option<MarkOf> {
        let session = &state.sessions[s];
        let key = keys(session.slot.marked & !session.op.done).next()?;
        let plan = self.plan(state, s, spec);
        let change = plan.iter().find(|(at, _)| *at == key).map_or(Change::Keep, |(_, change)| *change);
        Some(MarkOf { key, session: s as u8, number: session.slot.number, change, known: true })
    }

    /// Sets a mark by compare-and-set, or aborts.
    fn set_mark(&self, state: &mut State, s: usize, spec: Spec, mark: MarkOf) {
        let own = |there: MarkOf| (there.session, there.number) == (mark.session, mark.number);
        let arrived = state.mark(mark.key).is_some_and(own);
        let overwritten = state.sessions[s].op.overwritten & bit(mark.key) != 0;
        let is_create = Self::absent(state, s, spec) & bit(mark.key) != 0;
        if !arrived && overwritten && !(is_create && Self::no_cell(state, mark.key)) {
            self.reach(Reached::MarkConflict);
            return self.abort_own(state, s);
        }
        self.put_mark(state, mark);
        let op = &mut state.sessions[s].op;
        op.done |= bit(mark.key);
        op.overwritten &= !bit(mark.key);
    }

    fn no_cell(state: &State, key: Key) -> bool {
        usize::from(key) < ENTRIES && state.tree.entry[key as usize] == 0 && state.mark(key).is_none()
    }

    /// Puts a mark where a decided one, or none, stood; what that one said becomes the document.
    fn put_mark(&self, state: &mut State, mark: MarkOf) {
        let before = state.seen();
        if let Some(there) = state.mark(mark.key)
            && state.verdict(there) == Verdict::After
        {
            state.tree.set(there.key, there.change);
        }
        state.marks.retain(|there| there.key != mark.key);
        let at = state.marks.partition_point(|there| there.key < mark.key);
        state.marks.insert(at, mark);
        state.touched(bit(mark.key));
        if state.seen() != before {
            state.broken |= broken::HALF;
        }
    }

    /// Takes a mark away, forward or back as its slot says.
    pub(super) fn clean(&self, state: &mut State, mark: MarkOf) {
        let before = state.seen();
        if state.verdict(mark) == Verdict::After {
            state.tree.set(mark.key, mark.change);
        }
        state.marks.retain(|there| there.key != mark.key);
        state.touched(bit(mark.key));
        if state.seen() != before {
            state.broken |= broken::HALF;
        }
    }

    fn own_mark(&self, state: &State, s: usize) -> Option<MarkOf> {
        let number = state.sessions[s].slot.number;
        state.marks.iter().find(|mark| (usize::from(mark.session), mark.number) == (s, number)).copied()
    }

    /// What is checked and not written, when all that is written has been marked.
    fn validated(&self, state: &State, s: usize, spec: Spec) -> bool {
        let unwritten = state.sessions[s].op.rests_on & !state.sessions[s].slot.marked;
        self.checks_hold(state, s, spec, unwritten) && !self.undecided(state, s, unwritten)
    }

    fn abort_own(&self, state: &mut State, s: usize) {
        let slot = state.sessions[s].slot.slot(0);
        if let Some(aborted) = decide::abort(&slot) {
            state.sessions[s].slot.become_like(&aborted);
        }
        state.sessions[s].op.phase = Phase::Aborting;
    }

    /// Aborts the intents of others that are not decided and stand in the way.
    pub(super) fn abort_others(&self, state: &mut State, s: usize) -> bool {
        let Some(spec) = self.spec(state, s).filter(|_| self.scenario.engine == Engine::Weak) else {
            return false;
        };
        let needed = self.needed(state, s, spec);
        let foreign = |mark: &&MarkOf| usize::from(mark.session) != s && needed & bit(mark.key) != 0;
        let undecided = |mark: &&MarkOf| state.verdict(**mark) == Verdict::Undecided;
        let Some(mark) = state.marks.iter().filter(foreign).find(undecided).copied() else { return false };
        let slot = &mut state.sessions[usize::from(mark.session)].slot;
        let Some(aborted) = decide::abort(&slot.slot(0)) else { return false };
        slot.become_like(&aborted);
        self.reach(Reached::AbortedByOther);
        true
    }

    /// The owner commits its intent, or finds out what has become of it.
    fn decide(&self, state: &mut State, s: usize) {
        let slot = state.sessions[s].slot;
        if slot.state == COMMITTED {
            state.sessions[s].op.phase = Phase::Cleaning; // The message that was under way has arrived.
        } else if self.commit_slot(state, s) {
            state.sessions[s].op.phase = Phase::Cleaning;
        } else if decide::begin(&slot.slot(0), []).is_some() {
            state.sessions[s].op.phase = Phase::Aborting;
        } else {
            self.reach(Reached::DeadRefused);
            self.stop(state, s);
        }
    }

    /// The moment of change: one compare-and-set of the slot.
    fn commit_slot(&self, state: &mut State, s: usize) -> bool {
        let of = state.sessions[s].slot;
        let Some(committed) = decide::commit(&of.slot(Keys::MAX), &of.versions()) else { return false };
        let Some(spec) = self.spec(state, s) else { return false };
        let plan = self.plan(state, s, spec);
        let mut expected = state.seen();
        for (key, change) in &plan {
            expected.set(*key, *change);
        }
        self.judge_exclusion(state, s, &plan);
        state.sessions[s].slot.become_like(&committed);
        if state.seen() != expected {
            state.broken |= broken::HALF;
        }
        if state.sessions[s].standing != Standing::Live && state.sessions[s].standing != Standing::Fenced {
            state.broken |= broken::ZOMBIE;
        }
        for session in &mut state.sessions {
            let written = plan.iter().fold(0, |set, (key, _)| set | bit(*key));
            session.op.stale |= written & session.op.rests_on;
        }
        self.committed(state, s);
        state.sessions[s].op.phase = Phase::Validated;
        true
    }

    pub(super) fn decide_late(&self, state: &mut State, s: usize, number: u8) {
        if state.sessions[s].slot.number != number || !self.commit_slot(state, s) {
            if state.sessions[s].standing >= Standing::Settled {
                self.reach(Reached::DeadRefused);
            }
            return;
        }
        self.reach(Reached::LateCommit);
    }

    /// A mark that was under way arrives: it counts only if the cell is still the one that it was meant for.
    pub(super) fn mark_late(&self, state: &mut State, mark: MarkOf, overtaken: bool) {
        let creates = matches!(mark.change, Change::Entry(node) if node != 0);
        if overtaken && !(creates && Self::no_cell(state, mark.key)) {
            return;
        }
        if state.verdict(mark) != Verdict::Undecided {
            self.reach(Reached::LateMark);
        }
        self.put_mark(state, mark);
    }
}
