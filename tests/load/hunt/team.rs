//! Two or three threads that race the moves of a round against each other, judge it and undo it.

use crate::Hunt;
use crate::common::rng::Rng;
use crate::common::{Res, now, sys};
use crate::report::{TELLING, Tally};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// A kind of round: what each side moves, and how. Of all moves together at least one must be refused, except `swap`,
/// whose two are legal one after the other.
struct Kind {
    name: &'static str,
    moves: &'static [(&'static str, &'static str)],
    exchange: bool,
    all_may_succeed: bool,
}

const fn plain(name: &'static str, moves: &'static [(&'static str, &'static str)]) -> Kind {
    Kind { name, moves, exchange: false, all_may_succeed: false }
}

const KINDS: [Kind; 5] = [
    plain(TELLING, &[("a", "b/d/e"), ("b/d", "a/c")]),
    plain("above", &[("a", "b/d/e"), ("b", "a/c")]),
    plain("lower", &[("a/x", "b/d/e"), ("b", "a/x/c")]),
    // The first exchanges two directories in different places; the second moves what is above one of them.
    Kind { name: "swap", moves: &[("a/x", "b/d"), ("b", "a/x/c")], exchange: true, all_may_succeed: true },
    plain("three", &[("a", "b/d/e"), ("b", "f/e"), ("f", "a/e")]),
];

/// Every directory of a team, each with a file `here`.
const DIRS: [&str; DIRS_LEN] = ["a", "a/x", "b", "b/d", "f"];
const DIRS_LEN: usize = 5;

/// Rounds between two walks, if nothing calls for one.
const WALK_EVERY: u64 = 64;
/// So many rounds more are made at most until each of two sides has come first: in few rounds one may have all the luck.
const MORE_ROUNDS: u64 = 100;
/// The longest lag of a side behind the barrier.
const LAG_MAX_US: usize = 60;
/// For so long a side that waits for the others keeps its processor; then it naps.
const SPINNING: Duration = Duration::from_millis(2);
const NAP: Duration = Duration::from_micros(200);
/// Nothing takes longer, unless it hangs: locks are waited for 30 s.
const PATIENCE: Duration = Duration::from_secs(120);
/// Behind this a line says so, for whoever can look at what stands still while it does.
const NOTABLE: Duration = Duration::from_secs(5);

/// What one side did: when it began, when it ended, and the errno if it was refused.
type Done = (Duration, Duration, Result<(), i32>);

/// The shared state of a team.
pub(crate) struct Team {
    number: usize,
    size: usize,
    arrived: AtomicUsize,
    generation: AtomicUsize,
    broken: AtomicBool,
    /// What the first thread has decided for the round.
    plan: Mutex<Plan>,
    /// What each side did in this round.
    done: Mutex<Vec<Option<Done>>>,
}

#[derive(Clone, Default)]
struct Plan {
    over: bool,
    kind: usize,
    /// The directory of the team; a new one after each loop.
    home: String,
    /// The mount of each side.
    mounts: Vec<usize>,
    lags_us: Vec<usize>,
}

