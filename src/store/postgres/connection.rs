//! One connection: statements in flight together, driven by the thread that uses it.
//!
//! Each connection has a runtime of its own that runs on the caller's thread, so that an answer need not pass through
//! another thread. All statements of a [`Connection::run`] are queued before the first byte is sent and answered in order:
//! one round trip, whatever their number; a second one the first time that a connection meets a statement.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Runtime;
use tokio_postgres::error::Severity;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, Error, NoTls, Notification, Row, Statement};

use super::tables::{Action, sql};
use super::tls;
use super::url::{Target, Trust, chain};
use super::value::Value;
use super::whole::{self, Parts};
use crate::document::Kind;
use crate::store::Durability;

/// Which statement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sql {
    Document(Kind, Action),
    /// A commit that does this.
    Whole(Arc<Parts>, Durability),
    Text(&'static str),
}

/// How long one of several hosts has to let us in: well within a lease, and enough for a busy one.
const ENTER_WITHIN: Duration = Duration::from_secs(3);
/// How many statements for whole commits a connection keeps, each some 100 KiB on the server.
const WHOLES_MAX: usize = 64;

/// A statement with its parameters.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) sql: Sql,
    pub(super) params: Vec<Value>,
}

impl Call {
    pub(super) fn text(text: &'static str) -> Self {
        Self { sql: Sql::Text(text), params: Vec::new() }
    }
}

/// Why a run failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server refused this statement, and so all behind it that belong to its transaction. Nothing was changed.
    Refused { call: usize, error: Error },
    /// The statement could not be sent, nor was anything behind it. The connection is of no further use.
    Unsendable(Error),
    /// The connection is gone; what became of what was sent is not known.
    Lost(String),
}

trait Link: Send {
    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<AsyncMessage, Error>>>;
}

impl<S, T> Link for tokio_postgres::Connection<S, T>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    T: AsyncRead + AsyncWrite + Unpin + Send,
{
    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<AsyncMessage, Error>>> {
        Self::poll_message(self, context)
    }
}

/// The connection to the server while it lasts, and what came of its own accord.
struct Wire {
    link: Option<Box<dyn Link>>,
    lost: Option<String>,
    notifications: Vec<Notification>,
}

pub(super) struct Connection {
    // Before the runtime: they are dropped first.
    client: Client,
    wire: Wire,
    runtime: Runtime,
    statements: HashMap<Sql, Statement>,
    usable: bool,
}

/// Times that something was sent and its answer waited for, of all connections of a store.
#[derive(Default)]
pub(super) struct RoundTrips(AtomicU64);

impl RoundTrips {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum ConnectError {
    /// The server or this machine refused.
    Server(Error),
    /// No answer in time.
    Silent,
    /// No use of trying.
    Other(String),
    /// None of several hosts, each with its name, has let us in.
    Hosts(Vec<(String, Self)>),
}

impl Connection {
    pub(super) fn open(target: &Target, within: Duration) -> Result<Self, ConnectError> {
        let other = |error: &dyn std::error::Error| ConnectError::Other(chain(error));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| other(&error))?;
        let (client, link) = runtime.block_on(async {
            // Each has its part of the time: one that takes the call and says nothing must not keep us from the next.
            let each = match u32::try_from(target.hosts().len()) {
                Ok(0 | 1) | Err(_) => within,
                Ok(hosts) => (within / hosts).min(ENTER_WITHIN),
            };
            let mut failed = Vec::new();
            for (at, host) in target.hosts() {
                let error = match tokio::time::timeout(each, enter(host, target.tls.as_ref())).await {
                    Ok(Ok(entered)) => {
                        target.entered(at);
                        return Ok(entered);
                    }
                    Ok(Err(error)) => error,
                    Err(_) => ConnectError::Silent,
                };
                failed.push((target.host_name(at), error));
            }
            Err(match failed.pop() {
                Some((_, only)) if failed.is_empty() => only,
                last => ConnectError::Hosts(failed.into_iter().chain(last).collect()),
            })
        })?;
        let wire = Wire { link: Some(link), lost: None, notifications: Vec::new() };
        Ok(Self { client, wire, runtime, statements: HashMap::new(), usable: true })
    }

    /// Whether it makes sense to use it again.
    pub(super) fn usable(&self) -> bool {
        self.usable && self.wire.link.is_some()
    }

