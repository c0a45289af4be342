//! Connections: a pool of them, requests on one, and patience with a server that is away for a moment.
//!
//! Each connection has a *lane*, which it keeps when it is made anew: commits on it are numbered, one at a time, so that the
//! server can tell a request that arrives late from one that it has not seen (`commit.lua`).

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{
    Client, Cmd, Connection, ConnectionLike as _, ErrorKind, Pipeline, RedisConnectionInfo, RedisError,
    Value, cmd,
};

use super::Options;
use super::address::Address;
use super::error::{Failed, passes_by_its_words};
use super::losses::{Losses, Server};
use super::request::Arguments;
use crate::ambient;
use crate::store::StoreError;
use crate::store::outage::Outages;

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A server that nobody waits for any more is only asked whether it is there.
const LAST_WITHIN: Duration = Duration::from_secs(1);

/// A script that the server keeps, by its hash.
#[derive(Debug)]
pub struct Script {
    pub(super) text: String,
    pub(super) hash: String,
}

impl Script {
    /// A script in Lua.
    pub fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { hash: redis::Script::new(&text).get_hash().to_owned(), text }
    }

    /// The request to run it, for a server that has it.
    pub(super) fn by_hash(&self, arguments: &Arguments) -> Cmd {
        Self::request("EVALSHA", &self.hash, arguments)
    }

    /// The same for one that has not.
    pub(super) fn by_text(&self, arguments: &Arguments) -> Cmd {
        Self::request("EVAL", &self.text, arguments)
    }

    fn request(name: &str, which: &str, arguments: &Arguments) -> Cmd {
        let mut command = cmd(name);
        command.arg(which).arg(arguments);
        command
    }
}

/// Runs a script on a connection, by its hash or, if the server does not have it, by its text.
pub(super) fn run(
    connection: &mut Connection,
    script: &Script,
    arguments: &Arguments,
) -> Result<Value, RedisError> {
    let mut ask = |command: &Cmd| connection.req_command(command).and_then(Value::extract_error);
    match ask(&script.by_hash(arguments)) {
        Err(error) if error.code() == Some("NOSCRIPT") => ask(&script.by_text(arguments)),
        other => other,
    }
}

/// Bounds how long something is tried.
pub(super) struct Patience<'a> {
    pool: &'a Pool,
    until: Instant,
    pause: Duration,
}

impl<'a> Patience<'a> {
    /// As the mount says.
    pub(super) fn of(pool: &'a Pool) -> Self {
        Self::at_most(pool, Duration::MAX)
    }

    /// The same, and not longer than so.
    pub(super) fn at_most(pool: &'a Pool, most: Duration) -> Self {
        let until = ambient::monotonic() + pool.options.patience.min(most);
        Self { pool, until, pause: Duration::ZERO }
    }

    /// Waits before the next attempt; false if there shall be none. The first comes at once: a connection that was idle
    /// while the server restarted fails, and the next one works.
    pub(super) fn again(&mut self) -> bool {
        let left = self.until.saturating_duration_since(ambient::monotonic());
        if left.is_zero() || !self.pool.is_waited_for() {
            return false;
        }
        // Half of each pause is by chance, so that those who failed together do not come back together.
        let half = self.pause / 2;
        let jitter = half.mul_f64((ambient::random_u64() % 1024) as f64 / 1024.0);
        sleep((half + jitter).min(left));
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        true
    }
}

/// One connection, made when it is needed.
pub(super) struct Link {
    connection: Option<Connection>,
    /// Whether a script was the first there, and which server it has met: see [`Held::arrive`].
    arrived: Option<Server>,
    /// Which lane its commits are in.
    pub(super) lane: u64,
    /// The number of the last commit.
    pub(super) number: u64,
}

/// All connections to one server.
pub(super) struct Pool {
    pub(super) address: Address,
    pub(super) options: Options,
    client: Client,
    idle: Mutex<Vec<Link>>,
    lanes: AtomicU64,
    pub(super) outages: Outages,
}

/// A link out of the pool, which goes back when it is dropped.
pub(super) struct Held<'a> {
    pool: &'a Pool,
    link: Option<Link>,
    /// How long its answers are waited for, if not as the pool's options say.
    within: Option<Duration>,
}

