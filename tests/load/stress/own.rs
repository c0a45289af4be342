//! Names that one worker alone may touch, in directories that everybody moves: whatever happens to the directories, each
//! of these operations has one right outcome, known before. So an overwritten victim is known, and is looked at through
//! a descriptor held from before: it must have no link left and still hold its bytes.

use crate::common::rng::Rng;
use crate::common::sys;
use crate::ledger::{Id, Ledger, read_id};
use crate::world::View;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;

/// Begins every such name; movers leave these alone.
pub(crate) const OWN: &str = "o";

/// Names a worker uses in each of its directories.
const NAMES: usize = 4;
/// Directories of the pool in which a worker has names.
const DIRECTORIES: usize = 12;

/// Index of a directory in the pool, and number of the name in it.
type Place = (usize, usize);

/// What one worker has where.
pub(crate) struct Own {
    worker: usize,
    held: BTreeMap<Place, Id>,
}

impl Own {
    /// Nothing yet.
    pub(crate) fn new(worker: usize) -> Self {
        Self { worker, held: BTreeMap::new() }
    }

    fn name(&self, place: Place) -> String {
        format!("{OWN}{}.{}", self.worker, place.1)
    }

    /// One random operation.
    pub(crate) fn step(&mut self, view: &View, rng: &mut Rng, ledger: &mut Ledger) {
        let places: Vec<Place> = self.held.keys().copied().collect();
        // Spread over the pool, overlapping with the places of other workers.
        let dir = (self.worker * 5 + rng.below(DIRECTORIES) * 7) % view.pool.len();
        let to = (dir, rng.below(NAMES));
        let Some(&from) = rng.pick(&places).filter(|_| !rng.chance(15)) else {
            return self.create(view, to, ledger);
        };
        // On a slow store a worker has few names, and would hardly meet one of them by chance.
        let to = rng.pick(&places).copied().filter(|_| rng.chance(25)).unwrap_or(to);
        match rng.below(100) {
            0..55 => self.rename(view, from, to, ledger),
            55..65 => self.rename_unless_there(view, from, to, ledger),
            65..80 => {
                let other = rng.pick(&places).copied().unwrap_or(from);
                self.exchange(view, from, other, ledger);
            }
            80..90 => self.look(view, from, ledger),
            _ => self.unlink(view, from, ledger),
        }
    }

    fn create(&mut self, view: &View, at: Place, ledger: &mut Ledger) {
        if self.held.contains_key(&at) {
            return;
        }
        let name = self.name(at);
        let made = ledger.make_file(&view.pool[at.0], &name);
        let outcome = made.as_ref().map(drop).map_err(copy);
        ledger.must("own-create", &name, &outcome);
        if let Ok((id, _)) = made {
            self.held.insert(at, id);
        }
    }

    fn rename(&mut self, view: &View, from: Place, to: Place, ledger: &mut Ledger) {
        if from == to {
            return;
        }
        let (old, new) = (self.name(from), self.name(to));
        let victim = self.held.get(&to).map(|id| (*id, open(view, to, &new)));
        let kind = if victim.is_some() { "own-overwrite" } else { "own-move" };
        let result = sys::rename_at(&view.pool[from.0], &old, &view.pool[to.0], &new, 0);
        if !ledger.must(kind, &format!("{old} to {new}"), &result) {
            return;
        }
        if let Some(id) = self.held.remove(&from) {
            self.held.insert(to, id);
        }
        if let Some((id, file)) = victim {
            ledger.deleted.push(id);
            gone(kind, id, file, ledger);
        }
    }

    fn rename_unless_there(&mut self, view: &View, from: Place, to: Place, ledger: &mut Ledger) {
        if from == to || !view.flags {
            return;
        }
        let (old, new) = (self.name(from), self.name(to));
        let (from_dir, to_dir) = (&view.pool[from.0], &view.pool[to.0]);
        let result = sys::rename_at(from_dir, &old, to_dir, &new, libc::RENAME_NOREPLACE);
        if !self.held.contains_key(&to) {
            if ledger.must("own-noreplace", &format!("{old} to {new}"), &result)
                && let Some(id) = self.held.remove(&from)
            {
                self.held.insert(to, id);
            }
        } else if ledger.count("own-noreplace", &result) {
            ledger.violation(format!("own-noreplace: {old} replaced {new}, which was there"));
        }
    }

    fn exchange(&mut self, view: &View, one: Place, two: Place, ledger: &mut Ledger) {
        let (Some(&first), Some(&second)) = (self.held.get(&one), self.held.get(&two)) else { return };
        if one == two || !view.flags {
            return;
        }
        let (old, new) = (self.name(one), self.name(two));
        let (one_dir, two_dir) = (&view.pool[one.0], &view.pool[two.0]);
        let result = sys::rename_at(one_dir, &old, two_dir, &new, libc::RENAME_EXCHANGE);
        if ledger.must("own-exchange", &format!("{old} with {new}"), &result) {
            self.held.insert(one, second);
            self.held.insert(two, first);
        }
    }

    fn look(&self, view: &View, at: Place, ledger: &mut Ledger) {
        let name = self.name(at);
        let file = open(view, at, &name);
        if ledger.must("own-open", &name, &file.as_ref().map(drop).map_err(copy)) {
            holds(&name, self.held.get(&at).copied(), &file, ledger);
        }
    }

    fn unlink(&mut self, view: &View, at: Place, ledger: &mut Ledger) {
        let name = self.name(at);
        let file = open(view, at, &name);
        let result = sys::unlink_at(&view.pool[at.0], &name);
        if ledger.must("own-unlink", &name, &result)
            && let Some(id) = self.held.remove(&at)
        {
            ledger.deleted.push(id);
            gone("own-unlink", id, file, ledger);
        }
    }
}

fn open(view: &View, at: Place, name: &str) -> io::Result<File> {
    sys::open_at(&view.pool[at.0], name, libc::O_RDONLY, 0).map(File::from)
}

fn copy(e: &io::Error) -> io::Error {
    io::Error::from_raw_os_error(e.raw_os_error().unwrap_or(libc::EIO))
}

fn holds(what: &str, id: Option<Id>, file: &io::Result<File>, ledger: &mut Ledger) {
    match file.as_ref().map_err(copy).and_then(read_id) {
        Ok(found) if found == id => {}
        Ok(found) => ledger.violation(format!("{what}: holds the id {found:x?}, not {id:x?}")),
        Err(e) => ledger.violation(format!("{what}: cannot be read: {e}")),
    }
}

/// A file without a name, held open: it has no links, and its bytes.
fn gone(kind: &str, id: Id, file: io::Result<File>, ledger: &mut Ledger) {
    holds(&format!("{kind}: the open victim"), Some(id), &file, ledger);
    let Ok(file) = file else { return };
    match sys::stat_fd(&file) {
        Ok(stat) if stat.st_nlink == 0 => {}
        Ok(stat) => ledger.violation(format!("{kind}: the victim {id:x} still has {} links", stat.st_nlink)),
        Err(e) => ledger.violation(format!("{kind}: fstat of the open victim {id:x}: {e}")),
    }
}
