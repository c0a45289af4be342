//! The clock by which a session's operations wait for locks, and what ends their sleep early.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Release};
use std::time::{Duration, SystemTime};

use parking_lot::{Condvar, Mutex};

use crate::ambient::{Clock, SystemClock};
use crate::document::{Key, Kind};
use crate::store::{Listener, Notice};

/// A clock whose sleepers are woken when a lock document changes: each looks again whether its lock is free now.
pub(super) struct Bell {
    clock: SystemClock,
    /// How often it rang.
    rings: Mutex<u64>,
    rang: Condvar,
    sessions_changed: AtomicBool,
    closed: Mutex<bool>,
    close: Condvar,
}

impl Bell {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            clock: SystemClock::new(),
            rings: Mutex::default(),
            rang: Condvar::new(),
            sessions_changed: AtomicBool::new(false),
            closed: Mutex::default(),
            close: Condvar::new(),
        })
    }

    /// Whether a session's document has changed since this was asked last.
    pub(super) fn take_sessions_changed(&self) -> bool {
        self.sessions_changed.swap(false, AcqRel)
    }

    /// The session ends: its threads are to end too.
    pub(super) fn close(&self) {
        *self.closed.lock() = true;
        self.close.notify_all();
    }

    pub(super) fn is_closed(&self) -> bool {
        *self.closed.lock()
    }

    /// Sleeps for this long, or until the session ends.
    pub(super) fn wait_until_closed(&self, at_most: Duration) {
        let mut closed = self.closed.lock();
        if !*closed {
            self.close.wait_for(&mut closed, at_most);
        }
    }

    fn ring(&self) {
        *self.rings.lock() += 1;
        self.rang.notify_all();
    }
}

impl Clock for Bell {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn sleep(&self, duration: Duration) {
        let mut rings = self.rings.lock();
        let before = *rings;
        self.rang.wait_while_for(&mut rings, |rings| *rings == before, duration);
    }

    fn wall_clock(&self) -> SystemTime {
        self.clock.wall_clock()
    }
}

impl Listener for Bell {
    fn notice(&self, notice: Notice) {
        let concerns = |kind: Kind| match &notice {
            Notice::Changed { keys, .. } => keys.iter().any(|key: &Key| key.kind() == kind),
            Notice::Lost => true,
        };
        if concerns(Kind::Lock) {
            self.ring();
        }
        if concerns(Kind::Session) {
            self.sessions_changed.store(true, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ambient;

    #[test]
    fn a_changed_lock_ends_the_sleep_and_nothing_else_does() {
        let bell = Bell::new();
        let slept = std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let begun = ambient::monotonic();
                bell.sleep(Duration::from_secs(30));
                begun.elapsed()
            });
            let changed = |key| Notice::Changed { by: None, keys: vec![key] };
            bell.notice(changed(Key::Volume));
            while !sleeper.is_finished() {
                bell.notice(changed(Key::Lock("%2Fa".into())));
                std::thread::sleep(Duration::from_millis(1));
            }
            sleeper.join().unwrap()
        });
        assert!(slept < Duration::from_secs(10));
        assert!(!bell.take_sessions_changed());
        bell.notice(Notice::Lost);
        assert!(bell.take_sessions_changed() && !bell.take_sessions_changed());
    }
}
