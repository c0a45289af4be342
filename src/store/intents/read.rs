//! What readers see: one document, several, or a page.
//!
//! Owns the questions that a reader asks of intents. The answers are judged in [`decide`](super::decide).
//!
//! What is hard: documents and slots are read one after the other, and everything may change in between.
//! - One document: its value at an instant between call and return (`decide::verdict` says why).
//! - A page: the engine gives it as of one instant, but an intent that the page shows half marked may be committed before
//!   its slot is read. Then the page is read again: by now that intent is committed, so each of its documents shows it.
//!   So a page of a directory's entries shows all of an intent or nothing. Peter Bailis et al. call that Read Atomic
//!   isolation ("Scalable Atomic Visibility with RAMP Transactions", SIGMOD 2014).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::IntentStore;
use super::decide::{self, Verdict};
use super::requests::{Requests, TRIES};
use super::settle::{document_of, slot_of};
use crate::document::{IntentId, Key, Mark, SessionId, Slot, Stored, Version};
use crate::rules::{self, Rule};
use crate::store::cells::{CellKey, Cells, ScannedCell, StoredCell};
use crate::store::scan::{Pager, bounds};
use crate::store::{Range, Scan, ScanItem, Start, StoreError};

/// How often documents are read again that change between two questions.
const LOOKS_MAX: u32 = 64;

/// A document as a reader sees it.
pub(super) struct Seen {
    /// The version of its cell; none if there is none.
    pub(super) at: Option<Version>,
    /// The document.
    pub(super) current: Option<Stored>,
    /// The undecided intent that has marked it.
    pub(super) pending: Option<Pending>,
}

/// An undecided intent.
pub(super) struct Pending {
    pub(super) mark: Mark,
    /// Its slot, pending.
    pub(super) slot: Slot,
    /// The version of the slot's cell.
    pub(super) version: Version,
}

/// How a page of cells is read: with their documents, or as outlines.
type ReadPage<C> = fn(&Requests<C>, &Scan) -> Result<Vec<ScannedCell>, StoreError>;

/// Slots that have been read, with the versions of their cells, or how they are damaged.
type Slots = HashMap<(SessionId, u16), Result<Option<(Slot, Version)>, StoreError>>;

/// The slot of the mark under `key`. If it cannot be read, nobody knows what is true of the document.
fn slot_in<'a>(
    slots: &'a Slots,
    key: &Key,
    intent: IntentId,
) -> Result<Option<&'a (Slot, Version)>, StoreError> {
    match slots.get(&(intent.session, intent.slot)) {
        Some(Ok(slot)) => Ok(slot.as_ref()),
        Some(Err(damaged)) => Err(StoreError::Damaged {
            key: key.to_string(),
            cause: format!("the intent that has marked it: {damaged}"),
        }),
        None => Ok(None),
    }
}

