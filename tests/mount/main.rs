//! What only a real mount can show: its beginning and end, the kernel's caches and locks, mount(8), control files, other
//! users, full disks and damaged stores.
//!
//! Needs root and /dev/fuse. Every mount is taken away with its daemon when its test ends, however it ends.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may stop at what it does not expect")]

#[path = "../common/mod.rs"]
mod common;

mod control;
mod damaged;
mod files;
mod full;
mod handles;
mod life;
mod limits;
mod linear;
mod listing;
mod locks;
mod many;
mod many_life;
mod mount8;
mod others;
mod overlay;
mod passthrough;
mod queue;
mod replaced;
mod requests;
mod steer;
mod strategies;
mod times;
