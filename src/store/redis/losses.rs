//! Whether what a server has acknowledged is still there behind a new connection: one that lost power, or a replica that
//! took over, may lack the last commits. Pure.
//!
//! What is kept is a prefix of the commits, so the last one of this client tells for all of them. `arrive.lua` says on each
//! new connection which server it is, how far its counter of versions is, and which versions it has jumped over when it
//! found that it had become another: a commit whose version lies there is gone.

use std::sync::Arc;

use parking_lot::Mutex;
use redis::Value;

use crate::document::{Kind, Version};
use crate::store::Commit;

/// As many bytes of jumps a server keeps: those of its last hundred starts or so.
pub(super) const JUMPS_KEPT_BYTES: usize = 4096;

/// Which process of a server it is; none of one that does not say.
pub(super) type Server = Option<Arc<str>>;

/// From, exclusive, to.
type Jumps = Vec<(u64, u64)>;

/// What one client has been told by its servers.
#[derive(Debug, Default)]
pub(super) struct Losses(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The one that was met last.
    server: Server,
    /// How far its counter was then, and what it has jumped over.
    counter: u64,
    jumps: Jumps,
    /// The last commit that was acknowledged, and by whom, if it is not known to be gone.
    last: Option<(Version, Arc<str>)>,
    /// How often commits were found to be gone, and how many times of these somebody was told of.
    count: u64,
    told: u64,
}

impl State {
    fn lacks(&self, version: Version) -> bool {
        let was_jumped = |&(from, to): &(u64, u64)| from < version.0 && version.0 <= to;
        version.0 > self.counter || self.jumps.iter().any(was_jumped)
    }

    fn lost(&mut self, version: Version) {
        self.count += 1;
        log::error!(
            "the server has lost changes that it had acknowledged, the last of this mount among them (version {}): \
             what was not synced before is gone, and the next fsync of what was open then fails",
            version.0
        );
    }
}

impl Losses {
    /// A connection was made, and this is what `arrive.lua` said there. Returns which server it is.
    pub(super) fn arrived(&self, answer: &Value) -> Server {
        let (server, counter, jumps) = said(answer)?;
        let mut state = self.0.lock();
        (state.counter, state.jumps) = (counter, jumps);
        state.server = Some(Arc::clone(&server));
        if let Some((version, by)) = state.last.clone()
            && by != server
            && state.lacks(version)
        {
            state.last = None;
            state.lost(version);
        }
        Some(server)
    }

    /// A commit was acknowledged on a connection to `server`.
    pub(super) fn made(&self, commit: &Commit, version: Version, server: &Server) {
        // Who beats again, or takes a lock again, has lost nothing; fences see to the rest.
        let lasts = |kind| !matches!(kind, Kind::Session | Kind::Lock | Kind::Advisory);
        let Some(server) = server.as_ref().filter(|_| commit.writes.iter().any(|w| lasts(w.key().kind())))
        else {
            return;
        };
        let mut state = self.0.lock();
        // Its answer may come after another connection has met the next server.
        if state.server.as_ref() != Some(server) && state.lacks(version) {
            return state.lost(version);
        }
        if state.last.as_ref().is_none_or(|(last, _)| *last < version) {
            state.last = Some((version, Arc::clone(server)));
        }
    }

    /// Whether a sync on a connection to `server` is one of the server that was met last.
    pub(super) fn is_current(&self, server: &Server) -> bool {
        self.0.lock().server == *server
    }

    /// How often commits were found to be gone.
    pub(super) fn count(&self) -> u64 {
        self.0.lock().count
    }

    /// Whether somebody is to be told who has begun to wait when there were `before`: all who waited meanwhile are, and one
    /// at least.
    pub(super) fn tell(&self, before: u64) -> bool {
        let mut state = self.0.lock();
        let tells = state.count > before || state.count > state.told;
        state.told = state.count;
        tells
    }
}

/// What the script has said; none if the server does not say.
fn said(answer: &Value) -> Option<(Arc<str>, u64, Jumps)> {
    let words: Vec<String> = redis::from_redis_value_ref(answer).ok()?;
    let [server, counter, jumps] = &words[..] else { return None };
    let jump = |text: &str| {
        let (from, to) = text.split_once('-')?;
        Some((from.parse().ok()?, to.parse().ok()?))
    };
    Some((server.as_str().into(), counter.parse().ok()?, jumps.split_whitespace().filter_map(jump).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Ino, Key};

    fn answer(server: &str, counter: u64, jumps: &str) -> Value {
        let words = [server, &counter.to_string(), jumps];
        Value::Array(words.map(|word| Value::BulkString(word.as_bytes().to_vec())).to_vec())
    }

    fn of_node() -> Commit {
        Commit::new().delete(Key::Node(Ino(7)))
    }

    #[test]
    fn what_lies_in_a_jump_or_beyond_the_counter_is_gone() {
        for (last, counter, jumps, gone) in [
            (100, 2000, "100-2000 ", false),
            (101, 2000, "100-2000 ", true),
            (101, 5000, "100-2000 2500-5000 ", true),
            (2200, 5000, "100-2000 2500-5000 ", false),
            (2600, 5000, "100-2000 2500-5000 ", true),
            (6000, 5000, "2500-5000 ", true),
            // A server that forgets everything keeps no note of that either.
            (1, 0, "", true),
        ] {
            let losses = Losses::default();
            let first = losses.arrived(&answer("a", 1, ""));
            losses.made(&of_node(), Version(last), &first);
            assert!(!losses.tell(0));
            let second = losses.arrived(&answer("b", counter, jumps));
            assert!(losses.is_current(&second) && !losses.is_current(&first));
            assert_eq!((losses.count(), losses.tell(0)), (u64::from(gone), gone), "{last} {jumps}");
            // Once, also if the next connection finds the same; and whoever comes later is not told.
            losses.arrived(&answer("b", counter, jumps));
            assert_eq!((losses.count(), losses.tell(losses.count())), (u64::from(gone), false));
        }
    }

    #[test]
    fn an_answer_that_comes_after_the_next_server_was_met_is_looked_at_too() {
        let losses = Losses::default();
        let first = losses.arrived(&answer("a", 1, ""));
        losses.arrived(&answer("b", 2000, "100-2000 "));
        losses.made(&of_node(), Version(100), &first);
        assert_eq!(losses.count(), 0);
        losses.made(&of_node(), Version(150), &first);
        assert_eq!(losses.count(), 1);
    }

    #[test]
    fn beats_and_servers_that_do_not_say_are_passed_over() {
        let losses = Losses::default();
        assert_eq!(losses.arrived(&Value::Array(vec![Value::BulkString(b"unsaid".to_vec())])), None);
        losses.made(&of_node(), Version(9), &None);
        let first = losses.arrived(&answer("a", 1, ""));
        losses.made(&Commit::new().delete(Key::Lock("/a".into())), Version(5), &first);
        losses.arrived(&answer("b", 2000, "2-2000 "));
        assert_eq!(losses.count(), 0);
    }
}
