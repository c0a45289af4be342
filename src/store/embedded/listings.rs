//! The entries of directories that are known whole, in memory, in the order of their keys.
//!
//! A listing from the tables costs more than all else that is done for it: the memory of the database keeps every entry that
//! was ever made since it went to a table, and what is in tables has to be decoded. A directory is known whole from when it
//! is made, or when one page had all of it; from then on commits keep it so.
//!
//! What is hard:
//! 1. Whoever has read a page must not put it here after a commit has changed the directory. It is put here only if no
//!    commit has begun since before the page was read, which is asked again under the lock that commits take as well.
//! 2. A commit changes several directories, one after the other. So nothing is answered from here while a commit is showing
//!    ([`instants`](super::instants)), which is asked under the same lock: until that is given back, none changes anything
//!    here.
//! 3. To free a large directory takes milliseconds, for which no commit is to wait: [`Listings::sweep`].

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::document::{EntryPosition, Ino, Key, Name, Stored};
use crate::store::scan::Pager;
use crate::store::{Range, Scan, ScanItem, Start};

/// About what an entry with a name of ordinary length takes whose document nobody else has in memory.
const ENTRY_BYTES: u64 = 256;
/// A directory weighs as much as so many entries, besides its own.
const DIRECTORY_WEIGHT: usize = 4;

/// A place in a listing. The one without a name is before all names of its position, where a listing may begin.
type Place = (EntryPosition, Option<Name>);

type Entries = BTreeMap<Place, Stored>;

/// The directories that are known whole.
pub(super) struct Listings {
    /// As much as the recent part may weigh; the other one may grow to twice that.
    most: usize,
    parts: Mutex<Parts>,
}

/// What was asked for lately, and what was before. When the first has become too heavy, it takes the place of the second.
#[derive(Default)]
struct Parts {
    recent: Part,
    before: Part,
    /// To be freed.
    shed: Vec<Part>,
}

#[derive(Default)]
struct Part {
    directories: HashMap<Ino, Entries, RandomState>,
    weight: usize,
}

impl Listings {
    /// At most about `bytes` of them.
    pub(super) fn new(bytes: u64) -> Self {
        let most = usize::try_from(bytes / ENTRY_BYTES / 3).unwrap_or(usize::MAX);
        Self { most, parts: Mutex::default() }
    }

    /// Whether a directory is known.
    pub(super) fn knows(&self, directory: Ino) -> bool {
        self.parts.lock().of(directory).is_some()
    }

    /// A commit has made a directory, which is empty.
    pub(super) fn made(&self, directory: Ino) {
        self.parts.lock().put(self.most, directory, Entries::new());
    }

    /// A commit has removed a directory.
    pub(super) fn removed(&self, directory: Ino) {
        self.parts.lock().take(directory);
    }

    /// A commit has put an entry in the place of another or of none, or removed it.
    pub(super) fn changed(&self, directory: Ino, name: &Name, now: Option<&Stored>) {
        let mut parts = self.parts.lock();
        let Parts { recent, before, .. } = &mut *parts;
        let found = [recent, before]
            .into_iter()
            .find_map(|part| Some((part.directories.get_mut(&directory)?, &mut part.weight)));
        let Some((entries, part_weight)) = found else { return };
        let weight = entries.len();
        match now {
            Some(stored) => entries.insert(place(name), stored.clone()),
            None => entries.remove(&place(name)),
        };
        *part_weight = *part_weight - weight + entries.len();
        parts.shed(self.most);
    }

    /// A page that had all entries of a directory; kept if `is_true` says so, when no commit can change it any more without
    /// finding it here.
    pub(super) fn learn(&self, directory: Ino, page: &[ScanItem], is_true: impl FnOnce() -> bool) {
        let entry = |item: &ScanItem| match item {
            (Key::Entry(_, name), Ok(stored)) => Some((place(name), stored.clone())),
            _ => None,
        };
        // One that is damaged is read, and said to be, each time.
        let Some(entries) = page.iter().map(entry).collect::<Option<Entries>>() else { return };
        let mut parts = self.parts.lock();
        if is_true() {
            parts.put(self.most, directory, entries);
        }
    }

    /// Frees what is not kept any more; for when nobody waits.
    pub(super) fn sweep(&self) {
        let shed = std::mem::take(&mut self.parts.lock().shed);
        drop(shed);
    }

