//! Recording: threads that make random calls through different mounts, stamped by one shared clock.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::model::{Call, Outcome, Place, Thing, Tree};
use super::search::Event;
use crate::common::rng::Rng;
use crate::many::Many;

const DIRS: usize = 2;
const NAMES: [&str; 2] = ["m", "n"];

/// Where the histories play, as each mount has it.
pub(super) struct Stage {
    views: Vec<View>,
    home: PathBuf,
}

struct View {
    dirs: Vec<OwnedFd>,
    /// Open all the time, so that its attributes are asked for by descriptor.
    file: File,
}

impl Stage {
    pub(super) fn new(many: &Many) -> Self {
        for dir in 0..DIRS {
            fs::create_dir(many.at(0, &format!("d{dir}"))).unwrap();
        }
        fs::write(many.at(0, "file"), b"x").unwrap();
        let view = |mount: usize| View {
            dirs: (0..DIRS)
                .map(|dir| File::open(many.at(mount, &format!("d{dir}"))).unwrap().into())
                .collect(),
            file: File::open(many.at(mount, "file")).unwrap(),
        };
        Self { views: (0..many.points.len()).map(view).collect(), home: many.points[0].clone() }
    }

    /// Records one history, from the tree that it begins with.
    pub(super) fn record(&self, seed: u64) -> (Tree, Vec<Event>) {
        let mut rng = Rng::new(seed);
        let before = self.prepare(&mut rng);
        // Each mount looks at every name first: what its kernel remembers of them is what may be wrong later.
        for view in &self.views {
            for place in places() {
                view.run(Call::Look(place));
            }
            view.run(Call::GetMode);
        }
        let threads = 2 + rng.below(3) as usize;
        let calls = 3 + rng.below(3) as usize;
        let clock = AtomicU64::new(0);
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
                        start.wait();
                        let live = |call: Call| {
                            let begun = clock.fetch_add(1, SeqCst);
                            let outcome = view.run(call);
                            Event { thread, begun, ended: clock.fetch_add(1, SeqCst), call, outcome }
                        };
                        planned.into_iter().map(live).collect::<Vec<_>>()
                    })
                })
                .collect();
            running.into_iter().for_each(|thread| events.extend(thread.join().unwrap()));
        });
        (before, with_met_renames(events))
    }

    /// Clears what the history before has left, and makes a few things.
    fn prepare(&self, rng: &mut Rng) -> Tree {
        let view = &self.views[0];
        let mut names = BTreeMap::new();
        for place in places() {
            view.run(Call::Unlink(place));
            view.run(Call::Rmdir(place));
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
    let touched = |call: Call| match call {
        Call::Mkdir(at) | Call::Rmdir(at) | Call::Create(at) | Call::Unlink(at) | Call::Look(at) => {
            vec![Some(at)]
        }
        Call::Rename(from, to) | Call::Exchange(from, to) => vec![Some(from), Some(to)],
        Call::SetMode(_) | Call::GetMode => vec![None],
    };
    let changes = |event: &Event| {
        let done = matches!(event.outcome, Outcome::Done | Outcome::File(_));
        done && !matches!(event.call, Call::Look(_) | Call::GetMode)
    };
    !changes(event)
        && events.iter().any(|other| {
            let meets = other.begun < event.ended && event.begun < other.ended;
            let mut both = touched(other.call).into_iter().filter(|at| touched(event.call).contains(at));
            meets && changes(other) && both.next().is_some()
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
