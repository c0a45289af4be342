//! What others change, as the server publishes it: one thread that subscribes, and subscribes again after a gap.
//!
//! A commit publishes its notice from within its script, or it is gathered with others (`teller`). Redis keeps no notices
//! for who is away, so each gap ends with [`Notice::Lost`]. A connection that has died without a word is found out by a
//! question into its silence.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Connection, RedisError};

use super::error::Failed;
use super::link::{self, Pool, Script};
use super::names::Names;
use super::request::Arguments;
use crate::ambient;
use crate::store::teller::Teller;
use crate::store::{Listener, Notice, StoreError};

/// How often the thread looks whether it shall end.
const TICK: Duration = Duration::from_millis(200);
/// After so long without a notice the server is asked whether it is still there.
const SILENCE: Duration = Duration::from_secs(5);

struct Shared {
    pool: Arc<Pool>,
    channel: String,
    listeners: Mutex<Vec<Arc<dyn Listener>>>,
    ending: AtomicBool,
}

/// The listeners of a store, and the thread that tells them; it ends when this is dropped.
pub(super) struct Subscription {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Publishes what is gathered, by a script: a server that has become a replica refuses it, as it would a commit. On a
/// connection of its own, so that the lanes are those of commits.
pub(super) fn teller(pool: Arc<Pool>, names: &Names) -> Result<Teller, StoreError> {
    let script = Script::new(include_str!("tell.lua"));
    let request = Arguments::default().key(names.other("version")).arg(names.channel());
    let mut connection = None;
    Teller::new("redis tells", move |texts| {
        let request = texts.iter().fold(request.clone(), |request, text| request.arg(text));
        let mut tell = || {
            let mut open = match connection.take() {
                Some(open) => open,
                None => pool.connect()?,
            };
            link::run(&mut open, &script, &request).map_err(Failed::Lost)?;
            connection = Some(open);
            Ok(())
        };
        tell().map_err(|failed: Failed| failed.for_caller(&pool.address, "telling of changes"))
    })
}

impl Subscription {
    pub(super) fn new(pool: Arc<Pool>, channel: String) -> Self {
        let shared = Shared { pool, channel, listeners: Mutex::default(), ending: AtomicBool::new(false) };
        Self { shared: Arc::new(shared), thread: Mutex::default() }
    }

    /// Tells `listener` of every change that is made after this has returned.
    pub(super) fn add(&self, listener: Arc<dyn Listener>) -> Result<(), StoreError> {
        let what = "subscribing to notices";
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (ready, is_ready) = sync_channel(1);
            let shared = Arc::clone(&self.shared);
            let handle = ambient::spawn("redis notices", move || shared.run(ready))
                .map_err(|e| StoreError::io("starting the thread of the notices", e))?;
            match is_ready.recv() {
                Ok(Ok(())) => *thread = Some(handle),
                Ok(Err(failed)) => {
                    let _ = handle.join(); // It has said why it ended.
                    return Err(failed.for_caller(&self.shared.pool.address, what));
                }
                Err(_) => {
                    return Err(StoreError::Engine {
                        what: what.into(),
                        source: "its thread has died".into(),
                    });
                }
            }
        }
        self.shared.listeners.lock().push(listener);
        Ok(())
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join(); // A listener that panicked has said so.
        }
    }
}

impl Shared {
    fn ends(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    fn tell(&self, notice: &Notice) {
        for listener in &*self.listeners.lock() {
            listener.notice(notice);
        }
    }

    fn run(&self, ready: SyncSender<Result<(), Failed>>) {
        let mut ready = Some(ready);
        // Said once for each time.
        let mut said = false;
        while !self.ends() {
            let failed = match self.pool.connect() {
                Ok(mut connection) => match self.follow(&mut connection, &mut ready, &mut said) {
                    Ok(()) => return,
                    Err(error) if error.code().is_some() => Failed::Refused(error),
                    Err(error) => Failed::Lost(error),
                },
                Err(failed) => failed,
            };
            if let Some(ready) = ready.take() {
                let _ = ready.send(Err(failed)); // Who waits for it is there until it comes.
                return;
            }
            let level = if said { log::Level::Debug } else { log::Level::Warn };
            let (at, error) = (&self.pool.address, failed.error());
            log::log!(level, "{at}: no notices of other hosts' changes for a moment: {error}");
            said = true;
            sleep(TICK);
        }
    }

    /// Passes notices on until the connection fails or the end is wanted.
    fn follow(
        &self,
        connection: &mut Connection,
        ready: &mut Option<SyncSender<Result<(), Failed>>>,
        said: &mut bool,
    ) -> Result<(), RedisError> {
        let mut subscribed = connection.as_pubsub();
        subscribed.subscribe(&self.channel)?;
        *said = false;
        match ready.take() {
            Some(ready) => {
                let _ = ready.send(Ok(())); // As above.
            }
            None => self.tell(&Notice::Lost),
        }
        subscribed.set_read_timeout(Some(TICK))?;
        let mut heard = ambient::monotonic();
        while !self.ends() {
            match subscribed.get_message() {
                Ok(message) => {
                    heard = ambient::monotonic();
                    let text = std::str::from_utf8(message.get_payload_bytes());
                    match text {
                        Ok(text) => Notice::parse(text).for_each(|notice| self.tell(&notice)),
                        Err(_) => self.tell(&Notice::Lost),
                    }
                }
                Err(error) if error.is_timeout() && heard.elapsed() < SILENCE => {}
                Err(error) if error.is_timeout() => {
                    subscribed.set_read_timeout(Some(self.pool.options.answer_within))?;
                    subscribed.ping::<redis::Value>()?;
                    subscribed.set_read_timeout(Some(TICK))?;
                    heard = ambient::monotonic();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
