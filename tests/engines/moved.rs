//! Directories that another host has moved: a look finds them where they are, though a rename of one's own waits.
//!
//! What is hard: Linux can give a directory another place only while no rename between directories runs in that mount. One
//! that waits for a lock of the tree runs for as long as the lock is held.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use serde_json::Value;

use crate::common::{Held, lockwood, skipped, until};
use crate::two::{Two, over_postgres, over_redis};

/// FUSE_NOTIFY_PRUNE came with Linux 6.18.
fn kernel_takes_prunes() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(18))
}

fn waits(two: &Two, id: &str) -> bool {
    let listed = lockwood(["locks", "--json", &two.url]).ok();
    let locks = serde_json::from_str::<Vec<Value>>(&listed).unwrap();
    locks.iter().any(|lock| lock["id"] == id && lock["waiters"].as_array().is_some_and(|all| !all.is_empty()))
}

/// What was in use below a directory when another host moved it keeps nobody from finding it when it is in use no more.
fn a_look_finds_what_was_moved_while_a_rename_waits(two: Two) {
    let (here, there) = (two.point(0), two.point(1));
    for directory in ["from", "held", "old/moved/lower", "new"] {
        fs::create_dir_all(here.join(directory)).unwrap();
    }
    for file in ["from/x", "old/moved/lower/file"] {
        File::create_new(here.join(file)).unwrap();
    }
    let used = ["old/moved/lower", "old/moved/lower/file"].map(|path| File::open(here.join(path)).unwrap());
    until("the other host sees it", || there.join("held").exists());
    let held = Held::exclusive(&there.join("held"));
    std::thread::scope(|scope| {
        let rename = scope.spawn(|| fs::rename(here.join("from/x"), here.join("held/x")));
        until("the rename waits", || waits(&two, "%2Fheld"));
        fs::rename(there.join("old/moved"), there.join("new/moved")).unwrap();
        until("the notice has come", || !here.join("old/moved").exists());
        let refused = fs::metadata(here.join("new/moved")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ESTALE), "nothing keeps the kernel from moving it");
        let free = format!("/proc/self/fd/{}/free", used[0].as_raw_fd());
        assert!(!fs::exists(free).unwrap());
        drop(used);
        if kernel_takes_prunes() {
            until("what was moved is found", || here.join("new/moved/lower/file").exists());
            assert!(!rename.is_finished(), "the rename did not wait for so long");
        } else {
            skipped("a look at what was moved while a rename waits needs Linux 6.18");
        }
        drop(held);
        rename.join().unwrap().unwrap();
    });
    assert!(here.join("held/x").exists() && here.join("new/moved/lower/file").exists());
    two.finish();
}

/// For so long a mount remembers what it has told its kernel of names, and once more as long; the kernel keeps them.
const REMEMBERED: Duration = Duration::from_secs(10);

/// The other host's kernel has known for long what is below a directory, and nobody tells it that this was moved.
pub(crate) fn a_look_finds_what_was_known_for_long(two: &Two) {
    let (here, there) = (two.point(0), two.point(1));
    for directory in ["from", "held", "old/moved/lower", "new"] {
        fs::create_dir_all(here.join(directory)).unwrap();
    }
    for file in ["from/x", "old/moved/lower/file"] {
        File::create_new(here.join(file)).unwrap();
    }
    assert!(here.join("old/moved/lower/file").exists());
    for _ in 0..3 {
        std::thread::sleep(REMEMBERED + Duration::from_secs(1));
        assert!(here.join("from/x").exists());
    }
    until("the other host sees it", || there.join("held").exists());
    let held = Held::exclusive(&there.join("held"));
    std::thread::scope(|scope| {
        let rename = scope.spawn(|| fs::rename(here.join("from/x"), here.join("held/x")));
        until("the rename waits", || waits(two, "%2Fheld"));
        fs::rename(there.join("old/moved"), there.join("new/moved")).unwrap();
        until("what was moved is found", || here.join("new/moved/lower/file").exists());
        assert!(!rename.is_finished(), "the rename did not wait for so long");
        drop(held);
        rename.join().unwrap().unwrap();
    });
}

#[test]
fn a_look_finds_what_was_moved_over_postgresql() {
    over_postgres(|two, _| a_look_finds_what_was_moved_while_a_rename_waits(two));
}

#[test]
fn a_look_finds_what_was_moved_over_redis() {
    over_redis(a_look_finds_what_was_moved_while_a_rename_waits);
}
