//! File handles, as an NFS server keeps them: good across mounts for as long as the file is there.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::common::Mounted;

/// A handle is at most this long (`MAX_HANDLE_SZ`).
const HANDLE_BYTES_MAX: usize = 128;

#[repr(C)]
#[derive(Clone)]
struct Handle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    data: [u8; HANDLE_BYTES_MAX],
}

fn handle_of(path: &Path) -> Handle {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut handle = Handle { bytes: HANDLE_BYTES_MAX as libc::c_uint, kind: 0, data: [0; HANDLE_BYTES_MAX] };
    let mut mount_id = 0;
    // SAFETY: the path is a live C string, and the handle has the room that it says it has.
    let result = unsafe {
        libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), (&raw mut handle).cast(), &raw mut mount_id, 0)
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    handle
}

fn open(mounted: &Mounted, handle: &Handle) -> io::Result<File> {
    let root = File::open(&mounted.mount_point)?;
    let mut handle = handle.clone();
    // SAFETY: the descriptor is open, and the handle is one that the kernel made.
    let fd = unsafe { libc::open_by_handle_at(root.as_raw_fd(), (&raw mut handle).cast(), libc::O_RDONLY) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just returned this descriptor and nobody else knows it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

#[test]
fn a_handle_opens_its_file_after_a_remount_and_a_rename_and_is_stale_when_that_is_gone() {
    let Some(mut mounted) = Mounted::new() else { return };
    fs::create_dir(mounted.path("d")).unwrap();
    fs::write(mounted.path("d/f"), b"through a handle").unwrap();
    let [file, directory] = ["d/f", "d"].map(|path| handle_of(&mounted.path(path)));
    let read = |mounted: &Mounted| {
        let mut text = String::new();
        open(mounted, &file).unwrap().read_to_string(&mut text).unwrap();
        text
    };
    assert_eq!(read(&mounted), "through a handle");
    mounted.remount();
    assert_eq!(read(&mounted), "through a handle");
    assert!(open(&mounted, &directory).unwrap().metadata().unwrap().is_dir());
    mounted.remount();
    fs::rename(mounted.path("d"), mounted.path("elsewhere")).unwrap();
    assert_eq!(read(&mounted), "through a handle");
    fs::remove_file(mounted.path("elsewhere/f")).unwrap();
    fs::remove_dir(mounted.path("elsewhere")).unwrap();
    for remounted in [false, true] {
        if remounted {
            mounted.remount();
        }
        for handle in [&file, &directory] {
            let error = open(&mounted, handle).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "remounted: {remounted}");
        }
    }
    mounted.finish();
}
