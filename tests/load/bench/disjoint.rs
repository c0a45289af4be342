//! Cross-directory renames in directories that nobody else uses, by as many threads as there are mounts: each through a
//! mount of its own, against all through one. Linux runs one such rename at a time within a mount, so the ratio is what
//! several mounts of one store are good for. Rounds of both kinds take turns.
//!
//! What several mounts can gain is what one mount leaves idle. So the CPU time of a rename is printed beside, that of this
//! program and of the daemon together: times the renames a second it is the number of CPUs that were kept busy.

use crate::common::json::Json;
use crate::common::{self, Res, median, sys};
use crate::options::Options;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// The two directories of one thread. What one kind of round uses the other never looks at, so no kernel knows more
/// than it works on.
struct Desk {
    a: OwnedFd,
    b: OwnedFd,
    names: Vec<String>,
}

impl Desk {
    fn new(scratch: &Path, name: &str, files: usize) -> io::Result<Self> {
        let dir = scratch.join(name);
        std::fs::create_dir_all(&dir)?;
        let home = sys::open_dir(&dir)?;
        sys::mkdir_at(&home, "a")?;
        sys::mkdir_at(&home, "b")?;
        let (a, b) = (sys::open_dir_at(&home, "a")?, sys::open_dir_at(&home, "b")?);
        let names: Vec<String> = (0..files).map(|i| format!("file-{i:06}")).collect();
        names.iter().try_for_each(|name| sys::create_at(&a, name).map(drop))?;
        Ok(Self { a, b, names })
    }

    /// Moves every file over and back.
    fn work(&self) -> io::Result<usize> {
        for (from, to) in [(&self.a, &self.b), (&self.b, &self.a)] {
            self.names.iter().try_for_each(|name| sys::rename_at(from, name, to, name, 0))?;
        }
        Ok(2 * self.names.len())
    }
}

/// Measures, prints, and returns what missed a requirement.
pub(crate) fn run(options: &Options) -> Res<Vec<String>> {
    let scratch = format!("bench-{}", std::process::id());
    let mounts = &options.mounts;
    let desks = |kind: &str, mount: &dyn Fn(usize) -> usize| -> Res<Vec<Desk>> {
        let made = (0..mounts.len())
            .map(|n| Desk::new(&mounts[mount(n)].join(&scratch), &format!("{kind}{n}"), options.files));
        made.collect::<io::Result<_>>()
            .map_err(|e| format!("setting up: {e}; are these mounts of one store?"))
    };
    let one = desks("one", &|_| 0)?;
    let several = desks("several", &|n| n)?;
    let (mut slow, mut fast) = (Vec::new(), Vec::new());
    let (mut slow_us, mut fast_us) = (Vec::new(), Vec::new());
    let daemon = daemon(&mounts[0])?;
    for round in 0..options.rounds + options.warm_up {
        let (first, second) = (round_of(&one, daemon)?, round_of(&several, daemon)?);
        if round >= options.warm_up {
            slow.push(first.rate);
            fast.push(second.rate);
            slow_us.push(first.cpu_us);
            fast_us.push(second.cpu_us);
        }
    }
    drop((one, several));
    let cleared = sys::remove_tree(&mounts[0].join(&scratch));
    cleared.map_err(|e| format!("cannot clear {scratch}: {e}"))?;
    let ratio = median(&fast) / median(&slow);
    let ratios = || fast.iter().zip(&slow).map(|(fast, slow)| fast / slow);
    let (low, high) = (ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max));
    println!(
        "disjoint: {0} threads, renames a second: {1:.0} over {0} mounts, {2:.0} over one; {ratio:.2} ({low:.2}..{high:.2})",
        mounts.len(),
        median(&fast),
        median(&slow)
    );
    let busy = |rates: &[f64], cpu_us: &[f64]| median(rates) * median(cpu_us) / 1e6;
    println!(
        "          CPU time of a rename: {:.1} us over {} mounts, {:.1} us over one; busy CPUs: {:.2} and {:.2}",
        median(&fast_us),
        mounts.len(),
        median(&slow_us),
        busy(&fast, &fast_us),
        busy(&slow, &slow_us)
    );
    let floors = options.require.iter().filter(|(phase, floor)| phase == "disjoint" && ratio < *floor);
    Ok(floors.map(|(_, floor)| format!("disjoint: ratio {ratio:.3} is below the required {floor}")).collect())
}

/// What a round came to.
struct Round {
    /// Operations a second of all threads together.
    rate: f64,
    /// CPU time of one operation, in microseconds.
    cpu_us: f64,
}

fn round_of(desks: &[Desk], daemon: u32) -> Res<Round> {
    let start = std::sync::Barrier::new(desks.len());
    let used_before = used_s(daemon)?;
    let spans = common::in_parallel("disjoint", desks, |desk| {
        start.wait();
        let from = common::now();
        let operations = desk.work().map_err(|e| e.to_string())?;
        Ok((from, common::now(), operations))
    })?;
    let used_s = used_s(daemon)? - used_before;
    let first = spans.iter().map(|s| s.0).min().unwrap_or_default();
    let last = spans.iter().map(|s| s.1).max().unwrap_or_default();
    let operations: usize = spans.iter().map(|s| s.2).sum();
    let rate = operations as f64 / (last - first).as_secs_f64().max(1e-9);
    Ok(Round { rate, cpu_us: used_s * 1e6 / operations as f64 })
}

/// The process that serves a mount.
fn daemon(mount: &Path) -> Res<u32> {
    let path = mount.join(".lockwood/status");
    let unusable = |what: String| format!("{}: {what}", path.display());
    let status = std::fs::read_to_string(&path).map_err(|e| unusable(e.to_string()))?;
    let Json::Object(fields) = Json::parse(&status)? else { return Err(unusable("no object".to_owned())) };
    match fields.iter().find(|(name, _)| name == "pid") {
        Some((_, Json::Number(pid))) => Ok(*pid as u32),
        _ => Err(unusable("it names no process".to_owned())),
    }
}

/// The CPU time that this process and the daemon have used so far, with what the kernel did for them.
fn used_s(daemon: u32) -> Res<f64> {
    const TICKS_PER_S: f64 = 100.0;
    let mut ticks = 0.0;
    for process in ["self".to_owned(), daemon.to_string()] {
        let path = format!("/proc/{process}/stat");
        let stat = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        // The second field is the name in parentheses, which may have spaces; utime and stime are the 14th and 15th.
        let fields = stat.rsplit(')').next().unwrap_or_default();
        let times = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
        ticks += times.sum::<Result<f64, _>>().map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(ticks / TICKS_PER_S)
}
