//! Tests of the content layer, one file a subject: over a temporary directory, and of chunks over the memory engine; and
//! what they share. Most cut files every
//! 64 KiB, so that a few bytes cross many borders.

mod backing;
mod chunks;
mod concurrency;
mod copy;
mod directory;
mod model;
mod objects;
mod ranges;

use std::fs;
use std::num::NonZeroU64;
use std::path::Path;

use tempfile::TempDir;

use super::{BackingFile, BackingFiles};
use crate::document::{Document, Locking, Timestamp, Volume};

/// The size of a segment in most tests.
const SEGMENT: u64 = 64 << 10;

/// A directory of backing files with small segments.
fn small() -> (TempDir, BackingFiles) {
    let dir = tempfile::tempdir().unwrap();
    let files = small_in(dir.path());
    (dir, files)
}

fn small_in(dir: &Path) -> BackingFiles {
    BackingFiles::with_segments(dir, 16, NonZeroU64::new(SEGMENT).unwrap()).unwrap()
}

/// A directory of backing files with the segments of the format.
fn full_size() -> (TempDir, BackingFiles) {
    let dir = tempfile::tempdir().unwrap();
    let files = BackingFiles::open(dir.path(), 16).unwrap();
    (dir, files)
}

fn read(file: &BackingFile, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0xee; len];
    file.read_at(&mut buf, offset).unwrap();
    buf
}

/// The files under a directory, relative to it and sorted.
fn tree(dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for shard in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        for file in fs::read_dir(shard.path()).unwrap().map(Result::unwrap) {
            names.push(file.path().strip_prefix(dir).unwrap().to_str().unwrap().to_owned());
        }
    }
    names.sort();
    names
}

/// A node; what it says does not matter here.
fn some_node() -> Document {
    let created = Timestamp::default();
    Document::Node(Volume::empty(String::new(), Locking::Tree, 0, created).empty_root(0, 0))
}

/// Makes as if the host lacked everything that has a fallback.
fn lose_all_abilities(files: &BackingFiles) {
    let abilities = &files.directory.abilities;
    abilities.punch_hole.lose();
    abilities.zero_range.lose();
    abilities.copy_range.lose();
}
