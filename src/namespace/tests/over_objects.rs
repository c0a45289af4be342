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

use self::world::{ROOT, World};
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

/// Programs were told that a truncation had failed, and it had not.
#[test]
fn a_file_is_cut_also_where_its_bytes_cannot_be_for_now() {
    let world = World::new();
    let f = world.filled(ROOT, "f", &[b'a'; 8000]);
    let location = world.contents().objects().unwrap().location().to_owned();
    let objects = Path::new(location.strip_prefix("file://").unwrap());
    let aside = objects.with_extension("aside");
    std::fs::rename(objects, &aside).unwrap();
    std::fs::write(objects, "no directory").unwrap();
    assert_eq!(world.resize(f, 5000).unwrap().size(), 5000);
    std::fs::remove_file(objects).unwrap();
    std::fs::rename(&aside, objects).unwrap();
    assert_eq!(world.bytes(f), [b'a'; 5000]);
    world.resize(f, 6000).unwrap();
    assert_eq!(world.bytes(f), [&[b'a'; 5000][..], &[0; 1000]].concat());
    world.finish();
}
