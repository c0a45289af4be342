//! The phases of the benchmark: what each prepares, what it does on the clock and what it clears away.

use crate::common::{Res, sys};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

const FILE_BYTES: usize = 4096;

/// The place of one thread on one target: two directories and the names used in them.
pub(crate) struct Desk {
    a: OwnedFd,
    b: OwnedFd,
    names: Vec<String>,
    others: Vec<String>,
}

impl Desk {
    /// Makes the directories.
    pub(crate) fn new(dir: &Path, files: usize) -> io::Result<Self> {
        let home = sys::open_dir(dir)?;
        sys::mkdir_at(&home, "a")?;
        sys::mkdir_at(&home, "b")?;
        Ok(Self {
            a: sys::open_dir_at(&home, "a")?,
            b: sys::open_dir_at(&home, "b")?,
            names: (0..files).map(|i| format!("file-{i:06}")).collect(),
            others: (0..files).map(|i| format!("moved-{i:06}")).collect(),
        })
    }

    fn create_all(&self) -> io::Result<()> {
        self.names.iter().try_for_each(|name| sys::create_at(&self.a, name).map(drop))
    }

    fn write_all(&self) -> io::Result<()> {
        let bytes = [0x4c; FILE_BYTES];
        self.names.iter().try_for_each(|name| sys::create_at(&self.a, name)?.write_all_at(&bytes, 0))
    }

    fn mkdir_all(&self) -> io::Result<()> {
        self.names.iter().try_for_each(|name| sys::mkdir_at(&self.a, name))
    }

    fn stat_all(&self) -> io::Result<()> {
        self.names.iter().try_for_each(|name| sys::stat_at(&self.a, name).map(drop))
    }

    fn read_all(&self) -> io::Result<()> {
        let mut bytes = [0; FILE_BYTES];
        self.names.iter().try_for_each(|name| {
            let file = std::fs::File::from(sys::open_at(&self.a, name, libc::O_RDONLY, 0)?);
            file.read_exact_at(&mut bytes, 0)
        })
    }

    fn list_with_stat(&self) -> io::Result<usize> {
        let entries = sys::read_dir(&self.a)?;
        entries.iter().try_for_each(|(name, _)| sys::stat_at(&self.a, name).map(drop))?;
        if entries.len() == self.names.len() {
            Ok(entries.len())
        } else {
            Err(io::Error::other(format!("readdir shows {} of {} files", entries.len(), self.names.len())))
        }
    }

    fn rename_all(&self, to: &OwnedFd, names: &[String]) -> io::Result<()> {
        self.names.iter().zip(names).try_for_each(|(old, new)| sys::rename_at(&self.a, old, to, new, 0))
    }
}

fn each(dir: &OwnedFd, names: &[String], remove: fn(&OwnedFd, &str) -> io::Result<()>) -> io::Result<()> {
    names.iter().try_for_each(|name| remove(dir, name))
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Create,
    Stat,
    StatCold,
    Unlink,
    Rename,
    RenameAcross,
    Mkdir,
    RenameDir,
    Write,
    Read,
    Readdir,
}

impl Phase {
    /// Measured if nothing else is asked for.
    pub(crate) const DEFAULT: [Self; 10] = [
        Self::Create,
        Self::Stat,
        Self::Unlink,
        Self::Rename,
        Self::RenameAcross,
        Self::Mkdir,
        Self::RenameDir,
        Self::Write,
        Self::Read,
        Self::Readdir,
    ];

    /// The name on the command line and in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Stat => "stat",
            Self::StatCold => "stat-cold",
            Self::Unlink => "unlink",
            Self::Rename => "rename",
            Self::RenameAcross => "rename-across",
            Self::Mkdir => "mkdir",
            Self::RenameDir => "rename-dir",
            Self::Write => "write",
            Self::Read => "read",
            Self::Readdir => "readdir",
        }
    }

    /// The phase of that name.
    pub(crate) fn named(name: &str) -> Res<Self> {
        let mut all = Self::DEFAULT.into_iter().chain([Self::StatCold]);
        all.find(|p| p.name() == name).ok_or_else(|| format!("--phases {name}: no such phase; see --help"))
    }

    /// Makes what the phase works on.
    pub(crate) fn prepare(self, desk: &Desk) -> io::Result<()> {
        match self {
            Self::Create | Self::Mkdir | Self::Write => Ok(()),
            Self::RenameDir => desk.mkdir_all(),
            Self::Read => desk.write_all(),
            _ => desk.create_all(),
        }
    }

    /// Between preparing and running, once for all threads.
    pub(crate) fn settle(self) -> Res<()> {
        if self != Self::StatCold {
            return Ok(());
        }
        // 2: dentries and inodes, so that the filesystem is asked again; file pages stay.
        std::fs::write("/proc/sys/vm/drop_caches", "2")
            .map_err(|e| format!("cannot drop the kernel's caches: {e}; stat-cold needs root"))
    }

    /// What is on the clock; returns the number of operations.
    pub(crate) fn run(self, desk: &Desk) -> io::Result<usize> {
        match self {
            Self::Create => desk.create_all()?,
            Self::Stat | Self::StatCold => desk.stat_all()?,
            Self::Unlink => each(&desk.a, &desk.names, |d, n| sys::unlink_at(d, n))?,
            Self::Rename | Self::RenameDir => desk.rename_all(&desk.a, &desk.others)?,
            Self::RenameAcross => desk.rename_all(&desk.b, &desk.names)?,
            Self::Mkdir => desk.mkdir_all()?,
            Self::Write => desk.write_all()?,
            Self::Read => desk.read_all()?,
            Self::Readdir => return desk.list_with_stat(),
        }
        Ok(desk.names.len())
    }

    /// Leaves both directories empty.
    pub(crate) fn clean(self, desk: &Desk) -> io::Result<()> {
        match self {
            Self::Unlink => Ok(()),
            Self::Rename => each(&desk.a, &desk.others, |d, n| sys::unlink_at(d, n)),
            Self::RenameAcross => each(&desk.b, &desk.names, |d, n| sys::unlink_at(d, n)),
            Self::Mkdir => each(&desk.a, &desk.names, |d, n| sys::rmdir_at(d, n)),
            Self::RenameDir => each(&desk.a, &desk.others, |d, n| sys::rmdir_at(d, n)),
            _ => each(&desk.a, &desk.names, |d, n| sys::unlink_at(d, n)),
        }
    }
}
