//! Several mount points of one store: what is changed through one is seen through the others when the call has returned.
//!
//! Each test looks first through the mount that is going to be surprised, so that its kernel has something to keep.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{CWD, RenameFlags, XattrFlags, renameat_with};
use rustix::mount::{UnmountFlags, unmount};

use crate::common::lines::Lines;
use crate::common::mapped::{self, Map};
use crate::common::{LIMIT, Mounted, Ran, lockwood, mount_entry, until, wait};

/// A store that is mounted several times by one process.
pub(crate) struct Many {
    pub(crate) mounted: Mounted,
    pub(crate) points: Vec<PathBuf>,
}

impl Many {
    pub(crate) fn new(count: usize) -> Option<Self> {
        let mut many = Self::unmounted(count)?;
        many.mount().ok();
        Some(many)
    }

    pub(crate) fn unmounted(count: usize) -> Option<Self> {
        let mounted = Mounted::unmounted()?;
        let mut points = vec![mounted.mount_point.clone()];
        points.extend((1..count).map(|n| mounted.dir.path().join(format!("mnt{n}"))));
        points.iter().skip(1).for_each(|point| fs::create_dir(point).unwrap());
        Some(Self { mounted, points })
    }

    pub(crate) fn mount(&mut self) -> Ran {
        let words = [OsStr::new("mount"), self.mounted.store.as_os_str()];
        let ran = lockwood(words.into_iter().chain(self.points.iter().map(|point| point.as_os_str())));
        self.mounted.note_daemon();
        ran
    }

    /// Mounts with a rule switched off, which only a build for that can do.
    #[cfg(feature = "proof")]
    pub(crate) fn mount_with_rule_off(&mut self, rule: &str) -> Ran {
        let mut command = Command::new(crate::common::BINARY);
        command.env("LOCKWOOD_RULES_OFF", rule).arg("mount").arg(&self.mounted.store).args(&self.points);
        let ran = crate::common::run(&mut command);
        self.mounted.note_daemon();
        ran
    }

    /// A path as one of the mounts has it.
    pub(crate) fn at(&self, mount: usize, path: &str) -> PathBuf {
        self.points[mount].join(path)
    }

    pub(crate) fn umount(&self, mount: usize) {
        crate::common::umount(&self.points[mount]);
    }

    /// Judges the volume through every mount, and without any.
    pub(crate) fn finish(self) {
        for point in self.points.iter().filter(|point| mount_entry(point).is_some()) {
            assert!(lockwood([OsStr::new("check"), point.as_os_str()]).ok().contains("clean"));
        }
        for mount in 0..self.points.len() {
            if mount_entry(&self.points[mount]).is_some() {
                self.umount(mount);
            }
        }
        self.mounted.assert_clean();
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        for point in self.points.iter().skip(1).filter(|point| mount_entry(point).is_some()) {
            if unmount(point, UnmountFlags::empty()).is_err() {
                let _ = unmount(point, UnmountFlags::DETACH);
            }
        }
    }
}

fn is_missing(path: &Path) -> bool {
    // Twice: the second answer may come from what the kernel remembers.
    (0..2).all(|_| fs::symlink_metadata(path).is_err_and(|e| e.kind() == ErrorKind::NotFound))
}

fn ino(path: &Path) -> u64 {
    (0..2).map(|_| fs::symlink_metadata(path).unwrap().ino()).max().unwrap()
}

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Every pair of changing mount and looking mount, often enough that luck does not pass.
fn both_ways(many: &Many, mut test: impl FnMut(usize, usize, &str)) {
    for round in 0..20 {
        let (here, there) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        let dir = format!("round{round}");
        fs::create_dir(many.at(here, &dir)).unwrap();
        assert!(many.at(there, &dir).is_dir());
        test(here, there, &dir);
    }
}

#[test]
fn names_that_come_and_go_are_seen_at_once() {
    let Some(many) = Many::new(2) else { return };
    both_ways(&many, |here, there, dir| {
        let (h, t) =
            (|name: &str| many.at(here, dir).join(name), |name: &str| many.at(there, dir).join(name));
        for name in ["f", "d", "l", "s"] {
            assert!(is_missing(&t(name)));
        }
        fs::write(h("f"), b"x").unwrap();
        fs::create_dir(h("d")).unwrap();
        fs::hard_link(h("f"), h("l")).unwrap();
        symlink("target", h("s")).unwrap();
        assert_eq!(fs::read(t("f")).unwrap(), b"x");
        assert!(t("d").is_dir());
        assert_eq!((ino(&t("l")), fs::metadata(t("f")).unwrap().nlink()), (ino(&h("f")), 2));
        assert_eq!(fs::read_link(t("s")).unwrap(), Path::new("target"));
        assert_eq!(names(&t("")), BTreeSet::from(["f", "d", "l", "s"].map(str::to_owned)));
        fs::remove_file(h("l")).unwrap();
        assert!(is_missing(&t("l")));
        assert_eq!(fs::metadata(t("f")).unwrap().nlink(), 1);
        fs::remove_file(h("s")).unwrap();
        fs::remove_dir(h("d")).unwrap();
        assert!(is_missing(&t("s")) && is_missing(&t("d")));
        assert_eq!(names(&t("")), BTreeSet::from(["f".to_owned()]));
        // A name that stands for something else now.
        fs::remove_file(h("f")).unwrap();
        fs::create_dir(h("f")).unwrap();
        assert!(t("f").is_dir());
    });
    many.finish();
}

