//! Files whose bytes the kernel reads and writes itself: which they are, and how far each is ahead of its node. Imports
//! documents; what is done about it is [`ops::passthrough`](super::ops::passthrough)'s.
//!
//! What is hard: nobody tells of a write that the kernel makes past the daemon. So the file of the host is asked for its
//! length and for when it was modified ([`Passed::ahead`]), and what its node was told last is remembered beside it. What
//! an operation changes in the file itself looks the same, and costs one more look.

use std::any::Any;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use crate::ambient;
use crate::content::{BackingFiles, ContentFile};
use crate::document::{Ino, Timestamp};

/// What whoever registers a file with the kernel needs as long as it is open that way.
pub type Registration = Arc<dyn Any + Send + Sync>;

/// The account of one mount.
#[derive(Default)]
pub(super) struct Passthrough {
    files: Mutex<HashMap<Ino, Arc<Passed>>>,
    /// As many there are: mostly none, and then nobody looks further.
    count: AtomicUsize,
    writers: Mutex<Writers>,
}

/// Who writes without asking, and may fill the disk.
#[derive(Default)]
struct Writers {
    count: u64,
    /// Whether a thread looks after the room that the store needs.
    is_watched: bool,
}

/// The room is looked at so often: the fastest disks take less in between than has to be left when a file is passed.
const LOOK_AFTER: Duration = Duration::from_millis(50);

/// Looks without anybody who writes, until nobody looks any more.
const IDLE_LOOKS: u32 = 20;

/// A file that the kernel reads and writes itself.
pub(super) struct Passed {
    pub(super) registration: Registration,
    /// As long as this is held the file is not cut into segments.
    pub(super) content: ContentFile,
    host: Arc<File>,
    state: Mutex<State>,
}

struct State {
    opens: u64,
    writers: u64,
    told: Look,
}

/// What tells whether the file has changed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Look {
    size: u64,
    modified: Timestamp,
}

/// What the kernel has made of a file and its node does not say.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    look: Look,
    /// In units of 512 bytes.
    pub(super) blocks: u64,
}

impl Ahead {
    /// The length, in bytes.
    pub(super) fn size(&self) -> u64 {
        self.look.size
    }

    /// When it was modified last.
    pub(super) fn modified(&self) -> Timestamp {
        self.look.modified
    }
}

fn look(host: &File) -> io::Result<Ahead> {
    let found = host.metadata()?;
    let nsec = u32::try_from(found.mtime_nsec()).unwrap_or_default();
    let look = Look { size: found.len(), modified: Timestamp { sec: found.mtime(), nsec } };
    Ok(Ahead { look, blocks: found.blocks() })
}

/// How far the file of the host is ahead of a node that says `size` and that it was changed at `changed`, for whom
/// nothing else is known of it.
///
/// # Errors
/// The host's.
pub(super) fn left_ahead(host: &File, size: u64, changed: Timestamp) -> io::Result<Option<Ahead>> {
    let ahead = look(host)?;
    Ok((ahead.size() > size || ahead.modified() > changed).then_some(ahead))
}

impl Passthrough {
    /// The file `ino`, if the kernel reads and writes it itself or its node is still to be told of what it has.
    pub(super) fn get(&self, ino: Ino) -> Option<Arc<Passed>> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        self.files.lock().get(&ino).cloned()
    }

    /// Somebody is about to write without asking, and what the store needs is kept free of that: `reserve` bytes, from when
    /// there are less than `scarce` beyond.
    pub(super) fn writer_came(self: &Arc<Self>, files: &BackingFiles, reserve: u64, scarce: u64) {
        let mut writers = self.writers.lock();
        writers.count += 1;
        if writers.is_watched {
            return;
        }
        let (account, files) = (Arc::clone(self), files.clone());
        let watch = move || {
            let mut idle = 0;
            while account.is_watched(&mut idle) {
                if let Err(error) = files.keep_room(reserve, scarce) {
                    log::debug!("room for the store is not kept: {error}");
                }
                std::thread::sleep(LOOK_AFTER);
            }
            files.give_back_room();
        };
        match ambient::spawn("lockwood-room", watch) {
            Ok(_) => writers.is_watched = true,
            Err(error) => log::warn!("nobody looks after the room that the store needs: {error}"),
        }
    }

    /// Whether to go on looking after the room, of which `idle` looks were for nobody.
    fn is_watched(&self, idle: &mut u32) -> bool {
        let mut writers = self.writers.lock();
        *idle = if writers.count > 0 { 0 } else { *idle + 1 };
        writers.is_watched = writers.is_watched && *idle < IDLE_LOOKS;
        writers.is_watched
    }

    pub(super) fn writer_went(&self) {
        let mut writers = self.writers.lock();
        writers.count = writers.count.saturating_sub(1);
    }

    /// Whether anybody writes without asking.
    pub(super) fn has_writers(&self) -> bool {
        self.count.load(Relaxed) > 0 && self.writers.lock().count > 0
    }

    /// Nobody writes any more, and nobody is to look.
    pub(super) fn writers_are_gone(&self) {
        *self.writers.lock() = Writers::default();
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<Ino> {
        self.files.lock().keys().copied().collect()
    }

    pub(super) fn insert(&self, ino: Ino, passed: Arc<Passed>) {
        let mut files = self.files.lock();
        files.insert(ino, passed);
        self.count.store(files.len(), Relaxed);
    }

    pub(super) fn remove(&self, ino: Ino) {
        let mut files = self.files.lock();
        files.remove(&ino);
        self.count.store(files.len(), Relaxed);
    }
}

impl Passed {
    /// A file that is as its node says.
    ///
    /// # Errors
    /// The host's.
    pub(super) fn new(registration: Registration, content: ContentFile, host: Arc<File>) -> io::Result<Self> {
        let told = look(&host)?.look;
        Ok(Self { registration, content, host, state: Mutex::new(State { opens: 0, writers: 0, told }) })
    }

    pub(super) fn is_open(&self) -> bool {
        self.state.lock().opens > 0
    }

    pub(super) fn opened(&self, writes: bool) {
        let mut state = self.state.lock();
        state.opens += 1;
        state.writers += u64::from(writes);
    }

    /// Returns whether nobody has it open any more, and whether nobody who writes has.
    pub(super) fn closed(&self, writes: bool) -> (bool, bool) {
        let mut state = self.state.lock();
        state.opens = state.opens.saturating_sub(1);
        state.writers = state.writers.saturating_sub(u64::from(writes));
        (state.opens == 0, state.writers == 0)
    }

    /// What the kernel has made of the file since its node was told last; none if nothing.
    ///
    /// # Errors
    /// The host's.
    pub(super) fn ahead(&self) -> io::Result<Option<Ahead>> {
        let now = look(&self.host)?;
        Ok((now.look != self.state.lock().told).then_some(now))
    }

    /// The node says this now.
    pub(super) fn told(&self, ahead: &Ahead) {
        self.state.lock().told = ahead.look;
    }
}
