//! Tells others of commits, by a thread of its own, for engines over a server that passes texts on.
//!
//! To be told of one commit costs as much as of many, the server as well as who listens. So a few are sent at once, and of a
//! host that goes on what a few hundredths of a second bring together (a leaky bucket); but at once again where somebody
//! waits, for a lock or a session. Of a document that was written several times meanwhile, the last time is told. What could
//! not be sent becomes [`Notice::Lost`](super::Notice::Lost).

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::notice::word;
use super::{Commit, CommitError, StoreError};
use crate::ambient;
use crate::document::{Key, Kind, SessionId, Version};

/// The most bytes of a text: PostgreSQL takes fewer than 8000.
const TEXT_MAX: usize = 7900;
/// The time between two that are sent, of a host that goes on. Well below the 100 ms within which others are to see them.
const GATHER: Duration = Duration::from_millis(40);
/// What a host that was silent may send at once before that: sixteen.
const AHEAD: Duration = Duration::from_millis(15 * 40);
/// So many keys wait for no more: what would become too much is sent in pieces.
const ENOUGH: usize = 1024;
/// More than this and all are told to look at everything.
const KEYS_MAX: usize = 4096;
const LOST: &str = "lost";
/// The time between two attempts to say that something was not told.
const AGAIN: Duration = Duration::from_millis(100);
/// At last so often only: of a server that refuses all many may ask.
const AGAIN_MAX: Duration = Duration::from_secs(2);

struct Told {
    at: Option<Version>,
    by: Option<SessionId>,
    keys: Vec<Key>,
}

#[derive(Default)]
struct Gathered {
    told: Vec<Told>,
    keys: usize,
    is_awaited: bool,
    /// Each that is sent takes [`GATHER`]: until when all is taken.
    taken: Option<Instant>,
    ends: bool,
}

impl Gathered {
    fn add(&mut self, told: Told) {
        self.keys += told.keys.len();
        self.is_awaited |= told.keys.iter().any(is_awaited);
        self.told.push(told);
    }

    /// Until when more is waited for; nothing if this is to be sent now.
    fn waits_until(&self, now: Instant) -> Option<Instant> {
        let waits = self.keys < ENOUGH && !self.is_awaited && !self.ends;
        self.taken.filter(|taken| waits && *taken > now + AHEAD).map(|taken| taken - AHEAD)
    }

    /// Something is sent. What somebody waits for may be sent more often than there is room; nobody waits longer for that.
    fn sends(&mut self, now: Instant) {
        let taken = self.taken.map_or(now, |taken| taken.clamp(now, now + AHEAD));
        self.taken = Some(taken + GATHER);
    }

    fn take(&mut self) -> Vec<Told> {
        (self.keys, self.is_awaited) = (0, false);
        std::mem::take(&mut self.told)
    }
}

/// Whether somebody may stand still until this is heard. Of locks for which nobody waits nobody is told.
fn is_awaited(key: &Key) -> bool {
    matches!(key.kind(), Kind::Lock | Kind::Advisory | Kind::Session)
}

#[derive(Default)]
struct Shared {
    gathered: Mutex<Gathered>,
    changed: Condvar,
}

/// What is to be told, and the thread that tells it.
pub(super) struct Teller {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Teller {
    /// `send` sends texts that [`Notice::parse`](super::Notice::parse) reads.
    pub(super) fn new(
        name: &str,
        send: impl FnMut(&[String]) -> Result<(), StoreError> + Send + 'static,
    ) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared::default());
        let for_thread = Arc::clone(&shared);
        let thread = ambient::spawn(name, move || for_thread.run(send))
            .map_err(|error| StoreError::io("cannot start a thread", error))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Tells of what came of a commit, soon.
    pub(super) fn tell(&self, commit: &Commit, done: &Result<Version, CommitError>) {
        let at = match done {
            Ok(version) => Some(*version),
            // It may have been made, and then others must look.
            Err(CommitError::Store(StoreError::Unknown(_))) => None,
            Err(_) => return,
        };
        let keys: Vec<Key> = commit.told().cloned().collect();
        if keys.is_empty() {
            return;
        }
        let mut gathered = self.shared.gathered.lock();
        let waits = !gathered.told.is_empty();
        gathered.add(Told { at, by: commit.session, keys });
        // The thread that waits for more wakes up by itself.
        if !waits || gathered.waits_until(ambient::monotonic()).is_none() {
            self.shared.changed.notify_one();
        }
    }

