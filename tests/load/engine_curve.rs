//! How renames on many mounts add up on a shared engine, beside how single writes on as many connections do on the same
//! server in the same run. `scripts/bench engines --curve` starts the servers, mounts and runs it.
//!
//! Each mount has one renamer, which moves a directory to and fro between two directories of its own. With 1, 2, 4, ... of
//! them, slices of time take turns: renames by as many mounts, then writes of one document each by as many connections. A
//! curve is the medians of operations a second divided by that of one alone; what is judged is Lockwood's curve divided by
//! the server's. Beside each stands how many processors were busy meanwhile, with whatever: where all hosts and the server
//! share a few, a curve ends when these are used up, and one that alone keeps one of two busy can come to 2 at most.
//!
//! No mount is told of those writes: what the mounts do with a notice is not the server's, and costs one writer that waits
//! for it far more than eight.

#![allow(
    clippy::disallowed_methods,
    reason = "a program outside of the library: it may have a clock of its own"
)]

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use common::args::Args;
use common::{Res, in_parallel, median, now};
use lockwood::document::{Document, Key, LockRecord};
use lockwood::store::engine::{self, EngineOptions};
use lockwood::store::{Commit, Store};

const HELP: &str = "\
engine-curve: renames on many mounts beside single writes on as many connections (scripts/bench engines --curve)

  --url URL          the volume that is mounted
  --mount DIR        a mount of it; repeat it for each
  --rounds N         rounds of slices (default 7)
  --seconds S        for how long a slice lasts (default 1)
  --require R        the least that the curve of renames with all mounts may be of the server's

Exit code: 0, 1 the requirement was missed, 2 could not measure.";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("engine-curve: {error}");
            ExitCode::from(2)
        }
    }
}

/// A mount with what its renamer moves, and a connection of its own to the server.
struct Host {
    from: PathBuf,
    to: PathBuf,
    engine: Arc<dyn Store>,
    /// Where `write` writes, and what, of some hundred bytes: a lock without holders, since of that alone is nobody told.
    document: Key,
    lock: LockRecord,
}

impl Host {
    fn prepare(url: &str, mount: PathBuf, nth: u64) -> Res<Self> {
        let options =
            EngineOptions { password: None, allow_volatile: true, patience: Duration::from_secs(10) };
        let (engine, _) = engine::open(url, options).map_err(|error| error.to_string())?;
        let top = mount.join(format!("host{nth}"));
        let locked = format!("curve{nth:0>95}");
        let host = Self {
            from: top.join("from"),
            to: top.join("to"),
            engine,
            document: Key::Lock(format!("%2F{locked}").into()),
            lock: LockRecord {
                path: format!("/{locked}").into_bytes(),
                holders: Vec::new(),
                waiters: Vec::new(),
            },
        };
        for place in [host.from.join("moved"), host.to.clone()] {
            fs::create_dir_all(&place).map_err(|error| format!("making {}: {error}", place.display()))?;
        }
        Ok(host)
    }

    /// Renames a second. Each slice ends where it began.
    fn rename(&self, slice: Duration) -> Res<f64> {
        let (from, to) = (self.from.join("moved"), self.to.join("moved"));
        let (begun, mut count) = (now(), 0_u32);
        while now() - begun < slice {
            for (old, new) in [(&from, &to), (&to, &from)] {
                fs::rename(old, new).map_err(|error| format!("renaming {}: {error}", old.display()))?;
                count += 1;
            }
        }
        Ok(f64::from(count) / (now() - begun).as_secs_f64())
    }

    /// Writes of one document a second.
    fn write(&self, slice: Duration) -> Res<f64> {
        let (begun, mut count) = (now(), 0_u32);
        while now() - begun < slice {
            let document = Document::Lock(self.lock.clone());
            let commit = Commit::new().put(self.document.clone(), document).unawaited();
            self.engine.commit(&commit).map_err(|error| format!("writing {}: {error}", self.document))?;
            count += 1;
        }
        Ok(f64::from(count) / (now() - begun).as_secs_f64())
    }
}

/// What all together do in a second, and how many processors are busy meanwhile.
#[derive(Default)]
struct Figures {
    rates: Vec<f64>,
    busy: Vec<f64>,
}

impl Figures {
    fn measure(&mut self, hosts: &[Host], each: impl Fn(&Host) -> Res<f64> + Sync) -> Res<()> {
        let before = processors()?;
        self.rates.push(in_parallel("host", hosts, each)?.into_iter().sum());
        let after = processors()?;
        let part = (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64;
        self.busy.push(part * std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64));
        Ok(())
    }
}

/// The ticks that all processors have worked, and all ticks, since the machine has started.
fn processors() -> Res<(u64, u64)> {
    let text = fs::read_to_string("/proc/stat").map_err(|error| format!("/proc/stat: {error}"))?;
    let ticks: Vec<u64> =
        text.lines().next().unwrap_or_default().split_whitespace().flat_map(str::parse).take(8).collect();
    let [_, _, _, idle, waiting, ..] = ticks[..] else {
        return Err("/proc/stat says nothing of processors".into());
    };
    let all: u64 = ticks.iter().sum();
    Ok((all - idle - waiting, all))
}

fn run() -> Res<bool> {
    let mut args = Args::from_env();
    if args.take_flag("--help") {
        println!("{HELP}");
        return Ok(true);
    }
    let url: String = args.need("--url")?;
    let mounts = args.take_list("--mount")?;
    let rounds = args.take("--rounds")?.unwrap_or(7);
    let slice = Duration::from_secs_f64(args.take("--seconds")?.unwrap_or(1.0));
    let least: Option<f64> = args.take("--require")?;
    args.finish()?;
    let hosts: Vec<Host> = mounts
        .into_iter()
        .zip(0..)
        .map(|(mount, nth)| Host::prepare(&url, mount.into(), nth))
        .collect::<Res<_>>()?;
    let mut sizes: Vec<usize> = std::iter::successors(Some(1), |size| Some(size * 2))
        .take_while(|size| *size < hosts.len())
        .collect();
    sizes.push(hosts.len());
    let mut figures: Vec<_> = sizes.iter().map(|_| (Figures::default(), Figures::default())).collect();
    // So that what is used again and again is at hand.
    Figures::default().measure(&hosts, |host| host.rename(slice / 4))?;
    for _ in 0..rounds {
        for (size, (renames, writes)) in sizes.iter().zip(&mut figures) {
            renames.measure(&hosts[..*size], |host| host.rename(slice))?;
            writes.measure(&hosts[..*size], |host| host.write(slice))?;
        }
    }
    let alone = (median(&figures[0].0.rates), median(&figures[0].1.rates));
    let mut last = 0.0;
    println!("hosts  renames/s  curve   busy  writes/s  curve   busy  renames' of the writes'");
    for (size, (renames, writes)) in sizes.iter().zip(&figures) {
        let (made, written) = (median(&renames.rates), median(&writes.rates));
        let (ours, servers) = (made / alone.0, written / alone.1);
        last = ours / servers;
        println!(
            "{size:>5}  {made:>9.0}  {ours:>5.2}  {:>5.2}  {written:>8.0}  {servers:>5.2}  {:>5.2}  {last:>22.2}",
            median(&renames.busy),
            median(&writes.busy)
        );
    }
    let is_met = least.is_none_or(|least| last >= least);
    if let Some(least) = least.filter(|_| !is_met) {
        eprintln!("engine-curve: FAILED: {last:.2} of the server's curve, and at least {least} is asked for");
    }
    Ok(is_met)
}
