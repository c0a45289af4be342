//! Who waits for advisory locks, and what ends the sleep: a change of that inode's locks, through whichever host.
//!
//! What is hard: no change may be missed between a look and the sleep. So whoever waits says so before he looks, and sleeps
//! only if nothing has rung since. Notices may be lost all the same, so nobody sleeps for long.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::document::{Ino, Key, SessionId};
use crate::store::{Listener, Notice};

/// All who wait in this process.
#[derive(Debug, Default)]
pub(super) struct Waits {
    state: Mutex<State>,
    rang: Condvar,
}

#[derive(Debug, Default)]
struct State {
    inodes: HashMap<Ino, Inode>,
    closed: Vec<SessionId>,
}

/// An inode whose locks somebody waits for.
#[derive(Debug, Default)]
struct Inode {
    waiting: usize,
    rings: u64,
}

/// Somebody who waits, until it is dropped.
pub(super) struct Waiting<'a> {
    waits: &'a Waits,
    ino: Ino,
    heard: u64,
}

impl Waits {
    /// From here on no change of the inode's locks is missed.
    pub(super) fn join(&self, ino: Ino) -> Waiting<'_> {
        let mut state = self.state.lock();
        let inode = state.inodes.entry(ino).or_default();
        inode.waiting += 1;
        Waiting { waits: self, ino, heard: inode.rings }
    }

    /// The locks of an inode have changed.
    pub(super) fn ring(&self, ino: Ino) {
        if let Some(inode) = self.state.lock().inodes.get_mut(&ino) {
            inode.rings += 1;
            self.rang.notify_all();
        }
    }

    fn ring_all(&self) {
        self.state.lock().inodes.values_mut().for_each(|inode| inode.rings += 1);
        self.rang.notify_all();
    }

    /// The session is granted nothing any more, and those who wait for it are to end.
    pub(super) fn close(&self, session: SessionId) {
        let mut state = self.state.lock();
        if !state.closed.contains(&session) {
            state.closed.push(session);
        }
        drop(state);
        self.ring_all();
    }

    pub(super) fn is_closed(&self, session: SessionId) -> bool {
        self.state.lock().closed.contains(&session)
    }

    /// Sleeps until the session is closed, or for that long.
    pub(super) fn sleep_until_closed(&self, session: SessionId, at_most: Duration) {
        let mut state = self.state.lock();
        self.rang.wait_while_for(&mut state, |state| !state.closed.contains(&session), at_most);
    }
}

impl Waiting<'_> {
    /// What has rung until now is known.
    pub(super) fn listen(&mut self) {
        self.heard = self.waits.state.lock().inodes.get(&self.ino).map_or(0, |inode| inode.rings);
    }

    /// Sleeps until it rings, or for that long. Returns whether it rang.
    pub(super) fn sleep(&self, at_most: Duration) -> bool {
        let (ino, heard) = (self.ino, self.heard);
        let silent = |state: &mut State| state.inodes.get(&ino).is_some_and(|inode| inode.rings == heard);
        let mut state = self.waits.state.lock();
        !self.waits.rang.wait_while_for(&mut state, silent, at_most).timed_out()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.waits.state.lock();
        if let Some(inode) = state.inodes.get_mut(&self.ino) {
            inode.waiting -= 1;
            if inode.waiting == 0 {
                state.inodes.remove(&self.ino);
            }
        }
    }
}

impl Listener for Waits {
    fn notice(&self, notice: &Notice) {
        match notice {
            Notice::Changed { keys, .. } => {
                for key in keys {
                    if let Key::Advisory(ino) = key {
                        self.ring(*ino);
                    }
                }
            }
            Notice::Lost => self.ring_all(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ambient;

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn a_change_between_the_look_and_the_sleep_is_heard() {
        let waits = Waits::default();
        let mut waiting = waits.join(Ino(7));
        waits.notice(&Notice::Changed { at: None, by: None, keys: vec![Key::Advisory(Ino(7))] });
        assert!(waiting.sleep(LONG));
        waiting.listen();
        waits.notice(&Notice::Changed {
            at: None,
            by: None,
            keys: vec![Key::Advisory(Ino(8)), Key::Node(Ino(7))],
        });
        assert!(!waiting.sleep(Duration::from_millis(10)), "rung by what does not concern it");
        waits.notice(&Notice::Lost);
        assert!(waiting.sleep(LONG));
        drop(waiting);
        assert!(waits.state.lock().inodes.is_empty());
    }

    #[test]
    fn the_end_of_the_session_ends_every_sleep() {
        let waits = Waits::default();
        let waiting = waits.join(Ino(7));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(10));
                waits.close(SessionId(1));
            });
            let begun = ambient::monotonic();
            assert!(waiting.sleep(LONG));
            waits.sleep_until_closed(SessionId(1), LONG);
            assert!(begun.elapsed() < LONG / 2);
        });
        assert!(waits.is_closed(SessionId(1)) && !waits.is_closed(SessionId(2)));
    }
}
