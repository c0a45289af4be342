//! The world of one simulation: time, hosts, cells, requests under way, and the judge.
//!
//! Imports the port and the memory engine. What is hard: the calls of the real code come from coroutines, through ports
//! that know nothing of them. [`HERE`] says which coroutine of this thread has the turn; code outside of any (setting up,
//! looking at the end) has the world for itself.

use std::cell::Cell as Local;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use corosensei::Yielder;
use lockwood::document::Version;
use lockwood::store::StoreError;
use lockwood::store::cells::memory::MemoryCells;
use lockwood::store::cells::{CasError, Cell, CellKey, Cells, StoredCell};
use parking_lot::Mutex;

use super::cells::{show, show_cell};
use super::{Count, Counts, Faults};
use crate::rng::Rng;

/// A simulated host, by its place in the table.
pub(crate) type HostId = usize;

/// When an actor wants the turn again, in true nanoseconds.
pub(super) type WakeAt = u64;

/// The actor that has the turn in this thread.
#[derive(Clone, Copy)]
pub(super) struct Here {
    pub(super) actor: usize,
    pub(super) yielder: *const Yielder<(), WakeAt>,
}

thread_local! {
    pub(super) static HERE: Local<Option<Here>> = const { Local::new(None) };
    /// The number of the operation that the actor with the turn is at; the scheduler keeps one for each.
    pub(super) static OPERATION: Local<u64> = const { Local::new(0) };
}

/// A judge sees every change of a cell at the instant at which it is made.
pub(crate) trait Judge: Send {
    /// Objects with what is wrong.
    fn changed(&mut self, change: &Change<'_>, cells: &MemoryCells) -> Result<(), String>;

    /// Counts what it has seen.
    fn count(&self, counts: &mut Counts);
}

/// A change of a cell.
pub(crate) struct Change<'a> {
    pub(crate) request: &'a Request,
    pub(crate) before: Option<&'a StoredCell>,
}

/// A compare-and-set under way, with who sent it.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) actor: Option<usize>,
    /// What the actor was at when it sent it.
    pub(crate) operation: u64,
    pub(crate) key: CellKey,
    pub(crate) expected: Option<Version>,
    pub(crate) cell: Option<Cell>,
}

impl Request {
    pub(super) fn new(key: CellKey, expected: Option<Version>, cell: Option<Cell>) -> Self {
        let actor = HERE.get().map(|here| here.actor);
        Self { actor, operation: OPERATION.get(), key, expected, cell }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell = self.cell.as_ref().map_or("nothing".into(), show_cell);
        write!(f, "cas {:?} from {:?} to {cell}", self.key, self.expected.map(|version| version.0))
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Done,
    Duplicated,
    Unanswered,
    Late,
    Lost,
}

/// A simulated host.
#[derive(Clone, Debug)]
pub(super) struct Host {
    /// Thousandths of true time.
    rate: u64,
    /// What jumps and sleeps of the dead have added.
    ahead_ns: u64,
    pub(super) paused_until_ns: u64,
    pub(super) dead: bool,
    calls_after_death: u32,
}

impl Host {
    pub(super) fn jump(&mut self, ns: u64) {
        self.ahead_ns += ns;
    }
}

pub(super) struct Inner {
    pub(super) rng: Rng,
    pub(super) faults: Faults,
    pub(super) now_ns: u64,
    pub(super) hosts: Vec<Host>,
    pub(super) late: Vec<Request>,
    pub(super) counts: Counts,
    pub(super) violation: Option<String>,
    digest: u64,
    trace: Option<Vec<String>>,
}

/// The world.
pub(crate) struct World {
    pub(super) cells: MemoryCells,
    pub(super) inner: Mutex<Inner>,
    judge: Arc<Mutex<dyn Judge>>,
}

impl World {
    /// A world of so many hosts, whose clocks run at rates that are off by so many thousandths at most. Nothing goes wrong
    /// in it before [`World::begin`].
    pub(crate) fn new(
        mut rng: Rng,
        clock_drift: u64,
        hosts: usize,
        judge: Arc<Mutex<dyn Judge>>,
        trace: bool,
    ) -> Arc<Self> {
        let hosts = (0..hosts).map(|_| Host {
            rate: 1_000 - clock_drift + rng.below(2 * clock_drift + 1),
            ahead_ns: rng.below(1 << 40),
            paused_until_ns: 0,
            dead: false,
            calls_after_death: 0,
        });
        let hosts = hosts.collect();
        let inner = Inner {
            rng,
            faults: Faults::none(),
            now_ns: 0,
            hosts,
            late: Vec::new(),
            counts: Counts::default(),
            violation: None,
            digest: 0xcbf2_9ce4_8422_2325,
            trace: trace.then(Vec::new),
        };
        Arc::new(Self { cells: MemoryCells::new(), inner: Mutex::new(inner), judge })
    }

