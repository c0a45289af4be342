//! Written bytes that are acknowledged and not in the store yet: how many there are, of which files, since when, and who
//! is still to be told of those that did not get there. Imports documents, the clock and the bound of a file; what is done
//! with the bytes is [`ops::later`](super::ops::later)'s.
//!
//! What is hard:
//! 1. *A bound.* A writer reserves room before it gathers anything ([`WriteBack::reserve`]), and the room is free again only
//!    when the bytes are in the store, or lost. So there are never more bytes than the option says, whatever fails.
//! 2. *Attributes must show what was written, and not wait for a commit under way.* So what they need of a file is here,
//!    beside its bytes ([`Pending`]): noted before the write is acknowledged, and gone after the commit. Who looks here
//!    first and at the node then misses nothing.
//! 3. *An error that comes later belongs to whoever had the file open.* Each open file is told by its next fsync, once, and
//!    by every close before that: the first may be one that nobody looks at, of a child process that ran another program
//!    ([`WriteBack::lost`]).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::ambient;
use crate::content::MAX_SIZE;
use crate::document::{Ino, Timestamp};

/// Nothing waits longer for its commit while the store answers: what Linux takes as the time between two looks at its own
/// dirty pages (`vm.dirty_writeback_centisecs`), so programs and people are used to losing that much.
pub(super) const FLUSH_AFTER: Duration = Duration::from_secs(5);

/// The account of one mount.
#[derive(Debug)]
pub(super) struct WriteBack {
    /// As many bytes may be there at most; 0: every write is a commit.
    limit_bytes: u64,
    /// Whether the store may lose what it has acknowledged.
    may_lose: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    dirty_bytes: u64,
    files: HashMap<Ino, Pending>,
    /// The open files of an inode, and what each has not been told of yet.
    handles: HashMap<Ino, HashMap<u64, Option<Lost>>>,
    flushes: u64,
    lost_bytes: u64,
    /// How often the store has lost what it had acknowledged, as far as it is noted here; and whether nobody was told yet.
    store_losses: u64,
    untold: bool,
}

/// What attributes and the clock need to know of a file whose bytes wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    /// The file is at least so long.
    pub(super) end: u64,
    /// As many bytes wait.
    pub(super) bytes: u64,
    /// When the last of them was written.
    pub(super) written: Timestamp,
    /// When the first of them was.
    pub(super) since: Instant,
}

/// Why bytes did not reach the store, as far as a program can make something of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The store has no room.
    NoSpace,
    /// Anything else.
    Failed,
    /// They did, and the store has lost what it had acknowledged.
    ByStore,
}

/// What a mount has kept back so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct WriteBackCounters {
    /// As many bytes may wait at most.
    pub limit_bytes: u64,
    /// As many wait now.
    pub dirty_bytes: u64,
    /// How often the bytes of a file were sent to the store.
    pub flushes: u64,
    /// Bytes that did not get there; the log has said which.
    pub lost_bytes: u64,
}

/// Bytes of one file that are next to each other and wait.
#[derive(Debug)]
pub(super) struct Gathered {
    /// Where they begin; none: at the end of the file, wherever that is then.
    pub(super) at: Option<u64>,
    pub(super) bytes: Vec<u8>,
    /// How long the file was in the store when the first byte came.
    base: u64,
    /// They may not reach beyond this.
    window_end: u64,
    /// A writer was not allowed to keep privileges.
    pub(super) drop_privileges: bool,
}

impl Gathered {
    /// Nothing yet, to begin at `at` (none: at the end of the file) in a file of `base` bytes. Takes no more than lie in
    /// `window` bytes, cut where the file is cut into windows of `border` bytes.
    pub(super) fn new(at: Option<u64>, base: u64, window: u64, border: u64) -> Self {
        let start = at.unwrap_or(base);
        let window_end = (start - start % border).saturating_add(window).min(MAX_SIZE);
        Self { at, bytes: Vec::new(), base, window_end, drop_privileges: false }
    }

    fn start(&self) -> u64 {
        self.at.unwrap_or(self.base)
    }

    /// Where the file ends with them, unless others let it grow.
    pub(super) fn end(&self) -> u64 {
        self.start() + self.bytes.len() as u64
    }

    /// Whether `len` bytes at `at` (none: at the end) lie on these or follow them, so that one write has them all.
    pub(super) fn can_take(&self, at: Option<u64>, len: u64) -> bool {
        let (from, here) = match (self.at, at) {
            (None, None) => (self.end(), true),
            (Some(start), Some(at)) => (at, (start..=self.end()).contains(&at)),
            _ => return false,
        };
        here && from.checked_add(len).is_some_and(|end| end <= self.window_end)
    }

