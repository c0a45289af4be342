//! What stands in `intents/`: the changes of several documents that are not decided yet, on engines that need intents for
//! them.

use serde_json::{Value, json};

use crate::document::{SessionId, Slot, SlotState};
use crate::namespace::{Namespace, Result};
use crate::store::cells::{Cell, CellKey, Listed};

/// One of a session's intents, by its number.
pub(super) type Which = (SessionId, u16);

/// All of them.
///
/// # Errors
/// The store's.
pub(super) fn under_way(namespace: &Namespace) -> Result<Vec<Which>> {
    let Some(intents) = namespace.store().intents() else { return Ok(Vec::new()) };
    let listed = intents.cells().list(Listed::Slots)?;
    let found = listed.into_iter().filter_map(|(key, found)| match key {
        CellKey::Slot(session, number) => undecided(&found.ok()?.cell).map(|_| (session, number)),
        _ => None,
    });
    Ok(found.collect())
}

/// This one, if it is under way.
///
/// # Errors
/// The store's.
pub(super) fn one(namespace: &Namespace, (session, number): Which) -> Result<Option<Slot>> {
    let Some(intents) = namespace.store().intents() else { return Ok(None) };
    let found = intents.cells().read(&CellKey::Slot(session, number))?;
    Ok(found.and_then(|found| undecided(&found.cell).cloned()))
}

/// One that has marked documents, or is about to. A decided one may stand for long: it speaks for its marks until its slot
/// is needed.
fn undecided(cell: &Cell) -> Option<&Slot> {
    match cell {
        Cell::Slot(slot) if slot.state == SlotState::Pending && !slot.marked.is_empty() => Some(slot),
        _ => None,
    }
}

/// The name of its file, as OpenSearch has it as an id.
pub(super) fn file_name((session, number): Which) -> String {
    format!("{session}:{number}")
}

/// Which one a file is.
pub(super) fn parse(name: &str) -> Option<Which> {
    let (session, number) = name.split_once(':')?;
    Some((session.parse().ok()?, number.parse().ok()?)).filter(|which| file_name(*which) == name)
}

/// What its file shows; none if it is decided by now.
///
/// # Errors
/// The store's.
pub(super) fn text(namespace: &Namespace, which: Which) -> Result<Option<Value>> {
    let (session, number) = which;
    Ok(one(namespace, which)?.map(|slot| {
        let marked: Vec<_> = slot.marked.iter().map(|marked| marked.key.to_string()).collect();
        json!({ "session": session, "intent": number, "use": slot.number, "marked": marked })
    }))
}
