//! What the lock table itself costs: one lock taken and released, and the whole set of a rename that is eight
//! directories deep on both sides, with nobody in the way. `scripts/bench locks` runs it.
//!
//! Each operation is timed by itself, so the figures include reading the clock twice; medians are printed, and held to
//! the bounds that `--require one=NS,rename=NS` names, in nanoseconds.

#![allow(
    clippy::disallowed_methods,
    reason = "a program outside of the library: it may have a clock of its own"
)]

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockwood::lock::{LockError, LockId, LockSet, LockTable, Mode, Request, SessionId};

const ROUNDS: usize = 100_000;
const WARM_UP: usize = 10_000;
/// Renames of others that hold their locks meanwhile.
const OTHERS: [usize; 3] = [0, 1_000, 100_000];

fn main() -> ExitCode {
    match run() {
        Ok(missed) if missed.is_empty() => ExitCode::SUCCESS,
        Ok(missed) => {
            missed.iter().for_each(|failure| eprintln!("lock-cost: FAILED: {failure}"));
            ExitCode::FAILURE
        }
        Err(message) => {
            eprintln!("lock-cost: {message}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<Vec<String>, String> {
    let bounds = bounds()?;
    let failed = |e: LockError| e.to_string();
    let deep = "/home/clinton/projects/elasticsearch/guide/chapters/concurrency/locks/draft";
    let source = LockId::from_path(deep.as_bytes()).map_err(failed)?;
    let destination =
        LockId::from_path(format!("/archive{deep}").replace("/draft", "").as_bytes()).map_err(failed)?;
    let top = LockId::from_path(b"/clinton").map_err(failed)?;
    let mut missed = Vec::new();
    for others in OTHERS {
        let table = LockTable::new();
        let mut held = Vec::new();
        for nth in 0..others {
            let path = |name: &str| LockId::from_path(format!("/users/u{nth}/{name}").as_bytes());
            let set = LockSet::for_rename(&path("a").map_err(failed)?, &path("b").map_err(failed)?);
            held.push(table.try_acquire(request(set.map_err(failed)?)).map_err(failed)?);
        }
        let one = median_ns(&table, || LockSet::for_hold(&top, Mode::Exclusive)).map_err(failed)?;
        let rename = median_ns(&table, || LockSet::for_rename(&source, &destination)).map_err(failed)?;
        let locks = LockSet::for_rename(&source, &destination).map_err(failed)?.entries().len();
        println!(
            "{others} others: one lock {one} ns; the {locks} locks of a rename at depth 8 + 8 {rename} ns (medians)"
        );
        for (name, ns) in [("one", one), ("rename", rename)] {
            let bound = bounds.iter().find(|(bounded, _)| bounded == name);
            missed.extend(bound.filter(|(_, most)| ns > *most).map(|(_, most)| {
                format!("{name} with {others} others: {ns} ns, and at most {most} are allowed")
            }));
        }
    }
    Ok(missed)
}

/// The median time of making a set, taking it and releasing it.
fn median_ns(table: &LockTable, set: impl Fn() -> Result<LockSet, LockError>) -> Result<u128, LockError> {
    let deadline = Instant::now() + Duration::from_secs(600);
    let mut taken = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS + WARM_UP {
        let start = Instant::now();
        drop(black_box(table.acquire(request(black_box(set()?)), deadline)?));
        let ns = start.elapsed().as_nanos();
        if round >= WARM_UP {
            taken.push(ns);
        }
    }
    taken.sort_unstable();
    Ok(taken[ROUNDS / 2])
}

fn request(set: LockSet) -> Request {
    // What a rename says of itself is of the rename's making, not of the table's.
    static OPERATION: std::sync::OnceLock<Arc<str>> = std::sync::OnceLock::new();
    let operation = Arc::clone(OPERATION.get_or_init(|| "rename".into()));
    Request { session: SessionId(1), set, operation }
}

/// `--require one=1000,rename=15000`.
fn bounds() -> Result<Vec<(String, u128)>, String> {
    let mut arguments = std::env::args().skip(1);
    let Some(first) = arguments.next() else { return Ok(Vec::new()) };
    let list = if first == "--require" { arguments.next() } else { None };
    let list = list.ok_or("the only argument is --require one=NANOSECONDS,rename=NANOSECONDS")?;
    let bound = |text: &str| {
        let (name, ns) = text.split_once('=').filter(|(name, _)| ["one", "rename"].contains(name))?;
        Some((name.to_owned(), ns.parse().ok()?))
    };
    list.split(',')
        .map(|text| bound(text).ok_or_else(|| format!("--require {text}: not understood")))
        .collect()
}
