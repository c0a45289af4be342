//! Counters that grow by one at each change: a test of the simulator, with code of its own.
//!
//! Sound clients change what they have read at the version that they read; unsound ones read the version again first, and
//! so lose updates. If the simulator does not find that, it finds nothing.

use std::sync::Arc;
use std::time::Duration;

use lockwood::ambient::Clock;
use lockwood::document::{SessionId, Slot, SlotState};
use lockwood::store::cells::memory::MemoryCells;
use lockwood::store::cells::{CasError, Cell, CellKey, Cells};
use parking_lot::Mutex;

use super::Outcome;
use crate::rng::Rng;
use crate::sim::{Actors, Change, Count, Counts, Faults, Judge, SimCells, SimClock, World, run};

pub(crate) const MUST_SEE: &[Count] = &[
    Count::Unknown,
    Count::LateLandings,
    Count::LateRefused,
    Count::CasConflicts,
    Count::FailedReads,
    Count::Pauses,
    Count::ClockJumps,
    Count::Crashes,
];

/// How clients change a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Sound,
    LosesUpdates,
}

struct EachByOne;

impl Judge for EachByOne {
    fn changed(&mut self, change: &Change<'_>, _: &MemoryCells) -> Result<(), String> {
        let number = |cell: Option<&Cell>| match cell {
            Some(Cell::Slot(slot)) => slot.number,
            _ => 0,
        };
        let before = number(change.before.map(|stored| &*stored.cell));
        let after = number(change.request.cell.as_ref());
        if after == before + 1 { Ok(()) } else { Err(format!("the counter went from {before} to {after}")) }
    }

    fn count(&self, _: &mut Counts) {}
}

pub(crate) fn simulate(mut rng: Rng, trace: bool, manner: Manner) -> Outcome {
    const LEASE_NS: u64 = 1_000_000_000;
    let faults = Faults::draw(&mut rng, LEASE_NS);
    let world = World::new(rng, 100, 3, Arc::new(Mutex::new(EachByOne)), trace);
    world.begin(faults);
    let mut actors = Actors::default();
    for host in 0..3 {
        let cells = SimCells { world: Arc::clone(&world), host };
        let clock = SimClock { world: Arc::clone(&world), host };
        actors.add(host, "client", move || {
            for round in 0..6 {
                increment(&cells, &CellKey::Slot(SessionId(1), round % 2), manner);
                clock.sleep(Duration::from_millis(cells.world.below(3)));
            }
        });
    }
    let violation = run(&world, actors).err();
    Outcome { digest: world.digest(), counts: world.counts(), violation, trace: world.take_trace() }
}

/// Adds one, unless somebody else does meanwhile.
fn increment(cells: &SimCells, key: &CellKey, manner: Manner) {
    let Ok(mut read) = cells.read(key) else { return };
    let number = match read.as_ref().map(|stored| &*stored.cell) {
        Some(Cell::Slot(slot)) => slot.number,
        _ => 0,
    };
    if manner == Manner::LosesUpdates {
        let Ok(again) = cells.read(key) else { return };
        read = again;
    }
    let next = Cell::Slot(Slot { number: number + 1, state: SlotState::Free, marked: Vec::new() });
    match cells.cas(key, read.map(|stored| stored.version), Some(next)) {
        Ok(_) | Err(CasError::Conflict | CasError::Unknown(_) | CasError::Store(_)) => {}
    }
}
