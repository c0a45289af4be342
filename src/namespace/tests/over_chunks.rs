//! The same tests over chunks in the memory engine, so small that a few bytes cross many borders.

#![allow(clippy::duplicate_mod)] // Each test runs over both places.

#[path = "access.rs"]
mod access;
#[path = "bytes.rs"]
mod bytes;
#[path = "counts.rs"]
mod counts;
#[path = "fenced.rs"]
mod fenced;
#[path = "grown.rs"]
mod grown;
#[path = "links.rs"]
mod links;
#[path = "listing.rs"]
mod listing;
#[path = "races.rs"]
mod races;
#[path = "renames.rs"]
mod renames;
#[path = "strategies.rs"]
mod strategies;
#[path = "times.rs"]
mod times;
#[path = "two_hosts.rs"]
mod two_hosts;
#[path = "unlinked.rs"]
mod unlinked;
#[path = "waiting.rs"]
mod waiting;
#[path = "world.rs"]
mod world;
#[path = "write_back.rs"]
mod write_back;
#[path = "xattrs.rs"]
mod xattrs;

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

use crate::content::{Chunks, Contents};
use crate::store::Store;

fn contents(store: &Arc<dyn Store>, _: &Path) -> Contents {
    Chunks::with_chunk_bytes(Arc::clone(store), NonZeroU64::new(4096).unwrap()).into()
}

/// A store that lost power may have lost the commit that took the last name.
#[test]
fn a_file_that_is_back_keeps_its_bytes() {
    let world = self::world::World::new();
    let f = world.filled(self::world::ROOT, "f", &[b'a'; 9000]);
    world.collector.remove_content(f);
    world.collector.wait_for_room();
    assert_eq!(world.bytes(f), [b'a'; 9000]);
    world.finish();
}