    /// What stands under a name, if that is known, something or nothing, and `is_whole`: no commit is showing.
    pub(super) fn get(
        &self,
        directory: Ino,
        name: &Name,
        is_whole: impl FnOnce() -> bool,
    ) -> Option<Option<Stored>> {
        let mut parts = self.parts.lock();
        let part = parts.of(directory).filter(|_| is_whole())?;
        Some(part.directories.get(&directory)?.get(&place(name)).cloned())
    }

    /// A page of a listing, if the directory is known and `is_whole`: no commit is showing.
    pub(super) fn page(&self, scan: &Scan, is_whole: impl FnOnce() -> bool) -> Option<Vec<ScanItem>> {
        let Range::Entries(directory) = scan.range else { return None };
        let mut parts = self.parts.lock();
        parts.refresh(self.most, directory);
        let entries = parts.of(directory).filter(|_| is_whole())?.directories.get(&directory)?;
        let from = match &scan.start {
            Start::First => Bound::Unbounded,
            Start::At(position) => Bound::Included((*position, None)),
            Start::After(Key::Entry(parent, name)) if *parent == directory => Bound::Excluded(place(name)),
            Start::After(_) => return None,
        };
        let mut page = Vec::with_capacity(scan.limit.min(entries.len()));
        let mut pager = Pager::new(scan);
        for ((position, name), stored) in entries.range((from, Bound::Unbounded)) {
            if !pager.admits_at(page.len(), Some(*position)) {
                break;
            }
            page.extend(name.clone().map(|name| (Key::Entry(directory, name), Ok(stored.clone()))));
        }
        Some(page)
    }
}

impl Parts {
    fn of(&mut self, directory: Ino) -> Option<&mut Part> {
        [&mut self.recent, &mut self.before]
            .into_iter()
            .find(|part| part.directories.contains_key(&directory))
    }

    fn take(&mut self, directory: Ino) -> Option<Entries> {
        let part = self.of(directory)?;
        let entries = part.directories.remove(&directory)?;
        part.weight -= weight(&entries);
        Some(entries)
    }

    fn put(&mut self, most: usize, directory: Ino, entries: Entries) {
        self.take(directory);
        self.recent.weight += weight(&entries);
        self.recent.directories.insert(directory, entries);
        self.shed(most);
    }

    /// Notes that a directory was asked for. One that would fill the recent part alone stays where it is.
    fn refresh(&mut self, most: usize, directory: Ino) {
        let fits = |entries: &Entries| weight(entries) <= most;
        if self.before.directories.get(&directory).is_some_and(fits)
            && let Some(entries) = self.take(directory)
        {
            self.put(most, directory, entries);
        }
    }

    fn shed(&mut self, most: usize) {
        if self.recent.weight > most {
            let recent = std::mem::take(&mut self.recent);
            self.shed.push(std::mem::replace(&mut self.before, recent));
        }
        // Either it was too heavy at once, or it has grown since.
        if self.before.weight > most * 2 {
            self.shed.push(std::mem::take(&mut self.before));
        }
    }
}

fn weight(entries: &Entries) -> usize {
    entries.len() + DIRECTORY_WEIGHT
}

