//! Files that the kernel reads and writes itself: that it does, that nobody can tell by what is read, shown or kept, and
//! what becomes of what was written when the daemon dies.

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FallocateFlags, Timespec, Timestamps, copy_file_range, fallocate, futimens};
use rustix::io::{ReadWriteFlags, pwritev2};
use rustix::process::Signal;

use crate::common::mapped::Map;
use crate::common::{Mounted, is_alive, lockwood, signal, skipped, until};

const LARGE: usize = 100_000;

/// A mount whose kernel does so; none, loudly, where it cannot.
fn passing() -> Option<Mounted> {
    passing_as("write")
}

fn passing_as(what: &str) -> Option<Mounted> {
    let mounted = Mounted::with_options(&format!("passthrough={what}"))?;
    let status = mounted.status()["passthrough"].as_str().unwrap().to_owned();
    if status != what {
        skipped(&format!("passthrough is {status}"));
        return None;
    }
    Some(mounted)
}

fn requests(mounted: &Mounted) -> u64 {
    mounted.status()["requests"].as_u64().unwrap()
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed) % 251) as u8).collect()
}

/// A file with a backing file, which nobody has open. A close returns before the daemon knows of it.
fn large(mounted: &Mounted, name: &str) -> Vec<u8> {
    let bytes = pattern(LARGE, name.len());
    fs::write(mounted.path(name), &bytes).unwrap();
    closed(mounted);
    bytes
}

fn closed(mounted: &Mounted) {
    until("the daemon knows of the close", || mounted.status()["open_inodes"] == 0);
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// What every way to look at a file shows of it.
fn assert_shows(path: &Path, file: &File, bytes: &[u8]) {
    let len = bytes.len() as u64;
    assert_eq!((file.metadata().unwrap().len(), fs::metadata(path).unwrap().len()), (len, len));
    assert_eq!({ file }.seek(SeekFrom::End(0)).unwrap(), len);
    let mut read = vec![0; bytes.len() + 10];
    let got = file.read_at(&mut read, 0).unwrap();
    assert!(read[..got] == *bytes, "{} of {} bytes", got, bytes.len());
    assert!(fs::read(path).unwrap() == bytes);
}

#[test]
fn an_open_file_is_read_and_written_without_a_request() {
    let Some(mut mounted) = passing() else { return };
    let mut expected = large(&mounted, "f");
    let path = mounted.path("f");
    let file = open(&path);
    let before = requests(&mounted);
    let own = requests(&mounted) - before;
    let before = requests(&mounted);
    for round in 0..1000 {
        let at = (round * 97) % LARGE;
        file.write_all_at(&[round as u8], at as u64).unwrap();
        expected[at] = round as u8;
        let mut read = [0];
        file.read_exact_at(&mut read, at as u64).unwrap();
        assert_eq!(read[0], round as u8);
    }
    let asked = requests(&mounted) - before - own;
    assert!(asked <= 4, "{asked} requests for 1,000 reads and writes");
    file.write_all_at(b"the end", LARGE as u64 + 1000).unwrap();
    expected.resize(LARGE + 1000, 0);
    expected.extend(b"the end");
    assert_shows(&path, &file, &expected);
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b" and on").unwrap();
    expected.extend(b" and on");
    assert_shows(&path, &file, &expected);
    drop(file);
    mounted.remount();
    assert!(fs::read(&path).unwrap() == expected);
    mounted.finish();
}

#[test]
fn who_opens_a_file_that_is_being_made_sees_what_is_written() {
    let Some(mounted) = passing() else { return };
    let path = mounted.path("new");
    let maker = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    let mut expected = pattern(LARGE, 3);
    maker.write_all_at(&expected, 0).unwrap();
    let second = open(&path);
    second.write_all_at(b"second", 10).unwrap();
    expected[10..16].copy_from_slice(b"second");
    assert_shows(&path, &maker, &expected);
    drop(maker);
    drop(second);
    closed(&mounted);
    let third = open(&path);
    third.write_all_at(b"third", 20).unwrap();
    expected[20..25].copy_from_slice(b"third");
    assert_shows(&path, &third, &expected);
    drop(third);
    closed(&mounted);
    // Each write is to be durable: the daemon's work, by pages that the kernel had before.
    let durable = OpenOptions::new().read(true).write(true).custom_flags(libc::O_SYNC).open(&path).unwrap();
    durable.write_all_at(b"fourth", 30).unwrap();
    expected[30..36].copy_from_slice(b"fourth");
    assert_shows(&path, &durable, &expected);
    drop(durable);
    mounted.finish();
}

