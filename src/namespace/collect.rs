//! Removing what nothing names any more: the documents, backing files and chunks of inodes that have lost their last name.
//!
//! Documents go in the commit that takes the last name, or the last close. Backing files and chunks go after it, in a
//! thread of their own, since removing a large file takes long. Until then an orphan document says what is still to be
//! removed.
//!
//! What is hard: a store that is away keeps nobody from closing a file, and nobody closes it twice. So what could not be
//! removed then is kept, and the thread tries again until it can, or the mount ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{NamespaceError, Result};
use crate::ambient;
use crate::content::{ContentError, Contents};
use crate::document::{Body, ContentPlace, Ino, Key, Node, SessionId};
use crate::store::{Commit, Range, Scan, Start, Store, StoreError};

/// What has failed is tried again after so long, then after twice as long, up to the longest.
const AGAIN_AFTER: Duration = Duration::from_millis(250);
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(10);

/// Who needs room waits no longer than this for what is being removed.
const ROOM_WAIT: Duration = Duration::from_secs(5);

/// Removes backing files and chunks in the background.
pub struct Collector {
    worker: Worker,
    untried: Arc<Untried>,
    queue: Mutex<Option<Sender<Task>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Clone, Copy)]
enum Task {
    /// What an inode without a node has apart from it.
    Remove(Ino),
    /// An orphan that nobody has open, with its documents.
    Orphan(Ino),
    Sweep,
    SweepAfter(SessionId),
}

/// How many tasks were not tried yet.
#[derive(Default)]
struct Untried {
    tasks: Mutex<usize>,
    fewer: Condvar,
}

#[derive(Clone)]
struct Worker {
    store: Arc<dyn Store>,
    /// As nobody's session changes them: only what no node speaks of is removed here, for ever, whoever is asked to.
    contents: Contents,
}

/// Adds to `commit` everything that goes with an inode: its node, its inline content and its attributes.
///
/// # Errors
/// When the attributes cannot be read.
pub(super) fn delete_inode(store: &dyn Store, ino: Ino, node: &Node, mut commit: Commit) -> Result<Commit> {
    commit = commit.delete(Key::Node(ino));
    if matches!(&node.body, Body::Regular(regular) if regular.place == ContentPlace::Inline) {
        commit = commit.delete(Key::Content(ino));
    }
    if node.xattrs > 0 {
        let scan = Scan { range: Range::Xattrs(ino), start: Start::First, limit: usize::MAX };
        for (key, _) in store.scan(&scan)? {
            commit = commit.delete(key);
        }
    }
    Ok(commit)
}

/// Whether what has failed so may go well later, without anybody doing anything about this volume.
fn may_pass(error: &NamespaceError) -> bool {
    matches!(
        error,
        NamespaceError::Conflict(_)
            | NamespaceError::Store(StoreError::Engine { .. } | StoreError::Unknown(_) | StoreError::NoSpace)
            | NamespaceError::Content(ContentError::Object { .. })
    )
}

/// Whether the inode has bytes in backing files or chunks.
pub(super) fn is_apart(node: &Node) -> bool {
    matches!(&node.body, Body::Regular(regular) if regular.place.is_apart())
}

