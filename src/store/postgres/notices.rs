//! Who changed what, told by NOTIFY and heard by LISTEN, each on a connection and a thread of its own.
//!
//! A payload is the text of a notice, and stays below the 8000 bytes that the server takes. To be told of one commit costs
//! as much as of many, the server as well as who listens. So the first is sent at once, and of a host that goes on what a
//! few hundredths of a second bring together; but at once again where somebody waits, for a lock or a session. What could
//! not be sent or heard becomes [`Notice::Lost`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::connection::{Call, Connection, RoundTrips, Sql};
use super::pool::{Pool, jittered};
use super::value::Value;
use super::{Commit, Listener, Notice, error};
use crate::ambient;
use crate::document::{Key, Kind, SessionId, Version};
use crate::store::StoreError;
use crate::store::notice::word;

const PAYLOAD_MAX: usize = 7900;
/// The time between two that are sent. Well below the 100 ms within which others are to see a change.
const GATHER: Duration = Duration::from_millis(40);
/// So many keys wait for no more: what would become too much is sent in pieces.
const ENOUGH: usize = 1024;
/// More than this and all are told to look at everything.
const BATCH_MAX: usize = 4096;
const LOST: &str = "lost";
const NOTIFY: &str = "SELECT pg_notify($1, payload) FROM unnest(CAST($2 AS text[])) AS payload";
/// How soon a thread sees that the store is closed.
const GLANCE: Duration = Duration::from_millis(100);

struct Told {
    at: Option<Version>,
    by: Option<SessionId>,
    keys: Vec<Key>,
}

impl Told {
    /// Whether somebody may stand still until this is heard. Of locks for which nobody waits nobody is told.
    fn is_awaited(&self) -> bool {
        self.keys.iter().any(|key| matches!(key.kind(), Kind::Lock | Kind::Advisory | Kind::Session))
    }
}

type Listeners = Arc<Mutex<Vec<Arc<dyn Listener>>>>;

/// The threads that tell and hear.
pub(super) struct Notices {
    told: Mutex<Option<Sender<Told>>>,
    teller: Mutex<Option<JoinHandle<()>>>,
    hearer: Mutex<Option<JoinHandle<()>>>,
    listeners: Listeners,
}

impl Notices {
    pub(super) fn new(pool: &Arc<Pool>) -> Result<Self, StoreError> {
        let (told, tell) = mpsc::channel();
        let pool = Arc::clone(pool);
        let teller = ambient::spawn("pg-notify", move || teller(&pool, &tell))
            .map_err(|error| StoreError::io("cannot start a thread", error))?;
        Ok(Self {
            told: Mutex::new(Some(told)),
            teller: Mutex::new(Some(teller)),
            hearer: Mutex::default(),
            listeners: Listeners::default(),
        })
    }

    /// Tells of a commit, soon. `at`: its version, if it is known whether it was made.
    pub(super) fn tell(&self, commit: &Commit, at: Option<Version>) {
        let keys: Vec<Key> = commit.told().cloned().collect();
        if keys.is_empty() {
            return;
        }
        if let Some(told) = &*self.told.lock() {
            // It fails only if the thread is gone, which happens at the end.
            let _ = told.send(Told { at, by: commit.session, keys });
        }
    }

    pub(super) fn listen(&self, pool: &Arc<Pool>, listener: Arc<dyn Listener>) -> Result<(), StoreError> {
        let mut hearer = self.hearer.lock();
        if hearer.is_none() {
            let connection = pool.keep_trying(pool.deadline(), |within| listening(pool, within))?;
            let (pool, listeners) = (Arc::clone(pool), Arc::clone(&self.listeners));
            let thread = ambient::spawn("pg-listen", move || hear(&pool, &listeners, connection))
                .map_err(|error| StoreError::io("cannot start a thread", error))?;
            *hearer = Some(thread);
        }
        self.listeners.lock().push(listener);
        Ok(())
    }

