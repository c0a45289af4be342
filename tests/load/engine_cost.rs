//! What operations on a shared engine cost, in units of W: the median time of writing one document to the same server in
//! the same run. `scripts/bench engines` starts the servers and runs it.
//!
//! Every round measures each operation as often in a row as `--row` says, and the operations in turn, on one mount with
//! nobody in the way. In a row, since what one request after a pause takes is mostly what the processors have forgotten
//! meanwhile; not where a part of an operation is done behind the reply, for which the next one would wait. Medians are
//! printed, with the requests that one operation makes (documents asked for, pages, commits), and held to the bounds that
//! `--require set=1.3,create=2,rename=3.5` names, in W.

#![allow(
    clippy::disallowed_methods,
    reason = "a program outside of the library: it may have a clock of its own"
)]

use std::error::Error;
use std::num::NonZeroU8;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockwood::content::Chunks;
use lockwood::document::{Content, Document, Ino, Key, Name, Stored, Version};
use lockwood::lock::{LockGuard, LockId, LockSet, Request};
use lockwood::namespace::ops::make::{Make, What};
use lockwood::namespace::ops::rename::{Manner, Patience, Rename};
use lockwood::namespace::{Caller, Namespace, NamespaceError, SessionInfo, Settings};
use lockwood::store::cached::CachedStore;
use lockwood::store::cells::{Cell, CellKey, MarkedDocument};
use lockwood::store::engine::{self, EngineOptions};
use lockwood::store::{Commit, Store};

/// The program's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Of each operation at least.
const MEASURED: usize = 300;
/// So often each is done before, unless it is said.
const WARM_UP: usize = 30;
const USAGE: &str =
    "usage: engine-cost URL [--depth 2] [--row 10] [--warm-up 30] [--require set=1.3,create=2,rename=3.5]";

type Res<T> = Result<T, Box<dyn Error>>;

/// The operations, in the order of a round.
const NAMES: [&str; 7] = ["write", "set", "release", "create", "rename", "append", "unlink"];