impl Collector {
    pub(super) fn start(store: Arc<dyn Store>, contents: Contents) -> Result<Self> {
        let worker = Worker { store, contents };
        let untried = Arc::new(Untried::default());
        let (sender, receiver) = mpsc::channel();
        let thread = {
            let (worker, untried) = (worker.clone(), Arc::clone(&untried));
            ambient::spawn("lockwood-collect", move || worker.work(&receiver, &untried))
                .map_err(|e| StoreError::io("starting the thread that collects", e))?
        };
        Ok(Self { worker, untried, queue: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)) })
    }

    /// Removes the backing files or chunks of an inode that has no node any more, soon.
    pub(super) fn remove_content(&self, ino: Ino) {
        self.send(Task::Remove(ino));
    }

    /// Removes an orphan whose last close could not, soon.
    pub(super) fn remove_orphan(&self, ino: Ino) {
        self.send(Task::Orphan(ino));
    }

    /// Looks for backing files or chunks that a crash left without a node, and removes them, soon.
    pub(super) fn sweep(&self) {
        self.send(Task::Sweep);
    }

    /// Removes what a session that has ended has left in an object store, soon.
    pub(super) fn sweep_after(&self, session: SessionId) {
        self.send(Task::SweepAfter(session));
    }

    fn send(&self, task: Task) {
        let Some(queue) = &*self.queue.lock() else { return };
        *self.untried.tasks.lock() += 1;
        if queue.send(task).is_err() {
            *self.untried.tasks.lock() -= 1;
            log::error!("the thread that collects is gone; what is left is collected by the next mount");
        }
    }

    /// Waits until what was asked for is done, or has failed, but not for long. The thread takes none of an operation's
    /// locks.
    pub(super) fn wait_for_room(&self) {
        let mut tasks = self.untried.tasks.lock();
        let _ = self.untried.fewer.wait_while_for(&mut tasks, |tasks| *tasks > 0, ROOM_WAIT);
    }

    /// Removes an orphan at once, its documents included.
    pub(super) fn collect_now(&self, ino: Ino) -> Result<()> {
        self.worker.collect(ino)
    }

    /// Waits until all is done that was asked for, but for what has failed before. Nothing can be asked for afterwards.
    pub(super) fn finish(&self) {
        drop(self.queue.lock().take());
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            log::error!("the thread that collects panicked; what is left is collected by the next mount");
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Worker {
    /// Does what it is asked for until nobody can ask any more.
    fn work(&self, queue: &Receiver<Task>, untried: &Untried) {
        let (mut tasks, mut again_after) = (VecDeque::new(), AGAIN_AFTER);
        loop {
            let next = match tasks.is_empty() {
                true => queue.recv().map_err(RecvTimeoutError::from),
                false => queue.recv_timeout(again_after),
            };
            if matches!(next, Err(RecvTimeoutError::Disconnected)) {
                break;
            }
            let before = tasks.len();
            tasks.extend(next.into_iter().chain(queue.try_iter()));
            let new = tasks.len() - before;
            let failed = match self.store.outage() {
                // Its patience is for who cannot do without an answer; and the end of the mount waits for this thread.
                Some(outage) => Some(outage.cause),
                None => self.run(&mut tasks).err().map(|error| error.to_string()),
            };
            *untried.tasks.lock() -= new;
            untried.fewer.notify_all();
            match failed {
                None => again_after = AGAIN_AFTER,
                Some(cause) => {
                    let level = if again_after == AGAIN_AFTER { log::Level::Warn } else { log::Level::Debug };
                    log::log!(level, "collecting: {cause}; trying again");
                    again_after = (again_after * 2).min(AGAIN_AFTER_MAX);
                }
            }
        }
        if !tasks.is_empty() {
            log::warn!("collecting: {} removals are left to who cleans up after this session", tasks.len());
        }
    }

    /// Does all of these, up to the first that fails in a way that may pass: it is the last one then, so that it keeps no
    /// other from being done next time.
    ///
    /// One sync goes before the files of a batch. Otherwise a power cut could bring back a name whose bytes are gone: the
    /// host would have kept their removal, and not yet the commit that took the name.
    fn run(&self, tasks: &mut VecDeque<Task>) -> Result<()> {
        if let Err(error) = self.store.sync().map_err(NamespaceError::from) {
            if may_pass(&error) {
                return Err(error);
            }
            log::error!("collecting: {error}; the next mount tries again");
            tasks.clear();
        }
        while let Some(task) = tasks.pop_front() {
            let outcome = match task {
                Task::Remove(ino) => self.remove_unless_back(ino),
                Task::Orphan(ino) => self.collect(ino),
                Task::Sweep => self.sweep(),
                Task::SweepAfter(session) => self.sweep_after(session),
            };
            match outcome {
                Err(error) if may_pass(&error) => {
                    tasks.push_back(task);
                    return Err(error);
                }
                Err(error) => log::error!("collecting: {error}; the next mount tries again"),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn collect(&self, ino: Ino) -> Result<()> {
        let store = &*self.store;
        if let Some((version, node)) = store.node(ino)? {
            let commit = Commit::new().at(Key::Node(ino), version);
            if node.nlink > 0 {
                // The store has lost the change that took its last name: it is no orphan.
                store.commit(&commit.delete(Key::Orphan(ino)))?;
                return Ok(());
            }
            store.commit(&delete_inode(store, ino, &node, commit)?)?;
            store.sync()?;
        }
        self.remove(ino)
    }

    fn remove(&self, ino: Ino) -> Result<()> {
        self.contents.remove(ino.0)?;
        self.store.commit(&Commit::new().delete(Key::Orphan(ino)))?;
        Ok(())
    }

    /// A store that has lost the commit that took the node has brought that back. If it has no name, whoever cleans up after
    /// its session removes it.
    fn remove_unless_back(&self, ino: Ino) -> Result<()> {
        match self.remove(ino) {
            Err(NamespaceError::Conflict(Key::Node(_))) if self.store.node(ino)?.is_some() => {
                log::warn!(
                    "inode {ino} is back, as the store has lost the change that removed it: its bytes stay"
                );
                Ok(())
            }
            removed => removed,
        }
    }

    fn sweep_after(&self, session: SessionId) -> Result<()> {
        let removed = self.contents.collect_of(session)?;
        if removed > 0 {
            log::info!("removed {removed} objects of session {session} that nothing names");
        }
        Ok(())
    }

    /// A crash between making a backing file, or chunks, and naming it leaves what no node speaks of. Such a file is empty
    /// of promises: its inode number belongs to a node with other content, or to none.
    fn sweep(&self) -> Result<()> {
        let mut removed = 0;
        for ino in self.contents.list() {
            let ino = Ino(ino?);
            let node = self.store.node(ino)?;
            let wanted = node.is_some() || self.store.get(&Key::Orphan(ino))?.is_some();
            if !wanted {
                self.contents.remove(ino.0)?;
                removed += 1;
            }
        }
        log::info!("swept the contents of {removed} inodes that nothing names");
        Ok(())
    }
}
