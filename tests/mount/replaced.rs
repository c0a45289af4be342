//! Names and owners that change while the kernel believes something older: between a commit and its reply, or through
//! another mount.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::common::lines::Lines;
use crate::common::stop::StopOnDrop;
use crate::common::{LIMIT, Mounted, skipped, wait};
use crate::many::Many;

#[test]
fn a_name_that_is_replaced_is_never_absent() {
    const RENAMES: u64 = 1000;
    let Some(mounted) = Mounted::new() else { return };
    let (name, next) = (mounted.path("name"), mounted.path("next"));
    fs::write(&name, b"x").unwrap();
    let (ended, opens, stale) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _end = StopOnDrop(&ended);
        let ask = |ask: fn(&Path) -> std::io::Result<()>| {
            while !ended.load(Relaxed) {
                let _ = match ask(&name) {
                    Ok(()) => opens.fetch_add(1, Relaxed),
                    Err(error) if error.raw_os_error() == Some(libc::ESTALE) => stale.fetch_add(1, Relaxed),
                    Err(error) => panic!("{error}"),
                };
            }
        };
        scope.spawn(move || ask(|name| File::open(name).map(drop)));
        scope.spawn(move || ask(|name| fs::set_permissions(name, fs::Permissions::from_mode(0o600))));
        for _ in 0..RENAMES {
            fs::write(&next, b"y").unwrap();
            fs::rename(&next, &name).unwrap();
            std::thread::sleep(Duration::from_micros(500));
        }
    });
    // Who loses twice while he walks one path is told so.
    let (opens, stale) = (opens.into_inner(), stale.into_inner());
    assert!(opens > stale, "{stale} of {opens} were stale");
    mounted.finish();
}

#[test]
fn two_mounts_that_make_the_same_file_both_open_it() {
    let Some(many) = Many::new(2) else { return };
    let barrier = Barrier::new(2);
    for round in 0..300 {
        // Threads of this round alone: one that fails is waited for by nobody in the next.
        std::thread::scope(|scope| {
            for mount in 0..2 {
                let (path, barrier) = (many.at(mount, &format!("f{round}")), &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
                    assert!(opened.is_ok(), "round {round}: {}", opened.unwrap_err());
                });
            }
        });
    }
    many.finish();
}

/// The kernel of the other mount still takes him for the owner, by the descriptor that he has.
#[test]
fn who_owned_a_file_before_cannot_give_it_his_mode_by_another_mount() {
    const USER: u32 = 1234;
    let Some(many) = Many::new(2) else { return };
    let path = many.at(1, "program");
    fs::write(&path, b"#!/bin/sh\n").unwrap();
    if chown(&path, Some(USER), Some(USER)).is_err() {
        return skipped("needs root, for files of other users");
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "1234", "--regid", "1234", "--clear-groups", "sh", "-c"]);
    command.arg(r#"exec 3<"$0"; chmod 0700 "$0"; echo ready; read go; chmod 4755 /proc/self/fd/3 2>&1; chmod 4755 "$0""#);
    command.arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut former = match command.spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => return skipped("needs setpriv"),
        spawned => spawned.unwrap(),
    };
    let said = Lines::of(former.stdout.take().unwrap());
    assert_eq!(said.line(), "ready");
    chown(many.at(0, "program"), Some(0), Some(0)).unwrap();
    former.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let (words, status) = (said.rest(), wait(&mut former, LIMIT).expect("it ends"));
    assert!(!status.success() && words.contains("chmod"), "{words}");
    for mount in 0..2 {
        let seen = fs::metadata(many.at(mount, "program")).unwrap();
        assert_eq!(seen.permissions().mode() & 0o7777, 0o700);
    }
    many.finish();
}
