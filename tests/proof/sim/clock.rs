//! The clock of one simulated host.

use std::sync::Arc;
use std::time::Duration;

use lockwood::ambient::Clock;

use super::{HostId, World};

/// A clock with a rate of its own, which may jump forward. Asleep means that others have the turn.
#[derive(Clone)]
pub(crate) struct SimClock {
    pub(crate) world: Arc<World>,
    pub(crate) host: HostId,
}

impl Clock for SimClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.world.local_now_ns(self.host))
    }

    fn sleep(&self, duration: Duration) {
        self.world.sleep(self.host, duration.as_nanos() as u64);
    }
}
