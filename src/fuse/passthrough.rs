//! Whether the kernel of a mount reads and writes backing files itself (FUSE_PASSTHROUGH, Linux 6.9), and registering them
//! for that. What it means for a file is [`namespace::ops::passthrough`](crate::namespace::ops::passthrough)'s.
//!
//! It is for a mount that has its store for itself: the kernels of other mounts would not learn of what is written so. And
//! for root, as the kernel demands CAP_SYS_ADMIN.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fuser::{BackingId, FileHandle, FopenFlags, InitFlags, KernelConfig, OpenFlags, ReplyOpen};
use parking_lot::RwLock;

use super::descriptors::Shares;
use crate::namespace::Registration;
use crate::namespace::ops::passthrough::Access;

/// Backing files must be on a file system of the host that is stacked on none; and this one can be stacked on.
const STACK_DEPTH: u32 = 1;

/// Which open files the kernel is to read and write itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// None.
    Off,
    /// Those that are open only to be read. Nothing changes then that the daemon does not change.
    Read,
    /// All.
    Write,
}

/// What one mount does.
pub(super) struct Passthrough {
    wanted: Passing,
    /// Why it is off; none: it is on.
    off: RwLock<Option<String>>,
    /// As many files may be passed at once. Each takes a descriptor of this process, of which the store must not run out.
    most: usize,
    passed: Arc<AtomicUsize>,
}

/// A file of the host that the kernel has.
struct Registered {
    id: BackingId,
    passed: Arc<AtomicUsize>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.passed.fetch_sub(1, Relaxed);
    }
}

/// A number of an open file that says how it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle {
    pub(super) number: u64,
    pub(super) writes: bool,
    /// The file is the kernel's, at least where it is mapped.
    pub(super) passed: bool,
    /// It was opened with FOPEN_DIRECT_IO: Linux does not ask for the sync that O_SYNC, RWF_DSYNC and the like stand for.
    pub(super) direct: bool,
}

impl From<Handle> for FileHandle {
    fn from(handle: Handle) -> Self {
        let bits = [handle.direct, handle.writes, handle.passed];
        Self(bits.into_iter().fold(handle.number, |all, bit| all << 1 | u64::from(bit)))
    }
}

impl From<FileHandle> for Handle {
    fn from(FileHandle(bits): FileHandle) -> Self {
        Self { number: bits >> 3, direct: bits & 4 != 0, writes: bits & 2 != 0, passed: bits & 1 != 0 }
    }
}

impl Passthrough {
    /// As wanted, if the kernel can, or off for this reason.
    pub(super) fn new(wanted: Passing, off: Option<&str>) -> Self {
        let off = off.or((wanted == Passing::Off).then_some("as the options say"));
        let off = RwLock::new(off.map(ToOwned::to_owned));
        Self { wanted, off, most: Shares::own().passed, passed: Arc::default() }
    }

    /// What an open file with these flags is for.
    pub(super) fn access(&self, flags: OpenFlags) -> Access {
        let durable = flags.0 & (libc::O_SYNC | libc::O_DSYNC) != 0;
        Access { durable, ..self.access_of(flags.0 & libc::O_ACCMODE != libc::O_RDONLY) }
    }

    /// The same of a file that is open, of which nobody knows any more whether its writes are to be durable.
    pub(super) fn access_of(&self, writes: bool) -> Access {
        Access { writes, passes: !writes || self.wanted == Passing::Write, durable: false }
    }

    /// Asks the kernel of a new mount for it.
    pub(super) fn negotiate(&self, config: &mut KernelConfig) {
        if !self.is_on() {
            return;
        }
        let cause = if config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_err() {
            "the kernel has no FUSE_PASSTHROUGH (Linux 6.9)"
        } else if config.set_max_stack_depth(STACK_DEPTH).is_err() {
            "the kernel does not stack file systems"
        } else {
            return;
        };
        self.turn_off(cause.to_owned());
    }

    pub(super) fn is_on(&self) -> bool {
        self.off.read().is_none()
    }

