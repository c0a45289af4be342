//! What concerns bytes once more, over chunks that name objects in a directory.

#![allow(clippy::duplicate_mod)] // Each test runs over all places.

#[path = "bytes.rs"]
mod bytes;
#[path = "fenced.rs"]
mod fenced;
#[path = "grown.rs"]
mod grown;
#[path = "two_hosts.rs"]
mod two_hosts;
#[path = "unlinked.rs"]
mod unlinked;
#[allow(dead_code, unused_imports, unused_macros, reason = "the other tests need the rest")]
#[path = "world.rs"]
mod world;

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::content::{Chunks, Contents, Objects};
use crate::store::Store;

fn contents(store: &Arc<dyn Store>, dir: &Path) -> Contents {
    let location = format!("file://{}/objects", dir.display()).parse().unwrap();
    let (volume, patience) = ("0".repeat(32), Duration::from_secs(5));
    let objects = Objects::open(&location, &volume, patience);
    let objects = objects.or_else(|_| Objects::create(&location, &volume, patience)).unwrap();
    let chunks = Chunks::with_chunk_bytes(Arc::clone(store), NonZeroU64::new(4096).unwrap());
    chunks.in_objects(objects).into()
}
