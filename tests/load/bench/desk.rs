//! The place of one thread on one target, and what it does there with many small files.

use crate::common::sys;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub(crate) const FILE_BYTES: usize = 4096;
const FILL: [u8; FILE_BYTES] = [0x4c; FILE_BYTES];

/// So many files are in one directory of a tree.
const FILES_A_DIRECTORY: usize = 100;

/// Two directories and the names used in them.
pub(crate) struct Desk {
    pub(crate) a: OwnedFd,
    pub(crate) b: OwnedFd,
    pub(crate) names: Vec<String>,
    pub(crate) others: Vec<String>,
    /// The length of a large file.
    pub(crate) bytes: u64,
}

impl Desk {
    /// Makes the directories.
    pub(crate) fn new(dir: &Path, files: usize, bytes: u64) -> io::Result<Self> {
        let home = sys::open_dir(dir)?;
        sys::mkdir_at(&home, "a")?;
        sys::mkdir_at(&home, "b")?;
        Ok(Self {
            a: sys::open_dir_at(&home, "a")?,
            b: sys::open_dir_at(&home, "b")?,
            names: (0..files).map(|i| format!("file-{i:06}")).collect(),
            others: (0..files).map(|i| format!("moved-{i:06}")).collect(),
            bytes,
        })
    }

    /// Does something with each name; returns how many there are.
    pub(crate) fn each(&self, names: &[String], act: impl Fn(&str) -> io::Result<()>) -> io::Result<usize> {
        names.iter().try_for_each(|name| act(name))?;
        Ok(names.len())
    }

    pub(crate) fn create_all(&self) -> io::Result<usize> {
        self.each(&self.names, |name| sys::create_at(&self.a, name).map(drop))
    }

    pub(crate) fn write_all(&self) -> io::Result<usize> {
        self.each(&self.names, |name| sys::create_at(&self.a, name)?.write_all_at(&FILL, 0))
    }

    pub(crate) fn write_and_sync_all(&self) -> io::Result<usize> {
        self.each(&self.names, |name| {
            let file = sys::create_at(&self.a, name)?;
            file.write_all_at(&FILL, 0)?;
            file.sync_all()
        })
    }

    pub(crate) fn mkdir_all(&self) -> io::Result<usize> {
        self.each(&self.names, |name| sys::mkdir_at(&self.a, name))
    }

    pub(crate) fn stat_all(&self) -> io::Result<usize> {
        self.each(&self.names, |name| sys::stat_at(&self.a, name).map(drop))
    }

    /// Looks at names that are not there.
    pub(crate) fn miss_all(&self) -> io::Result<usize> {
        self.each(&self.others, |name| absent(&self.a, name))
    }

    pub(crate) fn read_all(&self) -> io::Result<usize> {
        self.each(&self.names, |name| {
            let file = File::from(sys::open_at(&self.a, name, libc::O_RDONLY, 0)?);
            file.read_exact_at(&mut [0; FILE_BYTES], 0)
        })
    }

    pub(crate) fn list_with_stat(&self) -> io::Result<usize> {
        let entries = sys::read_dir(&self.a)?;
        entries.iter().try_for_each(|(name, _)| sys::stat_at(&self.a, name).map(drop))?;
        if entries.len() == self.names.len() {
            Ok(entries.len())
        } else {
            Err(io::Error::other(format!("readdir shows {} of {} files", entries.len(), self.names.len())))
        }
    }

    /// Gives each file of the first directory another name, there or in the other one.
    pub(crate) fn rename_all(&self, to: &OwnedFd, names: &[String]) -> io::Result<usize> {
        let mut pairs = self.names.iter().zip(names);
        pairs.try_for_each(|(old, new)| sys::rename_at(&self.a, old, to, new, 0))?;
        Ok(names.len())
    }

    /// Makes the files in directories of their own, a hundred in each.
    pub(crate) fn make_tree(&self) -> io::Result<()> {
        for (number, names) in self.names.chunks(FILES_A_DIRECTORY).enumerate() {
            let name = format!("dir-{number:04}");
            sys::mkdir_at(&self.a, &name)?;
            let dir = sys::open_dir_at(&self.a, &name)?;
            self.each(names, |name| sys::create_at(&dir, name).map(drop))?;
        }
        Ok(())
    }

    /// Removes everything below a directory as rm -r does: it reads each directory, and removes by the names found.
    pub(crate) fn remove_below(&self, dir: &OwnedFd) -> io::Result<usize> {
        let mut removed = 0;
        for (name, kind) in sys::read_dir(dir)? {
            if kind == libc::DT_DIR {
                removed += self.remove_below(&sys::open_dir_at(dir, &name)?)?;
                sys::rmdir_at(dir, &name)?;
            } else {
                sys::unlink_at(dir, &name)?;
            }
            removed += 1;
        }
        Ok(removed)
    }
}

/// Looks at a name, at which nothing may be.
pub(crate) fn absent(dir: &OwnedFd, name: &str) -> io::Result<()> {
    match sys::stat_at(dir, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::other(format!("{name} is there"))),
    }
}
