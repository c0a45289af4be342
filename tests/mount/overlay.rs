//! overlayfs with its upper layer in the tree: whiteouts, opaque directories, renames.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::PathBuf;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::common::{Mounted, skipped};

/// An overlay that is taken away before the mount below it.
struct Overlay(PathBuf);

impl Drop for Overlay {
    fn drop(&mut self) {
        if unmount(&self.0, UnmountFlags::empty()).is_err() {
            let _ = unmount(&self.0, UnmountFlags::DETACH);
        }
    }
}

fn overlay(mounted: &Mounted) -> Option<Overlay> {
    let lower = mounted.dir.path().join("lower");
    fs::create_dir_all(lower.join("d/below")).unwrap();
    for (name, text) in [("f", "lower f"), ("g", "lower g"), ("d/h", "lower h")] {
        fs::write(lower.join(name), text).unwrap();
    }
    let merged = mounted.dir.path().join("merged");
    fs::create_dir(&merged).unwrap();
    let [upper, work] = ["upper", "work"].map(|name| mounted.path(name));
    for directory in [&upper, &work] {
        fs::create_dir(directory).unwrap();
    }
    let options =
        format!("lowerdir={},upperdir={},workdir={}\0", lower.display(), upper.display(), work.display());
    let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).unwrap();
    match mount("overlay", &merged, "overlay", MountFlags::empty(), options) {
        Ok(()) => Some(Overlay(merged)),
        Err(rustix::io::Errno::NODEV) => {
            skipped("needs overlayfs in the kernel");
            None
        }
        Err(error) => panic!("an overlay on lockwood: {error}"),
    }
}

#[test]
fn an_overlay_creates_deletes_and_renames_on_top() {
    let Some(mounted) = Mounted::new() else { return };
    let Some(overlay) = overlay(&mounted) else { return };
    let path = |name: &str| overlay.0.join(name);
    fs::write(path("new"), b"upper").unwrap();
    fs::write(path("f"), b"changed").unwrap();
    fs::remove_file(path("g")).unwrap();
    let whiteout = fs::symlink_metadata(mounted.path("upper/g")).unwrap();
    assert!(whiteout.file_type().is_char_device() && whiteout.rdev() == 0);
    assert!(!path("g").exists());
    // A file of the lower layer that is renamed leaves a whiteout by RENAME_WHITEOUT.
    fs::rename(path("d/h"), path("moved")).unwrap();
    assert_eq!(fs::read_to_string(path("moved")).unwrap(), "lower h");
    assert!(fs::symlink_metadata(mounted.path("upper/d/h")).unwrap().file_type().is_char_device());
    fs::rename(path("new"), path("d/new")).unwrap();
    // An opaque directory in the place of one that was removed.
    fs::remove_dir_all(path("d")).unwrap();
    fs::create_dir(path("d")).unwrap();
    assert_eq!(fs::read_dir(path("d")).unwrap().count(), 0);
    fs::create_dir(path("e")).unwrap();
    fs::rename(path("e"), path("d/e")).unwrap();
    let mut names: Vec<_> =
        fs::read_dir(&overlay.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["d", "f", "moved"]);
    assert_eq!(fs::read_to_string(path("f")).unwrap(), "changed");
    drop(overlay);
    mounted.finish();
}
