//! The scheduler: who has the turn, what goes wrong next, and when it is over.
//!
//! Imports the world. An actor is a coroutine; stacks are kept for the next simulation of the thread.

use std::any::Any;
use std::cell::{Cell as Local, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::world::{HERE, Here, OPERATION, WakeAt};
use super::{Count, HostId, World};

/// A simulation that needs more turns than this does not come to an end.
const STEPS_MAX: u64 = 400_000;
const STACK_BYTES: usize = 512 * 1024;

type Routine = Coroutine<(), WakeAt, ()>;

thread_local! {
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

struct Actor {
    host: HostId,
    name: &'static str,
    routine: Routine,
    /// Where the coroutine says who its yielder is, at its first turn.
    yielder: Rc<Local<*const Yielder<(), WakeAt>>>,
    wake_at_ns: u64,
    operation: u64,
}

/// The actors of a simulation; a number once given stays.
#[derive(Default)]
pub(crate) struct Actors(Vec<Option<Actor>>);

impl Actors {
    /// Adds an actor on a host. Returns its number.
    pub(crate) fn add(&mut self, host: HostId, name: &'static str, body: impl FnOnce() + 'static) -> usize {
        let yielder = Rc::new(Local::new(std::ptr::null()));
        let slot = Rc::clone(&yielder);
        let number = self.0.len();
        let stack = STACKS.with_borrow_mut(Vec::pop);
        let stack = stack.unwrap_or_else(|| DefaultStack::new(STACK_BYTES).expect("room for a stack"));
        let routine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), WakeAt>, ()| {
            slot.set(yielder);
            HERE.set(Some(Here { actor: number, yielder }));
            body();
        });
        self.0.push(Some(Actor { host, name, routine, yielder, wake_at_ns: 0, operation: 0 }));
        number
    }
}

impl Drop for Actors {
    fn drop(&mut self) {
        for actor in self.0.iter_mut().filter_map(Option::take) {
            actor.end();
        }
    }
}

impl Actor {
    /// Unwinds what is left and keeps the stack. Its host must be dead, or what unwinds would wait for a turn.
    fn end(mut self) {
        self.routine.force_unwind();
        STACKS.with_borrow_mut(|stacks| stacks.push(self.routine.into_stack()));
    }
}

/// Runs the actors until all have ended and every request has landed, or somebody objects.
///
/// # Errors
/// What was objected to.
pub(crate) fn run(world: &Arc<World>, mut actors: Actors) -> Result<(), String> {
    let mut steps = 0;
    let mut last = 0;
    let result = loop {
        steps += 1;
        if let Some(violation) = world.inner.lock().violation.clone() {
            break Err(violation);
        }
        if steps > STEPS_MAX {
            let left: Vec<_> = actors.0.iter().flatten().map(|actor| actor.name).collect();
            break Err(format!("no end after {STEPS_MAX} turns; still at work: {left:?}"));
        }
        match choose(world, &mut actors, last, steps) {
            Turn::Actor(number) => {
                last = number;
                if let Err(panic) = give_turn(&mut actors, number) {
                    break Err(format!("panic: {panic}"));
                }
            }
            Turn::Landing(at) => {
                let request = world.inner.lock().late.swap_remove(at);
                let _nobody_hears = world.apply(&request, true);
            }
            Turn::Crash(host) => crash(world, &mut actors, host),
            Turn::Nothing => {}
            Turn::Over => break Ok(()),
        }
    };
    if result.is_err() {
        // What is left unwinds, and must not wait for a turn that never comes.
        world.inner.lock().hosts.iter_mut().for_each(|host| host.dead = true);
    }
    result
}

enum Turn {
    Actor(usize),
    Landing(usize),
    Crash(HostId),
    Nothing,
    Over,
}