    /// Ends the threads once what was told has been sent.
    pub(super) fn close(&self, pool: &Pool) {
        drop(self.told.lock().take());
        pool.closing.store(true, Ordering::Relaxed);
        for thread in [&self.teller, &self.hearer] {
            if let Some(thread) = thread.lock().take()
                && thread.join().is_err()
            {
                log::error!("a thread of {} has failed", pool.target);
            }
        }
    }
}

fn payloads(told: &[Told]) -> Vec<String> {
    if told.iter().map(|told| told.keys.len()).sum::<usize>() > BATCH_MAX {
        return vec![LOST.to_owned()];
    }
    let mut payloads: Vec<String> = Vec::new();
    for Told { at, by, keys } in told {
        let head = format!("{} {}", word(at.map(|at| at.0)), word(*by));
        let mut payload = head.clone();
        for key in keys.iter().map(Key::to_string) {
            if payload.len() + 1 + key.len() > PAYLOAD_MAX && payload.len() > head.len() {
                payloads.push(std::mem::replace(&mut payload, head.clone()));
            }
            if payload.len() + 1 + key.len() > PAYLOAD_MAX {
                payloads.push(LOST.to_owned());
                continue;
            }
            payload.push(' ');
            payload.push_str(&key);
        }
        if payload.len() > head.len() {
            payloads.push(payload);
        }
    }
    payloads
}

fn teller(pool: &Pool, tell: &Receiver<Told>) {
    let mut connection: Option<Connection> = None;
    // Something was not told: the next that is sent says so.
    let mut gap = false;
    let mut last_sent: Option<Instant> = None;
    while let Ok(first) = tell.recv() {
        let batch = gather(first, tell, last_sent.map(|at| at + GATHER));
        last_sent = Some(ambient::monotonic());
        let payloads = if gap { vec![LOST.to_owned()] } else { payloads(&batch) };
        gap = send(pool, &mut connection, &payloads).is_err();
        while gap && !pool.closing.load(Ordering::Relaxed) {
            std::thread::sleep(jittered(GLANCE));
            // What was said meanwhile is in the gap as well.
            tell.try_iter().for_each(drop);
            gap = send(pool, &mut connection, &[LOST.to_owned()]).is_err();
        }
    }
}

/// What is told until then, or until it is enough or somebody waits for it.
fn gather(first: Told, tell: &Receiver<Told>, until: Option<Instant>) -> Vec<Told> {
    let (mut keys, mut is_awaited) = (first.keys.len(), first.is_awaited());
    let mut batch = vec![first];
    while let Some(until) = until
        && keys < ENOUGH
        && !is_awaited
        && let Ok(told) = tell.recv_timeout(until.saturating_duration_since(ambient::monotonic()))
    {
        keys += told.keys.len();
        is_awaited = told.is_awaited();
        batch.push(told);
    }
    batch.extend(tell.try_iter());
    batch
}

fn send(pool: &Pool, connection: &mut Option<Connection>, payloads: &[String]) -> Result<(), StoreError> {
    let within = Duration::from_secs(5);
    let mut open = match connection.take() {
        Some(open) if open.usable() => open,
        _ => {
            let mut fresh = pool.connect(within).map_err(|(error, _)| error)?;
            // A notice that a crash of the server loses tells of nothing that a listener still has.
            fresh
                .batch("SET synchronous_commit = off", within)
                .map_err(|failure| error::running(&pool.target, "cannot notify", &failure))?;
            fresh
        }
    };
    let params = vec![Value::Text(pool.target.channel()), Value::Texts(payloads.to_vec())];
    // Not counted: nobody waits for it.
    match open.run(&[Call { sql: Sql::Text(NOTIFY), params }], within, &RoundTrips::default()) {
        Ok(_) => {
            *connection = Some(open);
            Ok(())
        }
        // What a replica refuses it refuses for ever, and another connection may lead to the primary.
        Err(failure) => Err(error::running(&pool.target, "cannot notify", &failure)),
    }
}

