//! Files that the kernel reads and writes itself, as far as no kernel is needed.

use std::sync::Arc;

use super::world::{ROOT, World};
use crate::namespace::ops::passthrough::Access;

/// Programs were told that it was too large, and the file had that size.
#[test]
fn a_size_that_the_host_has_no_file_for_is_refused_before_the_node_says_it() {
    let world = World::new();
    let f = world.filled(ROOT, "f", &[b'a'; 5000]);
    let access = Access { writes: false, passes: true, durable: false };
    assert!(world.open_passing(f, access, &|_| Some(Arc::new(()))).unwrap().registration.is_some());
    let large = 1 << 45;
    match world.resize(f, large) {
        Ok(node) => assert_eq!(node.size(), large),
        // As with ext4.
        Err(_) => assert_eq!(world.node(f).size(), 5000),
    }
    world.resize(f, 6000).unwrap();
    assert_eq!(world.bytes(f)[..5000], [b'a'; 5000]);
    assert_eq!(world.node(f).size(), 6000);
    world.close_file_as(f, Some(access)).unwrap();
    world.finish();
}