    /// From here on things go wrong.
    pub(crate) fn begin(&self, faults: Faults) {
        self.inner.lock().faults = faults;
    }

    /// A random number below `bound`, from the stream of the simulation.
    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.inner.lock().rng.below(bound)
    }

    /// Whether something that happens so many times in a thousand happens now. Never outside of actors.
    pub(super) fn chance(&self, host: HostId, per_thousand: u64) -> bool {
        let mut inner = self.inner.lock();
        HERE.get().is_some() && !inner.hosts[host].dead && inner.rng.below(1_000) < per_thousand
    }

    /// Whether nobody has a reason to declare anybody dead.
    pub(crate) fn is_calm(&self) -> bool {
        self.inner.lock().faults.calm
    }

    pub(crate) fn count(&self, what: Count) {
        self.inner.lock().counts.add(what);
    }

    /// What happened so often.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = self.inner.lock().counts.clone();
        self.judge.lock().count(&mut counts);
        counts
    }

    /// A hash over every event so far.
    pub(crate) fn digest(&self) -> u64 {
        self.inner.lock().digest
    }

    /// What happened, line by line, if this world keeps a trace.
    pub(crate) fn take_trace(&self) -> Vec<String> {
        self.inner.lock().trace.take().unwrap_or_default()
    }

    /// Objects: the simulation ends here.
    pub(crate) fn object(&self, what: String) {
        let mut inner = self.inner.lock();
        if inner.violation.is_none() {
            inner.note(|| format!("VIOLATION: {what}"));
            inner.violation = Some(what);
        }
    }

    /// Records an event: its line for a trace, and numbers for the digest.
    pub(crate) fn event(&self, line: impl FnOnce() -> String, numbers: impl FnOnce(&mut dyn FnMut(u64))) {
        let line = if self.inner.lock().trace.is_some() { Some(line()) } else { None };
        let mut inner = self.inner.lock();
        let mut digest = inner.digest;
        numbers(&mut |number| digest = mix(digest, number));
        inner.digest = mix(digest, HERE.get().map_or(0, |here| here.actor as u64 + 1));
        if let Some(line) = line {
            inner.note(|| line);
        }
    }

    /// Who has the turn, for traces.
    pub(crate) fn who(&self) -> String {
        HERE.get().map_or("nobody".into(), |here| format!("actor {}", here.actor))
    }

    /// The actor with the turn is at a new operation; requests that it sends carry its number.
    pub(crate) fn begin_operation(&self, number: u64) {
        OPERATION.set(number);
    }

    /// The actor that has the turn.
    pub(crate) fn actor(&self) -> Option<usize> {
        HERE.get().map(|here| here.actor)
    }

    /// The cells as they are; for judges.
    pub(crate) fn cells(&self) -> &MemoryCells {
        &self.cells
    }

    pub(super) fn local_now_ns(&self, host: HostId) -> u64 {
        let inner = self.inner.lock();
        let host = &inner.hosts[host];
        host.ahead_ns + inner.now_ns / 1_000 * host.rate
    }

    /// Sleeps by the clock of a host. The dead do not sleep: their clocks jump, so that what they have begun ends.
    pub(super) fn sleep(&self, host: HostId, local_ns: u64) {
        let wake = {
            let mut inner = self.inner.lock();
            let Inner { hosts, now_ns, .. } = &mut *inner;
            let host = &mut hosts[host];
            if host.dead || HERE.get().is_none() {
                host.ahead_ns += local_ns.max(1);
                return;
            }
            *now_ns + (local_ns / host.rate).saturating_mul(1_000).max(1)
        };
        suspend(wake);
    }

    /// Gives the turn away until it comes again.
    ///
    /// # Errors
    /// The host has died.
    pub(super) fn turn(&self, host: HostId) -> Result<(), StoreError> {
        self.alive(host)?;
        suspend(0);
        if HERE.get().is_none() {
            self.land_one_outside();
        }
        self.alive(host)
    }

    /// Sometimes gives the turn away.
    pub(super) fn maybe_turn(&self, host: HostId) -> Result<(), StoreError> {
        if self.chance(host, 250) { self.turn(host) } else { Ok(()) }
    }

    /// The wait of a sender that gets no answer.
    pub(super) fn time_out(&self, host: HostId) -> Result<(), StoreError> {
        let longest = self.inner.lock().faults.pause_max_ns / 4;
        let wait = self.below(longest.max(1));
        self.sleep(host, wait);
        self.alive(host)
    }

    fn alive(&self, host: HostId) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        let host = &mut inner.hosts[host];
        if !host.dead {
            return Ok(());
        }
        host.calls_after_death += 1;
        if host.calls_after_death > 100_000 {
            // Inside a destructor a panic would end the process without a word.
            eprintln!("what a dead host unwinds calls the store without end");
            std::process::abort();
        }
        Err(StoreError::Stopped("this host has died".into()))
    }

    pub(super) fn draw_read(&self, host: HostId, what: &dyn fmt::Debug) -> Result<(), StoreError> {
        let failed = {
            let mut inner = self.inner.lock();
            let rate = inner.faults.failed_reads;
            rate > 0 && !inner.hosts[host].dead && inner.rng.below(1_000) < rate
        };
        if !failed {
            return Ok(());
        }
        self.count(Count::FailedReads);
        self.event(|| format!("{}: reading {what:?} fails", self.who()), |mix| mix(2));
        Err(StoreError::Engine { what: "reading a cell".into(), source: "no answer came".into() })
    }

    pub(super) fn draw_fate(&self, host: HostId) -> Fate {
        let mut inner = self.inner.lock();
        if inner.hosts[host].dead {
            return Fate::Lost;
        }
        let mut drawn = inner.rng.below(1_000);
        let faults = &inner.faults;
        for (rate, fate) in [
            (faults.lost_requests, Fate::Lost),
            (faults.lost_answers, Fate::Unanswered),
            (faults.late_requests, Fate::Late),
            (faults.duplicates, Fate::Duplicated),
        ] {
            if drawn < rate {
                return fate;
            }
            drawn -= rate;
        }
        Fate::Done
    }

    pub(super) fn send_late(&self, request: Request) {
        self.inner.lock().late.push(request);
    }

    /// Code outside of actors sees late requests land between its own.
    fn land_one_outside(&self) {
        let request = {
            let mut inner = self.inner.lock();
            let count = inner.late.len() as u64;
            if count == 0 || inner.rng.below(4) > 0 {
                return;
            }
            let at = inner.rng.below(count) as usize;
            inner.late.swap_remove(at)
        };
        let _nobody_hears = self.apply(&request, true);
    }

    /// Carries out a request.
    pub(super) fn apply(&self, request: &Request, late: bool) -> Result<Version, CasError> {
        let before = self.cells.read(&request.key)?;
        let result = self.cells.cas(&request.key, request.expected, request.cell.clone());
        let mut hash = DefaultHasher::new();
        request.key.hash(&mut hash);
        self.event(
            || {
                let (late, who) = if late { ("LATE ", request.actor) } else { ("", self.actor()) };
                let was = show(before.as_ref());
                match &result {
                    Ok(version) => format!("{late}actor {who:?}: {request}: now @{} (was {was})", version.0),
                    Err(error) => format!("{late}actor {who:?}: {request}: {error} (is {was})"),
                }
            },
            |mix| {
                mix(hash.finish());
                mix(result.as_ref().map_or(3, |version| version.0));
            },
        );
        let what = match (&result, late) {
            (Ok(_), false) => Count::Writes,
            (Ok(_), true) => Count::LateLandings,
            (Err(_), false) => Count::CasConflicts,
            (Err(_), true) => Count::LateRefused,
        };
        self.count(what);
        if result.is_ok() {
            let change = Change { request, before: before.as_ref() };
            let judged = self.judge.lock().changed(&change, &self.cells);
            if let Err(what) = judged {
                self.object(what);
            }
        }
        result
    }
}

impl Inner {
    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        let now_ms = self.now_ns as f64 / 1e6;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now_ms:10.3} ms  {}", line()));
        }
    }
}

/// The number of the operation that the actor with the turn is at.
pub(crate) fn operation() -> u64 {
    OPERATION.get()
}

fn mix(digest: u64, number: u64) -> u64 {
    (digest ^ number).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
}

/// Gives the turn back to the scheduler until `wake`; at once where there is no scheduler.
fn suspend(wake: WakeAt) {
    let Some(here) = HERE.get() else { return };
    // SAFETY: the scheduler sets `HERE` when it resumes a coroutine and clears it when that coroutine suspends or ends, so
    // this runs on the coroutine's own stack, where its body keeps the yielder alive below this frame.
    unsafe { &*here.yielder }.suspend(wake);
}