    /// It is of no further use, whatever the link is.
    pub(super) fn give_up(&mut self) {
        self.usable = false;
    }

    /// Runs the text of several statements, none of which returns anything.
    pub(super) fn batch(&mut self, text: &str, within: Duration) -> Result<(), Failure> {
        let client = &self.client;
        match self.wire.drive(&self.runtime, within, client.batch_execute(text)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.failure(0, error)),
            Err(lost) => Err(self.lost(lost)),
        }
    }

    /// Sends all calls at once. The rows of each, or the first failure.
    pub(super) fn run(
        &mut self,
        calls: &[Call],
        within: Duration,
        trips: &RoundTrips,
    ) -> Result<Vec<Vec<Row>>, Failure> {
        self.prepare(calls, within, trips)?;
        trips.0.fetch_add(1, Ordering::Relaxed);
        let Self { client, statements, wire, runtime, .. } = self;
        let client = &*client;
        let work = calls.iter().map(|call| {
            let statement = statements.get(&call.sql).cloned();
            async move {
                let params: Vec<&(dyn ToSql + Sync)> = call.params.iter().map(|p| p as _).collect();
                match statement {
                    Some(statement) => client.query(&statement, &params).await,
                    None => client.query("SELECT", &params).await, // Not reached: all were prepared.
                }
            }
        });
        let answers =
            wire.drive(runtime, within, in_order(work.collect())).map_err(|lost| self.lost(lost))?;
        let mut rows = Vec::with_capacity(answers.len());
        for (call, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(answer) => rows.push(answer),
                Err(error) => return Err(self.failure(call, error)),
            }
        }
        Ok(rows)
    }

    fn prepare(&mut self, calls: &[Call], within: Duration, trips: &RoundTrips) -> Result<(), Failure> {
        let mut missing: Vec<Sql> = calls
            .iter()
            .map(|call| &call.sql)
            .filter(|sql| !self.statements.contains_key(sql))
            .cloned()
            .collect();
        missing.sort_by_key(|sql| format!("{sql:?}"));
        missing.dedup();
        if missing.is_empty() {
            return Ok(());
        }
        trips.0.fetch_add(1, Ordering::Relaxed);
        if missing.iter().any(is_whole)
            && self.statements.keys().filter(|sql| is_whole(sql)).count() >= WHOLES_MAX
        {
            self.statements.retain(|sql, _| !is_whole(sql));
        }
        let client = &self.client;
        let work = missing.iter().map(|statement| async move {
            match statement {
                Sql::Document(kind, action) => client.prepare(&sql(*kind, *action)).await,
                Sql::Whole(parts, durability) => client.prepare(&whole::sql(parts, *durability)).await,
                Sql::Text(text) => client.prepare(text).await,
            }
        });
        let prepared = self.wire.drive(&self.runtime, within, in_order(work.collect()));
        for (sql, statement) in missing.iter().zip(prepared.map_err(|lost| self.lost(lost))?) {
            match statement {
                Ok(statement) => drop(self.statements.insert(sql.clone(), statement)),
                // What was to be sent was not; so nothing was changed.
                Err(error) => return Err(self.failure(0, error)),
            }
        }
        Ok(())
    }

    /// What has come of its own accord, after waiting for as long as nothing has.
    pub(super) fn notifications(&mut self, within: Duration) -> Result<Vec<Notification>, Failure> {
        if self.wire.notifications.is_empty() {
            let Self { wire, runtime, .. } = self;
            wire.drive_until_notified(runtime, within);
        }
        match &self.wire.lost {
            Some(lost) if self.wire.notifications.is_empty() => Err(Failure::Lost(lost.clone())),
            _ => Ok(std::mem::take(&mut self.wire.notifications)),
        }
    }

    fn failure(&mut self, call: usize, error: Error) -> Failure {
        match error.as_db_error() {
            Some(db) if matches!(db.parsed_severity(), Some(Severity::Error)) => {
                // A statement that the server has forgotten, or whose tables were altered; or the server is a replica, and
                // another connection may lead to the primary.
                if matches!(db.code().code(), "26000" | "0A000" | "25006") {
                    self.usable = false;
                }
                Failure::Refused { call, error }
            }
            None if !error.is_closed() && self.wire.link.is_some() && self.wire.lost.is_none() => {
                self.usable = false;
                Failure::Unsendable(error)
            }
            _ => self.lost(chain(&error)),
        }
    }

    fn lost(&mut self, cause: String) -> Failure {
        self.usable = false;
        Failure::Lost(self.wire.lost.take().unwrap_or(cause))
    }
}

