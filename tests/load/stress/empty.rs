//! An empty directory `v` that one thread replaces by a rename, removes or exchanges, while another makes files in it
//! and moves files and directories into it. Either the directory goes or something gets in, never both: an acknowledged
//! child that is not found at the end was put into a directory that had been removed.

use crate::common::rng::Rng;
use crate::common::sys;
use crate::ledger::{Id, Ledger, MARKER, mark, text_of};
use crate::world::View;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

/// How many finished directories are kept for the judge.
const KEPT: usize = 60;

/// The directory of one pair, and `done` in it.
pub(crate) struct Arena {
    dir: OwnedFd,
    done: OwnedFd,
    flags: bool,
}

impl Arena {
    /// Makes the directory of pair `group`.
    pub(crate) fn make(view: &View, group: usize, ledger: &mut Ledger) -> io::Result<Self> {
        let (_, dir) = ledger.make_dir(&view.empty, &format!("e{group}"))?;
        let (_, done) = ledger.make_dir(&dir, "done")?;
        Ok(Self { dir, done, flags: view.flags })
    }

    /// The same directory through another mount.
    pub(crate) fn open(view: &View, group: usize) -> io::Result<Self> {
        let dir = sys::open_dir_at(&view.empty, &format!("e{group}"))?;
        let done = sys::open_dir_at(&dir, "done")?;
        Ok(Self { dir, done, flags: view.flags })
    }

    /// One turn of the thread that makes `v` and does away with it.
    pub(crate) fn replace(&self, rng: &mut Rng, ledger: &mut Ledger) -> io::Result<()> {
        let id = ledger.fresh();
        sys::mkdir_at(&self.dir, "v")?;
        let empty = sys::open_dir_at(&self.dir, "v")?;
        for _ in 0..rng.below(4) {
            std::thread::yield_now();
        }
        match rng.below(10) {
            0..4 => self.replace_by_rename(&empty, id, ledger)?,
            4..7 => {
                if ledger.count("rmdir-empty", &sys::rmdir_at(&self.dir, "v")) {
                    removed("rmdir-empty", &empty, ledger);
                } else {
                    self.keep(&empty, "v", id, ledger)?;
                }
            }
            7..9 if self.flags => {
                let (other, name) = self.full(ledger)?;
                let result = sys::rename_at(&self.dir, &name, &self.dir, "v", libc::RENAME_EXCHANGE);
                // Exchanged or not, what stands under `name` and `v` is kept.
                if ledger.count("exchange-empty", &result) {
                    self.keep(&empty, &name, id, ledger)?;
                    self.file_away("v", 'n', other, ledger);
                } else {
                    self.keep(&empty, "v", id, ledger)?;
                    self.file_away(&name, 'n', other, ledger);
                }
            }
            _ => self.keep(&empty, "v", id, ledger)?,
        }
        self.clear(ledger)
    }

    fn replace_by_rename(&self, empty: &OwnedFd, id: Id, ledger: &mut Ledger) -> io::Result<()> {
        let (other, name) = self.full(ledger)?;
        if ledger.count("replace-empty", &sys::rename_at(&self.dir, &name, &self.dir, "v", 0)) {
            removed("replace-empty", empty, ledger);
            self.file_away("v", 'n', other, ledger);
        } else {
            self.keep(empty, "v", id, ledger)?;
            self.file_away(&name, 'n', other, ledger);
        }
        Ok(())
    }

    /// A directory with its marker in it, to be renamed onto `v`.
    fn full(&self, ledger: &mut Ledger) -> io::Result<(Id, String)> {
        let name = format!("n{:x}", ledger.made_next());
        let (id, _) = ledger.make_dir(&self.dir, &name)?;
        Ok((id, name))
    }

    /// The directory that was to go has stayed: it gets its marker through the descriptor, and goes to `done`.
    fn keep(&self, dir: &OwnedFd, name: &str, id: Id, ledger: &mut Ledger) -> io::Result<()> {
        mark(dir, id)?;
        ledger.created.push(id);
        self.file_away(name, 'v', id, ledger);
        Ok(())
    }

    fn file_away(&self, name: &str, kind: char, id: Id, ledger: &mut Ledger) {
        for _ in 0..3 {
            // A lock that was not granted in time is the only excuse; `v` must be out of the way for the next turn.
            if ledger.must(
                "file-away",
                name,
                &sys::rename_at(&self.dir, name, &self.done, &format!("{kind}{id:x}"), 0),
            ) {
                return;
            }
        }
    }

