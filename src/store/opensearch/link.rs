//! Requests to the servers of a cluster: which one is asked, for how long, and what an answer, or none, means.
//!
//! What is hard:
//! - A write without an answer may have been made, and may still be. It is never sent twice here: whoever asked reads, and
//!   decides then ([`Failed::Unanswered`]). Only what was certainly not made is sent again.
//! - An answer need not pass through another thread: whoever waits for one drives the connections of all meanwhile, and
//!   hands that on to another one who waits when he has his. So a request that is not waited for at once ([`Link::send`])
//!   goes on while its sender waits for another one.
//! - Patience is for an outage, not for a request: once the servers have been away for as long as anybody waits, requests
//!   fail at once, until one is answered.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::{Certificate, Client, Method, RequestBuilder};
use serde::Serialize;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, yield_now};

use super::address::{Address, Credentials};
use super::reply::{Reply, TOO_MANY, explain, is_busy, refused};
use crate::ambient;
use crate::store::StoreError;
use crate::store::outage::Outages;

const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// The servers answer within milliseconds; a node that has died with the request is given up after this.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// However little patience there is.
const ANSWER_WITHIN_MIN: Duration = Duration::from_secs(2);
const PAUSE_FIRST: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// All requests of a volume.
pub(super) struct Link {
    client: Client,
    runtime: Runtime,
    pub(super) address: Address,
    /// The server that answered last.
    server: AtomicUsize,
    patience: Duration,
    pub(super) outages: Outages,
}

/// What came of sending a request: a status and a body.
type Answer = reqwest::Result<(u16, Bytes)>;

/// A request under way.
pub(super) struct Sent {
    /// The server that was asked.
    which: usize,
    answer: JoinHandle<Answer>,
}

/// Why there is no answer to go on with.
#[derive(Debug)]
pub(super) enum Failed {
    /// It reached nobody; the next one may.
    Unreached(StoreError),
    /// The server will not do it, however often it is asked.
    Refused(StoreError),
    /// Nobody knows.
    Unanswered(String),
}

impl From<Failed> for StoreError {
    /// Of a request that changes nothing.
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Unreached(error) | Failed::Refused(error) => error,
            Failed::Unanswered(cause) => engine("asking the server", cause),
        }
    }
}

/// How a request is sent.
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) path: String,
    /// JSON, or lines of it.
    pub(super) body: Option<Vec<u8>>,
    /// How long the answer is waited for, if not for [`ANSWER_WITHIN`].
    within: Option<Duration>,
}

impl Request {
    pub(super) fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, path: path.into(), body: None, within: None }
    }

    pub(super) fn delete(path: impl Into<String>) -> Self {
        Self { method: Method::DELETE, path: path.into(), body: None, within: None }
    }

    pub(super) fn put(path: impl Into<String>, body: &impl Serialize) -> Self {
        Self {
            method: Method::PUT,
            path: path.into(),
            // All that is sent has names for keys.
            body: Some(serde_json::to_vec(body).unwrap_or_default()),
            within: None,
        }
    }

    /// Where Elasticsearch refuses a body.
    pub(super) fn post_nothing(path: impl Into<String>) -> Self {
        Self { method: Method::POST, path: path.into(), body: None, within: None }
    }

    pub(super) fn post(path: impl Into<String>, body: &Value) -> Self {
        Self::lines(path, body.to_string().into_bytes())
    }

    /// The same request, whose answer is waited for no longer than this.
    pub(super) fn within(self, within: Option<Duration>) -> Self {
        Self { within, ..self }
    }

    /// Lines of JSON.
    pub(super) fn lines(path: impl Into<String>, body: Vec<u8>) -> Self {
        Self { method: Method::POST, path: path.into(), body: Some(body), within: None }
    }
}

