//! What another process writes, read with a limit: the kernel may let it wait for a daemon that is stuck, and whoever read
//! its pipe directly would wait with it for ever.

use std::io::{BufRead as _, BufReader, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use lockwood::ambient::{self, monotonic};

use super::LIMIT;

/// The lines of a pipe.
pub(crate) struct Lines(Receiver<String>);

impl Lines {
    pub(crate) fn of(pipe: impl Read + Send + 'static) -> Self {
        let (sender, lines) = channel();
        let reader = ambient::spawn("lines", move || {
            // Until the end, or until nobody wants to know.
            BufReader::new(pipe).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        // Not joined: it ends with its pipe, which may be never.
        drop(reader.expect("a thread"));
        Self(lines)
    }

    /// The first of the lines to come that is such a one, or none within that time.
    pub(crate) fn find(&self, within: Duration, is_such: impl Fn(&str) -> bool) -> Option<String> {
        let end = monotonic() + within;
        loop {
            let line = self.0.recv_timeout(end.saturating_duration_since(monotonic())).ok()?;
            if is_such(&line) {
                return Some(line);
            }
        }
    }

    /// The next line.
    pub(crate) fn line(&self) -> String {
        self.find(LIMIT, |_| true).expect("it says something")
    }

    /// All that is left, until the end.
    pub(crate) fn rest(&self) -> String {
        let end = monotonic() + LIMIT;
        let mut text = String::new();
        loop {
            match self.0.recv_timeout(end.saturating_duration_since(monotonic())) {
                Ok(line) => text += &(line + "\n"),
                Err(RecvTimeoutError::Disconnected) => return text,
                Err(RecvTimeoutError::Timeout) => panic!("it does not end; so far: {text}"),
            }
        }
    }
}
