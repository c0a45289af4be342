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

/// The last commit that had been acknowledged when somebody asked a server who it is, and who had acknowledged it: the
/// answer tells of that one for certain, and not of what came after the question.
pub(super) struct Asked(Option<(Version, Arc<str>)>);

#[derive(Debug, Default)]
struct State {
    /// The one that was met last.
    server: Server,
    /// What that one has jumped over.
    jumps: Jumps,
    /// The last commit that was acknowledged and is not known to be gone, and who has it: who acknowledged it, or a later
    /// one that was found to.
    last: Option<(Version, Arc<str>)>,
    /// The last one that is known to be gone.
    gone: Version,
    /// How often commits were found to be gone.
    count: u64,
}

impl State {
    fn has_jumped(&self, version: Version) -> bool {
        self.jumps.iter().any(|&(from, to)| from < version.0 && version.0 <= to)
    }

    /// Each once, however many connections find out.
    fn lost(&mut self, version: Version) {
        let server = self.server.clone();
        if self.last.as_ref().is_some_and(|(last, by)| *last <= version && server.as_ref() != Some(by)) {
            self.last = None;
        }
        if version <= self.gone {
            return;
        }
        self.gone = version;
        self.count += 1;
        log::error!(
            "the server has lost changes that it had acknowledged, the last of this mount among them (version {}): \
             what was not synced before is gone, and the next fsync of what was open then fails",
            version.0
        );
    }
}

impl Losses {
    /// To be called before a server is asked who it is.
    pub(super) fn ask(&self) -> Asked {
        Asked(self.0.lock().last.clone())
    }

