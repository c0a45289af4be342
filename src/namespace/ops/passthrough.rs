//! Passthrough: the kernel reads and writes the backing file of an open file itself, and asks nobody.
//!
//! The file of the host then has the bytes before the node says so. Whoever looks at the attributes sees them as the file
//! of the host has them ([`Namespace::with_ahead`]); whoever changes the file or its attributes, syncs or closes it lets
//! the node catch up first, in the turn of its writers. Both add what any write does: times, and no set-id bits.
//!
//! What is hard:
//! 1. *All who have a file open go one way*: the kernel mixes no pages of its own with passthrough. So the first who opens
//!    it decides for those who come while it is open, and a new file, which has no backing file yet, is not passed. Where
//!    only readers are to be passed, a writer who joins them maps the file of the host and asks for everything else.
//! 2. *What the kernel has acknowledged is kept when the process dies*: a file that is open for writing is marked before the
//!    open is answered (`content::ahead`), and the next mount lets the nodes of those catch up ([`recover`]).
//! 3. *O_SYNC is kept by the host, for the bytes and the length of its own file.* So the mark is made to last before such an
//!    open is answered.
//! 4. *The store needs room, and the kernel asks nobody before it writes*: while the disk is short of it, what the store
//!    needs is kept by taking it (`content::ballast`), and given back to a change that is refused otherwise.
//! 5. *The host's file ends where the file does*: what a crash has left beyond is cut off before the kernel sees it, and
//!    what is only a larger size in the node becomes a hole of the host's file.

use std::fs::File;
use std::sync::Arc;

use super::read::regular;
use super::write::{Privileges, Stamp};
use crate::content::{BackingFiles, ContentError, Contents};
use crate::document::merge::Extent;
use crate::document::{Body, ContentPlace, Ino, Key, NodeDelta, Timestamp};
use crate::namespace::inodes::Pin;
use crate::namespace::passthrough::{Ahead, Passed, Registration, left_ahead};
use crate::namespace::{Namespace, NamespaceError, Result, privilege_bits};
use crate::store::{Commit, NodeRef, Store, StoreError};

/// While there is less room than this beyond what the store needs for its own work, nobody writes past the daemon: the
/// kernel would use that too.
const ROOM_BYTES: u64 = 1 << 30;

/// What an open file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// It may be written.
    pub writes: bool,
    /// If the file is passed, reads and writes go past the daemon, and not maps alone.
    pub passes: bool,
    /// Each write is durable when it returns (O_SYNC, O_DSYNC).
    pub durable: bool,
}

impl Access {
    /// Whether it writes without asking anybody.
    fn writes_unasked(self) -> bool {
        self.writes && self.passes
    }
}

/// Registers a file of the host with the kernel; none if that is not possible.
pub type Register<'a> = &'a dyn Fn(&File) -> Option<Registration>;

