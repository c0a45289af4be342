//! Files that the kernel reads and writes itself, as far as no kernel is needed.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use tempfile::TempDir;

use super::away::Engine;
use super::world::{ROOT, World, name};
use crate::ambient;
use crate::content::BackingFiles;
use crate::document::{Ino, Key, Locking, Volume};
use crate::namespace::ops::make::{Make, What};
use crate::namespace::ops::passthrough::Access;
use crate::namespace::{Caller, Namespace, Result, SessionInfo, Settings};
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

/// A volume over an engine that can fail, and what the kernel writes past it.
struct Host {
    engine: Arc<Engine>,
    dir: TempDir,
}

impl Host {
    fn new() -> Self {
        let (engine, dir) = (Arc::new(Engine::default()), tempfile::tempdir().unwrap());
        let volume = Volume::empty("0".repeat(32), Locking::Tree, 64, ambient::wall_clock().into());
        engine.commit(&Commit::format(volume, 0, 0)).unwrap();
        Self { engine, dir }
    }

    fn files(&self) -> BackingFiles {
        BackingFiles::create(&self.dir.path().join("content"), 8).unwrap()
    }

    fn begin(&self) -> Result<Namespace> {
        let info = SessionInfo {
            host: "ada".to_owned(),
            boot_id: "b".to_owned(),
            pid: std::process::id(),
            mount_point: "/mnt".to_owned(),
        };
        Namespace::begin(self.engine.clone(), self.files(), Settings::default(), info)
    }
}

/// A file as the kernel has left it that was writing when the process died.
fn left_ahead(host: &Namespace, called: &str) -> Ino {
    let (name, what) = (name(called), What::Regular);
    let make = Make { parent: ROOT, name: &name, what, mode: 0o644, umask: 0, caller: Caller::ROOT };
    let (ino, _) = host.make(&make).unwrap();
    host.write(ino, 0, &[b'a'; 5000], false).unwrap();
    let files = host.contents().backing().unwrap();
    files.may_be_ahead(ino.0, false).unwrap();
    files.find(ino.0).unwrap().unwrap().write_at(b"more", 5000).unwrap();
    ino
}

fn size(host: &Namespace, ino: Ino) -> u64 {
    host.attributes(ino).unwrap().size()
}

/// No mount came up any more.
#[test]
fn a_damaged_node_keeps_no_other_file_from_catching_up() {
    let volume = Host::new();
    let host = volume.begin().unwrap();
    let [bad, good] = ["bad", "good"].map(|called| left_ahead(&host, called));
    drop(host);
    *volume.engine.damaged.lock() = Some(Key::Node(bad));
    let host = volume.begin().unwrap();
    assert_eq!((size(&host, good), host.read(good, 5000, 10).unwrap()), (5004, b"more".to_vec()));
    drop(host);
    // It is looked at again.
    *volume.engine.damaged.lock() = None;
    let host = volume.begin().unwrap();
    assert_eq!((size(&host, bad), size(&host, good)), (5004, 5004));
    assert_eq!(volume.files().left_ahead().unwrap(), [0; 0]);
    host.end().unwrap();
}

/// A power cut soon after the mount took what O_SYNC had promised.
#[test]
fn marks_stay_until_it_is_durable_that_the_nodes_have_caught_up() {
    let volume = Host::new();
    let host = volume.begin().unwrap();
    let f = left_ahead(&host, "f");
    drop(host);
    volume.engine.unsynced.store(true, SeqCst);
    assert!(volume.begin().is_err());
    assert_eq!(volume.files().left_ahead().unwrap(), [f.0]);
    volume.engine.unsynced.store(false, SeqCst);
    let host = volume.begin().unwrap();
    assert_eq!((size(&host, f), volume.files().left_ahead().unwrap()), (5004, vec![]));
    host.end().unwrap();
}