    /// Takes what [`can_take`](Self::can_take) has let in. Returns how many bytes they have become more.
    pub(super) fn take(&mut self, at: Option<u64>, data: &[u8]) -> u64 {
        let before = self.bytes.len();
        let from = at.map_or(before, |at| usize::try_from(at - self.start()).unwrap_or(usize::MAX));
        let over = data.len().min(before - from);
        self.bytes[from..from + over].copy_from_slice(&data[..over]);
        self.bytes.extend_from_slice(&data[over..]);
        (self.bytes.len() - before) as u64
    }

    /// Whether a reader of bytes up to `end` may miss something in the store.
    pub(super) fn concerns(&self, end: u64) -> bool {
        end > self.start().min(self.base)
    }
}

/// Room for bytes, given back when it is dropped unless it was used.
#[must_use = "the room is given back when this is dropped"]
pub(super) struct Reserved<'a> {
    account: &'a WriteBack,
    bytes: u64,
}

impl Reserved<'_> {
    /// So many of the bytes wait from here on.
    pub(super) fn used(mut self, bytes: u64) {
        self.bytes -= bytes;
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.account.state.lock().dirty_bytes -= self.bytes;
    }
}

impl WriteBack {
    /// For a store that may lose what it has acknowledged, and has done so as often as is said; none: it stops instead.
    pub(super) fn new(limit_bytes: u64, losses: Option<u64>) -> Self {
        let state = State { store_losses: losses.unwrap_or_default(), ..State::default() };
        Self { limit_bytes, may_lose: losses.is_some(), state: Mutex::new(state) }
    }

    pub(super) fn is_on(&self) -> bool {
        self.limit_bytes > 0
    }

    /// Whether there can be anything to tell open files of.
    fn tells(&self) -> bool {
        self.is_on() || self.may_lose
    }