    /// Whether a commit that is about to be made had better tell of itself, as part of what the server does: it is to be
    /// told at once. If so, it counts as what is sent.
    pub(super) fn is_due(&self, commit: &Commit) -> bool {
        let mut keys = commit.told().peekable();
        if keys.peek().is_none() {
            return false;
        }
        if keys.any(is_awaited) {
            return true;
        }
        let now = ambient::monotonic();
        let mut gathered = self.shared.gathered.lock();
        let is_due = gathered.told.is_empty() && gathered.waits_until(now).is_none();
        if is_due {
            gathered.sends(now);
        }
        is_due
    }

    /// Ends the thread once what was told has been sent, or could not be.
    pub(super) fn close(&self) {
        self.shared.gathered.lock().ends = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            log::error!("a thread that tells of changes has failed");
        }
    }
}

impl Shared {
    fn run(&self, mut send: impl FnMut(&[String]) -> Result<(), StoreError>) {
        // Something was not told: the next that is sent says so, after this pause.
        let mut gap: Option<Duration> = None;
        while let Some(told) = self.next(gap) {
            gap = match gap {
                None => {
                    let texts = texts(&told);
                    // A connection that was idle may have been closed meanwhile. To hear something twice does no harm.
                    match send(&texts).or_else(|_| send(&texts)) {
                        Ok(()) => None,
                        Err(error) => {
                            log::warn!("other mounts are not told of changes for a while: {error}");
                            Some(AGAIN)
                        }
                    }
                }
                Some(pause) => send(&[LOST.to_owned()]).err().map(|_| (pause * 2).min(AGAIN_MAX)),
            };
        }
    }

    /// What is to be told next, of which there is nothing after a gap; none at the end.
    fn next(&self, gap: Option<Duration>) -> Option<Vec<Told>> {
        let mut gathered = self.gathered.lock();
        if let Some(pause) = gap {
            // Half of it by chance, so that those who failed together do not come back together.
            let until =
                ambient::monotonic() + pause.mul_f64(0.5 + (ambient::random_u64() % 1024) as f64 / 2048.0);
            while !gathered.ends && !self.changed.wait_until(&mut gathered, until).timed_out() {}
            // What was said meanwhile is in the gap as well.
            gathered.take();
            return (!gathered.ends).then(Vec::new);
        }
        loop {
            let now = ambient::monotonic();
            match gathered.waits_until(now) {
                _ if gathered.told.is_empty() && gathered.ends => return None,
                _ if gathered.told.is_empty() => self.changed.wait(&mut gathered),
                Some(until) => drop(self.changed.wait_until(&mut gathered, until)),
                None => {
                    gathered.sends(now);
                    return Some(gathered.take());
                }
            }
        }
    }
}

/// The keys of each but for those that another one tells of the same session with a greater version, whichever came first.
/// A version that is not known stands for itself.
fn latest(told: &[Told]) -> Vec<(&Told, Vec<&Key>)> {
    let mut newest = HashMap::new();
    for (nth, one) in told.iter().enumerate() {
        for key in &one.keys {
            let newest = newest.entry((one.by, one.at.is_some(), key)).or_insert((one.at, nth));
            *newest = (*newest).max((one.at, nth));
        }
    }
    let mut latest: Vec<_> = told.iter().map(|one| (one, Vec::new())).collect();
    for (nth, one) in told.iter().enumerate() {
        let is_newest = |key: &&Key| newest[&(one.by, one.at.is_some(), *key)].1 == nth;
        latest[nth].1.extend(one.keys.iter().filter(is_newest));
    }
    latest
}

