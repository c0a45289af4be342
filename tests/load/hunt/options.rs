//! The arguments of the loop hunt, resolved once.

use crate::common::args::Args;
use crate::common::{self, Res};
use std::path::PathBuf;
use std::time::Duration;

const HELP: &str = "\
loop-hunt: moves that would cut a loop off the root together, through several mounts (scripts/loop-hunt mounts them)

  --mount DIR       a mount of the store; repeat it, 2 to 8 times
  --rounds N        rounds in all (default 100000), and at most 100 more until each of two sides has come first
  --seconds N       ends earlier when the time is over (default 3600)
  --seed N          replays the choices of a run
  --teams N         so many times as many teams (default 1): for stores on which a round is mostly waiting
  --expect-loops    the rules are switched off: succeed when a loop is found, fail when none is
  --coherence-ms N  for so long a mount may show what was before another mount changed it (default 0)
  --estale-ms N     for so long ESTALE is met by looking again (default 500): a kernel refuses looks at directories that
                    were moved while a rename runs in that mount, which takes longer where the store is slow
  --plain           DIRs are any views of one directory: leave out what needs lockwood

Exit code: 0 nothing lost and the moves met (or loops found where expected), 1 not so, 2 could not run.";

/// What to do.
pub(crate) struct Options {
    pub(crate) mounts: Vec<PathBuf>,
    pub(crate) rounds: u64,
    pub(crate) duration: Duration,
    pub(crate) seed: u64,
    times: usize,
    pub(crate) expect_loops: bool,
    pub(crate) plain: bool,
    pub(crate) coherence: Duration,
    /// A kernel that has a directory where it was refuses to rename it until a look has found it where it is, and refuses
    /// the look while a rename between directories runs in that mount (docs/semantics.md). mv(1) looks before each rename.
    pub(crate) estale: Duration,
}

impl Options {
    /// `None` if help was asked for and given.
    pub(crate) fn from_env() -> Res<Option<Self>> {
        let mut args = Args::from_env();
        if args.take_flag("--help") || args.take_flag("-h") {
            println!("{HELP}");
            return Ok(None);
        }
        let options = Self {
            mounts: args.take_list("--mount")?.into_iter().map(PathBuf::from).collect(),
            rounds: args.take("--rounds")?.unwrap_or(100_000),
            duration: Duration::from_secs(args.take("--seconds")?.unwrap_or(3600)),
            seed: args.take("--seed")?.unwrap_or_else(common::fresh_seed),
            times: args.take("--teams")?.unwrap_or(1),
            expect_loops: args.take_flag("--expect-loops"),
            plain: args.take_flag("--plain"),
            coherence: Duration::from_millis(args.take("--coherence-ms")?.unwrap_or(0)),
            estale: Duration::from_millis(args.take("--estale-ms")?.unwrap_or(500)),
        };
        args.finish()?;
        if !(2..=8).contains(&options.mounts.len()) {
            return Err("give --mount DIR 2 to 8 times; see --help".into());
        }
        if options.rounds == 0 || options.times == 0 {
            return Err("--rounds and --teams must be at least 1".into());
        }
        Ok(Some(options))
    }

    /// How many threads each team has: as many threads as mounts (or some times as many), in teams of two, and one of three
    /// if there are more than two mounts.
    pub(crate) fn teams(&self) -> Vec<usize> {
        let once = match self.mounts.len() {
            2 => vec![2],
            3 => vec![3],
            more if more % 2 == 1 => [vec![3], vec![2; (more - 3) / 2]].concat(),
            more => [vec![3], vec![2; (more - 2) / 2]].concat(),
        };
        once.repeat(self.times)
    }
}
