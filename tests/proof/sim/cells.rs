//! The store that one simulated host sees: any request may be delayed, lost, answered to nobody, or carried out twice.

use std::sync::Arc;

use lockwood::document::Version;
use lockwood::store::cells::{
    Answers, Beside, CasError, Cell, CellKey, Cells, Change, Compared, Found, Listed, ListedCell,
    ScannedCell, StoredCell,
};
use lockwood::store::{Scan, StoreError};

use super::world::{Fate, Request};
use super::{Count, HostId, World};

/// The port as one host has it.
#[derive(Clone)]
pub(crate) struct SimCells {
    pub(crate) world: Arc<World>,
    pub(crate) host: HostId,
}

impl SimCells {
    /// Waits for the turn, and for the answer to a read.
    fn arrive(&self, what: &dyn std::fmt::Debug) -> Result<(), StoreError> {
        self.world.turn(self.host)?;
        self.world.count(Count::Reads);
        self.world.draw_read(self.host, what)
    }
}

/// What goes with the beginning of an intent.
fn along(changes: &[Change]) -> impl Iterator<Item = Count> {
    let is_of = |kind: fn(&CellKey) -> bool| changes.iter().any(|change| kind(&change.key));
    let begins = is_of(|key| matches!(key, CellKey::Slot(..)));
    let (locks, marks) =
        (is_of(|key| matches!(key, CellKey::Lock(_))), is_of(|key| matches!(key, CellKey::Document(_))));
    [
        (Count::TakenAlong, begins && locks),
        (Count::MarkedAtOnce, begins && marks),
        (Count::LockedAtOnce, begins && marks && locks),
    ]
    .into_iter()
    .filter_map(|(count, met)| met.then_some(count))
}

impl Cells for SimCells {
    fn read(&self, key: &CellKey) -> Result<Option<StoredCell>, StoreError> {
        self.arrive(key)?;
        let cell = self.world.cells.read(key)?;
        self.world.event(
            || format!("{} reads {key:?}: {}", self.world.who(), show(cell.as_ref())),
            |mix| {
                mix(cell.as_ref().map_or(0, |cell| cell.version.0));
            },
        );
        self.world.maybe_turn(self.host)?;
        Ok(cell)
    }

    fn read_many(&self, keys: &[CellKey]) -> Result<Vec<Option<StoredCell>>, StoreError> {
        self.arrive(&keys)?;
        let mut cells = Vec::with_capacity(keys.len());
        for key in keys {
            cells.push(self.world.cells.read(key)?);
            self.world.event(
                || format!("{} reads {key:?}: {}", self.world.who(), show(cells[cells.len() - 1].as_ref())),
                |mix| mix(cells.len() as u64),
            );
            self.world.maybe_turn(self.host)?;
        }
        Ok(cells)
    }

    /// In any order.
    fn cas_each(&self, changes: &[Change]) -> Answers {
        along(changes).for_each(|count| self.world.count(count));
        let first = if changes.len() < 2 { 0 } else { self.world.below(changes.len() as u64) as usize };
        let (last, start) = changes.split_at(first);
        let cas = |change: &Change| self.cas(&change.key, change.expected, change.cell.clone());
        let start: Vec<_> = start.iter().map(cas).collect();
        last.iter().map(cas).chain(start).collect()
    }

    /// In any order, and what is done beside it with the change or without.
    fn cas_and_read(
        &self,
        change: Change,
        read: &[CellKey],
        mut beside: Option<Beside<'_>>,
    ) -> (Result<Version, CasError>, Found) {
        if let Some(beside) = beside.take_if(|_| self.world.below(2) == 0) {
            let before = (self.world.below(2) == 0).then(|| self.read_many(read));
            let answer = self.cas_along(change, beside);
            return (answer, before.unwrap_or_else(|| self.read_many(read)));
        }
        let at = self.world.below(3);
        let mut do_at = |place: u64| {
            if let Some(beside) = beside.take_if(|_| place == at) {
                beside(&mut |changes| self.cas_each(changes));
            }
        };
        do_at(0);
        let before = (self.world.below(2) == 0).then(|| self.read_many(read));
        do_at(1);
        let answer = self.cas(&change.key, change.expected, change.cell);
        let found = before.unwrap_or_else(|| self.read_many(read));
        do_at(2);
        (answer, found)
    }

    fn cas_each_and_compare(&self, changes: &[Change], compared: &[Compared]) -> (Answers, bool) {
        let of_a_kind = |change: &Change| {
            compared.iter().any(|compared| match (&compared.key, &change.key) {
                (CellKey::Document(one), CellKey::Document(other)) => one.kind() == other.kind(),
                _ => false,
            })
        };
        along(changes).for_each(|count| self.world.count(count));
        // Those of other kinds may be made later than the others are compared, or earlier.
        let late = self.world.below(2) == 0;
        let mut answers: Vec<_> = changes.iter().map(|_| None).collect();
        let make = |answers: &mut Vec<Option<_>>, which: &dyn Fn(&Change) -> bool| {
            let first = self.world.below(changes.len().max(1) as u64) as usize;
            for at in (first..changes.len()).chain(0..first).filter(|at| which(&changes[*at])) {
                let change = &changes[at];
                answers[at] = Some(self.cas(&change.key, change.expected, change.cell.clone()));
            }
        };
        make(&mut answers, &|change| of_a_kind(change) || !late);
        let keys: Vec<_> = compared.iter().map(|compared| compared.key.clone()).collect();
        let equal = self.read_many(&keys).is_ok_and(|found| {
            found
                .iter()
                .zip(compared)
                .all(|(found, to)| found.as_ref().is_some_and(|cell| cell.version == to.at))
        });
        make(&mut answers, &|change| late && !of_a_kind(change));
        (answers.into_iter().flatten().collect(), equal)
    }

