//! Requests to an object store, made from threads that wait: a thread of its own drives them, so many at once as
//! [`REQUESTS_AT_ONCE`] says. Owns how long each may take, what is counted, and what becomes of removals at the end.

use std::fmt::Display;
use std::future::Future;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt as _, PutPayload};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};

use crate::ambient;
use crate::store::Outages;

/// As many requests of one process are under way at once.
const REQUESTS_AT_ONCE: usize = 32;

/// A request that takes longer counts as an outage, though it may still be answered.
const SLOW: Duration = Duration::from_secs(3);

/// Beyond the patience, for what an attempt takes that began within it.
const SLACK: Duration = Duration::from_secs(2);

/// As many removals wait at most.
const REMOVALS_MAX: u64 = 4096;

/// So long removals may take at the end of the process; what is not removed then is garbage.
const LAST_REMOVALS: Duration = Duration::from_secs(5);

/// What was asked of an object store since it was opened; tries again do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ObjectCounters {
    /// Objects put.
    pub puts: u64,
    /// Objects read.
    pub gets: u64,
    /// Objects removed.
    pub deletes: u64,
    /// Requests that failed.
    pub failures: u64,
}

/// What tasks and whoever waits for them share.
pub(super) struct Shared {
    pub(super) store: Arc<dyn ObjectStore>,
    patience: Duration,
    permits: Semaphore,
    pub(super) outages: Outages,
    puts: AtomicU64,
    gets: AtomicU64,
    deletes: AtomicU64,
    failures: AtomicU64,
    /// Removals that nobody waits for.
    removals: AtomicU64,
}

/// The thread that drives requests. Ends when this is dropped.
pub(super) struct Requests {
    pub(super) shared: Arc<Shared>,
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Requests {
    pub(super) fn start(store: Arc<dyn ObjectStore>, patience: Duration) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let shared = Arc::new(Shared {
            store,
            patience,
            permits: Semaphore::new(REQUESTS_AT_ONCE),
            outages: Outages::of("the object store"),
            puts: AtomicU64::new(0),
            gets: AtomicU64::new(0),
            deletes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            removals: AtomicU64::new(0),
        });
        let (stop, stopped) = oneshot::channel();
        let of_thread = Arc::clone(&shared);
        let body = move || {
            runtime.block_on(async {
                let _ = stopped.await; // Also when the sender is gone.
                let removed = async {
                    while of_thread.removals.load(Relaxed) > 0 {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                };
                if tokio::time::timeout(LAST_REMOVALS, removed).await.is_err() {
                    log::warn!(
                        "{} objects that nothing names are left in the object store; lockwood check finds them",
                        of_thread.removals.load(Relaxed)
                    );
                }
            });
            runtime.shutdown_background();
        };
        let thread = ambient::spawn("lockwood-objects", body)?;
        Ok(Self { shared, handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Has the requests made, all at once as far as there is room, and waits for them. The outcomes have the order of the
    /// requests.
    pub(super) fn all<T: Send + 'static, F: Future<Output = Result<T, Failed>> + Send + 'static>(
        &self,
        requests: impl Iterator<Item = F>,
    ) -> Vec<Result<T, Failed>> {
        let (sender, receiver) = mpsc::channel();
        let mut outcomes = Vec::new();
        for (at, request) in requests.enumerate() {
            let sender = sender.clone();
            outcomes.push(Err(Failed::Otherwise("the thread that drives requests is gone".to_owned())));
            self.handle.spawn(async move {
                let _ = sender.send((at, request.await)); // Whoever asked waits.
            });
        }
        drop(sender);
        for (at, outcome) in receiver {
            outcomes[at] = outcome;
        }
        outcomes
    }

    /// The same for one request.
    pub(super) fn one<T: Send + 'static>(
        &self,
        request: impl Future<Output = Result<T, Failed>> + Send + 'static,
    ) -> Result<T, Failed> {
        self.all(std::iter::once(request)).pop().unwrap_or(Err(Failed::NotFound))
    }

    /// Removes objects soon. What fails leaves garbage. Who removes more than the object store can take waits for it, but
    /// not for ever.
    pub(super) fn remove_later(&self, paths: Vec<Path>) {
        let (shared, count) = (Arc::clone(&self.shared), paths.len() as u64);
        let deadline = ambient::monotonic() + shared.patience;
        while shared.removals.load(Relaxed) > REMOVALS_MAX && ambient::monotonic() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        shared.removals.fetch_add(count, Relaxed);
        self.handle.spawn(async move {
            let first = paths.first().map(ToString::to_string).unwrap_or_default();
            if let Err(error) = shared.delete_all(paths).await {
                log::warn!(
                    "up to {count} objects are left, and nothing names them, {first} the first: {error}"
                );
            }
            shared.removals.fetch_sub(count, Relaxed);
        });
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that drives requests to the object store panicked");
        }
    }
}

/// Why a request failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// There is no such object.
    NotFound,
    /// The disk of a directory of objects is full.
    NoSpace,
    /// In words.
    Otherwise(String),
}

impl Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotFound => f.write_str("there is no such object"),
            Self::NoSpace => f.write_str("no space is left"),
            Self::Otherwise(cause) => f.write_str(cause),
        }
    }
}