    /// With what a new file is opened, which would else be opened with `usual`. Whoever opens it only to write fills no
    /// pages of the kernel: they would be dropped when it is passed to its first reader, which takes as long as to read it.
    pub(super) fn new_file(&self, flags: OpenFlags, usual: FopenFlags) -> FopenFlags {
        let only_written = flags.0 & libc::O_ACCMODE == libc::O_WRONLY;
        match self.is_on() && only_written {
            true => FopenFlags::FOPEN_DIRECT_IO | (usual & FopenFlags::FOPEN_NOFLUSH),
            false => usual,
        }
    }

    /// What is passed, and if nothing is, why.
    pub(super) fn status(&self) -> String {
        match (&*self.off.read(), self.wanted) {
            (Some(why), _) => format!("off: {why}"),
            (None, Passing::Write) => "write".to_owned(),
            (None, _) => "read".to_owned(),
        }
    }

    fn turn_off(&self, cause: String) {
        log::info!("bytes of large files go through the daemon: {cause}");
        *self.off.write() = Some(cause);
    }

    /// Registers a file of the host that is opened with `flags`.
    pub(super) fn register(&self, reply: &ReplyOpen, flags: OpenFlags, host: &File) -> Option<Registration> {
        if !self.is_on() || (flags.0 & libc::O_DIRECT != 0 && !has_direct_io(host)) {
            return None;
        }
        if self.passed.fetch_add(1, Relaxed) >= self.most {
            self.passed.fetch_sub(1, Relaxed);
            return None;
        }
        match reply.open_backing(host) {
            Ok(id) => Some(Arc::new(Registered { id, passed: Arc::clone(&self.passed) }) as Registration),
            Err(error) => {
                self.passed.fetch_sub(1, Relaxed);
                self.turn_off(format!("the kernel does not take backing files ({error})"));
                None
            }
        }
    }
}

/// What [`Passthrough::register`] has made.
pub(super) fn registered(registration: &Registration) -> Option<&BackingId> {
    registration.downcast_ref::<Registered>().map(|registered| &registered.id)
}

/// The kernel opens the file of the host with the flags of whoever opens ours, and fails that one if it cannot.
fn has_direct_io(host: &File) -> bool {
    let path = format!("/proc/self/fd/{}", host.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT | libc::O_CLOEXEC).open(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_says_how_a_file_is_open() {
        for number in [1, 2, 1 << 60] {
            for bits in 0..8 {
                let [writes, passed, direct] = [1, 2, 4].map(|bit| bits & bit != 0);
                let handle = Handle { number, writes, passed, direct };
                assert_eq!(Handle::from(FileHandle::from(handle)), handle);
            }
        }
    }

    #[test]
    fn flags_say_what_an_open_file_is_for() {
        for (wanted, passes) in [(Passing::Read, false), (Passing::Write, true)] {
            let passthrough = Passthrough::new(wanted, None);
            let of = |flags| passthrough.access(OpenFlags(flags));
            assert_eq!(of(libc::O_RDONLY), Access { writes: false, passes: true, durable: false });
            assert_eq!(of(libc::O_WRONLY | libc::O_APPEND), Access { writes: true, passes, durable: false });
            assert_eq!(of(libc::O_RDWR | libc::O_DSYNC), Access { writes: true, passes, durable: true });
            assert_eq!(of(libc::O_RDWR | libc::O_SYNC), Access { writes: true, passes, durable: true });
        }
    }

    #[test]
    fn a_new_file_that_is_only_written_fills_no_pages_of_the_kernel() {
        let usual = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
        let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH;
        let of = |wanted, flags| Passthrough::new(wanted, None).new_file(OpenFlags(flags), usual);
        assert_eq!(of(Passing::Read, libc::O_WRONLY | libc::O_APPEND), direct);
        assert_eq!(of(Passing::Off, libc::O_WRONLY), usual);
        assert_eq!(of(Passing::Read, libc::O_RDWR), usual);
        assert_eq!(of(Passing::Write, libc::O_WRONLY | libc::O_SYNC), direct);
    }

    #[test]
    fn the_status_says_what_is_passed_or_why_nothing_is() {
        let status = |wanted, off| Passthrough::new(wanted, off).status();
        assert_eq!(status(Passing::Read, None), "read");
        assert_eq!(status(Passing::Write, None), "write");
        assert_eq!(status(Passing::Write, Some("x")), "off: x");
        assert_eq!(status(Passing::Off, None), "off: as the options say");
    }
}
