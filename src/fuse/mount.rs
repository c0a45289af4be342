//! A mount from its beginning to its end.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use fuser::{Config, MountOption, Session, SessionACL};
use rustix::mount::MountFlags;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle as SignalHandle, Signals};

use super::adapter::{Adapter, Shared};
use super::attach;
use super::control::{Control, MountFacts};
use super::notices::Notices;
use super::waiting::WaitingRoom;
use crate::content::{BackingFiles, ContentError};
use crate::document::Locking;
use crate::namespace::{Namespace, NamespaceError, SessionInfo, Settings};
use crate::store::StoreError;
use crate::store::embedded::open::{OpenError, OpenVolume};
use crate::store::embedded::{Tuning, owner};
use crate::{ambient, mounts};

/// The type of our mounts in the mount table.
pub const FS_TYPE: &str = "fuse.lockwood";

/// As many backing files are kept open.
const BACKING_FILES_OPEN: usize = 512;

/// How long a stop waits for programs that still use the tree before it ends their requests.
const STOP_WAIT: Duration = Duration::from_secs(10);
const STOP_POLL: Duration = Duration::from_millis(20);

/// What to mount, where and how.
#[derive(Clone, Debug)]
pub struct MountRequest {
    /// The store, exactly as it was given.
    pub store: String,
    /// Where that is, whatever becomes of the working directory.
    pub store_path: PathBuf,
    /// The mount point.
    pub mount_point: PathBuf,
    /// Options for the kernel.
    pub kernel_options: Vec<MountOption>,
    /// Whether others than the mounting user may use the tree; root's mounts are for all.
    pub acl: SessionACL,
    /// The strategy that the volume must have been formatted with, if one was named.
    pub locking: Option<Locking>,
    /// How the namespace behaves.
    pub settings: Settings,
    /// How much memory the store may use.
    pub tuning: Tuning,
    /// Threads that serve requests.
    pub threads: usize,
    /// Where the daemon logs to, if that is a file.
    pub log: Option<String>,
}