/// One line for each commit, as many as fit into a text.
fn texts(told: &[Told]) -> Vec<String> {
    let told = latest(told);
    if told.iter().map(|(_, keys)| keys.len()).sum::<usize>() > KEYS_MAX {
        return vec![LOST.to_owned()];
    }
    let (mut texts, mut text) = (Vec::new(), String::new());
    for (Told { at, by, .. }, keys) in told {
        let head = format!("{} {}", word(at.map(|at| at.0)), word(*by));
        let mut begun = false;
        for key in keys.into_iter().map(Key::to_string) {
            let more = key.len() + 1 + if begun { 0 } else { head.len() + 1 };
            if !text.is_empty() && text.len() + more > TEXT_MAX {
                texts.push(std::mem::take(&mut text));
                begun = false;
            }
            if !begun {
                if head.len() + 1 + key.len() > TEXT_MAX {
                    texts.push(LOST.to_owned());
                    continue;
                }
                if !text.is_empty() {
                    text.push('\n');
                }
                text.push_str(&head);
                begun = true;
            }
            text.push(' ');
            text.push_str(&key);
        }
    }
    if !text.is_empty() {
        texts.push(text);
    }
    texts
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::document::Ino;
    use crate::store::Notice;

    fn told(at: Option<u64>, keys: impl IntoIterator<Item = Key>) -> Told {
        Told { at: at.map(Version), by: Some(SessionId(7)), keys: keys.into_iter().collect() }
    }

    fn nodes(inos: std::ops::Range<u64>) -> Vec<Key> {
        inos.map(|ino| Key::Node(Ino(ino))).collect()
    }

    fn heard(told: &[Told]) -> Vec<(Option<u64>, Key)> {
        let texts = texts(told);
        assert!(texts.iter().all(|text| text.len() <= TEXT_MAX));
        let mut heard = Vec::new();
        for notice in texts.iter().flat_map(|text| Notice::parse(text)) {
            let Notice::Changed { at, by, keys } = notice else { panic!("{texts:?}") };
            assert_eq!(by, Some(SessionId(7)));
            heard.extend(keys.into_iter().map(|key| (at.map(|at| at.0), key)));
        }
        heard
    }

    #[test]
    fn what_is_told_is_heard() {
        for size in [1, 3, 700, 4000] {
            let told =
                [told(Some(8), nodes(0..size)), told(None, [Key::Volume]), told(Some(9), nodes(5000..5002))];
            let all =
                told.iter().flat_map(|one| one.keys.iter().map(|key| (one.at.map(|at| at.0), key.clone())));
            assert_eq!(heard(&told), all.collect::<Vec<_>>(), "{size}");
        }
        assert_eq!(texts(&[told(Some(8), nodes(0..3)), told(Some(9), nodes(3..6))]).len(), 1);
    }

    #[test]
    fn of_what_is_written_again_the_last_time_is_told() {
        let mut all = vec![told(Some(1), nodes(0..2)), told(None, nodes(0..1)), told(Some(2), nodes(1..3))];
        let key = |ino| Key::Node(Ino(ino));
        assert_eq!(heard(&all), [(Some(1), key(0)), (None, key(0)), (Some(2), key(1)), (Some(2), key(2))]);
        all.push(Told { at: Some(Version(3)), by: None, keys: nodes(0..3) });
        let counts = |all: &[Told]| latest(all).iter().map(|(_, keys)| keys.len()).collect::<Vec<_>>();
        assert_eq!(counts(&all), [1, 1, 2, 3]);
        all.swap(0, 2);
        assert_eq!(counts(&all), [2, 1, 1, 3], "whichever came first");
    }

    #[test]
    fn too_much_is_a_loss() {
        assert_eq!(texts(&[told(None, nodes(0..KEYS_MAX as u64 + 1))]), [LOST]);
        let long = Key::Lock("%2F".repeat(TEXT_MAX).into());
        assert_eq!(
            texts(&[told(Some(1), [Key::Volume, long, Key::Node(Ino(1))])])[1..],
            [LOST, "1 0000000000000007 node:1"]
        );
        assert_eq!(Notice::parse(LOST).collect::<Vec<_>>(), [Notice::Lost]);
    }

    #[test]
    fn what_is_enough_and_what_somebody_waits_for_ends_the_gathering() {
        let now = ambient::monotonic();
        let waits = |keys: Vec<Key>, taken| {
            let mut gathered = Gathered { taken, ..Gathered::default() };
            gathered.add(told(None, keys));
            gathered.waits_until(now)
        };
        assert_eq!(waits(nodes(0..1), None), None);
        let (at_once, later) = (Some(now + AHEAD), Some(now + AHEAD + GATHER));
        assert_eq!(waits(nodes(0..1), at_once), None);
        assert_eq!(waits(nodes(0..1), later), Some(now + GATHER));
        assert_eq!(waits(nodes(0..ENOUGH as u64), later), None);
        for key in [Key::Lock("%2Fa".into()), Key::Advisory(Ino(4)), Key::Session(SessionId(1))] {
            assert_eq!(waits(vec![Key::Volume, key], later), None);
        }
    }

    /// It did, and what a host changed was seen a second later while others waited for its locks.
    #[test]
    fn what_is_awaited_keeps_nothing_from_being_sent_soon() {
        let now = ambient::monotonic();
        let mut gathered = Gathered::default();
        for _ in 0..100 {
            gathered.add(told(None, [Key::Lock("%2Fa".into())]));
            assert_eq!(gathered.waits_until(now), None);
            gathered.sends(now);
            gathered.take();
        }
        gathered.add(told(None, nodes(0..1)));
        assert_eq!(gathered.waits_until(now), Some(now + GATHER));
    }

    fn change(ino: u64) -> Commit {
        Commit::new().delete(Key::Node(Ino(ino)))
    }

    #[test]
    fn some_are_sent_at_once() {
        let now = ambient::monotonic();
        let mut gathered = Gathered::default();
        for _ in 0..16 {
            assert_eq!(gathered.waits_until(now), None);
            gathered.sends(now);
        }
        assert_eq!(gathered.waits_until(now), Some(now + GATHER));
        assert_eq!(gathered.waits_until(now + GATHER), None);
        gathered.sends(now + GATHER);
        assert_eq!(gathered.waits_until(now + GATHER), Some(now + GATHER * 2));
        gathered.sends(now + AHEAD * 3);
        assert_eq!(gathered.waits_until(now + AHEAD * 3), None, "no more than these are saved up");
    }

    #[test]
    fn what_is_due_tells_of_itself() {
        let teller = Teller::new("teller", |_| Ok(())).unwrap();
        assert!(!teller.is_due(&Commit::new().absent(Key::Volume)), "it tells nothing");
        assert_eq!(teller.shared.gathered.lock().taken, None);
        assert!(teller.is_due(&change(0)));
        assert!(teller.shared.gathered.lock().taken.is_some());
        teller.shared.gathered.lock().taken = Some(ambient::monotonic() + AHEAD * 100);
        assert!(!teller.is_due(&change(0)));
        assert!(teller.is_due(&Commit::new().delete(Key::Advisory(Ino(5)))));
    }

    #[test]
    fn what_is_not_due_is_gathered() {
        let (sender, sent) = mpsc::channel();
        let send = move |texts: &[String]| sender.send(texts.to_vec()).map_err(|_| StoreError::Fenced);
        let teller = Teller::new("teller", send).unwrap();
        teller.shared.gathered.lock().taken = Some(ambient::monotonic() + AHEAD * 100);
        for ino in 1..4 {
            teller.tell(&change(ino), &Ok(Version(ino)));
            teller.tell(&change(ino), &Err(CommitError::Conflict(Key::Volume)));
        }
        teller.tell(&Commit::new().delete(Key::Advisory(Ino(5))), &Ok(Version(5)));
        assert_eq!(sent.recv().unwrap(), ["1 - node:1\n2 - node:2\n3 - node:3\n5 - advisory:5"]);
        teller.tell(&change(6), &Ok(Version(6)));
        teller.close();
        assert_eq!(sent.recv().unwrap(), ["6 - node:6"], "before the end");
    }

    #[test]
    fn what_was_not_sent_is_told_as_a_loss() {
        let (sender, sent) = mpsc::channel();
        let mut failures = 5;
        let send = move |texts: &[String]| {
            sender.send(texts.to_vec()).map_err(|_| StoreError::Fenced)?;
            failures -= 1;
            if failures >= 0 { Err(StoreError::Fenced) } else { Ok(()) }
        };
        let teller = Teller::new("teller", send).unwrap();
        teller.tell(&change(1), &Ok(Version(1)));
        for _ in 0..2 {
            assert_eq!(sent.recv().unwrap(), ["1 - node:1"]);
        }
        let begun = ambient::monotonic();
        teller.tell(&change(2), &Ok(Version(2)));
        for _ in 0..4 {
            assert_eq!(sent.recv().unwrap(), [LOST]);
        }
        assert!(begun.elapsed() >= AGAIN * 7, "it waits between, each time twice as long");
        teller.tell(&change(3), &Ok(Version(3)));
        assert_eq!(sent.recv().unwrap(), ["3 - node:3"]);
        teller.close();
    }
}
