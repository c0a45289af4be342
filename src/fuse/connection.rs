//! The way to one kernel for notices that it takes at once, without a lock that a handler may be waited for with.

use std::io;
use std::os::fd::OwnedFd;

use fuser::{INodeNo, Notifier};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::document::Ino;

/// There while the mount is.
pub(super) struct Connection {
    notifier: Notifier,
    device: OwnedFd,
    has_epochs: bool,
    has_prune: bool,
}

impl Connection {
    /// Finds out what this kernel takes.
    pub(super) fn new(notifier: Notifier, device: OwnedFd) -> Self {
        let takes = |notice: &[u8]| rustix::io::write(&device, notice).is_ok();
        let (has_epochs, has_prune) = (takes(&next_epoch()), takes(&prune(&[])));
        Self { notifier, device, has_epochs, has_prune }
    }

    /// Whether [`Connection::names`] reaches it (Linux 6.16).
    pub(super) fn has_epochs(&self) -> bool {
        self.has_epochs
    }

    /// Every name that the kernel has looked up before is to be asked for again.
    pub(super) fn names(&self) {
        if self.has_epochs
            && let Err(error) = self.send(&next_epoch())
        {
            log::debug!("the kernel was not told that names have changed: {error}");
        }
    }

    /// Whether [`Connection::unused`] reaches it (Linux 6.18).
    pub(super) fn has_prune(&self) -> bool {
        self.has_prune
    }

    /// What is not in use of these is to be let go of, in this order.
    pub(super) fn unused(&self, inodes: &[Ino]) {
        if let Err(error) = self.send(&prune(inodes)) {
            log::debug!("the kernel was not told to let go of what it does not use: {error}");
        }
    }

    /// What the kernel knows of the attributes of `ino` is old. A negative offset: no pages, and so no lock to wait for.
    pub(super) fn attributes(&self, ino: Ino) {
        if let Err(error) = self.notifier.inval_inode(INodeNo(ino.0), -1, 0) {
            log::debug!("the kernel was not told of inode {ino}: {error}");
        }
    }

    fn send(&self, notice: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.device, notice)?;
        Ok(())
    }
}

/// Whether the kernel has ended the connection behind `device`: it is mounted nowhere any more, or was aborted.
pub(super) fn has_ended(device: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(device, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).is_ok()
        && fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// `struct fuse_out_header` of <linux/fuse.h> with the notice's code in the place of the error, and what is behind it.
fn notice(code: u32, body: &[u8]) -> Vec<u8> {
    let length = 16 + body.len();
    let mut notice = Vec::with_capacity(length);
    notice.extend((length as u32).to_ne_bytes());
    notice.extend(code.to_ne_bytes());
    notice.extend([0; 8]);
    notice.extend(body);
    notice
}

/// FUSE_NOTIFY_INC_EPOCH.
fn next_epoch() -> Vec<u8> {
    notice(8, &[])
}

/// FUSE_NOTIFY_PRUNE: `struct fuse_notify_prune_out`, and the numbers.
fn prune(inodes: &[Ino]) -> Vec<u8> {
    let mut body = Vec::with_capacity(16 + size_of_val(inodes));
    body.extend((inodes.len() as u32).to_ne_bytes());
    body.extend([0; 12]);
    inodes.iter().for_each(|ino| body.extend(ino.0.to_ne_bytes()));
    notice(9, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_have_their_length_and_their_code() {
        let words = |notice: Vec<u8>| -> Vec<u32> {
            notice.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
        };
        assert_eq!(words(next_epoch()), [16, 8, 0, 0]);
        let numbers = [Ino(7), Ino(8)].map(|ino| ino.0.to_ne_bytes()).concat();
        let expected = [vec![48, 9, 0, 0, 2, 0, 0, 0], words(numbers)].concat();
        assert_eq!(words(prune(&[Ino(7), Ino(8)])), expected);
    }
}
