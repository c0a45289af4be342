//! What the kernel must be told: inodes whose attributes the server has changed on its own.
//!
//! The kernel may hold locks of an inode while a request for it is served, and a notice may need the same locks: sent
//! from inside a handler it may deadlock. So notices go through a queue to a thread that serves no requests. What is
//! told here are attributes alone, for which the kernel takes no lock of an inode, so a handler may wait until it is told.

use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use fuser::{INodeNo, Notifier};
use parking_lot::Mutex;

use crate::ambient;
use crate::document::Ino;

/// Sends notices.
pub(super) struct Notices {
    queue: Mutex<Option<Sender<Notice>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// An inode whose attributes have changed, and who waits until the kernel knows.
struct Notice {
    ino: Ino,
    told: Sender<()>,
}

/// Nobody waits longer for the kernel to take a notice.
const TELL_WAIT: Duration = Duration::from_secs(5);

impl Notices {
    /// Without a kernel to tell yet.
    pub(super) fn new() -> Self {
        Self { queue: Mutex::default(), thread: Mutex::default() }
    }

    /// From here on the kernel is told.
    pub(super) fn start(&self, notifier: Notifier) -> std::io::Result<()> {
        let (sender, receiver) = mpsc::channel::<Notice>();
        let body = move || {
            for Notice { ino, told } in receiver {
                // A negative offset: the attributes only. That the kernel does not know the inode is no error.
                if let Err(error) = notifier.inval_inode(INodeNo(ino.0), -1, 0) {
                    log::debug!("the kernel was not told of inode {ino}: {error}");
                }
                let _ = told.send(()); // Who has given up waiting need not know.
            }
        };
        *self.thread.lock() = Some(ambient::spawn("lockwood-notices", body)?);
        *self.queue.lock() = Some(sender);
        Ok(())
    }

    /// Tells the kernel that what it knows of the attributes of `ino` is old, and waits until it knows.
    pub(super) fn attributes(&self, ino: Ino) {
        let (told, wait) = mpsc::channel();
        let sent = self.queue.lock().as_ref().is_some_and(|queue| queue.send(Notice { ino, told }).is_ok());
        if sent && wait.recv_timeout(TELL_WAIT).is_err() {
            log::warn!("the kernel does not take the notice that inode {ino} has changed");
        }
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