#[test]
fn renames_are_seen_at_once() {
    let Some(many) = Many::new(2) else { return };
    both_ways(&many, |here, there, dir| {
        let (h, t) =
            (|name: &str| many.at(here, dir).join(name), |name: &str| many.at(there, dir).join(name));
        fs::create_dir_all(h("a/deep/down")).unwrap();
        fs::create_dir(h("b")).unwrap();
        fs::write(h("a/deep/down/f"), b"f").unwrap();
        fs::write(h("g"), b"g").unwrap();
        let (a, f, g) = (ino(&t("a")), ino(&t("a/deep/down/f")), ino(&t("g")));
        assert!(is_missing(&t("b/c")));
        fs::rename(h("a"), h("b/c")).unwrap();
        assert!(is_missing(&t("a")) && is_missing(&t("a/deep/down/f")));
        assert_eq!((ino(&t("b/c")), ino(&t("b/c/deep/down/f"))), (a, f));
        fs::rename(h("g"), h("b/c/deep/down/f")).unwrap();
        assert!(is_missing(&t("g")));
        assert_eq!(ino(&t("b/c/deep/down/f")), g);
        assert_eq!(fs::read(t("b/c/deep/down/f")).unwrap(), b"g");
        // What was seen through the other mount is renamed there at once.
        fs::rename(t("b/c/deep"), t("shallow")).unwrap();
        assert!(is_missing(&h("b/c/deep")));
        assert_eq!(ino(&h("shallow/down/f")), g);
        let (b, shallow) = (ino(&t("b")), ino(&t("shallow")));
        renameat_with(CWD, h("b"), CWD, h("shallow"), RenameFlags::EXCHANGE).unwrap();
        assert_eq!((ino(&t("b")), ino(&t("shallow"))), (shallow, b));
        assert_eq!(ino(&t("b/down/f")), g);
    });
    many.finish();
}

#[test]
fn attributes_are_seen_at_once_by_name_and_by_descriptor() {
    let Some(many) = Many::new(2) else { return };
    both_ways(&many, |here, there, dir| {
        let (h, t) = (many.at(here, dir).join("f"), many.at(there, dir).join("f"));
        fs::write(&h, b"0123456789").unwrap();
        let open = File::open(&t).unwrap();
        let both = || [fs::metadata(&t).unwrap(), open.metadata().unwrap()];
        both();
        fs::set_permissions(&h, fs::Permissions::from_mode(0o640)).unwrap();
        for seen in both() {
            assert_eq!(seen.mode() & 0o7777, 0o640);
        }
        std::os::unix::fs::chown(&h, Some(1234), Some(4321)).unwrap();
        for seen in both() {
            assert_eq!((seen.uid(), seen.gid()), (1234, 4321));
        }
        let time = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
        File::options().write(true).open(&h).unwrap().set_modified(time).unwrap();
        for seen in both() {
            assert_eq!(seen.modified().unwrap(), time);
        }
        File::options().write(true).open(&h).unwrap().set_len(4).unwrap();
        for seen in both() {
            assert_eq!(seen.len(), 4);
        }
        assert!(rustix::fs::getxattr(&t, "user.a", &mut [0u8; 8]).is_err());
        rustix::fs::setxattr(&h, "user.a", b"one", XattrFlags::empty()).unwrap();
        let mut value = [0u8; 8];
        assert_eq!(rustix::fs::getxattr(&t, "user.a", &mut value).unwrap(), 3);
        rustix::fs::removexattr(&h, "user.a").unwrap();
        assert!(rustix::fs::getxattr(&t, "user.a", &mut value).is_err());
        let directory = |mount| fs::metadata(many.at(mount, dir)).unwrap();
        let before = directory(there);
        fs::create_dir(many.at(here, dir).join("sub")).unwrap();
        let after = directory(there);
        assert_eq!((after.nlink(), after.len()), (before.nlink() + 1, before.len() + 1));
        assert!(after.modified().unwrap() > before.modified().unwrap());
    });
    many.finish();
}

