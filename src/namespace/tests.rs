//! The namespace over the memory engine.
