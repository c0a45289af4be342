//! How many threads read what the kernel asks: no more than the load keeps busy.
//!
//! Linux gives a request to the thread that has waited longest. So one program that asks one thing after the other goes
//! through all threads in turn, each time through one whose stack, buffer and connection have left the caches, and often
//! on another core. Here a thread that has answered stands aside while enough others read, and the one that stood aside
//! last is called back first, as soon as nobody reads any more. Thread pools that take the latest idle one do the same.
//!
//! What is hard:
//! 1. *Nobody may be left aside.* When a tree is unmounted, those who read are told so, and those aside are not. A thread
//!    that ends calls all of them back, by [`Ending`]. That takes a thread that has been through here once; so somebody
//!    stands aside only while enough of *those* read.
//! 2. *Who calls back pays for it*, so it must be rare. Calls that come again and again raise the number that is enough by
//!    one, and a while with few of them lowers it. A single call says little: somebody had answered, and was not back yet.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, Thread};
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, INodeNo, IoctlFlags, KernelConfig, LockOwner,
    OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen,
    ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;

/// One that takes the next request, and one that takes the one after it meanwhile.
const ENOUGH_MIN: usize = 2;
/// More calls than one in so many requests are worth a thread more.
const RARE: u32 = 16;
/// So many calls beyond that are no chance.
const CALLS: u32 = 8;
/// After so many requests in a row with no more calls than that, one thread less is enough.
const CALM: u32 = 1024;

/// The threads that read the requests of one mount.
pub(super) struct Readers {
    state: Mutex<State>,
}

struct State {
    /// How many read, or are about to.
    reading: usize,
    /// Of those, who will say that they have ended: they have answered a request before.
    known: usize,
    /// So many of the known are enough.
    enough: usize,
    /// Grows by [`RARE`] with each call, and falls by one with each request.
    pressure: u32,
    /// Requests without any pressure.
    calm: u32,
    aside: Vec<Thread>,
    /// Somebody has ended, as all will: nobody stands aside any more.
    is_ending: bool,
}

/// A request being answered. Afterwards its thread reads again, or stands aside if it may.
struct Turn<'a> {
    readers: &'a Readers,
    may_stand_aside: bool,
}

/// What a thread keeps that has answered a request; it serves one mount only.
struct Ending(Arc<Readers>);

thread_local! {
    static ENDING: RefCell<Option<Ending>> = const { RefCell::new(None) };
}

impl Readers {
    /// For so many threads, which all read.
    pub(super) fn new(threads: usize) -> Arc<Self> {
        let state = State {
            reading: threads,
            known: 0,
            enough: ENOUGH_MIN,
            pressure: 0,
            calm: 0,
            aside: Vec::new(),
            is_ending: false,
        };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// A request has been read by this thread.
    fn turn(self: &Arc<Self>) -> Turn<'_> {
        self.begin();
        Turn { readers: self, may_stand_aside: true }
    }

    /// The same of one behind which there may be more, that came with it.
    fn turn_of_several(self: &Arc<Self>) -> Turn<'_> {
        self.begin();
        Turn { readers: self, may_stand_aside: false }
    }

    fn begin(self: &Arc<Self>) {
        let is_known = ENDING.with_borrow(Option::is_some);
        if !is_known {
            ENDING.set(Some(Ending(Arc::clone(self))));
        }
        self.state.lock().begin(is_known);
    }

    fn stand_aside(&self) {
        let own = thread::current();
        let is_aside = || self.state.lock().aside.iter().any(|aside| aside.id() == own.id());
        while is_aside() {
            thread::park();
        }
    }
}

impl State {
    fn begin(&mut self, is_known: bool) {
        self.reading = self.reading.saturating_sub(1);
        self.known = self.known.saturating_sub(usize::from(is_known));
        self.pressure = self.pressure.saturating_sub(1);
        self.calm = if self.pressure == 0 { self.calm + 1 } else { 0 };
        if self.calm >= CALM {
            self.enough = (self.enough - 1).max(ENOUGH_MIN);
            self.calm = 0;
        }
        if self.reading == 0 && self.call() {
            self.pressure += RARE;
            if self.pressure >= CALLS * RARE {
                self.enough += 1;
                self.pressure = 0;
            }
        }
    }

    /// Whether the thread stands aside.
    fn end(&mut self, may_stand_aside: bool) -> bool {
        if !may_stand_aside || self.is_ending || self.known < self.enough {
            self.reading += 1;
            self.known += 1;
            return false;
        }
        self.aside.push(thread::current());
        true
    }