#[test]
fn bytes_are_seen_at_once_by_open_and_by_read() {
    let Some(many) = Many::new(2) else { return };
    both_ways(&many, |here, there, dir| {
        for size in [100, 100_000] {
            let (h, t) = (many.at(here, dir).join("f"), many.at(there, dir).join("f"));
            fs::write(&h, vec![b'a'; size]).unwrap();
            assert_eq!(fs::read(&t).unwrap(), vec![b'a'; size]);
            let open = File::options().read(true).write(true).open(&t).unwrap();
            let mut seen = vec![0; size];
            open.read_exact_at(&mut seen, 0).unwrap();
            let writer = File::options().write(true).open(&h).unwrap();
            for byte in *b"bc" {
                // Of the same length, so that only the bytes and the time tell.
                writer.write_all_at(&vec![byte; size], 0).unwrap();
                open.read_exact_at(&mut seen, 0).unwrap();
                assert!(seen.iter().all(|b| *b == byte), "an open file shows old bytes");
                assert_eq!(fs::read(&t).unwrap(), vec![byte; size], "opened after the write");
            }
            writer.write_all_at(b"more", size as u64).unwrap();
            let mut more = [0; 4];
            open.read_exact_at(&mut more, size as u64).unwrap();
            assert_eq!(&more, b"more");
            writer.set_len(1).unwrap();
            assert_eq!(open.read_at(&mut seen, 0).unwrap(), 1);
            fs::remove_file(&h).unwrap();
        }
    });
    many.finish();
}

#[test]
fn a_write_with_o_sync_is_durable_when_it_returns() {
    let Some(many) = Many::new(2) else { return };
    let syncs = || many.mounted.status()["documents"]["syncs"].as_u64().unwrap();
    let mut options = File::options();
    let file = options.write(true).create(true).custom_flags(libc::O_DSYNC).open(many.at(0, "f")).unwrap();
    let before = syncs();
    for at in 0..10 {
        file.write_all_at(b"x", at).unwrap();
    }
    assert!(syncs() - before >= 10);
}

#[test]
fn appenders_through_two_mounts_lose_nothing() {
    const LINES: usize = 300;
    let Some(many) = Many::new(2) else { return };
    fs::write(many.at(0, "log"), b"").unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let path = many.at(writer % 2, "log");
            scope.spawn(move || {
                let mut file = File::options().append(true).open(path).unwrap();
                for line in 0..LINES {
                    file.write_all(format!("{writer} {line:06} {}\n", "x".repeat(writer * 7)).as_bytes())
                        .unwrap();
                }
            });
        }
    });
    for mount in 0..2 {
        let text = fs::read_to_string(many.at(mount, "log")).unwrap();
        let lines: BTreeSet<&str> = text.lines().collect();
        assert_eq!((text.lines().count(), lines.len()), (4 * LINES, 4 * LINES));
        assert!(lines.iter().all(|line| line.split(' ').count() == 3), "lines run into each other");
    }
    many.finish();
}

#[test]
fn a_file_without_a_name_lives_as_long_as_any_mount_has_it_open() {
    let Some(many) = Many::new(3) else { return };
    for (size, unlinker) in [(10, 0), (100_000, 0), (100_000, 2)] {
        fs::write(many.at(0, "f"), vec![b'x'; size]).unwrap();
        let mut open = File::options().read(true).write(true).open(many.at(1, "f")).unwrap();
        if unlinker == 0 {
            fs::remove_file(many.at(0, "f")).unwrap();
        } else {
            fs::write(many.at(2, "other"), b"").unwrap();
            fs::rename(many.at(2, "other"), many.at(2, "f")).unwrap();
        }
        assert_eq!(open.metadata().unwrap().nlink(), 0);
        open.write_all(b"yy").unwrap();
        let mut seen = vec![0; size];
        open.read_exact_at(&mut seen, 0).unwrap();
        assert!(seen.starts_with(b"yyxx") && seen.len() == size);
        if unlinker == 2 {
            // The session that unlinked it goes; the file is handed to one that stays.
            many.umount(2);
            assert!(lockwood([OsStr::new("check"), many.points[0].as_os_str()]).ok().contains("clean"));
            open.read_exact_at(&mut seen, 0).unwrap();
        }
        drop(open);
    }
    many.finish();
}

