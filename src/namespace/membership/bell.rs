//! The clock by which a session's operations wait for locks, what ends their sleep early, and what new sessions there are.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};

use crate::ambient::{self, Clock, SystemClock};
use crate::document::{Key, Kind, SessionId};
use crate::store::{Listener, Notice};

/// A clock whose sleepers are woken when a lock document changes: each looks again whether its lock is free now.
pub(super) struct Bell {
    clock: SystemClock,
    /// How often it rang.
    rings: Mutex<u64>,
    rang: Condvar,
    sessions: Mutex<Sessions>,
    /// Since when the session has nobody to serve, or ends, if so.
    idle: Mutex<Option<Instant>>,
    /// Whether it ends.
    closed: Mutex<bool>,
    close: Condvar,
}

/// For so long after it has served the last time, or its end has begun, a session insists on what it asks of a store that
/// fails.
const INSISTS_FOR: Duration = Duration::from_secs(2);

/// What the notices have said of sessions.
#[derive(Default)]
struct Sessions {
    known: HashSet<SessionId>,
    /// Another one has come, or notices were lost.
    new: bool,
}

impl Bell {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            clock: SystemClock::new(),
            rings: Mutex::default(),
            rang: Condvar::new(),
            sessions: Mutex::default(),
            idle: Mutex::default(),
            closed: Mutex::default(),
            close: Condvar::new(),
        })
    }

    /// Whether a session may have come that is not known, since this was asked last. That a known one beats is no reason
    /// for all others to look at all sessions.
    pub(super) fn take_new_session(&self) -> bool {
        std::mem::take(&mut self.sessions.lock().new)
    }

    /// Notes which sessions there are.
    pub(super) fn know(&self, sessions: impl Iterator<Item = SessionId>) {
        self.sessions.lock().known = sessions.collect();
    }

    /// The session has nobody to serve any more.
    pub(super) fn hurry(&self) {
        *self.idle.lock() = Some(ambient::monotonic());
    }

    /// The session ends: its threads are to end too. What it still has to say it may insist on once more.
    pub(super) fn close(&self) {
        self.hurry();
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

    /// A store that is away must not keep an unmount: what it leaves, others clean up after.
    fn is_over(&self) -> bool {
        self.idle.lock().is_some_and(|since| since.elapsed() > INSISTS_FOR)
    }

    fn wall_clock(&self) -> SystemTime {
        self.clock.wall_clock()
    }
}

impl Listener for Bell {
    fn notice(&self, notice: &Notice) {
        match notice {
            Notice::Changed { keys, .. } => {
                if keys.iter().any(|key| key.kind() == Kind::Lock) {
                    self.ring();
                }
                let session = |key: &Key| if let Key::Session(session) = key { Some(*session) } else { None };
                let mut sessions = self.sessions.lock();
                let new = keys.iter().filter_map(session).any(|session| !sessions.known.contains(&session));
                sessions.new |= new;
            }
            Notice::Lost => {
                self.ring();
                self.sessions.lock().new = true;
            }
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
            let changed = |key| Notice::Changed { at: None, by: None, keys: vec![key] };
            bell.notice(&changed(Key::Volume));
            while !sleeper.is_finished() {
                bell.notice(&changed(Key::Lock("%2Fa".into())));
                std::thread::sleep(Duration::from_millis(1));
            }
            sleeper.join().unwrap()
        });
        assert!(slept < Duration::from_secs(10));
    }

    #[test]
    fn only_a_session_that_is_not_known_is_new() {
        let bell = Bell::new();
        let notice = |session| {
            bell.notice(&Notice::Changed {
                at: None,
                by: None,
                keys: vec![Key::Session(SessionId(session))],
            });
            bell.take_new_session()
        };
        assert!(!bell.take_new_session());
        assert!(notice(1) && notice(2));
        bell.know([1, 2].map(SessionId).into_iter());
        assert!(!notice(1) && !notice(2) && notice(3));
        bell.notice(&Notice::Lost);
        assert!(bell.take_new_session() && !bell.take_new_session());
    }
}