impl Namespace {
    /// How a file that is about to be opened is to be passed, if it is.
    ///
    /// Called in the turn of whoever opens and closes it, of whom `others` have it open.
    pub(super) fn pass(
        &self,
        pin: &Pin<'_>,
        ino: Ino,
        node: &NodeRef,
        others: u64,
        access: Access,
        register: Register<'_>,
    ) -> Result<Option<Registration>> {
        let passed = match self.passthrough.get(ino) {
            Some(passed) if passed.is_open() || (others == 0 && access.passes) => passed,
            None if others == 0 => match self.begin_to_pass(pin, ino, node, access, register)? {
                Some(passed) => passed,
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        if access.writes_unasked()
            && let Some(files) = self.contents.backing()
        {
            if access.durable {
                self.fsync(ino, false)?;
            }
            files.may_be_ahead(ino.0, access.durable)?;
            self.passthrough.writer_came(files, self.store.reserve_bytes(), ROOM_BYTES);
        }
        if !access.writes {
            // Nobody will say when it is read.
            self.touch(ino, node);
        }
        passed.opened(access.writes_unasked());
        Ok(Some(Arc::clone(&passed.registration)))
    }

    fn begin_to_pass(
        &self,
        pin: &Pin<'_>,
        ino: Ino,
        node: &NodeRef,
        access: Access,
        register: Register<'_>,
    ) -> Result<Option<Arc<Passed>>> {
        let regular = regular(node)?;
        let may_be = regular.place == ContentPlace::Backing
            && regular.place == self.contents.place()
            && access.passes
            && !access.durable
            // The kernel leaves them in place.
            && privilege_bits(node) == 0
            && !(access.writes && (self.is_fenced() || !self.has_room()?));
        if !may_be {
            return Ok(None);
        }
        let mut io = pin.io.write();
        let content = match pin.file(&mut io, ino, node, self) {
            // It can be opened even so, to be written anew.
            Err(NamespaceError::Store(StoreError::Damaged { .. })) => return Ok(None),
            content => content?,
        };
        if !io.trimmed {
            content.trim(regular.size, node.version())?;
            io.trimmed = true;
        }
        let host = match content.whole(regular.size) {
            Ok(Some(host)) => host,
            // The host has no files of that size.
            Ok(None) | Err(ContentError::TooLarge { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Some(registration) = register(&host) else { return Ok(None) };
        let passed = Passed::new(registration, content, host).map_err(host_error)?;
        let passed = Arc::new(passed);
        self.passthrough.insert(ino, Arc::clone(&passed));
        Ok(Some(passed))
    }

    /// Whether what is written past the store leaves it room enough.
    fn has_room(&self) -> Result<bool> {
        let space = self.contents.space()?;
        let free = space.blocks_available.saturating_mul(space.block_size);
        Ok(free >= self.store.reserve_bytes() + ROOM_BYTES)
    }

    /// Somebody who had a passed file open has closed it. Called in the turn of whoever opens and closes it.
    pub(super) fn no_longer_passed(&self, pin: &Pin<'_>, ino: Ino, access: Access) -> Result<Privileges> {
        let Some(passed) = self.passthrough.get(ino) else { return Ok(Privileges::Kept) };
        let (last, last_writer) = passed.closed(access.writes_unasked());
        if access.writes_unasked() {
            self.passthrough.writer_went();
        }
        let caught_up = self.catch_up_in_turn(pin, ino);
        let is_ahead = caught_up.is_err() || passed.ahead().map_err(host_error)?.is_some();
        if last_writer && !is_ahead {
            self.never_ahead(ino);
        }
        if last && !is_ahead {
            self.passthrough.remove(ino);
        }
        caught_up
    }

    pub(super) fn catch_up_in_turn(&self, pin: &Pin<'_>, ino: Ino) -> Result<Privileges> {
        if self.passthrough.get(ino).is_none() {
            return Ok(Privileges::Kept);
        }
        let _io = pin.io.write();
        self.catch_up(ino)
    }

    /// A mark too many costs the next mount a look.
    fn never_ahead(&self, ino: Ino) {
        if let Some(files) = self.contents.backing()
            && let Err(error) = files.caught_up(ino.0)
        {
            log::warn!("inode {ino} stays marked as ahead of its node: {error}");
        }
    }

    /// Lets the node of a file say what the kernel has written, in the turn of the file's writers.
    ///
    /// # Errors
    /// The store's. Nothing is lost: it is still to be told, and attributes show it.
    pub(super) fn catch_up(&self, ino: Ino) -> Result<Privileges> {
        let Some(passed) = self.passthrough.get(ino) else { return Ok(Privileges::Kept) };
        let Some(ahead) = passed.ahead().map_err(host_error)? else { return Ok(Privileges::Kept) };
        let caught_up = self.retry(|| {
            let (_, node) = self.live_node(ino)?;
            let stamp = Stamp { drop_privileges: true, at: ahead.modified().max(node.ctime) };
            let delta = NodeDelta { extent: Some(extent(&ahead)), ..NodeDelta::default() };
            Ok(self.commit_content(ino, &node, stamp, Commit::new(), delta)?.1)
        });
        match caught_up {
            // It was removed, and nobody has it open: what a map still changes is nobody's.
            Err(NamespaceError::NotFound) => {
                self.never_ahead(ino);
                self.passthrough.remove(ino);
                Ok(Privileges::Kept)
            }
            caught_up => {
                let privileges = caught_up?;
                passed.told(&ahead);
                Ok(privileges)
            }
        }
    }

    /// What the kernel has made of a file beyond what its node says; to be looked at before the node is.
    pub(super) fn ahead(&self, ino: Ino) -> Option<Ahead> {
        match self.passthrough.get(ino)?.ahead() {
            Ok(ahead) => ahead,
            Err(error) => {
                log::error!("the backing file of inode {ino} cannot be looked at: {error}");
                None
            }
        }
    }

    /// A node as it will be when it has caught up.
    pub(super) fn with_ahead(&self, node: NodeRef, ahead: Option<Ahead>) -> NodeRef {
        let Some(ahead) = ahead else { return node };
        let privileges = privilege_bits(&node);
        node.changed(|node| {
            let at = ahead.modified().max(node.ctime);
            (node.mtime, node.ctime) = (at, at);
            node.mode &= !privileges;
            if let Body::Regular(regular) = &mut node.body {
                regular.size = regular.size.max(ahead.size());
                regular.blocks = ahead.blocks;
            }
        })
    }

    /// The node is about to say `size`, and so that is where who reads past the daemon is to find the end. If the node then
    /// does not say it, the file keeps that length: the kernel may have written there already.
    pub(super) fn extend_passed(&self, ino: Ino, size: u64) -> Result<()> {
        let Some(passed) = self.passthrough.get(ino) else { return Ok(()) };
        Ok(passed.content.extend(size)?)
    }

    /// The file of the host was changed in the turn of its writers, and its node says so, and that it has `size` bytes: that
    /// is no write of the kernel's, which would set times again and take privileges.
    pub(super) fn changed_by_node(&self, ino: Ino, size: u64) {
        if let Some(passed) = self.passthrough.get(ino)
            && let Ok(Some(ahead)) = passed.ahead()
            && ahead.size() <= size
        {
            passed.told(&ahead);
        }
    }

    /// Gives what was kept of the disk to whoever needs it now; returns whether there was any.
    pub(in crate::namespace) fn give_back_room(&self) -> bool {
        self.contents.backing().is_some_and(BackingFiles::give_back_room)
    }

    /// Lets all nodes catch up, at the end of the mount.
    pub(in crate::namespace) fn catch_up_all(&self) {
        self.passthrough.writers_are_gone();
        self.give_back_room();
        for ino in self.passthrough.all() {
            let pin = self.inodes.pin(ino);
            match self.catch_up_in_turn(&pin, ino) {
                Ok(_) => {
                    self.never_ahead(ino);
                    self.passthrough.remove(ino);
                }
                Err(error) => {
                    log::error!("inode {ino} was written past the store: {error}; the next mount sees to it")
                }
            }
        }
    }
}

fn extent(ahead: &Ahead) -> Extent {
    Extent { size_at_least: ahead.size(), blocks: ahead.blocks, place: ContentPlace::Backing }
}

fn host_error(error: std::io::Error) -> NamespaceError {
    crate::store::StoreError::io("a backing file that the kernel writes cannot be looked at", error).into()
}

/// Lets the nodes of those files catch up that the kernel was writing when the process before this one died. A file that
/// cannot be looked at keeps no other from that, and stays marked.
///
/// # Errors
/// When the store fails; the next mount does it again.
pub(in crate::namespace) fn recover(store: &dyn Store, contents: &Contents) -> Result<()> {
    let Some(files) = contents.backing() else { return Ok(()) };
    let (mut caught_up, mut damaged) = (false, Vec::new());
    for ino in files.left_ahead()?.into_iter().map(Ino) {
        match left_by_kernel(store, files, ino) {
            Ok(None) => {}
            Ok(Some(delta)) => {
                store.commit(&Commit::new().merge(Key::Node(ino), delta))?;
                caught_up = true;
            }
            Err(error) => {
                log::error!(
                    "inode {ino} was being written when the last mount died, and cannot be looked at: {error}"
                );
                damaged.push(ino);
            }
        }
    }
    if caught_up {
        // Of what was written with O_SYNC the marks are all that a power cut leaves, until the nodes say it there too.
        contents.sync_names()?;
        store.sync()?;
    }
    files.none_left_ahead()?;
    for ino in damaged {
        files.may_be_ahead(ino.0, false)?;
    }
    Ok(())
}

/// What the kernel has made of a file and its node does not say; none if nothing.
fn left_by_kernel(store: &dyn Store, files: &BackingFiles, ino: Ino) -> Result<Option<NodeDelta>> {
    let Some((_, node)) = store.node(ino)? else { return Ok(None) };
    let backed = node.regular().filter(|regular| regular.place == ContentPlace::Backing);
    let Some(size) = backed.map(|regular| regular.size) else { return Ok(None) };
    let Some(file) = files.find(ino.0)? else { return Ok(None) };
    let Some(host) = file.whole(size)? else { return Ok(None) };
    let Some(ahead) = left_ahead(&host, size, node.ctime).map_err(host_error)? else { return Ok(None) };
    log::info!("inode {ino} was being written when the last mount died; it has {} bytes", ahead.size());
    let at: Timestamp = ahead.modified().max(node.ctime);
    Ok(Some(NodeDelta {
        extent: Some(extent(&ahead)),
        mtime: Some(at),
        ctime: Some(at),
        mode_clear: privilege_bits(&node),
        ..NodeDelta::default()
    }))
}
