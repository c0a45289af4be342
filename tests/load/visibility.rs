//! How soon a change that has returned on one host is seen on every other. `scripts/hosts` mounts the tree.
//!
//! What is hard:
//!
//! 1. A host that never looked has nothing old to show. So every host looks all the time, from before the change is made.
//! 2. A machine that is busy does not let a watcher look. What is judged is how long the *old* was still shown: until the
//!    last look, begun after the change had returned, that showed it. A watcher that did not run has shown nothing.
//! 3. Close-to-open is stricter: who opens a file after a close has returned reads what was written, without any delay, also
//!    if the file was written under another name and renamed over this one.

#![allow(clippy::disallowed_methods)] // A program outside of the library: it may have a clock of its own.

mod common;

use common::args::Args;
use common::rng::Rng;
use common::{Res, in_parallel, median, now};
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const HELP: &str = "\
visibility: how soon a change on one host is seen on every other (scripts/hosts mounts the tree)

  --mount DIR        a mount of the tree; repeat it for each host
  --rounds N         rounds; in each every kind of change is made once, by a host in turn (default 50)
  --bound-ms N       for how long the old may be shown after a change has returned (default 100)
  --seed N           the pauses before the changes

Who opens a file after a close, or after a rename over it, must read what was written at once: there the bound is 0.
Prints for each kind the median and the longest time for which a host still showed the old, and until it was seen. Exit code:
0 within the bound, 1 not so, 2 could not run.";

/// Nobody waits longer for a change to be seen.
const PATIENCE: Duration = Duration::from_secs(20);
/// A watcher rests so long between two looks, so that it leaves the machine to others.
const REST: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Create,
    Write,
    Replace,
    Rename,
    Move,
    Unlink,
}

impl Change {
    const ALL: [Self; 6] = [Self::Create, Self::Write, Self::Replace, Self::Rename, Self::Move, Self::Unlink];

    fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Write => "write and close",
            Self::Replace => "replace a file",
            Self::Rename => "rename a file",
            Self::Move => "move a directory",
            Self::Unlink => "unlink",
        }
    }

    /// For how long the old may be shown, where `bound_ms` is allowed for changes of the tree.
    fn bound_ms(self, bound_ms: f64) -> f64 {
        match self {
            Self::Write | Self::Replace => 0.0,
            Self::Create | Self::Rename | Self::Move | Self::Unlink => bound_ms,
        }
    }

    fn make(self, home: &Path, text: &str) -> std::io::Result<()> {
        match self {
            Self::Create => File::create_new(home.join("new")).map(drop),
            Self::Write => File::options()
                .write(true)
                .truncate(true)
                .open(home.join("new"))
                .and_then(|mut file| file.write_all(text.as_bytes())),
            Self::Replace => {
                fs::write(home.join("other/next"), text)?;
                fs::rename(home.join("other/next"), home.join("new"))
            }
            Self::Rename => fs::rename(home.join("new"), home.join("moved")),
            Self::Move => fs::rename(home.join("one/dir"), home.join("other/dir")),
            Self::Unlink => fs::remove_file(home.join("moved")),
        }
    }

    /// Whether the change is seen, as a whole.
    fn is_seen(self, home: &Path, text: &str) -> std::io::Result<bool> {
        let is_there = |name: &str| match fs::symlink_metadata(home.join(name)) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            // Looked up by its old name, gone before it was asked.
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => Ok(false),
            Err(error) => Err(error),
        };
        Ok(match self {
            Self::Create => is_there("new")?,
            Self::Write => {
                let mut found = String::new();
                File::open(home.join("new"))?.read_to_string(&mut found)?;
                found == text
            }
            Self::Replace => {
                let mut found = String::new();
                let mut file = File::open(home.join("new"))?;
                // What was opened before may be gone by now.
                file.read_to_string(&mut found).is_ok() && found == text
            }
            Self::Rename => is_there("moved")? && !is_there("new")?,
            Self::Move => is_there("other/dir/file")? && !is_there("one/dir/file")?,
            Self::Unlink => !is_there("moved")?,
        })
    }
}

/// What a watcher has seen of one change.
struct Seen {
    /// For how long after the return the old was still shown.
    old_for: Duration,
    /// How long after the return a look that showed the new had ended.
    new_after: Duration,
    looks_before: u64,
}

