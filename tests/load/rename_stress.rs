//! Renames of every kind against one tree at once, and a judge who then finds every object exactly once.
//! `scripts/rename-stress` mounts the tree.
//!
//! What is hard:
//!
//! 1. To know what must be there. Three rules, a module each: what is moved by anybody is never deleted ([`chaos`]);
//!    what is overwritten or deleted belongs to one worker alone ([`own`]); what is contested obeys a law of
//!    conservation ([`slots`]). [`empty`] and [`loops`] add the races of prior art.
//! 2. To tell objects apart whatever their names: each has an id ([`ledger`]).
//! 3. Not to pass without having met: [`report`] lists what must have happened, [`locker`] makes renames wait where
//!    the volume has locks.

#![allow(clippy::disallowed_methods)] // A program outside of the library: it may have a clock of its own.

#[path = "stress/chaos.rs"]
mod chaos;
mod common;
#[path = "stress/empty.rs"]
mod empty;
#[path = "stress/judge.rs"]
mod judge;
#[path = "stress/ledger.rs"]
mod ledger;
#[path = "stress/locker.rs"]
mod locker;
#[path = "stress/loops.rs"]
mod loops;
#[path = "stress/options.rs"]
mod options;
#[path = "stress/own.rs"]
mod own;
#[path = "stress/report.rs"]
mod report;
#[path = "stress/slots.rs"]
mod slots;
#[path = "stress/world.rs"]
mod world;

use common::rng::Rng;
use common::{Res, command, now, sys};
use empty::Arena;
use ledger::{Ledger, Met};
use locker::Held;
use loops::Pair;
use options::{Options, Sabotage};
use report::{Contention, Totals};
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Duration;
use world::World;

fn main() -> ExitCode {
    sys::set_up_process();
    match run() {
        Ok(code) => code,
        Err(message) => {
            eprintln!("rename-stress: {message}");
            ExitCode::from(2)
        }
    }
}

/// What one thread does.
enum Role<'a> {
    /// Ends the run when the time is over.
    Timer,
    /// Moves, overwrites and contests.
    Worker(usize),
    /// Makes the empty directory of this group and does away with it.
    Replacer(usize),
    /// Puts things into it.
    Enterer(usize),
    /// One side of a pair of loop-making moves.
    Mover(&'a Pair, usize, OwnedFd),
    /// Holds locks through the command.
    Locker,
}

fn run() -> Res<ExitCode> {
    let Some(options) = Options::from_env()? else { return Ok(ExitCode::SUCCESS) };
    println!("seed {}, {} workers, {} groups", options.seed, options.workers, options.groups());
    let met = Met::default();
    let mut setup = Ledger::new(0xffff, options.mounts.len(), &met);
    let world = World::make(&options, &mut setup)?;
    let view = world.view(0);
    slots::prepare(view, &mut setup)?;
    for group in 0..options.groups() {
        let made = Arena::make(view, group, &mut setup).and_then(|_| Pair::make(view, group, &mut setup));
        made.map_err(|e| format!("setting up: {e}"))?;
    }
    let contention = || (!options.plain).then(|| Contention::so_far(&options.mounts[0])).transpose();
    let before = contention()?;
    let pairs: Vec<Pair> = (0..options.groups()).map(|_| Pair::new()).collect();
    let start = now();
    let done = common::in_parallel(
        "stress",
        roles(&options, &world, &pairs, before.as_ref().is_some_and(|c| c.locks))?.into_iter().enumerate(),
        |(index, role)| Ok(live(&options, &world, &met, index, &role)),
    )?;
    let elapsed = now() - start;
    let (mut ledgers, held): (Vec<Ledger>, Vec<Held>) = done.into_iter().unzip();
    ledgers.push(setup);
    let contention = contention()?.zip(before).map(|(after, before)| after.since(&before));
    let totals = Totals::of(&ledgers, &held);
    totals.print(elapsed, contention.as_ref());
    std::thread::sleep(options.coherence);
    let mut wrong = judge_tree(&options, &world, &ledgers)?;
    wrong.extend(totals.not_exercised(&options, contention.as_ref()));
    if !options.plain {
        wrong.extend(judge_locks(&options));
    }
    if !options.keep {
        sys::remove_tree(&view.home).unwrap_or_else(|e| wrong.push(format!("cannot remove the tree: {e}")));
    }
    for line in wrong.iter().take(40) {
        eprintln!("rename-stress: WRONG: {line}");
    }
    if wrong.is_empty() {
        println!("passed");
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("rename-stress: FAILED: {} findings; seed {}", wrong.len(), options.seed);
    Ok(ExitCode::FAILURE)
}

fn roles<'a>(options: &Options, world: &World, pairs: &'a [Pair], locks: bool) -> Res<Vec<Role<'a>>> {
    let mut roles = vec![Role::Timer];
    roles.extend((0..options.workers).map(Role::Worker));
    for (group, pair) in pairs.iter().enumerate() {
        roles.extend([Role::Replacer(group), Role::Enterer(group)]);
        for side in 0..2 {
            // Opened before any thread starts: one that could not would leave the other waiting for ever.
            let dir = sys::open_dir_at(&world.view(roles.len()).loops, &format!("l{group}"));
            roles.push(Role::Mover(pair, side, dir.map_err(|e| format!("setting up: {e}"))?));
        }
        if locks {
            roles.push(Role::Locker);
        }
    }
    Ok(roles)
}

