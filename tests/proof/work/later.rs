//! Work that nobody waits for, on a simulated host: done at once, or by an actor of its own when the schedule comes to it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use lockwood::later::Later;

use parking_lot::Mutex;

use super::life::clock;
use crate::sim::{HostId, World};

type Work = Box<dyn FnOnce() + Send>;

/// The work of one session.
pub(crate) struct SimLater {
    world: Arc<World>,
    host: HostId,
    queue: Mutex<VecDeque<Work>>,
    /// Nobody does what is left.
    has_ended: AtomicBool,
}

impl SimLater {
    pub(crate) fn new(world: &Arc<World>, host: HostId) -> Arc<Self> {
        let (queue, has_ended) = Default::default();
        Arc::new(Self { world: Arc::clone(world), host, queue, has_ended })
    }

    /// Does what is handed in, until there is no reason to. What is left then is dropped undone, as when a process ends.
    pub(crate) fn work_while(&self, goes_on: impl Fn() -> bool) {
        let step = || {
            let work = self.queue.lock().pop_front();
            match work {
                Some(work) => work(),
                None => clock(&self.world, self.host).sleep(Duration::from_millis(5)),
            }
        };
        while goes_on() {
            step();
        }
        // Its session may be leaving meanwhile, or be recovered.
        (0..self.world.below(20)).for_each(|_| step());
        self.has_ended.store(true, Relaxed);
        let left = std::mem::take(&mut *self.queue.lock());
        drop(left);
    }
}

impl Later for SimLater {
    fn run(&self, work: Work) {
        if self.has_ended.load(Relaxed) {
            return;
        }
        if self.world.below(3) == 0 {
            return work();
        }
        self.queue.lock().push_back(work);
    }
}
