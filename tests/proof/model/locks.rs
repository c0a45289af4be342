//! The lock engine inside the model: the production decisions ([`lockwood::lock::decide::State`]), their states numbered.
//!
//! The decisions are a pure function, so each state needs to be kept once and each transition computed once; the model's
//! own state holds a number. Two states have one number exactly if they are equal.

use std::collections::HashMap;
use std::sync::Arc;

use lockwood::lock::decide::{Command, Event, Nanos, State};
use lockwood::lock::{LockId, LockSet, OpId, SessionId};
use parking_lot::RwLock;

use super::state::Path;

/// What an operation wants locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Wanted {
    /// Both ways, instead of one.
    pub(crate) exchange: bool,
    /// The source.
    pub(crate) from: Path,
    /// The destination.
    pub(crate) to: Path,
}

/// An event, without what follows from the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ask {
    /// The session's operation of this number wants its locks, and gives up when time passes if it is impatient.
    Acquire {
        /// The session.
        session: u8,
        /// Its operation.
        number: u8,
        /// Which locks.
        wanted: Wanted,
        /// Whether it has a deadline.
        impatient: bool,
    },
    /// The operation is done.
    Release {
        /// The session.
        session: u8,
        /// Its operation.
        number: u8,
    },
    /// Deadlines pass.
    Expire,
    /// The session is dead.
    Drop(u8),
}

/// What the engine decided, a bit a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Decided {
    /// Their operation holds its set.
    pub(crate) granted: u8,
    /// Their operation waits.
    pub(crate) waiting: u8,
    /// Their operation gave up, or was sent away.
    pub(crate) refused: u8,
}

#[derive(Default)]
struct Table {
    states: Vec<State>,
    numbers: HashMap<State, u32>,
    steps: HashMap<(u32, Ask), (u32, Decided)>,
    /// None: refused before anything is locked.
    sets: HashMap<Wanted, Option<Arc<LockSet>>>,
    /// For each state, a bit for each session that holds or waits, and how many operations do.
    present: Vec<u8>,
}

/// Every state of the lock engine that was met.
pub(crate) struct Locks {
    table: RwLock<Table>,
    names: Vec<String>,
}

/// The deadline of who has one: later than the time at which all else happens.
const DEADLINE: Nanos = Nanos(1);

impl Locks {
    /// A lock engine with nothing locked, which is number 0.
    pub(crate) fn new(names: Vec<String>) -> Self {
        let locks = Self { table: RwLock::default(), names };
        locks.number(State::default());
        locks
    }

    /// The lock set of an operation; none if it is refused.
    pub(crate) fn set(&self, wanted: Wanted) -> Option<Arc<LockSet>> {
        if let Some(found) = self.table.read().sets.get(&wanted) {
            return found.clone();
        }
        let (from, to) = (self.id(wanted.from), self.id(wanted.to));
        let set =
            if wanted.exchange { LockSet::for_exchange(&from, &to) } else { LockSet::for_rename(&from, &to) };
        let set = set.ok().map(Arc::new);
        self.table.write().sets.insert(wanted, set.clone());
        set
    }

    /// Applies an event to a state. Returns the number of the next one.
    pub(crate) fn step(&self, state: u32, ask: Ask) -> (u32, Decided) {
        if let Some(found) = self.table.read().steps.get(&(state, ask)) {
            return *found;
        }
        let mut next = self.table.read().states[state as usize].clone();
        let mut commands = Vec::new();
        let now = if ask == Ask::Expire { DEADLINE } else { Nanos(0) };
        next.apply(self.event(ask), now, &mut commands);
        let mut decided = Decided::default();
        for command in commands {
            match command {
                Command::Granted(op) => decided.granted |= 1 << op.session.0,
                Command::Waiting { op, .. } => decided.waiting |= 1 << op.session.0,
                Command::Expired { op, .. } | Command::Dropped(op) | Command::Reused(op) => {
                    decided.refused |= 1 << op.session.0;
                }
                Command::Cancelled(_) | Command::Closed(_) => {}
            }
        }
        let outcome = (self.number(next), decided);
        self.table.write().steps.insert((state, ask), outcome);
        outcome
    }

    /// A bit for each session that holds or waits for a lock.
    pub(crate) fn present(&self, state: u32) -> u8 {
        self.table.read().present[state as usize]
    }

    /// How many states of the lock engine were met.
    pub(crate) fn count(&self) -> usize {
        self.table.read().states.len()
    }

    fn event(&self, ask: Ask) -> Event {
        let op = |session: u8, number: u8| OpId { session: SessionId(session.into()), number: number.into() };
        match ask {
            Ask::Acquire { session, number, wanted, impatient } => Event::Acquire {
                op: op(session, number),
                set: (*self.set(wanted).expect("asked for by who has a set")).clone(),
                operation: Arc::from(""),
                deadline: if impatient { DEADLINE } else { Nanos(u64::MAX) },
            },
            Ask::Release { session, number } => Event::Release { op: op(session, number) },
            Ask::Expire => Event::Expire,
            Ask::Drop(session) => Event::DropSession { session: SessionId(session.into()) },
        }
    }

    fn number(&self, state: State) -> u32 {
        let mut table = self.table.write();
        if let Some(known) = table.numbers.get(&state) {
            return *known;
        }
        let number = table.states.len() as u32;
        let present = state.ops().fold(0, |bits, (op, _)| bits | 1 << op.session.0);
        table.present.push(present);
        table.states.push(state.clone());
        table.numbers.insert(state, number);
        number
    }

    fn id(&self, path: Path) -> LockId {
        let indices = (0..8).map(|at| path >> (4 * at) & 15).take_while(|index| *index != 0);
        let names = indices.map(|index| self.names[index as usize - 1].as_bytes());
        LockId::from_components(names).expect("names of the scenario")
    }
}
