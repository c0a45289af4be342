//! How long an operation waits for locks, and how whoever it works for ends the wait before. Imports nothing.

use std::fmt;
use std::time::{Duration, Instant};

/// A question to the caller: whether to give up. It is put to him now and then while an operation waits, with none of the
/// layer's own locks held, and may take a while.
pub type GiveUp<'a> = &'a dyn Fn() -> bool;

/// How often who waits asks, at least; seldomer when it has waited for long.
const ASK_FIRST: Duration = Duration::from_millis(20);
const ASK_LAST: Duration = Duration::from_millis(250);

/// After how much longer who has waited for so long asks (again) whether to give up.
pub fn ask_after(waited: Duration) -> Duration {
    (waited / 8).clamp(ASK_FIRST, ASK_LAST)
}

/// How long an operation waits: at the longest for, or until, `longest`.
#[derive(Clone, Copy)]
pub struct Wait<'a, T = Instant> {
    /// The bound, whatever the caller says.
    pub longest: T,
    /// Whether the caller wants to give up; none if he never does.
    pub give_up: Option<GiveUp<'a>>,
}

impl<T> Wait<'_, T> {
    /// Whether the caller wants to give up now.
    pub fn is_given_up(&self) -> bool {
        self.give_up.is_some_and(|asks| asks())
    }
}

impl<'a> Wait<'a> {
    /// The same for who measures from `now` on.
    pub fn since(self, now: Instant) -> Wait<'a, Duration> {
        Wait { longest: self.longest.saturating_duration_since(now), give_up: self.give_up }
    }
}

/// A wait that only its bound ends.
impl<T> From<T> for Wait<'_, T> {
    fn from(longest: T) -> Self {
        Self { longest, give_up: None }
    }
}

impl<T: fmt::Debug> fmt::Debug for Wait<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wait({:?}, {})", self.longest, if self.give_up.is_some() { "or less" } else { "whole" })
    }
}