#[test]
fn a_map_is_the_file() {
    let Some(mut mounted) = passing() else { return };
    let mut expected = large(&mounted, "f");
    let path = mounted.path("f");
    let file = open(&path);
    let map = Map::of(&file, LARGE);
    map.put(5, b"maps");
    expected[5..9].copy_from_slice(b"maps");
    assert_shows(&path, &file, &expected);
    file.write_all_at(b"write", 50_000).unwrap();
    expected[50_000..50_005].copy_from_slice(b"write");
    assert!((0..LARGE).all(|at| map.get(at) == expected[at]));
    drop(file);
    closed(&mounted);
    // The map outlives the open file, and is still the file of whoever opens it again.
    map.put(100, b"late");
    expected[100..104].copy_from_slice(b"late");
    assert!(fs::read(&path).unwrap() == expected);
    map.sync().unwrap();
    drop(map);
    mounted.remount();
    assert!(fs::read(&path).unwrap() == expected);
    mounted.finish();
}

#[test]
fn what_is_cut_grown_punched_and_copied_is_so_for_who_has_it_open() {
    let Some(mounted) = passing() else { return };
    let mut expected = large(&mounted, "f");
    let source = large(&mounted, "source");
    let path = mounted.path("f");
    let file = open(&path);
    file.set_len(50_000).unwrap();
    expected.truncate(50_000);
    assert_shows(&path, &file, &expected);
    file.set_len(70_000).unwrap();
    expected.resize(70_000, 0);
    assert_shows(&path, &file, &expected);
    file.write_all_at(b"x", 80_000).unwrap();
    expected.resize(80_000, 0);
    expected.push(b'x');
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(80_000).unwrap();
    expected.truncate(80_000);
    assert_shows(&path, &file, &expected);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 8192, 4096).unwrap();
    expected[8192..12_288].fill(0);
    assert_shows(&path, &file, &expected);
    fallocate(&file, FallocateFlags::empty(), 0, 90_000).unwrap();
    expected.resize(90_000, 0);
    assert_shows(&path, &file, &expected);
    let (mut from, mut to) = (1000, 85_000);
    let from_file = File::open(mounted.path("source")).unwrap();
    let copied =
        copy_file_range(from_file.as_fd(), Some(&mut from), file.as_fd(), Some(&mut to), 10_000).unwrap();
    assert_eq!(copied, 10_000);
    expected.resize(95_000, 0);
    expected[85_000..].copy_from_slice(&source[1000..11_000]);
    assert_shows(&path, &file, &expected);
    // Where data is, beyond what the node said before.
    file.write_all_at(b"y", 200_000).unwrap();
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(150_000)).unwrap();
    assert!((150_000..=200_000).contains(&data), "{data}");
    drop((file, from_file));
    mounted.finish();
}

