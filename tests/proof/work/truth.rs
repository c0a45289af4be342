//! What is true: the judge of a store that changes several documents at one instant.
//!
//! Shares no decision with what it judges. It takes one statement from the protocol: a change of several documents takes
//! effect at the instant at which its slot becomes committed. From it and from what clients say that they ask for
//! follows what every document is at every instant, and all that is demanded here:
//! 1. At that instant every check of the commit holds, and it takes effect once at most.
//! 2. What it puts is what its writes make of what was there before: nothing is lost.
//! 3. A cell never says anything else than what is true, whoever writes it.
//! 4. A read returns what was true at some instant between its call and its return.
//! 5. A commit that was answered took effect; one that was refused did not and never will.
//! 6. Nothing of a session takes effect after it has been settled.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockwood::document::{
    Document, IntentId, Key, MarkChange, SessionId, SessionState, Slot, SlotState, Stored, Version,
};
use lockwood::store::cells::memory::MemoryCells;
use lockwood::store::cells::{Cell, CellKey, Cells, MarkedDocument, StoredCell};
use lockwood::store::{Commit, CommitError, StoreError};

use super::life::Beating;
use crate::sim::{Change, Count, Counts};

/// An operation of an actor.
pub(crate) type Asked = (usize, u64);

/// What is true now, what was before, and what is asked for.
#[derive(Default)]
pub(crate) struct Truth {
    /// How many commits have taken effect.
    clock: u64,
    /// For each document, what it was from when on.
    history: BTreeMap<Key, Vec<(u64, Option<Stored>)>>,
    commits: BTreeMap<Asked, Asking>,
    sessions: BTreeMap<SessionId, SessionState>,
    settled: BTreeSet<SessionId>,
    beating: Beating,
    zombies: u64,
    aborts: u64,
    fences: u64,
    recoveries: u64,
    refused: u64,
    unknown: u64,
}

struct Asking {
    session: SessionId,
    commit: Commit,
    committed: bool,
    refused: bool,
}

impl Truth {
    /// How many commits have taken effect: the instant at which a read begins.
    pub(crate) fn clock(&self) -> u64 {
        self.clock
    }

    /// What a document is now.
    pub(crate) fn current(&self, key: &Key) -> Option<&Stored> {
        self.history.get(key).and_then(|values| values.last()).and_then(|(_, value)| value.as_ref())
    }

