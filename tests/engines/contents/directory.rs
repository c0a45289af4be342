//! Objects in a directory: what is written through one mount is read through another, what it costs, what is refused, and
//! what is said of an object that is gone.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;

use super::{CHUNK, Volume, pattern, write_file};
use crate::common::{lockwood, program, until};

#[test]
fn two_mounts_share_contents_in_objects_and_leave_no_other() {
    let Some(volume) = Volume::in_directory() else { return };
    volume.mount(0);
    volume.mount(1);
    let data = pattern(24 * CHUNK);
    write_file(&volume.at(0, "big"), &data).unwrap();
    assert_eq!(volume.requests(0, "puts"), 24, "each chunk is put once");
    assert!(fs::read(volume.at(1, "big")).unwrap() == data, "the other mount reads other bytes");
    // And the marker; where the kernel reads ahead beside us, a chunk may be fetched twice.
    let gets = volume.requests(1, "gets");
    assert!((25..=29).contains(&gets), "{gets} requests read 24 objects");
    // Small files need none.
    fs::write(volume.at(0, "small"), b"small").unwrap();
    assert_eq!(volume.requests(0, "puts"), 24);
    volume.assert_clean();
    // Both at one chunk, each at bytes of its own.
    std::thread::scope(|scope| {
        for at in [0, 1_usize] {
            let file = OpenOptions::new().write(true).open(volume.at(at, "big")).unwrap();
            scope.spawn(move || {
                for offset in (at..64).step_by(2) {
                    file.write_all_at(&[at as u8 + 1], offset as u64).unwrap();
                }
            });
        }
    });
    let mut expected = data;
    (0..64).for_each(|at| expected[at] = (at % 2) as u8 + 1);
    for at in [0, 1] {
        assert!(fs::read(volume.at(at, "big")).unwrap() == expected, "a byte of one of them is lost");
    }
    // Cut, copied, and gone.
    let file = File::options().write(true).open(volume.at(1, "big")).unwrap();
    file.set_len(5 * CHUNK as u64 + 7).unwrap();
    drop(file);
    expected.truncate(5 * CHUNK + 7);
    fs::copy(volume.at(1, "big"), volume.at(1, "copy")).unwrap();
    for name in ["big", "copy"] {
        assert!(fs::read(volume.at(0, name)).unwrap() == expected, "{name}");
    }
    volume.assert_clean();
    assert_eq!(volume.objects().len(), 12);
    fs::remove_file(volume.at(0, "big")).unwrap();
    fs::remove_file(volume.at(1, "copy")).unwrap();
    volume.umount(0);
    volume.umount(1);
    volume.assert_clean();
    assert_eq!(volume.objects().len(), 0);
}

#[test]
fn an_object_that_is_gone_is_an_error_and_a_violation() {
    let Some(volume) = Volume::in_directory() else { return };
    volume.mount(0);
    fs::write(volume.at(0, "file"), pattern(2 * CHUNK)).unwrap();
    volume.umount(0);
    for object in volume.objects() {
        if object.to_str().unwrap().contains("-1-") {
            fs::remove_file(object).unwrap();
        }
    }
    volume.mount(0);
    let file = File::open(volume.at(0, "file")).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0).unwrap();
    let error = file.read_exact_at(&mut byte, CHUNK as u64).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    let log = fs::read_to_string(volume.log(0)).unwrap();
    assert!(log.contains("-1-") && log.contains("no such object") && log.contains("chunk:"), "{log}");
    let report = volume.check(&[]);
    assert_eq!(report["by_rule"]["object-missing"], 1, "{report}");
    drop(file);
    // Whoever has no use for the rest can remove it.
    fs::remove_file(volume.at(0, "file")).unwrap();
    until("its chunks are removed", || volume.check(&[])["counts"]["chunks"] == 0);
    volume.assert_clean();
    volume.umount(0);
}

#[test]
fn contents_that_are_not_those_of_the_volume_are_refused() {
    let Some(volume) = Volume::in_directory() else { return };
    let (place, away) = (volume.dir.path().join("objects"), volume.dir.path().join("away"));
    let refused = |why: &str| {
        let text = volume.try_mount(0, "").refused();
        assert!(text.contains(why) && text.contains("objects"), "{text}");
    };
    fs::rename(&place, &away).unwrap();
    refused("file://");
    fs::create_dir(&place).unwrap();
    refused("these are not the contents of the volume");
    fs::remove_dir(&place).unwrap();
    fs::rename(&away, &place).unwrap();
    volume.mount(0);
    volume.umount(0);
    // A volume that is there already is not formatted again, and what that had begun is taken back.
    let content = format!("file://{}", place.display());
    volume.lockwood(&["format", &volume.url, "--content", &content]).refused();
    let markers =
        fs::read_dir(&place).unwrap().filter(|id| id.as_ref().unwrap().path().join("volume.json").exists());
    assert_eq!(markers.count(), 1);
    // And at format: secrets, other schemes, stores that have a place of their own.
    let own = volume.dir.path().join("own");
    for (store, content, why) in [
        (own.to_str().unwrap(), "file:///tmp/x", "keeps its contents beside it"),
        (&volume.url, "s3://ada:s3cret@bucket", "AWS_ACCESS_KEY_ID"),
        (&volume.url, "gs://bucket", "the forms are"),
    ] {
        let text = lockwood(["format", store, "--content", content]).refused();
        assert!(text.contains(why) && !text.contains("s3cret"), "{text}");
    }
}

#[test]
fn a_full_disk_is_said_to_be_full_and_removing_makes_room() {
    let volume = Volume::format(
        |dir| {
            let objects = dir.join("objects");
            fs::create_dir(&objects).unwrap();
            let options = ["-t", "tmpfs", "-o", "size=1m", "tmpfs"].map(OsStr::new);
            program("mount", &[&options[..], &[objects.as_os_str()]].concat()).ok();
            format!("file://{}", objects.display())
        },
        &[],
    );
    let Some(volume) = volume else { return };
    volume.mount(0);
    let error = write_file(&volume.at(0, "big"), &pattern(12 * CHUNK)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    fs::remove_file(volume.at(0, "big")).unwrap();
    until("there is room again", || write_file(&volume.at(0, "small"), &pattern(4 * CHUNK)).is_ok());
    assert!(fs::read(volume.at(0, "small")).unwrap() == pattern(4 * CHUNK));
    volume.assert_clean();
    volume.umount(0);
}
