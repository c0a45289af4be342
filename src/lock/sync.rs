//! The mutex, the condition variable and the clock that the lock table stands on: the machine's; or, in tests with
//! the feature `shuttle`, those of simulated threads, whose schedule a test chooses and can repeat. Imports `ambient`.
//!
//! What is hard: simulated threads know no time. There a deadline is an event like any other: a thread that waits with a
//! deadline that is near comes back at whatever moment the schedule says, and then that moment is its deadline.

#[cfg(not(all(test, feature = "shuttle")))]
mod machine {
    pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};

    /// The monotonic clock.
    pub(crate) fn now() -> std::time::Instant {
        crate::ambient::monotonic()
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod simulated {
    use std::cell::Cell;
    use std::ops::{Deref, DerefMut};
    use std::sync::PoisonError;
    use std::time::{Duration, Instant};

    use crate::ambient;

    /// A deadline that is further away never comes.
    const NEAR: Duration = Duration::from_secs(3600);

    thread_local! {
        /// All threads of a simulation run on one thread of the machine.
        static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
    }

    /// The simulation's clock. It stands still but for deadlines.
    pub(crate) fn now() -> Instant {
        NOW.get().unwrap_or_else(|| {
            let now = ambient::monotonic();
            NOW.set(Some(now));
            now
        })
    }

    #[derive(Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    /// Empty only while it waits.
    pub(crate) struct MutexGuard<'a, T> {
        mutex: &'a Mutex<T>,
        guard: Option<shuttle::sync::MutexGuard<'a, T>>,
    }

    impl<T> Mutex<T> {
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard { mutex: self, guard: Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)) }
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.guard.as_deref().unwrap_or_else(|| unreachable!("a guard is empty only while it waits"))
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.guard.as_deref_mut().unwrap_or_else(|| unreachable!("a guard is empty only while it waits"))
        }
    }

    #[derive(Default)]
    pub(crate) struct Condvar(shuttle::sync::Condvar);

    pub(crate) struct WaitResult {
        timed_out: bool,
    }

    impl WaitResult {
        pub(crate) fn timed_out(&self) -> bool {
            self.timed_out
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self::default()
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, deadline: Instant) -> WaitResult {
            let timed_out = deadline.saturating_duration_since(now()) < NEAR;
            let held = guard.guard.take();
            if timed_out {
                drop(held);
                shuttle::thread::yield_now();
                guard.guard = guard.mutex.lock().guard;
                NOW.set(Some(now().max(deadline)));
            } else {
                let woken = held.map(|held| self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
                guard.guard = woken;
            }
            WaitResult { timed_out }
        }
    }
}

#[cfg(not(all(test, feature = "shuttle")))]
pub(crate) use machine::{Condvar, Mutex, MutexGuard, now};
#[cfg(all(test, feature = "shuttle"))]
pub(crate) use simulated::{Condvar, Mutex, MutexGuard, now};
