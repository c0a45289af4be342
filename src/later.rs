//! Work whose caller does not wait for it, and who has to wait for it instead.
//!
//! Owns the threads that do it. Imports `ambient`; every layer may import it.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::ambient::{self, Clock};

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

/// Work is done by a few threads, in the order in which it was handed in. What has not begun when this is dropped is not
/// done; what has is waited for.
pub struct Background {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    works: Mutex<Works>,
    arrived: Condvar,
}

#[derive(Default)]
struct Works {
    waiting: VecDeque<Box<dyn FnOnce() + Send>>,
    /// How many threads have nothing to do.
    idle: usize,
    /// One of these has been called, and is not there yet.
    is_called: bool,
    has_ended: bool,
}

impl Works {
    /// Whether a thread is to be called. That costs the caller some 60 us, as who is woken often takes his processor; and
    /// whoever hands in work mostly hands in more. So he calls one thread, and each that comes the next one.
    fn call(&mut self) -> bool {
        let calls = !self.is_called && self.idle > 0 && !self.waiting.is_empty();
        self.is_called |= calls;
        calls
    }
}

impl Background {
    /// With so many threads.
    ///
    /// # Errors
    /// The operating system's, when it has no room for another thread.
    pub fn new(name: &str, threads: usize) -> io::Result<Self> {
        let mut started = Self { queue: Arc::default(), threads: Vec::with_capacity(threads) };
        for _ in 0..threads {
            let queue = Arc::clone(&started.queue);
            started.threads.push(ambient::spawn(name, move || queue.work())?);
        }
        Ok(started)
    }
}

impl Queue {
    fn work(&self) {
        let mut works = self.works.lock();
        loop {
            match works.waiting.pop_front() {
                Some(work) => {
                    if works.call() {
                        self.arrived.notify_one();
                    }
                    MutexGuard::unlocked(&mut works, work);
                }
                None if works.has_ended => return,
                None => {
                    works.idle += 1;
                    self.arrived.wait(&mut works);
                    works.idle -= 1;
                    works.is_called = false;
                }
            }
        }
    }
}

impl Later for Background {
    fn run(&self, work: Box<dyn FnOnce() + Send>) {
        let mut works = self.queue.works.lock();
        works.waiting.push_back(work);
        let calls = works.call();
        drop(works);
        if calls {
            self.queue.arrived.notify_one();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let left = {
            let mut works = self.queue.works.lock();
            works.has_ended = true;
            std::mem::take(&mut works.waiting)
        };
        drop(left);
        self.queue.arrived.notify_all();
        for thread in self.threads.drain(..) {
            // The last work may have been the last to need this.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                log::error!("a thread that worked behind its callers has panicked");
            }
        }
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

    /// Waits until none of these is under way, or for as long as the caller wants to. Not to be called by work which is.
    pub fn wait_for<'a>(
        &self,
        clock: &dyn Clock,
        keys: impl IntoIterator<Item = &'a K> + Clone,
        goes_on: impl Fn() -> bool,
    ) where
        K: 'a,
    {
        let is_under_way = || {
            let under_way = self.keys.lock();
            keys.clone().into_iter().any(|key| under_way.contains_key(key))
        };
        while is_under_way() && goes_on() {
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

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn each_work_has_a_thread_while_there_are_any() {
        const THREADS: usize = 4;
        let background = Background::new("test", THREADS).unwrap();
        for round in 0..200 {
            // None of them ends before all have begun.
            let (meet, (ended, all)) = (Arc::new(Barrier::new(THREADS)), mpsc::channel());
            for work in 0..THREADS {
                let (meet, ended) = (Arc::clone(&meet), ended.clone());
                background.run(Box::new(move || {
                    meet.wait();
                    ended.send(work).unwrap();
                }));
            }
            let mut works: Vec<usize> = (0..THREADS)
                .map(|_| {
                    all.recv_timeout(Duration::from_secs(30)).unwrap_or_else(|_| panic!("round {round}"))
                })
                .collect();
            works.sort_unstable();
            assert_eq!(works, [0, 1, 2, 3]);
        }
    }

    #[test]
    fn more_works_than_threads_are_done_in_order() {
        let background = Background::new("test", 1).unwrap();
        let (ended, all) = mpsc::channel();
        for work in 0..1000 {
            let ended = ended.clone();
            background.run(Box::new(move || ended.send(work).unwrap()));
        }
        drop(ended);
        assert!(all.iter().eq(0..1000));
    }

    #[test]
    fn what_has_not_begun_at_the_end_is_not_done() {
        let background = Background::new("test", 1).unwrap();
        let (begun, (go_on, wait)) = (Arc::new(Barrier::new(2)), mpsc::channel());
        let (ended, all) = mpsc::channel();
        let (in_work, of_first) = (Arc::clone(&begun), ended.clone());
        background.run(Box::new(move || {
            in_work.wait();
            let _ = wait.recv();
            of_first.send("first").unwrap();
        }));
        background.run(Box::new(move || ended.send("second").unwrap()));
        begun.wait();
        let queue = Arc::clone(&background.queue);
        std::thread::scope(|scope| {
            scope.spawn(move || drop(background));
            while !queue.works.lock().has_ended {
                std::thread::yield_now();
            }
            go_on.send(()).unwrap();
        });
        assert_eq!(all.iter().collect::<Vec<_>>(), ["first"]);
    }
}
