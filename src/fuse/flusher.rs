//! The thread that sends to the store what was written and waits, when it has waited for long enough, and at the end of the
//! mount what is left. Runs only where bytes are kept back (`-o write-back`).

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use super::adapter::Shared;
use crate::ambient;

/// The thread of one mount, once it is started.
#[derive(Default)]
pub(super) struct Flusher {
    end: Arc<End>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct End {
    reached: Mutex<bool>,
    rings: Condvar,
}

impl Flusher {
    /// Starts the thread, if this mount keeps bytes back.
    ///
    /// # Errors
    /// The operating system's, when it has no room for another thread.
    pub(super) fn start(shared: &Arc<Shared>) -> io::Result<()> {
        if shared.namespace.write_back().is_none() {
            return Ok(());
        }
        let (end, of) = (Arc::clone(&shared.flusher.end), Arc::clone(shared));
        let thread = ambient::spawn("lockwood-flush", move || {
            loop {
                let wait = of.namespace.flush_due(|| *end.reached.lock());
                let mut reached = end.reached.lock();
                if !*reached {
                    end.rings.wait_for(&mut reached, wait);
                }
                if *reached {
                    return;
                }
            }
        })?;
        *shared.flusher.thread.lock() = Some(thread);
        Ok(())
    }

    /// Ends the thread. What still waits is left.
    pub(super) fn close(&self) {
        *self.end.reached.lock() = true;
        self.end.rings.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            log::error!("the thread that sends written bytes to the store panicked");
        }
    }
}
