//! What the load programs share: arguments, the clock, seeded randomness, thin system calls, the `lockwood` command.
//! Uses `std` and `libc` only, never the lockwood library: a judge shares no code with what it judges.

#![allow(dead_code)] // Each program uses its own part of this.

pub(crate) mod args;
pub(crate) mod command;
pub(crate) mod json;
pub(crate) mod rng;
pub(crate) mod sys;

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

/// An error that is printed as it is: it says what happened and what to do.
pub(crate) type Res<T> = Result<T, String>;

/// Time since the first call, by the monotonic clock.
pub(crate) fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// A seed for those who gave none; always printed, so that the run can be replayed.
pub(crate) fn fresh_seed() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(1, |d| d.as_nanos() as u64 % 1_000_000_007)
}

/// The middle value (mean of the two middle ones); 0 for an empty slice.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Runs `body` for each of `items` on a named thread of its own and gathers the results in order.
pub(crate) fn in_parallel<I: Send, T: Send>(
    name: &str,
    items: impl IntoIterator<Item = I>,
    body: impl Fn(I) -> Res<T> + Sync,
) -> Res<Vec<T>> {
    let body = &body;
    std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for (index, item) in items.into_iter().enumerate() {
            let builder = std::thread::Builder::new().name(format!("{name}-{index}"));
            let handle = builder.spawn_scoped(scope, move || body(item));
            handles.push(handle.map_err(|e| format!("cannot start a thread: {e}"))?);
        }
        handles.into_iter().map(|h| h.join().map_err(|_| format!("a {name} thread panicked"))?).collect()
    })
}
