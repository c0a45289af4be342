//! The clock, randomness, threads and ids: everything that differs between two runs comes from here, so that a test can
//! replace it and a seed can replay a run. Imports nothing of Lockwood; every layer may import it.

#![allow(clippy::disallowed_methods)] // The one place where the ambient sources may be named.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// The monotonic clock: for waits, leases and ages. Never compared between hosts.
pub fn monotonic() -> Instant {
    Instant::now()
}

/// The wall clock: for the times of files and for what people read. Never used to decide who holds what.
pub fn wall_clock() -> SystemTime {
    SystemTime::now()
}

/// A random number, for jitter and ids; not for secrets.
pub fn random_u64() -> u64 {
    // The standard library seeds each `RandomState` from the operating system and a counter.
    RandomState::new().hash_one(Instant::now())
}

/// A clock that a simulation can replace. Monotonic: for leases and waits, never compared between hosts.
pub trait Clock: Send + Sync {
    /// The time since an origin of the clock's own.
    fn now(&self) -> Duration;

    /// Blocks the caller for about this long.
    fn sleep(&self, duration: Duration);

    /// Whether those who wait by this clock are to come to an end: nobody asks again what has failed.
    fn is_over(&self) -> bool {
        false
    }

    /// What people are shown as the time; never used to decide anything. A clock that is not the machine's began in 1970.
    fn wall_clock(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.now()
    }
}

/// The clock of the machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock whose origin is now.
    pub fn new() -> Self {
        Self { origin: monotonic() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }

    fn wall_clock(&self) -> SystemTime {
        wall_clock()
    }
}

/// Starts a named thread. The caller keeps the handle and joins it.
///
/// # Errors
/// The operating system's, when it has no room for another thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body)
}
