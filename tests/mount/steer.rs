//! Seeing and steering: the locks drawn and watched, the sessions, and breaking what holds others up.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::common::lines::Lines;
use crate::common::{
    BINARY, Held, LIMIT, Mounted, Ran, hold, lockwood, mount_entry, run, signal, until, wait,
};

/// How `lockwood lock` ends when its lock was broken.
const LOST: i32 = 76;

fn command(mounted: &Mounted, verb: &str, arguments: &[&str]) -> Ran {
    run(Command::new(BINARY).arg(verb).arg(&mounted.mount_point).args(arguments))
}

fn locks(mounted: &Mounted) -> Vec<Value> {
    let text = command(mounted, "locks", &["--json"]).ok();
    serde_json::from_str(&text).unwrap()
}

fn lock<'a>(locks: &'a [Value], path: &str) -> Option<&'a Value> {
    locks.iter().find(|lock| lock["path"] == path)
}

fn waiters(mounted: &Mounted, path: &str) -> usize {
    lock(&locks(mounted), path).and_then(|lock| lock["waiters"].as_array().map(Vec::len)).unwrap_or_default()
}

fn session(mounted: &Mounted) -> String {
    mounted.status()["session"].as_str().unwrap().to_owned()
}

fn log(mounted: &Mounted) -> String {
    fs::read_to_string(mounted.store.join("log")).unwrap()
}

/// A lock held by a command whose end can be looked at.
fn held(path: &Path) -> Child {
    hold(path, Stdio::piped())
}

/// Lets the command end, and says how `lockwood lock` ended and what it had to say.
fn let_go(mut holder: Child) -> (i32, String) {
    drop(holder.stdin.take());
    let status = wait(&mut holder, Duration::from_secs(10)).expect("`lockwood lock` ends with its command");
    (status.code().unwrap_or(-1), Lines::of(holder.stderr.take().unwrap()).rest())
}

/// A mount with `a/f` and `b`.
fn with_files() -> Option<Mounted> {
    let mounted = Mounted::new()?;
    fs::create_dir(mounted.path("a")).unwrap();
    fs::write(mounted.path("a/f"), b"x").unwrap();
    fs::create_dir(mounted.path("b")).unwrap();
    Some(mounted)
}

#[test]
fn the_locked_part_of_the_tree_is_drawn_with_who_holds_and_who_waits() {
    let Some(mounted) = with_files() else { return };
    fs::create_dir(mounted.path("a/d")).unwrap();
    assert_eq!(command(&mounted, "locks", &["--tree"]).ok(), "no lock is held\n");
    let holder = Held::exclusive(&mounted.path("a/d"));
    std::thread::scope(|scope| {
        let (from, to) = (mounted.path("a/d"), mounted.path("z"));
        let waiter = scope.spawn(move || fs::rename(from, to));
        until("the rename waits", || waiters(&mounted, "/a/d") == 1);
        let drawn = command(&mounted, "locks", &["--tree"]).ok();
        let line = |words: &[&str]| drawn.lines().any(|line| words.iter().all(|word| line.contains(word)));
        let pid = mounted.pid().to_string();
        assert!(line(&["└── a ", "shared", "held", "lock: cat"]), "{drawn}");
        assert!(line(&["    └── d ", "exclusive", "held", "lock: cat", &session(&mounted), &pid]), "{drawn}");
        assert!(line(&["exclusive", "waits", "rename /a/d to /z"]), "{drawn}");
        assert!(!drawn.contains("── b"), "only what is locked: {drawn}");
        // Other forms go on as they were.
        assert!(command(&mounted, "locks", &[]).ok().contains("/a/d"));
        let read: Value =
            serde_json::from_slice(&fs::read(mounted.path(".lockwood/locks.json")).unwrap()).unwrap();
        assert_eq!(read.as_array().unwrap().len(), locks(&mounted).len());
        drop(holder);
        waiter.join().unwrap().unwrap();
    });
    mounted.finish();
}

