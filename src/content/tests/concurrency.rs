//! Readers, writers, trims and removals side by side.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::stop::StopOnDrop;

#[test]
fn writers_of_disjoint_ranges_do_not_disturb_each_other() {
    let (_dir, files) = small();
    let start = Barrier::new(8);
    thread::scope(|scope| {
        for writer in 0..8_u64 {
            let (files, start) = (&files, &start);
            scope.spawn(move || {
                start.wait();
                for round in 0..40_u64 {
                    let byte = u8::try_from(writer + 1).unwrap();
                    let at = (round * 8 + writer) * 4000;
                    files.file(7).unwrap().write_at(&[byte; 4000], at).unwrap();
                    assert_eq!(read(&files.file(7).unwrap(), at, 4000), [byte; 4000]);
                }
            });
        }
    });
    let all = read(&files.file(7).unwrap(), 0, 8 * 40 * 4000);
    for (at, block) in all.chunks(4000).enumerate() {
        assert!(block.iter().all(|&byte| usize::from(byte) == at % 8 + 1), "block {at}");
    }
}

#[test]
fn a_write_into_a_segment_that_is_being_trimmed_is_there_or_gone_but_never_lost_later() {
    let (_dir, files) = small();
    let file = files.file(7).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = StopOnDrop(&done);
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                file.truncate(SEGMENT).unwrap();
                file.punch_hole(SEGMENT, 2 * SEGMENT).unwrap();
            }
        });
        scope.spawn(|| {
            let mut buf = vec![0; 3 * SEGMENT as usize];
            while !done.load(Ordering::Relaxed) {
                file.read_at(&mut buf, 0).unwrap();
                assert!(buf.iter().all(|&byte| byte <= 1));
                file.sync(true).unwrap();
            }
        });
        for _ in 0..300 {
            file.write_at(&[1; 8192], 2 * SEGMENT - 4096).unwrap();
        }
    });
    file.write_at(&[1; 8192], 2 * SEGMENT - 4096).unwrap();
    assert_eq!(read(&file, 2 * SEGMENT - 4096, 8192), [1; 8192]);
}

#[test]
fn copies_in_opposite_directions_do_not_wait_for_each_other() {
    let (_dir, files) = small();
    let (one, two) = (files.file(1).unwrap(), files.file(2).unwrap());
    one.write_at(&vec![1; 2 * SEGMENT as usize], 0).unwrap();
    two.write_at(&vec![1; 2 * SEGMENT as usize], 0).unwrap();
    thread::scope(|scope| {
        for (from, to) in [(&one, &two), (&two, &one)] {
            scope.spawn(move || {
                for _ in 0..50 {
                    from.copy_to(0, to, 2 * SEGMENT, 2 * SEGMENT).unwrap();
                    to.truncate(2 * SEGMENT).unwrap();
                }
            });
        }
    });
    assert_eq!(read(&one, 0, 4096), [1; 4096]);
}

#[test]
fn handles_come_and_go_while_files_are_removed() {
    let (_dir, files) = small();
    thread::scope(|scope| {
        for thread in 0..4_u64 {
            let files = &files;
            scope.spawn(move || {
                for round in 0..200_u64 {
                    let ino = round % 3;
                    match (round + thread) % 4 {
                        0 => files.remove(ino).unwrap(),
                        1 => drop(files.find(ino).unwrap()),
                        2 => files.sync_names().unwrap(),
                        _ => files.file(ino).unwrap().write_at(&[1], 2 * SEGMENT).unwrap(),
                    }
                }
            });
        }
    });
    for ino in 0..3 {
        files.remove(ino).unwrap();
    }
    assert_eq!(files.list().count(), 0);
}
