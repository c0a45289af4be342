//! A large directory, listed by getdents(2) while others come and go.

use std::collections::HashMap;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use rustix::fs::RawDir;

use crate::common::Mounted;
use crate::common::stop::StopOnDrop;

const KEPT: usize = 20_000;
const LISTINGS: usize = 3;

fn list(mounted: &Mounted) -> HashMap<String, usize> {
    let directory = File::open(mounted.path("d")).unwrap();
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    let mut entries = RawDir::new(directory, &mut buffer);
    let mut seen = HashMap::new();
    while let Some(entry) = entries.next() {
        let name = entry.unwrap().file_name().to_str().unwrap().to_owned();
        *seen.entry(name).or_insert(0) += 1;
    }
    seen
}

#[test]
fn twenty_thousand_entries_are_each_listed_once_while_others_come_and_go() {
    let Some(mounted) = Mounted::new() else { return };
    fs::create_dir(mounted.path("d")).unwrap();
    fs::create_dir(mounted.path("other")).unwrap();
    for n in 0..KEPT {
        File::create_new(mounted.path(&format!("d/keep{n}"))).unwrap();
    }
    let (stop, changes) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            for n in 0.. {
                if stop.load(Relaxed) {
                    break;
                }
                let [come, moved, away] =
                    ["d/come", "d/moved", "other/away"].map(|p| mounted.path(&format!("{p}{n}")));
                File::create_new(&come).unwrap();
                fs::rename(&come, &moved).unwrap();
                if n % 2 == 0 {
                    fs::rename(&moved, &away).unwrap()
                } else {
                    fs::remove_file(&moved).unwrap()
                }
                changes.fetch_add(1, Relaxed);
            }
        });
        for _ in 0..LISTINGS {
            let before = changes.load(Relaxed);
            let seen = list(&mounted);
            assert!(changes.load(Relaxed) > before, "nothing changed during a listing");
            for n in 0..KEPT {
                assert_eq!(seen.get(&format!("keep{n}")), Some(&1), "keep{n}");
            }
            assert!(seen.values().all(|times| *times == 1), "an entry was listed twice");
            assert_eq!((seen[&".".to_owned()], seen[&"..".to_owned()]), (1, 1));
        }
    });
    mounted.finish();
}

#[test]
fn everything_can_be_removed_while_it_is_listed() {
    let Some(mounted) = Mounted::new() else { return };
    fs::create_dir_all(mounted.path("d/sub/deeper")).unwrap();
    for n in 0..2000 {
        File::create_new(mounted.path(&format!("d/{n}"))).unwrap();
        File::create_new(mounted.path(&format!("d/sub/deeper/{n}"))).unwrap();
    }
    fs::remove_dir_all(mounted.path("d")).unwrap();
    assert_eq!(fs::read_dir(&mounted.mount_point).unwrap().count(), 0);
    mounted.finish();
}