#[test]
fn a_watch_appends_what_it_sees_and_ends_on_an_interrupt_or_with_the_mount() {
    let Some(mounted) = with_files() else { return };
    let watch = |arguments: &[&str]| {
        let mut command = Command::new(BINARY);
        command.arg("locks").arg(&mounted.mount_point).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut child = watch(&["--watch=0.05", "--tree"]);
    let lines = Lines::of(child.stdout.take().unwrap());
    assert!(lines.find(LIMIT, |line| line == "no lock is held").is_some());
    let holder = Held::exclusive(&mounted.path("a"));
    assert!(lines.find(LIMIT, |line| line.contains("└── a")).is_some());
    drop(holder);
    assert!(lines.find(LIMIT, |line| line == "no lock is held").is_some());
    signal(child.id(), Signal::INT);
    assert_eq!(wait(&mut child, Duration::from_secs(10)).unwrap().code(), Some(0));

    // Nor does it go on for nobody, as behind `| head`.
    let mut child = watch(&["--watch=0.05"]);
    drop(child.stdout.take());
    assert_eq!(wait(&mut child, Duration::from_secs(10)).unwrap().code(), Some(0));

    let mut child = watch(&["--watch=0.05", "--json"]);
    let lines = Lines::of(child.stdout.take().unwrap());
    assert_eq!(lines.line(), "[]");
    // A look that has the control file open for a moment is in the way of a plain unmount.
    until("the tree is unmounted", || lockwood([Path::new("umount"), &mounted.mount_point]).code == 0);
    assert!(mount_entry(&mounted.mount_point).is_none());
    assert_eq!(wait(&mut child, Duration::from_secs(10)).unwrap().code(), Some(1));
    let words = Lines::of(child.stderr.take().unwrap()).rest();
    assert!(words.contains("not mounted any more"), "{words}");
    mounted.assert_clean();
    let words = run(Command::new(BINARY).args(["locks", "--watch"]).arg(&mounted.store)).refused();
    assert!(words.contains("nobody has this store mounted"), "{words}");
}

#[test]
fn the_sessions_of_a_mount_and_of_a_store_are_listed() {
    let Some(mut mounted) = with_files() else { return };
    let holder = Held::exclusive(&mounted.path("a"));
    let list = |target: &Path| -> Vec<Value> {
        let ran = run(Command::new(BINARY).args(["sessions", "--json"]).arg(target)).ok();
        serde_json::from_str(&ran).unwrap()
    };
    for target in [&mounted.mount_point, &mounted.store] {
        let [one] = &list(target)[..] else { panic!("one session") };
        assert_eq!((&one["live"], &one["state"]), (&true.into(), &"live".into()));
        assert_eq!(one["id"], session(&mounted));
        assert_eq!(one["pid"], mounted.pid());
        assert_eq!(one["operations"][0]["holds"][0]["id"], "%2Fa");
    }
    let table = command(&mounted, "sessions", &[]).ok();
    assert!(table.contains(mounted.mount_point.to_str().unwrap()) && table.contains(" live "), "{table}");
    drop(holder);
    signal(mounted.pid(), Signal::KILL);
    until("the daemon is dead", || !crate::common::is_alive(mounted.pid()));
    lockwood([Path::new("umount"), &mounted.mount_point]).ok();
    let [dead] = &list(&mounted.store)[..] else { panic!("what the killed daemon left") };
    assert_eq!(dead["live"], false);
    mounted.mount("rw");
    assert_eq!(list(&mounted.mount_point).len(), 1);
    mounted.umount();
    assert_eq!(run(Command::new(BINARY).arg("sessions").arg(&mounted.store)).ok(), "no session\n");
}

#[test]
fn a_broken_hold_lets_the_next_waiter_in_and_its_command_is_told() {
    let Some(mounted) = with_files() else { return };
    let holder = held(&mounted.path("a"));
    std::thread::scope(|scope| {
        let (from, to) = (mounted.path("a/f"), mounted.path("a/g"));
        let waiter = scope.spawn(move || fs::rename(from, to));
        until("the rename waits", || waiters(&mounted, "/a") == 1);

        let words = command(&mounted, "break", &["/a"]).refused();
        for needed in ["%2Fa", "lock: cat", &session(&mounted), "--force"] {
            assert!(words.contains(needed), "{needed} in {words}");
        }
        assert_eq!(waiters(&mounted, "/a"), 1, "nothing was broken without --force");

        let told = command(&mounted, "break", &["%2Fa", "--force"]).ok();
        assert!(told.contains("lock: cat") && told.contains("nothing to roll back"), "{told}");
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(fs::read(mounted.path("a/g")).unwrap(), b"x");
    let (code, words) = let_go(holder);
    assert_eq!(code, LOST, "{words}");
    assert!(words.contains("lost") && words.contains("broken by user 0"), "{words}");
    assert!(log(&mounted).contains("lock /a was broken by user 0"), "{}", log(&mounted));
    // The session itself goes on.
    fs::write(mounted.path("a/h"), b"y").unwrap();
    mounted.finish();
}

#[test]
fn a_rename_that_waits_can_be_broken_and_then_never_happens() {
    let Some(mounted) = with_files() else { return };
    let holder = Held::exclusive(&mounted.path("b"));
    std::thread::scope(|scope| {
        let (from, to) = (mounted.path("a/f"), mounted.path("b/f"));
        let waiter = scope.spawn(move || fs::rename(from, to));
        until("the rename waits", || waiters(&mounted, "/b") == 1);
        // It holds its source while it waits for its destination.
        let told = command(&mounted, "break", &["/a/f", "--force", "--json"]).ok();
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["operations"][0]["outcome"], "sent_away", "{told}");
        assert_eq!(told["operations"][0]["waits_for"]["id"], "%2Fb", "{told}");
        let error = waiter.join().unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECANCELED), "{error}");
    });
    assert_eq!(locks(&mounted).iter().filter(|lock| lock["path"] != "/b").count(), 0);
    drop(holder);
    assert!(mounted.path("a/f").exists() && !mounted.path("b/f").exists());
    fs::rename(mounted.path("a/f"), mounted.path("b/f")).unwrap();
    mounted.finish();
}