impl Link {
    pub(super) fn new(address: Address, patience: Duration) -> Result<Self, StoreError> {
        // The library takes the process's choice, and fails without one.
        let _ = rustls::crypto::ring::default_provider().install_default(); // Somebody has chosen already: as well.
        let mut builder = Client::builder()
            .connect_timeout(CONNECT_WITHIN)
            .timeout(ANSWER_WITHIN.min(patience.max(ANSWER_WITHIN_MIN)))
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .no_proxy();
        if let Some(authority) = &address.authority {
            let authority =
                Certificate::from_pem(authority).map_err(|error| engine("the file ca-file", error))?;
            builder = builder.add_root_certificate(authority);
        }
        let client = builder.build().map_err(|error| engine("preparing requests", error))?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| engine("preparing requests", error))?;
        Ok(Self {
            client,
            runtime,
            address,
            server: AtomicUsize::new(0),
            patience,
            outages: Outages::default(),
        })
    }

    /// Sends a request, and waits for no answer.
    pub(super) fn send(&self, request: &Request) -> Sent {
        let which = self.server.load(Relaxed);
        let answer = self.runtime.spawn(answer(self.prepare(which, request)));
        // So that it is on its way: to see which connections are still there, to give it to one, and for that to write it.
        self.runtime.block_on(async {
            for _ in 0..4 {
                yield_now().await;
            }
        });
        Sent { which, answer }
    }

    /// Sends what may be sent twice, until it is answered or patience ends.
    pub(super) fn ask(&self, request: &Request) -> Result<Reply, StoreError> {
        self.ask_for_all(request, None, |_| None)
    }

    /// The same for an answer of several parts: `unserved` says of it why there is one without an answer, if there is.
    /// `sent`: it is under way already.
    pub(super) fn ask_for_all(
        &self,
        request: &Request,
        mut sent: Option<Sent>,
        unserved: impl Fn(&Reply) -> Option<String>,
    ) -> Result<Reply, StoreError> {
        let mut pauses = Pauses::new(self.patience);
        loop {
            let failed = match self.once(request, sent.take(), &unserved) {
                Ok(reply) if !is_busy(reply.status) => return Ok(reply),
                Ok(reply) => engine(&request.path, explain(&reply)),
                Err(Failed::Refused(error)) => return Err(error),
                Err(failed) => failed.into(),
            };
            if !pauses.again(&self.outages) {
                return Err(failed);
            }
        }
    }

    /// Sends a change: once, but for servers that have certainly not made it.
    pub(super) fn tell(&self, request: &Request) -> Result<Reply, Failed> {
        let mut pauses = Pauses::new(self.patience);
        loop {
            let failed = match self.once(request, None, &|_| None) {
                Ok(reply) if reply.status == TOO_MANY => engine(&request.path, explain(&reply)),
                // A node that lost its primary may have sent it on before.
                Ok(reply) if is_busy(reply.status) => return Err(Failed::Unanswered(explain(&reply))),
                Err(Failed::Unreached(error)) => error,
                other => return other,
            };
            if !pauses.again(&self.outages) {
                return Err(Failed::Unreached(failed));
            }
        }
    }

    fn prepare(&self, which: usize, request: &Request) -> RequestBuilder {
        let mut url = self.address.servers[which].clone();
        let split = request.path.split_once('?');
        let (path, query) = split.map_or((&*request.path, None), |(path, query)| (path, Some(query)));
        url.set_path(path);
        url.set_query(query);
        let mut builder = self.authorized(self.client.request(request.method.clone(), url));
        if let Some(within) = request.within {
            builder = builder.timeout(within);
        }
        if !is_waited_for(&self.outages, self.patience) {
            // Nobody waits for an answer any more: it is only asked whether there is one.
            builder = builder.timeout(ANSWER_WITHIN_MIN);
        }
        if let Some(body) = &request.body {
            builder = builder.header("content-type", "application/json").body(body.clone());
        }
        builder
    }

    /// Waits for the answer of one that was sent, or sends it, once.
    fn once(
        &self,
        request: &Request,
        sent: Option<Sent>,
        unserved: &dyn Fn(&Reply) -> Option<String>,
    ) -> Result<Reply, Failed> {
        let (which, answer) = match sent {
            Some(Sent { which, answer }) => {
                let ended = self.runtime.block_on(answer);
                (which, ended.map_err(|error| Failed::Unanswered(error.to_string()))?)
            }
            None => {
                let which = self.server.load(Relaxed);
                (which, self.runtime.block_on(answer(self.prepare(which, request))))
            }
        };
        let (status, bytes) = answer.map_err(|error| {
            self.leave(which);
            let not_sent = error.is_connect() || error.is_builder();
            let cause = causes(&error.without_url());
            self.outages.failed(&cause);
            if not_sent {
                Failed::Unreached(engine("reaching the server", cause))
            } else {
                Failed::Unanswered(cause)
            }
        })?;
        let reply = Reply::new(status, bytes);
        if is_busy(status) {
            // One that is cut off from the others answers so, too. One that has too much to do counts as away: patience is
            // for all that do not serve.
            self.leave(which);
            self.outages.failed(&explain(&reply));
        } else if let Some(cause) = unserved(&reply) {
            self.leave(which);
            self.outages.failed(&cause);
            return Err(Failed::Unanswered(cause));
        } else {
            self.outages.answered();
        }
        refused(&reply).map_or(Ok(reply), |error| Err(Failed::Refused(error)))
    }

    /// The next server may be better off.
    fn leave(&self, which: usize) {
        let next = (which + 1) % self.address.servers.len();
        let _ = self.server.compare_exchange(which, next, Relaxed, Relaxed); // Somebody was faster.
    }

    fn authorized(&self, builder: RequestBuilder) -> RequestBuilder {
        match &self.address.credentials {
            Credentials::None => builder,
            Credentials::Basic { user, password } => builder.basic_auth(user, password.as_ref()),
            Credentials::ApiKey(key) => builder.header("authorization", format!("ApiKey {key}")),
        }
    }
}

