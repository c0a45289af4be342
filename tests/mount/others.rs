//! Stores and mounts of other users than root.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use crate::common::{BINARY, Mounted, mount_entry, skipped};
use crate::control::{NOBODY, as_nobody};

/// Replaces the store with one of nobody, under this name.
fn of_nobody(mut mounted: Mounted, name: &str) -> Mounted {
    let directory = mounted.dir.path().join("theirs");
    fs::create_dir(&directory).unwrap();
    let nobody = NOBODY.parse().ok();
    for path in [&directory, &mounted.mount_point] {
        chown(path, nobody, nobody).unwrap();
    }
    mounted.store = directory.join(name);
    as_nobody(&[BINARY, "format", mounted.store.to_str().unwrap()]).ok();
    mounted
}

#[test]
fn who_is_not_root_mounts_a_source_with_commas() {
    let Some(mounted) = Mounted::unmounted() else { return };
    if fs::metadata("/dev/fuse").unwrap().permissions().mode() & 0o006 != 0o006 {
        return skipped("needs a /dev/fuse for all users");
    }
    let mut mounted = of_nobody(mounted, "with, comma\\, and more");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (store, mount_point) = (text(&mounted.store), text(&mounted.mount_point));
    let mounting = as_nobody(&[BINARY, "mount", &store, &mount_point]);
    mounted.note_daemon();
    mounting.ok();
    assert_eq!(mount_entry(&mounted.mount_point).unwrap().source, mounted.store.as_os_str());
    as_nobody(&["touch", mounted.path("f").to_str().unwrap()]).ok();
    as_nobody(&[BINARY, "umount", &mount_point]).ok();
    assert!(mount_entry(&mounted.mount_point).is_none());
}
