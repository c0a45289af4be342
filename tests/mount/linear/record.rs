//! Recording: threads that make random calls through different mounts, stamped by one shared clock: nanoseconds, no two
//! alike.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::model::{Call, Outcome, Place, Thing, Tree};
use super::rng::Rng;
use super::search::Event;

const DIRS: usize = 2;
const NAMES: [&str; 2] = ["m", "n"];

/// Where the histories play, as each mount has it.
pub(super) struct Stage {
    views: Vec<View>,
    home: PathBuf,
}

/// How a history is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// How many calls a thread makes: from this number to two more.
    pub(super) calls: u64,
    /// The longest pause before a call.
    pub(super) pause: Duration,
}

impl Pace {
    /// As fast as can be.
    pub(super) const FAST: Self = Self { calls: 3, pause: Duration::ZERO };
}

/// The clock of a history.
struct Stamps {
    origin: Instant,
    last: Mutex<u64>,
}

impl Stamps {
    #[allow(clippy::disallowed_methods, reason = "how long it took is what is judged")]
    fn new() -> Self {
        Self { origin: Instant::now(), last: Mutex::new(0) }
    }

    fn next(&self) -> u64 {
        let now = u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut last = self.last.lock();
        *last = now.max(*last + 1);
        *last
    }
}

struct View {
    dirs: Vec<OwnedFd>,
    /// Open all the time, so that its attributes are asked for by descriptor.
    file: File,
}

impl Stage {
    /// A new directory of this name, made through the first of the mounts and found by all.
    pub(super) fn new(points: &[PathBuf], name: &str) -> Self {
        let home = points[0].join(name);
        fs::create_dir(&home).unwrap();
        Self::make(&home);
        let views = points.iter().map(|point| View::open(&point.join(name)).unwrap()).collect();
        Self { views, home }
    }

    fn make(home: &Path) {
        for dir in 0..DIRS {
            fs::create_dir(home.join(format!("d{dir}"))).unwrap();
        }
        fs::write(home.join("file"), b"x").unwrap();
    }

    /// Records one history in a new directory of this name, through mounts of several hosts: from the tree that it begins
    /// with, which each host finds within `within`, as it was before any of them had looked.
    ///
    /// # Panics
    /// When a host does not find the directory in time.
    pub(super) fn record_apart(
        points: &[PathBuf],
        name: &str,
        seed: u64,
        pace: Pace,
        within: Duration,
    ) -> (Tree, Vec<Event>) {
        let mut rng = Rng::new(seed);
        let home = points[0].join(name);
        fs::create_dir(&home).unwrap();
        Self::make(&home);
        let mut stage = Self { views: vec![View::open(&home).unwrap()], home };
        let before = stage.prepare(&mut rng);
        let stamps = Stamps::new();
        for point in &points[1..] {
            stage.views.push(loop {
                match View::open(&point.join(name)) {
                    Ok(view) => break view,
                    Err(_) if stamps.origin.elapsed() < within => {
                        std::thread::sleep(Duration::from_millis(5))
                    }
                    Err(error) => {
                        panic!("{name} is not found at {} after {within:?}: {error}", point.display())
                    }
                }
            });
        }
        let events = stage.play(&mut rng, pace);
        (before, events)
    }

    /// Records one history, from the tree that it begins with.
    pub(super) fn record(&self, seed: u64) -> (Tree, Vec<Event>) {
        let mut rng = Rng::new(seed);
        let before = self.prepare(&mut rng);
        self.require(&before);
        let events = self.play(&mut rng, Pace::FAST);
        (before, with_met_renames(events))
    }

    /// Nothing is under way, so every mount must show what is there.
    fn require(&self, tree: &Tree) {
        for (mount, view) in self.views.iter().enumerate() {
            for place in places() {
                let there = match tree.names.get(&place) {
                    None => Outcome::Absent,
                    Some(Thing::Directory) => Outcome::Directory,
                    Some(Thing::File(ino)) => Outcome::File(*ino),
                };
                let seen = view.run_quietly(Call::Look(place));
                assert_eq!(seen, there, "{place:?} through mount {mount}, while nothing is under way");
            }
        }
    }

