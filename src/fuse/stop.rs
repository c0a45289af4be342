//! Ending mounts on a signal: politely, then by detaching them, and at last by ending what programs still ask for.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle as SignalHandle, Signals};

use super::abort::Abort;
use super::attach;
use crate::ambient;

/// How long a stop waits for programs that still use the tree before it ends their requests.
const STOP_WAIT: Duration = Duration::from_secs(10);
const STOP_POLL: Duration = Duration::from_millis(20);

/// A mount that is served, or was.
pub(super) struct Served {
    mount_point: PathBuf,
    /// What ends its connection; this user may not be allowed to.
    abort: io::Result<Abort>,
    /// Whether requests are served no more.
    ended: AtomicBool,
}

impl Served {
    /// What has just been mounted there.
    pub(super) fn at(mount_point: PathBuf) -> Arc<Self> {
        let abort = Abort::of(&mount_point);
        Arc::new(Self { mount_point, abort, ended: AtomicBool::new(false) })
    }

    pub(super) fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// What ends its connection, or why nothing does.
    pub(super) fn abort(&self) -> io::Result<&Abort> {
        self.abort.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Relaxed);
    }

    fn goes_on(&self) -> bool {
        !self.ended.load(Relaxed)
    }
}

/// Waits for signals, and unmounts everything when one comes.
pub(super) struct Stopper {
    handle: SignalHandle,
    thread: JoinHandle<()>,
}

/// The signals that end a mount. What comes before somebody waits for them is kept until then.
pub(super) fn hear() -> io::Result<Signals> {
    Signals::new([SIGTERM, SIGINT, SIGHUP])
}

impl Stopper {
    pub(super) fn start(signals: io::Result<Signals>, mounts: Vec<Arc<Served>>) -> Option<Self> {
        let started = signals.and_then(|mut signals| {
            let handle = signals.handle();
            let thread = ambient::spawn("lockwood-signals", move || {
                if let Some(signal) = signals.forever().next() {
                    log::info!("signal {signal}: unmounting");
                    stop(&mounts);
                }
            })?;
            Ok(Self { handle, thread })
        });
        started
            .inspect_err(|e| log::error!("signals cannot be received ({e}); stop this mount with umount"))
            .ok()
    }

    pub(super) fn finish(self) {
        self.handle.close();
        if self.thread.join().is_err() {
            log::error!("the thread that receives signals panicked");
        }
    }
}

/// Takes the trees away, and if programs still use them after a while ends what they ask for.
fn stop(mounts: &[Arc<Served>]) {
    let served = || mounts.iter().filter(|mount| mount.goes_on());
    for mount in served() {
        take_away(&mount.mount_point);
    }
    let begun = ambient::monotonic();
    while begun.elapsed() < STOP_WAIT {
        if served().next().is_none() {
            return;
        }
        std::thread::sleep(STOP_POLL);
    }
    for mount in served() {
        log::warn!("programs still use {}; ending their requests", mount.mount_point.display());
        if let Err(error) = mount.abort().and_then(Abort::abort) {
            // Like a kill: nothing acknowledged is lost, and the next mount recovers.
            log::error!(
                "their requests cannot be ended ({error}); the process ends, and the next mount recovers"
            );
            log::logger().flush();
            std::process::exit(1);
        }
    }
}

fn take_away(mount_point: &Path) {
    match attach::unmount(mount_point) {
        Ok(()) => return,
        Err(error) => log::warn!("{} is in use ({error}); detaching it", mount_point.display()),
    }
    if let Err(error) = attach::detach(mount_point) {
        log::error!("{} cannot be detached: {error}", mount_point.display());
    }
}
