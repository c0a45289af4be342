//! The protocol as a model whose every state is visited: sessions, locks, commits, crashes, fences, late messages.
//!
//! What is hard:
//! 1. A model can be true of itself only. What decides in production decides here: [`protocol`] names the functions.
//! 2. A model that does not reach something says nothing about it: [`reached`].
//! 3. States must be few and small: [`state`] keeps no versions, [`locks`] numbers the lock engine's states.
//!
//! [`table`] has the scenarios; [`run`] visits their states.

mod commit;
mod faults;
mod locks;
mod protocol;
mod reached;
pub(crate) mod run;
mod scenario;
mod state;
mod table;
mod tree;