async fn answer(request: RequestBuilder) -> Answer {
    // Since somebody last waited the server may have closed connections. What is given to one of these is lost, and nobody
    // knows whether on the way there or back. So they are looked at first: the driver's turn, then theirs.
    yield_now().await;
    yield_now().await;
    let answer = request.send().await?;
    Ok((answer.status().as_u16(), answer.bytes().await?))
}

pub(super) fn engine(
    what: impl Into<String>,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> StoreError {
    StoreError::Engine { what: what.into(), source: source.into() }
}

/// An error with what caused it, in one line.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Whether somebody waits for the end of an outage, or there is none.
fn is_waited_for(outages: &Outages, patience: Duration) -> bool {
    outages.lasts_for().is_none_or(|lasts_for| lasts_for < patience) && outages.is_waited_for(patience)
}

/// Bounds how long something is tried.
struct Pauses {
    until: Instant,
    patience: Duration,
    pause: Duration,
}

impl Pauses {
    fn new(patience: Duration) -> Self {
        Self { until: ambient::monotonic() + patience, patience, pause: PAUSE_FIRST }
    }

    /// Waits before the next attempt; false if there shall be none.
    fn again(&mut self, outages: &Outages) -> bool {
        let left = self.until.saturating_duration_since(ambient::monotonic());
        if left.is_zero() || !is_waited_for(outages, self.patience) {
            return false;
        }
        // Half of each pause is by chance, so that those who failed together do not come back together.
        let half = self.pause / 2;
        let jitter = half.mul_f64((ambient::random_u64() % 1024) as f64 / 1024.0);
        sleep((half + jitter).min(left));
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_server_that_falls_silent_is_left_as_soon_as_the_request_says() {
        // Calls are taken for it, and nobody answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = silent.local_addr().unwrap().port();
        let url = format!("opensearch+http://127.0.0.1:{port},127.0.0.1:1/v");
        let link = Link::new(Address::parse(&url, None).unwrap(), Duration::from_secs(30)).unwrap();
        let begun = ambient::monotonic();
        let told = link.tell(&Request::put("/v", &json!({})).within(Some(Duration::from_millis(200))));
        assert!(matches!(told, Err(Failed::Unanswered(_))), "{told:?}");
        assert!(begun.elapsed() < Duration::from_secs(2));
        assert_eq!(link.server.load(Relaxed), 1, "the next one is asked");
    }
}
