//! Mounts that are killed as they write: old bytes or new ones, and what they leave is collected.

use std::fs::{self, OpenOptions};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::{CHUNK, Volume, write_file, write_over};
use crate::common::{program, signal, until};

/// As many kills at most; one has to land between an object and the commit that names it.
const KILLS: u64 = 50;
const CHUNKS: usize = 8;

#[test]
fn a_mount_that_is_killed_leaves_old_bytes_or_new_ones_and_garbage_that_is_collected() {
    let Some(volume) = Volume::in_directory() else { return };
    let mut garbage = 0;
    for kill in 0..KILLS {
        volume.mount(0);
        let path = volume.at(0, "file");
        write_file(&path, &[0; CHUNKS * CHUNK]).unwrap();
        let pid = volume.status(0)["pid"].as_u64().unwrap().try_into().unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let writer = thread::spawn(move || {
            // Until the mount is gone.
            (1..=255).cycle().find(|byte| write_over(&file, &vec![*byte; CHUNKS * CHUNK]).is_err())
        });
        thread::sleep(Duration::from_millis(40 + 7 * (kill % 12)));
        signal(pid, Signal::KILL);
        writer.join().unwrap();
        program("umount", &["-l".as_ref(), volume.points[0].as_os_str()]);
        // Nothing is taken for garbage while the session may still name it.
        let report = volume.check(&["--collect"]);
        assert_eq!(report["by_rule"]["object-missing"].as_u64(), None, "{report}");
        let more =
            report["counts"]["objects"].as_u64().unwrap() - report["counts"]["chunks"].as_u64().unwrap();
        garbage += more;
        volume.mount(1);
        let bytes = fs::read(volume.at(1, "file")).unwrap();
        assert_eq!(bytes.len(), CHUNKS * CHUNK);
        for chunk in bytes.chunks(CHUNK) {
            assert!(chunk.iter().all(|byte| *byte == chunk[0]), "a chunk is torn");
        }
        // Whoever cleans up after the dead session removes what it left.
        volume.assert_clean();
        volume.umount(1);
        if more > 0 && kill >= 3 {
            break;
        }
    }
    assert!(garbage > 0, "no kill landed between an object and its commit: nothing was tested");
}

#[test]
fn only_what_nobody_can_name_any_more_is_collected() {
    let Some(volume) = Volume::in_directory() else { return };
    volume.mount(0);
    fs::write(volume.at(0, "file"), vec![1; CHUNK]).unwrap();
    let [object] = volume.objects().try_into().unwrap();
    let name = object.file_name().unwrap().to_str().unwrap();
    // As if the mount had put it and not named it yet; and as if one had, which is gone.
    let under_way = object.with_file_name(name.replace("-0-", "-1-"));
    let left = object.parent().unwrap().with_file_name("00000000000000ff").join(name);
    fs::create_dir(left.parent().unwrap()).unwrap();
    fs::write(&under_way, b"under way").unwrap();
    fs::write(&left, b"left").unwrap();
    let report = volume.check(&[]);
    assert_eq!(
        (&report["counts"]["garbage"], &report["counts"]["garbage_bytes"]),
        (&1.into(), &4.into()),
        "{report}"
    );
    let report = volume.check(&["--collect"]);
    assert_eq!(report["counts"]["garbage"], 0, "it is of what is there at the end: {report}");
    assert!(!left.exists() && under_way.exists() && object.exists());
    volume.umount(0);
    volume.check(&["--collect"]);
    assert!(!under_way.exists() && object.exists());
    until("the rest is clean", || volume.check(&[])["counts"]["garbage"] == 0);
}
