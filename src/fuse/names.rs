//! The names that a kernel is to let go of, and the threads that tell it.
//!
//! What is hard: to let go of a name the kernel takes the lock of its directory, which whoever renames or makes something
//! there holds until he is answered, and he may be waiting for a lock of the tree. So one directory may keep its thread
//! waiting for long, and must keep no other: each directory has a queue of its own, and at most one thread at a time.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use fuser::{INodeNo, Notifier};
use parking_lot::{Condvar, Mutex};

use crate::ambient;
use crate::document::{Ino, Name};

/// So many directories may keep a thread waiting before the others wait, too. Of the renames between directories a kernel
/// has one under way in each mount.
const THREADS: usize = 6;

/// Tells one kernel.
pub(super) struct Names {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// A directory is ready, or the end is wanted.
    ready: Condvar,
    /// Something was told, or the end is wanted.
    told: Condvar,
}

#[derive(Default)]
struct State {
    open: bool,
    /// The directories of which a thread has names to tell, or is telling some.
    directories: HashMap<Ino, VecDeque<(u64, Name)>>,
    /// Those that no thread has.
    ready: VecDeque<Ino>,
    /// The numbers of what is not told yet.
    untold: BTreeSet<u64>,
    next: u64,
}

impl Names {
    /// Without a kernel to tell yet.
    pub(super) fn new() -> Self {
        Self { shared: Arc::default(), threads: Mutex::default() }
    }

    /// From here on the kernel is told.
    pub(super) fn start(&self, notifier: &Notifier) -> std::io::Result<()> {
        self.shared.state.lock().open = true;
        let mut threads = self.threads.lock();
        for _ in 0..THREADS {
            let (shared, notifier) = (Arc::clone(&self.shared), notifier.clone());
            let tell = move |directory: Ino, name: &Name| {
                // That the kernel does not know the name is no error.
                if let Err(error) =
                    notifier.inval_entry(INodeNo(directory.0), OsStr::from_bytes(name.as_bytes()))
                {
                    log::debug!("the kernel was not told of a name in inode {directory}: {error}");
                }
            };
            threads.push(ambient::spawn("lockwood-names", move || shared.run(tell))?);
        }
        Ok(())
    }

    /// Tells the kernel soon to let go of a name in `directory`.
    pub(super) fn name(&self, directory: Ino, name: Name) {
        self.queue(directory, name);
    }

    /// The same, and waits until it is told, or for that long.
    pub(super) fn name_now(&self, directory: Ino, name: Name, longest: Duration) {
        if let Some(number) = self.queue(directory, name) {
            self.wait_while(longest, |untold| untold.contains(&number));
        }
    }

    fn queue(&self, directory: Ino, name: Name) -> Option<u64> {
        let mut state = self.shared.state.lock();
        if !state.open {
            return None;
        }
        let number = state.next;
        state.next += 1;
        state.untold.insert(number);
        match state.directories.entry(directory) {
            Entry::Occupied(mut queue) => queue.get_mut().push_back((number, name)),
            Entry::Vacant(place) => {
                place.insert([(number, name)].into());
                state.ready.push_back(directory);
                drop(state);
                self.shared.ready.notify_one();
            }
        }
        Some(number)
    }

    /// Waits until what was to be told so far is told, or for that long.
    pub(super) fn settle(&self, longest: Duration) {
        let next = self.shared.state.lock().next;
        self.wait_while(longest, |untold| untold.first().is_some_and(|first| *first < next));
    }

    fn wait_while(&self, longest: Duration, is_untold: impl Fn(&BTreeSet<u64>) -> bool) {
        let mut state = self.shared.state.lock();
        let until = ambient::monotonic() + longest;
        while state.open && is_untold(&state.untold) {
            if self.shared.told.wait_until(&mut state, until).timed_out() {
                return; // That it may take longer is in docs/semantics.md.
            }
        }
    }

    /// Ends the threads. What is not told yet need not be: the kernel is gone.
    pub(super) fn close(&self) {
        self.shared.state.lock().open = false;
        self.shared.ready.notify_all();
        self.shared.told.notify_all();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                log::error!("a thread that tells the kernel of names panicked");
            }
        }
    }
}

impl Shared {
    fn run(&self, tell: impl Fn(Ino, &Name)) {
        let mut state = self.state.lock();
        loop {
            while state.open && state.ready.is_empty() {
                self.ready.wait(&mut state);
            }
            if !state.open {
                return;
            }
            let Some(directory) = state.ready.pop_front() else { continue };
            while let Some((number, name)) =
                state.directories.get_mut(&directory).and_then(VecDeque::pop_front)
            {
                parking_lot::MutexGuard::unlocked(&mut state, || tell(directory, &name));
                state.untold.remove(&number);
                self.told.notify_all();
            }
            state.directories.remove(&directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    /// The kernel as a channel: what it is told, and of one directory nothing while its lock is held.
    #[test]
    fn a_directory_that_is_locked_keeps_no_other_waiting() {
        let names = Names::new();
        names.shared.state.lock().open = true;
        let locked = Arc::new(Mutex::new(()));
        let (sender, told) = mpsc::channel();
        for _ in 0..2 {
            let (shared, locked, sender) = (Arc::clone(&names.shared), Arc::clone(&locked), sender.clone());
            let tell = move |directory: Ino, name: &Name| {
                let _held = (directory == Ino(7)).then(|| locked.lock());
                sender.send((directory, name.clone())).unwrap();
            };
            names.threads.lock().push(ambient::spawn("names", move || shared.run(tell)).unwrap());
        }
        let rename = locked.lock();
        for text in ["a", "b", "c"] {
            names.name(Ino(7), name(text));
        }
        names.name(Ino(8), name("d"));
        assert_eq!(told.recv().unwrap(), (Ino(8), name("d")));
        names.settle(Duration::from_millis(1));
        assert!(told.try_recv().is_err());
        drop(rename);
        names.settle(Duration::from_secs(60));
        let rest: Vec<_> = told.try_iter().collect();
        assert_eq!(rest, ["a", "b", "c"].map(|text| (Ino(7), name(text))));
        names.close();
        names.name(Ino(7), name("late"));
        names.settle(Duration::from_secs(60));
    }
}