    /// Calls back who stood aside last.
    fn call(&mut self) -> bool {
        let Some(thread) = self.aside.pop() else { return false };
        self.reading += 1;
        self.known += 1;
        thread.unpark();
        true
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Who panics ends.
        if !thread::panicking() && self.readers.state.lock().end(self.may_stand_aside) {
            self.readers.stand_aside();
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.is_ending = true;
        while state.call() {}
    }
}

/// A file system whose threads stand aside when they are not needed.
pub(super) struct InTurn<F> {
    inner: F,
    readers: Arc<Readers>,
}

impl<F> InTurn<F> {
    pub(super) fn new(inner: F, threads: usize) -> Self {
        Self { inner, readers: Readers::new(threads) }
    }
}

macro_rules! in_turn {
    ($($call:ident($($argument:ident: $type:ty),*);)*) => {
        $(fn $call(&self, request: &Request, $($argument: $type),*) {
            let _turn = self.readers.turn();
            self.inner.$call(request, $($argument),*);
        })*
    };
}

/// All that the adapter answers. What is left out the library refuses.
impl<F: Filesystem> Filesystem for InTurn<F> {
    fn init(&mut self, request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        self.inner.init(request, config)
    }

    fn destroy(&mut self) {
        self.inner.destroy();
    }

    /// Each of a batch by itself.
    fn forget(&self, request: &Request, ino: INodeNo, lookups: u64) {
        let _turn = self.readers.turn_of_several();
        self.inner.forget(request, ino, lookups);
    }

    #[rustfmt::skip]
    in_turn! {
        lookup(parent: INodeNo, name: &OsStr, reply: ReplyEntry);
        getattr(ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr);
        setattr(ino: INodeNo, mode: Option<u32>, uid: Option<u32>, gid: Option<u32>, size: Option<u64>,
            atime: Option<TimeOrNow>, mtime: Option<TimeOrNow>, ctime: Option<SystemTime>, fh: Option<FileHandle>,
            crtime: Option<SystemTime>, chgtime: Option<SystemTime>, bkuptime: Option<SystemTime>,
            flags: Option<BsdFileFlags>, reply: ReplyAttr);
        readlink(ino: INodeNo, reply: ReplyData);
        mknod(parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry);
        mkdir(parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry);
        unlink(parent: INodeNo, name: &OsStr, reply: ReplyEmpty);
        rmdir(parent: INodeNo, name: &OsStr, reply: ReplyEmpty);
        symlink(parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry);
        rename(parent: INodeNo, old: &OsStr, new_parent: INodeNo, new: &OsStr, flags: RenameFlags, reply: ReplyEmpty);
        link(ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry);
        open(ino: INodeNo, flags: OpenFlags, reply: ReplyOpen);
        create(parent: INodeNo, name: &OsStr, mode: u32, umask: u32, flags: i32, reply: ReplyCreate);
        read(ino: INodeNo, fh: FileHandle, offset: u64, size: u32, flags: OpenFlags, owner: Option<LockOwner>,
            reply: ReplyData);
        write(ino: INodeNo, fh: FileHandle, offset: u64, data: &[u8], write_flags: WriteFlags, flags: OpenFlags,
            owner: Option<LockOwner>, reply: ReplyWrite);
        flush(ino: INodeNo, fh: FileHandle, owner: LockOwner, reply: ReplyEmpty);
        release(ino: INodeNo, fh: FileHandle, flags: OpenFlags, owner: Option<LockOwner>, flush: bool, reply: ReplyEmpty);
        fsync(ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty);
        opendir(ino: INodeNo, flags: OpenFlags, reply: ReplyOpen);
        readdir(ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectory);
        readdirplus(ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectoryPlus);
        releasedir(ino: INodeNo, fh: FileHandle, flags: OpenFlags, reply: ReplyEmpty);
        fsyncdir(ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty);
        statfs(ino: INodeNo, reply: ReplyStatfs);
        setxattr(ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, position: u32, reply: ReplyEmpty);
        getxattr(ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr);
        listxattr(ino: INodeNo, size: u32, reply: ReplyXattr);
        removexattr(ino: INodeNo, name: &OsStr, reply: ReplyEmpty);
        getlk(ino: INodeNo, fh: FileHandle, owner: LockOwner, start: u64, end: u64, typ: i32, pid: u32, reply: ReplyLock);
        setlk(ino: INodeNo, fh: FileHandle, owner: LockOwner, start: u64, end: u64, typ: i32, pid: u32, sleep: bool,
            reply: ReplyEmpty);
        ioctl(ino: INodeNo, fh: FileHandle, flags: IoctlFlags, cmd: u32, in_data: &[u8], out_size: u32,
            reply: ReplyIoctl);
        poll(ino: INodeNo, fh: FileHandle, notifier: PollNotifier, events: PollEvents, flags: PollFlags,
            reply: ReplyPoll);
        fallocate(ino: INodeNo, fh: FileHandle, offset: u64, length: u64, mode: i32, reply: ReplyEmpty);
        lseek(ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek);
        copy_file_range(ino_in: INodeNo, fh_in: FileHandle, offset_in: u64, ino_out: INodeNo, fh_out: FileHandle,
            offset_out: u64, len: u64, flags: CopyFileRangeFlags, reply: ReplyWrite);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};
    use std::sync::mpsc::{self, Sender};
    use std::thread::ThreadId;
    use std::time::Duration;

    use parking_lot::Condvar;

    use super::*;
    use crate::ambient;

    /// As many requests are answered at once as there are threads.
    const THREADS: usize = 8;

    type Request = Box<dyn FnOnce() + Send>;

