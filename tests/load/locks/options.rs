//! The arguments, resolved once.

use crate::common::Res;
use crate::common::args::Args;
use std::path::PathBuf;
use std::time::Duration;

const HELP: &str = "\
bench-locks: the lock strategies side by side (scripts/bench locks mounts them)

  --targets NAME=DIR[:DIR...],...  a strategy and the mount points of its volume; renamers take turns with these
  --largest N       the largest subtree, in files: 1, 10, 100, ... N (default 100000)
  --rounds N        rounds of each figure (default 7)
  --pairs N         renames of the smallest and of the largest subtree in turns, on the first target (default 301)
  --renamers LIST   how many renamers at once (default 1,2,4,8,16)
  --renamer-files N files in the directory that each of them moves (default 100)
  --seconds S       how long they rename for one figure (default 0.4)
  --svg FILE        draw the figures there
  --leave           leave what was made to whoever throws the volumes away
  --require same=R  exit 1 if the largest subtree takes the first target more than R times as long as the smallest

Exit code: 0 measured, 1 a requirement was missed, 2 could not measure.";

/// A volume, by what it is mounted at.
pub(crate) struct Target {
    /// What tables call it.
    pub(crate) name: String,
    mounts: Vec<PathBuf>,
}

impl Target {
    /// The directory that this process makes, uses and removes, through the mount of the `nth` renamer.
    pub(crate) fn scratch(&self, nth: usize) -> PathBuf {
        self.mounts[nth % self.mounts.len()].join(format!("bench-{}", std::process::id()))
    }
}

/// What to do.
pub(crate) struct Options {
    pub(crate) targets: Vec<Target>,
    pub(crate) largest: usize,
    pub(crate) rounds: usize,
    pub(crate) pairs: usize,
    pub(crate) renamers: Vec<usize>,
    pub(crate) renamer_files: usize,
    pub(crate) time: Duration,
    pub(crate) svg: Option<PathBuf>,
    pub(crate) leave: bool,
    pub(crate) require_same: Option<f64>,
}

impl Options {
    /// `None` if help was asked for and given.
    pub(crate) fn from_env() -> Res<Option<Self>> {
        let mut args = Args::from_env();
        if args.take_flag("--help") || args.take_flag("-h") {
            println!("{HELP}");
            return Ok(None);
        }
        let mut renamers: Vec<usize> = Vec::new();
        for text in args.take_list("--renamers")? {
            renamers.push(text.parse().map_err(|_| format!("--renamers {text}: give numbers"))?);
        }
        if renamers.is_empty() {
            renamers = vec![1, 2, 4, 8, 16];
        }
        let seconds = args.take("--seconds")?.unwrap_or(0.4);
        let options = Self {
            targets: args.take_list("--targets")?.iter().map(|t| target(t)).collect::<Res<_>>()?,
            largest: args.take("--largest")?.unwrap_or(100_000),
            rounds: args.take("--rounds")?.unwrap_or(7),
            pairs: args.take("--pairs")?.unwrap_or(301),
            renamers,
            renamer_files: args.take("--renamer-files")?.unwrap_or(100),
            time: Duration::try_from_secs_f64(seconds).map_err(|e| format!("--seconds {seconds}: {e}"))?,
            svg: args.take("--svg")?,
            leave: args.take_flag("--leave"),
            require_same: match args.take::<String>("--require")?.as_deref().map(|r| r.strip_prefix("same="))
            {
                None => None,
                Some(Some(ratio)) => Some(ratio.parse().map_err(|_| "--require same=RATIO: give a number")?),
                Some(None) => return Err("--require: only same=RATIO".into()),
            },
        };
        args.finish()?;
        if options.targets.is_empty() {
            return Err("no --targets NAME=DIR given; see --help".into());
        }
        if [options.largest, options.rounds, options.pairs].contains(&0) || options.renamers.contains(&0) {
            return Err("--largest, --rounds, --pairs and --renamers must be at least 1".into());
        }
        Ok(Some(options))
    }

    /// 1, 10, 100, ... and the largest.
    pub(crate) fn sizes(&self) -> Vec<usize> {
        let powers = std::iter::successors(Some(1_usize), |n| n.checked_mul(10));
        powers.take_while(|n| *n < self.largest).chain([self.largest]).collect()
    }
}

fn target(text: &str) -> Res<Target> {
    let (name, dirs) = text.split_once('=').ok_or_else(|| format!("--targets {text}: give NAME=DIR"))?;
    Ok(Target { name: name.to_owned(), mounts: dirs.split(':').map(PathBuf::from).collect() })
}
