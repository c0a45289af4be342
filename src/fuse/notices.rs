//! What the kernel must be told: inodes whose attributes the server has changed on its own.
//!
//! The kernel may hold locks of an inode while a request for it is served, and a notice may need the same locks: sent
//! from inside a handler it deadlocks. So notices go through a queue to a thread that serves no requests.

use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

use fuser::{INodeNo, Notifier};
use parking_lot::Mutex;

use crate::ambient;
use crate::document::Ino;

/// Sends notices.
pub(super) struct Notices {
    queue: Mutex<Option<Sender<Ino>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Notices {
    /// Without a kernel to tell yet.
    pub(super) fn new() -> Self {
        Self { queue: Mutex::default(), thread: Mutex::default() }
    }

    /// From here on the kernel is told.
    pub(super) fn start(&self, notifier: Notifier) -> std::io::Result<()> {
        let (sender, receiver) = mpsc::channel::<Ino>();
        let body = move || {
            for ino in receiver {
                // A negative offset: the attributes only. That the kernel does not know the inode is no error.
                if let Err(error) = notifier.inval_inode(INodeNo(ino.0), -1, 0) {
                    log::debug!("the kernel was not told of inode {ino}: {error}");
                }
            }
        };
        *self.thread.lock() = Some(ambient::spawn("lockwood-notices", body)?);
        *self.queue.lock() = Some(sender);
        Ok(())
    }

    /// Tells the kernel, soon, that what it knows of the attributes of `ino` is old.
    pub(super) fn attributes(&self, ino: Ino) {
        if let Some(queue) = &*self.queue.lock() {
            // Fails only when the thread has ended, and then nobody listens any more.
            let _ = queue.send(ino);
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
