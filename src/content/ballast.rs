//! Room that is kept by taking it. Owns the file `content/ballast`; imports this layer.
//!
//! The store looks at the free space of the disk before it takes a change, and so keeps some for its own work. What others
//! write beside it asks nobody. While they do and the disk is short of room, a file takes what the store is to find when it
//! needs it; then the file is cut to nothing.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::error::ContentError;
use super::host;
use crate::store::embedded::layout::BALLAST;

/// The file of one directory of backing files.
#[derive(Debug)]
pub(super) struct Ballast {
    path: PathBuf,
    /// While it takes room.
    held: Mutex<Option<File>>,
}

impl Ballast {
    pub(super) fn new(root: &Path) -> Self {
        Self { path: root.join(BALLAST), held: Mutex::default() }
    }

    pub(super) fn is_held(&self) -> bool {
        self.held.lock().is_some()
    }

    /// Takes so much room, if it takes none yet.
    pub(super) fn hold(&self, bytes: u64) -> Result<(), ContentError> {
        let mut held = self.held.lock();
        if held.is_some() {
            return Ok(());
        }
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(&self.path)
            .map_err(|error| ContentError::from_io("making", &self.path, error))?;
        match host::allocate(&file, 0, bytes, true) {
            Ok(()) => {
                *held = Some(file);
                Ok(())
            }
            Err(error) => {
                drop(file);
                self.remove()?;
                Err(ContentError::from_io("reserving", &self.path, error))
            }
        }
    }

    /// Gives the room back; returns whether there was any.
    pub(super) fn give_back(&self) -> bool {
        let Some(file) = self.held.lock().take() else { return false };
        let given = file.set_len(0).map_err(|error| ContentError::from_io("cutting", &self.path, error));
        if let Err(error) = given.and_then(|()| self.remove()) {
            log::error!("room that was kept for the store is not given back: {error}");
        }
        true
    }

    /// Removes what a process that died has left.
    pub(super) fn remove(&self) -> Result<(), ContentError> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(ContentError::from_io("removing", &self.path, error))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn room_is_taken_once_and_given_back_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ballast");
        let ballast = Ballast::new(dir.path());
        assert!(!ballast.give_back());
        ballast.hold(1 << 20).unwrap();
        ballast.hold(1 << 21).unwrap();
        assert!(ballast.is_held());
        assert!(std::fs::metadata(&path).unwrap().blocks() * 512 >= 1 << 20);
        assert!(ballast.give_back() && !ballast.give_back() && !ballast.is_held());
        assert!(!path.exists());
        std::fs::write(&path, "left").unwrap();
        Ballast::new(dir.path()).remove().unwrap();
        assert!(!path.exists());
    }
}
