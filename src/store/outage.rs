//! Since when an engine on another host, or an object store, has not answered, and why; and until when it is waited for, as
//! far as that is not for each request to say.
//!
//! What is hard: an operation makes several requests, and each has the engine's patience. Nobody may wait for the sum of
//! these once the mount is gone, nor may what a program has written be lost earlier than one of them would have ended. So
//! from when nobody is served all requests together have the patience of one. Each outage counts by itself: who has
//! answered may be away again.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::ambient;

/// An engine that cannot be reached, or does not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// When a request failed first.
    pub since: SystemTime,
    /// How the last one failed.
    pub cause: String,
}

/// What the requests of an engine have met.
pub struct Outages {
    /// Who was asked.
    what: &'static str,
    /// So that a request that works costs one look.
    away: AtomicBool,
    now: Mutex<Option<Away>>,
    /// Whether anybody is served.
    is_served: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
    /// How long an outage may last for somebody to wait for its end.
    longest: Mutex<Option<Duration>>,
}

#[derive(Debug)]
struct Away {
    outage: Outage,
    since: Instant,
    /// When all requests give up.
    until: Option<Instant>,
}

impl Default for Outages {
    fn default() -> Self {
        Self::of("the store")
    }
}

impl Outages {
    /// Of `what`, which people are told of.
    pub(crate) fn of(what: &'static str) -> Self {
        let (away, now, is_served, longest) = Default::default();
        Self { what, away, now, is_served, longest }
    }

    /// A request has failed, and the next one may do better.
    pub(crate) fn failed(&self, cause: &str) {
        let mut now = self.now.lock();
        match &mut *now {
            Some(away) => cause.clone_into(&mut away.outage.cause),
            None => {
                log::warn!("{} does not answer: {cause}; operations wait for it", self.what);
                let outage = Outage { since: ambient::wall_clock(), cause: cause.to_owned() };
                *now = Some(Away { outage, since: ambient::monotonic(), until: None });
                self.away.store(true, Relaxed);
            }
        }
    }

    /// A request was answered.
    pub(crate) fn answered(&self) {
        if !self.away.load(Relaxed) {
            return;
        }
        let ended = self.now.lock().take();
        self.away.store(false, Relaxed);
        if let Some(Away { since, .. }) = ended {
            log::warn!("{} answers again, after {:.1} s", self.what, since.elapsed().as_secs_f64());
        }
    }

    /// The outage of this moment.
    pub fn now(&self) -> Option<Outage> {
        self.now.lock().as_ref().map(|away| away.outage.clone())
    }

    /// For how long it has lasted, if there is one.
    pub(crate) fn lasts_for(&self) -> Option<Duration> {
        if !self.away.load(Relaxed) {
            return None;
        }
        self.now.lock().as_ref().map(|away| away.since.elapsed())
    }

    /// Says whether anybody is served; asked while requests wait, and must not wait itself. When nobody is, all requests
    /// together wait for the end of an outage for as long as one would. Only the first call counts.
    pub fn serve_while(&self, is_served: impl Fn() -> bool + Send + Sync + 'static) {
        if self.is_served.set(Box::new(is_served)).is_err() {
            log::error!("it was said already who is served by {}", self.what);
        }
    }

    /// What is asked for from here on is waited for anew, though nobody is served.
    pub fn wait_anew(&self) {
        if let Some(away) = &mut *self.now.lock() {
            away.until = None;
        }
    }

    /// From here on nobody waits for the end of an outage that has lasted for longer.
    pub fn outlast(&self, longest: Duration) {
        *self.longest.lock() = Some(longest);
    }

    /// Whether a request that has failed is tried again, as far as this is not for itself to say. `patience` is that of one.
    pub(crate) fn is_waited_for(&self, patience: Duration) -> bool {
        if !self.away.load(Relaxed) {
            return true;
        }
        let mut now = self.now.lock();
        let Some(away) = &mut *now else { return true };
        let moment = ambient::monotonic();
        if self.longest.lock().is_some_and(|longest| moment - away.since >= longest) {
            return false;
        }
        if away.until.is_none() && self.is_served.get().is_some_and(|is_served| !is_served()) {
            away.until = Some(moment + patience);
        }
        away.until.is_none_or(|until| moment < until)
    }
}

impl std::fmt::Debug for Outages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { what, away: _, now, is_served: _, longest } = self;
        f.debug_struct("Outages").field("what", what).field("now", now).field("longest", longest).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_begins_once_and_ends_with_an_answer() {
        let outages = Outages::default();
        outages.answered();
        assert_eq!(outages.now(), None);
        outages.failed("refused");
        let since = outages.now().unwrap().since;
        outages.failed("no route");
        assert_eq!(outages.now(), Some(Outage { since, cause: "no route".to_owned() }));
        outages.answered();
        assert_eq!(outages.now(), None);
    }

    fn away() -> Outages {
        let outages = Outages::default();
        outages.failed("refused");
        outages
    }

    const PATIENCE: Duration = Duration::from_secs(3600);

    #[test]
    fn while_somebody_is_served_each_request_has_its_own_patience() {
        let outages = away();
        outages.serve_while(|| true);
        assert!(outages.is_waited_for(Duration::ZERO));
    }

    #[test]
    fn when_nobody_is_served_any_more_all_have_the_patience_of_one() {
        let outages = away();
        outages.serve_while(|| false);
        assert!(!outages.is_waited_for(Duration::ZERO));
        assert!(!outages.is_waited_for(PATIENCE));
        outages.wait_anew();
        assert!(outages.is_waited_for(PATIENCE));
        assert!(outages.is_waited_for(Duration::ZERO));
    }

    #[test]
    fn each_outage_is_waited_for_by_itself() {
        let outages = away();
        outages.serve_while(|| false);
        assert!(!outages.is_waited_for(Duration::ZERO));
        outages.answered();
        assert!(outages.is_waited_for(Duration::ZERO));
        outages.failed("it is starting again");
        assert!(outages.is_waited_for(PATIENCE));
    }

    #[test]
    fn nobody_waits_for_the_end_of_an_outage_that_has_lasted_for_too_long() {
        let outages = away();
        outages.outlast(PATIENCE);
        assert!(outages.is_waited_for(Duration::ZERO));
        outages.outlast(Duration::ZERO);
        assert!(!outages.is_waited_for(PATIENCE));
        outages.answered();
        assert!(outages.is_waited_for(PATIENCE));
    }
}
