//! What is kept of what a kernel was told, for as long as the kernel may go by it.

use std::time::{Duration, Instant};

use crate::ambient;

/// In two parts, of which the old one is dropped as a whole when something is added: nothing is kept for less than one
/// period, unless there is more than a part may have.
pub(super) struct Lately<Part> {
    period: Duration,
    begun: Instant,
    pub(super) new: Part,
    pub(super) old: Part,
}

impl<Part: Default> Lately<Part> {
    pub(super) fn new(period: Duration) -> Self {
        Self { period, begun: ambient::monotonic(), new: Part::default(), old: Part::default() }
    }

    /// The part to which something is to be added.
    pub(super) fn part(&mut self, is_full: impl FnOnce(&Part) -> bool) -> &mut Part {
        if is_full(&self.new) || self.begun.elapsed() > self.period {
            self.begun = ambient::monotonic();
            self.old = std::mem::take(&mut self.new);
        }
        &mut self.new
    }

    /// As if more than a period had passed.
    #[cfg(test)]
    pub(super) fn age(&mut self) {
        self.begun = self.begun.checked_sub(self.period * 2).unwrap();
    }
}
