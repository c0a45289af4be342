//! That a server is full: said in the log, where whoever keeps it looks. Programs are told that no space is left, and the
//! tree does not know of which server.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::StoreError;
use crate::ambient;

/// Programs try again, and each refusal is the same news.
const SAID_EVERY: Duration = Duration::from_secs(60);

static SAID: Mutex<Option<Instant>> = Mutex::new(None);

/// The error for the caller. `cause` names the server, and says what to do.
pub(super) fn no_space(cause: &str) -> StoreError {
    if is_news(&mut SAID.lock(), ambient::monotonic()) {
        log::error!("no space is left: {cause}");
    }
    StoreError::NoSpace
}

fn is_news(said: &mut Option<Instant>, now: Instant) -> bool {
    let is_news = said.is_none_or(|said| now.saturating_duration_since(said) >= SAID_EVERY);
    if is_news {
        *said = Some(now);
    }
    is_news
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_stays_full_is_said_to_be_so_once_a_minute() {
        let (mut said, begun) = (None, ambient::monotonic());
        let news =
            [0, 1, 59, 60, 61, 119, 120, 500].map(|at| is_news(&mut said, begun + Duration::from_secs(at)));
        assert_eq!(news, [true, false, false, true, false, false, true, true]);
    }
}
