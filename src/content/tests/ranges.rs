//! Reserving, zeroing and seeking, on a host that has everything and on one that has nothing.

use super::*;
use crate::content::{ContentError, MAX_SIZE, SEGMENT_BYTES};

const FULL: usize = SEGMENT as usize;

/// A file of four segments of sevens.
fn sevens(files: &BackingFiles) -> std::sync::Arc<BackingFile> {
    let file = files.file(7).unwrap();
    file.write_at(&vec![7; 4 * FULL], 0).unwrap();
    file
}

/// That a range is zero and everything around it in the four segments is not.
fn assert_only_zero(file: &BackingFile, offset: u64, len: usize) {
    let all = read(file, 0, 4 * FULL);
    let offset = usize::try_from(offset).unwrap();
    assert!(all[offset..offset + len].iter().all(|&b| b == 0));
    assert!(all[..offset].iter().chain(&all[offset + len..]).all(|&b| b == 7));
}

#[test]
fn allocate_reserves_and_changes_no_byte() {
    let (dir, files) = small();
    let file = files.file(7).unwrap();
    file.write_at(b"here", SEGMENT).unwrap();
    file.allocate(SEGMENT / 2, 2 * SEGMENT, false).unwrap();
    assert!(file.allocated_blocks().unwrap() * 512 >= 2 * SEGMENT);
    assert_eq!(tree(dir.path()).len(), 3);
    assert_eq!(read(&file, SEGMENT - 1, 6), *b"\0here\0");
    assert_eq!(fs::metadata(dir.path().join("07/0000000000000007")).unwrap().len(), 0);
    file.allocate(0, 0, false).unwrap();
}

#[test]
fn allocate_of_more_than_the_host_has_fails_at_once_and_makes_nothing() {
    let (dir, files) = full_size();
    let file = files.file(7).unwrap();
    file.write_at(b"x", 3 * SEGMENT_BYTES).unwrap();
    for (offset, len) in [(0, MAX_SIZE), (5, 1 << 60), (MAX_SIZE - (1 << 50), 1 << 50)] {
        assert!(matches!(file.allocate(offset, len, false), Err(ContentError::NoSpace { .. })));
    }
    assert_eq!(tree(dir.path()).len(), 2);
    assert!(file.allocated_blocks().unwrap() <= 64);
}

#[test]
fn a_hole_reads_as_zeros_and_frees_its_space() {
    let (dir, files) = small();
    let file = sevens(&files);
    file.sync(false).unwrap();
    let before = file.allocated_blocks().unwrap();
    file.punch_hole(SEGMENT / 2, 2 * SEGMENT).unwrap();
    assert_only_zero(&file, SEGMENT / 2, 2 * FULL);
    assert!(file.allocated_blocks().unwrap() <= before - 2 * SEGMENT / 512);
    assert_eq!(tree(dir.path()).len(), 3, "the segment that was all hole is gone");
    file.write_at(&[1], SEGMENT + 5).unwrap();
    assert_eq!(read(&file, SEGMENT + 4, 3), [0, 1, 0]);
}

#[test]
fn zeroing_keeps_the_space() {
    let (dir, files) = small();
    let file = sevens(&files);
    file.sync(false).unwrap();
    let before = file.allocated_blocks().unwrap();
    file.zero_range(SEGMENT / 2 + 3, 2 * SEGMENT).unwrap();
    assert_only_zero(&file, SEGMENT / 2 + 3, 2 * FULL);
    assert_eq!(file.allocated_blocks().unwrap(), before);
    assert_eq!(tree(dir.path()).len(), 4);
}

#[test]
fn zeroing_a_sparse_file_reserves_nothing() {
    let (_dir, files) = full_size();
    let file = files.file(7).unwrap();
    file.write_at(&[1; 4096], SEGMENT_BYTES - 4096).unwrap();
    file.zero_range(0, MAX_SIZE).unwrap();
    assert_eq!(read(&file, SEGMENT_BYTES - 4096, 4096), [0; 4096]);
    assert!(file.allocated_blocks().unwrap() <= 64);
}

#[test]
fn a_host_without_the_calls_zeroes_by_writing() {
    for zero in [BackingFile::punch_hole, BackingFile::zero_range] {
        let (_dir, files) = small();
        lose_all_abilities(&files);
        let file = sevens(&files);
        zero(&file, SEGMENT / 2 + 1, 2 * SEGMENT + 77).unwrap();
        assert_only_zero(&file, SEGMENT / 2 + 1, 2 * FULL + 77);
    }
}

#[test]
fn a_host_without_the_calls_writes_no_zeros_into_holes() {
    let (_dir, files) = full_size();
    lose_all_abilities(&files);
    let file = files.file(7).unwrap();
    file.write_at(&[1; 4096], SEGMENT_BYTES / 2).unwrap();
    file.punch_hole(0, SEGMENT_BYTES).unwrap();
    file.zero_range(0, MAX_SIZE).unwrap();
    assert_eq!(read(&file, SEGMENT_BYTES / 2, 4096), [0; 4096]);
    assert!(file.allocated_blocks().unwrap() <= 64);
}

#[test]
fn ranges_over_absent_segments_cost_nothing() {
    let (dir, files) = full_size();
    let file = files.file(7).unwrap();
    file.write_at(b"x", 1 << 62).unwrap();
    file.zero_range(0, 1 << 62).unwrap();
    file.punch_hole(SEGMENT_BYTES, MAX_SIZE - SEGMENT_BYTES).unwrap();
    assert_eq!(file.seek_data(0, MAX_SIZE).unwrap(), None);
    assert_eq!(file.seek_hole(0, MAX_SIZE).unwrap(), 0);
    assert_eq!(tree(dir.path()), ["07/0000000000000007"]);
}

#[test]
fn data_and_holes_are_found_across_segments() {
    let (_dir, files) = small();
    let file = files.file(7).unwrap();
    let size = 10 * SEGMENT;
    file.write_at(&vec![1; FULL], SEGMENT + SEGMENT / 2).unwrap();
    file.write_at(&vec![1; FULL], 7 * SEGMENT).unwrap();
    let (start, end) = (SEGMENT + SEGMENT / 2, 2 * SEGMENT + SEGMENT / 2);
    assert_eq!(file.seek_data(0, size).unwrap(), Some(start));
    assert_eq!(file.seek_data(start + 5, size).unwrap(), Some(start + 5));
    assert_eq!(file.seek_hole(start, size).unwrap(), end);
    assert_eq!(file.seek_data(end, size).unwrap(), Some(7 * SEGMENT));
    assert_eq!(file.seek_hole(7 * SEGMENT, size).unwrap(), 8 * SEGMENT);
    assert_eq!(file.seek_data(8 * SEGMENT, size).unwrap(), None);
    assert_eq!(file.seek_hole(3 * SEGMENT + 1, size).unwrap(), 3 * SEGMENT + 1);
}

#[test]
fn seeks_stop_at_the_size() {
    let (_dir, files) = small();
    let file = sevens(&files);
    assert_eq!(file.seek_hole(0, 4 * SEGMENT).unwrap(), 4 * SEGMENT);
    assert_eq!(file.seek_hole(0, SEGMENT + 1).unwrap(), SEGMENT + 1);
    assert_eq!(file.seek_hole(9, 9).unwrap(), 9);
    assert_eq!(file.seek_data(9, 10).unwrap(), Some(9));
    assert_eq!(file.seek_data(9, 9).unwrap(), None);
    assert_eq!(file.seek_data(3 * SEGMENT, SEGMENT).unwrap(), None);
}
