//! Damaged stores: never a panic and never a hang, an error that names what is damaged, and the rest stays readable.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::rng::{Rng, seed};
use crate::common::{Mounted, Ran, is_alive, lockwood, mount_entry, unmount_once_free, until};

const FILES: usize = 40;

fn contents(n: usize) -> Vec<u8> {
    // Inline and in backing files by turns.
    vec![n as u8; if n.is_multiple_of(2) { 50 + n } else { 5000 + n }]
}

/// A closed store with some files in it.
fn store() -> Option<Mounted> {
    let mounted = Mounted::new()?;
    for n in 0..FILES {
        let directory = mounted.path(&format!("d{}", n % 4));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(n.to_string()), contents(n)).unwrap();
    }
    mounted.umount();
    Some(mounted)
}

fn files_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_below(&path, found);
        } else if fs::metadata(&path).unwrap().len() > 0 {
            found.push(path);
        }
    }
}

/// Flips some bytes of a file, or cuts it short. Says what it did.
fn damage(path: &Path, rng: &mut Rng) -> String {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len();
    if rng.below(3) == 0 {
        let to = rng.below(len);
        file.set_len(to).unwrap();
        return format!("{} was cut from {len} to {to} bytes", path.display());
    }
    let at = rng.below(len);
    let mut bytes = vec![0; usize::try_from((len - at).min(1 + rng.below(64))).unwrap()];
    file.read_exact_at(&mut bytes, at).unwrap();
    bytes.iter_mut().for_each(|byte| *byte ^= 1 << rng.below(8));
    file.write_all_at(&bytes, at).unwrap();
    format!("{} has {} bytes flipped at {at} of {len}", path.display(), bytes.len())
}

/// Ended by itself with an exit code, and said something if it failed.
fn assert_sane(ran: &Ran, case: &str) {
    assert!((0..=2).contains(&ran.code), "{case}: {ran:?}");
    assert!(!ran.stderr.contains("panicked") && !ran.stderr.contains("a defect"), "{case}: {ran:?}");
    let said = !ran.stderr.trim().is_empty() || !ran.stdout.trim().is_empty();
    assert!(ran.code == 0 || said, "{case}: nothing was said");
}

/// Reads everything that can be read. What can be read is right: returns how many files were.
fn read_what_is_left(mounted: &Mounted, case: &str) -> usize {
    let read = |n: usize| {
        let bytes = fs::read(mounted.path(&format!("d{}/{n}", n % 4))).ok()?;
        assert!(bytes == contents(n), "{case}: file {n} has {} wrong bytes and no error", bytes.len());
        Some(())
    };
    (0..FILES).filter_map(read).count()
}

#[test]
fn a_damaged_database_is_an_error_or_a_finding_and_never_a_panic_or_wrong_bytes() {
    let Some(mut mounted) = store() else { return };
    let (seed, pristine) = (seed(), mounted.dir.path().join("pristine"));
    let mut rng = Rng::new(seed);
    copy_store(&mounted.store, &pristine);
    let mut outcomes = [0; 3];
    for round in 0..25 {
        fs::remove_dir_all(&mounted.store).unwrap();
        copy_store(&pristine, &mounted.store);
        let mut files = vec![mounted.store.join("LOCKWOOD")];
        files_below(&mounted.store.join("db"), &mut files);
        let victim = rng.pick(&files).clone();
        let case = format!("LOCKWOOD_SEED={seed} round {round}: {}", damage(&victim, &mut rng));
        let check = lockwood([OsStr::new("check"), mounted.store.as_os_str()]);
        assert_sane(&check, &case);
        let mount = mounted.try_mount("rw");
        assert_sane(&mount, &case);
        if mount.code != 0 {
            outcomes[0] += 1;
            assert!(mount_entry(&mounted.mount_point).is_none(), "{case}");
            continue;
        }
        let left = read_what_is_left(&mounted, &case);
        let under_mount = lockwood([OsStr::new("check"), mounted.mount_point.as_os_str()]);
        assert_sane(&under_mount, &case);
        // What is missing must have been noticed by somebody.
        assert!(left == FILES || check.code != 0 || under_mount.code != 0, "{case}: {left} files left");
        outcomes[if left == FILES { 1 } else { 2 }] += 1;
        unmount_once_free(&mounted.mount_point);
        until("the daemon ends", || !is_alive(mounted.pid()));
    }
    println!("LOCKWOOD_SEED={seed}: {} refused, {} whole, {} in part", outcomes[0], outcomes[1], outcomes[2]);
}

