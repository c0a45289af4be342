//! Stores and mounts of other users than root.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use crate::common::{BINARY, Mounted, lockwood, mount_entry, skipped};
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

fn owned_by_root(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.metadata().unwrap();
        if kind.uid() == 0 {
            found.push(entry.path());
        }
        if kind.is_dir() {
            owned_by_root(&entry.path(), found);
        }
    }
}

#[test]
fn root_leaves_nothing_in_another_users_store_and_is_told_the_way() {
    let Some(mounted) = Mounted::unmounted() else { return };
    let mounted = of_nobody(mounted, "store");
    let store = mounted.store.to_str().unwrap().to_owned();
    let refused = |words: String| {
        assert!(words.contains(&format!("{store} belongs to user")), "{words}");
        assert!(words.contains("sudo -u '") && words.contains("chown -R root"), "{words}");
    };
    let mount_point = mounted.mount_point.to_str().unwrap();
    for arguments in [
        &["status", &store][..],
        &["check", &store],
        &["recover", &store],
        &["get", &store, "node:1"],
        &["mount", &store, mount_point],
    ] {
        refused(lockwood(arguments).refused());
    }
    let mut found = Vec::new();
    owned_by_root(&mounted.store, &mut found);
    assert!(found.is_empty(), "{found:?}");
    let clean = as_nobody(&[BINARY, "check", &store]).ok();
    assert!(clean.contains("clean"), "{clean}");
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
