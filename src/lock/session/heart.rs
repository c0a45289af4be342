//! The thread that says that a session lives. Imports `ambient`.
//!
//! A heart that stopped without a word would leave a session that believes to be alive until the store refuses it. So
//! whatever ends the thread, a panic included, fences the session in its own eyes.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::member::Member;
use super::standing::Standing;
use crate::ambient;
use crate::store::StoreError;

/// How late a heart notices that it has to beat more often.
const LOOK_AT_PACE: Duration = Duration::from_millis(200);

/// Beats for a session until this is dropped.
pub struct Heart {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stop {
    asked: Mutex<bool>,
    wake: Condvar,
}

impl Heart {
    /// Starts to beat, at once and then so often in a lease, three times or more; that of the session, or a shorter one that
    /// it has to keep pace with ([`Standing::keep_pace_with`]).
    ///
    /// # Errors
    /// The operating system's, when it has no room for another thread.
    pub fn start(member: Arc<Member>, per_lease: u32) -> io::Result<Self> {
        let stop = Arc::new(Stop::default());
        let theirs = Arc::clone(&stop);
        let thread = ambient::spawn("heartbeat", move || beat_until_stopped(&member, &theirs, per_lease))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        *self.stop.asked.lock() = true;
        self.stop.wake.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the heartbeat thread has panicked; the session was stopped");
        }
    }
}

/// Fences the session in its own eyes unless the heart was stopped in good order.
struct FenceOnPanic(Arc<Standing>);

impl Drop for FenceOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fence();
        }
    }
}

fn beat_until_stopped(member: &Member, stop: &Stop, per_lease: u32) {
    let _fence = FenceOnPanic(Arc::clone(member.standing()));
    let mut failing = false;
    loop {
        match member.beat() {
            Ok(()) => failing = false,
            Err(StoreError::Fenced) => {
                log::error!("session {} was declared dead: unmount and mount again", member.id());
                return;
            }
            Err(error) if !failing => {
                log::warn!("session {} cannot say that it lives: {error}; trying again", member.id());
                failing = true;
            }
            Err(_) => {}
        }
        // In short pieces: what it has to keep pace with may become shorter meanwhile.
        let begun = ambient::monotonic();
        let mut asked = stop.asked.lock();
        loop {
            let waited = ambient::monotonic().saturating_duration_since(begun);
            let left = (member.standing().pace() / per_lease).saturating_sub(waited);
            if *asked || left.is_zero() {
                break;
            }
            stop.wake.wait_for(&mut asked, left.min(LOOK_AT_PACE));
        }
        if *asked {
            return;
        }
    }
}