#[test]
fn a_working_directory_goes_along_when_it_is_renamed_elsewhere() {
    let Some(many) = Many::new(2) else { return };
    fs::create_dir_all(many.at(0, "a/d")).unwrap();
    fs::write(many.at(0, "a/d/f"), b"here").unwrap();
    let mut shell = Command::new("sh");
    let script = "read go; cat f > copy && mkdir sub && echo done";
    let mut child = shell
        .args(["-c", script])
        .current_dir(many.at(1, "a/d"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    fs::rename(many.at(0, "a/d"), many.at(0, "e")).unwrap();
    assert!(is_missing(&many.at(1, "a/d")));
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(Lines::of(child.stdout.take().unwrap()).rest(), "done\n");
    wait(&mut child, LIMIT).expect("it ends");
    assert_eq!(fs::read(many.at(0, "e/copy")).unwrap(), b"here");
    assert!(many.at(1, "e/sub").is_dir());
    many.finish();
}

/// After xfstests generic/732: two mounts rename one file to and fro, and neither trips over an old name.
#[test]
fn two_mounts_rename_one_file_in_turn_without_stale_names() {
    let Some(many) = Many::new(2) else { return };
    fs::create_dir(many.at(0, "d1")).unwrap();
    fs::create_dir(many.at(0, "d2")).unwrap();
    fs::write(many.at(0, "d1/f"), b"x").unwrap();
    let number = ino(&many.at(0, "d1/f"));
    for round in 0..200 {
        let (from, to) = if round % 2 == 0 { ("d1/f", "d2/f") } else { ("d2/f", "d1/f") };
        let (here, there) = (round / 2 % 2, 1 - round / 2 % 2);
        assert_eq!(ino(&many.at(there, from)), number);
        fs::rename(many.at(here, from), many.at(here, to)).unwrap();
        assert!(is_missing(&many.at(there, from)) && is_missing(&many.at(here, from)), "round {round}");
        assert_eq!(ino(&many.at(there, to)), number);
    }
    many.finish();
}

/// What one mount alone uses costs the others nothing: their kernels are not told of it.
#[test]
fn disjoint_subtrees_need_no_notices() {
    let Some(many) = Many::new(2) else { return };
    let told = |mount: usize| {
        let text = fs::read_to_string(many.at(mount, ".lockwood/status")).unwrap();
        let status: serde_json::Value = serde_json::from_str(&text).unwrap();
        status["notices"].as_u64().unwrap()
    };
    fs::create_dir_all(many.at(0, "mine/a")).unwrap();
    fs::create_dir(many.at(0, "mine/b")).unwrap();
    fs::write(many.at(0, "mine/a/f"), b"x").unwrap();
    // The root is known to all, so making `mine` was told; what is in it is not.
    let before = told(1);
    for _ in 0..50 {
        fs::rename(many.at(0, "mine/a/f"), many.at(0, "mine/b/f")).unwrap();
        fs::rename(many.at(0, "mine/b/f"), many.at(0, "mine/a/f")).unwrap();
    }
    assert_eq!(told(1), before);
    assert!(many.at(1, "mine/a/f").exists());
    fs::rename(many.at(0, "mine/a/f"), many.at(0, "mine/b/f")).unwrap();
    assert!(told(1) > before);
    many.finish();
}

/// A map sees what is written elsewhere soon, as docs/semantics.md says.
#[test]
fn a_map_sees_soon_what_is_written_through_another_mount() {
    let Some(many) = Many::new(2) else { return };
    fs::write(many.at(0, "f"), vec![b'a'; 4096]).unwrap();
    let file = File::options().read(true).write(true).open(many.at(1, "f")).unwrap();
    let map = Map::of(&file, 4096);
    assert_eq!(map.get(0), b'a');
    File::options().write(true).open(many.at(0, "f")).unwrap().write_all_at(b"b", 0).unwrap();
    until("the map shows the new byte", || map.get(0) == b'b');
    drop(map);
    drop(file);
    many.finish();
}

#[test]
fn a_map_does_not_undo_a_truncation_through_another_mount() {
    let Some(many) = Many::new(2) else { return };
    mapped::a_map_does_not_undo_a_truncation(&many.at(0, "f"), &many.at(1, "f"));
    many.finish();
}

#[test]
fn who_opens_after_a_chmod_through_another_mount_is_judged_by_it() {
    /// What a user other than root is refused, whom this thread is for as long as `what` takes.
    fn as_nobody<T>(what: impl FnOnce() -> T) -> T {
        // SAFETY: takes no memory; it is about this thread alone.
        unsafe { libc::setfsuid(65534) };
        let done = what();
        // SAFETY: as above.
        unsafe { libc::setfsuid(0) };
        done
    }
    let Some(many) = Many::new(2) else { return };
    let (ours, theirs) = (many.at(0, "f"), many.at(1, "f"));
    fs::write(&ours, vec![b'x'; 100_000]).unwrap();
    let wrong = (0..3000).filter(|round| {
        let may = round % 2 == 0;
        fs::set_permissions(&ours, fs::Permissions::from_mode(if may { 0o644 } else { 0o600 })).unwrap();
        as_nobody(|| File::open(&theirs)).is_ok() != may
    });
    assert_eq!(wrong.count(), 0);
    many.finish();
}