    /// Gives each request to the thread that has waited longest, as Linux does.
    #[derive(Default)]
    struct Kernel {
        state: Mutex<Queues>,
        given: Condvar,
    }

    #[derive(Default)]
    struct Queues {
        requests: VecDeque<Request>,
        waiting: VecDeque<ThreadId>,
        is_unmounted: bool,
    }

    impl Kernel {
        /// None: unmounted.
        fn read(&self) -> Option<Request> {
            let own = thread::current().id();
            let mut state = self.state.lock();
            state.waiting.push_back(own);
            loop {
                if state.is_unmounted {
                    return None;
                }
                if state.waiting.front() == Some(&own)
                    && let Some(request) = state.requests.pop_front()
                {
                    state.waiting.pop_front();
                    self.given.notify_all();
                    return Some(request);
                }
                self.given.wait(&mut state);
            }
        }

        fn ask(&self, request: impl FnOnce() + Send + 'static) {
            self.state.lock().requests.push_back(Box::new(request));
            self.given.notify_all();
        }

        /// Asks, and waits for the answer: which thread it was.
        fn ask_and_wait(&self) -> ThreadId {
            let (answer, answered) = mpsc::channel();
            self.ask(move || answer.send(thread::current().id()).unwrap());
            answered.recv_timeout(Duration::from_secs(30)).unwrap()
        }

        fn unmount(&self) {
            self.state.lock().is_unmounted = true;
            self.given.notify_all();
        }
    }

    struct Mount {
        kernel: Arc<Kernel>,
        readers: Arc<Readers>,
        threads: Vec<thread::JoinHandle<()>>,
    }

    impl Mount {
        fn new() -> Self {
            let (kernel, readers) = (Arc::new(Kernel::default()), Readers::new(THREADS));
            let serve = || {
                let (kernel, readers) = (Arc::clone(&kernel), Arc::clone(&readers));
                let body = move || {
                    while let Some(request) = kernel.read() {
                        let _turn = readers.turn();
                        request();
                    }
                };
                ambient::spawn("reader", body).unwrap()
            };
            let threads = (0..THREADS).map(|_| serve()).collect();
            while kernel.state.lock().waiting.len() < THREADS {
                thread::yield_now();
            }
            Self { kernel, readers, threads }
        }

        /// One of which each thread has had a request, so that those stand aside who are not needed.
        fn at_work() -> Self {
            let mount = Self::new();
            for _ in 0..10 * THREADS {
                mount.answer_one();
            }
            mount
        }

        /// Asks when nobody is busy, not even with the end of an answer: which thread it was that answered.
        fn answer_one(&self) -> ThreadId {
            let is_busy = || {
                let state = self.readers.state.lock();
                state.reading + state.aside.len() < THREADS
            };
            while is_busy() {
                thread::yield_now();
            }
            self.kernel.ask_and_wait()
        }

        /// Ends only when all threads have.
        fn unmount(self) {
            self.kernel.unmount();
            for thread in self.threads {
                thread.join().unwrap();
            }
        }
    }

    /// Asks for what is not answered before the sender is gone, and waits until it is being served.
    fn busy(kernel: &Kernel) -> Sender<()> {
        let (release, released) = mpsc::channel::<()>();
        let (begun, has_begun) = mpsc::channel();
        kernel.ask(move || {
            begun.send(()).unwrap();
            let _ = released.recv();
        });
        has_begun.recv_timeout(Duration::from_secs(30)).unwrap();
        release
    }

    #[test]
    fn one_after_the_other_is_answered_by_few() {
        let mount = Mount::at_work();
        let by: HashSet<ThreadId> = (0..100).map(|_| mount.answer_one()).collect();
        assert!(by.len() <= ENOUGH_MIN, "{by:?}");
        mount.unmount();
    }

    #[test]
    fn who_waits_holds_up_nobody_else() {
        let mount = Mount::at_work();
        // As often as that takes: until so many are kept reading that few have to be called.
        let enough = || mount.readers.state.lock().enough;
        let mut rounds = 0;
        while enough() <= THREADS / 2 {
            let mut held = Vec::new();
            for _ in 1..THREADS {
                held.push(busy(&mount.kernel));
                mount.kernel.ask_and_wait();
            }
            rounds += 1;
            assert!(rounds < 10_000, "{} are enough", enough());
        }
        // And that is too much again, in a while.
        for _ in 0..THREADS as u32 * CALM {
            mount.answer_one();
        }
        assert_eq!(enough(), ENOUGH_MIN);
        mount.unmount();
    }

    /// Whoever was aside, or had never had a request: all end.
    #[test]
    fn all_end_when_the_tree_is_unmounted() {
        for requests in 0..3 * THREADS {
            let mount = Mount::new();
            for _ in 0..requests {
                mount.kernel.ask_and_wait();
            }
            mount.unmount();
        }
    }

    #[test]
    fn all_end_when_many_are_busy_at_the_end() {
        let mount = Mount::at_work();
        let held: Vec<_> = (0..THREADS).map(|_| busy(&mount.kernel)).collect();
        mount.kernel.unmount();
        drop(held);
        mount.unmount();
    }
}