    /// Removes the finished directories when there are many.
    fn clear(&self, ledger: &mut Ledger) -> io::Result<()> {
        let entries = sys::read_dir(&self.done)?;
        if entries.len() <= KEPT {
            return Ok(());
        }
        for (name, _) in entries.iter().filter(|(name, _)| !name.starts_with(MARKER)) {
            let dir = sys::open_dir_at(&self.done, name)?;
            for (child, _) in sys::read_dir(&dir)?.iter().filter(|(child, _)| !child.starts_with(MARKER)) {
                if child.starts_with('k') {
                    remove_marked(&dir, child, ledger);
                } else if ledger.must("clear", child, &sys::unlink_at(&dir, child)) {
                    ledger.deleted.push(id_in(child));
                }
            }
            drop(dir);
            remove_marked(&self.done, name, ledger);
        }
        Ok(())
    }

    /// One turn of the thread that puts something into `v`.
    pub(crate) fn enter(&self, rng: &mut Rng, ledger: &mut Ledger) -> io::Result<()> {
        match rng.below(3) {
            0 => {
                let id = ledger.fresh();
                let made = sys::create_at(&self.dir, &format!("v/c{id:x}"));
                self.entered(id, made, ledger)
            }
            1 => {
                let id = ledger.made_next();
                let name = format!("x{id:x}");
                ledger.make_file(&self.dir, &name)?;
                if !self.move_in(&name, ledger)
                    && ledger.must("clear", &name, &sys::unlink_at(&self.dir, &name))
                {
                    ledger.deleted.push(id);
                }
                Ok(())
            }
            _ => {
                let name = format!("k{:x}", ledger.made_next());
                ledger.make_dir(&self.dir, &name)?;
                if !self.move_in(&name, ledger) {
                    remove_marked(&self.dir, &name, ledger);
                }
                Ok(())
            }
        }
    }

    fn entered(&self, id: Id, made: io::Result<File>, ledger: &mut Ledger) -> io::Result<()> {
        match made {
            Ok(file) => {
                ledger.created.push(id);
                ledger.count("create-in-empty", &Ok(()));
                file.write_all_at(text_of(id).as_bytes(), 0)
            }
            Err(e) => {
                ledger.count("create-in-empty", &Err(e));
                Ok(())
            }
        }
    }

    fn move_in(&self, name: &str, ledger: &mut Ledger) -> bool {
        let result = sys::rename_at(&self.dir, name, &self.dir, &format!("v/{name}"), 0);
        ledger.count("move-into-empty", &result)
    }
}

/// The id that stands in a name after its first letter.
fn id_in(name: &str) -> Id {
    name.get(1..).and_then(|hex| Id::from_str_radix(hex, 16).ok()).unwrap_or_default()
}

/// Removes a directory with nothing but its marker; if something got in meanwhile it gets its marker back and stays.
fn remove_marked(parent: &OwnedFd, name: &str, ledger: &mut Ledger) {
    let id = id_in(name);
    let Ok(dir) = sys::open_dir_at(parent, name) else {
        return ledger.violation(format!("{name} cannot be opened, though nobody else may touch it"));
    };
    let marker = format!("{MARKER}{id:x}");
    if !ledger.must("clear", &marker, &sys::unlink_at(&dir, &marker)) {
        return;
    }
    if ledger.count("rmdir", &sys::rmdir_at(parent, name)) {
        ledger.deleted.push(id);
    } else if let Err(e) = mark(&dir, id) {
        ledger.violation(format!("{name} was not removed, yet takes no file: {e}"));
    }
}

/// A directory that an acknowledged call has removed, held open: it has no links.
fn removed(kind: &str, dir: &OwnedFd, ledger: &mut Ledger) {
    match sys::stat_fd(dir) {
        Ok(stat) if stat.st_nlink != 0 => {
            ledger.violation(format!("{kind}: the directory is gone but has {} links", stat.st_nlink));
        }
        Ok(_) => {}
        // Some filesystems have nothing more to say about a directory that is gone.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)) => {}
        Err(e) => ledger.violation(format!("{kind}: fstat of the removed directory: {e}")),
    }
}
