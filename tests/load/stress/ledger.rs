//! What the workers know to have happened: ids, acknowledged creates and deletes, and the count of every outcome.
//!
//! An id names one file or directory for ever. A file holds its id as text; a directory holds a file `id.<id>`. A
//! worker keeps its own ledger, so that recording needs no lock, and the judge reads them all together.

use crate::common::sys::{self, errno_name};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

/// Begins the name of the file in each directory that says which directory it is.
pub(crate) const MARKER: &str = "id.";

/// A file or directory that was made in this run.
pub(crate) type Id = u64;

/// One acknowledged rename onto a contested name.
pub(crate) struct Arrival {
    /// Number of the contested name.
    pub(crate) slot: usize,
    /// The file that went there.
    pub(crate) id: Id,
    /// Before the call.
    pub(crate) start: Duration,
    /// After it.
    pub(crate) end: Duration,
}

/// The kinds of operations with the errnos (0 for a success) that anybody has met so far.
pub(crate) type Met = Arc<Mutex<BTreeSet<(&'static str, i32)>>>;

/// The records of one worker.
#[derive(Default)]
pub(crate) struct Ledger {
    met: Met,
    worker: u64,
    /// Others work through other mounts.
    through_others: bool,
    made: u64,
    /// Acknowledged creates.
    pub(crate) created: Vec<Id>,
    /// Acknowledged deletes, by unlink, rmdir or an overwriting rename.
    pub(crate) deleted: Vec<Id>,
    /// Renames onto contested names.
    pub(crate) arrivals: Vec<Arrival>,
    /// Successes and errnos (0 for a success) of each kind of operation.
    pub(crate) outcomes: BTreeMap<(&'static str, i32), u64>,
    /// Proofs that the filesystem did wrong, found while running.
    pub(crate) violations: Vec<String>,
}

/// What a filesystem may answer to a rename, create or remove that lost a race.
const CONFLICTS: [i32; 7] =
    [libc::ENOENT, libc::EINVAL, libc::EEXIST, libc::ENOTEMPTY, libc::EISDIR, libc::ENOTDIR, libc::EBUSY];

/// What a kernel answers by itself where a directory was moved through another mount than its own.
const MOVED_ELSEWHERE: [i32; 2] = [libc::ESTALE, libc::ELOOP];

impl Ledger {
    /// The ledger of the worker with that number, of so many mounts, who says what he has met.
    pub(crate) fn new(worker: usize, mounts: usize, met: &Met) -> Self {
        Self { met: Met::clone(met), worker: worker as u64, through_others: mounts > 1, ..Self::default() }
    }

    /// An id that nobody else has.
    pub(crate) fn fresh(&mut self) -> Id {
        self.made += 1;
        ((self.worker + 1) << 40) | self.made
    }

    /// The id that the next [`Ledger::make_file`] or [`Ledger::make_dir`] will give.
    pub(crate) fn made_next(&self) -> Id {
        ((self.worker + 1) << 40) | (self.made + 1)
    }

    /// Counts an outcome and tells whether it was a success; an errno that no race explains is a violation.
    pub(crate) fn count(&mut self, kind: &'static str, result: &io::Result<()>) -> bool {
        let errno = result.as_ref().err().map_or(0, |e| e.raw_os_error().unwrap_or(libc::EIO));
        let count = self.outcomes.entry((kind, errno)).or_default();
        *count += 1;
        if *count == 1 {
            self.met.lock().insert((kind, errno));
        }
        let explained =
            CONFLICTS.contains(&errno) || (self.through_others && MOVED_ELSEWHERE.contains(&errno));
        if errno != 0 && !explained {
            self.violation(format!("{kind}: {} is no answer to a race", errno_name(errno)));
        }
        errno == 0
    }

    /// As [`Ledger::count`], for what must succeed because nobody else may touch the names; only a lock that was not
    /// granted in time excuses it.
    pub(crate) fn must(&mut self, kind: &'static str, what: &str, result: &io::Result<()>) -> bool {
        let ok = self.count(kind, result);
        if let Err(e) = result
            && e.raw_os_error() != Some(libc::EBUSY)
        {
            self.violation(format!("{kind}: {what}: {e}, though nobody else may touch it"));
        }
        ok
    }

    /// Records that the filesystem did wrong.
    pub(crate) fn violation(&mut self, text: String) {
        if self.violations.len() < 20 {
            self.violations.push(text);
        }
    }

    /// Makes a file with a fresh id under `name`; returns it open.
    pub(crate) fn make_file(&mut self, dir: impl AsFd, name: &str) -> io::Result<(Id, File)> {
        let id = self.fresh();
        let file = sys::create_at(dir, name)?;
        self.created.push(id);
        file.write_all_at(text_of(id).as_bytes(), 0)?;
        Ok((id, file))
    }

    /// Makes a directory with a fresh id under `name`; returns it open.
    pub(crate) fn make_dir(&mut self, dir: impl AsFd, name: &str) -> io::Result<(Id, OwnedFd)> {
        let id = self.fresh();
        sys::mkdir_at(&dir, name)?;
        let fd = sys::open_dir_at(&dir, name)?;
        mark(&fd, id)?;
        self.created.push(id);
        Ok((id, fd))
    }
}

/// Puts the marker into a directory: from then on it must be found.
pub(crate) fn mark(dir: impl AsFd, id: Id) -> io::Result<()> {
    sys::create_at(dir, &format!("{MARKER}{id:x}")).map(drop)
}

/// The content of a file.
pub(crate) fn text_of(id: Id) -> String {
    format!("{id:016x}\n")
}

/// The id that an open file holds.
pub(crate) fn read_id(file: &File) -> io::Result<Option<Id>> {
    let mut text = [0u8; 32];
    let length = file.read_at(&mut text, 0)?;
    let text = String::from_utf8_lossy(&text[..length]);
    Ok(text.strip_suffix('\n').and_then(|hex| Id::from_str_radix(hex, 16).ok()))
}
