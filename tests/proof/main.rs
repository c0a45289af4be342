//! Proofs that run: the protocol as a model whose every state is visited, and the real protocols over simulated hosts and a
//! store that misbehaves.
//!
//! `cargo test --features proof --test proof`. The example `model` visits more states, the example `explore` runs more
//! seeds; a seed that failed is had again with `explore --seed N --trace`. The example `mutation` switches each rule off.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A judge that cannot judge has failed.

mod model;
mod models;
#[allow(dead_code)]
#[path = "../common/rng.rs"]
mod rng;
mod sim;
mod simulations;
mod work;
