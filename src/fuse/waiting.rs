//! Threads for requests that wait, for locks or for the disk, so that those who wait never hold up those who need not.
//!
//! A waiting rename does nothing but stand in a queue, so a thread each is cheap; what is bounded is their number. Threads
//! that have nothing to do end after a while.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::ambient;

/// As many requests may wait at once; further ones are refused.
const THREADS_MAX: usize = 1024;
const IDLE_MAX: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// A pool of threads that grows with what is given to it.
pub(super) struct WaitingRoom {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    jobs: Vec<Job>,
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    running: usize,
    closed: bool,
}

impl WaitingRoom {
    pub(super) fn new() -> Self {
        Self { shared: Arc::default() }
    }

    /// Runs `job` soon on a thread of its own. Returns false, and does not run it, when too many wait already.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.shared.state.lock();
        if state.closed {
            return false;
        }
        if state.idle <= state.jobs.len() {
            if state.running >= THREADS_MAX {
                return false;
            }
            let shared = Arc::clone(&self.shared);
            let Ok(thread) = ambient::spawn("lockwood-wait", move || shared.work()) else { return false };
            state.running += 1;
            state.threads.retain(|thread| !thread.is_finished());
            state.threads.push(thread);
        }
        state.jobs.push(Box::new(job));
        drop(state);
        self.shared.arrived.notify_one();
        true
    }

    /// Runs `job` soon on a thread of its own, or here and now when too many wait already.
    pub(super) fn run_somewhere(&self, job: impl FnOnce() + Send + 'static) {
        let job = Arc::new(Mutex::new(Some(job)));
        let again = Arc::clone(&job);
        let once = move || {
            let job = again.lock().take();
            if let Some(job) = job {
                job();
            }
        };
        if !self.run(once.clone()) {
            once();
        }
    }

    /// Waits until all jobs are done; no further one is taken.
    pub(super) fn close(&self) {
        let threads = {
            let mut state = self.shared.state.lock();
            state.closed = true;
            std::mem::take(&mut state.threads)
        };
        self.shared.arrived.notify_all();
        for thread in threads {
            if thread.join().is_err() {
                log::error!("a thread that waited panicked");
            }
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop() {
                drop(state);
                job();
                state = self.state.lock();
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let waited = self.arrived.wait_for(&mut state, IDLE_MAX);
            state.idle -= 1;
            if waited.timed_out() && state.jobs.is_empty() {
                break;
            }
        }
        state.running -= 1;
    }
}
