//! Which backing files may have more than their nodes say: those that somebody writes past the documents. Owns the file
//! `content/ahead`; imports this layer's errors.
//!
//! The file is a row of inode numbers, 8 bytes each, little-endian; 0 is a free place. It is written in place and not
//! synced, so it outlives the process and not the machine. After a power cut it may say too much or too little: too
//! little costs what nobody had synced ([`Ahead::sync`] is for who promises more), and too much is a look at a file.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::error::ContentError;

const PLACE_BYTES: u64 = 8;

/// The account of one directory of backing files.
#[derive(Debug)]
pub(super) struct Ahead {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Opened when it is first needed.
    file: Option<File>,
    places: HashMap<u64, u64>,
    free: Vec<u64>,
    /// As many places were ever used at once.
    used: u64,
}

impl Ahead {
    pub(super) fn new(root: &Path) -> Self {
        Self { path: root.join("ahead"), state: Mutex::default() }
    }

    /// From here on the backing file of `ino` may be ahead.
    pub(super) fn mark(&self, ino: u64) -> Result<(), ContentError> {
        let mut state = self.state.lock();
        if state.places.contains_key(&ino) {
            return Ok(());
        }
        let place = state.free.last().copied().unwrap_or(state.used);
        self.write(&mut state, place, ino)?;
        if state.free.pop().is_none() {
            state.used += 1;
        }
        state.places.insert(ino, place);
        Ok(())
    }

    /// The node of `ino` says all that its backing file has, and nobody writes there any more.
    pub(super) fn unmark(&self, ino: u64) -> Result<(), ContentError> {
        let mut state = self.state.lock();
        let Some(place) = state.places.get(&ino).copied() else { return Ok(()) };
        self.write(&mut state, place, 0)?;
        state.places.remove(&ino);
        state.free.push(place);
        Ok(())
    }

    /// What is marked survives a power cut.
    pub(super) fn sync(&self) -> Result<(), ContentError> {
        let state = self.state.lock();
        let Some(file) = &state.file else { return Ok(()) };
        let parent = self.path.parent().unwrap_or(Path::new("."));
        let synced = file.sync_data().and_then(|()| File::open(parent)?.sync_all());
        synced.map_err(|error| ContentError::from_io("syncing", &self.path, error))
    }

    /// What a process that died has left marked.
    pub(super) fn left(&self) -> Result<Vec<u64>, ContentError> {
        let failed = |error| ContentError::from_io("reading", &self.path, error);
        let bytes = match std::fs::symlink_metadata(&self.path) {
            Ok(found) if found.is_file() => std::fs::read(&self.path).map_err(failed)?,
            Ok(_) => return Err(self.wrong_kind()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(failed(error)),
        };
        let (places, _torn) = bytes.as_chunks::<{ PLACE_BYTES as usize }>();
        let mut left: Vec<u64> = places.iter().map(|place| u64::from_le_bytes(*place)).collect();
        left.retain(|ino| *ino != 0);
        left.sort_unstable();
        left.dedup();
        Ok(left)
    }

    /// Nothing is marked any more; before anything was, in this process.
    pub(super) fn clear(&self) -> Result<(), ContentError> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(ContentError::from_io("removing", &self.path, error))
            }
            _ => Ok(()),
        }
    }

    fn write(&self, state: &mut State, place: u64, ino: u64) -> Result<(), ContentError> {
        if state.file.is_none() {
            let opened = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
                .open(&self.path);
            state.file = Some(match opened {
                Ok(file) => file,
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::ELOOP | libc::EISDIR | libc::ENXIO)) =>
                {
                    return Err(self.wrong_kind());
                }
                Err(error) => return Err(ContentError::from_io("opening", &self.path, error)),
            });
        }
        let Some(file) = &state.file else { return Ok(()) };
        let written = file.write_all_at(&ino.to_le_bytes(), place * PLACE_BYTES);
        written.map_err(|error| ContentError::from_io("writing", &self.path, error))
    }

    fn wrong_kind(&self) -> ContentError {
        ContentError::WrongKind { path: self.path.clone(), expected: "regular file" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_marked_is_found_by_the_next_process_and_places_are_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let ahead = Ahead::new(dir.path());
        assert_eq!(ahead.left().unwrap(), [0; 0]);
        for ino in [7, 8, 7, 9] {
            ahead.mark(ino).unwrap();
        }
        ahead.unmark(8).unwrap();
        ahead.unmark(8).unwrap();
        ahead.sync().unwrap();
        let next = || Ahead::new(dir.path()).left().unwrap();
        assert_eq!(next(), [7, 9]);
        ahead.mark(10).unwrap();
        assert_eq!(next(), [7, 9, 10]);
        assert_eq!(std::fs::metadata(dir.path().join("ahead")).unwrap().len(), 3 * PLACE_BYTES);
        let after = Ahead::new(dir.path());
        after.clear().unwrap();
        after.clear().unwrap();
        assert_eq!(next(), [0; 0]);
        after.unmark(7).unwrap();
        after.mark(11).unwrap();
        assert_eq!(next(), [11]);
    }

    #[test]
    fn a_torn_end_is_nothing_and_what_is_no_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ahead");
        std::fs::write(&path, [5, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]).unwrap();
        assert_eq!(Ahead::new(dir.path()).left().unwrap(), [5]);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        let ahead = Ahead::new(dir.path());
        assert!(matches!(ahead.left(), Err(ContentError::WrongKind { .. })));
        assert!(matches!(ahead.mark(1), Err(ContentError::WrongKind { .. })));
    }
}
