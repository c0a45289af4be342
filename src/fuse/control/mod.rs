//! `.lockwood/` in the root of a mount: locks, sessions and documents as files, for people, scripts and the command.
//!
//! Found by name, not listed, so that copying a tree does not copy it. Only the mount's owner and root may look inside.
//!
//! | name | what it is |
//! |---|---|
//! | `status` | the mount, in JSON |
//! | `locks/ID` | the lock document of a path, while anybody holds it |
//! | `locks.json` | all lock documents of one moment |
//! | `advisory.json` | the locks that programs hold by flock(2) and fcntl(2), by file |
//! | `sessions/ID` | a session: its document, whether it is live, and its operations that hold or wait |
//! | `intents/SESSION:N` | a change of several documents that is under way, on engines that need intents (OpenSearch) |
//! | `documents/KEY` | any document, by the name that `lockwood get` takes |
//! | `check` | reading it checks the volume as it is at this moment |
//! | `hold` | writing a request to it takes a tree lock, held until the file is closed |
//! | `break` | writing a request to it breaks a lock or fences a session |
//!
//! The contents are made when a file is opened; the sizes say 0, as in /proc.

mod breaking;
mod hold;
mod intents;
mod nodes;
pub mod refusals;
mod texts;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FopenFlags, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus,
    ReplyOpen, ReplyWrite,
};
use parking_lot::Mutex;

use super::adapter::Shared;
use super::errno::report;
use crate::ambient;
use crate::namespace::{Caller, Namespace, NamespaceError, Result};

pub use breaking::{BreakAnswer, BreakReport, BreakRequest, FencedSession};
use hold::Held;
pub use hold::{HoldAnswer, HoldRequest, RELEASE};
pub use nodes::file_name;
use nodes::{ControlNode, FIRST_INO};
pub use texts::{SessionText, Status, document_json};

/// The name in the root.
pub const NAME: &str = ".lockwood";

/// What is shown changes at any time, so the kernel asks every time.
pub(super) const TTL: Duration = Duration::ZERO;

/// What the mount says of itself.
#[derive(Clone, Debug)]
pub struct MountFacts {
    /// The store, as it was given.
    pub store: String,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Where this process mounted the store, this place included.
    pub mount_points: Vec<PathBuf>,
    /// Where the daemon logs to, if that is a file.
    pub log: Option<String>,
    /// When it was mounted.
    pub since: SystemTime,
    /// Who mounted it: the owner of the control files.
    pub uid: u32,
    /// The owner's group.
    pub gid: u32,
}

/// The control files of one mount.
pub(super) struct Control {
    facts: MountFacts,
    nodes: Mutex<HashMap<u64, ControlNode>>,
    handles: Mutex<HashMap<u64, Handle>>,
    next_handle: AtomicU64,
}

/// An open control file.
struct Handle {
    bytes: Arc<[u8]>,
    kind: HandleKind,
    held: Option<Held>,
}

/// What may be written to an open control file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandleKind {
    /// Nothing.
    Shown,
    /// Requests for locks.
    Hold,
    /// Requests to break them.
    Break,
}

/// Whether an inode is one of the control files.
pub(super) fn owns(ino: INodeNo) -> bool {
    ino.0 >= FIRST_INO
}

/// Refuses a change of the control files' names.
///
/// # Errors
/// `NotPermitted`.
pub(super) fn refuse(parent: INodeNo, name: &OsStr) -> Result<()> {
    if owns(parent) || (parent == INodeNo::ROOT && name == NAME) {
        return Err(NamespaceError::NotPermitted("the control files are what they are"));
    }
    Ok(())
}

impl Control {
    pub(super) fn new(facts: MountFacts) -> Self {
        Self { facts, nodes: Mutex::default(), handles: Mutex::default(), next_handle: AtomicU64::new(1) }
    }

    pub(super) fn facts(&self) -> &MountFacts {
        &self.facts
    }

    /// What `name` in `parent` is, if this is about a control file at all.
    pub(super) fn lookup(
        &self,
        namespace: &Namespace,
        parent: INodeNo,
        name: &OsStr,
    ) -> Option<std::result::Result<FileAttr, Errno>> {
        let node = if parent == INodeNo::ROOT && name == NAME {
            Some(ControlNode::Root)
        } else if owns(parent) {
            self.node(parent).and_then(|directory| directory.child(namespace, name.as_bytes()))
        } else {
            return None;
        };
        Some(match node {
            Some(node) => {
                let ino = node.ino();
                if node.is_dynamic() {
                    self.nodes.lock().insert(ino, node.clone());
                }
                Ok(self.attr(ino, &node))
            }
            None => Err(Errno::ENOENT),
        })
    }

    fn node(&self, ino: INodeNo) -> Option<ControlNode> {
        ControlNode::fixed(ino.0).or_else(|| self.nodes.lock().get(&ino.0).cloned())
    }

    pub(super) fn forget(&self, ino: INodeNo) {
        self.nodes.lock().remove(&ino.0);
    }

    pub(super) fn attributes(&self, ino: INodeNo) -> Option<FileAttr> {
        self.node(ino).map(|node| self.attr(ino.0, &node))
    }

