//! Judges a volume: every invariant of its documents and backing files, offline or under a running mount.
//!
//! # The invariants
#![doc = include_str!("invariants.md")]

pub mod rule;

pub use rule::Rule;
