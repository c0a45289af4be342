//! `lockwood format`: the documents of an empty volume.

use std::process::ExitCode;

use crate::ambient;
use crate::cli::Failure;
use crate::cli::args::{Format, LockingArgument};
use crate::cli::output::print;
use crate::document::{
    Body, Directory, Document, FORMAT_VERSION, Ino, Key, Locking, Node, Timestamp, Volume,
};
use crate::store::Commit;
use crate::store::embedded::layout::Layout;

/// Contents up to this stay in documents: a small file is then written and read without a file of its own on the host. A
/// page holds most links, settings and sources; more would be written again at every small append.
const INLINE_MAX: u32 = 4096;

pub(in crate::cli) fn run(format: &Format) -> Result<ExitCode, Failure> {
    let now: Timestamp = ambient::wall_clock().into();
    let locking = match format.locking {
        LockingArgument::Tree => Locking::Tree,
    };
    let volume = Volume {
        format: FORMAT_VERSION,
        id: format!("{:016x}{:016x}", ambient::random_u64(), ambient::random_u64()),
        locking,
        created: now,
        next_ino: Ino::ROOT.0 + 1,
        epoch: 0,
        inline_max: INLINE_MAX,
    };
    let root = Node {
        mode: 0o755,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        nlink: 2,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        xattrs: 0,
        body: Body::Directory(Directory { parent: Ino::ROOT, name: None, children: 0 }),
    };
    let commit = Commit::new()
        .absent(Key::Volume)
        .put(Key::Volume, Document::Volume(volume))
        .put(Key::Node(Ino::ROOT), Document::Node(root));
    Layout::format(&format.store, &commit)?;
    print(&format!(
        "{0} is formatted; mount it with: lockwood mount {0} MOUNTPOINT\n",
        format.store.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}
