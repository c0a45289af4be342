//! Lockwood: a filesystem whose tree is stored as documents, in which every rename takes tree locks that anyone
//! can read.
//!
//! The layers, top to bottom; imports point down only (`tests/tidy.rs` holds it):
//!
//! - [`lock`]: the lock engine: which locks a rename needs, who gets them, who waits.
//! - [`content`]: the bytes of files.
//! - [`ambient`]: the clock, randomness, threads and ids, for every layer.

pub mod ambient;
pub mod check;
pub mod cli;
pub mod content;
pub mod document;
pub mod fuse;
pub mod lock;
pub mod mounts;
pub mod namespace;
pub mod store;