impl Team {
    pub(crate) fn new(number: usize, size: usize) -> Self {
        Self {
            number,
            size,
            arrived: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            plan: Mutex::default(),
            done: Mutex::new(vec![None; size]),
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The life of one side. The first side plans, judges and undoes.
    pub(crate) fn run(&self, hunt: &Hunt, side: usize) -> Res<Tally> {
        let outcome = self.live(hunt, side);
        if let Err(error) = &outcome {
            eprintln!("loop-hunt: side {side} of team {}: {error}", self.number);
            self.broken.store(true, SeqCst);
            hunt.over.store(true, SeqCst);
        }
        outcome
    }

    fn live(&self, hunt: &Hunt, side: usize) -> Res<Tally> {
        let mut tally = Tally::default();
        let mut rng = Rng::new(hunt.options.seed, self.number as u64);
        let roots: Vec<OwnedFd> = hunt
            .options
            .mounts
            .iter()
            .map(|m| sys::open_dir(m).map_err(|e| format!("{}: {e}", m.display())))
            .collect::<Res<_>>()?;
        let mut homes = 0;
        // The team's directory through each mount; it never moves.
        let mut views: Vec<OwnedFd> = Vec::new();
        let mut viewed = String::new();
        let mut home = String::new();
        loop {
            if side == 0 {
                if home.is_empty() {
                    home = format!("team-{}-{}-{homes}", std::process::id(), self.number);
                    homes += 1;
                    make(&roots[0], &home).map_err(|e| format!("making {home}: {e}"))?;
                }
                *lock(&self.plan)? = self.next(hunt, &mut rng, &home);
            }
            self.meet()?;
            let plan = lock(&self.plan)?.clone();
            if plan.over {
                return Ok(tally);
            }
            let kind = &KINDS[plan.kind];
            if viewed != plan.home {
                let opened = roots.iter().map(|root| sys::open_dir_at(root, &plan.home));
                views = opened.collect::<io::Result<_>>().map_err(|e| format!("{}: {e}", plan.home))?;
                viewed.clone_from(&plan.home);
            }
            self.meet()?;
            if let Some((from, to)) = kind.moves.get(side) {
                let dir = &views[plan.mounts[side]];
                lag(plan.lags_us[side]);
                let begun = now();
                let flags = if kind.exchange && side == 0 { libc::RENAME_EXCHANGE } else { 0 };
                let moved = sys::rename_at(dir, from, dir, to, flags);
                let moved = moved.map_err(|e| e.raw_os_error().unwrap_or_default());
                lock(&self.done)?[side] = Some((begun, now(), moved));
            }
            self.meet()?;
            if side == 0 {
                let done: Vec<_> = lock(&self.done)?.iter_mut().filter_map(Option::take).collect();
                let looker = &views[rng.below(views.len())];
                if !judge(&plan, &done, looker, &mut tally, hunt)? {
                    home.clear();
                }
            }
        }
    }

    /// The next round, or the end.
    fn next(&self, hunt: &Hunt, rng: &mut Rng, home: &str) -> Plan {
        let options = &hunt.options;
        let round = hunt.rounds.fetch_add(1, SeqCst);
        let is_enough = options.expect_loops || hunt.came_first.iter().all(|first| first.load(SeqCst));
        let most = options.rounds + if is_enough { 0 } else { MORE_ROUNDS };
        let over = round >= most || hunt.over.load(SeqCst) || now() > options.duration;
        // The script of the issue itself makes half of the rounds.
        let kind = if rng.chance(50) {
            0
        } else {
            rng.below(if self.size > 2 { KINDS.len() } else { KINDS.len() - 1 })
        };
        let mut mounts: Vec<usize> = (0..options.mounts.len()).collect();
        for at in (1..mounts.len()).rev() {
            mounts.swap(at, rng.below(at + 1));
        }
        let lags_us =
            (0..self.size).map(|_| if rng.chance(50) { 0 } else { rng.below(LAG_MAX_US) }).collect();
        Plan { over, kind, home: home.to_owned(), mounts, lags_us }
    }

    /// A barrier that spins, so that all leave it at the same moment, and that ends when a member has failed. Who waits for
    /// long leaves the processor to those that are waited for: a round has another barrier behind that one.
    fn meet(&self) -> Res<()> {
        let generation = self.generation.load(SeqCst);
        if self.arrived.fetch_add(1, SeqCst) + 1 == self.size {
            self.arrived.store(0, SeqCst);
            self.generation.store(generation + 1, SeqCst);
            return Ok(());
        }
        let begun = now();
        let mut spins = 0u32;
        let mut said = false;
        while self.generation.load(SeqCst) == generation {
            if self.broken.load(SeqCst) {
                return Err("another side of the team has failed".into());
            }
            if now() - begun > PATIENCE {
                return Err(format!("another side of the team has hung for {PATIENCE:?}"));
            }
            if !said && now() - begun > NOTABLE {
                said = true;
                eprintln!("loop-hunt: team {} has waited for one of its sides for {NOTABLE:?}", self.number);
            }
            spins += 1;
            match spins {
                ..200 => std::hint::spin_loop(),
                _ if now() - begun < SPINNING => std::thread::yield_now(),
                _ => std::thread::sleep(NAP),
            }
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> Res<std::sync::MutexGuard<'_, T>> {
    mutex.lock().map_err(|_| "another side of the team panicked".into())
}

fn lag(us: usize) {
    let until = now() + Duration::from_micros(us as u64);
    while now() < until {
        std::hint::spin_loop();
    }
}

fn make(root: &OwnedFd, home: &str) -> io::Result<()> {
    sys::mkdir_at(root, home)?;
    let home = sys::open_dir_at(root, home)?;
    for dir in DIRS {
        sys::mkdir_at(&home, dir)?;
        sys::create_at(sys::open_dir_at(&home, dir)?, "here")?;
    }
    Ok(())
}

/// Judges a round and puts everything back. False when the team needs a new place.
fn judge(plan: &Plan, done: &[Done], home: &OwnedFd, tally: &mut Tally, hunt: &Hunt) -> Res<bool> {
    let kind = &KINDS[plan.kind];
    tally.rounds += 1;
    let last_begin = done.iter().map(|d| d.0).max().unwrap_or_default();
    let first_end = done.iter().map(|d| d.1).min().unwrap_or_default();
    tally.overlapped += u64::from(last_begin < first_end);
    let longest = done.iter().map(|d| d.1.saturating_sub(d.0)).max().unwrap_or_default();
    tally.move_longest = tally.move_longest.max(longest);
    let winners: Vec<usize> = (0..done.len()).filter(|side| done[*side].2.is_ok()).collect();
    let named = winners.iter().map(usize::to_string).collect::<Vec<_>>().join("+");
    *tally.winners.entry((kind.name, named)).or_default() += 1;
    if let [winner] = winners[..]
        && kind.name == TELLING
        && let Some(first) = hunt.came_first.get(winner)
    {
        first.store(true, SeqCst);
    }
    for errno in done.iter().filter_map(|d| d.2.err()) {
        *tally.refusals.entry(sys::errno_name(errno)).or_default() += 1;
    }
    let loops = winners.len() == done.len() && !kind.all_may_succeed;
    if loops || winners.len() != 1 || tally.rounds.is_multiple_of(WALK_EVERY) {
        tally.walks += 1;
        let complete = |found: &io::Result<_>| matches!(found, Ok((DIRS_LEN, DIRS_LEN)));
        let found = settled(hunt, tally, || count(home, 0), complete);
        let found = found.map_err(|e| format!("walking {}: {e}", plan.home))?;
        if loops || found != (DIRS_LEN, DIRS_LEN) {
            tally.loops += 1;
            let what = format!("{} by {winners:?}: {found:?} directories and files are left", kind.name);
            tally.violations.push(format!("{}, {what}, of {}", plan.home, DIRS.len()));
            hunt.over.store(!hunt.options.expect_loops || tally.loops >= 10, SeqCst);
            return Ok(false);
        }
    }
    // Undone last to first. Where two have succeeded, one of them takes away what the other needs, so it came second.
    let order = if winners == [0, 2] { vec![0, 2] } else { winners.into_iter().rev().collect() };
    for side in order {
        let (from, to) = kind.moves[side];
        let flags = if kind.exchange && side == 0 { libc::RENAME_EXCHANGE } else { 0 };
        let undo = || {
            // A move cannot name a directory that another mount has moved before this one has looked at it there; an
            // exchange names two.
            for name in [to, from] {
                let _ = sys::stat_at(home, name);
            }
            sys::rename_at(home, to, home, from, flags)
        };
        let undone = settled(hunt, tally, undo, io::Result::is_ok);
        if let Err(error) = undone {
            tally.violations.push(format!("{}: {to} cannot be moved back to {from}: {error}", plan.home));
            hunt.over.store(true, SeqCst);
            return Ok(false);
        }
    }
    Ok(true)
}

/// Tries again while what came of it is one that a stale look explains: ESTALE for a moment, and anything for as long as
/// the mounts may show what was. What a try has found in the end it may have found when it began.
fn settled<T>(
    hunt: &Hunt,
    tally: &mut Tally,
    mut attempt: impl FnMut() -> io::Result<T>,
    is_good: impl Fn(&io::Result<T>) -> bool,
) -> io::Result<T> {
    let begun = now();
    loop {
        let waited = now() - begun;
        let outcome = attempt();
        let is_estale = outcome.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::ESTALE));
        let patience = if is_estale { hunt.options.estale } else { hunt.options.coherence };
        if is_good(&outcome) || waited >= patience {
            return outcome;
        }
        tally.stale += 1;
        tally.stale_longest = tally.stale_longest.max(waited);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// How many directories and files are below.
fn count(dir: &OwnedFd, depth: usize) -> io::Result<(usize, usize)> {
    let (mut dirs, mut files) = (0, 0);
    for (name, kind) in sys::read_dir(dir)? {
        if kind != libc::DT_DIR {
            files += 1;
        } else if depth < 16 {
            let below = count(&sys::open_dir_at(dir, &name)?, depth + 1)?;
            (dirs, files) = (dirs + 1 + below.0, files + below.1);
        }
    }
    Ok((dirs, files))
}
