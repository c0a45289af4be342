//! Limits that a shell gives to what it starts, and what a file system has to do with them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

use crate::common::{BINARY, Mounted, run};

/// A store that is mounted by a shell with these limits (ulimit).
fn mounted_under(limits: &str) -> Option<Mounted> {
    let mut mounted = Mounted::unmounted()?;
    let mut shell = Command::new("sh");
    shell.args([OsStr::new("-c"), OsStr::new(&format!("{limits} && exec \"$0\" mount \"$1\" \"$2\""))]);
    run(shell.arg(BINARY).arg(&mounted.store).arg(&mounted.mount_point)).ok();
    mounted.note_daemon();
    Some(mounted)
}

/// Large files that are read are open in the daemon as well, if they are passed.
#[test]
fn more_files_can_be_open_than_the_daemon_may_have() {
    const FILES: usize = 1500;
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let Some(mounted) = mounted_under("ulimit -n 1024") else { return };
    let name = |i| mounted.path(&format!("f{i}"));
    (0..FILES).for_each(|i| fs::write(name(i), vec![i as u8; 8192]).unwrap());
    let open: Vec<File> = (0..FILES).map(|i| File::open(name(i)).unwrap()).collect();
    for (i, mut file) in open.iter().enumerate() {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
        assert_eq!(bytes, vec![i as u8; 8192]);
    }
    for i in 0..2000 {
        fs::write(mounted.path("g"), vec![1; 8192]).unwrap();
        fs::rename(mounted.path("g"), mounted.path(&format!("h{i}"))).unwrap();
    }
    File::open(name(0)).unwrap().sync_all().unwrap();
    drop(open);
    mounted.finish();
}

/// What cannot be synced for want of a descriptor is not lost, and is synced when there is one.
#[test]
fn a_daemon_that_can_open_nothing_more_goes_on_later() {
    let Some(mounted) = mounted_under("true") else { return };
    fs::write(mounted.path("f"), vec![1; 8192]).unwrap();
    let file = File::open(mounted.path("f")).unwrap();
    let daemon = Pid::from_raw(i32::try_from(mounted.pid()).unwrap());
    let limit = |limit| prlimit(daemon, Resource::Nofile, limit).unwrap();
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let before = limit(Rlimit { current: Some(3), maximum });
    let synced = file.sync_all();
    limit(before);
    assert_eq!(synced.unwrap_err().raw_os_error(), Some(Errno::NFILE.raw_os_error()));
    file.sync_all().unwrap();
    drop(file);
    fs::write(mounted.path("g"), vec![2; 8192]).unwrap();
    mounted.finish();
}

#[test]
fn a_limit_on_the_size_of_files_is_for_programs() {
    let Some(mounted) = mounted_under("ulimit -Sf 1000") else { return };
    fs::write(mounted.path("large"), vec![1; 5 << 20]).unwrap();
    mounted.finish();
    let Some(mounted) = mounted_under("ulimit -f 200000") else { return };
    let error = fs::write(mounted.path("larger"), vec![1; 150 << 20]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    fs::write(mounted.path("small"), b"x").unwrap();
    mounted.finish();
}
