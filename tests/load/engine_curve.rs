//! How renames on many mounts add up on a shared engine, beside how single writes on as many connections do on the same
//! server in the same run. `scripts/bench engines --curve` starts the servers, mounts and runs it.
//!
//! Each mount has one renamer, which moves a directory to and fro between two directories of its own. With 1, 2, 4, ... of
//! them, slices of time take turns: renames by as many mounts, then writes of one document each by as many connections. A
//! curve is the medians of operations a second divided by that of one alone; what is judged is Lockwood's curve divided by
//! the server's. No mount is told of those writes: what the mounts do with a notice is not the server's, and costs one
//! writer that waits for it far more than eight.

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

fn together(hosts: &[Host], each: impl Fn(&Host) -> Res<f64> + Sync) -> Res<f64> {
    Ok(in_parallel("host", hosts, each)?.into_iter().sum())
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
    let mut figures = vec![(Vec::new(), Vec::new()); sizes.len()];
    together(&hosts, |host| host.rename(slice / 4))?; // So that what is used again and again is at hand.
    for _ in 0..rounds {
        for (size, (renames, writes)) in sizes.iter().zip(&mut figures) {
            renames.push(together(&hosts[..*size], |host| host.rename(slice))?);
            writes.push(together(&hosts[..*size], |host| host.write(slice))?);
        }
    }
    let alone = (median(&figures[0].0), median(&figures[0].1));
    let mut last = 0.0;
    println!("hosts  renames/s  curve  writes/s  curve  renames' of the writes'");
    for (size, (renames, writes)) in sizes.iter().zip(&figures) {
        let (renames, writes) = (median(renames), median(writes));
        let (ours, servers) = (renames / alone.0, writes / alone.1);
        last = ours / servers;
        println!("{size:>5}  {renames:>9.0}  {ours:>5.2}  {writes:>8.0}  {servers:>5.2}  {last:>22.2}");
    }
    let is_met = least.is_none_or(|least| last >= least);
    if let Some(least) = least.filter(|_| !is_met) {
        eprintln!("engine-curve: FAILED: {last:.2} of the server's curve, and at least {least} is asked for");
    }
    Ok(is_met)
}