fn listening(pool: &Pool, within: Duration) -> Result<Connection, (StoreError, bool)> {
    let mut connection = pool.connect(within)?;
    // It waits for ever, and is in no transaction.
    let listen = format!("LISTEN {}", pool.target.channel());
    match connection.batch(&listen, within) {
        Ok(()) => Ok(connection),
        Err(failure) => Err((error::running(&pool.target, "cannot listen", &failure), false)),
    }
}

fn hear(pool: &Pool, listeners: &Listeners, connection: Connection) {
    let tell = |notice: Notice| {
        let listeners = listeners.lock().clone();
        for listener in listeners {
            listener.notice(&notice);
        }
    };
    let mut connection = Some(connection);
    while !pool.closing.load(Ordering::Relaxed) {
        let Some(open) = &mut connection else {
            match listening(pool, Duration::from_secs(5)) {
                Ok(fresh) => {
                    connection = Some(fresh);
                    tell(Notice::Lost);
                }
                Err((error, _)) => {
                    log::debug!("{error}; trying again");
                    std::thread::sleep(jittered(GLANCE * 2));
                }
            }
            continue;
        };
        match open.notifications(GLANCE) {
            Ok(heard) => heard.iter().for_each(|heard| tell(Notice::parse(heard.payload()))),
            Err(_) => {
                log::warn!("{}: the connection that tells of others' changes was lost", pool.target);
                tell(Notice::Lost);
                connection = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Ino;

    #[test]
    fn what_is_told_is_heard() {
        let keys: Vec<Key> = (0..3000).map(|ino| Key::Node(Ino(ino))).collect();
        let known = Told { at: Some(Version(8)), by: Some(SessionId(7)), keys: keys.clone() };
        let told = [known, Told { at: None, by: None, keys: vec![Key::Volume] }];
        let payloads = payloads(&told);
        assert!(payloads.len() > 2 && payloads.iter().all(|payload| payload.len() <= PAYLOAD_MAX));
        let mut heard = Vec::new();
        for payload in &payloads {
            let Notice::Changed { at, by, keys } = Notice::parse(payload) else { panic!("{payload}") };
            heard.extend(keys.into_iter().map(|key| (at, by, key)));
        }
        let of_both = |key| (Some(Version(8)), Some(SessionId(7)), key);
        let expected = keys.into_iter().map(of_both).chain([(None, None, Key::Volume)]);
        assert_eq!(heard, expected.collect::<Vec<_>>());
    }

    #[test]
    fn what_is_enough_and_what_somebody_waits_for_ends_the_gathering() {
        let (tell, told) = mpsc::channel();
        let of = |key| Told { at: None, by: None, keys: vec![key] };
        let begun = ambient::monotonic();
        let gathered = |first, wait| gather(of(first), &told, Some(begun + wait)).len();
        for key in [Key::Node(Ino(1)), Key::Lock("%2Fa".into()), Key::Node(Ino(2))] {
            tell.send(of(key)).unwrap();
        }
        let long = Duration::from_secs(60);
        assert_eq!(gathered(Key::Node(Ino(3)), long), 4);
        assert_eq!(gathered(Key::Advisory(Ino(4)), long), 1);
        assert_eq!(gather(of(Key::Node(Ino(5))), &told, None).len(), 1);
        let much = Told { at: None, by: None, keys: vec![Key::Volume; ENOUGH] };
        assert_eq!(gather(much, &told, Some(begun + long)).len(), 1);
        assert!(begun.elapsed() < long);
        assert_eq!(gathered(Key::Node(Ino(6)), GATHER), 1);
        assert!(begun.elapsed() >= GATHER);
    }

    #[test]
    fn too_much_is_a_loss() {
        let many = [Told { at: None, by: None, keys: vec![Key::Volume; BATCH_MAX + 1] }];
        assert_eq!(payloads(&many), [LOST]);
        assert_eq!(Notice::parse(LOST), Notice::Lost);
    }
}
