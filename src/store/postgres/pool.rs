//! The connections of a store.
//!
//! A pool of our own: the pool crates hand out connections that are driven elsewhere (deadpool, bb8), or such that cannot
//! have several statements in flight (r2d2 over `postgres`); and what is hard about a connection here, its row in table
//! `outcome` and what to do when it is lost, none of them knows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::connection::{Call, Connection, Failure, RoundTrips, Sql};
use super::error;
use super::url::Target;
use super::value::Value;
use crate::ambient;
use crate::store::StoreError;
use crate::store::outage::Outages;

/// A connection that can commit.
pub(super) struct Pooled {
    pub(super) connection: Connection,
    /// Its row in table `outcome`.
    pub(super) id: i64,
    /// Its last commit, made or not.
    pub(super) number: i64,
    use_for: Use,
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// All requests.
    All,
    /// The documents of sessions, as heartbeats: they must not wait for all others, and so have connections that nobody else
    /// takes.
    Sessions,
}

/// The connections of one use.
struct Shelf {
    connections: Mutex<Connections>,
    returned: Condvar,
    most: usize,
}

#[derive(Default)]
struct Connections {
    idle: Vec<Pooled>,
    open: usize,
}

pub(super) struct Pool {
    pub(super) target: Target,
    pub(super) trips: RoundTrips,
    for_all: Shelf,
    for_sessions: Shelf,
    /// Set at the end, so that the threads behind the store end as well.
    pub(super) closing: AtomicBool,
    pub(super) outages: Outages,
}

/// A server that nobody waits for any more is only asked whether it is there.
const LAST_WITHIN: Duration = Duration::from_secs(1);
/// So many connections are for sessions, beyond the pool's: one beats, and somebody may look.
const FOR_SESSIONS: usize = 2;

/// Whether the server has lost nothing since somebody connected.
const STILL_RUNS: &str = "SELECT since FROM server_run";
/// What whoever finds no row sends; one at a time, and the next finds what the one before has left. The sequence goes on
/// where no server of this volume has been: where it were by now with two million commits in each second since 2020,
/// which nobody makes. So a later jump leads further than an earlier one, also one on a server that knows nothing of
/// that; should a clock be wrong, four thousand million ahead. Before that is on the disk nobody is let in by the row.
const GO_AHEAD: [&str; 5] = [
    "BEGIN ISOLATION LEVEL READ COMMITTED",
    "LOCK TABLE server_run IN SHARE ROW EXCLUSIVE MODE",
    "SELECT setval('versions', greatest(nextval('versions') + 4294967296, \
        CAST((extract(epoch FROM clock_timestamp()) - 1577836800) * 2097152 AS bigint))) \
     WHERE NOT EXISTS (SELECT FROM server_run)",
    "INSERT INTO server_run SELECT now() WHERE NOT EXISTS (SELECT FROM server_run)",
    "COMMIT",
];
const BEGIN_OUTCOME: &str = "INSERT INTO outcome (connection, version) VALUES ($1, nextval('versions'))";
/// Long ago: whoever lost an answer has asked by now. A commit whose row is gone is refused, so nothing is decided twice.
pub(super) const TRIM_OUTCOMES: &str = "DELETE FROM outcome WHERE used < now() - interval '7 days'";
const END_OUTCOME: &str = "DELETE FROM outcome WHERE connection = $1";

impl Shelf {
    fn new(most: usize) -> Self {
        Self { connections: Mutex::default(), returned: Condvar::new(), most }
    }
}

/// A statement that waits for a lock whose client has given it up ends within a second, or each that is tried again would
/// leave a process of the server behind.
const NOTICE_WHO_IS_GONE: &str = "SELECT set_config(name, '1s', false) FROM pg_settings \
     WHERE name = 'client_connection_check_interval'";