impl Shared {
    pub(super) async fn put(&self, path: &Path, bytes: Bytes) -> Result<(), Failed> {
        self.puts.fetch_add(1, Relaxed);
        self.within(self.store.put(path, PutPayload::from_bytes(bytes))).await.map(drop)
    }

    pub(super) async fn get(&self, path: &Path) -> Result<Bytes, Failed> {
        self.gets.fetch_add(1, Relaxed);
        self.within(async { self.store.get(path).await?.bytes().await }).await
    }

    /// The length of an object, in bytes.
    pub(super) async fn len(&self, path: &Path) -> Result<u64, Failed> {
        self.gets.fetch_add(1, Relaxed);
        self.within(async { Ok(self.store.head(path).await?.size) }).await
    }

    /// As few requests as the object store lets it be. Absent is fine.
    async fn delete_all(&self, paths: Vec<Path>) -> Result<(), Failed> {
        self.deletes.fetch_add(paths.len() as u64, Relaxed);
        let removed = self.store.delete_stream(stream::iter(paths.into_iter().map(Ok)).boxed());
        let absent_is_fine = |outcome: Result<Path, Error>| async move {
            match outcome {
                Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
                Err(other) => Err(other),
            }
        };
        self.within(removed.then(absent_is_fine).try_collect()).await
    }

    /// Absent is fine.
    pub(super) async fn delete(&self, path: &Path) -> Result<(), Failed> {
        self.deletes.fetch_add(1, Relaxed);
        match self.within(self.store.delete(path)).await {
            Ok(()) | Err(Failed::NotFound) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// Waits for an answer with patience, and notes whether there was one.
    pub(super) async fn within<T>(
        &self,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Failed> {
        let _permit = self.permits.acquire().await;
        tokio::pin!(request);
        let first = SLOW.min(self.patience);
        let answer = match tokio::time::timeout(first, &mut request).await {
            Ok(answer) => Ok(answer),
            Err(_) => {
                self.outages.failed(&format!("no answer for {} s", first.as_secs_f64()));
                tokio::time::timeout(self.patience + SLACK - first, request).await
            }
        };
        let failed = match answer {
            Ok(Ok(found)) => {
                self.outages.answered();
                return Ok(found);
            }
            Ok(Err(Error::NotFound { .. })) => {
                self.outages.answered();
                return Err(Failed::NotFound);
            }
            Ok(Err(error)) if is_full(&error) => {
                self.failures.fetch_add(1, Relaxed);
                self.outages.answered();
                return Err(Failed::NoSpace);
            }
            Ok(Err(error)) => words(&error),
            Err(_) => format!("no answer for {} s", self.patience.as_secs_f64()),
        };
        self.failures.fetch_add(1, Relaxed);
        self.outages.failed(&failed);
        Err(Failed::Otherwise(failed))
    }

    pub(super) fn counters(&self) -> ObjectCounters {
        ObjectCounters {
            puts: self.puts.load(Relaxed),
            gets: self.gets.load(Relaxed),
            deletes: self.deletes.load(Relaxed),
            failures: self.failures.load(Relaxed),
        }
    }
}

/// Whether the operating system has no room.
fn is_full(error: &Error) -> bool {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(cause) = source {
        if let Some(host) = cause.downcast_ref::<std::io::Error>() {
            return matches!(host.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
        }
        source = cause.source();
    }
    false
}

/// An error with its causes, which the client keeps apart, each said once.
fn words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = cause.source();
    }
    text
}