impl<C: Cells + ?Sized + 'static> IntentStore<C> {
    /// One document.
    pub(super) fn see_one(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        let seen = self.see(std::slice::from_ref(key))?;
        Ok(seen.into_iter().next().and_then(|seen| seen.current))
    }

    /// Several documents, each as of some instant between call and return.
    pub(super) fn see(&self, keys: &[Key]) -> Result<Vec<Seen>, StoreError> {
        self.see_found(keys, None)
    }

    /// The same, where their cells have been read.
    pub(super) fn see_found(
        &self,
        keys: &[Key],
        mut found: Option<Vec<Option<StoredCell>>>,
    ) -> Result<Vec<Seen>, StoreError> {
        let mut seen: Vec<Option<Seen>> = keys.iter().map(|_| None).collect();
        let mut moved_on: HashMap<usize, Version> = HashMap::new();
        let mut left: Vec<usize> = (0..keys.len()).collect();
        for _ in 0..LOOKS_MAX {
            let cells = match found.take() {
                Some(found) => found,
                None => {
                    let of = |at: &usize| CellKey::Document(keys[*at].clone());
                    let now = self.requests.now();
                    let read = self.requests.read_many(&left.iter().map(of).collect::<Vec<_>>())?;
                    self.counts.fetched(left.len());
                    left.iter()
                        .zip(&read)
                        .for_each(|(at, cell)| self.known.saw(&keys[*at], cell.as_ref(), now));
                    read
                }
            };
            let marks = left.iter().zip(&cells).filter_map(|(at, cell)| Some((&keys[*at], cell.as_ref()?)));
            let slots = self.read_slots(marks)?;
            let mut again = Vec::new();
            for (at, stored) in left.into_iter().zip(cells) {
                match self.judge(&keys[at], stored.as_ref(), &slots, moved_on.get(&at))? {
                    Some(judged) => seen[at] = Some(judged),
                    None => {
                        moved_on.extend(stored.map(|stored| (at, stored.version)));
                        again.push(at);
                    }
                }
            }
            left = again;
            if left.is_empty() {
                return Ok(seen.into_iter().flatten().collect());
            }
        }
        Err(changing(left.first().map_or_else(String::new, |at| keys[*at].to_string())))
    }

    /// What a reader sees in a cell; none: read it again. `leftover`: the version at which the slot of its mark had moved on
    /// before the cell was read.
    fn judge(
        &self,
        key: &Key,
        stored: Option<&StoredCell>,
        slots: &Slots,
        leftover: Option<&Version>,
    ) -> Result<Option<Seen>, StoreError> {
        let Some(stored) = stored else {
            return Ok(Some(Seen { at: None, current: None, pending: None }));
        };
        let cell = document_of(key, stored)?;
        let mut seen = Seen { at: Some(stored.version), current: cell.before.clone(), pending: None };
        let Some(mark) = &cell.mark else { return Ok(Some(seen)) };
        let slot = slot_in(slots, key, mark.intent)?;
        match decide::verdict(mark.intent, key, stored.version, slot.map(|(slot, _)| slot)) {
            Verdict::After => seen.current = decide::document(cell, stored.version, true),
            Verdict::Undecided => {
                seen.pending = slot.map(|(slot, version)| Pending {
                    mark: mark.clone(),
                    slot: slot.clone(),
                    version: *version,
                });
            }
            Verdict::MovedOn if leftover != Some(&stored.version) => return Ok(None),
            Verdict::Before | Verdict::MovedOn => {}
        }
        Ok(Some(seen))
    }

    /// The slots of all marks in these cells, each read once.
    fn read_slots<'a>(
        &self,
        cells: impl Iterator<Item = (&'a Key, &'a StoredCell)>,
    ) -> Result<Slots, StoreError> {
        let mut wanted = BTreeSet::new();
        for (key, stored) in cells {
            if let Some(mark) = &document_of(key, stored)?.mark {
                wanted.insert(CellKey::Slot(mark.intent.session, mark.intent.slot));
            }
        }
        let wanted: Vec<_> = wanted.into_iter().collect();
        let found = self.requests.read_each(&wanted)?;
        self.counts.fetched(wanted.len());
        let mut slots = Slots::new();
        for (key, stored) in wanted.into_iter().zip(found) {
            let slot = stored.and_then(|stored| stored.map(|stored| slot_of(&key, &stored)).transpose());
            if let CellKey::Slot(session, index) = key {
                slots.insert((session, index), slot);
            }
        }
        Ok(slots)
    }

    /// A page.
    pub(super) fn see_page(&self, scan: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        self.see_page_of(Requests::scan, scan)
    }

    /// The keys of the same page.
    pub(super) fn see_keys(&self, scan: &Scan) -> Result<Vec<Key>, StoreError> {
        let page = self.see_page_of(Requests::scan_outlines, scan)?;
        Ok(page.into_iter().map(|(key, _)| key).collect())
    }

    /// Cells that hold no document for this reader do not count for the limit of a page, so more are asked for until it is
    /// full.
    fn see_page_of(&self, read: ReadPage<C>, scan: &Scan) -> Result<Vec<ScanItem>, StoreError> {
        let mut asked = scan.clone();
        loop {
            let (cells, documents) = self.see_cells(read, &asked)?;
            if documents.len() < scan.limit && cells >= asked.limit {
                asked.limit += scan.limit - documents.len();
                continue;
            }
            let mut pager = Pager::new(scan);
            let mut page = Vec::with_capacity(documents.len());
            for (key, stored) in documents {
                if !pager.admits(page.len(), &key) {
                    break;
                }
                page.push((key, stored));
            }
            return Ok(page);
        }
    }

    /// A page of cells: how many there are, and the documents in them, in their order.
    fn see_cells(&self, read: ReadPage<C>, scan: &Scan) -> Result<(usize, Vec<ScanItem>), StoreError> {
        // What was known of slots before the page was read: intents that were committed (with the slot) or over by then.
        let mut known: BTreeMap<IntentId, Option<Slot>> = BTreeMap::new();
        for round in 0.. {
            let cells = read(&self.requests, scan)?;
            let unknown = cells.iter().filter_map(|(key, stored)| Some((key, stored.as_ref().ok()?)));
            let slots = self.read_slots(unknown)?;
            let mut again = false;
            let (count, mut documents) = (cells.len(), Vec::with_capacity(cells.len()));
            for (key, stored) in cells {
                let stored = match stored {
                    Ok(stored) => stored,
                    Err(damaged) => {
                        documents.push((key, Err(damaged)));
                        continue;
                    }
                };
                let (key, stored) = (&key, &stored);
                let cell = document_of(key, stored)?;
                let mut after = false;
                if let Some(mark) = &cell.mark {
                    let slot = match slot_in(&slots, key, mark.intent) {
                        Ok(slot) => slot.map(|(slot, _)| slot),
                        Err(damaged) => {
                            documents.push((key.clone(), Err(damaged)));
                            continue;
                        }
                    };
                    let before_the_page = known.get(&mark.intent);
                    let slot = before_the_page.map_or(slot, Option::as_ref);
                    let verdict = decide::verdict(mark.intent, key, stored.version, slot);
                    after = verdict == Verdict::After;
                    let stale = match verdict {
                        Verdict::Undecided | Verdict::Before => false,
                        Verdict::After => slot.is_some_and(|slot| shows_several(slot, scan)),
                        Verdict::MovedOn => true,
                    };
                    if stale && before_the_page.is_none() {
                        again = true;
                        known.insert(mark.intent, slot.cloned());
                    }
                }
                documents.extend(
                    decide::document(cell, stored.version, after).map(|stored| (key.clone(), Ok(stored))),
                );
            }
            let enough = !again || !rules::holds(Rule::PageReadAgainAfterItsIntents);
            if enough {
                return Ok((count, documents));
            }
            if round >= LOOKS_MAX {
                break;
            }
            if round >= TRIES {
                self.requests.pause(round - TRIES);
            }
        }
        Err(changing(format!("{:?}", scan.range)))
    }
}

/// Whether an intent marks more than one document of the range of a scan. Who reads all documents of a kind reads many
/// pages and cannot expect them to agree with each other.
fn shows_several(slot: &Slot, scan: &Scan) -> bool {
    let (kind, _, prefix) = bounds(&Scan { range: scan.range, start: Start::First, limit: 0 });
    let within = |key: &Key| key.kind() == kind && key.encode().starts_with(&prefix);
    !matches!(scan.range, Range::All(_))
        && slot.marked.iter().filter(|marked| within(&marked.key)).count() > 1
}

fn changing(what: String) -> StoreError {
    StoreError::Engine {
        what: format!("reading {what}"),
        source: format!("it has changed {LOOKS_MAX} times while it was read").into(),
    }
}
