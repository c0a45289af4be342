//! Proofs that run: the real protocols over simulated hosts and a store that misbehaves.
//!
//! `cargo test --features proof --test proof`. The example `explore` runs more seeds of the same; a seed that failed is
//! had again with `explore --seed N --trace`.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A judge that cannot judge has failed.

#[allow(dead_code)]
#[path = "../common/rng.rs"]
mod rng;
mod sim;
mod simulations;
mod work;
