//! The operations, one subject a file.

pub mod attributes;
pub mod copy;
pub mod later;
pub mod link;
pub mod lookup;
pub mod make;
pub mod open;
pub mod passthrough;
pub mod read;
pub mod readdir;
pub mod remove;
pub mod rename;
pub mod space;
pub mod sync;
pub mod write;
pub mod xattr;