    /// A connection was made, and this is what `arrive.lua` said there. Returns which server it is.
    pub(super) fn arrived(&self, asked: Asked, answer: &Value) -> Server {
        let said = said(answer);
        let mut state = self.0.lock();
        let Some((server, counter, jumps)) = said else {
            // Nothing is known of one that does not say, nor by it.
            (state.server, state.last) = (None, None);
            return None;
        };
        state.jumps = jumps;
        state.server = Some(Arc::clone(&server));
        // What lies in a jump is gone, whenever it was made.
        if let Some((version, by)) = &state.last
            && *by != server
            && state.has_jumped(*version)
        {
            let version = *version;
            state.lost(version);
        }
        if let Asked(Some((version, by))) = asked
            && by != server
        {
            if version.0 > counter || state.has_jumped(version) {
                state.lost(version);
            } else if let Some((last, by)) = &mut state.last
                && *last == version
            {
                *by = Arc::clone(&server);
            }
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
        // Its answer may come after another connection has met the next server. Whether that has it cannot be told by its
        // counter, which it may have read before: the next one that is asked knows.
        if state.server.as_ref() != Some(server) && state.has_jumped(version) {
            return state.lost(version);
        }
        if state.server.as_ref() == Some(server) {
            // A server that has lost a jump, too, may go on below what is gone.
            state.gone = state.gone.min(Version(version.0.saturating_sub(1)));
        }
        if state.last.as_ref().is_none_or(|(last, _)| *last < version) {
            state.last = Some((version, Arc::clone(server)));
        }
    }

    /// Whether this is the server that was met last. If not, it may be one of before, or have a new name.
    pub(super) fn is_current(&self, server: &Server) -> bool {
        self.0.lock().server == *server
    }

    /// Whether a sync on a connection to `server` waits for all that was acknowledged and is not known to be gone.
    pub(super) fn has_all(&self, server: &Server) -> bool {
        self.0.lock().last.as_ref().is_none_or(|(_, by)| server.as_ref() == Some(by))
    }

    /// How often commits were found to be gone.
    pub(super) fn count(&self) -> u64 {
        self.0.lock().count
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

    fn meet(losses: &Losses, server: &str, counter: u64, jumps: &str) -> Server {
        losses.arrived(losses.ask(), &answer(server, counter, jumps))
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
            let first = meet(&losses, "a", 1, "");
            losses.made(&of_node(), Version(last), &first);
            assert!(losses.has_all(&first));
            let second = meet(&losses, "b", counter, jumps);
            assert!(losses.is_current(&second) && !losses.is_current(&first));
            assert!(losses.has_all(&second));
            assert_eq!(losses.count(), u64::from(gone), "{last} {jumps}");
            // Once, also if the next connection finds the same.
            meet(&losses, "b", counter, jumps);
            assert_eq!(losses.count(), u64::from(gone));
        }
    }

    /// The history of a server has another name when a replica joins it.
    #[test]
    fn a_server_that_goes_on_under_another_name_has_lost_nothing() {
        let losses = Losses::default();
        let old = meet(&losses, "a 1", 1, "");
        losses.made(&of_node(), Version(1000), &old);
        let new = meet(&losses, "a 2", 2000, "1000-2000 ");
        assert!(losses.has_all(&new));
        // On a connection of before.
        losses.made(&of_node(), Version(2001), &old);
        assert!(!losses.has_all(&new), "it must be asked again");
        // Asked before that commit, answered after it.
        let losses_asked = losses.ask();
        losses.made(&of_node(), Version(2002), &old);
        losses.arrived(losses_asked, &answer("a 2", 2001, "1000-2000 "));
        assert!(!losses.has_all(&new));
        meet(&losses, "a 2", 2002, "1000-2000 ");
        assert!(losses.has_all(&new));
        assert_eq!(losses.count(), 0);
    }

    #[test]
    fn what_was_made_between_question_and_answer_is_looked_at_too() {
        let losses = Losses::default();
        let first = meet(&losses, "a", 1, "");
        losses.made(&of_node(), Version(100), &first);
        let asked = losses.ask();
        losses.made(&of_node(), Version(101), &first);
        let second = losses.arrived(asked, &answer("b", 2000, "100-2000 "));
        losses.made(&of_node(), Version(2001), &second);
        assert_eq!(losses.count(), 1);
    }

    /// A server may lose its jump with the rest, and take a shorter one.
    #[test]
    fn versions_below_those_that_are_gone_are_lost_like_others() {
        let losses = Losses::default();
        let first = meet(&losses, "a", 1, "");
        losses.made(&of_node(), Version(1701), &first);
        let second = meet(&losses, "b", 1200, "100-1200 ");
        assert_eq!(losses.count(), 1);
        losses.made(&of_node(), Version(1201), &second);
        // Another connection's answer, that comes late.
        losses.made(&of_node(), Version(1200), &first);
        assert!(losses.has_all(&second));
        let before = losses.count();
        meet(&losses, "c", 3000, "100-1200 1200-3000 ");
        assert_eq!(losses.count(), before + 1);
    }

    #[test]
    fn an_answer_that_comes_after_the_next_server_was_met_is_looked_at_too() {
        let losses = Losses::default();
        let first = meet(&losses, "a", 1, "");
        let second = meet(&losses, "b", 2000, "100-2000 ");
        losses.made(&of_node(), Version(100), &first);
        assert!(!losses.has_all(&second));
        losses.made(&of_node(), Version(150), &first);
        assert_eq!(losses.count(), 1);
        meet(&losses, "b", 2000, "100-2000 ");
        assert!(losses.has_all(&second));
        assert_eq!(losses.count(), 1);
    }

    #[test]
    fn beats_and_servers_that_do_not_say_are_passed_over() {
        let losses = Losses::default();
        let unsaid = Value::Array(vec![Value::BulkString(b"unsaid".to_vec())]);
        assert_eq!(losses.arrived(losses.ask(), &unsaid), None);
        losses.made(&of_node(), Version(9), &None);
        let first = meet(&losses, "a", 1, "");
        losses.made(&Commit::new().delete(Key::Lock("/a".into())), Version(5), &first);
        meet(&losses, "b", 2000, "2-2000 ");
        assert_eq!(losses.count(), 0);
        losses.made(&of_node(), Version(2001), &meet(&losses, "b", 2000, ""));
        let silent = losses.arrived(losses.ask(), &unsaid);
        assert!(losses.is_current(&silent) && losses.has_all(&silent), "as before it could be asked");
    }
}
