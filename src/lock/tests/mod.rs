//! Sessions and shared locks over cells in memory, with a clock that the test drives and requests that fail as it says.

mod at_once;
mod damaged;
mod joining;
mod kept;
mod observing;
mod recovery;
mod requests;
mod shared;
mod shared_faults;
mod threads;
mod world;

pub(in crate::lock) use world::read_rules;
