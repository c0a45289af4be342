//! Copies between files and within one, by the host and by hand.

use super::*;
use crate::content::{MAX_SIZE, SEGMENT_BYTES};

/// Runs a test on a host that copies, and on one that cannot.
fn on_both_hosts(test: impl Fn(&BackingFiles)) {
    let (_dir, files) = small();
    test(&files);
    let (_dir, files) = small();
    lose_all_abilities(&files);
    test(&files);
}

#[test]
fn data_arrives_across_segments_cut_differently() {
    on_both_hosts(|files| {
        let (source, target) = (files.file(1).unwrap(), files.file(2).unwrap());
        let data: Vec<u8> = (0..3 * SEGMENT).map(|n| (n % 253) as u8).collect();
        source.write_at(&data, 100).unwrap();
        let len = data.len() as u64;
        assert_eq!(source.copy_to(100, &target, SEGMENT - 7, len).unwrap(), len);
        assert_eq!(read(&target, SEGMENT - 7, data.len()), data);
        assert_eq!(read(&target, SEGMENT - 9, 2), [0, 0]);
    });
}

#[test]
fn holes_and_the_end_of_the_source_overwrite_the_target_with_zeros() {
    on_both_hosts(|files| {
        let (source, target) = (files.file(1).unwrap(), files.file(2).unwrap());
        source.write_at(&[1; 4096], 2 * SEGMENT).unwrap();
        target.write_at(&vec![9; 5 * SEGMENT as usize], 0).unwrap();
        assert_eq!(source.copy_to(0, &target, 10, 4 * SEGMENT).unwrap(), 4 * SEGMENT);
        let mut expected = vec![0; 4 * SEGMENT as usize];
        expected[2 * SEGMENT as usize..][..4096].fill(1);
        assert_eq!(read(&target, 10, expected.len()), expected);
        assert_eq!(read(&target, 0, 10), [9; 10]);
        assert_eq!(read(&target, 4 * SEGMENT + 10, 10), [9; 10]);
    });
}

#[test]
fn a_copy_within_one_file_reaches_another_segment() {
    on_both_hosts(|files| {
        let file = files.file(1).unwrap();
        file.write_at(&[5; 5000], 0).unwrap();
        assert_eq!(file.copy_to(0, &file, 3 * SEGMENT - 100, 5000).unwrap(), 5000);
        assert_eq!(read(&file, 3 * SEGMENT - 100, 5000), [5; 5000]);
    });
}

#[test]
fn the_largest_hole_is_copied_at_once() {
    let (dir, files) = full_size();
    let (source, target) = (files.file(1).unwrap(), files.file(2).unwrap());
    source.write_at(b"x", 1 << 61).unwrap();
    target.write_at(b"y", 3 * SEGMENT_BYTES).unwrap();
    assert_eq!(source.copy_to(0, &target, 0, MAX_SIZE).unwrap(), MAX_SIZE);
    assert_eq!(read(&target, 1 << 61, 2), *b"x\0");
    assert_eq!(read(&target, 3 * SEGMENT_BYTES, 1), [0]);
    assert_eq!(tree(dir.path()).len(), 4);
    assert_eq!(source.copy_to(5, &target, 9, 0).unwrap(), 0);
}