impl Pool {
    pub(super) fn new(address: Address, options: Options) -> Result<Self, RedisError> {
        // The library takes the process's choice, and fails without one.
        let _ = rustls::crypto::ring::default_provider().install_default(); // Somebody has chosen already: as well.
        let client = Client::open(address.info().clone())?;
        Ok(Self {
            address,
            options,
            client,
            idle: Mutex::default(),
            lanes: AtomicU64::new(0),
            outages: Outages::default(),
        })
    }

    /// A link of which no other thread has hold.
    pub(super) fn link(&self) -> Held<'_> {
        self.link_within(None)
    }

    /// The same, whose answers are waited for so long, if that is said.
    pub(super) fn link_within(&self, within: Option<Duration>) -> Held<'_> {
        let link = self.idle.lock().pop().unwrap_or_else(|| Link {
            connection: None,
            arrived: None,
            lane: self.lanes.fetch_add(1, Ordering::Relaxed),
            number: 0,
        });
        Held { pool: self, link: Some(link), within }
    }

    /// A connection outside of the pool.
    pub(super) fn connect(&self) -> Result<Connection, Failed> {
        self.connect_within(self.options.answer_within)
    }

    /// Whether a server that is away is asked more than once.
    fn is_waited_for(&self) -> bool {
        self.outages.is_waited_for(self.options.patience)
    }

    fn connect_within(&self, within: Duration) -> Result<Connection, Failed> {
        let within = if self.is_waited_for() { within } else { within.min(LAST_WITHIN) };
        let connect = || self.client.get_connection_with_timeout(within);
        let connection = match connect() {
            Err(error) if error.kind() == ErrorKind::AuthenticationFailed => {
                self.refusal(within).map_or_else(connect, Err)
            }
            made => made,
        };
        let connection = connection.map_err(Failed::NotSent).inspect_err(|failed| self.note(failed))?;
        let timeout = Some(self.options.answer_within);
        connection.set_read_timeout(timeout).map_err(Failed::NotSent)?;
        connection.set_write_timeout(timeout).map_err(Failed::NotSent)?;
        Ok(connection)
    }

    /// Why a server does not listen to anybody at the moment, if it does not: of that the library makes that the password is
    /// wrong.
    fn refusal(&self, within: Duration) -> Option<RedisError> {
        let without = RedisConnectionInfo::default().set_skip_set_lib_name();
        let info = self.address.info().clone().set_redis_settings(without);
        let ask = || {
            let mut connection = Client::open(info)?.get_connection_with_timeout(within)?;
            connection.set_read_timeout(Some(within))?;
            connection.req_command(&cmd("PING")).and_then(Value::extract_error)
        };
        ask().err().filter(|error| error.code().is_none() || passes_by_its_words(error))
    }

    fn note(&self, failed: &Failed) {
        if failed.passes() {
            self.outages.failed(&format!("{}: {}", self.address, failed.error()));
        }
    }

    /// Does what may be done any number of times until it succeeds, fails for good, or time is up.
    pub(super) fn patiently<T>(
        &self,
        what: &str,
        mut attempt: impl FnMut(&mut Held<'_>) -> Result<T, Failed>,
    ) -> Result<T, StoreError> {
        let mut patience = Patience::of(self);
        let mut link = self.link();
        loop {
            match attempt(&mut link) {
                Ok(done) => return Ok(done),
                Err(failed) if failed.passes() && patience.again() => {}
                Err(failed) => return Err(failed.for_caller(&self.address, what)),
            }
        }
    }
}