/// The life of one thread; an error ends the run, as a violation.
fn live(options: &Options, world: &World, met: &Met, index: usize, role: &Role<'_>) -> (Ledger, Held) {
    let mut rng = Rng::new(options.seed, index as u64);
    let mut ledger = Ledger::new(index, options.mounts.len(), met);
    let view = world.view(index);
    let mut held = Held::default();
    let result: io::Result<()> = match role {
        Role::Timer => {
            timer(options, world, met);
            Ok(())
        }
        Role::Worker(worker) => work(world, index, *worker, &mut rng, &mut ledger),
        Role::Replacer(group) => Arena::open(view, *group)
            .and_then(|arena| until_end(world, || arena.replace(&mut rng, &mut ledger))),
        Role::Enterer(group) => Arena::open(view, *group)
            .and_then(|arena| until_end(world, || arena.enter(&mut rng, &mut ledger))),
        Role::Mover(pair, side, dir) => {
            pair.run(world, dir, *side, &mut rng, &mut ledger);
            Ok(())
        }
        Role::Locker => {
            held = locker::run(world, view, &mut rng, &mut ledger);
            Ok(())
        }
    };
    if let Err(e) = result {
        ledger.violation(format!("a call that must succeed did not: {e}"));
        world.end();
    }
    (ledger, held)
}

/// Ends the run in time, or later if the store is so slow that not everything was met by then.
fn timer(options: &Options, world: &World, met: &Met) {
    let end = now() + options.duration;
    let latest = end + options.duration * (options::LONGER_AT_MOST - 1);
    let lacks = || !report::lacking(options, |kind, errno| met.lock().contains(&(kind, errno))).is_empty();
    while !world.stopped() && (now() < end || (now() < latest && lacks())) {
        std::thread::sleep(Duration::from_millis(20));
    }
    world.end();
}

fn until_end(world: &World, mut turn: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    while !world.stopped() {
        turn()?;
    }
    Ok(())
}

fn work(world: &World, index: usize, worker: usize, rng: &mut Rng, ledger: &mut Ledger) -> io::Result<()> {
    let view = world.view(index);
    let mine = sys::open_dir_at(&view.work, &format!("w{worker}"))?;
    let mut own = own::Own::new(worker);
    until_end(world, || {
        match rng.below(100) {
            0..60 => chaos::step(view, rng, ledger),
            60..85 => own.step(view, rng, ledger),
            _ => slots::step(view, &mine, rng, ledger),
        }
        Ok(())
    })
}

fn judge_tree(options: &Options, world: &World, ledgers: &[Ledger]) -> Res<Vec<String>> {
    let home = &world.view(0).home;
    let walk = || judge::walk(home).map_err(|e| format!("the judge cannot walk {}: {e}", home.display()));
    let mut found = walk()?;
    if let Some(sabotage) = options.sabotage {
        let mut rng = Rng::new(options.seed, u64::MAX - 1);
        let Some(path) = rng.pick(&found.pool_files) else { return Err("nothing to sabotage".into()) };
        let path = home.join(path.trim_start_matches('/'));
        match sabotage {
            Sabotage::Lose => std::fs::remove_file(&path),
            Sabotage::Duplicate => std::fs::copy(&path, path.with_extension("copy")).map(drop),
        }
        .map_err(|e| format!("cannot sabotage {}: {e}", path.display()))?;
        println!("sabotaged {}", path.display());
        found = walk()?;
    }
    println!("the judge found {} objects", found.places.len());
    Ok(judge::compare(&found, ledgers, world.view(0)))
}

/// The filesystem's own check, and no lock left at rest.
fn judge_locks(options: &Options) -> Vec<String> {
    let mut wrong = Vec::new();
    let mount = &options.mounts[0];
    wrong.extend(command::check(mount).err());
    // A lock is released after the reply, and hosts keep the shares of their renames for 10 s.
    let deadline = now() + Duration::from_secs(if options.mounts.len() > 1 { 20 } else { 3 });
    loop {
        match command::lock_count(mount) {
            Ok(0) => return wrong,
            Ok(_) if now() < deadline => std::thread::sleep(Duration::from_millis(50)),
            Ok(count) => {
                wrong.push(format!("{count} locks are left though nobody is at work; see `lockwood locks`"));
                return wrong;
            }
            Err(e) => {
                wrong.push(e);
                return wrong;
            }
        }
    }
}