    fn play(&self, rng: &mut Rng, pace: Pace) -> Vec<Event> {
        // Each mount looks at every name first: what its kernel remembers of them is what may be wrong later.
        for view in &self.views {
            for place in places() {
                view.run(Call::Look(place));
            }
            view.run(Call::GetMode);
        }
        let threads = 2 + rng.below(3) as usize;
        let calls = (pace.calls + rng.below(3)) as usize;
        let clock = Stamps::new();
        let start = Barrier::new(threads);
        let seeds: Vec<u64> = (0..threads).map(|_| rng.next()).collect();
        let mut events = Vec::new();
        std::thread::scope(|scope| {
            let running: Vec<_> = seeds
                .into_iter()
                .enumerate()
                .map(|(thread, seed)| {
                    let (view, clock, start) = (&self.views[thread % self.views.len()], &clock, &start);
                    scope.spawn(move || {
                        let mut rng = Rng::new(seed);
                        let planned: Vec<Call> = (0..calls).map(|_| draw(&mut rng)).collect();
                        let pauses: Vec<Duration> =
                            (0..calls).map(|_| pace.pause.mul_f64(rng.below(1000) as f64 / 1000.0)).collect();
                        start.wait();
                        let live = |(call, pause): (Call, Duration)| {
                            std::thread::sleep(pause);
                            let begun = clock.next();
                            let outcome = view.run(call);
                            Event {
                                thread,
                                begun,
                                ended: clock.next(),
                                call,
                                outcome,
                                told: outcome,
                                after: 0,
                            }
                        };
                        planned.into_iter().zip(pauses).map(live).collect::<Vec<_>>()
                    })
                })
                .collect();
            running.into_iter().for_each(|thread| events.extend(thread.join().unwrap()));
        });
        events
    }

    /// Clears what the history before has left, and makes a few things.
    fn prepare(&self, rng: &mut Rng) -> Tree {
        let view = &self.views[0];
        let mut names = BTreeMap::new();
        for place in places() {
            view.run_quietly(Call::Unlink(place));
            view.run_quietly(Call::Rmdir(place));
            match rng.below(3) {
                0 => {
                    assert_eq!(view.run(Call::Mkdir(place)), Outcome::Done);
                    names.insert(place, Thing::Directory);
                }
                1 => {
                    let Outcome::File(ino) = view.run(Call::Create(place)) else {
                        panic!("{place:?} was cleared")
                    };
                    names.insert(place, Thing::File(ino));
                }
                _ => {}
            }
        }
        let mode = 0o600 + rng.below(8) as u32;
        assert_eq!(view.run(Call::SetMode(mode)), Outcome::Done, "in {}", self.home.display());
        Tree { names, mode }
    }
}

/// Marks renames that met another one at their target; see [`Outcome::DoneOrMet`].
fn with_met_renames(events: Vec<Event>) -> Vec<Event> {
    let places = |event: &Event| match (event.call, event.outcome) {
        (Call::Rename(from, to) | Call::Exchange(from, to), Outcome::Done) => Some([from, to]),
        _ => None,
    };
    let met = |event: &Event| {
        let Some([_, target]) = places(event) else { return false };
        events.iter().any(|other| {
            let meets = other.begun < event.ended && event.begun < other.ended;
            meets && other.thread != event.thread && places(other).is_some_and(|at| at.contains(&target))
        })
    };
    let outcome = |event: &Event| match event.outcome {
        _ if met(event) => Outcome::DoneOrMet,
        _ if looks_at_what_changes(event, &events) => Outcome::Early,
        other => other,
    };
    events.iter().map(|event| Event { outcome: outcome(event), ..event.clone() }).collect()
}

/// Whether an event changed nothing and was told of what another was changing at that moment.
fn looks_at_what_changes(event: &Event, events: &[Event]) -> bool {
    let changes = |event: &Event| event.call.changes(event.outcome);
    !changes(event)
        && events.iter().any(|other| {
            let meets = other.begun < event.ended && event.begun < other.ended;
            let touched = event.call.touches();
            meets && changes(other) && other.call.touches().iter().any(|at| touched.contains(at))
        })
}