    /// The most that may wait, in bytes.
    pub(super) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Room for `bytes` more; none if there is none.
    pub(super) fn reserve(&self, bytes: u64) -> Option<Reserved<'_>> {
        let mut state = self.state.lock();
        let after = state.dirty_bytes.checked_add(bytes).filter(|after| *after <= self.limit_bytes)?;
        state.dirty_bytes = after;
        Some(Reserved { account: self, bytes })
    }

    /// The file whose bytes have waited longest.
    pub(super) fn oldest(&self) -> Option<Ino> {
        let state = self.state.lock();
        state.files.iter().min_by_key(|(_, pending)| pending.since).map(|(ino, _)| *ino)
    }

    /// All files whose bytes wait.
    pub(super) fn files(&self) -> Vec<Ino> {
        self.state.lock().files.keys().copied().collect()
    }

    /// The files whose bytes have waited for long enough, and how long it is until the next ones have.
    pub(super) fn due(&self) -> (Vec<Ino>, Duration) {
        let (mut due, mut next) = (Vec::new(), FLUSH_AFTER);
        for (ino, pending) in &self.state.lock().files {
            match FLUSH_AFTER.checked_sub(pending.since.elapsed()) {
                Some(left) if !left.is_zero() => next = next.min(left),
                _ => due.push(*ino),
            }
        }
        (due, next)
    }

    /// What waits of a file.
    pub(super) fn pending(&self, ino: Ino) -> Option<Pending> {
        if !self.is_on() {
            return None;
        }
        self.state.lock().files.get(&ino).copied()
    }

    /// These bytes of a file wait, the last of them since `written`. Called in the turn of whoever writes to it.
    pub(super) fn gathered(&self, ino: Ino, gathered: &Gathered, written: Timestamp) {
        let (end, bytes) = (gathered.end(), gathered.bytes.len() as u64);
        let mut state = self.state.lock();
        let since = state.files.get(&ino).map_or_else(ambient::monotonic, |pending| pending.since);
        state.files.insert(ino, Pending { end, bytes, written, since });
    }

    /// So many bytes of a file wait no more: they are in the store, or lost. Called in the turn of whoever sent them.
    pub(super) fn sent(&self, ino: Ino, bytes: u64, lost: Option<Lost>) {
        let mut state = self.state.lock();
        state.files.remove(&ino);
        state.dirty_bytes -= bytes;
        state.flushes += 1;
        if let Some(lost) = lost {
            state.lost_bytes += bytes;
            for owed in state.handles.get_mut(&ino).into_iter().flat_map(HashMap::values_mut) {
                *owed = Some(lost);
            }
        }
    }

    /// The store has lost changes that it had acknowledged, so often by now. What they were nobody knows: everything that is
    /// open is told by its next fsync, and if nothing was, the first fsync of whatever is.
    pub(super) fn store_has_lost(&self, losses: u64) {
        if !self.may_lose {
            return;
        }
        let mut state = self.state.lock();
        if losses > state.store_losses {
            (state.store_losses, state.untold) = (losses, true);
            for owed in state.handles.values_mut().flat_map(HashMap::values_mut) {
                owed.get_or_insert(Lost::ByStore);
            }
        }
    }

    /// A file was opened.
    pub(super) fn opened(&self, ino: Ino, handle: u64) {
        if self.tells() {
            self.state.lock().handles.entry(ino).or_default().insert(handle, None);
        }
    }

    /// An open file is gone.
    pub(super) fn closed(&self, ino: Ino, handle: u64) {
        if !self.tells() {
            return;
        }
        let mut state = self.state.lock();
        if let Some(handles) = state.handles.get_mut(&ino) {
            handles.remove(&handle);
            if handles.is_empty() {
                state.handles.remove(&ino);
            }
        }
    }

    /// What an open file was not told of yet; still so afterwards unless `take`.
    pub(super) fn lost(&self, ino: Ino, handle: u64, take: bool) -> Option<Lost> {
        let mut state = self.state.lock();
        let owed = state.handles.get_mut(&ino).and_then(|handles| handles.get_mut(&handle));
        if !take {
            // Who has only read does not wait for the disk, and is not to fail for what others wrote.
            return owed.and_then(|owed| *owed).filter(|owed| *owed != Lost::ByStore);
        }
        let owed = owed.and_then(Option::take).or(state.untold.then_some(Lost::ByStore));
        if owed == Some(Lost::ByStore) {
            state.untold = false;
        }
        owed
    }

    pub(super) fn counters(&self) -> WriteBackCounters {
        let State { dirty_bytes, flushes, lost_bytes, .. } = *self.state.lock();
        WriteBackCounters { limit_bytes: self.limit_bytes, dirty_bytes, flushes, lost_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_gathered_where_they_touch_and_within_the_window() {
        let mut gathered = Gathered::new(Some(1000), 500, 4096, 1024);
        assert!(gathered.can_take(Some(1000), 3096) && !gathered.can_take(Some(1000), 3097));
        assert_eq!(gathered.take(Some(1000), b"abcdef"), 6);
        assert_eq!(gathered.take(Some(1004), b"EFG"), 1);
        assert_eq!(gathered.take(Some(1000), b"A"), 0);
        assert_eq!((&gathered.bytes[..], gathered.end()), (&b"AbcdEFG"[..], 1007));
        for refused in [Some(999), Some(1008), None] {
            assert!(!gathered.can_take(refused, 1), "{refused:?}");
        }
        // What lies between the end in the store and the first byte is a hole, and no end any more.
        assert!(!gathered.concerns(500) && gathered.concerns(501));
        let mut appended = Gathered::new(None, 500, 4096, 1024);
        assert_eq!(appended.take(None, b"ab"), 2);
        assert_eq!(appended.take(None, b"c"), 1);
        assert_eq!((&appended.bytes[..], appended.end()), (&b"abc"[..], 503));
        assert!(!appended.can_take(Some(503), 1));
    }

    #[test]
    fn room_is_bounded_and_comes_back() {
        let account = WriteBack::new(10, None);
        let first = account.reserve(6).unwrap();
        assert!(account.reserve(5).is_none());
        first.used(4);
        assert_eq!(account.counters().dirty_bytes, 4);
        drop(account.reserve(6).unwrap());
        account.sent(Ino(7), 4, None);
        assert!(account.reserve(10).is_some());
    }

    #[test]
    fn each_open_file_is_told_of_what_is_lost_until_it_is_synced() {
        let account = WriteBack::new(10, None);
        let ino = Ino(7);
        account.opened(ino, 1);
        account.opened(ino, 2);
        account.reserve(3).unwrap().used(3);
        account.sent(ino, 3, Some(Lost::NoSpace));
        account.opened(ino, 3);
        account.closed(ino, 2);
        let told = |take| [1, 2, 3].map(|handle| account.lost(ino, handle, take));
        let expected = [Some(Lost::NoSpace), None, None];
        assert_eq!((told(false), told(true), told(true)), (expected, expected, [None; 3]));
        assert_eq!(account.counters().lost_bytes, 3);
    }

    #[test]
    fn each_open_file_is_told_once_of_what_the_store_has_lost() {
        let account = WriteBack::new(0, Some(0));
        account.opened(Ino(7), 1);
        account.opened(Ino(8), 2);
        account.store_has_lost(1);
        account.store_has_lost(1);
        account.opened(Ino(8), 3);
        let told = |take| [(7, 1), (8, 2), (8, 3)].map(|(ino, handle)| account.lost(Ino(ino), handle, take));
        let lost = Some(Lost::ByStore);
        assert_eq!((told(false), told(true), told(true)), ([None; 3], [lost, lost, None], [None; 3]));
        // Whoever had written may have closed it, and opens it to sync it.
        [(7, 1), (8, 2), (8, 3)].into_iter().for_each(|(ino, handle)| account.closed(Ino(ino), handle));
        account.store_has_lost(2);
        account.opened(Ino(7), 4);
        assert_eq!([false, true, true].map(|take| account.lost(Ino(7), 4, take)), [None, lost, None]);
    }
}
