//! Names, handles, descriptors and durability of the directory.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use super::*;
use crate::content::ContentError;

#[test]
fn create_makes_a_private_directory_and_open_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let content = dir.path().join("content");
    assert!(matches!(BackingFiles::open(&content, 16), Err(ContentError::Io { .. })));
    BackingFiles::create(&content, 16).unwrap();
    BackingFiles::create(&content, 16).unwrap().file(0x1ff).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&content), 0o700);
    assert_eq!(mode(&content.join("ff")), 0o700);
    assert_eq!(mode(&content.join("ff/00000000000001ff")), 0o600);
}

#[test]
fn one_handle_per_inode_while_anyone_holds_it() {
    let (_dir, files) = small();
    let first = files.file(7).unwrap();
    assert!(Arc::ptr_eq(&first, &files.file(7).unwrap()));
    assert!(Arc::ptr_eq(&first, &files.find(7).unwrap().unwrap()));
    assert_eq!(first.ino(), 7);
    drop(first);
    assert_eq!(Arc::strong_count(&files.file(7).unwrap()), 1);
}

#[test]
fn find_makes_nothing() {
    let (dir, files) = small();
    assert!(files.find(7).unwrap().is_none());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    files.file(7).unwrap();
    assert!(files.find(7).unwrap().is_some());
}

#[test]
fn descriptors_are_bounded_however_many_files_are_held() {
    let (dir, files) = small();
    let held: Vec<_> = (0..1000)
        .map(|ino| {
            let file = files.file(ino).unwrap();
            file.write_at(&ino.to_le_bytes(), SEGMENT - 4).unwrap();
            assert!(open_under(dir.path()) <= 16);
            file
        })
        .collect();
    for (ino, file) in held.iter().enumerate() {
        assert_eq!(read(file, SEGMENT - 4, 8), ino.to_le_bytes());
    }
    assert!(open_under(dir.path()) <= 16);
}

/// How many descriptors this process has open under a directory.
fn open_under(dir: &Path) -> usize {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap();
    descriptors
        .filter(|fd| fs::read_link(fd.as_ref().unwrap().path()).is_ok_and(|to| to.starts_with(dir)))
        .count()
}

#[test]
fn remove_takes_every_segment_and_only_those() {
    let (dir, files) = small();
    for ino in [7, 0x107] {
        files.file(ino).unwrap().write_at(&[1], 3 * SEGMENT).unwrap();
    }
    files.remove(7).unwrap();
    files.remove(7).unwrap();
    files.remove(8).unwrap();
    assert_eq!(tree(dir.path()), ["07/0000000000000107", "07/0000000000000107.3"]);
    assert_eq!(open_under(dir.path()), 2, "an open descriptor would keep the space of what is removed");
}

#[test]
fn a_file_removed_while_held_is_empty_and_can_be_written_again() {
    let (_dir, files) = small();
    let held = files.file(7).unwrap();
    held.write_at(b"old", 2 * SEGMENT).unwrap();
    files.remove(7).unwrap();
    assert_eq!(read(&held, 2 * SEGMENT, 3), [0; 3]);
    held.write_at(b"n", 2 * SEGMENT).unwrap();
    let again = files.file(7).unwrap();
    assert!(Arc::ptr_eq(&held, &again));
    assert_eq!(read(&again, 2 * SEGMENT, 3), *b"n\0\0");
}

#[test]
fn remove_needs_no_size_to_find_what_an_earlier_process_left() {
    let (dir, files) = full_size();
    files.file(7).unwrap().write_at(b"x", 1 << 61).unwrap();
    let files = BackingFiles::open(dir.path(), 16).unwrap();
    files.remove(7).unwrap();
    assert_eq!(tree(dir.path()), [] as [&str; 0]);
}

#[test]
fn list_names_each_inode_once() {
    let (dir, files) = small();
    let mut inodes = vec![0, 1, 0x101, 0x1ff, u64::MAX];
    for &ino in &inodes {
        files.file(ino).unwrap().write_at(&[1; 10], 4 * SEGMENT - 5).unwrap();
    }
    fs::remove_file(dir.path().join("01/0000000000000101")).unwrap();
    let mut listed: Vec<u64> = files.list().map(Result::unwrap).collect();
    listed.sort_unstable();
    inodes.sort_unstable();
    assert_eq!(listed, inodes, "one without its first segment is listed too");
}