fn main() -> ExitCode {
    match run() {
        Ok(missed) if missed.is_empty() => ExitCode::SUCCESS,
        Ok(missed) => {
            missed.iter().for_each(|failure| eprintln!("engine-cost: FAILED: {failure}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("engine-cost: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Res<Vec<String>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or(USAGE)?;
    let (mut depth, mut row, mut warm_up, mut bounds) = (2, 10_usize, WARM_UP, Vec::new());
    while let Some(option) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        match option.as_str() {
            "--depth" => depth = value.parse()?,
            "--row" => row = value.parse::<NonZeroU8>()?.get().into(),
            "--warm-up" => warm_up = value.parse()?,
            "--require" => bounds = self::bounds(&value)?,
            _ => return Err(USAGE.into()),
        }
    }
    let options = EngineOptions { password: None, allow_volatile: true, patience: Duration::from_secs(10) };
    let (engine, _) = engine::open(&url, options)?;
    let store: Arc<dyn Store> =
        Arc::new(CachedStore::new(Arc::clone(&engine), 64 << 20, Duration::from_secs(3600))?);
    let info = SessionInfo {
        host: "bench".into(),
        boot_id: "bench".into(),
        pid: std::process::id(),
        mount_point: "none".into(),
    };
    let settings = Settings { lease: Duration::from_secs(60), ..Settings::default() };
    let namespace = Namespace::join(Arc::clone(&store), Chunks::new(store), settings, info)?;
    let work = Work::prepare(&namespace, &*engine, depth, row)?;
    let mut figures = NAMES.map(|_| Vec::with_capacity(MEASURED + row));
    let mut requests = NAMES.map(|_| [0_u64; 3]);
    let warm_up = warm_up.div_ceil(row);
    for round in 0..warm_up + MEASURED.div_ceil(row) {
        let mut held = Vec::with_capacity(row);
        for (nth, name) in NAMES.iter().enumerate() {
            // The first request after a pause is nobody's to pay.
            work.operate("write", 0, &mut held)?;
            let items = round * row..(round + 1) * row;
            if *name == "rename" {
                items.clone().try_for_each(|item| work.look_at_both_names(item))?;
            }
            let before = engine.counters();
            for item in items {
                let start = Instant::now();
                work.operate(name, item, &mut held)?;
                let took = start.elapsed();
                if round >= warm_up {
                    figures[nth].push(took);
                }
            }
            await_quiet(&*engine);
            let after = engine.counters();
            if round >= warm_up {
                requests[nth][0] += after.gets - before.gets;
                requests[nth][1] += after.scans - before.scans;
                requests[nth][2] += after.commits - before.commits;
            }
        }
    }
    namespace.end()?;
    Ok(report(&mut figures, &requests, &bounds))
}

/// What operations leave to a thread behind them counts as their requests, and must not be in the way of the next ones.
fn await_quiet(engine: &dyn Store) {
    let mut before = engine.counters();
    loop {
        std::thread::sleep(Duration::from_millis(5));
        let now = engine.counters();
        if now == before {
            return;
        }
        before = now;
    }
}

fn report(
    figures: &mut [Vec<Duration>; 7],
    requests: &[[u64; 3]; 7],
    bounds: &[(String, f64)],
) -> Vec<String> {
    let mut missed = Vec::new();
    figures.iter_mut().for_each(|figures| figures.sort_unstable());
    let count = figures[0].len();
    let median = |nth: usize| figures[nth][count / 2].as_secs_f64() * 1e6;
    for (nth, name) in NAMES.iter().enumerate() {
        let each = requests[nth].map(|made| made as f64 / count as f64);
        let ratio = median(nth) / median(0);
        println!(
            "{name:<8} {:>8.0} us {ratio:>6.2} W   gets {:.2}, pages {:.2}, commits {:.2}",
            median(nth),
            each[0],
            each[1],
            each[2]
        );
        let bound = bounds.iter().find(|(bounded, _)| bounded == name);
        missed.extend(
            bound
                .filter(|(_, most)| ratio > *most)
                .map(|(_, most)| format!("{name} takes {ratio:.2} W, and at most {most} are allowed")),
        );
    }
    missed
}

/// Two chains of directories, and what is done in them.
struct Work<'a> {
    namespace: &'a Namespace,
    engine: &'a dyn Store,
    from: Ino,
    to: Ino,
    /// As many as are held in a row, with nothing in common but directories.
    sets: Vec<LockSet>,
    /// The version of the cell that `write` writes.
    written: std::cell::Cell<Option<Version>>,
}

impl<'a> Work<'a> {
    /// One document to the server. A commit over intents is several, so there it is what the server itself writes.
    fn write(&self, content: Content) -> Res<()> {
        let (key, document) = (Key::Content(Ino(u64::MAX >> 1)), Document::Content(content));
        let Some(intents) = self.engine.intents() else {
            self.engine.commit(&Commit::new().put(key, document))?;
            return Ok(());
        };
        let (cells, key) = (intents.cells(), CellKey::Document(key));
        let at = match self.written.get() {
            None => cells.read(&key)?.map(|found| found.version),
            known => known,
        };
        let before = Some(Stored { version: Version(1), document: document.into() });
        let cell = Cell::Document(MarkedDocument { before, mark: None });
        self.written.set(Some(cells.cas(&key, at, Some(cell))?));
        Ok(())
    }

    fn prepare(namespace: &'a Namespace, engine: &'a dyn Store, depth: usize, row: usize) -> Res<Self> {
        let chain = |top: &str| -> Res<(Ino, String)> {
            let (mut ino, mut path) = (Ino::ROOT, String::new());
            for level in 0..depth {
                let text = format!("{top}{level}-{}", std::process::id());
                ino = make(namespace, ino, &text, What::Directory)?;
                path = format!("{path}/{text}");
            }
            Ok((ino, path))
        };
        let ((from, source), (to, target)) = (chain("from")?, chain("to")?);
        // Of other names than the renames take, so that the set is free.
        let id = |path: String| LockId::from_path(path.as_bytes());
        let set = |nth: usize| -> Res<LockSet> {
            let (source, target) = (id(format!("{source}/set{nth}"))?, id(format!("{target}/set{nth}"))?);
            Ok(LockSet::for_rename(&source, &target)?)
        };
        let sets = (0..row).map(set).collect::<Res<Vec<_>>>()?;
        Ok(Self { namespace, engine, from, to, sets, written: std::cell::Cell::default() })
    }

    /// As a kernel does before it asks for a rename.
    fn look_at_both_names(&self, item: usize) -> Res<()> {
        self.namespace.lookup(self.from, &name(&format!("f{item}"))?)?;
        match self.namespace.lookup(self.to, &name(&format!("g{item}"))?) {
            Err(NamespaceError::NotFound) => Ok(()),
            Err(other) => Err(other.into()),
            Ok(_) => Err("what is to be renamed is there already".into()),
        }
    }

    fn operate(&self, operation: &str, item: usize, held: &mut Vec<LockGuard>) -> Res<()> {
        let (file, moved) = (name(&format!("f{item}"))?, name(&format!("g{item}"))?);
        match operation {
            "write" => self.write(Content { bytes: vec![item as u8; 100].into() })?,
            "set" => {
                let request = Request {
                    session: self.namespace.session(),
                    set: self.sets[item % self.sets.len()].clone(),
                    operation: "bench".into(),
                };
                held.push(self.namespace.locks().acquire(request, self.namespace.lock_deadline())?);
            }
            "release" => drop(held.pop()),
            "create" => drop(make(self.namespace, self.from, &format!("f{item}"), What::Regular)?),
            "rename" => {
                let rename = Rename {
                    parent: self.from,
                    name: file,
                    new_parent: self.to,
                    new_name: moved,
                    manner: Manner::Replace,
                    taken_for: None,
                };
                // As a mount does for one who is not in anybody's way.
                self.namespace.rename(Caller::ROOT, &rename, Patience::Try)?;
            }
            "append" => {
                let (ino, _) = self.namespace.lookup(self.to, &moved)?;
                self.namespace.append(ino, &[1; 8192], false)?;
            }
            _ => self.namespace.unlink(self.to, &moved)?,
        }
        Ok(())
    }
}

fn make(namespace: &Namespace, parent: Ino, text: &str, what: What) -> Res<Ino> {
    let make = Make { parent, name: &name(text)?, what, mode: 0o755, umask: 0, caller: Caller::ROOT };
    Ok(namespace.make(&make)?.0)
}

fn name(text: &str) -> Res<Name> {
    Ok(Name::new(text.as_bytes()).map_err(|error| format!("{text}: {error:?}"))?)
}

/// `set=1.3,create=2`.
fn bounds(list: &str) -> Res<Vec<(String, f64)>> {
    let bound = |text: &str| {
        let (name, most) = text.split_once('=').filter(|(name, _)| NAMES.contains(name))?;
        Some((name.to_owned(), most.parse().ok()?))
    };
    list.split(',')
        .map(|text| bound(text).ok_or_else(|| format!("--require {text}: not understood").into()))
        .collect()
}
