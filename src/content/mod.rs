//! The bytes of large files, in backing files beside the database of an embedded store. Small files live inline in
//! documents and are not seen here. Owns the directory `STORE/content` and everything in it; may import only what needs
//! no other layer of Lockwood.
//!
//! # Format
//!
//! A file is cut into segments of 1 TiB ([`SEGMENT_BYTES`]). Segment 0 is `content/<shard>/<ino>` and segment *n* is
//! `content/<shard>/<ino>.<n>`: the shard is the low byte of the inode as 2 hexadecimal digits, the inode has 16, and *n*
//! has no leading zeros. The byte at offset *o* is the byte *o* mod 1 TiB of segment *o* / 1 TiB. What is absent, a byte
//! or a segment, is zero. Nothing else is stored, so the directory can be read with ordinary tools.
//!
//! # What is hard
//!
//! 1. Files of 8 EiB - 1 on hosts whose files end at 16 TiB, mostly absent: `names` cuts them, and `ranges` and `copy`
//!    walk what exists.
//! 2. Any number of files held open over a bounded number of descriptors: `directory`.
//! 3. Segments that come and go under concurrent I/O: the lock in `BackingFile`.
//! 4. Hosts that lack an operation: `host`, with a fallback at each caller.
//! 5. Crashes. Data reaches the file before the node names its size, so after a crash a backing file may hold more than
//!    its node says. **Bytes at or beyond the node's size mean nothing**, and the caller calls
//!    `BackingFile::truncate` with the node's size before it lets the node name a larger one.
//!
//! One process owns the directory at a time; the store's lock sees to that.

mod error;
mod names;

pub use error::ContentError;
pub use names::{MAX_SIZE, SEGMENT_BYTES};
