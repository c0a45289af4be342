//! The promises of the namespace, one test each, over the memory engine: here with backing files in a temporary directory,
//! once more, in `over_chunks`, with chunks in the engine itself; and what concerns bytes, in `over_objects`, with objects.
//!
//! Every test ends with a check of the whole volume, under the mount and after it: see [`world::World::finish`].

mod access;
mod advisory;
mod away;
mod bytes;
mod counts;
mod fenced;
mod grown;
mod in_doubt;
mod links;
mod listing;
mod lost_locks;
mod opens;
mod over_chunks;
mod over_objects;
mod passed;
mod races;
mod renames;
mod strategies;
mod times;
mod unlinked;
mod waiting;
mod world;
mod xattrs;

use std::path::Path;
use std::sync::Arc;

use crate::content::{BackingFiles, Contents};
use crate::store::Store;

/// Where the tests beside this one keep the bytes of large files.
fn contents(_: &Arc<dyn Store>, dir: &Path) -> Contents {
    BackingFiles::create(&dir.join("content"), 8).unwrap().into()
}