#[test]
fn what_is_not_there_and_what_is_no_lock_cannot_be_broken() {
    let Some(mounted) = with_files() else { return };
    let not_there = format!("`lockwood locks {}` lists them", mounted.mount_point.display());
    for absent in ["/a", "%2Fa", "/no/such/path", "/"] {
        for force in [&["--force"][..], &[]] {
            let ran = command(&mounted, "break", &[&[absent], force].concat());
            assert_eq!(ran.code, 1);
            let words = ran.refused();
            assert!(words.contains("no lock ") && words.contains(&not_there), "{words}");
        }
    }
    let words = command(&mounted, "break", &["00000000000000ab", "--force"]).refused();
    assert!(words.contains("no session 00000000000000ab") && words.contains("lockwood sessions"), "{words}");
    for (nonsense, hint) in
        [("%2fa", "%2Fa"), ("a", "slash"), ("/a//b", "empty"), ("%2Fa%2F..", ".."), ("", "slash")]
    {
        let ran = command(&mounted, "break", &[nonsense, "--force"]);
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.stderr.contains(hint), "{nonsense}: {ran:?}");
    }
    let words = run(Command::new(BINARY).arg("break").arg(mounted.dir.path()).arg("/a")).refused();
    assert!(words.contains("neither a mount of lockwood nor a store"), "{words}");
    mounted.umount();
    run(Command::new(BINARY).arg("break").arg(&mounted.store).args(["/a", "--force"])).refused();
}

#[test]
fn others_than_root_and_the_mounts_owner_break_nothing_even_through_an_open_file() {
    let Some(mounted) = with_files() else { return };
    let holder = held(&mounted.path("a"));
    let nobody = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command
    };
    let words =
        run(nobody().arg(BINARY).arg("break").arg(&mounted.mount_point).args(["/a", "--force"])).refused();
    assert!(words.contains("denied"), "{words}");
    // A descriptor that root has opened does not help either.
    let control = File::options().read(true).write(true).open(mounted.path(".lockwood/break")).unwrap();
    let request = r#"{"target":"/a","force":true,"session":false}"#;
    let mut shell = nobody();
    shell.args(["sh", "-c", &format!("printf '%s' '{request}' | cat")]).stdout(control);
    let mut child = shell.stderr(Stdio::piped()).spawn().unwrap();
    drop(shell); // It keeps its copy of the descriptor.
    let words = Lines::of(child.stderr.take().unwrap()).rest();
    let status = wait(&mut child, LIMIT).expect("it ends");
    assert!(!status.success() && words.contains("not permitted"), "{words}");
    assert!(lock(&locks(&mounted), "/a").is_some(), "still held");
    let control = File::options().read(true).write(true).open(mounted.path(".lockwood/break")).unwrap();
    let error = (&control).write_all(b"{\"target\":7}").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    drop(control);
    assert_eq!(let_go(holder), (0, String::new()));
    mounted.finish();
}

