//! Reading, writing, trimming and syncing one file.

use super::*;
use crate::content::{ContentError, MAX_SIZE, SEGMENT_BYTES};

#[test]
fn what_is_written_is_read_back_across_segments() {
    let (_dir, files) = small();
    let file = files.file(7).unwrap();
    let data: Vec<u8> = (0..3 * SEGMENT + 5).map(|n| (n % 251) as u8).collect();
    file.write_at(&data, SEGMENT - 3).unwrap();
    assert_eq!(read(&file, SEGMENT - 3, data.len()), data);
    assert_eq!(read(&file, SEGMENT - 5, 4), [0, 0, data[0], data[1]]);
}

#[test]
fn what_is_absent_reads_as_zeros() {
    let (dir, files) = small();
    let file = files.file(7).unwrap();
    file.write_at(b"x", 10).unwrap();
    assert_eq!(read(&file, 0, 12), *b"\0\0\0\0\0\0\0\0\0\0x\0");
    assert_eq!(read(&file, 5 * SEGMENT - 1, 2), [0, 0]);
    assert_eq!(tree(dir.path()), ["07/0000000000000007"], "reading makes nothing");
}

#[test]
fn a_write_makes_only_its_segment() {
    let (dir, files) = full_size();
    let file = files.file(0x107).unwrap();
    file.write_at(b"far", 5 * SEGMENT_BYTES + 1).unwrap();
    assert_eq!(tree(dir.path()), ["07/0000000000000107", "07/0000000000000107.5"]);
    file.write_at(b"", 9 * SEGMENT_BYTES).unwrap();
    assert_eq!(tree(dir.path()).len(), 2, "writing nothing makes nothing");
}

#[test]
fn the_last_byte_of_the_largest_file_is_as_good_as_any() {
    let (dir, files) = full_size();
    let file = files.file(1).unwrap();
    file.write_at(b"end", MAX_SIZE - 3).unwrap();
    assert_eq!(read(&file, MAX_SIZE - 4, 4), *b"\0end");
    assert_eq!(tree(dir.path()), ["01/0000000000000001", "01/0000000000000001.7fffff"]);
    assert_eq!(file.seek_data(0, MAX_SIZE).unwrap(), Some(MAX_SIZE - 3).map(|at| at - at % 4096));
    file.truncate(MAX_SIZE - 1).unwrap();
    assert_eq!(read(&file, MAX_SIZE - 3, 3), *b"en\0");
}

#[test]
fn ranges_that_no_file_has_are_refused() {
    let (_dir, files) = full_size();
    let file = files.file(1).unwrap();
    let too_large = |result: Result<(), ContentError>| {
        assert!(matches!(result, Err(ContentError::TooLarge { .. })), "{result:?}");
    };
    for offset in [MAX_SIZE, u64::MAX] {
        too_large(file.write_at(b"x", offset));
        too_large(file.read_at(&mut [0], offset));
        too_large(file.allocate(offset, 1, false));
        too_large(file.punch_hole(1, offset));
        too_large(file.zero_range(offset, u64::MAX));
        too_large(file.copy_to(offset, &file, 0, 1).map(drop));
        too_large(file.copy_to(0, &file, offset, 1).map(drop));
        assert_eq!(file.seek_data(offset, u64::MAX).unwrap(), None);
        file.truncate(offset).unwrap();
    }
}

#[test]
fn truncate_drops_what_lies_beyond_and_never_extends() {
    let (dir, files) = small();
    let file = files.file(7).unwrap();
    file.write_at(&vec![1; 4 * SEGMENT as usize], 0).unwrap();
    file.truncate(9 * SEGMENT).unwrap();
    assert_eq!(tree(dir.path()).len(), 4);
    file.write_at(&[1; 10], 4 * SEGMENT).unwrap();
    file.truncate(4 * SEGMENT + 20).unwrap();
    assert_eq!(fs::metadata(dir.path().join("07/0000000000000007.4")).unwrap().len(), 10);
    file.truncate(2 * SEGMENT + 1).unwrap();
    assert_eq!(tree(dir.path()).len(), 3);
    assert_eq!(read(&file, 2 * SEGMENT, 3), [1, 0, 0]);
    assert_eq!(fs::metadata(dir.path().join("07/0000000000000007.2")).unwrap().len(), 1);
    file.truncate(2 * SEGMENT).unwrap();
    assert_eq!(tree(dir.path()).len(), 2, "a segment of which nothing is left goes");
    file.truncate(0).unwrap();
    assert_eq!(tree(dir.path()), ["07/0000000000000007"], "the first segment stays");
    assert_eq!(read(&file, 0, 4), [0; 4]);
}

#[test]
fn what_a_crash_left_beyond_the_size_is_trimmed() {
    let (dir, files) = small();
    let size = SEGMENT + 100;
    files.file(7).unwrap().write_at(&vec![9; 5 * SEGMENT as usize], 0).unwrap();
    drop(files);

    // The node names only `size` bytes; another process finds more.
    let files = small_in(dir.path());
    let file = files.file(7).unwrap();
    file.truncate(size).unwrap();
    file.write_at(b"new", 4 * SEGMENT).unwrap();
    assert_eq!(read(&file, size - 1, 2), [9, 0]);
    assert_eq!(read(&file, 3 * SEGMENT, 3), [0; 3]);
    assert_eq!(read(&file, 4 * SEGMENT, 4), *b"new\0");
}

#[test]
fn sync_covers_every_segment_and_survives_their_removal() {
    let (_dir, files) = small();
    let file = files.file(7).unwrap();
    file.write_at(b"a", 0).unwrap();
    file.write_at(b"b", 3 * SEGMENT).unwrap();
    file.sync(true).unwrap();
    file.truncate(1).unwrap();
    file.sync(false).unwrap();
    files.remove(7).unwrap();
    file.sync(false).unwrap();
}

#[test]
fn allocated_blocks_are_summed_over_segments() {
    let (_dir, files) = small();
    let file = files.file(7).unwrap();
    assert_eq!(file.allocated_blocks().unwrap(), 0);
    file.write_at(&[1; 8192], 0).unwrap();
    file.write_at(&[1; 8192], 2 * SEGMENT).unwrap();
    file.sync(false).unwrap();
    assert!(file.allocated_blocks().unwrap() >= 32);
}

#[test]
fn a_segment_that_vanished_is_an_error_and_not_zeros() {
    let (dir, files) = small();
    files.file(7).unwrap().write_at(b"x", 0).unwrap();
    let files = small_in(dir.path());
    let file = files.find(7).unwrap().unwrap();
    fs::remove_file(dir.path().join("07/0000000000000007")).unwrap();
    assert!(matches!(file.read_at(&mut [0], 0), Err(ContentError::Io { .. })));
}