    fn attr(&self, ino: u64, node: &ControlNode) -> FileAttr {
        let now = ambient::wall_clock();
        let directory = node.is_directory();
        FileAttr {
            ino: INodeNo(ino),
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: self.facts.since,
            kind: node.file_type(),
            perm: match node {
                ControlNode::Hold(_) | ControlNode::Break(_) => 0o600,
                _ if directory => 0o500,
                _ => 0o400,
            },
            nlink: if directory { 2 } else { 1 },
            uid: self.facts.uid,
            gid: self.facts.gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    pub(super) fn list(&self, namespace: &Namespace, ino: INodeNo, offset: u64, mut reply: ReplyDirectory) {
        for (next, name, child) in self.listing(namespace, ino, offset) {
            if reply.add(INodeNo(child.ino()), next, child.file_type(), &name) {
                break;
            }
        }
        reply.ok();
    }

    pub(super) fn list_with_attributes(
        &self,
        namespace: &Namespace,
        ino: INodeNo,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        for (next, name, child) in self.listing(namespace, ino, offset) {
            let number = child.ino();
            if child.is_dynamic() {
                self.nodes.lock().insert(number, child.clone());
            }
            let attr = self.attr(number, &child);
            if reply.add(INodeNo(number), next, &name, &TTL, &attr, Generation(0)) {
                break;
            }
        }
        reply.ok();
    }

    /// What stands in a directory from `offset` on, each with the offset behind it.
    fn listing(&self, namespace: &Namespace, ino: INodeNo, offset: u64) -> Vec<(u64, String, ControlNode)> {
        let Some(node) = self.node(ino) else { return Vec::new() };
        let dots = [(".".to_owned(), node.clone()), ("..".to_owned(), ControlNode::Root)];
        let listed = dots.into_iter().chain(node.children(namespace));
        let numbered = (1..).zip(listed).map(|(next, (name, child))| (next, name, child));
        numbered.skip(usize::try_from(offset).unwrap_or(usize::MAX)).collect()
    }

    fn new_handle(&self, node: &ControlNode, bytes: Vec<u8>) -> FileHandle {
        let handle = self.next_handle.fetch_add(1, Relaxed);
        let kind = match node {
            ControlNode::Hold(_) => HandleKind::Hold,
            ControlNode::Break(_) => HandleKind::Break,
            _ => HandleKind::Shown,
        };
        self.handles.lock().insert(handle, Handle { bytes: bytes.into(), kind, held: None });
        FileHandle(handle)
    }
}

impl Handle {
    /// What reading the file shows: a lock that was held here and is lost says so.
    fn show(&self) -> Arc<[u8]> {
        self.held.as_ref().and_then(Held::lost).unwrap_or_else(|| Arc::clone(&self.bytes))
    }
}

/// Closes a control file; a lock that was taken through it is released, and nobody waits for that.
pub(super) fn close(shared: &Shared, fh: FileHandle) {
    let closed = shared.control.handles.lock().remove(&fh.0);
    if let Some(held) = closed.and_then(|closed| closed.held) {
        shared.waiting.run_somewhere(move || drop(held));
    }
}

/// Serves a read of a control file; `None` if it is not open.
pub(super) fn read(shared: &Arc<Shared>, fh: FileHandle, offset: u64, size: u32) -> Option<Vec<u8>> {
    hold::look(shared, fh);
    let bytes = shared.control.handles.lock().get(&fh.0)?.show();
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    let to = from.saturating_add(size as usize).min(bytes.len());
    Some(bytes[from..to].to_vec())
}

/// Serves a write to a control file.
pub(super) fn write(shared: &Arc<Shared>, caller: Caller, fh: FileHandle, data: &[u8], reply: ReplyWrite) {
    let kind = shared.control.handles.lock().get(&fh.0).map(|handle| handle.kind);
    // Not by the mode of the file alone: it may have been opened by another, and passed on.
    let may_steer = [0, shared.control.facts().uid].contains(&caller.uid);
    match kind {
        Some(HandleKind::Hold | HandleKind::Break) if !may_steer => reply.error(Errno::EPERM),
        Some(HandleKind::Hold) => hold::write(shared, caller, fh, data, reply),
        Some(HandleKind::Break) => breaking::write(shared, caller, fh, data, reply),
        Some(HandleKind::Shown) => reply.error(Errno::EPERM),
        None => reply.error(Errno::EBADF),
    }
}

/// Opens a control file, and makes what it will show.
pub(super) fn open(shared: &Arc<Shared>, ino: INodeNo, reply: ReplyOpen) {
    let Some(node) = shared.control.node(ino) else { return reply.error(Errno::ENOENT) };
    if node != ControlNode::Check {
        return show(shared, &node, reply);
    }
    // A check takes as long as the volume is large; it must not hold up others.
    let reply = Arc::new(Mutex::new(Some(reply)));
    let (worker, later) = (Arc::clone(shared), Arc::clone(&reply));
    let accepted = shared.waiting.run(move || {
        if let Some(reply) = later.lock().take() {
            show(&worker, &node, reply);
        }
    });
    if !accepted && let Some(reply) = reply.lock().take() {
        reply.error(Errno::EBUSY);
    }
}

fn show(shared: &Shared, node: &ControlNode, reply: ReplyOpen) {
    match texts::text(shared, node) {
        Ok(Some(text)) => {
            reply.opened(shared.control.new_handle(node, text.into_bytes()), FopenFlags::FOPEN_DIRECT_IO);
        }
        Ok(None) => reply.error(Errno::ENOENT),
        Err(error) => reply.error(report("show", &node.describe(), &error)),
    }
}