#[test]
fn a_fenced_session_reads_on_changes_nothing_and_is_whole_after_a_remount() {
    let Some(mut mounted) = with_files() else { return };
    fs::write(mounted.path("large"), vec![7; 100_000]).unwrap();
    let open = File::options().read(true).write(true).open(mounted.path("large")).unwrap();
    let holder = held(&mounted.path("b"));
    let id = session(&mounted);
    std::thread::scope(|scope| {
        let (from, to) = (mounted.path("a/f"), mounted.path("b/f"));
        let waiter = scope.spawn(move || fs::rename(from, to));
        until("the rename waits", || waiters(&mounted, "/b") == 1);
        let words = command(&mounted, "break", &[&id]).refused();
        assert!(words.contains("--force") && words.contains(&mounted.pid().to_string()), "{words}");
        let told = command(&mounted, "break", &[&id, "--force"]).ok();
        assert!(told.contains("is fenced") && told.contains("sent away"), "{told}");
        let error = waiter.join().unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    });
    let (code, words) = let_go(holder);
    assert_eq!(code, LOST, "{words}");
    assert_eq!(locks(&mounted), [] as [Value; 0]);
    let again = command(&mounted, "break", &[&id]).ok();
    assert!(again.contains("had been fenced before"), "{again}");

    use std::os::unix::fs::FileExt as _;
    let changes = [
        fs::write(mounted.path("new"), b"x"),
        fs::create_dir(mounted.path("c")),
        fs::remove_file(mounted.path("a/f")),
        fs::rename(mounted.path("a"), mounted.path("z")),
        open.write_all_at(b"other", 10),
        open.set_len(5),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let errno = change.err().and_then(|error| error.raw_os_error());
        assert_eq!(errno, Some(libc::EIO), "change {at}");
    }
    let mut bytes = [0; 16];
    open.read_exact_at(&mut bytes, 4).unwrap();
    assert_eq!((bytes, fs::read(mounted.path("a/f")).unwrap()), ([7; 16], b"x".to_vec()));
    drop(open);
    let log = log(&mounted);
    assert_eq!(log.matches("was fenced by user 0").count(), 1, "{log}");
    assert_eq!(log.matches("declared dead").count(), 0, "once is enough: {log}");
    assert!(command(&mounted, "sessions", &[]).ok().contains("recovered"));

    mounted.umount();
    mounted.assert_clean();
    mounted.mount("rw");
    mounted.assert_clean();
    assert_eq!(fs::read(mounted.path("large")).unwrap(), vec![7; 100_000]);
    fs::rename(mounted.path("a"), mounted.path("z")).unwrap();
    assert_ne!(session(&mounted), id);
    mounted.finish();
}

#[test]
fn the_session_that_holds_a_lock_can_be_fenced_by_the_lock() {
    let Some(mut mounted) = with_files() else { return };
    let holder = held(&mounted.path("a"));
    command(&mounted, "break", &["/a", "--session"]).refused();
    assert_eq!(mounted.status()["fenced"], false);
    assert!(!command(&mounted, "status", &[]).ok().contains("fenced"));
    let told = command(&mounted, "break", &["/a", "--session", "--force", "--json"]).ok();
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["sessions"][0]["session"], session(&mounted));
    assert_eq!(
        (&told["sessions"][0]["recovered"], &told["operations"][0]["outcome"]),
        (&true.into(), &"released".into())
    );
    assert_eq!(let_go(holder).0, LOST);
    assert!(fs::write(mounted.path("new"), b"x").is_err());
    assert_eq!(mounted.status()["fenced"], true);
    assert!(command(&mounted, "status", &[]).ok().contains("fenced: true"));
    mounted.remount();
    fs::write(mounted.path("new"), b"x").unwrap();
    mounted.finish();
}
