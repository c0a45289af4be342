//! What programs do: mixtures of calls as git and a build make them.

use crate::common::sys;
use crate::desk::{Desk, FILE_BYTES, absent};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

/// Objects go to so many directories, as git's do, though to fewer.
const FAN_OUT: usize = 16;
/// A compiler looks for a header in so many directories before it finds it.
const SEARCHED: usize = 4;
/// An object file of the build has so many pages.
const OBJECT_PAGES: u64 = 4;

/// As `git clone` stores objects and checks files out: for each file a look for the object, a temporary file that is
/// written and gets its name by a rename, a file of the work tree that is written and looked at, and each 32 files the
/// index, written anew under a lock file. Counts files.
pub(crate) fn clone(desk: &Desk) -> io::Result<usize> {
    let dirs =
        (0..FAN_OUT).map(|at| subdirectory(&desk.b, &format!("{at:02x}"))).collect::<io::Result<Vec<_>>>()?;
    for (at, name) in desk.names.iter().enumerate() {
        let dir = &dirs[at % FAN_OUT];
        absent(dir, name)?;
        sys::create_at(dir, "tmp_obj")?.write_all_at(&[1; FILE_BYTES / 2], 0)?;
        sys::rename_at(dir, "tmp_obj", dir, name, 0)?;
        sys::create_at(&desk.a, name)?.write_all_at(&[2; FILE_BYTES], 0)?;
        sys::stat_at(&desk.a, name)?;
        if at % 32 == 0 {
            absent(&desk.b, "index.lock")?;
            sys::create_at(&desk.b, "index.lock")?.write_all_at(&[3; FILE_BYTES], 0)?;
            sys::rename_at(&desk.b, "index.lock", &desk.b, "index", 0)?;
        }
    }
    Ok(desk.names.len())
}

/// As a compiler does, for each source: looks for a header where it is not, reads source and header, and writes an object
/// file that gets its name by a rename. Counts sources.
pub(crate) fn build(desk: &Desk) -> io::Result<usize> {
    let objects = subdirectory(&desk.b, "objects")?;
    let searched = (0..SEARCHED)
        .map(|at| subdirectory(&desk.b, &format!("include{at}")))
        .collect::<io::Result<Vec<_>>>()?;
    let mut page = [0; FILE_BYTES];
    let read = |name: &str, page: &mut [u8]| {
        std::fs::File::from(sys::open_at(&desk.a, name, libc::O_RDONLY, 0)?).read_exact_at(page, 0)
    };
    for (at, name) in desk.names.iter().enumerate() {
        // Many sources name few headers.
        let header = &desk.names[at % desk.names.len().min(50)];
        searched.iter().try_for_each(|dir| absent(dir, header))?;
        sys::stat_at(&desk.a, header)?;
        read(header, &mut page)?;
        read(name, &mut page)?;
        let object = sys::create_at(&objects, "tmp.o")?;
        for number in 0..OBJECT_PAGES {
            object.write_all_at(&page, number * FILE_BYTES as u64)?;
        }
        drop(object);
        sys::rename_at(&objects, "tmp.o", &objects, name, 0)?;
    }
    Ok(desk.names.len())
}

fn subdirectory(dir: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    sys::mkdir_at(dir, name)?;
    sys::open_dir_at(dir, name)
}
