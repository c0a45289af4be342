//! Files that the kernel reads and writes itself, as far as no kernel is needed.

use std::sync::Arc;

use super::away::Engine;
use super::world::{ROOT, World, name};
use crate::ambient;
use crate::content::BackingFiles;
use crate::document::{Key, Locking, Volume};
use crate::namespace::ops::make::{Make, What};
use crate::namespace::ops::passthrough::Access;
use crate::namespace::{Caller, Namespace, SessionInfo, Settings};
use crate::store::{Commit, Store as _};

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

/// No mount came up any more.
#[test]
fn a_damaged_node_keeps_no_other_file_from_catching_up() {
    let (engine, dir) = (Arc::new(Engine::default()), tempfile::tempdir().unwrap());
    let volume = Volume::empty("0".repeat(32), Locking::Tree, 64, ambient::wall_clock().into());
    engine.commit(&Commit::format(volume, 0, 0)).unwrap();
    let begin = || {
        let info = SessionInfo {
            host: "ada".to_owned(),
            boot_id: "b".to_owned(),
            pid: std::process::id(),
            mount_point: "/mnt".to_owned(),
        };
        let files = BackingFiles::create(&dir.path().join("content"), 8).unwrap();
        Namespace::begin(engine.clone(), files, Settings::default(), info).unwrap()
    };
    let size = |host: &Namespace, ino| host.attributes(ino).unwrap().size();
    let host = begin();
    let [bad, good] = ["bad", "good"].map(|called| {
        let (name, what) = (name(called), What::Regular);
        let make = Make { parent: ROOT, name: &name, what, mode: 0o644, umask: 0, caller: Caller::ROOT };
        let (ino, _) = host.make(&make).unwrap();
        host.write(ino, 0, &[b'a'; 5000], false).unwrap();
        // As the kernel has written, when the process dies.
        let files = host.contents().backing().unwrap();
        files.may_be_ahead(ino.0, false).unwrap();
        files.find(ino.0).unwrap().unwrap().write_at(b"more", 5000).unwrap();
        ino
    });
    drop(host);
    *engine.damaged.lock() = Some(Key::Node(bad));
    let host = begin();
    assert_eq!((size(&host, good), host.read(good, 5000, 10).unwrap()), (5004, b"more".to_vec()));
    drop(host);
    // It is looked at again.
    *engine.damaged.lock() = None;
    let host = begin();
    assert_eq!((size(&host, bad), size(&host, good)), (5004, 5004));
    assert_eq!(host.contents().backing().unwrap().left_ahead().unwrap(), [0; 0]);
    host.end().unwrap();
}
