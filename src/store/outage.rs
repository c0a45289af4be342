//! Since when an engine on another host has not answered, and why: for people, and for nothing else.

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
#[derive(Debug, Default)]
pub(super) struct Outages {
    /// So that a request that works costs one look.
    away: AtomicBool,
    now: Mutex<Option<Outage>>,
}

impl Outages {
    /// A request has failed, and the next one may do better.
    pub(super) fn failed(&self, cause: &str) {
        let mut now = self.now.lock();
        match &mut *now {
            Some(outage) => cause.clone_into(&mut outage.cause),
            None => {
                log::warn!("the store does not answer: {cause}; operations wait for it");
                *now = Some(Outage { since: ambient::wall_clock(), cause: cause.to_owned() });
                self.away.store(true, Relaxed);
            }
        }
    }

    /// A request was answered.
    pub(super) fn answered(&self) {
        if !self.away.load(Relaxed) {
            return;
        }
        let ended = self.now.lock().take();
        self.away.store(false, Relaxed);
        if let Some(outage) = ended {
            let away = ambient::wall_clock().duration_since(outage.since).unwrap_or_default();
            log::warn!("the store answers again, after {:.1} s", away.as_secs_f64());
        }
    }

    /// The outage of this moment.
    pub(super) fn now(&self) -> Option<Outage> {
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
