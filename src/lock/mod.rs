//! The lock engine.
