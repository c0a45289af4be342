//! Mounts from their beginning to their end: one store, one process, one mount or several.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use fuser::{Config, MountOption, Session, SessionACL};
use parking_lot::Mutex;

use super::abort::Abort;
use super::adapter::{Adapter, Shared};
use super::attach;
use super::connection::has_ended;
use super::control::{Control, MountFacts};
use super::convert::attr;
use super::flusher::Flusher;
use super::kernel_cache::{KernelCache, Sharing};
use super::passthrough::Passthrough;
use super::points;
use super::readers::InTurn;
use super::source::OpenSource;
use super::stop::{self, Served, Stopper};
use super::waiting::WaitingRoom;
use crate::ambient;
use crate::content::ContentError;
use crate::document::{Ino, Locking, SessionId};
use crate::namespace::{NamespaceError, SessionInfo, Settings, Watcher};
use crate::store::embedded::open::OpenError;
use crate::store::embedded::{Tuning, owner};
use crate::store::engine::EngineError;
use crate::store::{Listener, Notice, StoreError};

pub use super::passthrough::Passing;
pub use super::source::Source;

/// The type of our mounts in the mount table.
pub use crate::mounts::FS_TYPE;

/// What to mount, where and how.
#[derive(Clone, Debug)]
pub struct MountRequest {
    /// The store as it was given, but for a password.
    pub store: String,
    /// What that is, whatever becomes of the working directory.
    pub source: Source,
    /// The mount points; at each of them the kernel sees a file system of its own.
    pub mount_points: Vec<PathBuf>,
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
    /// Which backing files the kernel is to read and write itself.
    pub passing: Passing,
    /// Whether the mount has extended attributes and access control lists.
    pub attributes: bool,
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
    /// The volume on a shared engine cannot be opened.
    #[error(transparent)]
    Engine(#[from] EngineError),
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

/// A tree that is mounted, at one place or several, and waits to be served.
pub struct Mounted {
    trees: Vec<Tree>,
    stopper: Option<Stopper>,
    source: OpenSource,
}

/// One mount.
struct Tree {
    session: Session<InTurn<Adapter>>,
    shared: Arc<Shared>,
    served: Arc<Served>,
}

/// Mounts: opens the store, recovers what a crash left, and attaches the tree everywhere. Requests wait until
/// [`Mounted::serve`]; signals take it away from the moment that it is there.
///
/// # Errors
/// [`MountError`]; nothing is left mounted or open then.
pub fn mount(request: &MountRequest) -> Result<Mounted, MountError> {
    let mount_points = points::usable(&request.mount_points, request.source.directory())?;
    let mut source = request.source.open(&mount_points, request.tuning)?;
    let formatted = source.volume().locking;
    if let Some(asked) = request.locking.filter(|asked| *asked != formatted) {
        // Not closed, where it was not before: the next mount still has to recover.
        if !source.crashed() {
            source.close()?;
        }
        return Err(MountError::OtherLocking { store: request.store.clone(), formatted, asked });
    }
    let all = begin(request, &mount_points, &source)?;
    source.recovered()?;
    let mut trees: Vec<Tree> = Vec::new();
    // From when anybody can see a tree on; before, a signal ends the process, and the next mount recovers.
    let signals = stop::hear();
    for (shared, mount_point) in all.iter().zip(&mount_points) {
        match start_session(request, mount_point, shared) {
            Ok(session) => {
                trees.push(Tree {
                    session,
                    shared: Arc::clone(shared),
                    served: Served::at(mount_point.clone()),
                });
            }
            Err(refused) => {
                detach_all(trees);
                for shared in all {
                    shared.namespace.end()?;
                }
                source.close()?;
                let hint = hint(&refused);
                return Err(MountError::Kernel { path: mount_point.clone(), source: refused, hint });
            }
        }
    }
    if let [first, _, ..] = trees.as_slice() {
        let watcher = |tree: &Tree| -> (_, Arc<dyn Watcher>) {
            (tree.shared.namespace.session(), Arc::clone(&tree.shared.cache) as _)
        };
        first.shared.namespace.watch(trees.iter().map(watcher).collect());
    }
    serve_while_connected(&trees);
    let stopper = Stopper::start(signals, trees.iter().map(|tree| Arc::clone(&tree.served)).collect());
    Ok(Mounted { trees, stopper, source })
}

/// Begins a session for each mount point.
fn begin(
    request: &MountRequest,
    mount_points: &[PathBuf],
    source: &OpenSource,
) -> Result<Vec<Arc<Shared>>, MountError> {
    let texts: Vec<String> = mount_points.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let info = |mount_point: &String| SessionInfo {
        host: host_name(),
        boot_id: owner::boot_id(),
        pid: std::process::id(),
        mount_point: mount_point.clone(),
    };
    let mut all: Vec<Arc<Shared>> = Vec::new();
    for (mount_point, text) in mount_points.iter().zip(&texts) {
        let namespace = match all.first() {
            None => source.begin(request.settings, info(text))?,
            Some(first) => first.namespace.beside(info(text))?,
        };
        let facts = MountFacts {
            store: request.store.clone(),
            mount_point: mount_point.clone(),
            mount_points: mount_points.to_vec(),
            log: request.log.clone(),
            since: ambient::wall_clock(),
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
        };
        let sharing = match source.kernel_ttl() {
            Some(ttl) => Sharing::Hosts(ttl),
            None if mount_points.len() > 1 => Sharing::Several,
            None => Sharing::Alone,
        };
        // Where the store goes away before anybody has looked, `.lockwood` is to be found even so.
        let root = namespace.attributes(Ino::ROOT).ok().map(|node| attr(Ino::ROOT, &node));
        let shared = Arc::new(Shared {
            namespace,
            control: Control::new(facts),
            waiting: WaitingRoom::new(),
            lock_waits: WaitingRoom::new(),
            cache: Arc::new(KernelCache::new(sharing)),
            flusher: Flusher::default(),
            passthrough: Passthrough::new(
                request.passing,
                match sharing {
                    Sharing::Alone => None,
                    Sharing::Several => Some("several mount points are served"),
                    Sharing::Hosts(_) => Some("the bytes are in a store that other hosts use"),
                },
            ),
            attributes: request.attributes,
            mounts: OnceLock::new(),
            root: Mutex::new(root),
            requests: AtomicU64::new(0),
            handles: AtomicU64::new(0),
        });
        if source.kernel_ttl().is_some() {
            let session = shared.namespace.session();
            shared
                .namespace
                .store()
                .listen(Arc::new(ToldByOthers { session, cache: Arc::clone(&shared.cache) }))?;
        }
        all.push(shared);
    }
    for shared in &all {
        let _ = shared.mounts.set(all.iter().map(Arc::downgrade).collect()); // It was empty.
    }
    Ok(all)
}

/// Tells a kernel what others have changed.
struct ToldByOthers {
    session: SessionId,
    cache: Arc<KernelCache>,
}

impl Listener for ToldByOthers {
    fn notice(&self, notice: &Notice) {
        if !matches!(notice, Notice::Changed { by: Some(session), .. } if *session == self.session) {
            self.cache.notice(notice);
        }
    }
}

/// Has the store told when all of these are gone: what programs asked for before goes on then, and its threads are waited
/// for.
fn serve_while_connected(trees: &[Tree]) {
    let Some(outages) = trees.first().and_then(|tree| tree.shared.namespace.store().outages()) else {
        return;
    };
    let devices: io::Result<Vec<_>> =
        trees.iter().map(|tree| tree.session.as_fd().try_clone_to_owned()).collect();
    match devices {
        Ok(devices) => outages.serve_while(move || !devices.iter().all(has_ended)),
        Err(error) => log::warn!("an unmount may be kept by a store that is away: {error}"),
    }
}

/// Takes away what was attached before something went wrong.
fn detach_all(trees: Vec<Tree>) {
    for tree in trees {
        if let Err(error) = attach::detach(tree.served.mount_point()) {
            log::error!("{} cannot be detached: {error}", tree.served.mount_point().display());
        }
        tree.shared.cache.close();
        tree.shared.flusher.close();
    }
}

fn start_session(
    request: &MountRequest,
    mount_point: &Path,
    shared: &Arc<Shared>,
) -> io::Result<Session<InTurn<Adapter>>> {
    let mut config = Config::default();
    config.mount_options = request.kernel_options.clone();
    config.acl = request.acl;
    let threads = request.threads.max(1);
    config.n_threads = Some(threads);
    config.clone_fd = true;
    let serving = InTurn::new(Adapter(Arc::clone(shared)), threads);
    let session = attach::attach(serving, &request.store, mount_point, config)?;
    let device = session.as_fd().try_clone_to_owned();
    let started = device.and_then(|device| shared.cache.attach(session.notifier(), device));
    let started = started.and_then(|()| Flusher::start(shared));
    match started {
        Ok(()) => Ok(session),
        Err(error) => {
            let _ = attach::detach(mount_point); // What failed is reported; this only tidies up.
            Err(error)
        }
    }
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

impl Mounted {
    /// The mount points, and for each the file that ends its connection to the kernel when something is written to it, or
    /// why there is none.
    pub fn aborts(&self) -> impl Iterator<Item = (&Path, io::Result<File>)> {
        let served = self.trees.iter().map(|tree| &tree.served);
        served.map(|mount| (mount.mount_point(), mount.abort().and_then(Abort::file)))
    }

    /// Serves requests until the tree is unmounted everywhere or the process is told to stop; then closes the store. Each
    /// mount's session ends with it.
    ///
    /// # Errors
    /// [`MountError`], the first; the store is recovered by the next mount then.
    pub fn serve(self) -> Result<(), MountError> {
        let Self { trees, stopper, source } = self;
        let source = Arc::new(Mutex::new(source));
        let served = Arc::new(AtomicUsize::new(trees.len()));
        let mut threads = Vec::new();
        let mut outcomes = Vec::new();
        let mut trees = trees.into_iter();
        let first = trees.next();
        for tree in trees {
            let (source, served) = (Arc::clone(&source), Arc::clone(&served));
            let path = tree.served.mount_point().to_owned();
            let thread = ambient::spawn("lockwood-mount", move || tree.serve(&source, &served));
            threads.push(thread.map_err(|source| MountError::Serving { path, source })?);
        }
        outcomes.extend(first.map(|tree| tree.serve(&source, &served)));
        // A panic ends the process before it could be seen here.
        outcomes.extend(threads.into_iter().filter_map(|thread| thread.join().ok()));
        if let Some(stopper) = stopper {
            stopper.finish();
        }
        // The last handle to the store must be the volume's when that gives it up.
        let closed = Arc::into_inner(source).map_or(Ok(()), |source| source.into_inner().close());
        outcomes.into_iter().collect::<Result<(), _>>()?;
        Ok(closed?)
    }
}

impl Tree {
    /// Serves one mount to its end, and ends its session. `all` is how many are served.
    fn serve(self, source: &Mutex<OpenSource>, all: &AtomicUsize) -> Result<(), MountError> {
        let Self { session, shared, served } = self;
        let outcome = session.run();
        served.end();
        if let Some(outages) = shared.namespace.store().outages() {
            // What programs have written is worth as much as what they asked for.
            outages.wait_anew();
        }
        // While it has its locks.
        shared.flusher.close();
        shared.namespace.flush_all();
        shared.namespace.hurry(all.fetch_sub(1, Relaxed) == 1);
        shared.namespace.locks().close_session(shared.namespace.session());
        shared.namespace.close_advisory();
        shared.waiting.close();
        shared.lock_waits.close();
        shared.cache.close();
        let ended = shared.namespace.end();
        drop(shared);
        let mount_point = served.mount_point();
        log::info!("{} is unmounted", mount_point.display());
        let noted = source.lock().unmounted(mount_point);
        outcome.map_err(|source| MountError::Serving { path: mount_point.to_owned(), source })?;
        ended?;
        Ok(noted?)
    }
}