/// Draws what happens next.
fn choose(world: &World, actors: &mut Actors, last: usize, steps: u64) -> Turn {
    let mut inner = world.inner.lock();
    let inner = &mut *inner;
    inner.counts.add(Count::Steps);
    inner.now_ns += 1 + inner.rng.below(inner.faults.step_max_ns.max(1));
    if inner.faults.quiet_after_steps > 0 {
        if steps >= inner.faults.quiet_after_steps {
            inner.faults.end();
            inner.note(|| "from here on nothing goes wrong".into());
        } else if let Some(crashed) = draw_host_fault(inner) {
            return Turn::Crash(crashed);
        }
    }
    let mut ready = Vec::with_capacity(actors.0.len());
    let mut earliest = None;
    for (number, actor) in actors.0.iter().enumerate() {
        let Some(actor) = actor else { continue };
        let at = actor.wake_at_ns.max(inner.hosts[actor.host].paused_until_ns);
        if at <= inner.now_ns {
            ready.push(number);
        }
        earliest = Some(earliest.map_or(at, |earliest: u64| earliest.min(at)));
    }
    let Some(earliest) = earliest else {
        let late = inner.late.len() as u64;
        return if late == 0 { Turn::Over } else { Turn::Landing(inner.rng.below(late) as usize) };
    };
    let late = inner.late.len() as u64;
    if ready.is_empty() {
        if late > 0 && inner.rng.below(2) == 0 {
            return Turn::Landing(inner.rng.below(late) as usize);
        }
        inner.now_ns = earliest;
        return Turn::Nothing;
    }
    if inner.rng.below(1_000) < inner.faults.sticky && ready.contains(&last) {
        return Turn::Actor(last);
    }
    let drawn = inner.rng.below(8 * ready.len() as u64 + late);
    match drawn.checked_sub(late) {
        None => Turn::Landing(drawn as usize),
        Some(actor) => Turn::Actor(ready[(actor / 8) as usize]),
    }
}

/// Draws whether a host stands still, dies, or has its clock jump. Host 0 never dies: somebody must be left to recover.
fn draw_host_fault(inner: &mut super::world::Inner) -> Option<HostId> {
    let drawn = inner.rng.below(100_000);
    let (pauses, jumps, crashes) = (inner.faults.pauses, inner.faults.clock_jumps, inner.faults.crashes);
    if drawn >= pauses + jumps + crashes {
        return None;
    }
    let host = inner.rng.below(inner.hosts.len() as u64) as usize;
    // As often short as long.
    let span = inner.faults.pause_max_ns >> inner.rng.below(10);
    let span = 1 + inner.rng.below(span.max(1));
    if drawn < pauses {
        inner.counts.add(Count::Pauses);
        inner.hosts[host].paused_until_ns = inner.now_ns + span;
        inner.note(|| format!("host {host} stands still for {:.3} ms", span as f64 / 1e6));
    } else if drawn < pauses + jumps {
        inner.counts.add(Count::ClockJumps);
        inner.hosts[host].jump(span);
        inner.note(|| format!("the clock of host {host} jumps {:.3} ms forward", span as f64 / 1e6));
    } else if host != 0 && !inner.hosts[host].dead {
        return Some(host);
    }
    None
}

fn give_turn(actors: &mut Actors, number: usize) -> Result<(), String> {
    let actor = actors.0[number].as_mut().expect("the scheduler chose an actor that is there");
    OPERATION.set(actor.operation);
    let yielder = actor.yielder.get();
    HERE.set((!yielder.is_null()).then_some(Here { actor: number, yielder }));
    let resumed = catch_unwind(AssertUnwindSafe(|| actor.routine.resume(())));
    HERE.set(None);
    actor.operation = OPERATION.replace(0);
    match resumed {
        Ok(CoroutineResult::Yield(wake)) => actor.wake_at_ns = wake,
        Ok(CoroutineResult::Return(())) => {
            if let Some(actor) = actors.0[number].take() {
                STACKS.with_borrow_mut(|stacks| stacks.push(actor.routine.into_stack()));
            }
        }
        Err(payload) => {
            let name = actor.name;
            actors.0[number] = None;
            return Err(format!("{} in {name}", text(&*payload)));
        }
    }
    Ok(())
}

fn crash(world: &World, actors: &mut Actors, host: HostId) {
    {
        let mut inner = world.inner.lock();
        inner.counts.add(Count::Crashes);
        inner.hosts[host].dead = true;
        inner.note(|| format!("host {host} dies"));
    }
    for actor in &mut actors.0 {
        if actor.as_ref().is_some_and(|actor| actor.host == host)
            && let Some(actor) = actor.take()
        {
            actor.end();
        }
    }
}

fn text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "?".into())
}

/// Whether an actor of this thread has the turn.
pub(crate) fn has_turn() -> bool {
    HERE.get().is_some()
}
