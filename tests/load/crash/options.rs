//! The arguments of the crash load, resolved once.

use crate::common::args::Args;
use crate::common::{self, Res};
use std::path::PathBuf;
use std::time::Duration;

const HELP: &str = "\
crash-load: changes a mounted tree until its daemon is killed, and judges what is left (scripts/crash-test does both)

  crash-load load      --mount DIR --ledger FILE [--seed N] [--threads N] [--seconds N] [--no-flags]
  crash-load judge     --mount DIR --ledger FILE [--whole-writes]
  crash-load self-test --mount DIR --ledger FILE [--seed N]

  load        works until the daemon dies or for --seconds (default 30); prints `loading`, then
              acked=N in-flight=N ended=cut|time
  judge       after a remount: everything acknowledged is there, what was in flight is there wholly or not at all
  self-test   after `judge`: alters the tree and requires the judge to object; costs a file
  --no-flags       without RENAME_EXCHANGE, for filesystems that refuse it (bindfs 1.14)
  --whole-writes   an unacknowledged write of several pages may not be there in part either

The ledger must be outside of the mount. The same ledger and tree may be loaded again after each judgement.
Exit code: 0 well, 1 the filesystem did wrong, 2 could not run.";

/// The directory in the mount in which everything happens.
pub(crate) const TREE: &str = "crash-load";

/// The directory of a thread below it.
pub(crate) fn thread_dir(thread: usize) -> String {
    format!("t{thread}")
}

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Load,
    Judge,
    SelfTest,
}

/// The arguments.
pub(crate) struct Options {
    pub(crate) mode: Mode,
    pub(crate) mount: PathBuf,
    pub(crate) ledger: PathBuf,
    pub(crate) seed: u64,
    pub(crate) threads: usize,
    pub(crate) duration: Duration,
    pub(crate) whole_writes: bool,
    pub(crate) no_flags: bool,
}

impl Options {
    /// `None` if help was asked for and given.
    pub(crate) fn from_env() -> Res<Option<Self>> {
        let mut args = Args::from_env();
        if args.take_flag("--help") || args.take_flag("-h") {
            println!("{HELP}");
            return Ok(None);
        }
        let mode = match args.take_word().as_deref() {
            Some("load") => Mode::Load,
            Some("judge") => Mode::Judge,
            Some("self-test") => Mode::SelfTest,
            _ => return Err("say load, judge or self-test first; see --help".into()),
        };
        let options = Self {
            mode,
            mount: args.need("--mount")?,
            ledger: args.need("--ledger")?,
            seed: args.take("--seed")?.unwrap_or_else(common::fresh_seed),
            threads: args.take("--threads")?.unwrap_or(4),
            duration: Duration::from_secs(args.take("--seconds")?.unwrap_or(30)),
            whole_writes: args.take_flag("--whole-writes"),
            no_flags: args.take_flag("--no-flags"),
        };
        args.finish()?;
        if options.threads == 0 || options.threads > 64 {
            return Err("--threads must be from 1 to 64".into());
        }
        Ok(Some(options))
    }
}