impl Pool {
    pub(super) fn new(target: Target) -> Self {
        Self {
            for_all: Shelf::new(target.pool_size),
            for_sessions: Shelf::new(FOR_SESSIONS),
            target,
            trips: RoundTrips::default(),
            closing: AtomicBool::new(false),
            outages: Outages::default(),
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        ambient::monotonic() + self.target.commit_timeout
    }

    /// A connection without a row in table `outcome`: it cannot commit.
    pub(super) fn connect(&self, within: Duration) -> Result<Connection, (StoreError, bool)> {
        let target = &self.target;
        let mut connection =
            Connection::open(target, within).map_err(|error| error::connecting(target, &error))?;
        // All goes by key: what the planner thinks of small tables must not make it read them whole, and what it has planned
        // for a statement serves for whatever parameters. Other servers have other settings, or none.
        //
        // The statements of a transaction are sent at once. Who stops in the middle is cut off or stands still, and his
        // rows are in the way of those who may go on when his lease is over; what he has not committed he can do again.
        // A commit that has returned must survive a crash of the server, whatever the role's default is, unless it says
        // itself that it need not.
        let settings = format!(
            "SET search_path = {}; SET default_transaction_isolation = 'read committed'; \
             SET client_min_messages = 'warning'; SET statement_timeout = '{}s'; \
             SET idle_in_transaction_session_timeout = '1s'; \
             SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'; \
             SELECT set_config(name, CASE name WHEN 'plan_cache_mode' THEN 'force_generic_plan' ELSE 'off' END, false) \
             FROM pg_settings WHERE name IN ('plan_cache_mode', 'enable_seqscan', 'enable_bitmapscan', 'jit')",
            target.schema,
            target.commit_timeout.as_secs().saturating_add(5).min(86_400)
        );
        connection
            .batch(&settings, within)
            .map_err(|failure| self.lost_or_not("cannot set up a connection", &failure))?;
        match connection.batch(NOTICE_WHO_IS_GONE, within) {
            // A server whose system cannot tell who is gone has the setting, and takes no value.
            Ok(()) | Err(Failure::Refused { .. }) => Ok(connection),
            Err(failure) => Err(self.lost_or_not("cannot set up a connection", &failure)),
        }
    }

    fn lost_or_not(&self, what: &str, failure: &Failure) -> (StoreError, bool) {
        let again = match failure {
            Failure::Refused { error, .. } => error::again(error),
            Failure::Unsendable(_) => false,
            Failure::Lost(_) => true,
        };
        (error::running(&self.target, what, failure), again)
    }

    /// A crash of the server ends all its connections. So none that is used was open when commits were lost, and before the
    /// first commit of a new one the versions of those were made up for.
    fn connect_pooled(&self, use_for: Use, within: Duration) -> Result<Pooled, (StoreError, bool)> {
        let mut connection = self.connect(within)?;
        let id = ambient::random_u64().cast_signed();
        let begin = Call { sql: Sql::Text(BEGIN_OUTCOME), params: vec![Value::Int(id)] };
        let mut run = |calls: &[Call]| {
            connection
                .run(calls, within, &self.trips)
                .map_err(|failure| self.lost_or_not("cannot begin", &failure))
        };
        let answers = run(&[begin, Call::text(STILL_RUNS)])?;
        if answers.last().is_none_or(Vec::is_empty) {
            run(&GO_AHEAD.map(Call::text))?;
        }
        Ok(Pooled { connection, id, number: 0, use_for })
    }

    fn shelf(&self, use_for: Use) -> &Shelf {
        match use_for {
            Use::All => &self.for_all,
            Use::Sessions => &self.for_sessions,
        }
    }

    /// A connection to work with: one that is idle, or a new one; waits until one is free or the server is there.
    pub(super) fn take(&self, use_for: Use, deadline: Instant) -> Result<Pooled, StoreError> {
        let shelf = self.shelf(use_for);
        {
            let mut connections = shelf.connections.lock();
            loop {
                if let Some(pooled) = connections.idle.pop() {
                    return Ok(pooled);
                }
                if connections.open < shelf.most {
                    connections.open += 1;
                    break;
                }
                if shelf.returned.wait_until(&mut connections, deadline).timed_out() {
                    let advice = match use_for {
                        Use::All => "raise pool_size, unless the server is slow or rows are locked: ",
                        Use::Sessions => "the server is slow, or rows are locked: ",
                    };
                    return Err(StoreError::Engine {
                        what: format!(
                            "{}: no connection came free in time ({advice}see pg_stat_activity)",
                            self.target
                        ),
                        source: format!("all {} are at work", shelf.most).into(),
                    });
                }
            }
        }
        let made = self.keep_trying(deadline, |within| self.connect_pooled(use_for, within));
        if made.is_err() {
            shelf.connections.lock().open -= 1;
            shelf.returned.notify_one();
        }
        made
    }

    /// Whether a server that is away is asked more than once.
    pub(super) fn is_waited_for(&self) -> bool {
        self.outages.is_waited_for(self.target.commit_timeout)
    }

    /// Tries until the deadline as long as trying again makes sense.
    pub(super) fn keep_trying<T>(
        &self,
        deadline: Instant,
        mut attempt: impl FnMut(Duration) -> Result<T, (StoreError, bool)>,
    ) -> Result<T, StoreError> {
        let mut pause = Duration::from_millis(5);
        loop {
            let left = deadline.saturating_duration_since(ambient::monotonic());
            let most = if self.is_waited_for() { Duration::from_secs(10) } else { LAST_WITHIN };
            let bound = left.clamp(Duration::from_millis(100), most);
            match attempt(bound) {
                Ok(done) => {
                    self.outages.answered();
                    return Ok(done);
                }
                Err((error, again)) => {
                    if again {
                        self.outages.failed(&error.to_string());
                    }
                    let is_last = left.is_zero() || !self.is_waited_for();
                    if !again || is_last || self.closing.load(Ordering::Relaxed) {
                        return Err(error);
                    }
                    std::thread::sleep(jittered(pause).min(left));
                    pause = (pause * 2).min(Duration::from_millis(500));
                }
            }
        }
    }

    /// Gives a connection back. With one that is of no use go all that are idle: what ended it, a server that fell silent
    /// or changed its role, has as a rule ended them, and each would be found out only after a wait of its own. Those that
    /// others work with either answer, and are as good as new, or are found out by them.
    pub(super) fn give(&self, pooled: Pooled) {
        let shelf = self.shelf(pooled.use_for);
        if pooled.connection.usable() {
            shelf.connections.lock().idle.push(pooled);
            shelf.returned.notify_one();
            return;
        }
        shelf.connections.lock().open -= 1;
        let dropped = [&self.for_all, &self.for_sessions].map(|shelf| {
            let mut connections = shelf.connections.lock();
            let idle = std::mem::take(&mut connections.idle);
            connections.open -= idle.len();
            shelf.returned.notify_all();
            idle
        });
        drop((pooled, dropped));
    }

    /// Runs reads on some connection, again on another one if it is lost.
    pub(super) fn read<T>(
        &self,
        what: &str,
        work: impl FnMut(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        self.read_for(Use::All, what, self.deadline(), work)
    }

    /// The same on a connection for this use, until the deadline.
    pub(super) fn read_for<T>(
        &self,
        use_for: Use,
        what: &str,
        deadline: Instant,
        mut work: impl FnMut(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        self.keep_trying(deadline, |within| {
            let mut pooled = self.take(use_for, deadline).map_err(|error| (error, false))?;
            let done = work(&mut pooled.connection, within);
            self.give(pooled);
            done.map_err(|failure| self.lost_or_not(what, &failure))
        })
    }

    /// Closes the connections that are idle, and removes their rows.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        let idle = [&self.for_all, &self.for_sessions]
            .map(|shelf| std::mem::take(&mut shelf.connections.lock().idle));
        for mut pooled in idle.into_iter().flatten() {
            let end = Call { sql: Sql::Text(END_OUTCOME), params: vec![Value::Int(pooled.id)] };
            // If it fails the row stays until it is trimmed.
            let _ = pooled.connection.run(&[end], Duration::from_secs(1), &self.trips);
        }
    }
}

/// Between half of it and all of it.
pub(super) fn jittered(pause: Duration) -> Duration {
    let half = pause / 2;
    let spread = u64::try_from(half.as_micros()).unwrap_or(u64::MAX).max(1);
    half + Duration::from_micros(ambient::random_u64() % spread)
}