    fn scan(&self, scan: &Scan) -> Result<Vec<ScannedCell>, StoreError> {
        self.arrive(scan)?;
        let page = self.world.cells.scan(scan)?;
        self.world.event(
            || {
                let shown: Vec<_> =
                    page.iter().map(|(key, cell)| format!("{key} {}", show(cell.as_ref().ok()))).collect();
                format!("{} scans {:?}: {shown:?}", self.world.who(), scan.range)
            },
            |mix| page.iter().for_each(|(_, cell)| mix(version_of(cell))),
        );
        self.world.maybe_turn(self.host)?;
        Ok(page)
    }

    fn list(&self, what: Listed) -> Result<Vec<ListedCell>, StoreError> {
        self.arrive(&what)?;
        let listed = self.world.cells.list(what)?;
        self.world.event(
            || format!("{} lists {what:?}: {}", self.world.who(), listed.len()),
            |mix| listed.iter().for_each(|(_, cell)| mix(version_of(cell))),
        );
        Ok(listed)
    }

    fn cas(&self, key: &CellKey, expected: Option<Version>, cell: Option<Cell>) -> Result<Version, CasError> {
        self.world.turn(self.host)?;
        let request = Request::new(key.clone(), expected, cell);
        let fate = self.world.draw_fate(self.host);
        if matches!(fate, Fate::Duplicated | Fate::Late) {
            self.world.send_late(request.clone());
        }
        let answer = match fate {
            Fate::Done | Fate::Duplicated => self.world.apply(&request, false),
            Fate::Unanswered => {
                let _nobody_hears = self.world.apply(&request, false);
                Err(CasError::Unknown("the answer was lost".into()))
            }
            Fate::Late | Fate::Lost => {
                self.world.event(|| format!("{}: {request} is {fate:?}", self.world.who()), |mix| mix(1));
                Err(CasError::Unknown("no answer came".into()))
            }
        };
        if matches!(answer, Err(CasError::Unknown(_))) {
            self.world.count(Count::Unknown);
            self.world.time_out(self.host)?;
        }
        self.world.maybe_turn(self.host)?;
        answer
    }
}

/// A cell in a line of a trace.
pub(super) fn show(cell: Option<&StoredCell>) -> String {
    cell.map_or("nothing".into(), |stored| format!("@{} {}", stored.version.0, show_cell(&stored.cell)))
}

/// What was written, in a line of a trace.
pub(super) fn show_cell(cell: &Cell) -> String {
    match cell {
        Cell::Document(marked) => {
            let before = marked.before.as_ref().map(|stored| match &*stored.document {
                lockwood::document::Document::Node(node) => {
                    let children = node.directory().map_or(0, |directory| directory.children);
                    format!("v{} node({children})", stored.version.0)
                }
                lockwood::document::Document::Session(session) => {
                    format!("v{} {:?} beat {}", stored.version.0, session.state, session.heartbeat)
                }
                other => format!("v{} {other:?}", stored.version.0),
            });
            let mark = marked.mark.as_ref().map(|mark| {
                let change = match &mark.change {
                    lockwood::document::MarkChange::Put(_) => "put",
                    lockwood::document::MarkChange::Delete => "delete",
                    lockwood::document::MarkChange::Keep => "keep",
                };
                format!("{change} by {}.{}.{}", mark.intent.session, mark.intent.slot, mark.intent.number)
            });
            format!("{} [{}]", before.as_deref().unwrap_or("-"), mark.as_deref().unwrap_or(""))
        }
        Cell::Slot(slot) => {
            let marked = |marked: &lockwood::document::Marked| {
                format!("{}@{}", marked.key, marked.version.map_or(0, |version| version.0))
            };
            let marked: Vec<_> = slot.marked.iter().map(marked).collect();
            format!("slot {:?} {} {}", slot.state, slot.number, marked.join(" "))
        }
        Cell::Lock(lock) => {
            let claims = |claims: &[lockwood::document::LockClaim]| {
                claims
                    .iter()
                    .map(|c| format!("{}:{} {:?}", c.session, c.operation, c.mode))
                    .collect::<Vec<_>>()
            };
            format!("lock held {:?} wanted {:?}", claims(&lock.holders), claims(&lock.waiters))
        }
    }
}

/// Nothing is damaged here.
fn version_of(found: &Result<StoredCell, StoreError>) -> u64 {
    found.as_ref().map_or(0, |found| found.version.0)
}