#[test]
fn times_and_space_are_those_of_the_writes() {
    let Some(mut mounted) = passing() else { return };
    large(&mounted, "f");
    let path = mounted.path("f");
    let file = open(&path);
    let time = Timespec { tv_sec: 1_000_000_000, tv_nsec: 7 };
    let set = || futimens(&file, &Timestamps { last_access: time, last_modification: time }).unwrap();
    let modified = || {
        let found = fs::metadata(&path).unwrap();
        (found.mtime(), found.mtime_nsec())
    };
    set();
    assert_eq!(modified(), (1_000_000_000, 7));
    let before = fs::metadata(&path).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    file.write_all_at(&pattern(1 << 20, 0), 0).unwrap();
    let written = fs::metadata(&path).unwrap();
    assert!(written.ctime() > 1_000_000_000 && modified() > (1_000_000_000, 7));
    assert!((written.ctime(), written.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
    assert!(written.blocks() * 512 >= 1 << 20, "{}", written.blocks());
    assert!(written.blocks() > before.blocks());
    File::open(&path).unwrap().read_exact(&mut [0]).unwrap();
    let read = fs::metadata(&path).unwrap();
    assert!((read.atime(), read.atime_nsec()) >= (written.mtime(), written.mtime_nsec()), "{read:?}");
    // What was set after the write stays, also after the close and the mount.
    set();
    drop(file);
    closed(&mounted);
    assert_eq!(modified(), (1_000_000_000, 7));
    mounted.remount();
    assert_eq!(modified(), (1_000_000_000, 7));
    mounted.finish();
}

#[test]
fn what_was_acknowledged_is_kept_when_the_daemon_dies() {
    let Some(mut mounted) = passing() else { return };
    let mut expected = large(&mounted, "f");
    let read_only = large(&mounted, "read");
    let path = mounted.path("f");
    let file = open(&path);
    let reader = File::open(mounted.path("read")).unwrap();
    file.write_all_at(&pattern(300_000, 9), 60_000).unwrap();
    expected.truncate(60_000);
    expected.extend(pattern(300_000, 9));
    signal(mounted.pid(), Signal::KILL);
    until("the daemon is dead", || !is_alive(mounted.pid()));
    drop((file, reader));
    lockwood([std::ffi::OsStr::new("umount"), mounted.mount_point.as_os_str()]).ok();
    mounted.mount("rw");
    assert_eq!(fs::metadata(&path).unwrap().len(), expected.len() as u64);
    assert!(fs::read(&path).unwrap() == expected);
    assert!(fs::read(mounted.path("read")).unwrap() == read_only);
    mounted.finish();
}

#[test]
fn a_file_without_a_name_is_written_on_and_then_gone() {
    let Some(mounted) = passing() else { return };
    large(&mounted, "f");
    let mut file = open(&mounted.path("f"));
    fs::remove_file(mounted.path("f")).unwrap();
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(&pattern(LARGE, 1)).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 2 * LARGE as u64);
    file.seek(SeekFrom::Start(LARGE as u64)).unwrap();
    let mut read = Vec::new();
    file.read_to_end(&mut read).unwrap();
    assert!(read == pattern(LARGE, 1));
    drop(file);
    closed(&mounted);
    until("the bytes are gone", || {
        mounted.check().ok().contains(" 0 backing files") || !has_backing(&mounted)
    });
    mounted.finish();
}

fn has_backing(mounted: &Mounted) -> bool {
    let content = fs::read_dir(mounted.store.join("content")).unwrap().map(Result::unwrap);
    let mut shards = content.filter(|entry| entry.path().is_dir());
    shards.any(|shard| fs::read_dir(shard.path()).unwrap().next().is_some())
}

#[test]
fn a_write_takes_privileges_that_a_file_was_given_while_it_is_open() {
    let Some(mounted) = passing() else { return };
    large(&mounted, "f");
    let path = mounted.path("f");
    let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
    let file = open(&path);
    file.write_all_at(b"before", 0).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
    assert_eq!(mode(), 0o6755, "a write before takes nothing");
    std::thread::sleep(Duration::from_millis(20));
    file.write_all_at(b"after", 0).unwrap();
    assert_eq!(mode(), 0o755);
    drop(File::open(&path).unwrap());
    assert_eq!(mode(), 0o755);
    drop(file);
    closed(&mounted);
    // One that has them is the daemon's to write, which asks who writes.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    let before = requests(&mounted);
    let file = open(&path);
    for at in 0..100 {
        file.write_all_at(b"x", at).unwrap();
    }
    assert!(requests(&mounted) - before >= 100);
    drop(file);
    mounted.finish();
}

#[test]
fn readers_alone_are_passed_unless_told_otherwise() {
    let Some(mut mounted) = passing_as("read") else { return };
    let mut expected = large(&mounted, "f");
    let path = mounted.path("f");
    let reader = File::open(&path).unwrap();
    let before = requests(&mounted);
    for at in 0..1000 {
        let mut read = [0];
        reader.read_exact_at(&mut read, at).unwrap();
        assert_eq!(read[0], expected[at as usize]);
    }
    assert!(requests(&mounted) - before <= 4);
    // A writer who comes while it is passed asks for each change, and maps the same file.
    let writer = open(&path);
    let before = requests(&mounted);
    for at in 0..100 {
        writer.write_all_at(b"w", at * 7).unwrap();
        expected[at as usize * 7] = b'w';
    }
    assert!(requests(&mounted) - before >= 100);
    assert_shows(&path, &reader, &expected);
    assert_shows(&path, &writer, &expected);
    Map::of(&writer, 4096).put(3, b"m");
    expected[3] = b'm';
    (&writer).seek(SeekFrom::End(0)).unwrap();
    let mut appender = OpenOptions::new().append(true).open(&path).unwrap();
    appender.write_all(b"appended").unwrap();
    expected.extend(b"appended");
    writer.set_len(expected.len() as u64 + 100).unwrap();
    expected.resize(expected.len() + 100, 0);
    assert_shows(&path, &reader, &expected);
    assert_shows(&path, &writer, &expected);
    drop((reader, writer, appender));
    closed(&mounted);
    // And one who comes first is not passed, nor are those who come then.
    let writer = open(&path);
    let reader = File::open(&path).unwrap();
    writer.write_all_at(b"first", 0).unwrap();
    expected[..5].copy_from_slice(b"first");
    assert_shows(&path, &reader, &expected);
    drop((reader, writer));
    mounted.remount();
    assert!(fs::read(&path).unwrap() == expected);
    mounted.finish();
}

/// Linux asks for no sync of a write that fills no pages of its own.
#[test]
fn a_write_to_a_file_that_is_open_with_o_sync_is_durable_when_it_returns() {
    for what in ["off", "read", "write"] {
        let Some(mounted) = Mounted::with_options(&format!("passthrough={what}")) else { return };
        large(&mounted, "f");
        let syncs = || mounted.status()["documents"]["syncs"].as_u64().unwrap();
        let sync =
            || OpenOptions::new().read(true).write(true).custom_flags(libc::O_SYNC).open(mounted.path("f"));
        let before = syncs();
        let first = sync().unwrap();
        for at in 0..10 {
            first.write_all_at(b"x", at).unwrap();
        }
        assert!(syncs() - before >= 10, "{what}");
        drop(first);
        closed(&mounted);
        let reader = File::open(mounted.path("f")).unwrap();
        let before = syncs();
        let second = sync().unwrap();
        for at in 0..10 {
            second.write_all_at(b"y", at).unwrap();
        }
        // Where it is passed the host syncs each write, and the open has synced the rest.
        assert!(syncs() - before >= if what == "write" { 1 } else { 10 }, "{what}");
        drop((reader, second));
        mounted.finish();
    }
}

/// Linux asks for no sync of them either, and a new file that is only written has no pages in any mode but `off`.
#[test]
fn each_write_is_durable_when_it_returns_whatever_says_so_and_however_its_file_is_open() {
    const WRITES: u64 = 5;
    for (options, plain) in [("rw", false), ("passthrough=off", false), ("sync", true)] {
        let Some(mounted) = Mounted::with_options(options) else { return };
        let syncs = || mounted.status()["documents"]["syncs"].as_u64().unwrap();
        for (read, flags) in [(false, 0), (true, 0), (false, libc::O_SYNC), (true, libc::O_DSYNC)] {
            let path = mounted.path("new");
            let mut how = OpenOptions::new();
            let file = how.read(read).write(true).create_new(true).custom_flags(flags).open(&path).unwrap();
            let before = syncs();
            for at in 0..WRITES {
                if plain || flags != 0 {
                    file.write_all_at(b"x", at).unwrap();
                } else {
                    let bytes = [IoSlice::new(b"x")];
                    assert_eq!(pwritev2(&file, &bytes, at, ReadWriteFlags::DSYNC).unwrap(), 1);
                }
            }
            assert!(syncs() - before >= WRITES, "{options}, flags {flags:o}, read: {read}");
            drop(file);
            fs::remove_file(&path).unwrap();
        }
        mounted.finish();
    }
}

#[test]
fn it_is_off_where_it_is_told_to_be_or_cannot_be() {
    for (options, said) in [("passthrough=off", "off: "), ("sync,passthrough=write", "read"), ("rw", "read")]
    {
        let Some(mounted) = Mounted::with_options(options) else { return };
        let status = mounted.status();
        assert!(status["passthrough"].as_str().unwrap().starts_with(said), "{status}");
        let expected = large(&mounted, "f");
        let before = requests(&mounted);
        let file = open(&mounted.path("f"));
        for at in 0..100 {
            file.write_all_at(&expected[at..=at], at as u64).unwrap();
        }
        assert!(requests(&mounted) - before >= 100);
        assert_shows(&mounted.path("f"), &file, &expected);
        drop(file);
        mounted.finish();
    }
}

#[test]
fn a_copy_that_ends_in_a_hole_is_as_long_for_who_reads() {
    const LEN: usize = 1 << 20;
    let Some(mounted) = Mounted::new() else { return };
    let (source, target) = (mounted.path("source"), mounted.path("target"));
    fs::write(&source, vec![2; 8192]).unwrap();
    let source = open(&source);
    source.set_len(LEN as u64).unwrap();
    fs::write(&target, vec![1; 8192]).unwrap();
    let mut reader = File::open(&target).unwrap();
    let writer = fs::OpenOptions::new().write(true).open(&target).unwrap();
    let (mut from, mut to) = (0, 0);
    while copy_file_range(source.as_fd(), Some(&mut from), writer.as_fd(), Some(&mut to), LEN).unwrap() > 0 {}
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), LEN);
    assert!(bytes[..8192].iter().all(|b| *b == 2) && bytes[8192..].iter().all(|b| *b == 0));
    drop((source, reader, writer));
    mounted.finish();
}

/// The host keeps a file that was passed in one piece, and may have no piece of the size that it is given later.
#[test]
fn a_file_that_is_too_large_to_be_passed_is_read_all_the_same() {
    let Some(mounted) = Mounted::new() else { return };
    let path = mounted.path("f");
    fs::write(&path, vec![1; 8192]).unwrap();
    let reader = File::open(&path).unwrap();
    let set_len =
        |tib: u64| fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(tib << 40).unwrap();
    set_len(2);
    drop(reader);
    closed(&mounted);
    set_len(20);
    let mut bytes = [0; 8192];
    File::open(&path).unwrap().read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, [1; 8192]);
    set_len(0);
    mounted.finish();
}
