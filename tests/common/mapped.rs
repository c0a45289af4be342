//! Files that are mapped, shared and to be written, and what is promised of them where others change the same file.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

/// A map of the beginning of a file, which is gone when this is dropped.
pub(crate) struct Map {
    start: *mut u8,
    len: usize,
}

impl Map {
    /// Of a file that is open for both.
    pub(crate) fn of(file: &File, len: usize) -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new shared map; nothing else is touched.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(start, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Self { start: start.cast(), len }
    }

    /// Changes bytes, which must be within the file: what lies beyond its end is SIGBUS.
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        for (at, byte) in (at..).zip(bytes) {
            // SAFETY: within the map.
            unsafe { self.start.add(at).write_volatile(*byte) };
        }
    }

    /// A byte, as above.
    pub(crate) fn get(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: within the map.
        unsafe { self.start.add(at).read_volatile() }
    }

    /// What was changed is in the file when this has returned.
    pub(crate) fn sync(&self) -> io::Result<()> {
        // SAFETY: the map as it is.
        let code = unsafe { libc::msync(self.start.cast(), self.len, libc::MS_SYNC) };
        if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the map that was made in `of`, of which nothing is borrowed.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// What a map has changed is sent late, and then by a kernel that may not know of the truncation yet: that must not make the
/// file longer again. `ours` and `theirs` are one file that is not there yet, through two mounts.
pub(crate) fn a_map_does_not_undo_a_truncation(ours: &Path, theirs: &Path) {
    const LEN: usize = 16 << 10;
    for round in 0..20 {
        for size in [0, 100, 5000, 12_100] {
            fs::write(ours, [b'a'; LEN]).unwrap();
            let file = File::options().read(true).write(true).open(ours).unwrap();
            let map = Map::of(&file, LEN);
            [0, 12_000].iter().for_each(|at| map.put(*at, b"m"));
            let cut = File::options().write(true).open(theirs).unwrap();
            cut.set_len(size as u64).unwrap();
            // Whatever is left to be sent is so now.
            map.sync().unwrap();
            drop((map, file));
            // Who opens it asks: a look may be old.
            let lens = [ours, theirs].map(|path| File::open(path).unwrap().metadata().unwrap().len());
            assert_eq!(lens, [size as u64; 2], "round {round}");
            let mut expected = [b'a'; LEN];
            [0, 12_000].iter().for_each(|at| expected[*at] = b'm');
            assert!(fs::read(theirs).unwrap() == expected[..size], "round {round}: {size} bytes");
        }
    }
}
