//! Deterministic simulation: the real code over simulated hosts, clocks and a store that misbehaves.
//!
//! Owns the scheduler ([`run`]), the world that it changes ([`World`]), and the two ports that the real code sees
//! ([`SimCells`], [`SimClock`]). What the hosts do and who judges it is in `work`.
//!
//! What is hard:
//! 1. The real code blocks in its calls. So each actor is a stackful coroutine, and every request to the store and every
//!    sleep gives the turn back to the scheduler. All of a simulation runs in one thread.
//! 2. A seed must replay a run: what comes next is drawn from one stream of random numbers, and [`World::digest`] runs over
//!    every event, so that two runs that differ anywhere have different digests.
//! 3. Faults of one kind hide those of another. So each seed draws which faults there are and how often (swarm testing:
//!    Groce et al., ISSTA 2012), and how long one actor keeps the turn.

mod cells;
mod clock;
mod counts;
mod faults;
mod schedule;
mod world;

pub(crate) use cells::SimCells;
pub(crate) use clock::SimClock;
pub(crate) use counts::{Count, Counts};
pub(crate) use faults::Faults;
pub(crate) use schedule::{Actors, has_turn, run};
pub(crate) use world::{Change, HostId, Judge, World, operation};