impl Held<'_> {
    fn connection(&mut self) -> Result<&mut Connection, Failed> {
        let within = self.within.unwrap_or(self.pool.options.answer_within);
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                self.arrived = None;
                self.pool.connect_within(within)?
            }
        };
        if self.within.is_some() {
            connection.set_read_timeout(Some(within)).map_err(Failed::NotSent)?;
        }
        Ok(self.connection.insert(connection))
    }

    /// One request, one answer.
    pub(super) fn ask(&mut self, command: &Cmd) -> Result<Value, Failed> {
        let answer = self.connection()?.req_command(command).and_then(Value::extract_error);
        self.judge(answer)
    }

    /// Several requests in one round trip, each with its answer. That a key is of another type is an answer: it is damage to
    /// one document.
    pub(super) fn ask_all(&mut self, requests: &Pipeline) -> Result<Vec<Value>, Failed> {
        let connection = self.connection()?;
        // By ourselves: when an answer does not come in time the library waits as long for each of the others.
        let sent = connection.send_packed_command(&requests.get_packed_pipeline());
        let answers: Result<Vec<Value>, RedisError> =
            sent.and_then(|()| (0..requests.len()).map(|_| connection.recv_response()).collect());
        let refused = answers.iter().flatten().find_map(|answer| match answer {
            Value::ServerError(error) if error.code() != "WRONGTYPE" => Some(error.clone()),
            _ => None,
        });
        self.judge(match refused {
            Some(error) => Err(error.into()),
            None => answers,
        })
    }

    /// Whether there is a connection, as far as is known: a server that has restarted is found out by the next request.
    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Sends a request, whose answer is to be fetched with [`Held::receive`] before anything else is asked here. So one
    /// thread can ask several servers at once.
    pub(super) fn send(&mut self, packed: &[u8]) -> Result<(), Failed> {
        let sent = self.connection()?.send_packed_command(packed);
        self.judge(sent)
    }

    /// The answer to what was sent.
    pub(super) fn receive(&mut self, within: Duration) -> Result<Value, Failed> {
        let connection = self.connection()?;
        let answer = connection
            .set_read_timeout(Some(within))
            .and_then(|()| connection.recv_response())
            .and_then(Value::extract_error);
        self.judge(answer)
    }

    /// Runs a script.
    pub(super) fn run(&mut self, script: &Script, arguments: &Arguments) -> Result<Value, Failed> {
        let answer = run(self.connection()?, script, arguments);
        self.judge(answer)
    }

    /// Runs a script that shall be the first on each connection, unless it was. Returns which server it has met there: the
    /// one that was met last of all.
    pub(super) fn arrive(
        &mut self,
        script: &Script,
        arguments: impl FnOnce() -> Arguments,
        losses: &Losses,
    ) -> Result<Server, Failed> {
        if let (Some(_), Some(server)) = (&self.connection, &self.arrived) {
            if losses.is_current(server) {
                return Ok(server.clone());
            }
            // It may lead to a primary of before.
            self.connection = None;
        }
        // What is acknowledged while the connection is made is known by then.
        self.connection()?;
        let asked = losses.ask();
        let server = losses.arrived(asked, &self.run(script, &arguments())?);
        self.arrived = Some(server.clone());
        Ok(server)
    }

    /// Makes the next request on a new connection.
    pub(super) fn begin_anew(&mut self) {
        self.connection = None;
    }

    fn judge<T>(&mut self, answer: Result<T, RedisError>) -> Result<T, Failed> {
        let failed = match answer {
            Ok(answer) => {
                self.pool.outages.answered();
                return Ok(answer);
            }
            Err(error) if error.code().is_some() => Failed::Refused(error),
            Err(error) => Failed::Lost(error),
        };
        // After a lost answer the next one on this connection would be another request's. And behind the same name there may
        // be another server by now, if this one cannot serve.
        if failed.passes() {
            self.connection = None;
            self.pool.note(&failed);
        }
        Err(failed)
    }
}

impl Deref for Held<'_> {
    type Target = Link;

    fn deref(&self) -> &Link {
        match &self.link {
            Some(link) => link,
            None => unreachable!("the link goes back when it is dropped"),
        }
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Link {
        match &mut self.link {
            Some(link) => link,
            None => unreachable!("the link goes back when it is dropped"),
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(mut link) = self.link.take() {
            let usual = Some(self.pool.options.answer_within);
            let is_as_usual = |connection: &Connection| connection.set_read_timeout(usual).is_ok();
            if self.within.is_some() && !link.connection.as_ref().is_none_or(is_as_usual) {
                link.connection = None;
            }
            self.pool.idle.lock().push(link);
        }
    }
}