async fn enter(host: &Config, trust: Option<&Trust>) -> Result<(Client, Box<dyn Link>), ConnectError> {
    Ok(match trust {
        None => {
            let (client, link) = host.connect(NoTls).await.map_err(ConnectError::Server)?;
            (client, Box::new(link))
        }
        Some(trust) => {
            let connector = tls::connector(trust).map_err(ConnectError::Other)?;
            let (client, link) = host.connect(connector).await.map_err(ConnectError::Server)?;
            (client, Box::new(link))
        }
    })
}

fn is_whole(sql: &Sql) -> bool {
    matches!(sql, Sql::Whole(..))
}

impl Wire {
    /// Runs `work` and the connection that it needs, until it is done or the connection is gone or the time is over.
    fn drive<T>(
        &mut self,
        runtime: &Runtime,
        within: Duration,
        work: impl Future<Output = T>,
    ) -> Result<T, String> {
        runtime.block_on(async {
            let mut work = pin!(work);
            let both = poll_fn(|context| {
                loop {
                    // First the work, which queues all that it has to send; then the connection, which sends it at once.
                    if let Poll::Ready(done) = work.as_mut().poll(context) {
                        return Poll::Ready(Ok(done));
                    }
                    if self.link.is_none() {
                        return Poll::Ready(Err(self
                            .lost
                            .clone()
                            .unwrap_or_else(|| "it was closed".to_owned())));
                    }
                    if self.poll_link(context).is_pending() {
                        return Poll::Pending;
                    }
                }
            });
            tokio::time::timeout(within, both).await.unwrap_or_else(|_| Err("no answer in time".to_owned()))
        })
    }

    fn drive_until_notified(&mut self, runtime: &Runtime, within: Duration) {
        runtime.block_on(async {
            let notified = poll_fn(|context| {
                while self.notifications.is_empty() && self.link.is_some() {
                    if self.poll_link(context).is_pending() {
                        return Poll::Pending;
                    }
                }
                Poll::Ready(())
            });
            let _nothing_came = tokio::time::timeout(within, notified).await;
        });
    }

    /// One step of the connection; ready if there may be more to do at once.
    fn poll_link(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(link) = &mut self.link else { return Poll::Ready(()) };
        match link.poll_message(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(Ok(AsyncMessage::Notification(notification)))) => {
                self.notifications.push(notification);
            }
            Poll::Ready(Some(Ok(_))) => {}
            Poll::Ready(end) => {
                let cause = end.map_or_else(
                    || "the server has closed it".to_owned(),
                    |end| match end {
                        Err(error) => chain(&error),
                        Ok(_) => String::new(),
                    },
                );
                self.lost = Some(cause);
                // Its end lets all who wait for an answer know.
                self.link = None;
            }
        }
        Poll::Ready(())
    }
}

/// Runs futures at once, each begun only after the one before it has queued what it sends; none behind one that could not.
/// So a statement that cannot be sent keeps the COMMIT behind it from being sent as well.
async fn in_order<T, F: Future<Output = Result<T, Error>>>(work: Vec<F>) -> Vec<Result<T, Error>> {
    let mut running: Vec<_> = work.into_iter().map(|future| (Box::pin(future), None)).collect();
    let mut begun = false;
    poll_fn(|context| {
        let mut done = true;
        for at in 0..running.len() {
            let (future, answer) = &mut running[at];
            if answer.is_some() {
                continue;
            }
            match future.as_mut().poll(context) {
                Poll::Ready(result) => {
                    let unsendable = !begun && result.is_err();
                    *answer = Some(result);
                    if unsendable {
                        running.truncate(at + 1);
                        // Who still waits is answered, or not: the caller gives the connection up.
                        running.drain(..at);
                        break;
                    }
                }
                Poll::Pending => done = false,
            }
        }
        begun = true;
        if done || running.len() == 1 && running[0].1.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    running.into_iter().filter_map(|(_, answer)| answer).collect()
}
