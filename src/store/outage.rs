//! Since when an engine on another host, or an object store, has not answered, and why: for people, and for nothing else.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::SystemTime;

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
#[derive(Debug)]
pub(crate) struct Outages {
    /// Who was asked.
    what: &'static str,
    /// So that a request that works costs one look.
    away: AtomicBool,
    now: Mutex<Option<Outage>>,
}

impl Default for Outages {
    fn default() -> Self {
        Self::of("the store")
    }
}

impl Outages {
    /// Of `what`, which people are told of.
    pub(crate) fn of(what: &'static str) -> Self {
        Self { what, away: AtomicBool::new(false), now: Mutex::default() }
    }

    /// A request has failed, and the next one may do better.
    pub(crate) fn failed(&self, cause: &str) {
        let mut now = self.now.lock();
        match &mut *now {
            Some(outage) => cause.clone_into(&mut outage.cause),
            None => {
                log::warn!("{} does not answer: {cause}; operations wait for it", self.what);
                *now = Some(Outage { since: ambient::wall_clock(), cause: cause.to_owned() });
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
        if let Some(outage) = ended {
            let away = ambient::wall_clock().duration_since(outage.since).unwrap_or_default();
            log::warn!("{} answers again, after {:.1} s", self.what, away.as_secs_f64());
        }
    }

    /// The outage of this moment.
    pub(crate) fn now(&self) -> Option<Outage> {
        self.now.lock().clone()
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
}
