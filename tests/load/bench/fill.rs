//! Fills a directory with empty files, for what is measured beside many of them.

use crate::common::{self, Res, sys};
use crate::options::Filling;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

const FILES_A_DIRECTORY: usize = 1000;
/// Somebody waits for it: a line for as many files.
const FILES_A_LINE: usize = 500_000;

/// Fills directories that are to stay as they are then.
pub(crate) fn run(fillings: &[Filling], threads: usize) -> Res<()> {
    for Filling { dir, files } in fillings {
        let opened = std::fs::create_dir_all(dir).and_then(|()| sys::open_dir(dir));
        let top = opened.map_err(|e| format!("{}: {e}; is it mounted and writable?", dir.display()))?;
        fill(&top, *files, threads)?;
    }
    Ok(())
}

/// Fills the directory by two levels: directories of [`FILES_A_DIRECTORY`] files.
pub(crate) fn fill(top: &OwnedFd, files: usize, threads: usize) -> Res<()> {
    let begun = common::now();
    let made = AtomicUsize::new(0);
    let directories = files.div_ceil(FILES_A_DIRECTORY);
    let fill_some = |thread: usize| -> io::Result<()> {
        for d in (thread..directories).step_by(threads) {
            let name = format!("dir-{d:05}");
            sys::mkdir_at(top, &name)?;
            let dir = sys::open_dir_at(top, &name)?;
            let here = FILES_A_DIRECTORY.min(files - d * FILES_A_DIRECTORY);
            (0..here).try_for_each(|i| sys::create_at(&dir, &format!("file-{i:04}")).map(drop))?;
            let before = made.fetch_add(here, Ordering::Relaxed);
            if (before + here) / FILES_A_LINE > before / FILES_A_LINE {
                eprintln!("{} files after {:.0} s", before + here, (common::now() - begun).as_secs_f64());
            }
        }
        Ok(())
    };
    common::in_parallel("fill", 0..threads, |t| fill_some(t).map_err(|e| format!("filling: {e}")))?;
    Ok(())
}
