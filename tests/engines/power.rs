//! A Redis server that loses power, and with it the changes of its last second: nobody is told that they are kept.

use std::fs::{self, File};
use std::io::{Error, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::lines::Lines;
use crate::common::{BINARY, LIMIT, run, until, wait};
use crate::redis_server::RedisServer;
use crate::two::Two;

/// A server that was asked nothing for so long has written all to its disk (`appendfsync everysec`).
const ON_DISK_AFTER: Duration = Duration::from_millis(1500);

fn is_eio(synced: &Result<(), Error>) -> bool {
    matches!(synced, Err(error) if error.raw_os_error() == Some(libc::EIO))
}

#[test]
fn whatever_was_open_is_told_once_and_new_files_are_not() {
    let Some(mut server) = RedisServer::start() else { return };
    let Some(two) = Two::mounted(server.url("volume")) else { return };
    let point = two.point(0);
    let write = |name: &str| {
        let mut file = File::create(point.join(name)).unwrap();
        file.write_all(&[b'x'; 300_000]).unwrap();
        file
    };
    let opened = ["a", "b"].map(write);
    let root = File::open(&point).unwrap();
    opened.iter().chain([&root]).for_each(|file| file.sync_all().unwrap());
    let back = ["to go", "held"];
    back.iter().for_each(|name| fs::write(point.join(name), vec![b'y'; 300_000]).unwrap());
    root.sync_all().unwrap();
    std::thread::sleep(ON_DISK_AFTER);
    let held = File::open(point.join("held")).unwrap();
    let kept = server.on_disk();
    for mut file in &opened {
        file.write_all(b"lost").unwrap();
    }
    fs::write(point.join("also lost"), "").unwrap();
    back.iter().for_each(|name| fs::remove_file(point.join(name)).unwrap());
    server.lose_power(&kept);
    // Where the server cannot be asked to wait for its disk, the next change finds out.
    until("it takes changes again", || fs::write(point.join("after"), "").is_ok());
    for file in opened.iter().chain([&root]) {
        let synced = file.sync_all();
        assert!(is_eio(&synced), "{synced:?}");
    }
    opened.iter().chain([&root]).for_each(|file| file.sync_all().unwrap());
    for open in [&point, &point.join("a")] {
        File::open(open).unwrap().sync_all().unwrap();
    }
    // The last close of a file that had lost its name, and has it again.
    drop(held);
    // What is back has its bytes: nobody took them for those of a file that is gone.
    for at in 0..2 {
        let paths = back.map(|name| two.point(at).join(name));
        until("they are back", || paths.iter().all(|path| read(path).is_some()));
        // Whoever had them removed tries for a while.
        std::thread::sleep(ON_DISK_AFTER);
        paths.iter().for_each(|path| assert_eq!(read(path).unwrap(), vec![b'y'; 300_000]));
        until("the other is gone", || !two.point(at).join("also lost").exists());
    }
    drop((opened, root));
    two.finish();
}

/// What is held for a command, whose commits are not ours to refuse.
#[test]
fn who_holds_a_lock_is_told_that_it_is_lost() {
    let Some(mut server) = RedisServer::start() else { return };
    let Some(two) = Two::mounted(server.url("volume")) else { return };
    let [here, there] = [0, 1].map(|at| two.point(at).join("d"));
    fs::create_dir(&here).unwrap();
    File::open(two.point(0)).unwrap().sync_all().unwrap();
    std::thread::sleep(ON_DISK_AFTER);
    let kept = server.on_disk();
    let mut lock = Command::new(BINARY);
    lock.arg("lock").arg(&here).args(["--", "sh", "-c", "echo has it; read end"]);
    let mut lock = lock.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(Lines::of(lock.stdout.take().unwrap()).line(), "has it");
    server.lose_power(&kept);
    let warned = Lines::of(lock.stderr.take().unwrap()).line();
    assert!(warned.contains("the store has lost it"), "{warned}");
    let take = || run(Command::new(BINARY).args(["lock", "--wait=0"]).arg(&there).args(["--", "true"]));
    until("another can have it", || take().code == 0);
    drop(lock.stdin.take());
    let code = wait(&mut lock, LIMIT).and_then(|status| status.code());
    assert_eq!(code, Some(76));
    two.finish();
}

fn read(path: &Path) -> Option<Vec<u8>> {
    fs::read(path).ok()
}
