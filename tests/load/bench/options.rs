//! The arguments of the benchmark, resolved once.

use crate::common::Res;
use crate::common::args::Args;
use crate::phases::Phase;
use std::path::PathBuf;

const HELP: &str = "\
bench: measures mounted filesystems beside each other (scripts/bench mounts them)

  --targets NAME=DIR,...   directories to measure; ratios are of the first to the second
  --phases NAME,...        create stat missing unlink rename rename-across mkdir rename-dir write read open-warm readdir
                           fsync remove-tree clone build (these are the default), stat-cold; data for data-write,
                           data-read, data-read-random and data-write-random (in MiB and in pages); subtree; disjoint
  --fill DIR=N,...         first make N empty files below each of these, a thousand a directory, and leave them there;
                           without --phases that is all
  --mounts DIR,...         mounts of one store for `disjoint`: a thread each, against all threads in the first
  --threads N              threads, each in directories of its own (default 2)
  --files N                files a thread and phase (default 2000)
  --megabytes N            the length of the large file that the threads of data-* share out (default 1024)
  --rounds N               rounds that count (default 5)
  --warm-up N              rounds before, that do not (default 1)
  --subtree-files N        files below the directory of `subtree` (default 100000)
  --reps N                 renames of each kind in `subtree` (default 51)
  --require PHASE=RATIO    exit 1 if the ratio is lower; for subtree: if full/empty of the first target is higher;
                           for disjoint the ratio is of several mounts to one

Exit code: 0 measured, 1 a requirement was missed, 2 could not measure.";

/// A directory to measure in.
pub(crate) struct Target {
    /// What the table calls it.
    pub(crate) name: String,
    /// Where it is.
    pub(crate) dir: PathBuf,
}

impl Target {
    /// The directory that this process makes, uses and removes in the target.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.dir.join(format!("bench-{}", std::process::id()))
    }
}

/// A directory to fill.
pub(crate) struct Filling {
    /// Where.
    pub(crate) dir: PathBuf,
    /// With how many files.
    pub(crate) files: usize,
}

/// What to do.
pub(crate) struct Options {
    /// Before anything else.
    pub(crate) fill: Vec<Filling>,
    /// In the order given: ratios are of the first to the second.
    pub(crate) targets: Vec<Target>,
    /// Without `subtree`.
    pub(crate) phases: Vec<Phase>,
    /// Whether to measure the rename of a large subtree.
    pub(crate) subtree: bool,
    /// Whether to measure renames that have nothing to do with each other, through several mounts.
    pub(crate) disjoint: bool,
    /// The mounts for that.
    pub(crate) mounts: Vec<PathBuf>,
    /// Threads at work at once.
    pub(crate) threads: usize,
    /// Files a thread.
    pub(crate) files: usize,
    /// The length of the large file of each thread, in bytes.
    pub(crate) bytes: u64,
    /// Rounds that count.
    pub(crate) rounds: usize,
    /// Rounds that do not.
    pub(crate) warm_up: usize,
    /// Files below the moved directory.
    pub(crate) subtree_files: usize,
    /// Renames of each kind.
    pub(crate) reps: usize,
    /// Phase name and bound.
    pub(crate) require: Vec<(String, f64)>,
}

impl Options {
    /// `None` if help was asked for and given.
    pub(crate) fn from_env() -> Res<Option<Self>> {
        let mut args = Args::from_env();
        if args.take_flag("--help") || args.take_flag("-h") {
            println!("{HELP}");
            return Ok(None);
        }
        let mut names = args.take_list("--phases")?;
        let subtree = names.iter().any(|n| n == "subtree");
        let disjoint = names.iter().any(|n| n == "disjoint");
        names.retain(|n| n != "subtree" && n != "disjoint");
        let fill: Vec<Filling> = args.take_list("--fill")?.iter().map(|f| filling(f)).collect::<Res<_>>()?;
        let phases = if names.is_empty() && !subtree && !disjoint && fill.is_empty() {
            Phase::defaults()
        } else {
            names.iter().map(|n| Phase::named(n)).collect::<Res<Vec<_>>>()?.concat()
        };
        let threads = args.take("--threads")?.unwrap_or(2);
        let megabytes: u64 = args.take("--megabytes")?.unwrap_or(1024);
        let options = Self {
            fill,
            targets: args.take_list("--targets")?.iter().map(|t| target(t)).collect::<Res<_>>()?,
            phases,
            subtree,
            disjoint,
            mounts: args.take_list("--mounts")?.into_iter().map(PathBuf::from).collect(),
            threads,
            files: args.take("--files")?.unwrap_or(2000),
            bytes: (megabytes << 20) / threads.max(1) as u64,
            rounds: args.take("--rounds")?.unwrap_or(5),
            warm_up: args.take("--warm-up")?.unwrap_or(1),
            subtree_files: args.take("--subtree-files")?.unwrap_or(100_000),
            reps: args.take("--reps")?.unwrap_or(51),
            require: args.take_list("--require")?.iter().map(|r| requirement(r)).collect::<Res<_>>()?,
        };
        args.finish()?;
        options.validate()?;
        Ok(Some(options))
    }

    fn validate(&self) -> Res<()> {
        if self.disjoint && self.mounts.len() < 2 {
            return Err("--phases disjoint needs --mounts with two directories or more; see --help".into());
        }
        if self.targets.is_empty() && (self.subtree || !self.phases.is_empty()) {
            return Err("no --targets NAME=DIR given; see --help".into());
        }
        if [self.threads, self.files, self.rounds, self.reps].contains(&0) {
            return Err("--threads, --files, --rounds and --reps must be at least 1".into());
        }
        for (phase, _) in &self.require {
            let measured = if phase == "subtree" {
                self.subtree
            } else if phase == "disjoint" {
                self.disjoint
            } else {
                self.targets.len() > 1 && self.phases.iter().any(|p| p.name == phase)
            };
            if !measured {
                return Err(format!("--require {phase}: not measured; add the phase, or a second target"));
            }
        }
        Ok(())
    }
}

fn target(text: &str) -> Res<Target> {
    let (name, dir) = text.split_once('=').ok_or_else(|| format!("--targets {text}: give NAME=DIR"))?;
    Ok(Target { name: name.to_owned(), dir: PathBuf::from(dir) })
}

fn filling(text: &str) -> Res<Filling> {
    let parsed = text.rsplit_once('=').and_then(|(dir, files)| Some((dir.into(), files.parse().ok()?)));
    let (dir, files) = parsed.ok_or_else(|| format!("--fill {text}: give DIR=FILES"))?;
    Ok(Filling { dir, files })
}

fn requirement(text: &str) -> Res<(String, f64)> {
    let parsed =
        text.split_once('=').and_then(|(phase, ratio)| Some((phase.to_owned(), ratio.parse().ok()?)));
    parsed.ok_or_else(|| format!("--require {text}: give PHASE=RATIO, such as create=0.7"))
}
