//! Two mount points of one store, on the machine's kernel: what was changed through one is seen through the other at once.
//! Runs the command that was built beside this program, with the rules that are off here switched off there.
//!
//! Needs root and /dev/fuse. What cannot be mounted is no objection, and so a rule to which nobody objects.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use lockwood::rules::{Rule, holds};

use super::{Judged, objection};

fn lockwood() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    Some(program.parent()?.join("lockwood-proof")).filter(|command| command.exists())
}

fn run(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// So often a mode is changed.
const TIMES: u64 = 2_000;

/// Both mount points, until this is dropped.
struct Mounts {
    lockwood: PathBuf,
    directory: tempfile::TempDir,
}

impl Mounts {
    fn begin() -> Option<Self> {
        let mounts = Self { lockwood: lockwood()?, directory: tempfile::tempdir().ok()? };
        let off: Vec<String> =
            Rule::ALL.iter().filter(|rule| !holds(**rule)).map(|rule| rule.name()).collect();
        let store = mounts.directory.path().join("store");
        fs::create_dir(mounts.one()).ok()?;
        fs::create_dir(mounts.other()).ok()?;
        let formatted = run(Command::new(&mounts.lockwood).arg("format").arg(&store));
        let mut mount = Command::new(&mounts.lockwood);
        mount.arg("mount").arg(&store).args([mounts.one(), mounts.other()]);
        (formatted && run(mount.env("LOCKWOOD_RULES_OFF", off.join(",")))).then_some(mounts)
    }

    fn one(&self) -> PathBuf {
        self.directory.path().join("one")
    }

    fn other(&self) -> PathBuf {
        self.directory.path().join("other")
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for point in [self.one(), self.other()] {
            run(Command::new(&self.lockwood).arg("umount").arg(point));
        }
    }
}

pub(super) fn judge() -> Judged {
    let Some(mounts) = Mounts::begin() else { return Ok(0) };
    let (here, there) = (mounts.one().join("file"), mounts.other().join("file"));
    let looked = fs::metadata(&there);
    if looked.is_ok() || fs::write(&here, "").is_err() {
        return objection(1, "a new tree is not empty, or takes no file");
    }
    if fs::metadata(&there).is_err() {
        return objection(1, "a file that was made through one mount is not there through the other");
    }
    // By a descriptor, so that no name is looked up again, which would bring the attributes with it.
    let Ok(file) = fs::File::open(&there) else { return objection(2, "the file cannot be opened") };
    let mode = || Some(file.metadata().ok()?.permissions().mode() & 0o777);
    // Often: a notice that is sent for the bytes, but not before the reply, hides it most of the time.
    for time in 0..TIMES {
        let wanted = if time % 2 == 0 { 0o600 } else { 0o640 };
        let (_, changed) = (mode(), fs::set_permissions(&here, fs::Permissions::from_mode(wanted)).is_ok());
        if !changed || mode() != Some(wanted) {
            return objection(time, "a mode that was changed through one mount is still the old one there");
        }
    }
    Ok(TIMES)
}