#[derive(Default)]
struct Figures {
    old_ms: Vec<f64>,
    new_ms: Vec<f64>,
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(message) => {
            eprintln!("visibility: {message}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Res<ExitCode> {
    let mut args = Args::from_env();
    if args.take_flag("--help") || args.take_flag("-h") {
        println!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    }
    let mounts: Vec<PathBuf> = args.take_list("--mount")?.into_iter().map(PathBuf::from).collect();
    let rounds: usize = args.take("--rounds")?.unwrap_or(50);
    let bound_ms: f64 = args.take("--bound-ms")?.unwrap_or(100.0);
    let seed = args.take("--seed")?.unwrap_or_else(common::fresh_seed);
    args.finish()?;
    if mounts.len() < 2 || rounds == 0 {
        return Err("two --mount DIR at least, and --rounds of at least 1; see --help".into());
    }
    let mut rng = Rng::new(seed, 0);
    let mut figures: Vec<Figures> = Change::ALL.iter().map(|_| Figures::default()).collect();
    for round in 0..rounds {
        let home = format!("visibility.{seed}.{round}");
        let actor = round % mounts.len();
        prepare(&mounts, actor, &home)?;
        for (change, figures) in Change::ALL.into_iter().zip(&mut figures) {
            let pause = Duration::from_micros(5000 + rng.below(20_000) as u64);
            let text = format!("{} of round {round}", change.name());
            for seen in once(&mounts, actor, &home, change, &text, pause)? {
                figures.old_ms.push(seen.old_for.as_secs_f64() * 1000.0);
                figures.new_ms.push(seen.new_after.as_secs_f64() * 1000.0);
                if seen.looks_before == 0 {
                    return Err(format!("{text}: a host had not looked before it was made"));
                }
            }
        }
    }
    Ok(report(&figures, mounts.len(), bound_ms, seed))
}

/// What the changes are made of, found by every host before the first of them.
fn prepare(mounts: &[PathBuf], actor: usize, home: &str) -> Res<()> {
    let made = (|| {
        let home = mounts[actor].join(home);
        ["one/dir", "other"].iter().try_for_each(|dir| fs::create_dir_all(home.join(dir)))?;
        fs::write(home.join("one/dir/file"), b"x")
    })();
    made.map_err(|error| format!("{home}: {error}"))?;
    let begun = now();
    while mounts.iter().any(|mount| !mount.join(home).join("one/dir/file").exists()) {
        if now() - begun > PATIENCE {
            return Err(format!("{home} is not seen by all hosts"));
        }
        std::thread::sleep(REST);
    }
    Ok(())
}

/// Makes one change, while all others look.
fn once(
    mounts: &[PathBuf],
    actor: usize,
    home: &str,
    change: Change,
    text: &str,
    pause: Duration,
) -> Res<Vec<Seen>> {
    let ready = Barrier::new(mounts.len());
    // When the change had returned, in nanoseconds; not yet: the end of all time.
    let returned = AtomicU64::new(u64::MAX);
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let seen = in_parallel("host", 0..mounts.len(), |host| {
        let home = mounts[host].join(home);
        if host == actor {
            ready.wait();
            std::thread::sleep(pause);
            let made = change.make(&home, text);
            returned.store(nanos(now()), SeqCst);
            return made.map(|()| None).map_err(|error| format!("{text}: {error}"));
        }
        let look = || change.is_seen(&home, text).map_err(|error| format!("{text}, host {host}: {error}"));
        let early = look();
        // Before the look is judged: the others wait for this host, whatever it has met.
        ready.wait();
        let (mut looks_before, mut old_until) = (u64::from(!early?), 0);
        let begun = now();
        loop {
            let looked = nanos(now());
            let is_seen = look()?;
            let at = nanos(now());
            let since = returned.load(SeqCst);
            if is_seen && since <= at {
                let after = |until: u64| Duration::from_nanos(until.saturating_sub(since));
                let new_after = after(at);
                return Ok(Some(Seen { old_for: after(old_until), new_after, looks_before }));
            }
            if !is_seen && looked >= since {
                old_until = looked;
            }
            looks_before += u64::from(!is_seen && since > at);
            if now() - begun > PATIENCE {
                return Err(format!("{text}: host {host} does not see it after {PATIENCE:?}"));
            }
            std::thread::sleep(REST);
        }
    })?;
    Ok(seen.into_iter().flatten().collect())
}

fn report(figures: &[Figures], hosts: usize, bound_ms: f64, seed: u64) -> ExitCode {
    let longest = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
    let mut late = Vec::new();
    for (change, Figures { old_ms, new_ms }) in Change::ALL.into_iter().zip(figures) {
        let bound = change.bound_ms(bound_ms);
        let beyond = old_ms.iter().filter(|old| **old > bound).count();
        println!(
            "visibility: {:<17} old shown for: median {:.1} ms, longest {:.1} ms; seen after: median {:.1} ms, longest \
             {:.1} ms; {} looks of {} hosts; beyond {bound} ms: {beyond}",
            change.name(),
            median(old_ms),
            longest(old_ms),
            median(new_ms),
            longest(new_ms),
            old_ms.len(),
            hosts - 1
        );
        if beyond > 0 {
            late.push(change.name());
        }
    }
    if late.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("visibility: shown beyond the bound, seed {seed}: {}", late.join(", "));
    ExitCode::FAILURE
}
