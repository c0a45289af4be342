//! The tree under stress: its fixed directories, and the pool of directories that everybody moves about.
//!
//! ```text
//! rename-stress-<pid>/
//!   pool/        directories and files that any worker moves and exchanges, never deletes; nested at random
//!   slots/       contested names
//!   work/w<k>/   files of worker k on their way to a contested name
//!   empty/e<g>/  empty directories that are replaced and removed while others create in them
//!   loops/l<g>/  pairs of moves that together would make a loop
//! ```

use crate::common::rng::Rng;
use crate::common::{Res, sys};
use crate::ledger::Ledger;
use crate::options::Options;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Directories in the pool.
const DIRECTORIES: usize = 120;
/// Files in the pool that move as the directories do.
const FILES: usize = 240;
/// Of the first directories, as many form one deep chain.
const CHAIN: usize = 40;

/// One mount: every fixed directory, opened once. A descriptor follows its directory wherever that moves.
pub(crate) struct View {
    /// Where the stressed tree is.
    pub(crate) home: PathBuf,
    /// Whether renames may carry flags.
    pub(crate) flags: bool,
    /// The directory `pool` and those in it, wherever they are now.
    pub(crate) pool: Vec<OwnedFd>,
    pub(crate) slots: OwnedFd,
    pub(crate) work: OwnedFd,
    pub(crate) empty: OwnedFd,
    pub(crate) loops: OwnedFd,
}

/// The tree as each mount sees it, and the signal to end.
pub(crate) struct World {
    views: Vec<View>,
    stop: AtomicBool,
}

impl World {
    /// Makes the tree on the first mount, and opens it on all.
    pub(crate) fn make(options: &Options, ledger: &mut Ledger) -> Res<Self> {
        let name = format!("rename-stress-{}", std::process::id());
        let home = options.mounts[0].join(&name);
        let made = std::fs::create_dir(&home).and_then(|()| fill(&home, options, ledger));
        let paths = made.map_err(|e| format!("{}: {e}; is it mounted and writable?", home.display()))?;
        let views = options.mounts.iter().map(|mount| {
            let home = mount.join(&name);
            View::open(&home, &paths, !options.no_flags)
                .map_err(|e| format!("{}: {e}; is it the same tree?", home.display()))
        });
        Ok(Self { views: views.collect::<Res<_>>()?, stop: AtomicBool::new(false) })
    }

    /// The mount that a worker uses.
    pub(crate) fn view(&self, worker: usize) -> &View {
        &self.views[worker % self.views.len()]
    }

    /// Whether to end.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Tells every worker to end.
    pub(crate) fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Makes all fixed directories, the pool and its files; returns the paths of the pool's directories.
fn fill(home: &Path, options: &Options, ledger: &mut Ledger) -> io::Result<Vec<String>> {
    let top = sys::open_dir(home)?;
    for name in ["pool", "slots", "work", "empty", "loops"] {
        ledger.make_dir(&top, name)?;
    }
    for worker in 0..options.workers {
        ledger.make_dir(sys::open_dir_at(&top, "work")?, &format!("w{worker}"))?;
    }
    let mut rng = Rng::new(options.seed, u64::MAX);
    let mut paths = vec!["pool".to_owned()];
    for index in 1..=DIRECTORIES {
        let parent = if index <= CHAIN { index - 1 } else { rng.below(paths.len()) };
        let (parent_path, name) = (paths[parent].clone(), format!("d{index:03}"));
        ledger.make_dir(sys::open_dir(&home.join(&parent_path))?, &name)?;
        paths.push(format!("{parent_path}/{name}"));
    }
    for index in 0..FILES {
        let parent = sys::open_dir(&home.join(&paths[rng.below(paths.len())]))?;
        ledger.make_file(&parent, &format!("f{index:03}"))?;
    }
    Ok(paths)
}

impl View {
    fn open(home: &Path, pool: &[String], flags: bool) -> io::Result<Self> {
        let open = |name: &str| sys::open_dir(&home.join(name));
        Ok(Self {
            home: home.to_owned(),
            flags,
            pool: pool.iter().map(|path| open(path)).collect::<io::Result<_>>()?,
            slots: open("slots")?,
            work: open("work")?,
            empty: open("empty")?,
            loops: open("loops")?,
        })
    }
}
