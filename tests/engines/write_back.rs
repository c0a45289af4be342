//! Mounts that keep written bytes back (`-o write-back`), over real servers, beside one that does not.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;

use crate::common::locker::{Locker, piece};
use crate::common::{lockwood, mapped, signal, until};
use crate::postgres::server::PostgresServer;
use crate::redis_server::RedisServer;
use crate::two::Two;

const PIECE: i64 = 4096;
const KEEPS_BACK: [&str; 2] = ["write-back=4M", "rw"];
/// After so long at most it is sent without anybody asking.
const SENT_AFTER: Duration = Duration::from_secs(5);

fn over_redis(options: [&'static str; 2], test: impl FnOnce(Two, &RedisServer)) {
    let Some(server) = RedisServer::start() else { return };
    if let Some(two) = Two::mounted_with(server.url("volume"), options) {
        test(two, &server);
    }
}

fn over_postgres(options: [&'static str; 2], test: impl FnOnce(Two)) {
    let Some(server) = PostgresServer::start() else { return };
    if let Some(two) = Two::mounted_with(server.url("volume"), options) {
        test(two);
    }
}

/// The first so many pieces.
fn pieces(number: i64) -> Vec<u8> {
    (0..number).flat_map(|n| piece(n, PIECE)).collect()
}

/// A new file, which a process has open that closes it when it is told to, and no sooner.
fn writer(path: &Path) -> Locker {
    File::create_new(path).unwrap();
    Locker::at(path)
}

fn write(writer: &mut Locker, from: i64, to: i64) {
    assert_eq!(writer.ask(&format!("pieces a {PIECE} {from} {to}")), "ok");
}

fn counted(two: &Two, at: usize, part: &str, what: &str) -> u64 {
    two.status(at)[part][what].as_u64().unwrap()
}

/// What a mebibyte in pieces of 4 KiB costs. A mount makes a commit of its own now and then: it says that it lives.
fn pieces_are_committed_together(two: &Two) {
    const BEATS: u64 = 20;
    const PIECES: i64 = 256;
    let of = |of: usize, at: usize| two.point(at).join(format!("of{of}"));
    let commits = [0, 1].map(|at| {
        let mut file = writer(&of(at, at));
        let before = counted(two, at, "documents", "commits");
        write(&mut file, 0, PIECES);
        assert_eq!(file.ask("close a"), "ok");
        counted(two, at, "documents", "commits") - before
    });
    assert!((1..=1 + BEATS).contains(&commits[0]), "{commits:?}");
    assert!((256..=256 + BEATS).contains(&commits[1]), "{commits:?}");
    assert_eq!(counted(two, 0, "write_back", "flushes"), 1);
    assert!(two.status(1)["write_back"].is_null());
    for (file, at) in [(1, 0), (0, 1)] {
        let read = || fs::read(of(file, at)).is_ok_and(|found| found == pieces(PIECES));
        until("the other host reads it", read);
    }
}

/// Whoever has written without asking for more loses that, and nothing else.
fn a_daemon_that_is_killed_loses_what_was_not_synced(two: &mut Two) {
    const SYNCED: i64 = 25;
    let path = |two: &Two, at| two.point(at).join("killed");
    let mut file = writer(&path(two, 0));
    write(&mut file, 0, SYNCED);
    assert_eq!(file.ask("sync a"), "ok");
    let begun = Instant::now();
    write(&mut file, SYNCED, 2 * SYNCED);
    assert_eq!(file.ask("size a"), (2 * SYNCED * PIECE).to_string());
    signal(two.daemons[0], Signal::KILL);
    let was_quick = begun.elapsed() < SENT_AFTER;
    drop(file);
    unmount(two.point(0), UnmountFlags::DETACH).unwrap();
    let synced = pieces(SYNCED);
    let is_there = || fs::metadata(path(two, 1)).is_ok_and(|found| found.len() >= synced.len() as u64);
    until("what was synced", is_there);
    let found = fs::read(path(two, 1)).unwrap();
    assert!(pieces(2 * SYNCED).starts_with(&found) && found.starts_with(&synced), "{} bytes", found.len());
    assert!(!was_quick || found.len() == synced.len(), "{} bytes", found.len());
    until("the dead session is cleaned up", || lockwood(["check", &two.url]).code == 0);
    two.mount(0);
}

#[test]
fn pieces_are_committed_together_and_only_what_was_not_synced_can_be_lost_over_redis() {
    over_redis(KEEPS_BACK, |mut two, _| {
        pieces_are_committed_together(&two);
        a_daemon_that_is_killed_loses_what_was_not_synced(&mut two);
        two.finish();
    });
}

#[test]
fn pieces_are_committed_together_and_only_what_was_not_synced_can_be_lost_over_postgresql() {
    over_postgres(KEEPS_BACK, |mut two| {
        pieces_are_committed_together(&two);
        a_daemon_that_is_killed_loses_what_was_not_synced(&mut two);
        two.finish();
    });
}

#[test]
fn no_more_than_the_bound_waits_and_not_for_longer_than_its_time() {
    const BOUND: u64 = 64 << 10;
    over_redis(["write-back=64K", "rw"], |two, _| {
        let path = |at| two.point(at).join("bound");
        let mut file = writer(&path(0));
        let begun = Instant::now();
        write(&mut file, 0, 75);
        let bytes = pieces(75);
        assert!(counted(&two, 0, "write_back", "dirty_bytes") <= BOUND);
        let there = || fs::metadata(path(1)).map_or(0, |found| found.len());
        until("all but the bound", || there() >= bytes.len() as u64 - BOUND);
        until("all of it", || there() == bytes.len() as u64);
        assert!(begun.elapsed() < 2 * SENT_AFTER, "{:?}", begun.elapsed());
        until("its account is settled", || counted(&two, 0, "write_back", "dirty_bytes") == 0);
        assert_eq!(fs::read(path(1)).unwrap(), bytes);
        drop(file);
        two.finish();
    });
}

#[test]
fn an_error_that_comes_later_reaches_each_open_file_at_its_fsync_or_close() {
    over_redis(KEEPS_BACK, |two, server| {
        let set_room = |bytes: u32| {
            let mut admin = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
            write!(admin, "CONFIG SET maxmemory {bytes}\r\n").unwrap();
            let mut answer = [0; 5];
            admin.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"+OK\r\n");
        };
        let path = two.point(0).join("late");
        let mut file = writer(&path);
        for opened in ["b", "c"] {
            assert_eq!(file.ask(&format!("open {opened}")), "ok");
        }
        let (full, dead) = (format!("errno {}", libc::ENOSPC), format!("errno {}", libc::EIO));
        set_room(1);
        write(&mut file, 0, 3);
        for (line, answer) in [("close c", &*full), ("sync b", &full), ("sync b", "ok"), ("sync a", &full)] {
            assert_eq!(file.ask(line), answer, "{line}");
        }
        set_room(0);
        assert_eq!([file.ask("sync a"), file.ask("size a")], ["ok", "0"], "told, and not shown");
        assert_eq!(counted(&two, 0, "write_back", "lost_bytes"), (3 * PIECE).cast_unsigned());
        // A session that is declared dead writes nothing, and does not say that it has.
        write(&mut file, 0, 1);
        let session = two.status(0)["session"].as_str().unwrap().to_owned();
        let point = two.point(1);
        lockwood([OsStr::new("break"), point.as_os_str(), OsStr::new(&session), OsStr::new("--force")]).ok();
        assert_eq!(file.ask("sync a"), dead);
        assert_eq!(file.ask(&format!("pieces a {PIECE} 1 2")), dead);
        assert_eq!(fs::metadata(point.join("late")).unwrap().len(), 0);
        drop(file);
        until("the mount can go", || lockwood([OsStr::new("umount"), two.point(0).as_os_str()]).code == 0);
        two.clean();
    });
}

#[test]
fn a_map_does_not_undo_a_truncation_on_another_host_whether_its_mount_keeps_bytes_back_or_not() {
    over_redis(KEEPS_BACK, |two, _| {
        for (ours, theirs) in [(0, 1), (1, 0)] {
            mapped::a_map_does_not_undo_a_truncation(&two.file(ours), &two.file(theirs));
        }
        two.finish();
    });
}

#[test]
fn the_option_is_refused_where_it_has_no_meaning() {
    over_redis(["rw"; 2], |two, _| {
        let more = ["one", "two"].map(|name| {
            let point = two.point(0).with_file_name(name);
            fs::create_dir(&point).unwrap();
            point
        });
        let [one, other] = more.each_ref().map(|point| point.as_os_str());
        let option = ["-o", "write-back=1M"].map(OsStr::new);
        let refused = |words: &[&OsStr]| lockwood([words, &option].concat()).refused();
        let (mount, url) = (OsStr::new("mount"), OsStr::new(&two.url));
        assert!(refused(&[mount, url, one, other]).contains("one mount point only"));
        let store = two.point(0).with_file_name("store");
        lockwood([OsStr::new("format"), store.as_os_str()]).ok();
        assert!(refused(&[mount, store.as_os_str(), one]).contains("one owner"));
        two.finish();
    });
}
