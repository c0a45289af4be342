//! What a thread does with the bytes of one large file.

use crate::common::rng::Rng;
use crate::common::sys;
use crate::desk::{Desk, FILE_BYTES};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const NAME: &str = "large";
const BLOCK: usize = 1 << 20;
/// Every target is asked for the same pages.
const SEED: u64 = 7;

fn blocks(desk: &Desk) -> u64 {
    desk.bytes / BLOCK as u64
}

/// Writes the whole file anew, and has it on the disk in the end. Counts mebibytes. Opened only to be written, as cp does.
pub(crate) fn write(desk: &Desk) -> io::Result<usize> {
    let file = open(desk, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY)?;
    let block = vec![0x4c; BLOCK];
    for at in 0..blocks(desk) {
        file.write_all_at(&block, at * BLOCK as u64)?;
    }
    file.sync_all()?;
    Ok(blocks(desk) as usize)
}

/// Reads the whole file. Counts mebibytes.
pub(crate) fn read(desk: &Desk) -> io::Result<usize> {
    let file = open(desk, libc::O_RDONLY)?;
    let mut block = vec![0; BLOCK];
    for at in 0..blocks(desk) {
        file.read_exact_at(&mut block, at * BLOCK as u64)?;
    }
    Ok(blocks(desk) as usize)
}

/// Reads as many pages as the desk has files, anywhere in the file.
pub(crate) fn read_anywhere(desk: &Desk) -> io::Result<usize> {
    let file = open(desk, libc::O_RDONLY)?;
    anywhere(desk, |at| file.read_exact_at(&mut [0; FILE_BYTES], at))
}

/// Writes as many pages as the desk has files, anywhere in the file.
pub(crate) fn write_anywhere(desk: &Desk) -> io::Result<usize> {
    let file = open(desk, libc::O_WRONLY)?;
    anywhere(desk, |at| file.write_all_at(&[0x57; FILE_BYTES], at))
}

pub(crate) fn remove(desk: &Desk) -> io::Result<()> {
    sys::unlink_at(&desk.a, NAME)
}

fn open(desk: &Desk, flags: i32) -> io::Result<File> {
    Ok(File::from(sys::open_at(&desk.a, NAME, flags, 0o644)?))
}

fn anywhere(desk: &Desk, act: impl Fn(u64) -> io::Result<()>) -> io::Result<usize> {
    let mut rng = Rng::new(SEED, 0);
    let pages = (desk.bytes as usize / FILE_BYTES).max(1);
    for _ in &desk.names {
        act((rng.below(pages) * FILE_BYTES) as u64)?;
    }
    Ok(desk.names.len())
}
