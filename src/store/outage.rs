//! Since when an engine on another host, or an object store, has not answered, and why; and until when it is waited for, if
//! that is not for each request to say.
//!
//! What is hard: an operation makes several requests, and each has the engine's patience. Nobody may wait for a mount that
//! goes away for the sum of these, nor may the first of them lose what a program has written. So once nobody is served any
//! more all requests together have the patience of one.

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

/// A store that has been away for less than this may only be starting again.
const JUST_AWAY: Duration = Duration::from_secs(1);

/// What the requests of an engine have met.
pub struct Outages {
    /// Who was asked.
    what: &'static str,
    /// So that a request that works costs one look.
    away: AtomicBool,
    now: Mutex<Option<(Outage, Instant)>>,
    /// Whether anybody is served.
    is_served: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
    /// When all requests give up.
    until: Mutex<Option<Instant>>,
}

impl Default for Outages {
    fn default() -> Self {
        Self::of("the store")
    }
}

impl Outages {
    /// Of `what`, which people are told of.
    pub(crate) fn of(what: &'static str) -> Self {
        let (away, now, is_served, until) = Default::default();
        Self { what, away, now, is_served, until }
    }

    /// A request has failed, and the next one may do better.
    pub(crate) fn failed(&self, cause: &str) {
        let mut now = self.now.lock();
        match &mut *now {
            Some((outage, _)) => cause.clone_into(&mut outage.cause),
            None => {
                log::warn!("{} does not answer: {cause}; operations wait for it", self.what);
                let outage = Outage { since: ambient::wall_clock(), cause: cause.to_owned() };
                *now = Some((outage, ambient::monotonic()));
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
        if let Some((_, since)) = ended {
            log::warn!("{} answers again, after {:.1} s", self.what, since.elapsed().as_secs_f64());
        }
    }

    /// The outage of this moment.
    pub fn now(&self) -> Option<Outage> {
        self.now.lock().as_ref().map(|(outage, _)| outage.clone())
    }

    /// For how long it has lasted, if there is one.
    pub(crate) fn lasts_for(&self) -> Option<Duration> {
        if !self.away.load(Relaxed) {
            return None;
        }
        self.now.lock().as_ref().map(|(_, since)| since.elapsed())
    }

    /// Says who is served; asked while requests wait. From when nobody is, all requests together wait for as long as one
    /// would. Only the first call counts.
    pub fn serve_while(&self, is_served: impl Fn() -> bool + Send + Sync + 'static) {
        if self.is_served.set(Box::new(is_served)).is_err() {
            log::error!("it was said already who is served by {}", self.what);
        }
    }

    /// No request waits for longer than this any more, from now on and all together.
    pub fn wait_at_most(&self, at_most: Duration) {
        let until = ambient::monotonic() + at_most;
        let mut known = self.until.lock();
        *known = Some(known.map_or(until, |known| known.min(until)));
    }

    /// Whether a request that has failed is tried again, as far as this is not for itself to say. `patience` is that of one.
    pub(crate) fn is_waited_for(&self, patience: Duration) -> bool {
        let Some(lasts_for) = self.lasts_for() else { return true };
        let mut until = self.until.lock();
        if until.is_none() && self.is_served.get().is_some_and(|is_served| !is_served()) {
            *until = Some(ambient::monotonic() + patience);
        }
        lasts_for < JUST_AWAY || until.is_none_or(|until| ambient::monotonic() < until)
    }
}

impl std::fmt::Debug for Outages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { what, away: _, now, is_served: _, until } = self;
        f.debug_struct("Outages").field("what", what).field("now", now).field("until", until).finish()
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

    /// An outage that does not look as if the store was only starting again.
    fn away() -> Outages {
        let outages = Outages::default();
        outages.failed("refused");
        std::thread::sleep(JUST_AWAY);
        outages
    }

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
        // From the first look on.
        assert!(outages.is_waited_for(Duration::from_millis(50)));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!outages.is_waited_for(Duration::from_secs(60)));
        outages.answered();
        assert!(outages.is_waited_for(Duration::ZERO));
        outages.failed("it may be starting again");
        assert!(outages.is_waited_for(Duration::ZERO));
    }

    #[test]
    fn the_shorter_of_two_bounds_counts() {
        let outages = away();
        outages.wait_at_most(Duration::from_secs(60));
        assert!(outages.is_waited_for(Duration::ZERO));
        outages.wait_at_most(Duration::ZERO);
        outages.wait_at_most(Duration::from_secs(60));
        assert!(!outages.is_waited_for(Duration::from_secs(60)));
    }
}
