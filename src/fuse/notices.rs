//! What the kernel must be told and a handler must not tell it: inodes whose attributes the server has changed on its own,
//! and those whose bytes were changed through another mount.
//!
//! The kernel may hold locks of an inode while a request for it is served, and a notice may need the same locks: sent
//! from inside a handler it may deadlock. So notices go through a queue to a thread that serves no requests. For
//! attributes the kernel takes no lock of an inode, so a handler may wait until they are told; for bytes it waits for
//! pages that are being read, so nobody waits for that.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use fuser::{INodeNo, Notifier};
use parking_lot::{Condvar, Mutex};

use crate::ambient;
use crate::document::Ino;

/// Sends notices.
pub(super) struct Notices {
    queue: Mutex<Option<Sender<Notice>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    content: Arc<Content>,
}

/// Inodes whose bytes the kernel is told of.
#[derive(Default)]
struct Content {
    state: Mutex<ContentState>,
    told: Condvar,
}

#[derive(Default)]
struct ContentState {
    /// About to be: once is enough, however often they change until then.
    queued: HashSet<Ino>,
    /// At this moment.
    telling: Option<Ino>,
}

enum Notice {
    /// The attributes have changed, and somebody waits until the kernel knows.
    Attributes(Ino, Sender<()>),
    /// The bytes have changed.
    Content(Ino),
}

/// No open waits longer for what is on its way to the kernel.
const SETTLE_WAIT: Duration = Duration::from_millis(20);
/// Nobody waits longer for the kernel to take a notice.
const TELL_WAIT: Duration = Duration::from_secs(5);

impl Notices {
    /// Without a kernel to tell yet.
    pub(super) fn new() -> Self {
        Self { queue: Mutex::default(), thread: Mutex::default(), content: Arc::default() }
    }

    /// From here on the kernel is told.
    pub(super) fn start(&self, notifier: Notifier) -> std::io::Result<()> {
        let (sender, receiver) = mpsc::channel::<Notice>();
        let content = Arc::clone(&self.content);
        let body = move || {
            // That the kernel does not know the inode is no error.
            let tell = |ino: Ino, offset| {
                if let Err(error) = notifier.inval_inode(INodeNo(ino.0), offset, 0) {
                    log::debug!("the kernel was not told of inode {ino}: {error}");
                }
            };
            for notice in receiver {
                match notice {
                    Notice::Attributes(ino, told) => {
                        tell(ino, -1); // A negative offset: the attributes only.
                        let _ = told.send(()); // Who has given up waiting need not know.
                    }
                    Notice::Content(ino) => {
                        let mut state = content.state.lock();
                        state.queued.remove(&ino); // First, so that a change from here on is told again.
                        state.telling = Some(ino);
                        drop(state);
                        tell(ino, 0);
                        content.state.lock().telling = None;
                        content.told.notify_all();
                    }
                }
            }
        };
        *self.thread.lock() = Some(ambient::spawn("lockwood-notices", body)?);
        *self.queue.lock() = Some(sender);
        Ok(())
    }

    /// Tells the kernel that what it knows of the attributes of `ino` is old, and waits until it knows.
    pub(super) fn attributes(&self, ino: Ino) {
        let (told, wait) = mpsc::channel();
        if self.send(Notice::Attributes(ino, told)) && wait.recv_timeout(TELL_WAIT).is_err() {
            log::warn!("the kernel does not take the notice that inode {ino} has changed");
        }
    }

    /// Tells the kernel soon that what it has of the bytes of `ino` is old.
    pub(super) fn content(&self, ino: Ino) {
        if self.content.state.lock().queued.insert(ino) {
            self.send(Notice::Content(ino));
        }
    }

    /// Waits until nothing that was to be told of the bytes of `ino` is on its way; not for long, since the kernel may be
    /// waiting for a page that the caller is to read.
    pub(super) fn settle(&self, ino: Ino) {
        let is_told = |state: &mut ContentState| state.queued.contains(&ino) || state.telling == Some(ino);
        // In vain: it is told later, as it always may be.
        let _ = self.content.told.wait_while_for(&mut self.content.state.lock(), is_told, SETTLE_WAIT);
    }

    #[cfg(test)]
    pub(super) fn is_queued(&self, ino: Ino) -> bool {
        self.content.state.lock().queued.contains(&ino)
    }

    fn send(&self, notice: Notice) -> bool {
        self.queue.lock().as_ref().is_some_and(|queue| queue.send(notice).is_ok())
    }

    /// Waits until all is told.
    pub(super) fn close(&self) {
        drop(self.queue.lock().take());
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            log::error!("the thread that tells the kernel panicked");
        }
    }
}
