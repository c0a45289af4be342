//! The arguments of the rename stress, resolved once.

use crate::common::args::Args;
use crate::common::{self, Res};
use std::path::PathBuf;
use std::time::Duration;

const HELP: &str = "\
rename-stress: renames of every kind against one tree at once, and a judge (scripts/rename-stress mounts the tree)

  --mount DIR       the mounted tree; repeat it for several mounts of one store: workers take turns
  --seconds N       how long (default 60); up to six times as long, while a kind of operation or race is missing
  --workers N       workers that move, overwrite and contest (default 8); pairs for loops and empty directories and
                    holders of locks come on top, one for each four
  --coherence-ms N  for so long a mount may show what was before another mount changed it (default 0)
  --seed N          replays the choices of a run
  --plain           DIR is any directory: leave out what needs lockwood
  --no-flags        without RENAME_EXCHANGE and RENAME_NOREPLACE, for filesystems that refuse them (bindfs 1.14)
  --keep            leave the tree there

Exit code: 0 all found and contention seen, 1 not so, 2 could not run.";

/// How many times as long as asked for a run may last.
pub(crate) const LONGER_AT_MOST: u32 = 6;

/// What the self-test does behind the judge's back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// Removes a file.
    Lose,
    /// Copies a file, id and all.
    Duplicate,
}

/// What to do.
pub(crate) struct Options {
    pub(crate) mounts: Vec<PathBuf>,
    pub(crate) duration: Duration,
    pub(crate) workers: usize,
    /// For how long one mount may not see yet what was done through another.
    pub(crate) coherence: Duration,
    pub(crate) seed: u64,
    pub(crate) plain: bool,
    pub(crate) no_flags: bool,
    pub(crate) keep: bool,
    pub(crate) sabotage: Option<Sabotage>,
}

impl Options {
    /// `None` if help was asked for and given.
    pub(crate) fn from_env() -> Res<Option<Self>> {
        let mut args = Args::from_env();
        if args.take_flag("--help") || args.take_flag("-h") {
            println!("{HELP}");
            return Ok(None);
        }
        let sabotage = match args.take::<String>("--sabotage")?.as_deref() {
            None => None,
            Some("lose") => Some(Sabotage::Lose),
            Some("duplicate") => Some(Sabotage::Duplicate),
            Some(other) => return Err(format!("--sabotage {other}: give lose or duplicate")),
        };
        let options = Self {
            mounts: args.take_list("--mount")?.into_iter().map(PathBuf::from).collect(),
            duration: Duration::from_secs(args.take("--seconds")?.unwrap_or(60)),
            workers: args.take("--workers")?.unwrap_or(8),
            coherence: Duration::from_millis(args.take("--coherence-ms")?.unwrap_or(0)),
            seed: args.take("--seed")?.unwrap_or_else(common::fresh_seed),
            plain: args.take_flag("--plain"),
            no_flags: args.take_flag("--no-flags"),
            keep: args.take_flag("--keep"),
            sabotage,
        };
        args.finish()?;
        if options.mounts.is_empty() {
            return Err("no --mount DIR given; see --help".into());
        }
        if options.workers == 0 || options.duration.is_zero() {
            return Err("--workers and --seconds must be at least 1".into());
        }
        Ok(Some(options))
    }

    /// How many pairs of each special kind, and how many holders of locks.
    pub(crate) fn groups(&self) -> usize {
        self.workers.div_ceil(4)
    }
}
