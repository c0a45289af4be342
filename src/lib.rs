//! Lockwood: a filesystem whose tree is stored as documents, in which every rename takes tree locks that anyone
//! can read.
//!
//! The layers, top to bottom; imports point down only (`tests/tidy.rs` holds it):
//!
//! - [`cli`]: arguments, one resolved configuration, output.
//! - [`fuse`]: decode, call, reply; the life of a mount; the control files.
//! - [`namespace`]: POSIX semantics: resolve, plan, lock, check, commit.
//! - [`check`]: the invariants of a volume; an independent judge, which shares no code with the namespace.
//! - [`lock`]: the lock engine: which locks a rename needs, who gets them, who waits.
//! - [`content`]: the bytes of large files.
//! - [`store`]: the port, the commit primitive and the engines.
//! - [`document`]: types, keys and encodings; no I/O.
//! - [`ambient`], [`mounts`], [`rules`]: the clock, randomness, threads; the kernel's mount table; the switches of the
//!   mutation run. For every layer.

pub mod ambient;
pub mod check;
pub mod cli;
pub mod content;
pub mod document;
pub mod fuse;
pub mod later;
pub mod lock;
pub mod mounts;
pub mod namespace;
pub mod rules;
pub mod shell;
pub mod store;

#[cfg(test)]
#[path = "../tests/common/stop.rs"]
mod stop;
