//! What a signal does to a rename that waits for a lock, whatever is behind the mounts: the test is given the roots of two
//! mounts of one volume, or the same one twice.

use std::fs;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::locker::Locker;
use super::{Held, signal, until, wait};
use lockwood::ambient::monotonic;

/// How soon a wait ends over most engines. The daemon looks four times a second, and the machine does other things too.
pub(crate) const SOON: Duration = Duration::from_secs(1);
const INTERRUPTED: &str = "errno 4";

/// How many wait for the lock of `/d`, as a mount shows it.
fn waiting(root: &Path) -> usize {
    let Ok(text) = fs::read(root.join(".lockwood/locks/%2Fd")) else { return 0 };
    let document: Value = serde_json::from_slice(&text).expect("a lock document");
    document["waiters"].as_array().map_or(0, Vec::len)
}

/// A `mv` that waits, and that signals do to what they do by default: a job in the background inherits that `^C` is ignored.
/// Its process group is its own, as a shell gives it to a job: `^Z` stops nobody in a group whose parents are all gone.
fn mv(root: &Path) -> Child {
    let mut command = Command::new("env");
    command.args(["--default-signal", "mv"]).args([root.join("d/f"), root.join("d/g")]);
    command.process_group(0).spawn().expect("mv")
}

/// Renames at `there` wait for a lock that is held through `here`, and end by a signal within `soon`; nothing is
/// left of them.
pub(crate) fn renames_end(here: &Path, there: &Path, soon: Duration) {
    fs::create_dir(here.join("d")).expect("a directory");
    fs::write(here.join("d/f"), b"x").expect("a file");
    until("the file is seen", || there.join("d/f").exists());
    let held = Held::exclusive(&here.join("d"));
    // A signal that is handled: the program goes on, with EINTR.
    let mut renamer = Locker::at(&there.join("d/f"));
    assert_eq!(renamer.ask("handle"), "ok");
    renamer.say("rename g");
    until("it waits", || waiting(there) == 1);
    assert_eq!(renamer.answer(Duration::from_millis(300)), None, "it was not granted the lock");
    let begun = monotonic();
    renamer.interrupt();
    assert_eq!(renamer.answer(Duration::from_secs(10)).as_deref(), Some(INTERRUPTED));
    assert!(begun.elapsed() < soon, "it took {:?}", begun.elapsed());
    assert_eq!(waiting(there), 0);
    // `^C`, and `kill -9`: the process is gone.
    for deadly in [Signal::INT, Signal::KILL] {
        let mut mv = mv(there);
        until("it waits", || waiting(there) == 1);
        let begun = monotonic();
        signal(mv.id(), deadly);
        let status = wait(&mut mv, Duration::from_secs(10)).expect("it ends");
        assert_eq!(status.signal(), Some(deadly.as_raw()));
        assert!(begun.elapsed() < soon, "it took {:?}", begun.elapsed());
        assert_eq!(waiting(there), 0);
    }
    // `^Z` ends no rename: mv(1) has nothing to say of it but that it failed.
    let mut mv = mv(there);
    until("it waits", || waiting(there) == 1);
    signal(mv.id(), Signal::TSTP);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(waiting(there), 1);
    drop(held);
    until("it is done", || there.join("d/g").exists());
    let stat = format!("/proc/{}/stat", mv.id());
    until("it stands still", || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T ")));
    signal(mv.id(), Signal::CONT);
    assert!(wait(&mut mv, Duration::from_secs(10)).expect("it ends").success());
    // Nobody is in the way of who comes after.
    assert_eq!(renamer.answer(Duration::ZERO), None);
    fs::rename(here.join("d"), here.join("e")).expect("the lock is free");
}
