//! Work whose caller does not wait for it, and who has to wait for it instead.
//!
//! Owns the threads that do it. Imports `ambient`; every layer may import it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::ambient::Clock;

/// Who waits for work looks again after this time: a small part of what a request takes.
const LOOK_AFTER: Duration = Duration::from_micros(200);

/// Where work is done that its caller does not wait for.
pub trait Later: Send + Sync {
    /// Does it once, or drops it undone if everything ends. It must not wait for other work that was handed in here.
    fn run(&self, work: Box<dyn FnOnce() + Send>);
}

/// Work is done before [`Later::run`] returns, so that a seed can replay it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inline;

impl Later for Inline {
    fn run(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }
}

/// Work is done by a few threads, which end when there has been none for some seconds. What has not begun when this is
/// dropped is not done; what has is waited for.
#[derive(Debug)]
pub struct Background(tokio::runtime::Runtime);

impl Background {
    /// With so many threads at most.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(name: &str, threads: usize) -> io::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.thread_name(name).max_blocking_threads(threads).build().map(Self)
    }
}

impl Later for Background {
    fn run(&self, work: Box<dyn FnOnce() + Send>) {
        drop(self.0.spawn_blocking(work));
    }
}

/// The things that work is being done on, and how many such works there are for each.
#[derive(Debug)]
pub struct UnderWay<K> {
    keys: Mutex<BTreeMap<K, usize>>,
}

/// Work on some things, until this is dropped.
#[derive(Debug)]
pub struct Working<K: Ord> {
    all: Arc<UnderWay<K>>,
    keys: Vec<K>,
}

impl<K> Default for UnderWay<K> {
    fn default() -> Self {
        Self { keys: Mutex::default() }
    }
}

impl<K: Ord + Clone> UnderWay<K> {
    /// Work on these begins.
    pub fn begin(self: &Arc<Self>, keys: Vec<K>) -> Working<K> {
        let mut under_way = self.keys.lock();
        for key in &keys {
            *under_way.entry(key.clone()).or_default() += 1;
        }
        drop(under_way);
        Working { all: Arc::clone(self), keys }
    }

    /// Waits until none of these is under way. That must not be called by work which is under way.
    pub fn wait_for<'a>(&self, clock: &dyn Clock, keys: impl IntoIterator<Item = &'a K> + Clone)
    where
        K: 'a,
    {
        let is_under_way = || {
            let under_way = self.keys.lock();
            keys.clone().into_iter().any(|key| under_way.contains_key(key))
        };
        while is_under_way() {
            clock.sleep(LOOK_AFTER);
        }
    }
}

impl<K: Ord> Drop for Working<K> {
    fn drop(&mut self) {
        let mut under_way = self.all.keys.lock();
        for key in &self.keys {
            match under_way.get_mut(key) {
                Some(works) if *works > 1 => *works -= 1,
                _ => drop(under_way.remove(key)),
            }
        }
    }
}