fn place(name: &Name) -> Place {
    (EntryPosition::of(name.as_bytes()), Some(name.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Document, Entry, FileKind, Version};
    use crate::store::StoreError;

    const DIR: Ino = Ino(7);

    fn name(number: u64) -> Name {
        Name::new(format!("f{number}").as_bytes()).unwrap()
    }

    fn entry(number: u64) -> Stored {
        let entry = Entry { ino: Ino(number), kind: FileKind::Regular };
        Stored { version: Version(number), document: Document::Entry(entry).into() }
    }

    /// The numbers of a page.
    fn numbers(page: &[ScanItem]) -> Vec<u64> {
        page.iter().map(|(_, stored)| stored.as_ref().unwrap().version.0).collect()
    }

    fn page(listings: &Listings, scan: &Scan) -> Option<Vec<ScanItem>> {
        assert!(listings.page(scan, || false).is_none());
        listings.page(scan, || true)
    }

    fn get(listings: &Listings, directory: Ino, number: u64) -> Option<Option<Stored>> {
        assert!(listings.get(directory, &name(number), || false).is_none());
        listings.get(directory, &name(number), || true)
    }

    fn scan(directory: Ino, start: Start, limit: usize) -> Scan {
        Scan { range: Range::Entries(directory), start, limit }
    }

    #[test]
    fn pages_go_over_all_entries_in_the_order_of_their_keys() {
        let listings = Listings::new(1 << 20);
        assert!(page(&listings, &scan(DIR, Start::First, 10)).is_none() && get(&listings, DIR, 1).is_none());
        listings.made(DIR);
        (0..100).for_each(|number| listings.changed(DIR, &name(number), Some(&entry(number))));
        listings.changed(DIR, &name(7), None);
        listings.changed(DIR, &name(8), Some(&entry(800)));
        let whole = page(&listings, &scan(DIR, Start::First, 1000)).unwrap();
        assert!(whole.is_sorted_by_key(|(key, _)| key.encode()) && whole.len() == 99);
        let (mut all, mut start) = (Vec::new(), Start::First);
        for round in 0.. {
            let page = page(&listings, &scan(DIR, start, 10)).unwrap();
            all.extend(numbers(&page));
            let Some((last, _)) = page.last().filter(|_| page.len() == 10) else { break };
            let Key::Entry(_, name) = last else { panic!("{last}") };
            let next = EntryPosition(EntryPosition::of(name.as_bytes()).0 + 1);
            start = if round % 2 == 0 { Start::After(last.clone()) } else { Start::At(next) };
        }
        assert_eq!(all, numbers(&whole));
        assert_eq!(get(&listings, DIR, 8).unwrap(), Some(entry(800)));
        assert_eq!(get(&listings, DIR, 7), Some(None));
        listings.removed(DIR);
        assert!(page(&listings, &scan(DIR, Start::First, 10)).is_none());
    }

    #[test]
    fn a_page_is_learned_only_while_it_is_true_and_whole() {
        let listings = Listings::new(1 << 20);
        let item = |number| (Key::Entry(DIR, name(number)), Ok(entry(number)));
        listings.learn(DIR, &[item(1)], || false);
        assert!(get(&listings, DIR, 1).is_none());
        let broken = StoreError::Stopped(String::new());
        listings.learn(DIR, &[item(1), (Key::Entry(DIR, name(2)), Err(broken))], || true);
        assert!(get(&listings, DIR, 1).is_none());
        listings.learn(DIR, &[item(1)], || true);
        assert_eq!(get(&listings, DIR, 1), Some(Some(entry(1))));
    }

    #[test]
    fn what_is_asked_for_stays_and_all_of_it_is_bounded() {
        let most = 100;
        let listings = Listings::new(most * 3 * ENTRY_BYTES);
        let put = |directory, numbers: std::ops::Range<u64>| {
            numbers.for_each(|number| listings.changed(Ino(directory), &name(number), Some(&entry(number))));
        };
        let weights = || {
            let parts = listings.parts.lock();
            for part in [&parts.recent, &parts.before] {
                assert_eq!(part.weight, part.directories.values().map(weight).sum::<usize>());
            }
            parts.recent.weight + parts.before.weight
        };
        for directory in 1..100 {
            listings.made(Ino(directory));
            put(directory, 0..20);
            assert!(page(&listings, &scan(Ino(1), Start::First, 5)).is_some(), "{directory}");
            assert!(weights() <= 3 * most as usize);
        }
        assert!(get(&listings, Ino(2), 1).is_none());
    }

    #[test]
    fn a_directory_larger_than_the_recent_part_drives_nobody_out_and_one_too_large_is_not_kept() {
        let most = 100;
        let listings = Listings::new(most * 3 * ENTRY_BYTES);
        let put = |numbers: std::ops::Range<u64>| {
            numbers.for_each(|number| listings.changed(DIR, &name(number), Some(&entry(number))));
        };
        listings.made(DIR);
        put(0..150);
        listings.made(Ino(1));
        for _ in 0..3 {
            assert_eq!(page(&listings, &scan(DIR, Start::First, 500)).unwrap().len(), 150);
            assert!(page(&listings, &scan(Ino(1), Start::First, 5)).is_some());
        }
        put(150..1000);
        assert!(get(&listings, DIR, 1).is_none());
        assert!(!listings.parts.lock().shed.is_empty());
        listings.sweep();
        assert!(listings.parts.lock().shed.is_empty());
    }
}