fn places() -> impl Iterator<Item = Place> {
    (0..DIRS).flat_map(|dir| (0..NAMES.len()).map(move |name| (dir, name)))
}

fn draw(rng: &mut Rng) -> Call {
    let place = |rng: &mut Rng| (rng.below(DIRS as u64) as usize, rng.below(NAMES.len() as u64) as usize);
    let one = place(rng);
    match rng.below(16) {
        0 | 1 => Call::Mkdir(one),
        2 => Call::Rmdir(one),
        3 | 4 => Call::Create(one),
        5 => Call::Unlink(one),
        6..=8 => Call::Rename(one, place(rng)),
        9 => Call::Exchange(one, place(rng)),
        10 => Call::SetMode(0o600 + rng.below(64) as u32),
        11 | 12 => Call::GetMode,
        _ => Call::Look(one),
    }
}

impl View {
    fn open(home: &Path) -> std::io::Result<Self> {
        let dir = |dir: usize| File::open(home.join(format!("d{dir}"))).map(OwnedFd::from);
        let dirs = (0..DIRS).map(dir).collect::<Result<_, _>>()?;
        Ok(Self { dirs, file: File::open(home.join("file"))? })
    }

    fn run(&self, call: Call) -> Outcome {
        self.attempt(call).unwrap_or_else(|errno| match (errno, call) {
            (Errno::NOENT, _) => Outcome::Absent,
            (Errno::EXIST, Call::Mkdir(_) | Call::Create(_)) => Outcome::Exists,
            (Errno::NOTDIR, Call::Rmdir(_)) | (Errno::ISDIR, Call::Unlink(_)) => Outcome::WrongKind,
            (Errno::NOTDIR | Errno::ISDIR, Call::Rename(..)) | (Errno::STALE, _) => {
                Outcome::Refused(errno.raw_os_error())
            }
            _ => panic!("{call:?}: {errno}"),
        })
    }

    /// The same while nothing is under way. The kernel may still be letting go of names of the history before, and refuses
    /// what meets that (see [`Outcome::Refused`]).
    fn run_quietly(&self, call: Call) -> Outcome {
        for _ in 0..5000 {
            match self.run(call) {
                Outcome::Refused(_) => std::thread::sleep(Duration::from_millis(1)),
                outcome => return outcome,
            }
        }
        panic!("{call:?} is refused for long, while nothing is under way");
    }

    fn attempt(&self, call: Call) -> Result<Outcome, Errno> {
        let at = |(dir, name): Place| (self.dirs[dir].as_fd(), NAMES[name]);
        match call {
            Call::Mkdir(place) => rustix::fs::mkdirat(at(place).0, at(place).1, Mode::from(0o755))?,
            Call::Rmdir(place) => rustix::fs::unlinkat(at(place).0, at(place).1, AtFlags::REMOVEDIR)?,
            Call::Unlink(place) => rustix::fs::unlinkat(at(place).0, at(place).1, AtFlags::empty())?,
            Call::Create(place) => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
                let file = rustix::fs::openat(at(place).0, at(place).1, flags, Mode::from(0o644))?;
                return Ok(Outcome::File(rustix::fs::fstat(&file)?.st_ino));
            }
            Call::Rename(from, to) => rustix::fs::renameat(at(from).0, at(from).1, at(to).0, at(to).1)?,
            Call::Exchange(from, to) => {
                let flags = RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(at(from).0, at(from).1, at(to).0, at(to).1, flags)?;
            }
            Call::Look(place) => {
                let seen = rustix::fs::statat(at(place).0, at(place).1, AtFlags::SYMLINK_NOFOLLOW)?;
                let is_directory = seen.st_mode & libc::S_IFMT == libc::S_IFDIR;
                return Ok(if is_directory { Outcome::Directory } else { Outcome::File(seen.st_ino) });
            }
            Call::SetMode(mode) => rustix::fs::fchmod(&self.file, Mode::from(mode))?,
            Call::GetMode => return Ok(Outcome::Mode(rustix::fs::fstat(&self.file)?.st_mode & 0o7777)),
        }
        Ok(Outcome::Done)
    }
}