fn copy_store(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_store(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn a_damaged_marker_is_named() {
    let Some(mut mounted) = store() else { return };
    let marker = mounted.store.join("LOCKWOOD");
    let good = fs::read(&marker).unwrap();
    for bad in [&b""[..], b"{", b"{\"lockwood\":\"x\",\"format\":-1}", b"\xff\xff\xff"] {
        fs::write(&marker, bad).unwrap();
        for words in [mounted.try_mount("rw").refused(), mounted.check().refused()] {
            assert!(words.contains("LOCKWOOD") && words.contains("damaged"), "{words}");
        }
    }
    fs::write(&marker, b"{\"lockwood\":\"9.0\",\"format\":99}").unwrap();
    assert!(mounted.try_mount("rw").refused().contains("99"));
    fs::remove_file(&marker).unwrap();
    assert!(mounted.try_mount("rw").refused().contains("not a Lockwood store"));
    fs::write(&marker, good).unwrap();
    mounted.mount("rw");
    assert_eq!(read_what_is_left(&mounted, "mended"), FILES);
    mounted.finish();
}

#[test]
fn a_backing_file_that_is_missing_is_named_and_the_others_are_readable() {
    let Some(mut mounted) = store() else { return };
    let mut files = Vec::new();
    files_below(&mounted.store.join("content"), &mut files);
    assert_eq!(files.len(), FILES / 2);
    fs::remove_file(&files[3]).unwrap();
    let ran = mounted.check();
    let ino = u64::from_str_radix(files[3].file_name().unwrap().to_str().unwrap(), 16).unwrap();
    assert!(ran.code == 1 && ran.stdout.contains(&format!("node:{ino}")), "{ran:?}");
    mounted.mount("rw");
    let right = |mounted: &Mounted, n: usize| {
        fs::read(mounted.path(&format!("d{}/{n}", n % 4))).is_ok_and(|bytes| bytes == contents(n))
    };
    assert_eq!((0..FILES).filter(|n| right(&mounted, *n)).count(), FILES - 1);
    let lost = (0..FILES).find(|n| !right(&mounted, *n)).unwrap();
    let path = mounted.path(&format!("d{}/{lost}", lost % 4));
    let is_eio = |done: io::Result<()>| done.is_err_and(|error| error.raw_os_error() == Some(libc::EIO));
    assert!(is_eio(fs::read(&path).map(drop)));
    let file = File::options().write(true).open(&path).unwrap();
    assert!(is_eio(file.write_all_at(b"part", 100)) && is_eio(file.set_len(9)));
    drop(file);
    mounted.umount();
    let ran = mounted.check();
    assert!(ran.stdout.contains(&format!("node:{ino}")), "nobody has made one in its place: {ran:?}");
    // Who writes the whole of it needs nothing of what is lost.
    mounted.mount("rw");
    fs::write(&path, contents(lost)).unwrap();
    assert!(right(&mounted, lost));
    // Nor does who fills an empty one.
    File::create(&path).unwrap();
    mounted.umount();
    fs::remove_file(&files[3]).unwrap();
    mounted.mount("rw");
    fs::write(&path, contents(lost)).unwrap();
    assert!(right(&mounted, lost));
    mounted.finish();
}

/// The database cannot write its tables any more. The daemon must say so and end, and not wait for them for ever.
#[test]
fn a_mount_whose_database_was_removed_under_it_still_ends() {
    let Some(mounted) = Mounted::new() else { return };
    fs::write(mounted.path("f"), b"x").unwrap();
    // The daemon may make a file there at the same time.
    until("the database is gone", || fs::remove_dir_all(mounted.store.join("db")).is_ok());
    unmount_once_free(&mounted.mount_point);
    let begun = lockwood::ambient::monotonic();
    while is_alive(mounted.pid()) && begun.elapsed() < Duration::from_secs(15) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!is_alive(mounted.pid()), "the daemon still waits for its database");
}
