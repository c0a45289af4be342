//! Times through the kernel: before 1970, with nanoseconds, and as far away as a time can be.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;

use rustix::fs::{Timespec, Timestamps, futimens};

use crate::common::Mounted;

fn set(file: &File, sec: i64, nsec: i64) -> rustix::io::Result<()> {
    let time = Timespec { tv_sec: sec, tv_nsec: nsec };
    futimens(file, &Timestamps { last_access: time, last_modification: time })
}

#[test]
fn times_before_1970_keep_their_nanoseconds() {
    let Some(mut mounted) = Mounted::new() else { return };
    let cases = [
        (-2, 500_000_000),
        (-1, 999_999_999),
        (-1, 0),
        (-1, 1),
        (0, 0),
        (0, 1),
        (1, 999_999_999),
        (-2_208_988_800, 250_000_000),
        (4_102_444_800, 123_456_789),
    ];
    for (at, (sec, nsec)) in cases.into_iter().enumerate() {
        let file = File::create(mounted.path(&at.to_string())).unwrap();
        set(&file, sec, nsec).unwrap();
        let found = file.metadata().unwrap();
        assert_eq!((found.mtime(), found.mtime_nsec()), (sec, nsec));
        assert_eq!((found.atime(), found.atime_nsec()), (sec, nsec));
    }
    mounted.remount();
    for (at, (sec, nsec)) in cases.into_iter().enumerate() {
        let found = fs::metadata(mounted.path(&at.to_string())).unwrap();
        assert_eq!((found.mtime(), found.mtime_nsec()), (sec, nsec), "after a remount");
    }
    mounted.finish();
}

#[test]
fn extreme_times_do_not_kill_the_daemon() {
    let seconds = [i64::MIN + 1, -(1 << 62), -(1 << 40), 1 << 40, 1 << 62, i64::MAX - 1, i64::MAX];
    survives(&seconds, &[0, 1, 999_999_999]);
}

/// `touch -d @-9223372036854775808`: a second earlier than the last one that can be negated.
#[test]
fn the_earliest_time_of_all_does_not_kill_the_daemon() {
    survives(&[i64::MIN], &[0, 1, 999_999_999]);
}

fn survives(seconds: &[i64], nanoseconds: &[i64]) {
    let Some(mut mounted) = Mounted::new() else { return };
    let file = File::create(mounted.path("f")).unwrap();
    let pid = mounted.pid();
    for &sec in seconds {
        for &nsec in nanoseconds {
            // Refused or kept as near as it goes: either will do, as long as the tree is still there.
            let outcome = set(&file, sec, nsec);
            let found = fs::metadata(mounted.path("f"));
            assert!(found.is_ok(), "{sec} s {nsec} ns ({outcome:?}): {found:?}");
        }
    }
    assert_eq!(mounted.status()["pid"], pid);
    drop(file);
    mounted.remount();
    fs::metadata(mounted.path("f")).unwrap();
    mounted.finish();
}