/// Why a store could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point cannot be used.
    #[error("mount point {path}: {cause}")]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// The volume was formatted with another strategy than the one that was named.
    #[error(
        "{store}: the volume was formatted with --locking {formatted}, and the option locking={asked} asks for another; \
         leave the option out, or format a store with that strategy"
    )]
    OtherLocking {
        /// The store.
        store: String,
        /// What it was formatted with.
        formatted: Locking,
        /// What was asked for.
        asked: Locking,
    },
    /// The store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The backing files cannot be opened.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// The session cannot begin, or has not ended well.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The store could not be closed.
    #[error("closing the store: {0}")]
    Close(#[from] StoreError),
    /// The kernel refused.
    #[error("the kernel does not mount at {path}: {source}{hint}")]
    Kernel {
        /// The mount point.
        path: PathBuf,
        /// Why not.
        source: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// The mount broke while it was served.
    #[error("serving {path}: {source}")]
    Serving {
        /// The mount point.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
}

/// A mounted tree that waits to be served.
pub struct Mounted {
    session: Session<Adapter>,
    shared: Arc<Shared>,
    volume: OpenVolume,
    mount_point: PathBuf,
}

/// Mounts: opens the store, recovers what a crash left, and attaches the tree. Requests wait until [`Mounted::serve`].
///
/// # Errors
/// [`MountError`]; nothing is left mounted or open then.
pub fn mount(request: &MountRequest) -> Result<Mounted, MountError> {
    let mount_point = usable_mount_point(&request.mount_point)?;
    let text = mount_point.to_string_lossy().into_owned();
    let root = request.store_path.as_path();
    refuse_store_below(&mount_point, root)?;
    let mut volume = OpenVolume::open(root, Some(&mount_point), request.tuning)?;
    let formatted = volume.volume.locking;
    if let Some(asked) = request.locking.filter(|asked| *asked != formatted) {
        // Not closed, where it was not before: the next mount still has to recover.
        if !volume.crashed() {
            volume.close()?;
        }
        return Err(MountError::OtherLocking { store: request.store.clone(), formatted, asked });
    }
    let backing = BackingFiles::open(&volume.layout.content(), BACKING_FILES_OPEN)?;
    let info = SessionInfo {
        host: host_name(),
        boot_id: owner::boot_id(),
        pid: std::process::id(),
        mount_point: text.clone(),
    };
    let namespace = Namespace::begin(volume.store.clone(), backing, request.settings, info)?;
    volume.recovered()?;
    let facts = MountFacts {
        store: request.store.clone(),
        mount_point: text,
        log: request.log.clone(),
        since: ambient::wall_clock(),
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
    };
    let shared = Arc::new(Shared {
        namespace,
        control: Control::new(facts),
        waiting: WaitingRoom::new(),
        notices: Notices::new(),
        requests: AtomicU64::new(0),
    });
    match start_session(request, &mount_point, &shared) {
        Ok(session) => Ok(Mounted { session, shared, volume, mount_point }),
        Err(source) => {
            shared.namespace.end()?;
            drop(shared);
            volume.close()?;
            let hint = hint(&source);
            Err(MountError::Kernel { path: mount_point, source, hint })
        }
    }
}

fn start_session(
    request: &MountRequest,
    mount_point: &Path,
    shared: &Arc<Shared>,
) -> io::Result<Session<Adapter>> {
    let mut config = Config::default();
    config.mount_options = request.kernel_options.clone();
    config.acl = request.acl;
    config.n_threads = Some(request.threads.max(1));
    config.clone_fd = true;
    let session = attach::attach(Adapter(Arc::clone(shared)), &request.store, mount_point, config)?;
    shared.notices.start(session.notifier())?;
    Ok(session)
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; is the fuse kernel module there? try: modprobe fuse",
        io::ErrorKind::PermissionDenied => {
            "; /dev/fuse must be accessible: be root, or install fuse3 for fusermount3 (allow_other needs \
             user_allow_other in /etc/fuse.conf)"
        }
        _ => "",
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The mount point as the kernel will name it. A mount of ours that has lost its daemon is taken away first.
fn usable_mount_point(path: &Path) -> Result<PathBuf, MountError> {
    let unusable = |cause: String| MountError::MountPoint { path: path.to_owned(), cause };
    let found = match std::fs::metadata(path) {
        _ if mounts::is_dead(path) => {
            let absolute = std::path::absolute(path).map_err(|e| unusable(e.to_string()))?;
            detach_dead(&absolute).map_err(|e| {
                unusable(format!(
                    "a mount whose daemon has died is there, and does not go away ({e}); try: umount -l"
                ))
            })?;
            std::fs::metadata(path)
        }
        other => other,
    };
    match found {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(unusable("not a directory".to_owned())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(unusable("it does not exist; make the directory first".to_owned()));
        }
        Err(e) => return Err(unusable(e.to_string())),
    }
    let path = path.canonicalize().map_err(|e| unusable(e.to_string()))?;
    let table = mounts::own().map_err(|e| unusable(e.to_string()))?;
    match table.iter().rev().find(|m| m.mount_point == path) {
        Some(m) if m.fs_type == FS_TYPE => {
            Err(unusable(format!("{} is mounted there already", m.source.to_string_lossy())))
        }
        _ => Ok(path),
    }
}

fn detach_dead(path: &Path) -> io::Result<()> {
    let table = mounts::own()?;
    let ours = table.iter().rev().find(|m| m.mount_point == path && m.fs_type == FS_TYPE);
    let Some(dead) = ours else { return Err(io::Error::other("it is not a mount of lockwood")) };
    log::warn!(
        "{}: the daemon of this mount of {} has died; detaching it",
        path.display(),
        dead.source.display()
    );
    attach::detach(path)
}

/// A store below its own mount point would be reached through itself.
fn refuse_store_below(mount_point: &Path, store: &Path) -> Result<(), MountError> {
    match store.canonicalize() {
        Ok(store) if store.starts_with(mount_point) => Err(MountError::MountPoint {
            path: mount_point.to_owned(),
            cause: format!("the store {} is below it", store.display()),
        }),
        _ => Ok(()), // A store that does not exist is reported when it is opened.
    }
}

impl Mounted {
    /// Serves requests until the tree is unmounted or the process is told to stop; then ends the session and closes the
    /// store.
    ///
    /// # Errors
    /// [`MountError`]; the store is recovered by the next mount then.
    pub fn serve(self) -> Result<(), MountError> {
        let Self { session, shared, volume, mount_point } = self;
        let stopper = Stopper::start(mount_point.clone());
        let served = session.run();
        if let Some(stopper) = stopper {
            stopper.finish();
        }
        shared.namespace.locks().close();
        shared.waiting.close();
        shared.notices.close();
        let ended = shared.namespace.end();
        // The last handle to the store must be the volume's when that gives it up.
        drop(shared);
        let closed = volume.close();
        served.map_err(|source| MountError::Serving { path: mount_point, source })?;
        ended?;
        Ok(closed?)
    }
}

/// Waits for signals, and unmounts when one comes.
struct Stopper {
    handle: SignalHandle,
    thread: JoinHandle<()>,
    /// Whether requests are served no more.
    ended: Arc<AtomicBool>,
}

impl Stopper {
    fn start(mount_point: PathBuf) -> Option<Self> {
        let mut signals = match Signals::new([SIGTERM, SIGINT, SIGHUP]) {
            Ok(signals) => signals,
            Err(error) => {
                log::error!("signals cannot be received ({error}); stop this mount with umount");
                return None;
            }
        };
        let handle = signals.handle();
        let ended = Arc::new(AtomicBool::new(false));
        let is_ended = Arc::clone(&ended);
        let thread = ambient::spawn("lockwood-signals", move || {
            if let Some(signal) = signals.forever().next() {
                log::info!("signal {signal}: unmounting {}", mount_point.display());
                stop(&mount_point, &is_ended);
            }
        });
        match thread {
            Ok(thread) => Some(Self { handle, thread, ended }),
            Err(error) => {
                log::error!("signals cannot be received ({error}); stop this mount with umount");
                None
            }
        }
    }

    fn finish(self) {
        self.ended.store(true, Relaxed);
        self.handle.close();
        if self.thread.join().is_err() {
            log::error!("the thread that receives signals panicked");
        }
    }
}

/// Takes the tree away, and if programs still use it after a while ends what they ask for.
fn stop(mount_point: &Path, ended: &AtomicBool) {
    let device = device_of(mount_point);
    match attach::unmount(mount_point) {
        Ok(()) => return,
        Err(error) => log::warn!("{} is in use ({error}); detaching it", mount_point.display()),
    }
    if let Err(error) = attach::detach(mount_point) {
        log::error!("{} cannot be detached: {error}", mount_point.display());
    }
    let begun = ambient::monotonic();
    while begun.elapsed() < STOP_WAIT {
        if ended.load(Relaxed) {
            return;
        }
        std::thread::sleep(STOP_POLL);
    }
    log::warn!("programs still use {}; ending their requests", mount_point.display());
    if let Err(error) = device.map_or(Err(io::ErrorKind::NotFound.into()), abort_connection) {
        // Like a kill: nothing acknowledged is lost, and the next mount recovers.
        log::error!(
            "their requests cannot be ended ({error}); the process ends, and the next mount recovers"
        );
        log::logger().flush();
        std::process::exit(1);
    }
}

/// Ends every request of a connection, by the control file system of FUSE, which not every machine has mounted.
fn abort_connection(minor: u32) -> io::Result<()> {
    let control = Path::new("/sys/fs/fuse/connections");
    let abort = control.join(minor.to_string()).join("abort");
    if !abort.exists() {
        rustix::mount::mount("fusectl", control, "fusectl", MountFlags::empty(), None)?;
    }
    std::fs::write(abort, "1")
}

/// The kernel names a FUSE connection after the minor number of its device.
fn device_of(mount_point: &Path) -> Option<u32> {
    let table = mounts::own().ok()?;
    table.iter().rev().find(|m| m.mount_point == mount_point).map(|m| m.device.1)
}