#[test]
fn list_reports_what_is_foreign_and_goes_on() {
    let (dir, files) = small();
    files.file(1).unwrap();
    files.file(2).unwrap();
    fs::write(dir.path().join("01/stray"), "").unwrap();
    fs::write(dir.path().join("01/0000000000000001.ffffffffffffffff"), "").unwrap();
    fs::write(dir.path().join("03"), "").unwrap();
    let (inodes, errors): (Vec<_>, Vec<_>) = files.list().partition(Result::is_ok);
    assert_eq!(inodes.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(errors.iter().filter(|e| matches!(e, Err(ContentError::Foreign { .. }))).count(), 2);
    assert_eq!(errors.iter().filter(|e| matches!(e, Err(ContentError::WrongKind { .. }))).count(), 1);
}

#[test]
fn symbolic_links_and_other_kinds_are_refused_and_not_touched() {
    let (dir, files) = small();
    let victim = dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    fs::create_dir(dir.path().join("07")).unwrap();
    symlink(&victim, dir.path().join("07/0000000000000007")).unwrap();
    fs::create_dir(dir.path().join("07/0000000000000107")).unwrap();
    let _socket = UnixListener::bind(dir.path().join("07/0000000000000207")).unwrap();
    for ino in [7, 0x107, 0x207] {
        assert!(matches!(files.file(ino), Err(ContentError::WrongKind { .. })), "{ino:x}");
        assert!(matches!(files.remove(ino), Err(ContentError::WrongKind { .. })), "{ino:x}");
    }

    symlink(&victim, dir.path().join("07/0000000000000307.1")).unwrap();
    let files = small_in(dir.path());
    let file = files.file(0x307).unwrap();
    assert!(matches!(file.write_at(&[1], SEGMENT), Err(ContentError::WrongKind { .. })));
    assert!(matches!(file.read_at(&mut [1], SEGMENT), Err(ContentError::WrongKind { .. })));
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
}

#[test]
fn a_linked_directory_is_refused() {
    let (dir, files) = small();
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), dir.path().join("07")).unwrap();
    assert!(matches!(files.file(7), Err(ContentError::WrongKind { .. })));
    let link = elsewhere.path().join("content");
    symlink(dir.path(), &link).unwrap();
    assert!(matches!(BackingFiles::open(&link, 16), Err(ContentError::WrongKind { .. })));
    assert!(matches!(BackingFiles::create(&link, 16), Err(ContentError::WrongKind { .. })));
}

#[test]
fn a_second_process_in_the_directory_is_noticed() {
    let (dir, files) = small();
    let file = files.file(7).unwrap();
    small_in(dir.path()).file(7).unwrap().write_at(b"theirs", SEGMENT).unwrap();
    assert!(matches!(file.write_at(b"ours", SEGMENT), Err(ContentError::Io { .. })));
}

#[test]
fn names_are_synced_when_they_changed() {
    let (dir, files) = small();
    files.sync_names().unwrap();
    files.file(7).unwrap();
    files.file(8).unwrap();
    files.sync_names().unwrap();
    // Nothing has changed since, so nothing is opened.
    fs::rename(dir.path().join("07"), dir.path().join("away")).unwrap();
    files.sync_names().unwrap();
    fs::rename(dir.path().join("away"), dir.path().join("07")).unwrap();
    files.remove(7).unwrap();
    fs::rename(dir.path().join("07"), dir.path().join("away")).unwrap();
    for _ in 0..2 {
        assert!(files.sync_names().is_err(), "a failed sync is not taken for done");
    }
}

#[test]
fn space_is_that_of_the_host() {
    let (_dir, files) = small();
    let space = files.space().unwrap();
    assert!(space.block_size > 0 && space.blocks > 0);
    assert!(space.blocks_free <= space.blocks && space.blocks_available <= space.blocks_free);
}
