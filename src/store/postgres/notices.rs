//! Who changed what, told by NOTIFY and heard by LISTEN, each on a connection and a thread of its own.
//!
//! What could not be heard becomes [`Notice::Lost`], as what could not be sent does (`teller`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use super::connection::{Call, Connection, RoundTrips, Sql};
use super::pool::{Pool, jittered};
use super::value::Value;
use super::{Commit, CommitError, Listener, Notice, error};
use crate::ambient;
use crate::document::Version;
use crate::store::StoreError;
use crate::store::teller::Teller;

const NOTIFY: &str = "SELECT pg_notify($1, payload) FROM unnest(CAST($2 AS text[])) AS payload";
/// How soon a thread sees that the store is closed.
const GLANCE: Duration = Duration::from_millis(100);
/// Before a lost connection is made again, at first and at last: of a server that refuses all many may ask.
const AGAIN: Duration = Duration::from_millis(200);
const AGAIN_MAX: Duration = Duration::from_secs(2);

type Listeners = Arc<Mutex<Vec<Arc<dyn Listener>>>>;

/// The threads that tell and hear.
pub(super) struct Notices {
    teller: Teller,
    hearer: Mutex<Option<JoinHandle<()>>>,
    listeners: Listeners,
}

impl Notices {
    pub(super) fn new(pool: &Arc<Pool>) -> Result<Self, StoreError> {
        let pool = Arc::clone(pool);
        let mut connection = None;
        let teller = Teller::new("pg-notify", move |texts| send(&pool, &mut connection, texts))?;
        Ok(Self { teller, hearer: Mutex::default(), listeners: Listeners::default() })
    }

    /// Tells of what came of a commit, soon.
    pub(super) fn tell(&self, commit: &Commit, done: &Result<Version, CommitError>) {
        self.teller.tell(commit, done);
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
        pool.closing.store(true, Ordering::Relaxed);
        self.teller.close();
        if let Some(thread) = self.hearer.lock().take()
            && thread.join().is_err()
        {
            log::error!("a thread of {} has failed", pool.target);
        }
    }
}

fn send(pool: &Pool, connection: &mut Option<Connection>, texts: &[String]) -> Result<(), StoreError> {
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
    let params = vec![Value::Text(pool.target.channel()), Value::Texts(texts.to_vec())];
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
    let (mut connection, mut pause) = (Some(connection), AGAIN);
    while !pool.closing.load(Ordering::Relaxed) {
        let Some(open) = &mut connection else {
            match listening(pool, Duration::from_secs(5)) {
                Ok(fresh) => {
                    (connection, pause) = (Some(fresh), AGAIN);
                    tell(Notice::Lost);
                }
                Err((error, _)) => {
                    log::debug!("{error}; trying again");
                    std::thread::sleep(jittered(pause));
                    pause = (pause * 2).min(AGAIN_MAX);
                }
            }
            continue;
        };
        match open.notifications(GLANCE) {
            Ok(heard) => heard.iter().flat_map(|heard| Notice::parse(heard.payload())).for_each(tell),
            Err(_) => {
                log::warn!("{}: the connection that tells of others' changes was lost", pool.target);
                tell(Notice::Lost);
                connection = None;
            }
        }
    }
}
