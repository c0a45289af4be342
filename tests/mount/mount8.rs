//! mount(8), by way of mount.fuse, and umount(8): lockwood as any other file system.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{BINARY, Mounted, Ran, lockwood, mount_entry, program, run, skipped, until};

/// What `mount -t fuse.lockwood` does: mount(8) calls Debian's mount.fuse, and that finds our binary in the path. It is
/// called directly, since mount(8) sets a path of its own, in which only an installed lockwood is found.
fn mount_fuse(mounted: &Mounted, options: &str) -> Option<Ran> {
    let helper = ["/sbin/mount.fuse", "/usr/sbin/mount.fuse"].into_iter().find(|p| Path::new(p).exists());
    let Some(helper) = helper else {
        skipped("needs mount.fuse (Debian package fuse3)");
        return None;
    };
    let here = Path::new(BINARY).parent().unwrap().to_str().unwrap();
    let path = format!("{here}:{}", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(helper);
    command.arg(&mounted.store).arg(&mounted.mount_point).args(["-o", options, "-t", "fuse.lockwood"]);
    Some(run(command.env("PATH", path)))
}

#[test]
fn mount_8_mounts_with_options_and_umount_8_unmounts() {
    let Some(mut mounted) = Mounted::unmounted() else { return };
    let Some(ran) = mount_fuse(&mounted, "noatime,lock_wait=5,nosuid") else { return };
    ran.ok();
    mounted.note_daemon();
    let entry = mount_entry(&mounted.mount_point).unwrap();
    assert_eq!(entry.fs_type, "fuse.lockwood");
    assert_eq!(Path::new(&entry.source), mounted.store);
    fs::write(mounted.path("f"), b"x").unwrap();
    let words = mount_fuse(&mounted, "rw").unwrap().refused();
    assert!(words.contains("mounted"), "{words}");
    until("nobody has a file open", || program("umount", &[mounted.mount_point.as_os_str()]).code == 0);
    mount_fuse(&mounted, "ro").unwrap().ok();
    mounted.note_daemon();
    let error = fs::write(mounted.path("g"), b"x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::read(mounted.path("f")).unwrap(), b"x");
    mounted.finish();
}

#[test]
fn an_unknown_option_is_named_and_nothing_is_mounted() {
    let Some(mounted) = Mounted::unmounted() else { return };
    let mount = |options: &str| {
        let store_and_place = [mounted.store.as_os_str(), mounted.mount_point.as_os_str()];
        let [store, place] = store_and_place;
        lockwood([OsStr::new("mount"), store, place, OsStr::new("-o"), OsStr::new(options)])
    };
    for bad in ["frobnicate", "rw,frobnicate=3", "lock_wait=soon", "threads=0"] {
        let words = mount(bad).refused();
        let name = bad.trim_start_matches("rw,").split('=').next().unwrap();
        assert!(words.contains(name), "{words}");
        assert!(mount_entry(&mounted.mount_point).is_none());
    }
    if let Some(ran) = mount_fuse(&mounted, "frobnicate") {
        let words = ran.refused();
        assert!(words.contains("frobnicate"), "{words}");
    }
    mounted.assert_clean();
}

#[test]
fn a_mount_can_be_made_read_only_and_writable_again() {
    let Some(mounted) = Mounted::new() else { return };
    fs::write(mounted.path("f"), b"x").unwrap();
    let remount = |option: &str| {
        // -i: the kernel does it alone, mount.fuse would mount a second time.
        let options = format!("remount,{option}");
        let arguments =
            [OsStr::new("-i"), OsStr::new("-o"), OsStr::new(&options), mounted.mount_point.as_os_str()];
        program("mount", &arguments)
    };
    for _ in 0..2 {
        // The file that was just written may still be open in a process that another test is starting.
        until("nobody has a file open for writing", || remount("ro").code == 0);
        for outcome in [
            fs::write(mounted.path("f"), b"y"),
            fs::create_dir(mounted.path("d")),
            fs::remove_file(mounted.path("f")),
            fs::rename(mounted.path("f"), mounted.path("g")),
        ] {
            assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EROFS));
        }
        assert_eq!(fs::read(mounted.path("f")).unwrap(), b"x");
        remount("rw").ok();
        fs::write(mounted.path("g"), b"y").unwrap();
        fs::remove_file(mounted.path("g")).unwrap();
    }
    mounted.finish();
}

#[test]
fn a_remount_says_what_it_cannot_change() {
    let Some(mounted) = Mounted::new() else { return };
    let remount = |options: &str| {
        let [store, place] = [mounted.store.as_os_str(), mounted.mount_point.as_os_str()];
        lockwood([OsStr::new("mount"), store, place, OsStr::new("-o"), OsStr::new(options)])
    };
    let words = remount("remount,lock_wait=9").refused();
    assert!(words.contains("option lock_wait=9") && words.contains("unmount and mount again"), "{words}");
    // It may be from /etc/fstab.
    let ran = remount("remount,lock_wait=9,ro");
    assert!(ran.code == 0 && ran.stderr.contains("option lock_wait=9"), "{ran:?}");
    assert_eq!(fs::create_dir(mounted.path("d")).unwrap_err().raw_os_error(), Some(libc::EROFS));
    let ran = remount("remount,rw,allow_other");
    assert!(ran.code == 0 && ran.stderr.is_empty(), "{ran:?}");
    mounted.finish();
}

#[test]
fn a_read_only_mount_changes_nothing_in_the_tree() {
    let Some(mut mounted) = Mounted::new() else { return };
    fs::write(mounted.path("f"), b"x").unwrap();
    mounted.umount();
    mounted.mount("ro");
    assert_eq!(fs::read(mounted.path("f")).unwrap(), b"x");
    assert_eq!(fs::write(mounted.path("f"), b"y").unwrap_err().raw_os_error(), Some(libc::EROFS));
    mounted.finish();
}