    /// Every document that there is or was.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.history.keys()
    }

    /// Every document that there is.
    pub(crate) fn documents(&self) -> impl Iterator<Item = (&Key, &Stored)> {
        self.keys().filter_map(|key| Some((key, self.current(key)?)))
    }

    /// A session is about to ask for a commit.
    pub(crate) fn asks(&mut self, asked: Asked, session: SessionId, commit: Commit) {
        let asking = Asking { session, commit, committed: false, refused: false };
        self.commits.insert(asked, asking);
    }

    /// A commit was answered.
    pub(crate) fn answered(
        &mut self,
        asked: Asked,
        answer: &Result<Version, CommitError>,
    ) -> Result<(), String> {
        let asking = self.commits.get_mut(&asked).ok_or("an answer to nobody")?;
        match answer {
            Ok(_) if !asking.committed => Err(format!("{:?} was answered and is not made", asking.commit)),
            Ok(_) => Ok(()),
            Err(CommitError::Store(StoreError::Unknown(_) | StoreError::Fenced | StoreError::Stopped(_))) => {
                self.unknown += 1;
                Ok(())
            }
            Err(error) if asking.committed => {
                Err(format!("{:?} is made and was refused: {error}", asking.commit))
            }
            Err(error) => {
                asking.refused = true;
                self.refused += u64::from(matches!(error, CommitError::Conflict(_)));
                Ok(())
            }
        }
    }

    /// The sessions that nobody may declare dead.
    pub(crate) fn beating(&self) -> Beating {
        Arc::clone(&self.beating)
    }

    /// A read that began at `from` returned `seen`.
    pub(crate) fn saw(&self, key: &Key, from: u64, seen: Option<&Stored>) -> Result<(), String> {
        static NEVER: Vec<(u64, Option<Stored>)> = Vec::new();
        let values = self.history.get(key).unwrap_or(&NEVER);
        let first = values.partition_point(|(since, _)| *since <= from);
        let nothing_yet = first == 0 && seen.is_none();
        let possible = &values[first.saturating_sub(1)..];
        if nothing_yet || possible.iter().any(|(_, value)| value.as_ref() == seen) {
            return Ok(());
        }
        let now = self.clock;
        Err(format!("read {key} as {seen:?}, which it was not between {from} and {now}: {possible:?}"))
    }

    /// A settling of a session has returned.
    pub(crate) fn is_settled(&mut self, session: SessionId) {
        self.settled.insert(session);
    }

    /// Whether nothing of a session can take effect any more, whatever late requests make of its documents.
    pub(crate) fn was_settled(&self, session: SessionId) -> bool {
        self.settled.contains(&session)
    }

    /// How a session stands in its document; none if there is no such document, or never was.
    pub(crate) fn session(&self, session: SessionId) -> Option<SessionState> {
        self.sessions.get(&session).copied()
    }

    /// Adds a document that is there from the beginning.
    pub(crate) fn begin(&mut self, key: Key, stored: Stored) {
        self.history.entry(key).or_default().push((0, Some(stored)));
    }

    /// Looks at the change of a cell.
    pub(crate) fn changed(&mut self, change: &Change<'_>, cells: &MemoryCells) -> Result<(), String> {
        let asked = (change.request.actor.unwrap_or(usize::MAX), change.request.operation);
        let of_the_tree =
            matches!(&change.request.key, CellKey::Document(key) if !matches!(key, Key::Session(_)));
        if let Some(asking) = self.commits.get(&asked).filter(|_| of_the_tree) {
            let state = self.sessions.get(&asking.session);
            let dead = matches!(state, Some(SessionState::Fenced | SessionState::Recovered));
            self.zombies += u64::from(dead || self.settled.contains(&asking.session));
        }
        match (&change.request.key, &change.request.cell) {
            (CellKey::Slot(session, index), Some(Cell::Slot(slot))) => {
                self.slot_changed(asked, *session, *index, slot, change.before, cells)
            }
            (CellKey::Document(Key::Session(session)), cell) => self.session_changed(*session, cell.as_ref()),
            (CellKey::Document(key), cell) => self.cell_changed(key, cell.as_ref()),
            _ => Ok(()),
        }
    }

    fn slot_changed(
        &mut self,
        asked: Asked,
        session: SessionId,
        index: u16,
        slot: &Slot,
        before: Option<&StoredCell>,
        cells: &MemoryCells,
    ) -> Result<(), String> {
        let before = match before.map(|stored| &*stored.cell) {
            Some(Cell::Slot(slot)) => Some(slot),
            _ => None,
        };
        if before == Some(slot) {
            return Ok(()); // Written once more on top of itself, since nobody was answered.
        }
        let was = before.map(|slot| slot.state);
        match slot.state {
            SlotState::Aborted => self.aborts += 1,
            SlotState::Committed if was == Some(SlotState::Pending) => {
                let intent = IntentId { session, slot: index, number: slot.number };
                return self.take_effect(asked, intent, slot, cells);
            }
            _ => {}
        }
        let illegal = match (was, slot.state) {
            (Some(SlotState::Sealed), _) => true,
            (Some(SlotState::Committed | SlotState::Aborted), SlotState::Pending) => false,
            (Some(SlotState::Committed), state) => state != SlotState::Sealed,
            (_, SlotState::Committed) => true,
            _ => false,
        };
        if illegal { Err(format!("slot {session}.{index} went from {before:?} to {slot:?}")) } else { Ok(()) }
    }

    /// The instant of a change.
    fn take_effect(
        &mut self,
        asked: Asked,
        intent: IntentId,
        slot: &Slot,
        cells: &MemoryCells,
    ) -> Result<(), String> {
        let asking = self.commits.get(&asked).ok_or("a commit that nobody asked for")?;
        if asking.session != intent.session {
            return Err(format!("{intent:?} was committed by session {}", asking.session));
        }
        if asking.committed || asking.refused {
            let how = if asking.refused { "after it was refused" } else { "twice" };
            return Err(format!("{:?} takes effect {how}", asking.commit));
        }
        if self.settled.contains(&intent.session) {
            return Err(format!("{intent:?} takes effect after its session was settled"));
        }
        for check in &asking.commit.checks {
            let current = self.current(check.key());
            if !check.holds(current) {
                return Err(format!("{intent:?} is committed although {check:?} does not hold: {current:?}"));
            }
        }
        let mut after = Vec::new();
        for write in &asking.commit.writes {
            let key = write.key();
            let current = self.current(key);
            let wanted =
                write.apply(current).map_err(|error| format!("{intent:?} writes {write:?}: {error}"))?;
            let (version, marked) = marked_by(cells, key, intent, slot)?;
            if marked.before.as_ref() != current {
                return Err(format!("{intent:?} changed {key} from {:?}; it was {current:?}", marked.before));
            }
            match (marked.mark.map(|mark| mark.change), &wanted) {
                (Some(MarkChange::Put(put)), Some(document)) if *put == *document => {}
                (Some(MarkChange::Delete), None) => {}
                (change, _) => return Err(format!("{intent:?} leaves {change:?} at {key}, not {wanted:?}")),
            }
            after.push((key.clone(), wanted.map(|document| Stored { version, document: document.into() })));
        }
        self.clock += 1;
        for (key, value) in after {
            self.history.entry(key).or_default().push((self.clock, value));
        }
        if let Some(asking) = self.commits.get_mut(&asked) {
            asking.committed = true;
        }
        Ok(())
    }

    /// Whatever is written to a cell says what is true: a decided change is there, an undecided one beside it.
    fn cell_changed(&self, key: &Key, cell: Option<&Cell>) -> Result<(), String> {
        let says = match cell {
            None => None,
            Some(Cell::Document(MarkedDocument { before, .. })) => before.as_ref(),
            Some(other) => return Err(format!("{key} became {other:?}")),
        };
        let current = self.current(key);
        if says == current { Ok(()) } else { Err(format!("{key} is made {says:?}; it is {current:?}")) }
    }

    fn session_changed(&mut self, session: SessionId, cell: Option<&Cell>) -> Result<(), String> {
        let state = match cell {
            Some(Cell::Document(MarkedDocument { before: Some(stored), .. })) => match &*stored.document {
                Document::Session(session) => Some(session.state),
                _ => None,
            },
            _ => None,
        };
        let was = match state {
            Some(state) => self.sessions.insert(session, state),
            None => self.sessions.remove(&session),
        };
        if was != state {
            self.fences += u64::from(state == Some(SessionState::Fenced));
            self.recoveries += u64::from(state == Some(SessionState::Recovered));
        }
        if state == Some(SessionState::Recovered) {
            self.settled.insert(session);
        }
        if was != state && state == Some(SessionState::Fenced) && self.beating.lock().contains(&session) {
            return Err(format!("session {session} beats, nothing goes wrong, and it is declared dead"));
        }
        Ok(())
    }

    /// Counts what has been seen.
    pub(crate) fn count(&self, counts: &mut Counts) {
        counts.add_many(Count::Commits, self.clock);
        counts.add_many(Count::CommitConflicts, self.refused);
        counts.add_many(Count::UnknownCommits, self.unknown);
        counts.add_many(Count::Aborts, self.aborts);
        counts.add_many(Count::ZombieRequests, self.zombies);
        counts.add_many(Count::Fences, self.fences);
        counts.add_many(Count::Recoveries, self.recoveries);
    }
}

/// The mark of an intent, which its slot must list under the version of its cell.
fn marked_by(
    cells: &MemoryCells,
    key: &Key,
    intent: IntentId,
    slot: &Slot,
) -> Result<(Version, MarkedDocument), String> {
    let stored = cells.read(&CellKey::Document(key.clone())).map_err(|error| error.to_string())?;
    let Some(stored) = stored else {
        return Err(format!("{intent:?} is committed; {key} has no mark of it"));
    };
    match &*stored.cell {
        Cell::Document(marked) if marked.mark.as_ref().is_some_and(|mark| mark.intent == intent) => {
            let listed = slot.marked.iter().find(|listed| listed.key == *key);
            if listed.is_none_or(|listed| listed.version != Some(stored.version)) {
                return Err(format!(
                    "{intent:?} is committed and lists {listed:?}, not @{:?}",
                    stored.version
                ));
            }
            Ok((stored.version, marked.clone()))
        }
        other => Err(format!("{intent:?} is committed; {key} has no mark of it: {other:?}")),
    }
}
